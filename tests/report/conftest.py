"""Small results folders made by hand, as ``ldstyle bench`` would leave them in a repository: no weights, no images."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from ldstyle.benchmark.grid.cells import Cell, make_cells, make_splits
from ldstyle.benchmark.grid.methods import Method, load_method
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.data import DataAccess
from ldstyle.benchmark.results.records import append_record, read_results, write_failure, write_plan
from ldstyle.benchmark.results.view import Results
from ldstyle.benchmark.studies import ablation_methods, sensitivity_methods

DOMAINS = ("harbour", "meadow", "city")
LABELS = ("building", "tree", "ship")
CHANCE = {"pointing_chance": 0.2, "iou_chance": 0.1}


@cache
def variants() -> dict[str, Method]:
    return {method.name: method for method in (*ablation_methods(), *sensitivity_methods())}


@cache
def grid_cell(method: str, split: str, seed: int, preset: str, domains: tuple[str, ...], root: str) -> Cell:
    made = load_method(method) if method not in variants() else variants()[method]
    data = {"root": root, "sea": "drop", "mapping": None}
    (cell,) = make_cells([made], make_splits(domains, [split]), [seed], preset=PRESETS[preset], data=data)
    return cell


class Grid:
    """A results folder that is filled cell by cell.

    Args:
        folder: The results folder; it is made.
        domains: Domains, each the target of one split: ``s1``, ``s2``, ...
        labels: Label names.
        preset: Preset of the cells.
        root: Data folder that the records name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        domains: Sequence[str] = DOMAINS,
        labels: Sequence[str] = LABELS,
        preset: str = "smoke",
        root: str = "/nowhere",
    ) -> None:
        self.folder, self.domains, self.labels, self.preset, self.root = folder, tuple(domains), labels, preset, root
        folder.mkdir(parents=True, exist_ok=True)

    def cell(self, method: str, split: str = "s1", seed: int = 0) -> Cell:
        return grid_cell(method, split, seed, self.preset, self.domains, self.root)

    def plan(self, methods: Sequence[str], splits: Sequence[str], seeds: Sequence[int]) -> None:
        """Ask for cells; those without a record are missing."""
        write_plan(
            self.folder, [self.cell(method, split, seed) for seed in seeds for split in splits for method in methods]
        )

    def done(
        self,
        method: str,
        split: str = "s1",
        seed: int = 0,
        *,
        ap: float | Sequence[float | None] = 0.5,
        whole: float | Sequence[float | None] | None = None,
        cf1: float = 0.4,
        of1: float = 0.3,
        seconds: float = 10.0,
        epochs: int = 2,
        pointing: float | None = None,
        iou: float = 0.3,
        edits: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Finish a cell.

        Args:
            method: Name of a method, an ablation or a point of a sweep.
            split: Name of the split.
            seed: Seed.
            ap: Average precision of each label on the test part, or one for all; the mAP is their mean.
            whole: The same for the whole target; by default as the test part. The oracle has none.
            cf1: Macro-averaged F1.
            of1: Micro-averaged F1.
            seconds: Training time.
            epochs: Epochs; ``metrics.jsonl`` has a line for each.
            pointing: Pointing accuracy of every label; without one the domain has no masks.
            iou: Intersection over union of every label.
            edits: What else to put into the record.
        """
        cell = self.cell(method, split, seed)
        described = {key: value for key, value in cell.describe().items() if key != "settings"}
        test, everything = (self._scores(values, cf1, of1) for values in (ap, ap if whole is None else whole))
        record = {
            "schema": 1,
            **described,
            "scores": {"test": test, "all": None if cell.oracle else everything},
            "validation_map": 0.8,
            "selected_epoch": epochs,
            "selected_warmup_weight": None,
            "selection": "mean source-validation mAP",
            "epochs_run": epochs,
            "thresholds": dict.fromkeys(self.labels, 0.5),
            "splits": {domain: f"{domain}-{seed}" for domain in self.domains},
            "vocabulary": list(self.labels),
            "localization": self._localization(pointing, iou),
            "config": {**cell.settings, "out": str(self.folder / cell.slug)},
            "place": {"root": self.root, "cache_dir": "/nowhere", "sea": "drop", "mapping": None, "scenes": 0,
                      "pixels": 0},
            "versions": {"python": "3.11", "torch": "2.9", "ldstyle": "0.1"},
            "git_commit": None,
            "wall_seconds": seconds,
            "evaluation_seconds": 1.0,
            "peak_memory_mb": 500.0,
            "machine": {"host": "here", "threads": 1, "process": 1},
            "finished": "2025-01-01T00:00:00Z",
            **(edits or {}),
        }  # fmt: skip
        append_record(self.folder, record)
        self._write_metrics(cell, test["map"], epochs, seconds)
        return record

    def fill(
        self, methods: Sequence[str], *, splits: Sequence[str] = ("s1", "s2", "s3"), seeds: int = 2, **known: Any
    ) -> None:
        """Plan and finish a whole grid; scores rise with method and seed and fall with the split."""
        self.plan(methods, splits, range(seeds))
        for m, method in enumerate(methods):
            for s, split in enumerate(splits):
                for seed in range(seeds):
                    level = 0.5 + 0.03 * m - 0.1 * s + 0.01 * seed
                    ap = [level + 0.02 * i for i in range(len(self.labels))]
                    whole = [value + 0.01 for value in ap]
                    self.done(method, split, seed, **{"ap": ap, "whole": whole, "cf1": level, "of1": level, **known})

    def fail(self, method: str, split: str = "s1", seed: int = 0, *, error: str = "ValueError: no luck") -> None:
        """Let a cell fail; it must be planned."""
        write_failure(self.folder, self.cell(method, split, seed), error=error)

    def read(self) -> list[CellResult]:
        return read_results(self.folder)

    def view(self, **access: Any) -> Results:
        """The view of the folder; the data that the records name are read unless other access is given."""
        return Results(self.read(), folder=self.folder, access=DataAccess(**(access or {"trust": True})))

    def _scores(self, ap: float | Sequence[float | None], cf1: float, of1: float) -> dict[str, Any]:
        values = [ap] * len(self.labels) if isinstance(ap, float) else list(ap)
        by_label = dict(zip(self.labels, values, strict=True))
        known = [value for value in values if value is not None]
        return {
            "map": fmean(known),
            "ap": by_label,
            "cf1": cf1,
            "cf1_cpcr": cf1,
            "of1": of1,
            "n": 10,
            "left_out": [label for label, value in by_label.items() if value is None],
        }

    def _localization(self, pointing: float | None, iou: float) -> dict[str, Any] | None:
        if pointing is None:
            return None
        row = {"pointing": pointing, "iou": iou, **CHANCE}
        return {"mean": row, **{label: {**row, "n": 8, "missing": 2} for label in self.labels}}

    def _write_metrics(self, cell: Cell, level: float, epochs: int, seconds: float) -> None:
        sources = cell.settings["data"]["sources"]
        lines = []
        for epoch in range(1, epochs + 1):
            value = level * epoch / epochs
            validation = {
                "map": value,
                "loss": 1 / epoch,
                "per_domain": dict.fromkeys(sources, value),
                "ap": dict.fromkeys(self.labels, value),
            }
            line = {
                "epoch": epoch,
                "steps": 4,
                "loss": 1 / epoch,
                "grad_norm": 1.0,
                "learning_rates": [1e-4, 1e-3],
                "pathway": None,
                "validation": validation,
                "best": value,
                "best_epoch": epoch,
                "localization": None,
                "seconds": seconds / epochs,
            }
            lines.append(json.dumps(line) + "\n")
        path = self.folder / cell.slug / "metrics.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(lines))


@pytest.fixture
def make_grid(tmp_path: Path) -> Callable[..., Grid]:
    """Make a results folder below the test's own: ``make_grid("name", domains=..., preset=...)``."""

    def make(name: str = "grid", **settings: Any) -> Grid:
        return Grid(tmp_path / name, **settings)

    return make
