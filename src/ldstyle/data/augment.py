"""Augmentation of whole batches on the device: flips, colour jitter, and the heavy jitter of the pseudo-domain.

Parameters are drawn first, on the host, from the run's own generator; applying them is a pure function of images and
parameters. The colour operations are those of torchvision's ``ColorJitter`` on floating-point images: each blends and
clamps to the range of the image, and they come in random order. The order is drawn once per batch, the factors per
sample.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ldstyle.data.colour import (
    SCRATCH_PLANES,
    WHITE,
    scale_brightness,
    scale_contrast,
    scale_saturation,
    shift_hue,
)

MAX_HUE = 1 / 6
"""Bound on the shift of the hue, as a share of the full circle."""

# On the CPU so many pixels are in work at a time per core: the thirty passes of the jitter then stay in its cache.
_PIXELS_IN_WORK = 1 << 16


@dataclass(frozen=True)
class Draws:
    """The parameters of one batch, on the host.

    Attributes:
        flips: Whether to flip horizontally and vertically, (B, 2) bool.
        factors: Brightness, contrast, saturation and hue of each sample, (4, B) float32. The first three are
            multipliers around 1, the last is a share of the colour circle around 0.
        order: The order of the four colour operations.
    """

    flips: Tensor
    factors: Tensor
    order: tuple[int, ...]


class Augmentation:
    """Flips at random, jitters colours, and normalises: 8-bit images in, floating point out.

    Args:
        mean: Mean of each channel that normalisation subtracts, images being in [0, 1].
        std: Standard deviation of each channel that it divides by.
        flip_prob: Probability of a horizontal flip, and of a vertical one.
        brightness: Brightness factors are drawn from 1 ± this.
        contrast: Contrast factors are drawn from 1 ± this.
        saturation: Saturation factors are drawn from 1 ± this.
        hue: Hue shifts are drawn from ± this share of the circle, at most 1/6.
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
        shares = {"flip_prob": flip_prob, "brightness": brightness, "contrast": contrast, "saturation": saturation}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ValueError(f"`{name}` must be in [0, 1]; got {value}.")
        if not 0 <= hue <= MAX_HUE:
            raise ValueError(f"`hue` must be in [0, 1/6] of the colour circle; got {hue}.")
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(f"`mean` and `std` must have three entries, std above 0; got {mean} and {std}.")
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
            images: RGB values, (B, 3, H, W) uint8.
            draws: Parameters of each image.

        Returns:
            (B, 3, H, W) float32 on the device of ``images``.
        """
        _check_images(images, len(draws.flips))
        scale, shift = self._normaliser(images.device)
        order = [step for step in draws.order if self.strengths[step]]
        factors = draws.factors.to(images.device)
        result = torch.empty(images.shape, dtype=torch.float32, device=images.device)

        def augment(part: slice, pixels: Tensor, scratch: Tensor) -> None:
            flip_images(images[part], draws.flips[part], out=pixels)
            _jitter(pixels, factors[:, part], order, scratch)
            # The result is not in the cache, so it is touched once, at the end.
            torch.add(pixels.mul_(scale), shift, out=result[part])

        _for_each_part(images, augment)
        return result

    def __call__(self, images: Tensor, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Augment (B, 3, H, W) uint8 images with fresh parameters.

        Returns:
            Normalised images, (B, 3, H, W) float32 on their device, and the flips, (B, 2) bool on the host.
        """
        draws = self.draw(len(images), generator)
        return self.apply(images, draws), draws.flips

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise (B, 3, H, W) uint8 images as they are, for evaluation."""
        _check_images(images, len(images))
        scale, shift = self._normaliser(images.device)
        result = torch.empty(images.shape, dtype=torch.float32, device=images.device)
        _for_each_part(images, lambda part, *_: result[part].copy_(images[part]).mul_(scale).add_(shift))
        return result

    def _normaliser(self, device: torch.device) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (self.mean, self.std))
        return 1 / (WHITE * std), -mean / std


def flip_images(images: Tensor, flips: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Flip each (3, H, W) image horizontally and vertically as ``flips`` (B, 2) says, into ``out`` if given."""
    result = torch.empty_like(images) if out is None else out
    for image, place, (horizontal, vertical) in zip(images, result, flips.tolist(), strict=True):
        place.copy_(image.flip([2] * horizontal + [1] * vertical) if horizontal or vertical else image)
    return result


def draw_photometric(count: int, generator: np.random.Generator) -> Tensor:
    """Draw the parameters of :func:`photometric`, (8, count) float32.

    Rows are brightness, contrast and saturation factors (1 ± 0.4), hue shift (± 0.1), gamma (2 to the ± 0.7), and the
    gains of red, green and blue (2 to the ± 0.3).
    """
    spread = np.array([0.4, 0.4, 0.4, 0.1, 0.7, 0.3, 0.3, 0.3])[:, None]
    draws = generator.uniform(-1, 1, (8, count)) * spread
    draws[:3] += 1
    draws[4:] = 2 ** draws[4:]
    return torch.from_numpy(draws.astype(np.float32))


def photometric(images: Tensor, factors: Tensor) -> Tensor:
    """Change the colours of images beyond recognition of their sensor, each by its own parameters, pixel by pixel.

    This makes the pseudo-domain: gains of the channels and gamma, then the four operations of the jitter.

    Args:
        images: RGB values, (B, 3, H, W) uint8.
        factors: Parameters from :func:`draw_photometric`, (8, B).

    Returns:
        (B, 3, H, W) uint8, spatially aligned with ``images``.
    """
    _check_images(images, factors.shape[1])
    factors = factors.to(images.device)
    gain, gamma = factors[5:].T[:, :, None, None], factors[4, :, None, None, None]
    result = torch.empty_like(images)

    def change(part: slice, pixels: Tensor, scratch: Tensor) -> None:
        pixels.copy_(images[part]).div_(WHITE).mul_(gain[part]).clamp_(max=1).pow_(gamma[part]).mul_(WHITE)
        _jitter(pixels, factors[:4, part], range(4), scratch)
        result[part] = pixels.round_()

    _for_each_part(images, change)
    return result


def _jitter(pixels: Tensor, factors: Tensor, order: Iterable[int], scratch: Tensor) -> None:
    """Apply the colour operations to (B, 3, H, W) values on [0, 255] in place; factors are (4, B)."""
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


def _for_each_part(images: Tensor, function: Callable[[slice, Tensor, Tensor], object]) -> None:
    """Call ``function(part, pixels, scratch)`` for parts of a batch, with (n, 3, H, W) and (6, n, H, W) to work in.

    On the CPU the parts are small and go to threads that run one torch operation each. Operations that are spread over
    all cores, one after the other, would wait for the slowest core at the end of each; on a busy machine that is most
    of the time.
    """
    count, _, height, width = images.shape
    on_cpu = images.device.type == "cpu"
    at_once = max(1, _PIXELS_IN_WORK // (height * width) if on_cpu else count)
    parts = [slice(start, min(start + at_once, count)) for start in range(0, count, at_once)]
    threads = min(torch.get_num_threads(), len(parts)) if on_cpu else 1

    def run(part: slice) -> None:
        pixels, scratch = _memory(at_once, height, width, images.device)
        function(part, pixels[: part.stop - part.start], scratch)

    if threads > 1:
        # The workers of a parent process are not there after a fork, hence the process id.
        list(_workers(torch.get_num_threads(), os.getpid()).map(run, parts))
    else:
        for part in parts:
            run(part)


def _memory(count: int, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return memory to work in, the same for each call of a thread, for new pages cost as much as the work itself."""
    kept: Tensor | None = getattr(_of_thread, "memory", None)
    planes = (3 + SCRATCH_PLANES) * count
    if kept is None or kept.shape != (planes, height, width) or kept.device != device:
        _of_thread.memory = kept = torch.empty(planes, height, width, device=device)
    pixels, scratch = kept.split((3 * count, SCRATCH_PLANES * count))
    return pixels.view(count, 3, height, width), scratch.view(SCRATCH_PLANES, count, height, width)


_of_thread = threading.local()


@cache
def _workers(count: int, process: int) -> ThreadPoolExecutor:
    """Start threads in each of which torch operations stay on one core; the caller's own setting is not changed."""
    del process
    started = threading.Barrier(count + 1)

    def start() -> None:
        torch.get_num_threads()  # torch takes the process's number on first use in a thread, so this comes first
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="augment", initializer=start)
    for _ in range(count):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(count)  # what threads started from now on take as the process's number
    return pool


def _check_images(images: Tensor, count: int) -> None:
    if images.dtype != torch.uint8:
        raise TypeError(f"`images` must be uint8, as Pool.gather() gives them; got {images.dtype}.")
    if images.ndim != 4 or images.shape[1] != 3 or len(images) != count:
        raise ValueError(f"`images` must have shape (B, 3, H, W) with B = {count}; got {tuple(images.shape)}.")
