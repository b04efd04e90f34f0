"""Decorators of functions that `torch.compile` leaves out: the graph breaks there, and the backbone stays compiled.

Style modules draw random numbers on the host, look up banks and are hooked in for one call, which no graph can contain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def eager(function: _Function) -> _Function:
    """Run a function and everything it calls without compilation."""
    return _left_out(function, recursive=True)


def eager_frame(function: _Function) -> _Function:
    """Run the statements of a function without compilation; what it calls may be compiled."""
    return _left_out(function, recursive=False)


def _left_out(function: _Function, *, recursive: bool) -> _Function:
    left_out: list[Callable[..., Any]] = []

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # The compiler takes longer to import than the rest of torch, so only those who compile load it. While it
        # traces, asking for it would make it trace `sys.modules` as well: thousands of entries for each call.
        if not torch.compiler.is_compiling() and "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not left_out:
            left_out.append(torch.compiler.disable(function, recursive=recursive))
        return left_out[0](*args, **kwargs)

    return cast(_Function, call)
