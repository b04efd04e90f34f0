"""The figures of a report, by the names of their files. Nothing heavy is imported before a figure is asked for.

=======================  =============================================================  ========================
``class-samples``        how each label looks in each domain                            images
``training-curves``      loss and source-validation mAP by epoch                        ``metrics.jsonl``
``label-ap``             average precision of each label by method and split            records
``differences``          paired differences with intervals: to ERM, to the global twin  records
``cost-accuracy``        training time against mAP                                      records
``sensitivity``          the five sweeps of ``ldstyle bench sensitivity``               records
``strength-epochs``      relative feature change and effective locations by epoch       ``metrics.jsonl``
``localization-epochs``  whether attention finds its labels, by epoch                   ``metrics.jsonl``, masks
``attention``            where learned and cached attention look, over the images       weights, images
``style-statistics``     t-SNE of global and per-label statistics, and what they tell   weights, images
``operators``            what each operator does to an image                            images; masks or weights
=======================  =============================================================  ========================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ldstyle.report.figures.runs import Runs
    from ldstyle.report.model import Absent, Picture

FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "class-samples": "samples:class_samples_figure",
        "training-curves": "curves:training_curves",
        "label-ap": "labels:label_precision",
        "differences": "forest:paired_differences",
        "cost-accuracy": "cost:cost_and_accuracy",
        "sensitivity": "sweeps:sensitivity_panels",
        "strength-epochs": "curves:strength_curves",
        "localization-epochs": "curves:localization_curves",
        "attention": "attention:attention_overlays",
        "style-statistics": "manifold:style_statistics",
        "operators": "strip:operator_strip",
    }
)
"""Every figure by its slug, in the order of a report: module of this package and function in it."""


def make_figure(slug: str, runs: Runs) -> Picture | Absent:
    """Make a figure of some runs, or say why there is none."""
    if slug not in FIGURES:
        raise ValueError(f"There is no figure {slug!r}. Choose from: {', '.join(FIGURES)}.")
    module, name = FIGURES[slug].split(":")
    make: Callable[[Runs], Picture | Absent] = getattr(import_module(f"{__name__}.{module}"), name)
    return make(runs)
