"""The figures of a report, by the names of their files. Heavy packages are imported when a figure is requested.

=======================  =============================================================  ========================
``method``               an image mixed as one style and label by label                 images; masks or weights
``class-samples``        samples of each label in each domain                           images
``training-curves``      loss and source-validation mAP by epoch                        ``metrics.jsonl``
``label-ap``             average precision of each label by method and split            records
``differences``          paired differences with intervals: to ERM, to the global twin  records
``cost-accuracy``        training time against mAP                                      records
``sensitivity``          the five sweeps of ``ldstyle bench sensitivity``               records
``strength-epochs``      relative feature change and effective locations by epoch       ``metrics.jsonl``
``localization-epochs``  agreement of the attention in use with masks by epoch          ``metrics.jsonl``, masks
``attention``            learned and cached attention over images                       weights, images
``style-statistics``     t-SNE of global and per-label statistics, and accuracies       weights, images
``operators``            the effect of each operator on an image                        images; masks or weights
=======================  =============================================================  ========================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ldstyle.benchmark.results.view import Results
    from ldstyle.report.figures.style import Plate
    from ldstyle.report.model import Absent, Picture


class FigureEntry(NamedTuple):
    """Title of a figure, and the module of this package and function in it that draw it."""

    title: str
    module: str
    function: str


FIGURES: Mapping[str, FigureEntry] = MappingProxyType(
    {
        "method": FigureEntry("The method in a picture", "explanation", "method_picture"),
        "class-samples": FigureEntry("Class samples", "images", "class_samples_figure"),
        "training-curves": FigureEntry("Training curves", "curves", "training_curves"),
        "label-ap": FigureEntry("Average precision by label", "labels", "label_precision"),
        "differences": FigureEntry("Paired differences", "differences", "paired_differences"),
        "cost-accuracy": FigureEntry("Cost against accuracy", "cost", "cost_and_accuracy"),
        "sensitivity": FigureEntry("Sensitivity", "sensitivity", "sensitivity_panels"),
        "strength-epochs": FigureEntry("Strength and sharpness by epoch", "curves", "strength_curves"),
        "localization-epochs": FigureEntry("Localization by epoch", "curves", "localization_curves"),
        "attention": FigureEntry("Attention over images", "attention", "attention_overlays"),
        "style-statistics": FigureEntry("Style statistics", "style_statistics", "style_statistics"),
        "operators": FigureEntry("Effect of the operators", "operators", "operator_strip"),
    }
)
"""Every figure by its slug, in the order of a report."""


def make_figure(slug: str, results: Results) -> Picture | Absent:
    """Make a figure of a grid, or return why there is none."""
    if slug not in FIGURES:
        raise ValueError(f"There is no figure {slug!r}. Choose from: {', '.join(FIGURES)}.")
    from ldstyle.report.figures.style import UnavailableError, printed
    from ldstyle.report.model import Absent, Picture

    entry = FIGURES[slug]
    make: Callable[[Results], Plate] = getattr(import_module(f"{__name__}.{entry.module}"), entry.function)
    try:
        plate = make(results)
    except UnavailableError as why:
        return Absent(slug, entry.title, str(why), optional=why.optional)
    draw = printed()(plate.draw)
    return Picture(slug, entry.title, plate.caption, draw, plate.data, plate.photographic, plate.stacks)
