"""Pixels without data: where they are in an image, and what a network sees there.

They get the mean of the image's pixels with data, band by band. Training, prediction and mapping fill alike, so that a
network sees the same in all of them, without strong edges and without values that no ground has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def fill(pixels: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[Any]:
    """Give pixels without data the mean of those with data, in each band.

    Args:
        pixels: Values, (C, H, W).
        valid: Where there are data, (H, W).

    Returns:
        Values of the same type, (C, H, W): ``pixels`` if all are valid, 0 if none is.
    """
    if valid.all():
        return pixels
    means = pixels[:, valid].mean(axis=1, dtype=np.float64) if valid.any() else np.zeros(len(pixels))
    rounded = means if pixels.dtype.kind == "f" else np.round(means)
    return np.where(valid, pixels, rounded.astype(pixels.dtype)[:, None, None])


def stated_data(pixels: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """Return where an image has data, (H, W): where any band, (C, H, W), differs from its nodata value."""
    if nodata is None:
        return np.ones(pixels.shape[1:], dtype=np.bool_)
    return np.asarray((pixels != nodata).any(axis=0))


def require_data(valid: NDArray[np.bool_]) -> None:
    """Raise if no pixel has data."""
    if not valid.any():
        raise ValueError("none of its pixels has data: all are nodata or NaN; drop the image")
