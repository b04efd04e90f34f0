"""How far rounding may carry a result: from the precision and the number of operations, not from what a CPU gave."""

from __future__ import annotations

import torch
from torch import nn


def bound(operations: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> float:
    """Bound the rounding error of a result, whatever the order of the operations and the width of the CPU's vectors.

    An operation loses at most half a unit in the last place, and losses add up.

    Args:
        operations: Number of operations on the longest way to a value, terms of sums included.
        scale: Largest intermediate value, times the factor by which later operations enlarge its error.
        dtype: Precision of the computation.
    """
    return operations * scale * torch.finfo(dtype).eps / 2


def operations(network: nn.Module) -> int:
    """Count the terms of the sums on the longest way through a network: those of each layer after the other."""
    return sum(weight[0].numel() for weight in network.parameters() if weight.ndim > 1)
