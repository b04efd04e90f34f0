"""A trained model that takes images as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ldstyle.data.loading.bands import load_image, to_squares
from ldstyle.evaluation.predict import predict
from ldstyle.evaluation.scores import probabilities
from ldstyle.runs.model_file import LoadedModel, load_model
from ldstyle.runs.normalized_net import WHITES, NormalizedNet

Picture: TypeAlias = str | PathLike[str] | Image.Image | NDArray[Any] | Tensor
"""A file, a Pillow image in RGB, an array (H, W, 3) uint8, or a tensor (C, H, W), uint8 or in [0, 1].

A model of other bands than 8-bit RGB takes no Pillow image, and an array (bands, H, W) of values as in a file.
"""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions of a model for N images.

    Attributes:
        probabilities: (N, L) float64; NaN for a label without training data, which is unknown.
        present: True where a probability reaches its label's threshold, (N, L) bool; never for an unknown label.
        vocabulary: Names of the L labels.
        unknown: Names of the labels without training data.
    """

    probabilities: Tensor
    present: Tensor
    vocabulary: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def labels(self) -> list[tuple[str, ...]]:
        """The names of the labels found in each image."""
        return [tuple(name for name, found in zip(self.vocabulary, row, strict=True) if found) for row in self.present]


class Classifier(NormalizedNet):
    """A plain backbone with its preprocessing, vocabulary and thresholds.

    Args:
        model: A model read from disk.

    Attributes:
        backbone: The network itself, normalised images in and logits out.
        normalise: The normalisation of its images.
        model: Everything known about it.
    """

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model.backbone, model.preprocessing)
        self.model = model
        self.eval()

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Names of the L labels."""
        return self.model.vocabulary

    @property
    def untrained(self) -> Tensor:
        """True for labels without training data, (L,) bool."""
        return torch.tensor([name in self.model.untrained_labels for name in self.vocabulary])

    @property
    def thresholds(self) -> Tensor:
        """A label is predicted where its probability reaches this, (L,) float64."""
        return self.model.thresholds

    @property
    def size(self) -> int:
        """Height and width of the images the network takes."""
        return self.model.size

    def predict(self, images: Picture | Sequence[Picture], *, batch_size: int = 32) -> Prediction:
        """Predict the labels of images of any size; they are resized to the square the network takes.

        Files, Pillow images and arrays are resized as in training; tensors with antialiased bilinear interpolation
        too, which differs from it by rounding.

        Args:
            images: One image or several; a tensor (B, C, H, W) is B images.
            batch_size: How many to compute at once.

        Returns:
            Probabilities and labels on the CPU, in the order of the images.
        """
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1; got {batch_size}.")
        pictures = _pictures(images)
        if not len(pictures):
            return self.judge(torch.empty(0, len(self.vocabulary)))
        return self.judge(predict(self, _batches(pictures, self.model, batch_size=batch_size)).logits)

    def judge(self, logits: Tensor) -> Prediction:
        """Turn logits, (N, L), into probabilities and labels; labels without training data are unknown."""
        scores = probabilities(logits).masked_fill(self.untrained, torch.nan)
        return Prediction(scores, scores >= self.thresholds, self.vocabulary, self.model.untrained_labels)


def load(path: str | PathLike[str]) -> Classifier:
    """Load a trained model for prediction; nothing in its files can run code.

    Args:
        path: A run folder, or its ``model.json`` or ``model.safetensors``.

    Raises:
        FileNotFoundError: One of the two files is missing.
        ValueError: A file is damaged, changed, foreign, or of a newer version.
    """
    return Classifier(load_model(Path(path)))


def _pictures(images: Picture | Sequence[Picture]) -> Sequence[Picture]:
    if isinstance(images, Tensor) and images.ndim == 4:
        return list(images)
    if isinstance(images, str | PathLike | Image.Image | np.ndarray | Tensor):
        return [images]
    return images


def _batches(pictures: Sequence[Picture], model: LoadedModel, *, batch_size: int) -> Iterator[Tensor]:
    """Yield batches of squares, (B, C, S, S), each of one dtype."""
    for start in range(0, len(pictures), batch_size):
        squares = [_square(picture, model) for picture in pictures[start : start + batch_size]]
        if len({square.dtype for square in squares}) > 1:
            squares = [square.float() / WHITES.get(square.dtype, 1) for square in squares]
        yield torch.stack(squares)


def _square(picture: Picture, model: LoadedModel) -> Tensor:
    size, image_format = model.size, model.image_format
    match picture:
        case Tensor():
            return _resized(_checked(picture, len(model.preprocessing.mean)), size)
        case np.ndarray() if image_format is not None:
            if picture.ndim != 3:
                raise ValueError(f"An array must be (bands, H, W); got shape {picture.shape}.")
            return torch.from_numpy(to_squares(picture, size, image_format, path="the array"))
        case Image.Image() if image_format is not None:
            raise ValueError(
                f"The model takes {len(image_format.bands)} bands of {image_format.dtype}; got a Pillow image. Give "
                "the file, or an array (bands, H, W)."
            )
        case Image.Image():
            if picture.mode != "RGB":
                raise ValueError(f"A Pillow image must be RGB; got mode {picture.mode!r}. Use image.convert('RGB').")
            image = picture
        case np.ndarray():
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise ValueError(
                    f"An array must be (H, W, 3) uint8; got {picture.shape} {picture.dtype}. For (3, H, W) pass a "
                    "tensor."
                )
            image = Image.fromarray(picture)
        case str() | PathLike():
            return torch.from_numpy(load_image(Path(picture), size, image_format))
        case other:
            raise TypeError(f"An image must be a file, Pillow image, array or tensor; got {type(other).__name__}.")
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _checked(image: Tensor, channels: int) -> Tensor:
    if image.ndim != 3 or image.shape[0] != channels:
        raise ValueError(f"A tensor must be ({channels}, H, W) or (B, {channels}, H, W); got {tuple(image.shape)}.")
    if image.dtype in WHITES:
        return image
    if not image.is_floating_point() or not bool(((image >= 0) & (image <= 1)).all()):
        raise ValueError(
            f"A tensor must be uint8, or floating point in [0, 1]; got {image.dtype} in "
            f"[{image.min().item():g}, {image.max().item():g}]. Do not normalise it first."
        )
    return image


def _resized(image: Tensor, size: int) -> Tensor:
    if image.shape[1:] == (size, size):
        return image
    pixels = image[None].float()
    result = F.interpolate(pixels, size=(size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    white = WHITES.get(image.dtype)
    return result.clamp(0, 1) if white is None else result.round().clamp(0, white).to(image.dtype)
