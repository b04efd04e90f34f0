"""Label-free checks of a shift: do unlabelled images look like the sources, and are labels as frequent as expected?

Nothing here changes a model or a prediction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

from ldstyle.deploy.classifier import Prediction
from ldstyle.evaluation.style_statistics import (
    CENTER,
    CONCENTRATION,
    COUNT,
    MEAN_PROBABILITY,
    PREVALENCE,
    QUANTILES,
    SPREAD,
    style_distances,
)
from ldstyle.runs.model_file import LoadedModel

FEW = 30
"""Below this number of images no verdict is given."""
POWER = 0.95
"""A verdict is given only if a shift of twice the limit would be noticed with at least this probability."""
USUAL = 0.95
"""An image is far from the sources if this fraction of their images is nearer."""
MOST_FAR = 0.5
LONE_GAP = 0.25
"""With one source there is no distance between sources to compare with; UC Merced and AID are about this far apart."""
THRESHOLD_GAP, PREVALENCE_GAP = 0.15, 0.25

_MOST_NEEDED = 1 << 20
_MOST_ITERATIONS = 1000

_NEEDED = (CENTER, COUNT, SPREAD, QUANTILES, PREVALENCE, MEAN_PROBABILITY)


@dataclass(frozen=True)
class LabelShift:
    """How frequent a label is.

    Attributes:
        name: The label.
        sources: Fraction of the sources' images that have it; ``None`` if not known.
        expected: Fraction of the images that have it according to the probabilities, corrected for another frequency
            than in the sources.
        predicted: Fraction of the images in which it is predicted.
    """

    name: str
    sources: float | None
    expected: float
    predicted: float


@dataclass(frozen=True, eq=False)
class ShiftReport:
    """How unlabelled images differ from the sources.

    Attributes:
        percentiles: Fraction of source images that are nearer to the sources, by image, (N,).
        far: Fraction of the images that are farther than 95 % of the sources' own; 0.05 is usual.
        distances: Distance of the images' mean style to each source's, in units of the spread within sources.
        gap: Distance to the nearest source, corrected for chance.
        limit: Largest distance between two sources, corrected for chance; at least that between typical archives.
        detectable: Smallest shift that these images would show with a probability of 95 %.
        needed: Images that are needed for a verdict; ``None`` where the sources have too few images for any.
        labels: How frequent each label with training data is.
        trusted: Whether nothing in the style speaks against the predictions; ``None`` where a shift of twice the limit
            might go unnoticed.
        sentences: All of it in words.
    """

    percentiles: Tensor
    far: float
    distances: dict[str, float]
    gap: float
    limit: float
    detectable: float
    needed: int | None
    labels: tuple[LabelShift, ...]
    trusted: bool | None
    sentences: tuple[str, ...]


def check_statistics(model: LoadedModel) -> None:
    """Refuse a model that does not know what its sources look like."""
    missing = [key for key in _NEEDED if key not in model.extra]
    if missing:
        raise ValueError(
            f"--check-shift compares with statistics of the sources; this model lacks {missing[0]!r}. Train it with "
            "this version of ldstyle, or predict without --check-shift."
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
    noise = 1 / len(style) + 1 / count  # expected square of the distance of two means of images drawn alike
    concentration = float(model.extra[CONCENTRATION]) if CONCENTRATION in model.extra else 1.0
    limit = _limit(center, spread, count)
    shifted = bool((middle > _critical(noise, limit, concentration)).all())
    detectable = _detectable(noise, limit, concentration)
    trusted: bool | None = None
    if len(style) >= FEW:
        trusted = False if shifted or far >= MOST_FAR else (True if detectable <= 2 * limit else None)
    names = model.sources if len(model.sources) == len(center) else [f"source {d + 1}" for d in range(len(center))]
    report = ShiftReport(
        percentiles,
        far,
        dict(zip(names, middle.tolist(), strict=True)),
        gap=(middle**2 - noise).clamp(min=0).sqrt().min().item(),
        limit=limit,
        detectable=detectable,
        needed=_needed(count, limit, concentration),
        labels=_labels(model, prediction),
        trusted=trusted,
        sentences=(),
    )
    return replace(report, sentences=(*_style_words(report), *_label_words(report.labels)))


def _limit(center: Tensor, spread: Tensor, count: Tensor) -> float:
    """Return the largest distance between two sources beyond chance, and at least that between typical archives."""
    squares = style_distances(center, center, spread) ** 2 - 1 / count[:, None] - 1 / count
    return max(LONE_GAP, math.sqrt(max(0.0, squares.max().item())))


def _critical(noise: Tensor, limit: float, concentration: float) -> Tensor:
    """Return the distances above which a mean is shifted: beyond the limit, and beyond chance.

    The square of the distance of two means of images drawn alike is a sum over principal axes, in which an axis has at
    most the fraction ``concentration``. Its mean is ``noise`` and its standard deviation at most ``sqrt(2 ·
    concentration)`` times that; two of them are hardly chance.
    """
    chance = noise * (1 + 2 * math.sqrt(2 * concentration))
    return torch.maximum(limit**2 + noise, chance).sqrt()


def _detectable(noise: Tensor, limit: float, concentration: float) -> float:
    """Return the smallest shift from all sources that is noticed with the probability ``POWER``, in any direction."""
    # Each of the sources may hide it by chance, so an equal part of the error for each.
    deviations = NormalDist().inv_cdf(1 - (1 - POWER) / len(noise))
    return float((_critical(noise, limit, concentration) + deviations * (concentration * noise).sqrt()).max())


def _needed(count: Tensor, limit: float, concentration: float) -> int | None:
    images = FEW
    while images <= _MOST_NEEDED:
        if _detectable(1 / images + 1 / count, limit, concentration) <= 2 * limit:
            return images
        images = math.ceil(1.1 * images)
    return None


def expected_prevalence(probabilities: Tensor, prior: Tensor) -> Tensor:
    """Estimate how frequent labels are where they are as recognisable as in the sources but not as frequent.

    Expectation-maximisation over the priors, after Saerens, Latinne and Decaestecker (2002), label by label.

    Args:
        probabilities: Predicted probabilities, (N, L).
        prior: Mean probabilities on the sources, (L,).

    Returns:
        Fraction of the N images expected to have each label, (L,).
    """
    scores = probabilities.double()
    prior = prior.double().clamp(1e-4, 1 - 1e-4)
    fraction = prior.clone()
    for _ in range(_MOST_ITERATIONS):
        present, absent = scores * (fraction / prior), (1 - scores) * ((1 - fraction) / (1 - prior))
        updated = (present / (present + absent).clamp(min=torch.finfo(torch.float64).tiny)).mean(dim=0)
        moved = (updated - fraction).abs().max().item()
        fraction = updated
        if moved < 1e-7:
            break
    return fraction


def _percentiles(distance: Tensor, quantiles: Tensor) -> Tensor:
    """Return the fraction of source images below each distance, by linear interpolation of their quantiles."""
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
    others = "typical archives are" if lone or report.limit == LONE_GAP else "the sources are up to"
    words = [
        f"The {count} images are nearest to {nearest}: {report.distances[nearest]:.2f} spreads away, "
        f"{report.gap:.2f} of it beyond chance; {others} {report.limit:.2f} apart.",
        f"{report.far:.0%} of them look less like the sources than 95% of the sources' own images do (5% is usual).",
    ]
    match report.trusted:
        case None:
            words.append(_no_verdict(report))
        case False:
            reason = (
                "most of the images look unlike anything the model was trained on"
                if report.far >= MOST_FAR
                else "as a whole the images are farther from every source than sources are from each other"
            )
            words.append(f"DO NOT TRUST these predictions without checking some by hand: {reason}.")
        case True if report.gap > report.limit / 2:
            words.append(
                "The images differ from the sources about as much as the sources differ; expect scores below those on "
                f"the sources, and check some by hand. {_power(report)}"
            )
        case True:
            words.append(
                "The images look like the sources; nothing in their style speaks against the predictions. "
                f"{_power(report)}"
            )
    return words


def _power(report: ShiftReport) -> str:
    return f"A shift of {report.detectable:.2f} spreads would have been noticed with a probability of {POWER:.0%}."


def _no_verdict(report: ShiftReport) -> str:
    if report.needed is None:
        reason = "the model was trained on too few images per source for that"
    else:
        reason = f"give at least {max(FEW, report.needed)}"
    return (
        f"These are too few images for a verdict: only a shift of {report.detectable:.2f} spreads would be noticed "
        f"with a probability of {POWER:.0%}; {reason}."
    )


def _label_words(labels: tuple[LabelShift, ...]) -> list[str]:
    words = []
    for label in labels:
        if abs(label.predicted - label.expected) > THRESHOLD_GAP:
            words.append(
                f"DO NOT TRUST the decisions on {label.name!r}: it is predicted in {label.predicted:.0%} of the "
                f"images, but its probabilities suggest {label.expected:.0%}. Its threshold does not suit them; "
                "use the probabilities."
            )
        if label.sources is not None and abs(label.expected - label.sources) > PREVALENCE_GAP:
            words.append(
                f"{label.name!r} is expected in {label.expected:.0%} of the images and was in {label.sources:.0%} of "
                "the sources'. Check by hand whether it is so frequent here."
            )
    return words
