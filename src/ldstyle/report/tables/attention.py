"""Attention: its agreement with the labels' masks, by part and by epoch, and the strength of the augmentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ldstyle.benchmark.grid.methods import global_twin
from ldstyle.benchmark.results.cell import CellResult, EpochLog, EpochResult, MapScores
from ldstyle.benchmark.results.view import Results
from ldstyle.report.model import DASH, Absent, Column, Number, Row, Table, Value, Word
from ldstyle.report.tables.entries import (
    capital,
    mean_of,
    nothing_done,
    over_seeds,
    row_header,
    rows_by_split,
    seeds_text,
)

_PARTS = ("training", "held-out", "unseen")
_MEASURES = {
    "pointing": "pointing",
    "pointing_chance": "pointing (uniform)",
    "iou": "IoU",
    "iou_chance": "IoU (uniform)",
}


def attention_parts_table(results: Results) -> Table | Absent:
    """Return IoU and its ratio to the uniform map's, by method and attention source, on each part."""
    slug, title = "attention-parts", "Does attention find its labels?"
    if not results.done:
        return nothing_done(results, slug, title)
    rows, breaks = rows_by_split(results, _part_rows)
    if not rows:
        return Absent(slug, title, "No domain has masks to compare with, or the runs were made before this was judged.")
    caption = (
        "Overlap (IoU, in percent, means over labels) of each label's region with as many highest locations of its "
        "map, and its ratio to the uniform map's: on training images of the sources, on their held-out images "
        "(validation and test parts), and on the unseen target, up to 256 images of each part. Class activation maps "
        "are those of the selected network for all labels, predicted or not; learned attention (LLAM) is shown by "
        f"insertion point. {capital(over_seeds(results.seeds))}."
    )
    measures = [name for part in _PARTS for name in (f"{part}: IoU", f"{part}: × uniform")]
    columns = (row_header(results), "target", "attention", *measures)
    return Table(slug, title, caption, tuple(map(Column, columns)), rows, breaks)


def _part_rows(results: Results, method: str) -> list[Row]:
    judged = [cell for cell in results.of(method) if cell.attention_parts]
    sources = dict.fromkeys(source for cell in judged for part in cell.attention_parts.values() for source in part)
    of_method = results.select(lambda cell: cell in judged)
    rows = []
    for source in sources:
        values: list[Value] = [Word(results.titles[method]), Word(judged[0].target), Word(_title(source))]
        for part in _PARTS:
            iou = of_method.entry(method, metric=_of_part(part, source, lambda scores: scores.iou))
            ratio = of_method.entry(method, metric=_of_part(part, source, _ratio))
            values += [mean_of(iou), mean_of(ratio, scale=1.0, digits=2)]
        rows.append(Row(tuple(values), method=method, split=judged[0].split))
    return rows


def _of_part(
    part: str, source: str, measure: Callable[[MapScores], float | None]
) -> Callable[[CellResult], float | None]:
    def read(cell: CellResult) -> float | None:
        scores = cell.attention_parts.get(part, {}).get(source)
        return None if scores is None else measure(scores)

    return read


def _ratio(scores: MapScores) -> float | None:
    return None if scores.iou is None or not scores.iou_chance else scores.iou / scores.iou_chance


def _title(source: str) -> str:
    name, _, point = source.partition("/")
    return f"LLAM, {point}" if name == "llam" else "class activation" if name == "cam" else source


def localization_table(results: Results) -> Table | Absent:
    """Return how well class activation maps on the target find the labels, next to a uniform map."""
    slug, title = "localization", "Do activation maps find the labels?"
    if not results.done:
        return nothing_done(results, slug, title)
    rows: list[Row] = []
    breaks: list[int] = []
    without: list[str] = []
    for split in results.splits:
        here, target = results.on(split), results.targets[split]
        if not any(cell.localization for cell in here.done):
            without.append(target)
            continue
        breaks += [len(rows)] if rows else []
        for method in here.methods:
            # None is bold: each is to be compared with its own uniform map, since not all methods have maps to judge.
            found = _measures(here, method, lambda cell: cell.localization, (*_MEASURES, "judged"))
            rows.append(Row((Word(here.titles[method]), Word(target), *found), method=method, split=split))
    if not rows:
        return Absent(slug, title, f"No target has masks to compare with: {', '.join(without)}.")
    caption = (
        "Class activation maps of the deployed network on up to 256 images of the target, against the labels' masks, "
        "in percent, means over labels: pointing is how often the maximum is in the label's region, IoU the overlap "
        "of the region with as many highest locations. Next to each the value of a uniform map; judged is the "
        f"fraction of regions that had a map at all. {capital(over_seeds(results.seeds))}."
        + (f" No masks: {', '.join(without)}." if without else "")
    )
    columns = (row_header(results), "target", *_MEASURES.values(), "judged")
    return Table(slug, title, caption, tuple(map(Column, columns)), tuple(rows), tuple(breaks))


def attention_table(results: Results) -> Table | Absent:
    """Return how well learned attention on the target finds the labels that are present, by insertion point."""
    slug, title = "learned-attention", "Does learned attention find the labels?"
    if not results.done:
        return nothing_done(results, slug, title)
    rows: list[Row] = []
    for split in results.splits:
        here = results.on(split)
        learned = here.select(lambda cell: bool(cell.attention))
        for method in learned.methods:
            for point in learned.of(method)[0].attention:
                head = (Word(here.titles[method]), Word(results.targets[split]), Word(point))
                mine = learned.select(lambda cell, method=method: cell.method == method)  # type: ignore[misc]
                found = _measures(mine, method, lambda cell, point=point: cell.attention.get(point), _MEASURES)  # type: ignore[misc]
                rows.append(Row((*head, *found), method=method, split=split))
    if not rows:
        return Absent(slug, title, "No target has masks to compare with, or no method has learned attention.")
    caption = (
        "Learned attention on up to 256 images of the target, given the labels that are present, against the labels' "
        f"masks, in percent, means over labels; next to each the value of a uniform map. "
        f"{capital(over_seeds(results.seeds))}."
    )
    columns = (row_header(results), "target", "insertion point", *_MEASURES.values())
    return Table(slug, title, caption, tuple(map(Column, columns)), tuple(rows))


def _measures(
    results: Results, method: str, read: Callable[[CellResult], MapScores | None], names: Sequence[str] | dict[str, str]
) -> list[Value]:
    """Return measures of a method; the uniform map's have no deviation."""

    def metric(name: str) -> Callable[[CellResult], float | None]:
        return lambda cell: None if (scores := read(cell)) is None else getattr(scores, name)

    return [mean_of(results.entry(method, metric=metric(n)), deviation=n in ("pointing", "iou")) for n in names]


def development_table(results: Results) -> Table | None:
    """Return mAP on the target and the agreement of all maps by epoch, if any run kept its epochs."""
    kept = results.select(lambda cell: bool(cell.by_epoch))
    if not kept.cells:
        return None
    last = max(epoch.epoch for cell in kept.cells for epoch in cell.by_epoch)
    rows: list[Row] = []
    for split in kept.splits:
        for method in kept.on(split).methods:
            mine = kept.select(lambda cell, key=(split, method): (cell.split, cell.method) == key)  # type: ignore[misc]
            for maps, measure in dict.fromkeys(key for cell in mine.cells for key in _shown(cell.by_epoch[0])):
                head = [Word(word) for word in (results.titles[method], results.targets[split], maps, measure)]
                found = [_at_epoch(mine, (maps, measure), epoch) for epoch in range(1, last + 1)]
                rows.append(Row((*head, *found), method=method, split=split))
    caption = (
        "All images of the target, and up to 256 of them with masks, after each epoch: mAP, and the agreement of class "
        "activation maps and of learned attention with the masks, in percent, next to a uniform map. "
        f"Means over {seeds_text(kept.seeds)}. Nothing was selected by it."
    )
    columns = ("method", "target", "maps", "measure", *(f"epoch {epoch}" for epoch in range(1, last + 1)))
    return Table("development", "Development by epoch", caption, tuple(map(Column, columns)), tuple(rows))


def _shown(epoch: EpochResult) -> dict[tuple[str, str], float | None]:
    """Return the numbers of an epoch by maps and measure."""
    shown: dict[tuple[str, str], float | None] = {(DASH, "mAP"): epoch.map}
    activation = {} if epoch.localization is None else {"class activation": epoch.localization}
    for maps, scores in (activation | dict(epoch.attention)).items():
        shown |= {(maps, measure): getattr(scores, name) for name, measure in _MEASURES.items()}
    return shown


def _at_epoch(results: Results, key: tuple[str, str], number: int) -> Value:
    def metric(cell: CellResult) -> float | None:
        return next((_shown(epoch).get(key) for epoch in cell.by_epoch if epoch.epoch == number), None)

    reached = results.select(lambda cell: any(epoch.epoch == number for epoch in cell.by_epoch))
    return mean_of(reached.entry(results.methods[0], metric=metric), deviation=False)


def strength_table(results: Results) -> Table | Absent:
    """Return relative feature change and effective locations of the last epoch, by method and insertion point."""
    slug, title = "strength", "How much do methods change features?"
    if not results.done:
        return nothing_done(results, slug, title)
    last = {cell.cell: history[-1] for cell in results.done if (history := results.history(cell))}
    logged = results.select(lambda cell: bool(_strengths(last.get(cell.cell))))
    rows, breaks = rows_by_split(logged, lambda here, method: _strength_rows(here, method, last))
    if not rows:
        reason = "No run has logged the strength of its augmentation: that takes a style method and its metrics.jsonl."
        return Absent(slug, title, reason, optional=True)
    caption = (
        "Mean relative feature change ‖ΔF‖/‖F − mean‖ in the augmented steps of the last epoch, in percent, at each "
        "insertion point, and its ratio to that of the same operator on whole images. Locations: the effective number "
        "1/Σa² of a median attention map, in percent of the map. "
        f"{capital(over_seeds(results.seeds))}."
    )
    columns = (row_header(results), "target", "insertion point", "relative change", "× twin", "locations")
    return Table(slug, title, caption, tuple(map(Column, columns)), rows, breaks)


def _strength_rows(results: Results, method: str, last: dict[str, EpochLog]) -> list[Row]:
    mine = results.select(lambda cell: cell.method == method)
    twin = global_twin(method)
    points = dict.fromkeys(point for cell in mine.done for point in _strengths(last.get(cell.cell)))
    rows = []
    for point in points:
        strength = mine.entry(method, metric=_strength(last, point))
        values: list[Value] = [Word(results.titles[method]), Word(mine.cells[0].target), Word(point)]
        values.append(mean_of(strength))
        other = results.entry(twin, metric=_strength(last, point)).mean if twin in results.methods else None
        ratio = strength.mean / other if strength.mean is not None and other else None
        values.append(Number(number=ratio, digits=2))
        values.append(mean_of(mine.entry(method, metric=_locations(last, point)), digits=0, deviation=False))
        rows.append(Row(tuple(values), method=method, split=mine.cells[0].split))
    return rows


def _strengths(log: EpochLog | None) -> dict[str, float | None]:
    return {} if log is None else dict(log.strength)


def _strength(last: dict[str, EpochLog], point: str) -> Callable[[CellResult], float | None]:
    return lambda cell: last[cell.cell].strength.get(point) if cell.cell in last else None


def _locations(last: dict[str, EpochLog], point: str) -> Callable[[CellResult], float | None]:
    return lambda cell: last[cell.cell].locations.get(point) if cell.cell in last else None
