"""How far a grid is: counts per method and split, what runs, what failed, and how long the rest will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.data import differing_data

SYMBOLS = {"running": "▶", "failed": "✗"}


def estimate_seconds(todo: Sequence[CellResult], done: Sequence[CellResult], *, workers: int) -> float | None:
    """Estimate how long cells will take from the finished ones of their preset.

    Args:
        todo: Cells to run.
        done: Cells that were run; those of the same method count, or else all of the same preset.
        workers: Cells that run at a time.

    Returns:
        Seconds; ``None`` if no cell of some preset is done.
    """
    expected = [_expected(cell, done) for cell in todo]
    known = [seconds for seconds in expected if seconds is not None]
    if len(known) < len(expected):
        return None
    return max(sum(known) / workers, max(known, default=0.0))


def _expected(cell: CellResult, done: Sequence[CellResult]) -> float | None:
    preset = [other for other in done if other.status == "done" and other.preset == cell.preset]
    method = [other for other in preset if other.method == cell.method]
    times = [(other.wall_seconds or 0) + other.evaluation_seconds for other in method or preset]
    return fmean(times) if times else None


def count(results: Sequence[CellResult]) -> Counter[str]:
    """Count cells by status; ``cut`` are the missing ones that were begun."""
    return Counter("cut" if cell.status == "missing" and cell.epochs else cell.status for cell in results)


def describe_counts(results: Sequence[CellResult]) -> str:
    """Summarise in one line the number of cells and the estimated time of the rest."""
    counts = count(results)
    parts = [f"{counts['done']} of {len(results)} cells done"]
    parts += [f"{counts[status]} {status}" for status in ("running", "failed", "cut", "missing") if counts[status]]
    todo = [cell for cell in results if cell.status != "done"]
    seconds = estimate_seconds(todo, results, workers=max(1, counts["running"]))
    if todo and seconds is not None:
        parts.append(f"about {duration(seconds)} of work left, {max(1, counts['running'])} at a time")
    return ", ".join(parts)


def status_view(results: Sequence[CellResult]) -> RenderableType:
    """Draw the grid: cells done of those planned per method and split, then what runs and what failed."""
    splits = {cell.split: f"{cell.split} → {cell.target}" for cell in results}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for name in splits:
        table.add_column(Text(splits[name]), justify="right")
    for title in dict.fromkeys(cell.title for cell in results):
        row = [[cell for cell in results if (cell.title, cell.split) == (title, name)] for name in splits]
        table.add_row(Text(title), *map(_square, row))
    lines = [f"{SYMBOLS['running']} {cell.cell}  {_progress(cell)}" for cell in results if cell.status == "running"] + [
        f"{SYMBOLS['failed']} {cell.cell}  {_first_line(cell.error)}" for cell in results if cell.status == "failed"
    ]
    notes = [f"warning: {sentence}" for sentence in differing_data(results)]
    return Group(table, Text("\n".join([*lines, *notes, describe_counts(results)]), overflow="fold"))


def _square(cells: Sequence[CellResult]) -> str:
    if not cells:
        return "-"
    counts = count(cells)
    marks = [f"{SYMBOLS[status]}{counts[status]}" for status in ("running", "failed") if counts[status]]
    return " ".join([*marks, f"{counts['done']}/{len(cells)}"])


def _progress(cell: CellResult) -> str:
    most = cell.settings.get("optimizer", {}).get("epochs")
    return f"after epoch {cell.epochs} of at most {most}"


def _first_line(error: str | None) -> str:
    return (error or "").partition("\n")[0]


def duration(seconds: float) -> str:
    """Return a duration in words."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
