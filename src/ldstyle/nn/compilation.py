"""Decorators of functions that `torch.compile` leaves out: the graph breaks there, and the backbone stays compiled.

Style modules draw random numbers on the host, look up banks and are hooked in for one call, which no graph can contain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def eager(function: _Function) -> _Function:
    """Run a function and everything it calls without compilation."""
    wrapped: _Function = torch.compiler.disable(function)
    return wrapped


def eager_frame(function: _Function) -> _Function:
    """Run the statements of a function without compilation; what it calls may be compiled."""
    skipped: _Function = torch.compiler.disable(function, recursive=False)
    return skipped
