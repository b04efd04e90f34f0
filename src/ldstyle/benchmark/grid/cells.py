"""The grid: one cell per method, split and seed, each with a folder of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

from ldstyle.benchmark.grid.methods import Method
from ldstyle.benchmark.grid.presets import Preset, apply_preset
from ldstyle.data.loading.splits import leave_one_domain_out
from ldstyle.messages import did_you_mean
from ldstyle.runs.config import RUNTIME
from ldstyle.runs.settings import Settings, complete, differences, merge

T = TypeVar("T")

MAY_DIFFER = RUNTIME | {"data.root"}
"""Settings that a cell may be continued with others of."""


@dataclass(frozen=True)
class Split:
    """A leave-one-domain-out split.

    Attributes:
        name: ``s1``, ``s2``, ... in the order of the domains; over UCM, AID and DFC15 the paper's Splits 1 to 3.
        sources: Domains to train on.
        target: Domain to report on.
    """

    name: str
    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class Cell:
    """One run of the grid and its report on the target.

    Attributes:
        method: Name of the method.
        title: The method's name in tables.
        split: Sources and target.
        seed: Seed of the splits, the initial weights and all draws.
        preset: Name of the preset.
        settings: Complete settings of the run, but for where it is written and how it is shown.
        oracle: Trained on the target's own training part.
    """

    method: str
    title: str
    split: Split
    seed: int
    preset: str
    settings: Settings = field(hash=False)
    oracle: bool = False

    @property
    def slug(self) -> str:
        """The cell's stable name, which is also that of its folder."""
        return f"{self.preset}-{self.method}-{self.split.name}-seed{self.seed}"

    def describe(self) -> dict[str, Any]:
        """Return the cell as plain values for JSON; :meth:`from_description` gives it back."""
        split = {**asdict(self.split), "sources": list(self.split.sources)}
        return {"cell": self.slug, **asdict(self), "split": split}

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> Self:
        """Build the cell that :meth:`describe` described."""
        split = described["split"]
        values = {key: value for key, value in described.items() if key not in ("cell", "split")}
        return cls(split=Split(split["name"], tuple(split["sources"]), split["target"]), **values)

    def differences(self, other: Cell) -> dict[str, tuple[Any, Any]]:
        """Return the settings by dotted name that differ from another's and could change the result."""
        return differences(_identity(self), _identity(other), ignored=MAY_DIFFER)


def _identity(cell: Cell) -> Settings:
    return {**cell.settings, "split": asdict(cell.split), "oracle": cell.oracle}


def order_domains(split: str, sources: Sequence[str], target: str) -> tuple[str, ...]:
    """Return the domains of a split in the order of the benchmark: the target of ``sN`` is the N-th, else the first."""
    number = split.removeprefix("s")
    before = int(number) - 1 if number.isdecimal() else 0
    return (*sources[:before], target, *sources[before:])


def make_splits(domains: Sequence[str], chosen: Sequence[str] = ("all",)) -> tuple[Split, ...]:
    """Make each domain the target once.

    Args:
        domains: The domains, in order.
        chosen: Splits to keep: their names, their targets, or ``all``.
    """
    folds = leave_one_domain_out(domains)
    splits = [Split(f"s{n}", fold.sources, fold.target) for n, fold in enumerate(folds, start=1)]
    by_name = {split.name: split for split in splits} | {split.target: split for split in splits}
    for name in chosen:
        if name != "all" and name not in by_name:
            choices = ", ".join(f"{split.name} (target {split.target})" for split in splits)
            raise ValueError(f"There is no split {name!r}.{did_you_mean(name, by_name)} Choose from: all, {choices}.")
    kept = {split for name in chosen for split in (splits if name == "all" else [by_name[name]])}
    return tuple(split for split in splits if split in kept)


def make_cells(
    methods: Sequence[Method],
    splits: Sequence[Split],
    seeds: Sequence[int],
    *,
    preset: Preset,
    data: Settings,
    edits: Settings | None = None,
    selected: Mapping[tuple[str, str], Settings] | None = None,
) -> list[Cell]:
    """Lay out the grid, seed by seed, so that the first seed's tables are whole first.

    Args:
        methods: Rows.
        splits: Splits.
        seeds: Seeds.
        preset: Settings shared by all.
        data: Where the data are: settings of the section ``data``.
        edits: Settings that lie above everything else.
        selected: Settings by method's and split's name, such as a search has selected, above the preset's schedule.
    """
    # Checking settings takes its time, so it is done once per method, not once per cell.
    checked: dict[tuple[str, str | None], Settings] = {}

    def settings_of(method: Method, split: Split) -> Settings:
        above = (selected or {}).get((method.base or method.name, split.name))
        key = (method.name, None if above is None else split.name)
        if key not in checked:
            chosen = merge(merge(apply_preset(preset, method.settings), above or {}), method.edits)
            fixed = {"data": data, "method": method.name}
            checked[key] = _lasting(complete(merge(merge(chosen, edits or {}), fixed)))
        return checked[key]

    return [
        Cell(
            method.name,
            method.title,
            split,
            seed,
            preset.name,
            _with_sources(settings_of(method, split), split, seed=seed, oracle=method.oracle),
            method.oracle,
        )
        for seed in seeds
        for split in splits
        for method in methods
    ]


def _with_sources(settings: Settings, split: Split, *, seed: int, oracle: bool) -> Settings:
    data = {**settings["data"], "sources": [split.target] if oracle else list(split.sources)}
    if len(split.sources) == 1 and not oracle:
        data["pseudo_domain"] = True  # for all methods, so that none gains by its data
    return {**settings, "data": data, "seed": seed}


def _lasting(settings: Settings) -> Settings:
    """Leave out where a run is written and how it is shown: each machine may do that its own way.

    An algorithm, loss, bands, range or normalisation that a run does not have is left out too, as in plans of earlier
    versions.
    """
    unused = {key for key in ("algorithm", "loss") if settings[key] is None}
    kept = {key: value for key, value in settings.items() if key not in RUNTIME | unused}
    kept |= {"keep_epochs": True} if settings["keep_epochs"] else {}
    data = {key: value for key, value in kept["data"].items() if f"data.{key}" not in RUNTIME}
    return {**kept, "data": _stated(data, "bands", "range"), "backbone": _stated(kept["backbone"], "mean", "std")}


def _stated(section: Settings, *optional: str) -> Settings:
    """Leave out those optional settings of a section that are empty."""
    return {key: value for key, value in section.items() if value or key not in optional}


def take_shard(items: Sequence[T], shard: int, shards: int) -> list[T]:
    """Return shard number ``shard``, counted from 1, of ``shards``: disjoint, and together everything."""
    if not 1 <= shard <= shards:
        raise ValueError(f"A shard must be I/N with 1 <= I <= N; got {shard}/{shards}.")
    return list(items[shard - 1 :: shards])


def digest_of(cells: Sequence[Cell]) -> str:
    """Return a hash of cells, the same in whatever order they stand."""
    described = json.dumps(sorted(json.dumps(cell.describe(), sort_keys=True) for cell in cells))
    return hashlib.blake2b(described.encode(), digest_size=8).hexdigest()
