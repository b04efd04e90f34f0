"""Cost of methods: time and memory of training, and Table 9, parameters, operations and throughput of the network.

Parameters and operations follow from the settings of the runs and are counted here. Throughput is a measurement, which
would differ from report to report: it is read from ``complexity.json`` of the results folder, if it was measured.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ldstyle.benchmark.grid.methods import BASELINE
from ldstyle.benchmark.paper import TABLE_9
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.statistics import Entry
from ldstyle.benchmark.results.view import Results
from ldstyle.files import replace_text
from ldstyle.report.model import Absent, Column, Number, Row, Span, Table, Value, Word
from ldstyle.report.tables.entries import mean_of, method_table, nothing_done, over_seeds

if TYPE_CHECKING:
    from ldstyle.benchmark.complexity import Measured

HOW = "the ratio of the times at the same split and seed, averaged over splits, then over seeds"
_UNITS = ((2 * 3600.0, 3600.0, "h"), (2 * 60.0, 60.0, "min"), (0.0, 1.0, "s"))
"""Least seconds of the longest time of a column, its unit in seconds, and the unit's name."""

FILE = "complexity.json"
SCHEMA = 1
STAGES = (1, 2)
"""Where learned attention is attached unless all runs that have it agree on other stages."""


def cost_table(results: Results) -> Table | Absent:
    """Return the cost of training each method."""
    slug, title = "cost", "Cost of training"
    if not results.done:
        return nothing_done(results, slug, title)
    unit, run = _in_unit(results.entries(metric=lambda cell: cell.wall_seconds))
    epoch_unit, epoch = _in_unit(results.entries(metric=lambda cell: _seconds(cell, per_epoch=True)))
    epochs = results.entries(metric=lambda cell: float(cell.epochs))
    memory = results.entries(metric=lambda cell: cell.peak_memory_mb)
    columns: list[tuple[Column, Mapping[str, Value]]] = [(Column(f"training ({unit})"), run)]
    columns += _relative(results, "training / ERM", per_epoch=False)
    columns += [(Column("epochs"), {m: mean_of(entry, scale=1.0) for m, entry in epochs.items()})]
    columns += [(Column(f"epoch ({epoch_unit})"), epoch)]
    columns += _relative(results, "epoch / ERM", per_epoch=True)
    peaks = {m: mean_of(entry, scale=1.0, digits=0, deviation=False) for m, entry in memory.items()}
    columns += [(Column("peak memory (MB)"), peaks)]
    averaged = ", averaged over the splits" if len(results.splits) > 1 else ""
    caption = (
        f"Time, epochs and memory of one training run{averaged}, {over_seeds(results.seeds)}. {_machines(results)} "
        "Training ends early where validation stops improving, so methods compare better by epoch."
        + (f" Relative to ERM: {HOW}." if BASELINE in results.methods else "")
    )
    return method_table(results, slug, title, caption, columns)


def relative_times(results: Results, method: str, *, per_epoch: bool = False) -> dict[int, float]:
    """Return by seed how many times as long as ERM a method trains: the mean of the ratios on all splits.

    Args:
        results: The grid. A seed that lacks a time of either method on a split has no ratio.
        method: Name of the method.
        per_epoch: Whether times are per epoch, or of a whole run, which may have stopped early.
    """
    times = {(c.method, c.split, c.seed): spent for c in results.done if (spent := _seconds(c, per_epoch=per_epoch))}
    splits = dict.fromkeys(cell.split for cell in results.done)
    ratios: dict[int, float] = {}
    for seed in results.seeds:
        pairs = [(times.get((method, split, seed)), times.get((BASELINE, split, seed))) for split in splits]
        found = [ours / theirs for ours, theirs in pairs if ours and theirs]
        if found and len(found) == len(splits):
            ratios[seed] = fmean(found)
    return ratios


def _seconds(cell: CellResult, *, per_epoch: bool) -> float | None:
    if cell.wall_seconds is None or not per_epoch:
        return cell.wall_seconds
    return cell.wall_seconds / cell.epochs if cell.epochs else None


def _relative(results: Results, title: str, *, per_epoch: bool) -> list[tuple[Column, Mapping[str, Value]]]:
    if BASELINE not in results.methods:
        return []
    ratios = {method: relative_times(results, method, per_epoch=per_epoch) for method in results.methods}
    return [(Column(title), {m: Number(number=fmean(r.values()), digits=2, unit=" ×") for m, r in ratios.items() if r})]


def _in_unit(entries: Mapping[str, Entry]) -> tuple[str, dict[str, Value]]:
    """Return the unit that suits the longest time of a column, and the column in it."""
    longest = max((entry.mean for entry in entries.values() if entry.mean is not None), default=0.0)
    size, unit = next((size, unit) for least, size, unit in _UNITS if longest >= least)
    digits = 2 if unit == "s" and longest < 10 else 1
    return unit, {method: mean_of(entry, scale=1 / size, digits=digits) for method, entry in entries.items()}


def _machines(results: Results) -> str:
    machines = [cell.machine for cell in results.done]
    hosts = {machine.host for machine in machines}
    threads = sorted({machine.threads for machine in machines if machine.threads is not None})
    used = f"{' or '.join(map(str, threads))} thread{'s' if threads != [1] else ''} per run" if threads else ""
    if len(hosts) > 1:
        return f"The runs were made on {len(hosts)} machines ({used}), so times are hardly comparable."
    return f"All runs on one machine, {used}." if used else "All runs on one machine."


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement of complexity.

    Attributes:
        backbone: Name of a timm network.
        labels: Number of labels.
        size: Height and width of the images.
        stages: Where style modules are attached.
        output_stride: Pixels per location of the last map; ``None`` is the network's own.
        batch_size: Images per batch in the measurement of throughput; 0 if it was not measured.
        device: Where it was measured.
    """

    backbone: str = "resnet50"
    labels: int = 6
    size: int = 224
    stages: tuple[int | str, ...] = STAGES
    output_stride: int | None = None
    batch_size: int = 0
    device: str = ""


def complexity_table(results: Results) -> Table | Absent:
    """Return Table 9 for the network of the runs; measurements in the folder's ``complexity.json`` are preferred."""
    slug, title, folder = "complexity", "Complexity", results.folder
    try:
        measured = read_complexity(folder / FILE) if folder is not None and (folder / FILE).is_file() else None
        conditions, rows = measured or _counted(results)
    except (OSError, ValueError) as error:
        return Absent(slug, title, str(error))
    # Table 9 is of this network and size.
    printed = (conditions.backbone.split(".")[0], conditions.size, conditions.labels) == ("resnet50", 224, 6)
    columns = ["method", "parameters (M)", "added (%)", "MACs (G)", "images/s"]
    columns += [f"{name} (paper)" for name in columns[1:]] if printed else []
    body = tuple(_row(family, row, _hint(conditions, folder), printed=printed) for family, row in rows.items())
    return Table(slug, title, _caption(conditions, printed=printed), tuple(map(Column, columns)), body)


def write_complexity(path: Path, conditions: Conditions, rows: Mapping[str, Measured]) -> None:
    """Write measurements as JSON; :func:`read_complexity` gives them back."""
    content = {"schema": SCHEMA, **asdict(conditions), "rows": {family: asdict(row) for family, row in rows.items()}}
    replace_text(path, json.dumps(content, indent=1) + "\n")


def read_complexity(path: Path) -> tuple[Conditions, dict[str, Measured]]:
    """Read measurements.

    Raises:
        ValueError: The file holds something else.
    """
    from ldstyle.benchmark.complexity import Measured

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema", None) != SCHEMA:
            raise ValueError(f"its schema must be {SCHEMA}")
        rows = {family: Measured(**_with_tuples(row)) for family, row in content.pop("rows").items()}
        if rows.keys() != TABLE_9.keys():
            raise ValueError(f"its rows must be {list(TABLE_9)}")
        return Conditions(**_with_tuples(content)), rows
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"'{path}' is not a measurement of complexity: {error}"
        raise ValueError(f"{problem}. Remove it, or measure again.") from None


def conditions_of(results: Results) -> Conditions:
    """Return the network, image size, number of labels and stages of most runs.

    Raises:
        ValueError: No run is done.
    """
    done = sorted(results.done, key=lambda cell: cell.cell)
    known = [(cell.network, len(cell.vocabulary)) for cell in done if cell.network is not None]
    if not known:
        raise ValueError(f"No run is done, so the network is not known. Run `{results.command()}` first.")
    networks = Counter((one.backbone, one.output_stride, one.size, labels) for one, labels in known)
    (backbone, stride, size, labels), _ = networks.most_common(1)[0]
    learned = {network.stages for network, _ in known if network.attention == "llam"}
    stages = learned.pop() if len(learned) == 1 else STAGES
    return Conditions(backbone, labels, size, stages, stride)


def _counted(results: Results) -> tuple[Conditions, dict[str, Measured]]:
    """Count parameters and operations of every family; nothing is timed."""
    from ldstyle.benchmark.complexity import measure_families

    conditions = conditions_of(results)
    rows = measure_families(
        conditions.backbone,
        num_labels=conditions.labels,
        size=conditions.size,
        stages=conditions.stages,
        output_stride=conditions.output_stride,
        repeats=0,
    )
    return conditions, rows


def _row(family: str, row: Measured, hint: str, *, printed: bool) -> Row:
    from ldstyle.benchmark.complexity import TITLES

    added = Number(number=100 * row.added, digits=2, signed=True, dash_zero=True)
    values = [Word(TITLES[family]), Number(number=row.parameters / 1e6, digits=2), added]
    values += [Number(number=row.macs / 1e9, digits=3), _rate(row.throughput, hint)]
    if printed:
        paper = TABLE_9[family]
        low, high = paper.throughput
        values += [Number(number=paper.parameters, digits=2), Number(number=paper.macs, digits=3)]
        values.insert(-1, Number(number=paper.added, digits=2, signed=True, dash_zero=True))
        values.append(Span(number=(low + high) / 2, low=low, high=high, show_number=False))
    return Row(tuple(values))


def _rate(throughput: tuple[float, float, float] | None, hint: str) -> Value:
    if throughput is None:
        return Value(note=hint)
    low, middle, high = throughput
    return Span(number=middle, low=low, high=high)


def _hint(conditions: Conditions, folder: Path | None) -> str:
    words = ["ldstyle", "bench", "complexity", "--backbone", conditions.backbone]
    words += ["--num-labels", str(conditions.labels), "--size", str(conditions.size)]
    words += [] if conditions.output_stride is None else ["--output-stride", str(conditions.output_stride)]
    return "not measured; run " + shlex.join([*words, *(["--results", str(folder)] if folder is not None else [])])


def _caption(conditions: Conditions, *, printed: bool) -> str:
    stride = "" if conditions.output_stride is None else f" at output stride {conditions.output_stride}"
    stages = " and ".join(map(str, conditions.stages))
    caption = (
        f"{conditions.backbone}{stride} with {conditions.labels} labels at {conditions.size} px: parameters in "
        f"training with modules at stages {stages}, their increase over the deployed network, and "
        "multiply-accumulate operations per image of the deployed network, which is the same for all methods."
    )
    if conditions.batch_size:
        measured = f"batches of {conditions.batch_size} on {conditions.device}"
        caption += f" Images per second in evaluation, median (least–most), {measured}."
    return caption + (" The paper's throughput was measured on one GPU at batch size 32." if printed else "")


def _with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
