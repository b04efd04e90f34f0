"""Judge attention sources against masks, next to the uniform map: all of a finished run, or those that need none."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ldstyle.data.domains.scene_table import Progress, SceneTable
from ldstyle.data.loading.bands import find_format
from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.data.loading.pool import Pool
from ldstyle.data.loading.splits import split_domain
from ldstyle.evaluation.attention.maps import present_regions
from ldstyle.evaluation.attention.sources import (
    ActivationSource,
    AttentionSource,
    LearnedSource,
    MaskSource,
    Part,
    ProbeSource,
    UniformSource,
    open_parts,
)
from ldstyle.evaluation.evaluate import read_domain
from ldstyle.evaluation.localization import Localization, with_mean
from ldstyle.evaluation.probe.features import FrozenBackbone
from ldstyle.evaluation.probe.linear import probe_maps
from ldstyle.files import replace_text
from ldstyle.progress import Display
from ldstyle.runs.backbone import Preprocessing
from ldstyle.runs.config import BackboneConfig, DataConfig
from ldstyle.runs.folder import CONFIG, is_done
from ldstyle.runs.model_file import load_model
from ldstyle.runs.settings import load_config
from ldstyle.runs.sources import measure_channels, read_tables
from ldstyle.runs.weights import ATTENTION, load_attention

SCHEMA = 1
_BATCH = 32
REPORT, TABLE = "attention.json", "attention.csv"
COLUMNS = (
    "pointing", "pointing_chance", "iou", "iou_chance", "iou_ratio", "mass", "mass_chance", "mass_ratio", "coverage",
    "n", "missing",
)  # fmt: skip
"""Columns of the table next to domain, group, source and label."""


@dataclass(frozen=True)
class Judgement:
    """How well each source finds the labels on each part of each domain.

    Attributes:
        subject: The run or data folder, and the settings of the sources.
        vocabulary: Names of the labels.
        parts: The parts judged.
        tables: For each part, by source and label (``mean`` first), the columns of :data:`COLUMNS`.
        sources: The sources, to draw their maps.
    """

    subject: Mapping[str, Any]
    vocabulary: tuple[str, ...]
    parts: Sequence[Part]
    tables: Sequence[dict[str, dict[str, dict[str, float | int | None]]]]
    sources: Sequence[AttentionSource]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the flat table: a row per domain, group, source and label."""
        for part, table in zip(self.parts, self.tables, strict=True):
            for source, labels in table.items():
                for label, values in labels.items():
                    head = {"domain": part.domain, "group": part.group, "source": source, "label": label}
                    yield head | {name: values[name] for name in COLUMNS}

    def describe(self) -> dict[str, Any]:
        """Return everything that is written as JSON."""
        parts = [
            {"domain": part.domain, "group": part.group, "images": len(part), "sources": table}
            for part, table in zip(self.parts, self.tables, strict=True)
        ]
        return {"schema": SCHEMA, **self.subject, "vocabulary": list(self.vocabulary), "parts": parts}


def judge_part(
    part: Part, sources: Sequence[AttentionSource], *, batch_size: int, progress: Progress | None = None
) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Compare the maps of all sources with the masks of a part.

    A region counts where its label is known to be present.

    Returns:
        By source, then by label with the means over labels first under ``mean``, the columns of :data:`COLUMNS`.
    """
    tables: dict[str, Localization] = {}
    done = 0
    for batch in part.batches(batch_size):
        regions = present_regions(batch)
        for source in sources:
            for name, maps in source.maps(part, batch).items():
                tables.setdefault(name, Localization(part.table.vocabulary)).update(maps, regions)
        done += len(batch.index)
        if progress is not None:
            progress(done, len(part), f"judging {part.domain}, {part.group}")
    found = {name: with_mean(table.compute()) for name, table in tables.items()}
    return {name: {label: _completed(row, table) for label, row in table.items()} for name, table in found.items()}


def judge_run(
    run_dir: Path | str,
    domains: Sequence[str],
    *,
    root: Path | str | None = None,
    thresholds: Sequence[float] = (0.5,),
    map_size: int | None = None,
    average_flips: bool = False,
    scales: Sequence[float] = (1.0,),
    probe_size: int | None = None,
    most: int | None = None,
    device: torch.device | str = "cpu",
    display: Display | None = None,
) -> Judgement:
    """Judge all attention sources of a finished run.

    Args:
        run_dir: Folder of the run.
        domains: Domains with masks. Training and held-out images of a source are judged apart.
        root: Data folder; by default the one the run was trained from.
        thresholds: Fractions of its maximum below which a cached map is removed; one variant each.
        map_size: Side of the images that class activation maps are computed from; by default the run's.
        average_flips: Whether class activation maps are averaged over the four flips of an image.
        scales: Factors of the image size that they are averaged over.
        probe_size: Side of the images of a linear probe on the run's backbone before training, which is fitted on the
            run's training images and judged too; ``None`` for no probe.
        most: Most images of each part, evenly spaced; ``None`` for all.
        device: Where to compute.
        display: Shows the work.

    Raises:
        FileNotFoundError: There is no finished run in the folder.
        ValueError: A domain has no masks, or a setting is out of range.
    """
    folder, device, display = Path(run_dir).expanduser(), torch.device(device), display or Display()
    if not is_done(folder):
        raise FileNotFoundError(f"'{folder}' is not a finished run. Finish it by `ldstyle train` first.")
    _check(domains, thresholds, map_size, probe_size)
    if not scales or min(scales) <= 0:
        raise ValueError(f"`scales` must be one or more positive factors of the image size; got {list(scales)}.")
    config, model = load_config(folder / CONFIG), load_model(folder)
    folder_of_data, side = Path(root or config.data.root).expanduser(), map_size or model.size
    known = {name: read_domain(config, model, name, folder_of_data) for name in domains}
    setting = _Setting(
        config.data.sources,
        config.seed,
        model.size,
        Path(config.data.cache_dir).expanduser(),
        device,
        display,
        model.image_format,
        None if model.image_format is None else model.preprocessing,
    )
    parts = setting.parts(known.values(), most)
    network = model.network_on(device).eval()
    sources: list[AttentionSource] = [UniformSource()]
    if (folder / ATTENTION).is_file():
        net = load_attention(folder, network.backbone, config, num_labels=len(model.vocabulary)).to(device)
        sources.append(LearnedSource(net, network.normalise))
    chosen = tuple(dict.fromkeys(thresholds))
    sources.append(ActivationSource(network, side, chosen, average_flips, tuple(scales)))
    if probe_size is not None:
        trained = [known.get(name) or read_domain(config, model, name, folder_of_data) for name in config.data.sources]
        sources.append(setting.probe(trained, config.backbone, probe_size, thresholds))
    subject = {
        "run": str(folder),
        "method": config.method,
        "seed": config.seed,
        "trained_on": list(config.data.sources),
        "settings": {
            "size": model.size,
            "map_size": side,
            "average_flips": average_flips,
            "scales": list(scales),
            "probe_size": probe_size,
            "thresholds": list(thresholds),
            "most": most,
        },
    }
    batch_size = config.optimizer.batch_size
    tables = [judge_part(part, sources, batch_size=batch_size, progress=display.work) for part in parts]
    return Judgement(subject, model.vocabulary, parts, tables, sources)


def judge_data(
    data: DataConfig,
    domains: Sequence[str],
    *,
    backbone: BackboneConfig,
    seed: int = 0,
    thresholds: Sequence[float] = (0.5,),
    probe_size: int | None = None,
    most: int | None = None,
    device: torch.device | str = "cpu",
    display: Display | None = None,
) -> Judgement:
    """Judge the attention sources that need no run: the masks themselves, and a linear probe.

    Args:
        data: The data folder, the sources whose training images the probe is fitted on, and the side of the masks.
        domains: Domains with masks. Training and held-out images of a source are judged apart.
        backbone: The frozen network of the probe.
        seed: Seed of the splits.
        thresholds: Fractions of its maximum below which a map of the probe is removed; one variant each.
        probe_size: Side of the probe's images in pixels; ``None`` for no probe.
        most: Most images of each part, evenly spaced; ``None`` for all.
        device: Where to compute.
        display: Shows the work.
    """
    device, display = torch.device(device), display or Display()
    _check(domains, thresholds, None, probe_size)
    names = list(dict.fromkeys([*domains, *(data.sources if probe_size else ())]))
    tables = {table.domain: table for table in read_tables(data, names)}
    rows = [split_domain(table, seed=seed).train for table in tables.values()]
    found = find_format(data.bands, data.range, list(tables.values()), rows, progress=display.work)
    setting = _Setting(data.sources, seed, data.size, Path(data.cache_dir).expanduser(), device, display, found)
    parts = setting.parts([tables[name] for name in domains], most)
    sources: list[AttentionSource] = [UniformSource(), MaskSource()]
    if probe_size is not None:
        sources.append(setting.probe([tables[name] for name in data.sources], backbone, probe_size, thresholds))
    subject = {
        "data": data.root,
        "seed": seed,
        "trained_on": list(data.sources),
        "settings": {
            "size": data.size,
            "backbone": asdict(backbone),
            "probe_size": probe_size,
            "thresholds": list(thresholds),
            "most": most,
        },
    }
    judged = [judge_part(part, sources, batch_size=_BATCH, progress=display.work) for part in parts]
    return Judgement(subject, tables[domains[0]].vocabulary, parts, judged, sources)


@dataclass(frozen=True)
class _Setting:
    """Which domains are sources, how they are split, and where to compute."""

    sources: Sequence[str]
    seed: int
    size: int
    cache_dir: Path
    device: torch.device
    display: Display
    image_format: ImageFormat | None = None
    normalisation: Preprocessing | None = None

    def parts(self, tables: Iterable[SceneTable], most: int | None) -> list[Part]:
        return [
            part
            for table in tables
            for part in open_parts(
                table,
                source=table.domain in self.sources,
                seed=self.seed,
                size=self.size,
                cache_dir=self.cache_dir,
                most=most,
                progress=self.display.work,
                image_format=self.image_format,
            )
        ]

    def probe(
        self, tables: Sequence[SceneTable], backbone: BackboneConfig, size: int, thresholds: Sequence[float]
    ) -> ProbeSource:
        """Fit a probe on the training parts of the sources, or load it from the cache."""
        rows = [split_domain(table, seed=self.seed).train for table in tables]
        pool = Pool(
            tables,
            rows,
            size=size,
            cache_dir=self.cache_dir,
            progress=self.display.work,
            image_format=self.image_format,
        )
        measured = None if self.image_format is None else self.normalisation or measure_channels(pool)
        frozen = FrozenBackbone(
            backbone,
            num_labels=len(pool.vocabulary),
            size=size,
            device=self.device,
            bands=pool.channels,
            measured=measured,
        )
        probe = probe_maps(pool, frozen, self.cache_dir, display=self.display).probe
        chosen = tuple(dict.fromkeys(thresholds))
        return ProbeSource(probe, frozen, size=size, cache_dir=self.cache_dir, thresholds=chosen, display=self.display)


def write_judgement(folder: Path, judgement: Judgement) -> tuple[Path, Path]:
    """Write ``attention.json`` and ``attention.csv`` into a folder, each in one step, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / REPORT, json.dumps(judgement.describe(), indent=1, allow_nan=False) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, ("domain", "group", "source", "label", *COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(judgement.rows())
    replace_text(folder / TABLE, text.getvalue())
    return folder / REPORT, folder / TABLE


def _completed(row: Mapping[str, float | int | None], table: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Add the ratios to the uniform map, and for the mean over labels the counts of all of them."""
    counts = {name: row.get(name, sum(one.get(name, 0) for one in table.values())) for name in ("n", "missing")}
    full = {**row, **counts, "mass_chance": row["pointing_chance"]}
    for name in ("iou", "mass"):
        full[f"{name}_ratio"] = _ratio(full[name], full[f"{name}_chance"])
    return {name: full[name] for name in COLUMNS}


def _ratio(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference else value / reference


def _check(domains: Sequence[str], thresholds: Sequence[float], map_size: int | None, probe_size: int | None) -> None:
    if not domains or len(set(domains)) != len(domains):
        raise ValueError(f"`domains` must name at least one domain, each once; got {list(domains)}.")
    for threshold in thresholds:
        if not 0 < threshold < 1:
            raise ValueError(f"`threshold` must lie between 0 and 1; got {threshold}. Without one is always judged.")
    for name, size in (("map_size", map_size), ("probe_size", probe_size)):
        if size is not None and size < 1:
            raise ValueError(f"`{name}` must be a positive number of pixels; got {size}.")
