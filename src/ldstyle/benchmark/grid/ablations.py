"""The ablations of Table 8: each row is one edit of a method's settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from ldstyle.benchmark.grid.methods import Method, load_method
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


def ablation_methods() -> tuple[Method, ...]:
    """Return the rows of Table 8 as methods of the benchmark."""
    return tuple(ablation.method() for ablation in ABLATIONS)
