"""The sweeps of the sensitivity figure: one setting of a method at a time, one run per value, at a seed of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ldstyle.benchmark.grid.methods import Method, load_method
from ldstyle.runs.settings import nested

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
        name = f"{self.base}~{self.name}={_text(value)}"
        edits = nested({**self.also, self.setting: list(value) if isinstance(value, tuple) else value})
        settings = {**full.settings, "method": name}
        return Method(name, f"{full.title}, {self.title} {_text(value)}", settings, base=self.base, edits=edits)


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


def check_seeds(seeds: Sequence[int], main: Sequence[int] = range(5)) -> None:
    """Refuse seeds of the main runs: a selection must not be judged on the seeds that it was made on."""
    shared = sorted(set(seeds) & set(main))
    if shared:
        raise ValueError(
            f"A sweep must have a seed other than those of the main runs, {list(main)}; got {shared}. Use "
            f"{SENSITIVITY_SEED}."
        )


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"
