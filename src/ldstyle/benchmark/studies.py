"""The paper's two studies, the ablations of Table 8 and the sweeps of the sensitivity figure: methods and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ldstyle.benchmark.grid.methods import Method, load_method
from ldstyle.benchmark.results.statistics import Difference, Entry
from ldstyle.runs.settings import Settings, nested

if TYPE_CHECKING:
    from ldstyle.benchmark.results.view import Results


@dataclass(frozen=True)
class Ablation:
    """A row of Table 8.

    Attributes:
        name: Short name, ``METHOD`` or ``METHOD.WHAT``.
        title: Its name in tables.
        base: The full method.
        edit: What is changed of its settings; nothing for the full method itself.
    """

    name: str
    title: str
    base: str
    edit: Settings = field(default_factory=dict, hash=False)

    def method(self) -> Method:
        """Return the row as a method of the benchmark."""
        full = load_method(self.base)
        settings = {**full.settings, "method": self.name}
        return Method(self.name, self.title, settings, base=self.base, edits=self.edit)


ABLATIONS = (
    Ablation("ld-efdmix-gc", "LD-EFDMix-GC (full)", "ld-efdmix-gc"),
    Ablation(
        "ld-efdmix-gc.uniform",
        "w/o attention (uniform map)",
        "ld-efdmix-gc",
        {"style": {"attention": {"name": "uniform", "switch": "step"}}},
    ),
    Ablation(
        "ld-efdmix-gc.no-refresh", "w/o map refresh", "ld-efdmix-gc", {"style": {"attention": {"refresh": "never"}}}
    ),
    Ablation(
        "ld-efdmix-gc.all-places",
        "w/o top-K selection (ρ = 1)",
        "ld-efdmix-gc",
        {"style": {"operator": {"top_ratio": 1.0}}},
    ),
    Ablation(
        "ld-efdmix-gc.shared-lambda", "w/o per-label λ (shared λ)", "ld-efdmix-gc", {"style": {"per_label": False}}
    ),
    Ablation(
        "ld-efdmix-gc.any-partner", "w/o label-matched pairing", "ld-efdmix-gc", {"style": {"label_matched": False}}
    ),
    Ablation("ld-efdmix-gc.no-warmup", "w/o warm-up", "ld-efdmix-gc", {"style": {"warmup_epochs": 0}}),
    Ablation("ld-mixstyle", "LD-MixStyle (full)", "ld-mixstyle"),
    Ablation("ld-mixstyle.no-bank", "LD-MixStyle w/o style bank", "ld-mixstyle", {"style": {"bank_size": 0}}),
)
"""The nine rows in the paper's order."""


def ablation_methods() -> tuple[Method, ...]:
    """Return the rows of Table 8 as methods of the benchmark."""
    return tuple(ablation.method() for ablation in ABLATIONS)


SENSITIVITY_SEED = 1000
"""Seed of all sweeps, far from those of the main runs, which count from 0."""


@dataclass(frozen=True)
class Sweep:
    """A panel of the sensitivity figure.

    Attributes:
        name: Short name.
        title: What is varied.
        base: The method.
        setting: Dotted name of the setting.
        values: Its values.
        also: What else differs from the method, by dotted name: the top-K and refresh sweeps have a warm-up of one
            epoch, so that what is studied governs most of the run.
    """

    name: str
    title: str
    base: str
    setting: str
    values: tuple[Any, ...]
    also: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def method(self, value: Any) -> Method:
        """Return the run at a value as a method of the benchmark."""
        full = load_method(self.base)
        name = f"{self.base}~{self.name}={value_text(value)}"
        edits = nested({**self.also, self.setting: list(value) if isinstance(value, tuple) else value})
        settings = {**full.settings, "method": name}
        return Method(name, f"{full.title}, {self.title} {value_text(value)}", settings, base=self.base, edits=edits)


_ONE_EPOCH = {"style.warmup_epochs": 1}
_STAGES = ((1,), (2,), (3,), (4,), (1, 2), (2, 3), (1, 4), (1, 2, 3), (1, 2, 3, 4))

SWEEPS = (
    Sweep("stages", "insertion stages", "ld-efdmix-gc", "stages", _STAGES),
    Sweep(
        "top-ratio",
        "top-K ratio",
        "ld-efdmix-gc",
        "style.operator.top_ratio",
        (0.2, 0.4, 0.6, 0.8, 1.0),
        _ONE_EPOCH,
    ),
    Sweep(
        "refresh",
        "refresh interval",
        "ld-efdmix-gc",
        "style.attention.refresh_every",
        (5, 7, 9, 11, 13, 15),
        _ONE_EPOCH,
    ),
    Sweep(
        "temperature",
        "LLAM temperature",
        "ld-efdmix",
        "style.attention.temperature",
        (1.0, 5.0, 10.0, 20.0, 50.0, 100.0),
    ),
    Sweep("bank", "style-bank size", "ld-mixstyle", "style.bank_size", (64, 128, 256, 512)),
)
"""The five panels in the paper's order. It names the ranges, ends included, and not every value in them."""


def sensitivity_methods(names: Sequence[str] | None = None) -> tuple[Method, ...]:
    """Return the runs of some sweeps, by default of all, as methods of the benchmark."""
    return tuple(sweep.method(value) for sweep in choose_sweeps(names) for value in sweep.values)


def choose_sweeps(names: Sequence[str] | None = None) -> tuple[Sweep, ...]:
    """Return sweeps by name; by default all."""
    known = {sweep.name: sweep for sweep in SWEEPS}
    for name in names or ():
        if name not in known:
            raise ValueError(f"There is no sweep {name!r}. Choose from: {', '.join(known)}.")
    return tuple(known[name] for name in names or known)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds of the main runs: a selection must not be judged on the seeds that it was made on."""
    main = range(5)
    shared = sorted(set(seeds) & set(main))
    if shared:
        raise ValueError(
            f"A sweep must have a seed other than those of the main runs, {list(main)}; got {shared}. Use "
            f"{SENSITIVITY_SEED}."
        )


def value_text(value: Any) -> str:
    """Return a value of a sweep as text: ``0.5``, or ``1+2`` for stages."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"


_EDITED = {ablation.name for ablation in ABLATIONS if ablation.edit}
_SWEPT = tuple(f"{sweep.base}~{sweep.name}=" for sweep in SWEEPS)


def is_main(method: str) -> bool:
    """Whether a method is a row of the benchmark, and neither an ablation nor a point of a sweep."""
    return method not in _EDITED and not method.startswith(_SWEPT)


@dataclass(frozen=True)
class AblationResult:
    """A measured row of Table 8.

    Attributes:
        ablation: The row.
        map: Mean and deviation of the mAP.
        cf1: Those of the macro-averaged F1.
        of1: Those of the micro-averaged F1.
        change: mAP minus that of the full method, paired by seed; ``None`` for the full method.
    """

    ablation: Ablation
    map: Entry
    cf1: Entry
    of1: Entry
    change: Difference | None


def ablation_table(results: Results, *, split: str, part: Literal["test", "all"] = "test") -> list[AblationResult]:
    """Return Table 8 as measured on a split; entries of rows that were not run name their seeds."""
    names = {ablation.name for ablation in ABLATIONS}
    found = results.select(lambda cell: cell.method in names and cell.split == split)
    rows = []
    for ablation in ABLATIONS:
        name = ablation.name
        map_, cf1, of1 = (found.entry(name, split=split, part=part, metric=metric) for metric in ("map", "cf1", "of1"))
        change = found.difference(name, ablation.base, split=split, part=part) if ablation.edit else None
        rows.append(AblationResult(ablation, map_, cf1, of1, change))
    return rows


def sweep_points(results: Results, sweep: Sweep, *, split: str, part: str = "test") -> list[tuple[Any, Entry]]:
    """Return the values of a sweep, each with its measured entry on a split."""
    names = {sweep.method(value).name: value for value in sweep.values}
    found = results.select(lambda cell: cell.method in names and cell.split == split)
    return [(value, found.entry(name, split=split, part=part)) for name, value in names.items()]
