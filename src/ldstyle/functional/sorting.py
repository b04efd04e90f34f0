"""Stable sorting of feature values, the cost of exact distribution matching."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_SIGN_FREE = 0x7FFFFFFF
_LOW_HALF = 0xFFFFFFFF


def stable_order(values: Tensor) -> Tensor:
    """Return the stable ascending order along the last dimension, as `torch.sort(stable=True)` does.

    Feature maps behind a ReLU are full of equal zeros, so ties must keep their place. On the host, float32 values are
    packed with their position into one integer, which makes every key unique: NumPy's vectorized sort then gives the
    stable order about five times faster than `torch.sort`.

    Args:
        values: Values, (..., K), without gradient.

    Returns:
        Positions in ascending order of value, (..., K) int64.
    """
    if values.device.type != "cpu" or values.dtype != torch.float32:
        return torch.sort(values, dim=-1, stable=True).indices
    # Adding zero turns -0.0 into 0.0, which a float comparison holds equal and a bit pattern does not.
    bits = (values + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & _SIGN_FREE)  # integers in the order of the floats
    keys = ordered.to(torch.int64).bitwise_left_shift_(32)
    keys |= torch.arange(values.shape[-1])
    keys.numpy().sort(axis=-1)
    return keys.bitwise_and_(_LOW_HALF)


def sorted_values(values: Tensor) -> Tensor:
    """Return the values in ascending order along the last dimension, where their places do not matter.

    Args:
        values: Values, (..., K), without gradient.

    Returns:
        Sorted values, (..., K).
    """
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        return torch.sort(values, dim=-1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1))
