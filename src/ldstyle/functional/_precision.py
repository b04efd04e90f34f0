"""The precision statistics and maps are computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_single(value: Tensor) -> Tensor:
    """Return the tensor in float32, or as it is in float64."""
    return value if value.dtype == torch.float64 else value.float()
