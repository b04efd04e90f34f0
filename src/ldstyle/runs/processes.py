"""One process or several: launching, collecting, agreeing."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.strategy import Strategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from numpy.typing import NDArray
from torch import Tensor, nn

from ldstyle.config import LabelDecoupledConfig, LLAMConfig
from ldstyle.runs.config import RunConfig

T = TypeVar("T")
_NOT_THERE = (MisconfigurationException, RuntimeError, ValueError)
"""Errors of Lightning for an accelerator that is not there."""


class OnHost(Generic[T]):
    """Carries a value past wrappers that copy every tensor they find to the device.

    Labels and domains are needed on the host, for pairing; a copy there and back would make the device wait.
    """

    def __init__(self, value: T) -> None:
        self.value = value


def check_devices(config: RunConfig) -> None:
    """Refuse an accelerator or a number of devices that this machine does not have.

    Raises:
        ValueError: ``accelerator`` or ``devices`` cannot be had here.
    """
    try:
        Fabric(accelerator=config.accelerator, devices=config.devices, precision=config.precision)
    except _NOT_THERE as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"accelerator and devices must be there on this machine; got accelerator = {config.accelerator!r}, devices "
            f"= {config.devices} ({reason}). Use --accelerator cpu, or auto for what there is."
        ) from error


def open_device(config: RunConfig) -> Fabric:
    """Return the handle on one device like that of a run, or on what there is if this machine has no such device."""
    try:
        return Fabric(accelerator=config.accelerator, devices=1, precision=config.precision)
    except _NOT_THERE:
        return Fabric(accelerator="auto", devices=1, precision=config.precision)


def launch(config: RunConfig) -> Fabric:
    """Start the processes of a run, if there are to be several, and return the handle on device and precision."""
    strategy: str | Strategy = "auto"
    if config.devices > 1:
        attention = config.style.attention if isinstance(config.style, LabelDecoupledConfig) else None
        # Without its own loss term, learned attention has no part in the steps whose gate is shut.
        grounded = isinstance(attention, LLAMConfig) and attention.grounding != "none" and attention.grounding_weight
        idle = isinstance(attention, LLAMConfig) and attention.diversity_weight == 0 and not grounded
        strategy = DDPStrategy(find_unused_parameters=idle)
    fabric = Fabric(
        accelerator=config.accelerator, devices=config.devices, strategy=strategy, precision=config.precision
    )
    fabric.launch()
    return fabric


class Processes:
    """Communication between the processes of a run; with one process nothing is sent.

    Args:
        fabric: A launched Fabric.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.rank, self.world, self.device = fabric.global_rank, fabric.world_size, fabric.device

    @property
    def first(self) -> bool:
        """Whether this process writes the files and shows the progress."""
        return self.rank == 0

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate equally long tensors of all processes along the first dimension, in their order."""
        if self.world == 1:
            return tensor
        sent = tensor.byte() if tensor.dtype == torch.bool else tensor  # the backends have no booleans
        sent = sent.contiguous().to(self.device)
        received = [torch.empty_like(sent) for _ in range(self.world)]
        torch.distributed.all_gather(received, sent)
        return torch.cat(received).to(tensor.device, tensor.dtype)

    def mean(self, value: Tensor) -> float:
        """Average a number over the processes."""
        return float(self.gather(value.detach().double().reshape(1)).mean())

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether any process raised it, the same in all of them."""
        if self.world == 1:
            return flags
        raised = self.gather(torch.tensor([flags]))
        return tuple(bool(flag) for flag in raised.any(dim=0))

    def part(self, count: int) -> NDArray[np.int64]:
        """Return this process's part of ``count`` items; all parts are equally long, so some items come twice."""
        size = math.ceil(count / self.world)
        return np.arange(self.rank * size, (self.rank + 1) * size) % count

    def agree_on_buffers(self, module: nn.Module) -> None:
        """Give all processes the first one's running statistics, which differ by the last batch."""
        if self.world > 1:
            for buffer in module.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def wait(self) -> None:
        """Wait until all processes have come this far."""
        self._fabric.barrier()

    def close(self) -> None:
        """Leave the group of processes."""
        if self.world > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def synchronize_batchnorm(backbone: nn.Module, config: RunConfig, device: torch.device) -> nn.Module:
    """Let BatchNorm see the global batch, where the backend can: on CUDA. On the CPU each process normalises its part.

    Args:
        backbone: A timm network.
        config: Settings of the run.
        device: Where it runs.
    """
    if config.devices == 1 or device.type != "cuda":
        return backbone
    from timm.layers import convert_sync_batchnorm

    converted: nn.Module = convert_sync_batchnorm(backbone)
    return converted
