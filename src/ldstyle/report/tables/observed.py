"""What runs observed beside their scores: whether activation maps find the labels, and what training cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ldstyle.benchmark.results.comparison import Entry, Results
from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.order import BASELINE
from ldstyle.report.tables.cells import CellSet, rules
from ldstyle.report.tables.values import DASH, of_entry, over_seeds, plain, seeds_text
from ldstyle.report.times import HOW, relative_times

_UNITS = ((2 * 3600.0, 3600.0, "h"), (2 * 60.0, 60.0, "min"), (0.0, 1.0, "s"))
"""From how many seconds on a column is in which unit."""

_MEASURES = {
    "pointing": "pointing",
    "pointing_chance": "pointing (uniform)",
    "iou": "IoU",
    "iou_chance": "IoU (uniform)",
}


@dataclass(frozen=True)
class Observation:
    """What a cell observed, in the form that the statistics read."""

    method: str
    split: str
    seed: int
    status: str
    scores: Mapping[str, Any]


def localization_table(cells: CellSet) -> Table | Absent:
    """Return how well class activation maps on the target find the labels, beside what a uniform map would reach."""
    slug, title = "localization", "Do activation maps find the labels?"
    if cells.is_empty:
        return cells.nothing(slug, title)
    observed = _observe(cells, _located)
    metrics = ("pointing", "pointing_chance", "iou", "iou_chance", "judged")
    rows: list[tuple[Value, ...]] = []
    breaks: list[int] = []
    blind: list[str] = []
    for split in cells.splits:
        here, target = cells.on(split), cells.first(split).target
        found = Results(one for one in observed if one.split == split)
        entries = {name: {m: found.entry(m, metric=name) for m in here.methods} for name in metrics}
        if not any(entry.values for entry in entries["pointing"].values()):
            blind.append(target)
            continue
        breaks += [len(rows)] if rows else []
        rows += [(Value(here.titles[m]), Value(target), *_located_row(entries, m)) for m in here.methods]
    if not rows:
        return Absent(slug, title, f"No target has masks to compare with: {', '.join(blind)}.")
    caption = (
        "Class activation maps of the deployed network on up to 256 images of the target, against the labels' masks, "
        "in percent, means over labels: pointing is how often the highest place lies in the label's region, IoU the "
        "overlap of the region with as many highest places. Beside each what a map of equal values reaches; judged is "
        f"the share of regions that had a map at all. {_capital(over_seeds(cells.results.seeds))}."
        + (f" No masks: {', '.join(blind)}." if blind else "")
    )
    columns = ("target", "pointing", "pointing (uniform)", "IoU", "IoU (uniform)", "judged")
    return Table(slug, title, caption, (cells.row_header, *columns), tuple(rows), tuple(breaks))


def attention_table(cells: CellSet) -> Table | Absent:
    """Return how well learned attention on the target finds the labels that are there, by insertion point."""
    slug, title = "learned-attention", "Does learned attention find the labels?"
    if cells.is_empty:
        return cells.nothing(slug, title)
    metrics = ("pointing", "pointing_chance", "iou", "iou_chance")
    rows: list[tuple[Value, ...]] = []
    for split in cells.splits:
        here = cells.on(split)
        for method in here.methods:
            learned = [cell for cell in here.cells if cell.method == method and cell.record.get("attention")]
            for point in learned[0].record["attention"] if learned else ():
                observed = [
                    Observation(c.method, c.split, c.seed, c.status, {"test": c.record["attention"][point]["mean"]})
                    for c in learned
                ]
                entries = {name: Results(observed).entry(method, metric=name) for name in metrics}
                found = [of_entry(entry, deviation=not name.endswith("chance")) for name, entry in entries.items()]
                rows.append((Value(here.titles[method]), Value(learned[0].target), Value(point), *found))
    if not rows:
        return Absent(slug, title, "No target has masks to compare with, or no method has learned attention.")
    caption = (
        "Learned attention on up to 256 images of the target, given the labels that are there, against the labels' "
        "masks, in percent, means over labels; beside each what a map of equal values reaches. "
        f"{_capital(over_seeds(cells.results.seeds))}."
    )
    columns = ("target", "place", "pointing", "pointing (uniform)", "IoU", "IoU (uniform)")
    return Table(slug, title, caption, (cells.row_header, *columns), tuple(rows), ())


def development_table(cells: CellSet) -> Table | None:
    """Return how mAP on the target and the hits of all maps developed, if any run kept its epochs."""
    kept = [cell for cell in cells.cells if cell.record.get("epochs")]
    if not kept:
        return None
    last = max(row["epoch"] for cell in kept for row in cell.record["epochs"])
    rows: list[tuple[Value, ...]] = []
    for split in cells.splits:
        for method in cells.on(split).methods:
            mine = [cell for cell in kept if (cell.split, cell.method) == (split, method)]
            for place, measure in dict.fromkeys(key for cell in mine for key in _developed(cell.record["epochs"][0])):
                head = (Value(cells.titles[method]), Value(mine[0].target), Value(place), Value(measure))
                found = [_at_epoch(mine, method, (place, measure), epoch) for epoch in range(1, last + 1)]
                rows.append((*head, *found))
    caption = (
        "All images of the target, and up to 256 of them with masks, after each epoch: mAP, and the hits of class "
        "activation maps and of learned attention, in percent; beside them what a map of equal values reaches. "
        f"Means over {seeds_text(sorted({cell.seed for cell in kept}))}. Nothing was selected by it."
    )
    columns = ("target", "maps", "measure", *(f"epoch {epoch}" for epoch in range(1, last + 1)))
    return Table("development", "How it developed", caption, ("method", *columns), tuple(rows), ())


def _developed(row: Mapping[str, Any]) -> dict[tuple[str, str], float | None]:
    """Return what is shown of an epoch, by maps and measure."""
    shown: dict[tuple[str, str], float | None] = {(DASH, "mAP"): (row["scores"]["all"] or row["scores"]["test"])["map"]}
    tables = {"class activation": row["localization"], **(row["attention"] or {})}
    for place, table in tables.items():
        for name, measure in _MEASURES.items() if table else ():
            shown[place, measure] = table["mean"][name]
    return shown


def _at_epoch(cells: Sequence[CellResult], method: str, key: tuple[str, str], epoch: int) -> Value:
    observed = [
        Observation(c.method, c.split, c.seed, c.status, {"test": {"value": _developed(row).get(key)}})
        for c in cells
        for row in c.record["epochs"]
        if row["epoch"] == epoch
    ]
    return of_entry(Results(observed).entry(method, metric="value"), deviation=False)


def cost_table(cells: CellSet) -> Table | Absent:
    """Return what training a method cost: time, time per epoch, both relative to ERM, and memory."""
    slug, title = "cost", "Cost of training"
    if cells.is_empty:
        return cells.nothing(slug, title)
    found = Results(_observe(cells, _spent))
    metrics = ("run", "epoch", "epochs", "mb")
    entries = {name: {m: found.entry(m, metric=name) for m in cells.methods} for name in metrics}
    unit, run = _in_unit(entries["run"])
    epoch_unit, epoch = _in_unit(entries["epoch"])
    with_baseline = BASELINE in cells.methods
    rows = []
    for method in cells.methods:
        row = [Value(cells.titles[method]), run[method]]
        row += [_relative(cells, method)] if with_baseline else []
        row += [of_entry(entries["epochs"][method], scale=1.0), epoch[method]]
        row += [_relative(cells, method, per_epoch=True)] if with_baseline else []
        rows.append((*row, of_entry(entries["mb"][method], scale=1.0, digits=0, deviation=False)))
    run_ratio, epoch_ratio = ((f"{what} / ERM",) if with_baseline else () for what in ("training", "epoch"))
    columns = (f"training ({unit})", *run_ratio, "epochs", f"epoch ({epoch_unit})", *epoch_ratio, "peak memory (MB)")
    averaged = ", averaged over the splits" if len(cells.splits) > 1 else ""
    caption = (
        f"Time, epochs and memory of one training run{averaged}, {over_seeds(found.seeds)}. {_machines(cells.cells)} "
        "Training ends early where validation stops improving, so methods compare better by epoch."
        + (f" Relative to ERM: {HOW}." if with_baseline else "")
    )
    return Table(slug, title, caption, (cells.row_header, *columns), tuple(rows), rules(cells.methods))


def _observe(cells: CellSet, read: Callable[[CellResult], Mapping[str, Any]]) -> list[Observation]:
    return [
        Observation(c.method, c.split, c.seed, c.status, {"test": read(c)} if c.status == "done" else {})
        for c in cells.cells
    ]


def _located(cell: CellResult) -> Mapping[str, Any]:
    table = cell.record.get("localization")
    if not table:
        return {}
    labels = [row for name, row in table.items() if name != "mean"]
    judged, missing = (sum(row[name] for row in labels) for name in ("n", "missing"))
    return {**table["mean"], "judged": judged / (judged + missing) if judged + missing else None}


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _located_row(entries: Mapping[str, dict[str, Entry]], method: str) -> list[Value]:
    # None is bold: each is to be compared with its own uniform map, since not all methods have maps to be judged.
    found = ("pointing", "iou")
    return [of_entry(of_metric[method], deviation=name in found) for name, of_metric in entries.items()]


def _spent(cell: CellResult) -> Mapping[str, Any]:
    seconds = cell.wall_seconds
    per_epoch = None if seconds is None or not cell.epochs else seconds / cell.epochs
    return {"run": seconds, "epoch": per_epoch, "epochs": cell.epochs, "mb": cell.record.get("peak_memory_mb")}


def _in_unit(entries: Mapping[str, Entry]) -> tuple[str, dict[str, Value]]:
    """Return the unit that suits the longest time of a column, and the column in it."""
    longest = max((entry.mean for entry in entries.values() if entry.mean is not None), default=0.0)
    size, unit = next((size, unit) for least, size, unit in _UNITS if longest >= least)
    digits = 2 if unit == "s" and longest < 10 else 1
    return unit, {method: of_entry(entry, scale=1 / size, digits=digits) for method, entry in entries.items()}


def _relative(cells: CellSet, method: str, *, per_epoch: bool = False) -> Value:
    """Return how many times as long as ERM a method trains."""
    ratios = relative_times(cells.cells, method, per_epoch=per_epoch)
    if not ratios:
        return Value(DASH)
    ratio = fmean(ratios.values())
    return Value(f"{plain(ratio, digits=2)} ×", ratio)


def _machines(cells: Sequence[CellResult]) -> str:
    machines = [cell.record.get("machine", {}) for cell in cells if cell.status == "done"]
    hosts = {machine.get("host") for machine in machines}
    threads = sorted({machine["threads"] for machine in machines if "threads" in machine})
    used = f"{' or '.join(map(str, threads))} thread{'s' if threads != [1] else ''} per run" if threads else ""
    if len(hosts) > 1:
        return f"The runs were spread over {len(hosts)} machines ({used}), so times compare with care."
    return f"All runs on one machine, {used}." if used else "All runs on one machine."
