"""Progress of a run: a live bar on a terminal, a line per epoch elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text
from torch import Tensor

REFRESH_SECONDS = 0.5


class Display:
    """Shows nothing; the base class of the others.

    Attributes:
        epochs: Most epochs of the run, 0 before :meth:`begin`.
        steps: Steps per epoch, 0 before :meth:`begin`.
    """

    def __init__(self) -> None:
        self.epochs = self.steps = 0
        self._began = time.monotonic()
        self._first = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def work(self, done: int, total: int, what: str) -> None:
        """Show work before training, such as building a cache."""

    def begin(self, *, epochs: int, steps: int, done: int) -> None:
        """Show that training begins, or resumes after ``done`` steps."""
        self.epochs, self.steps, self._first, self._began = epochs, steps, done, time.monotonic()

    def step(self, epoch: int, step: int, loss: Tensor) -> None:
        """Show a step; the loss is read only when it is shown, since reading makes a device wait."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Show the metrics of an epoch."""

    def say(self, text: str) -> None:
        """Show a sentence."""

    def close(self) -> None:
        """Show nothing more."""

    def _left(self, done: int) -> str:
        """Estimate the time left from the steps made by this process."""
        made = done - self._first
        if made <= 0:
            return ""
        seconds = (time.monotonic() - self._began) / made * (self.epochs * self.steps - done)
        return f"at most {duration(seconds)} left"


class LineDisplay(Display):
    """Writes a line per epoch to standard error."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Write the metrics of an epoch."""
        left = self._left(row["epoch"] * self.steps)
        self.say(f"epoch {row['epoch']}/{self.epochs}  {describe(row)}  {_labels(row)}  {left}".rstrip())

    def say(self, text: str) -> None:
        """Write a sentence."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class LiveDisplay(Display):
    """Keeps a bar with loss, scores and time left at the foot of the terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}  {task.fields[left]}", markup=False),
        )
        self._console = console
        self._bars = Progress(*columns, console=console)
        self._tasks: dict[str, Any] = {}
        self._text = Text()
        self._live = Live(Group(self._bars, self._text), console=console, transient=True)
        self._shown = 0.0
        self._live.start()

    def work(self, done: int, total: int, what: str) -> None:
        """Show a bar for some work, and remove it when it is done."""
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, loss="", left="")
        self._bars.update(self._tasks[what], completed=done, total=total, visible=done < total)

    def step(self, epoch: int, step: int, loss: Tensor) -> None:
        """Move the bar on, a few times per second."""
        now = time.monotonic()
        if now - self._shown < REFRESH_SECONDS and step < self.steps:
            return
        self._shown = now
        if "run" not in self._tasks:
            self._tasks["run"] = self._bars.add_task("", total=self.steps, loss="", left="")
        left = self._left((epoch - 1) * self.steps + step)
        self._bars.update(
            self._tasks["run"],
            description=f"epoch {epoch}/{self.epochs}",
            completed=step,
            loss=f"loss {float(loss):.4f}",
            left=left,
        )

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Show the metrics of the last epoch below the bar."""
        self._text.plain = f"epoch {row['epoch']}: {describe(row)}\n{_labels(row)}"

    def say(self, text: str) -> None:
        """Print a sentence above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        self._live.stop()


def open_display(*, quiet: bool) -> Display:
    """Choose how to show progress: not at all, live on a terminal, or in lines."""
    if quiet:
        return Display()
    console = Console(stderr=True, markup=False, emoji=False)
    return LiveDisplay(console) if console.is_terminal else LineDisplay()


def describe(row: Mapping[str, Any]) -> str:
    """Return loss and source-validation mAP of an epoch, with the best so far."""
    best = f" (best {100 * row['best']:.1f} of epoch {row['best_epoch']})" if row.get("best") is not None else ""
    # A best score of the warm-up does not count later, which would look like a mistake without the word.
    warming = "  warm-up" if row.get("pathway") is not None and row["pathway"] < 1 else ""
    return f"loss {row['loss']:.4f}  mAP {100 * row['validation']['map']:.1f}{best}{warming}"


def _labels(row: Mapping[str, Any]) -> str:
    ap = row["validation"]["ap"]
    return "  ".join(f"{name} {'-' if value is None else f'{100 * value:.0f}'}" for name, value in ap.items())


def duration(seconds: float) -> str:
    """Return a time as text, e.g. ``3 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"
