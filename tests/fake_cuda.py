"""A GPU without one: tensors on the device have shapes and no values, tensors on the host are real.

Reading a value of the device raises, and every copy that makes the host wait for the device is noted. The autograd
engine asks the driver about CUDA tensors even where they are fake, so backward passes run on the device ``meta``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from ldstyle.data.loading import colour

FORWARD, BACKWARD = "cuda:0", "meta"
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
_LOOKUPS = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)
# Reads the number of NaN on the host in older versions of torch.
_READS = (torch.ops.aten.nanmedian.default,)
_PINNED = (torch.ops.aten.is_pinned.default, torch.ops.aten._pin_memory.default)


class FakeCuda(TorchDispatchMode):
    """Runs operations on device tensors by shape alone, and all others for real.

    Attributes:
        waits: Operations that make the host wait for the device, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]
        if func is torch.ops.aten.to.dtype_layout:  # inference mode does not take it apart
            func, kwargs = _COPIES[0], {name: value for name, value in kwargs.items() if name != "copy"}
        if func in _PINNED:
            return func is not _PINNED[0] and args[0]
        if not fakes and not any(isinstance(leaf, torch.device) and leaf.type != "cpu" for leaf in leaves):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func in _LOOKUPS and any(isinstance(i, Tensor) and not isinstance(i, FakeTensor) for i in args[1]):
            self.waits.append(f"{func} by an index on the host")
        if func in _READS:
            self.waits.append(str(func))
        result = func(*args, **kwargs)
        if func in _COPIES:
            return self._copied(func, args, kwargs, result)
        return result

    def _copied(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> Tensor:
        source, target = (args[0], result) if func is _COPIES[0] else (args[1], args[0])
        blocking = not (kwargs.get("non_blocking", False) or (func is _COPIES[1] and len(args) > 2 and args[2]))
        to_host = source.device.type != "cpu" and target.device.type == "cpu"
        to_device = source.device.type == "cpu" and target.device.type != "cpu"
        if to_host or (to_device and blocking):
            self.waits.append(f"{func} {tuple(source.shape)} to the {'host' if to_host else 'device'}")
        if to_host:
            with _disable_current_modes():
                return torch.ones(result.shape, dtype=result.dtype)
        return result


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Make ``cuda`` and ``meta`` devices of shapes inside the block."""
    with ExitStack() as stack:
        stack.callback(colour._matrices.cache_clear)  # it keeps tensors by device
        for name in ("autocast", "get_autocast_dtype", "is_autocast_enabled"):
            stack.enter_context(mock.patch.object(torch, name, _known(getattr(torch, name))))
        stack.enter_context(mock.patch.object(torch.random, "fork_rng", partial(_forked, torch.random.fork_rng)))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield stack.enter_context(FakeCuda())


def _forked(fork: Any, **_: Any) -> Any:
    """Fork the stream of the host alone: a fake device has none."""
    return fork(devices=[])


def _known(function: Any) -> Any:
    """Let a function of the device's type, which does not know ``meta``, take it for ``cuda``."""
    return lambda kind, *args, **kwargs: function("cuda" if kind == "meta" else kind, *args, **kwargs)


def moved(module: nn.Module, device: str) -> nn.Module:
    """Move a network to a fake device, as ``to()`` would."""
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = nn.Parameter(value.detach().to(device, non_blocking=True), value.requires_grad)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = value.to(device, non_blocking=True)
    return module
