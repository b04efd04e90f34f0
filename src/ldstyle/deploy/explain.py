"""Evidence of each label: class activation maps over the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.data.loading.bands import image_extent, read_picture
from ldstyle.data.loading.decode import image_size
from ldstyle.deploy.classifier import Classifier, Prediction
from ldstyle.nn import activation_maps, analyse_head
from ldstyle.nn.backbones.probe import evaluating

INK, QUIET = "#222222", "#6b6b6b"
_COLOURS = "inferno"
_STRONGEST = 0.75  # opacity of the heat at its maximum; the image stays visible
_COLUMNS = 4
_LONGEST = 4  # panels of longer images are squeezed
_TITLE = 0.14  # height of a title, where a panel is 1 wide


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where a model sees each label in N images.

    Attributes:
        maps: Evidence for each label, (N, L, h, w); not negative, and 0 for labels without training data. Under a head
            of average pooling and one linear layer a map's mean, negative evidence included, is the logit without the
            bias.
        prediction: Predictions for the images.
    """

    maps: Tensor
    prediction: Prediction


class Explainer:
    """Computes where a model sees each label.

    Args:
        classifier: The model; nothing in it changes.
    """

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier
        self._head = analyse_head(classifier.backbone, image_size=(classifier.size, classifier.size))

    def __call__(self, images: Tensor) -> Explanation:
        """Explain images, (N, C, S, S), as ``Classifier.normalise`` takes them."""
        with evaluating(self.classifier):
            inputs = self.classifier.normalise(images)
            maps, logits = activation_maps(self.classifier.backbone, self._head, inputs)
        maps = maps.relu().cpu().masked_fill(self.classifier.untrained[:, None, None], 0)
        return Explanation(maps, self.classifier.judge(logits.float().cpu()))


def heatmaps(maps: Tensor, *, size: tuple[int, int]) -> Tensor:
    """Enlarge the maps of one image and bring them to [0, 1] by the strongest evidence for any label.

    One scale for all labels shows which evidence decides; a label without evidence stays dark.

    Args:
        maps: Evidence, (L, h, w).
        size: Height and width of the result.

    Returns:
        (L, H, W).
    """
    # Cubic: a map has few locations, and bilinear interpolation shows their grid.
    large = F.interpolate(maps[None], size=size, mode="bicubic", align_corners=False)[0].relu()
    return large / large.amax().clamp(min=torch.finfo(large.dtype).tiny)


def blend(image: NDArray[np.uint8], heat: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Lay heat (H, W) in [0, 1] over an image (H, W, 3): the stronger, the more opaque."""
    opacity = _STRONGEST * heat[..., None] ** 0.7
    colours = 255 * colormaps[_COLOURS](heat)[..., :3]
    grey = image.mean(axis=2, keepdims=True)  # colours of the image would read as heat
    mixed: NDArray[np.uint8] = np.round((1 - opacity) * grey + opacity * colours).astype(np.uint8)
    return mixed


def explanation_sheet(
    path: Path,
    explanation: Explanation,
    row: int,
    *,
    labels: Sequence[str] | None = None,
    size: int = 320,
    shown: Sequence[int] | None = None,
) -> Figure:
    """Draw an image and the heat of its labels side by side.

    Args:
        path: The image file.
        explanation: Where labels are seen.
        row: Number of the image in it.
        labels: Labels to show; by default all.
        size: Width of a panel in pixels.
        shown: Bands to show as red, green and blue; ``None`` for 8-bit RGB.
    """
    vocabulary = explanation.prediction.vocabulary
    chosen = [vocabulary.index(name) for name in labels or vocabulary]
    image = read_picture(path, size, shown).transpose(1, 2, 0)
    heat = heatmaps(explanation.maps[row].float(), size=(size, size)).numpy()
    image_width, image_height = image_size(path) if shown is None else image_extent(path)
    ratio = min(max(image_height / image_width, 1 / _LONGEST), _LONGEST)
    columns = min(_COLUMNS, 1 + len(chosen))
    rows = -(-(1 + len(chosen)) // columns)
    figure = Figure(figsize=(columns, rows * (ratio + _TITLE)), dpi=size, facecolor="white")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    height = rows * (ratio + _TITLE)
    figure.subplots_adjust(0.005, 0.005, 0.995, 1 - _TITLE / height, wspace=0.02, hspace=_TITLE / ratio)
    _panel(axes[0], image, path.name, found=False, ratio=ratio)
    for axis, label in zip(axes[1:], chosen, strict=False):
        score = explanation.prediction.probabilities[row, label].item()
        found = bool(explanation.prediction.present[row, label])
        words = "unknown" if math.isnan(score) else f"{score:.0%}"
        _panel(axis, blend(image, heat[label]), f"{vocabulary[label]} {words}", found=found, ratio=ratio)
    for axis in axes[1 + len(chosen) :]:
        axis.set_axis_off()
    return figure


def _panel(axes: Axes, image: NDArray[np.uint8], title: str, *, found: bool, ratio: float) -> None:
    axes.imshow(image, extent=(0, 1, 0, ratio), aspect="equal", interpolation="nearest")
    axes.set_axis_off()
    weight, colour = ("bold", INK) if found else ("normal", QUIET)
    shown = title if len(title) <= 28 else f"{title[:27]}…"
    axes.set_title(shown, size=5, pad=2, weight=weight, color=colour, parse_math=False)
