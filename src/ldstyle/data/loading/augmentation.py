"""Augmentation of whole batches on the device: flips, colour jitter, and the heavy jitter of the pseudo-domain.

Parameters are drawn first, on the host, from the run's own generator; applying them is a pure function of images and
parameters. The colour operations are those of torchvision's ``ColorJitter`` on floating-point images: each blends and
clamps to the range of the image, and they come in random order. The order is drawn once per batch, the factors per
sample. On the CPU compiled loops apply them (``_fused.py``), on other devices torch operations (``colour.py``).

Images of three bands are taken as red, green and blue. Of any other number, brightness is scaled in all bands alike and
the contrast of each band about its own mean; hue and saturation have no meaning there and are not applied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ldstyle.data.loading.colour import (
    SCRATCH_PLANES,
    WHITE,
    scale_brightness,
    scale_contrast,
    scale_saturation,
    shift_hue,
)

DEEPEST = 65535.0
"""Largest value of a 16-bit image, as 255 is that of an 8-bit one."""

MAX_HUE = 1 / 6
"""Bound on the shift of the hue, as a fraction of the full circle."""


@dataclass(frozen=True)
class Draws:
    """The parameters of one batch, on the host.

    Attributes:
        flips: Whether to flip horizontally and vertically, (B, 2) bool.
        factors: Brightness, contrast, saturation and hue of each sample, (4, B) float32. The first three are
            multipliers around 1, the last is a fraction of the colour circle around 0.
        order: The order of the four colour operations.
    """

    flips: Tensor
    factors: Tensor
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        # Compiled loops do not check their bounds.
        count = len(self.flips)
        if self.flips.shape != (count, 2) or self.factors.shape != (4, count) or not {*self.order} <= {0, 1, 2, 3}:
            raise ValueError(
                f"`flips` must have shape (B, 2), `factors` (4, B), and `order` entries from 0 to 3; "
                f"got {tuple(self.flips.shape)}, {tuple(self.factors.shape)} and {self.order}."
            )


class Augmentation:
    """Flips at random, jitters colours, and normalises: 8-bit or 16-bit images in, floating point out.

    Args:
        mean: Mean of each of C channels that normalisation subtracts, images being in [0, 1].
        std: Standard deviation of each channel that it divides by.
        flip_prob: Probability of a horizontal flip, and of a vertical one.
        brightness: Brightness factors are drawn from 1 ± this.
        contrast: Contrast factors are drawn from 1 ± this.
        saturation: Saturation factors are drawn from 1 ± this.
        hue: Hue shifts are drawn from ± this fraction of the circle, at most 1/6.
    """

    def __init__(
        self,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        flip_prob: float = 0.5,
        brightness: float = 0.2,
        contrast: float = 0.2,
        saturation: float = 0.2,
        hue: float = 0.05,
    ) -> None:
        fractions = {"flip_prob": flip_prob, "brightness": brightness, "contrast": contrast, "saturation": saturation}
        for name, value in fractions.items():
            if not 0 <= value <= 1:
                raise ValueError(f"`{name}` must be in [0, 1]; got {value}.")
        if not 0 <= hue <= MAX_HUE:
            raise ValueError(f"`hue` must be in [0, 1/6] of the colour circle; got {hue}.")
        if not mean or len(mean) != len(std) or min(std) <= 0:
            raise ValueError(f"`mean` and `std` must have an entry per band, std above 0; got {mean} and {std}.")
        self.mean, self.std, self.flip_prob = tuple(mean), tuple(std), flip_prob
        self.strengths = (brightness, contrast, saturation, hue)

    def draw(self, count: int, generator: np.random.Generator) -> Draws:
        """Draw the parameters of ``count`` images; how many numbers are drawn depends on ``count`` alone."""
        flips = generator.random((count, 2)) < self.flip_prob
        factors = generator.uniform(-1, 1, (4, count)) * np.array(self.strengths)[:, None]
        factors[:3] += 1
        order = tuple(generator.permutation(4).tolist())
        return Draws(torch.from_numpy(flips), torch.from_numpy(factors.astype(np.float32)), order)

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """Flip, jitter and normalise images with given parameters.

        Args:
            images: Values on [0, 255], (B, C, H, W) uint8, or on [0, 65535], uint16.
            draws: Parameters of each image.

        Returns:
            (B, C, H, W) float32 on the device of ``images``.
        """
        channels = len(self.mean)
        _check_images(images, len(draws.flips), channels)
        order = [step for step in draws.order if self.strengths[step] and (channels == 3 or step < 2)]
        scale, shift = self._normaliser()
        if images.device.type == "cpu":
            return _augment_on_cpu(images, draws.flips, draws.factors, order, scale, shift)
        return _augment_on_device(images, draws.flips, draws.factors, order, scale, shift)

    def __call__(self, images: Tensor, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Augment (B, C, H, W) images with fresh parameters.

        Returns:
            Normalised images, (B, C, H, W) float32 on their device, and the flips, (B, 2) bool on the host.
        """
        draws = self.draw(len(images), generator)
        return self.apply(images, draws), draws.flips

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise (B, C, H, W) images as they are, for evaluation."""
        unchanged = Draws(torch.zeros(len(images), 2, dtype=torch.bool), torch.zeros(4, len(images)), ())
        return self.apply(images, unchanged)

    def _normaliser(self) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        return 1 / (WHITE * std), -mean / std


def flip_images(images: Tensor, flips: Tensor) -> Tensor:
    """Flip each (C, H, W) image horizontally and vertically according to ``flips`` (B, 2), on any device."""
    # Without a loop over the batch: each operation on one image would cost a GPU as much time as one on all of them.
    horizontal, vertical = flips.to(images.device, non_blocking=True).T[:, :, None, None, None]
    images = torch.where(horizontal, images.flip(3), images)
    return torch.where(vertical, images.flip(2), images)


def draw_photometric(count: int, generator: np.random.Generator, *, channels: int = 3) -> Tensor:
    """Draw the parameters of :func:`photometric`, (5 + C, count) float32.

    Rows are brightness, contrast and saturation factors (1 ± 0.4), hue shift (± 0.1), gamma (2 to the ± 0.7), and the
    gains of the C bands (2 to the ± 0.3).
    """
    spread = np.array([0.4, 0.4, 0.4, 0.1, 0.7] + [0.3] * channels)[:, None]
    draws = generator.uniform(-1, 1, (5 + channels, count)) * spread
    draws[:3] += 1
    draws[4:] = 2 ** draws[4:]
    return torch.from_numpy(draws.astype(np.float32))


def photometric(images: Tensor, factors: Tensor) -> Tensor:
    """Change the colours of images beyond recognition of their sensor, each by its own parameters, pixel by pixel.

    This makes the pseudo-domain: gains of the channels and gamma, then the four operations of the jitter; hue and
    saturation change images of three bands only.

    Args:
        images: Values on [0, 255], (B, C, H, W) uint8, or on [0, 65535], uint16.
        factors: Parameters from :func:`draw_photometric`, (5 + C, B).

    Returns:
        (B, C, H, W) of the type of ``images``, spatially aligned with them.
    """
    _check_images(images, factors.shape[1], len(factors) - 5)
    if images.device.type == "cpu" and is_plain(images):
        return _retouch_on_cpu(images, factors)
    return _retouch_on_device(images, factors.to(images.device, non_blocking=True))


def _augment_on_cpu(
    images: Tensor, flips: Tensor, factors: Tensor, order: Sequence[int], scale: Tensor, shift: Tensor
) -> Tensor:
    from ldstyle.cpu import jitter as _fused

    # Compiled here and not in a worker.
    jitter, unit = (_fused.jitter(), ()) if is_plain(images) else (_fused.jitter_bands(), (np.float32(_unit(images)),))
    result = torch.empty(images.shape, dtype=torch.float32)
    pixels, flipped, drawn, place = (values.numpy() for values in (images.contiguous(), flips, factors, result))
    steps, gain, offset = np.array(order, dtype=np.int64), scale.numpy(), shift.numpy()

    def augment(part: slice) -> None:
        jitter(pixels[part], flipped[part], drawn[:, part], steps, *unit, gain, offset, place[part])

    _for_each_part(len(images), augment)
    return result


def _augment_on_device(
    images: Tensor, flips: Tensor, factors: Tensor, order: Sequence[int], scale: Tensor, shift: Tensor
) -> Tensor:
    # Few operations take uint16 on every device; conversion does.
    values = images if images.dtype == torch.uint8 else images.to(torch.float32).mul_(_unit(images))
    pixels = flip_images(values, flips).to(torch.float32)
    _jitter(pixels, factors.to(images.device, non_blocking=True), order)
    scale, shift = (values.to(images.device, non_blocking=True).view(-1, 1, 1) for values in (scale, shift))
    return pixels.mul_(scale).add_(shift)


def _retouch_on_cpu(images: Tensor, factors: Tensor) -> Tensor:
    from ldstyle.cpu import jitter as _fused

    retouch = _fused.retouch()
    # Only 256 values per channel are raised to a power, not every pixel.
    tones = _tone(torch.arange(256).expand(len(images), 3, 1, 256), factors)
    result = torch.empty(images.shape, dtype=torch.uint8)
    pixels, toned, place = (values.flatten(2).numpy() for values in (images.contiguous(), tones, result))
    drawn = factors[:4].numpy()
    _for_each_part(len(images), lambda part: retouch(pixels[part], toned[part], drawn[:, part], place[part]))
    return result


def _retouch_on_device(images: Tensor, factors: Tensor) -> Tensor:
    unit = _unit(images)
    pixels = _tone(images if images.dtype == torch.uint8 else images.to(torch.float32).mul_(unit), factors)
    _jitter(pixels, factors[:4], range(4) if images.shape[1] == 3 else range(2))
    return (pixels if unit == 1 else pixels.div_(unit)).round_().to(images.dtype)


def _unit(images: Tensor) -> float:
    """Return the factor that brings values to [0, 255]."""
    return 1.0 if images.dtype == torch.uint8 else WHITE / DEEPEST


def is_plain(images: Tensor) -> bool:
    """Return whether images are 8-bit RGB."""
    return images.dtype == torch.uint8 and images.shape[1] == 3


def _tone(values: Tensor, factors: Tensor) -> Tensor:
    """Apply the gains of the channels and gamma to (B, C, H, W) values on [0, 255]."""
    gain, gamma = factors[5:].T[:, :, None, None], factors[4, :, None, None, None]
    return (values / WHITE).mul_(gain).clamp_(max=1).pow_(gamma).mul_(WHITE)


def _jitter(pixels: Tensor, factors: Tensor, order: Iterable[int]) -> None:
    """Apply the colour operations to (B, C, H, W) values on [0, 255] in place; factors are (4, B)."""
    count, _, height, width = pixels.shape
    scratch = torch.empty(SCRATCH_PLANES, count, height, width, device=pixels.device)
    for step in order:
        match step:
            case 0:
                scale_brightness(pixels, factors[0])
            case 1:
                scale_contrast(pixels, factors[1])
            case 2:
                scale_saturation(pixels, factors[2], scratch)
            case _:
                shift_hue(pixels, factors[3], scratch)


def _for_each_part(count: int, work: Callable[[slice], object]) -> None:
    """Call ``work(part)``, which is to be a kernel that holds no lock, for one part of a batch per core."""
    threads = min(torch.get_num_threads(), count)
    if threads < 2:
        work(slice(0, count))
        return
    ends = [count * i // threads for i in range(threads + 1)]
    own, *others = map(slice, ends[:-1], ends[1:])
    # The threads of a parent process do not exist after a fork, so the process id is part of the key.
    workers = _workers(torch.get_num_threads() - 1, os.getpid())
    begun = [workers.submit(work, part) for part in others]
    work(own)
    for job in begun:
        job.result()


@cache
def _workers(count: int, process: int) -> ThreadPoolExecutor:
    del process
    return ThreadPoolExecutor(count, thread_name_prefix="augment")


def _check_images(images: Tensor, count: int, channels: int) -> None:
    if images.dtype not in (torch.uint8, torch.uint16):
        raise TypeError(f"`images` must be uint8 or uint16, as Pool.gather() gives them; got {images.dtype}.")
    if images.ndim != 4 or images.shape[1] != channels or len(images) != count:
        raise ValueError(f"`images` must have shape (B, {channels}, H, W) with B = {count}; got {tuple(images.shape)}.")
