"""Label-free checks of a shift: do unlabelled images look like the sources, and are labels as frequent as expected?

Nothing here changes a model or a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ldstyle.deploy.classifier import Prediction
from ldstyle.training.model_file import LoadedModel
from ldstyle.training.style_statistics import (
    CENTER,
    COUNT,
    MEAN_PROBABILITY,
    PREVALENCE,
    QUANTILES,
    SPREAD,
    style_distances,
)

FEW = 30
"""Below this number of images no verdict is given."""
USUAL = 0.95
"""An image is far from the sources if this share of their images is nearer."""
MOST_FAR = 0.5
LONE_GAP = 0.25
"""With one source there is no distance between sources to compare with; UC Merced and AID are about this far apart."""
THRESHOLD_GAP, PREVALENCE_GAP = 0.15, 0.25

_NEEDED = (CENTER, COUNT, SPREAD, QUANTILES, PREVALENCE, MEAN_PROBABILITY)


@dataclass(frozen=True)
class LabelShift:
    """How frequent a label is.

    Attributes:
        name: The label.
        sources: Share of the sources' images that have it; ``None`` if not known.
        expected: Share of the images that the probabilities let expect, allowing for another frequency than in the
            sources.
        predicted: Share of the images in which it is predicted.
    """

    name: str
    sources: float | None
    expected: float
    predicted: float


@dataclass(frozen=True, eq=False)
class ShiftReport:
    """How unlabelled images differ from the sources.

    Attributes:
        percentiles: Share of source images that are nearer to the sources, by image, (N,).
        far: Share of the images that are farther than 95 % of the sources' own; 0.05 is usual.
        distances: Distance of the images' mean style to each source's, in units of the spread within sources.
        gap: What is beyond chance of the distance to the nearest source.
        apart: Largest distance between two sources; for one source, that between typical archives.
        labels: How frequent each label with training data is.
        trusted: Whether nothing in the style speaks against the predictions; ``None`` for too few images.
        sentences: All of it in words.
    """

    percentiles: Tensor
    far: float
    distances: dict[str, float]
    gap: float
    apart: float
    labels: tuple[LabelShift, ...]
    trusted: bool | None
    sentences: tuple[str, ...]


def check_statistics(model: LoadedModel) -> None:
    """Refuse a model that does not know what its sources look like."""
    missing = [key for key in _NEEDED if key not in model.extra]
    if missing:
        raise ValueError(
            f"--calibrate compares with statistics of the sources; this model lacks {missing[0]!r}. Train it with "
            "this version of ldstyle, or predict without --calibrate."
        )


def check_shift(model: LoadedModel, style: Tensor, prediction: Prediction) -> ShiftReport:
    """Compare unlabelled images with the sources of a model.

    Args:
        model: A model with the statistics of its sources.
        style: Style of the images, (N, F).
        prediction: What is predicted for them.
    """
    check_statistics(model)
    center, spread = model.extra[CENTER].double(), model.extra[SPREAD].double()
    if center.ndim != 2 or center.shape[1] != style.shape[1] or spread.shape != center.shape[1:]:
        raise ValueError(
            f"The statistics of the sources must be of {style.shape[1]} entries; got {tuple(center.shape)}. Train "
            "the model with this version of ldstyle."
        )
    style = style.double()
    percentiles = _percentiles(
        style_distances(style, center, spread).amin(dim=1), model.extra[QUANTILES].double().contiguous()
    )
    far = (percentiles >= USUAL).double().mean().item()
    middle = style_distances(style.mean(dim=0, keepdim=True), center, spread)[0]
    count = model.extra[COUNT].double()
    # The means of n and m images drawn alike are 1/n + 1/m apart in the square; four times that is hardly chance.
    gap = (middle**2 - 4 * (1 / len(style) + 1 / count)).clamp(min=0).sqrt().min().item()
    apart = style_distances(center, center, spread).max().item() if len(center) > 1 else LONE_GAP
    trusted = None if len(style) < FEW else far < MOST_FAR and gap <= apart
    names = model.sources if len(model.sources) == len(center) else [f"source {d + 1}" for d in range(len(center))]
    distances = dict(zip(names, middle.tolist(), strict=True))
    report = ShiftReport(percentiles, far, distances, gap, apart, _labels(model, prediction), trusted, ())
    return replace(report, sentences=(*_style_words(report), *_label_words(report.labels)))


def expected_prevalence(probabilities: Tensor, prior: Tensor, *, steps: int = 1000) -> Tensor:
    """Estimate how frequent labels are where they are as recognisable as in the sources but not as frequent.

    Expectation-maximisation over the priors, after Saerens, Latinne and Decaestecker (2002), label by label.

    Args:
        probabilities: What the model says, (N, L).
        prior: What it said on average on the sources, (L,).
        steps: Most iterations.

    Returns:
        Share of the N images expected to have each label, (L,).
    """
    scores = probabilities.double()
    prior = prior.double().clamp(1e-4, 1 - 1e-4)
    share = prior.clone()
    for _ in range(steps):
        present, absent = scores * (share / prior), (1 - scores) * ((1 - share) / (1 - prior))
        updated = (present / (present + absent).clamp(min=torch.finfo(torch.float64).tiny)).mean(dim=0)
        moved = (updated - share).abs().max().item()
        share = updated
        if moved < 1e-7:
            break
    return share


def _percentiles(distance: Tensor, quantiles: Tensor) -> Tensor:
    """Return the share of source images below each distance, by linear interpolation of their quantiles."""
    last = len(quantiles) - 1
    above = torch.searchsorted(quantiles, distance).clamp(1, last)
    low, high = quantiles[above - 1], quantiles[above]
    part = ((distance - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return (above - 1 + part) / last


def _labels(model: LoadedModel, prediction: Prediction) -> tuple[LabelShift, ...]:
    trained = [i for i, name in enumerate(model.vocabulary) if name not in model.untrained_labels]
    prior = model.extra[MEAN_PROBABILITY][trained]
    expected = expected_prevalence(prediction.probabilities[:, trained], prior).tolist()
    predicted = prediction.present[:, trained].double().mean(dim=0).tolist()
    sources = [value if value >= 0 else None for value in model.extra[PREVALENCE][trained].tolist()]
    names = [model.vocabulary[i] for i in trained]
    return tuple(LabelShift(*row) for row in zip(names, sources, expected, predicted, strict=True))


def _style_words(report: ShiftReport) -> list[str]:
    count, lone = len(report.percentiles), len(report.distances) == 1
    nearest = min(report.distances, key=lambda name: report.distances[name])
    others = "typical archives are" if lone else "the sources are up to"
    words = [
        f"The {count} images are nearest to {nearest}: {report.distances[nearest]:.2f} spreads away, "
        f"{report.gap:.2f} of it beyond chance; {others} {report.apart:.2f} apart.",
        f"{report.far:.0%} of them look less like the sources than 95% of the sources' own images do (5% is usual).",
    ]
    match report.trusted:
        case None:
            words.append(f"These are too few images for a verdict; give at least {FEW}.")
        case False:
            reason = (
                "most of the images look unlike anything the model was trained on"
                if report.far >= MOST_FAR
                else "as a whole the images are farther from every source than sources are from each other"
            )
            words.append(f"DO NOT TRUST these predictions without checking some by hand: {reason}.")
        case True if report.gap > report.apart / 2:
            words.append(
                "The images differ from the sources about as much as the sources differ; expect scores below those on "
                "the sources, and check some by hand."
            )
        case True:
            words.append("The images look like the sources; nothing in their style speaks against the predictions.")
    return words


def _label_words(labels: tuple[LabelShift, ...]) -> list[str]:
    words = []
    for label in labels:
        if abs(label.predicted - label.expected) > THRESHOLD_GAP:
            words.append(
                f"DO NOT TRUST the decisions on {label.name!r}: it is predicted in {label.predicted:.0%} of the "
                f"images, though its probabilities let expect {label.expected:.0%}. Its threshold does not suit them; "
                "use the probabilities."
            )
        if label.sources is not None and abs(label.expected - label.sources) > PREVALENCE_GAP:
            words.append(
                f"{label.name!r} is expected in {label.expected:.0%} of the images and was in {label.sources:.0%} of "
                "the sources'. Check by hand whether it is so frequent here."
            )
    return words
