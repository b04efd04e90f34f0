"""The ablations of Table 8: each row is one edit of a method's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ldstyle.benchmark.grid.methods import Method, load_method
from ldstyle.benchmark.results.comparison import Difference, Entry, Result, Results
from ldstyle.runs.settings import Settings


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


def ablation_methods() -> tuple[Method, ...]:
    """Return the rows of Table 8 as methods of the benchmark."""
    return tuple(ablation.method() for ablation in ABLATIONS)


def ablation_table(
    results: Sequence[Result], *, split: str, part: Literal["test", "all"] = "test"
) -> list[AblationResult]:
    """Return Table 8 as measured on a split; rows that were not run say so."""
    names = {ablation.name for ablation in ABLATIONS}
    found = Results(result for result in results if result.method in names and result.split == split)
    rows = []
    for ablation in ABLATIONS:
        name = ablation.name
        map_, cf1, of1 = (found.entry(name, split=split, part=part, metric=metric) for metric in ("map", "cf1", "of1"))
        change = found.difference(name, ablation.base, split=split, part=part) if ablation.edit else None
        rows.append(AblationResult(ablation, map_, cf1, of1, change))
    return rows
