"""What the sources look like to a backbone: their style statistics and label frequencies, kept with the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ldstyle.data.augment import Augmentation
from ldstyle.data.pool import Pool
from ldstyle.nn import InsertionPoint, insertion_points
from ldstyle.nn.layout import as_maps, logits_of
from ldstyle.training.scoring import evaluating, probabilities

CENTER, COUNT, SPREAD, QUANTILES = "style/center", "style/count", "style/spread", "style/quantiles"
PREVALENCE, MEAN_PROBABILITY = "label/prevalence", "label/mean_probability"
UNKNOWN = -1.0
"""Stands for the prevalence of a label that no source knows."""

_LEVELS = 101
_POINTS = 2


def source_style_statistics(
    backbone: nn.Module, batches: Iterable[tuple[Tensor, Tensor, Tensor]], *, image_size: int | None = None
) -> dict[str, Tensor]:
    """Summarise held-back source images, so that unlabelled images can later be compared with them.

    The style of an image is the mean and standard deviation of each channel at the first two stages. Its distance is
    the root mean squared difference to the nearest domain's mean, each entry in units of its spread within domains.

    Args:
        backbone: Plain backbone; its modes are restored.
        batches: Normalised images (B, 3, S, S) on its device, labels (B, L), 1 present, 0 absent, -1 unknown, and
            domain numbers (B,). Images that were not trained on give honest probabilities.
        image_size: Height and width of the images; by default the network's own.

    Returns:
        Tensors for the ``extra`` of the model file: ``style/center`` (D, F) of the domains, their numbers
        of images ``style/count`` (D,), ``style/spread`` (F,), the 0, 1, ... 100 % ``style/quantiles`` of the images'
        distances, and ``label/prevalence`` and ``label/mean_probability``,
        (L,); a prevalence that is not known is -1.
    """
    points = style_points(backbone, image_size=image_size)
    parts = []
    with evaluating(backbone), torch.no_grad():
        for images, labels, domain in batches:
            logits, style = logits_and_style(backbone, points, images)
            parts.append((style.cpu(), probabilities(logits).cpu(), labels.cpu(), domain.cpu()))
    if not parts:
        raise ValueError("`batches` must hold at least one batch of images; got none.")
    style, scores, truth, numbers = (torch.cat(part) for part in zip(*parts, strict=True))
    style = style.double()
    members = [style[numbers == d] for d in numbers.unique()]
    center = torch.stack([member.mean(dim=0) for member in members])
    variance = torch.stack([member.var(dim=0, correction=0) for member in members]).mean(dim=0)
    spread = _floored(variance.sqrt())
    distance = style_distances(style, center, spread).amin(dim=1)
    known = (truth >= 0).sum(dim=0)
    prevalence = torch.where(known > 0, (truth == 1).sum(dim=0) / known.clamp(min=1), UNKNOWN)
    return {
        CENTER: center.float(),
        COUNT: torch.tensor([len(member) for member in members]).float(),
        SPREAD: spread.float(),
        QUANTILES: distance.quantile(torch.linspace(0, 1, _LEVELS, dtype=torch.float64)).float(),
        PREVALENCE: prevalence.float(),
        MEAN_PROBABILITY: scores.mean(dim=0).float(),
    }


def labelled_images(
    pool: Pool, augmentation: Augmentation, device: torch.device, *, batch_size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield what :func:`source_style_statistics` takes from a pool, without augmentation."""
    for rows in torch.arange(len(pool)).split(batch_size):
        batch = pool.gather(rows.numpy())
        yield augmentation.normalise(batch.images.to(device)), batch.labels, batch.domain


def style_points(backbone: nn.Module, *, image_size: int | None = None) -> tuple[InsertionPoint, ...]:
    """Return the first two stages of a backbone, where style lives."""
    size = None if image_size is None else (image_size, image_size)
    listing = insertion_points(backbone, image_size=size)
    stages = [point for point in listing if point.stage is None or point.stage >= 1]
    return tuple((stages or list(listing))[:_POINTS])


def logits_and_style(backbone: nn.Module, points: Sequence[InsertionPoint], images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute logits and style in one forward pass, in the backbone's mode and without gradient.

    Args:
        backbone: Plain backbone.
        points: Where style is read.
        images: Normalised images, (B, 3, H, W).

    Returns:
        Logits (B, L), and style (B, F) float32: channel means, then standard deviations, point by point.
    """
    found: dict[str, Tensor] = {}
    size = (images.shape[2], images.shape[3])

    def watch(point: InsertionPoint) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            # The statistics at once: a layer behind may overwrite the map in place.
            var, mean = torch.var_mean(as_maps(output, point, size).float(), dim=(2, 3), correction=0)
            found[point.name] = torch.cat([mean, var.sqrt()], dim=1)

        return hook

    with ExitStack() as stack, torch.no_grad():
        for point in points:
            stack.callback(backbone.get_submodule(point.name).register_forward_hook(watch(point)).remove)
        logits = logits_of(backbone(images))
    style = [found[point.name] for point in points]
    return logits, torch.cat([logits.new_empty(len(images), 0, dtype=torch.float32), *style], dim=1)


def style_distances(style: Tensor, center: Tensor, spread: Tensor) -> Tensor:
    """Compute the root mean squared difference of styles (N, F) to centres (D, F) in units of ``spread``, (N, D)."""
    distances: Tensor = torch.cdist(style / spread, center / spread) / style.shape[1] ** 0.5
    return distances


def _floored(spread: Tensor) -> Tensor:
    """Keep channels that hardly vary among the sources from deciding the distance alone."""
    return spread.clamp(min=max(1e-6, 0.05 * spread.median().item()))
