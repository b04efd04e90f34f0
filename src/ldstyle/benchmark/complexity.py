"""Table 9, measured: parameters in training, operations and throughput of the network that is deployed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ldstyle.config import GradCamConfig, LabelDecoupledConfig, LLAMConfig
from ldstyle.nn import attach
from ldstyle.runs.backbone import create_network

FAMILIES: Mapping[str, LabelDecoupledConfig | None] = MappingProxyType(
    {
        "global": None,
        "llam": LabelDecoupledConfig(attention=LLAMConfig()),
        "gradcam": LabelDecoupledConfig(attention=GradCamConfig()),
    }
)
"""Rows of Table 9: plain training and global styles add nothing to the network."""

TITLES = {"global": "ERM / global", "llam": "LD (LLAM)", "gradcam": "LD (Grad-CAM)"}


@dataclass(frozen=True)
class Measured:
    """A row of Table 9.

    Attributes:
        parameters: Parameters in training.
        deployed: Parameters of the network that is deployed.
        macs: Multiply-accumulate operations per image of the deployed network, convolutions and matrix products.
        throughput: Images per second of the deployed network: least, median and most; ``None`` if not measured.
    """

    parameters: int
    deployed: int
    macs: int
    throughput: tuple[float, float, float] | None

    @property
    def added(self) -> float:
        """Fraction of parameters that are there in training only."""
        return self.parameters / self.deployed - 1


def measure_families(
    name: str = "resnet50",
    *,
    num_labels: int = 6,
    size: int = 224,
    stages: tuple[int | str, ...] = (1, 2),
    output_stride: int | None = None,
    batch_size: int = 32,
    repeats: int = 10,
    device: torch.device | str = "cpu",
) -> dict[str, Measured]:
    """Measure every row of Table 9.

    Args:
        name: Name of a timm network.
        num_labels: Number of labels.
        size: Height and width of the images.
        stages: Where style modules are attached.
        output_stride: Pixels per location of the last map; ``None`` is the network's own.
        batch_size: Images per batch in the measurement of throughput.
        repeats: Batches that are timed, after one that is not; 0 leaves throughput out.
        device: Where throughput is measured.

    Returns:
        The rows by family.
    """
    return {
        family: _measure(
            name, style, num_labels=num_labels, size=size, stages=stages, output_stride=output_stride,
            batch_size=batch_size, repeats=repeats, device=torch.device(device),
        )
        for family, style in FAMILIES.items()
    }  # fmt: skip


def count_macs(network: nn.Module, *, size: int) -> int:
    """Count the multiply-accumulate operations of one image, without computing any.

    Args:
        network: The network; it is moved to the meta device.
        size: Height and width of the image.
    """
    on_meta = network.to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        on_meta(torch.empty(1, 3, size, size, device="meta"))
    # A multiply-accumulate is counted as two operations.
    return int(counter.get_total_flops()) // 2


def measure_throughput(
    network: nn.Module, *, size: int, batch_size: int, repeats: int, device: torch.device
) -> tuple[float, float, float]:
    """Return images per second in evaluation mode: least, median and most of ``repeats`` batches."""
    network = network.to(device).eval()
    images = torch.randn(batch_size, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    rates = []
    with torch.inference_mode():
        for _ in range(repeats + 1):
            began = time.perf_counter()
            # Copying the scores to the host makes the device finish.
            network(images).cpu()
            rates.append(batch_size / (time.perf_counter() - began))
    timed = rates[1:]
    return min(timed), median(timed), max(timed)


def _measure(
    name: str,
    style: LabelDecoupledConfig | None,
    *,
    num_labels: int,
    size: int,
    stages: tuple[int | str, ...],
    output_stride: int | None,
    batch_size: int,
    repeats: int,
    device: torch.device,
) -> Measured:
    net: nn.Module = create_network(name, num_labels=num_labels, output_stride=output_stride)
    deployed = net
    if style is not None:
        styled = attach(
            net, style, stages=stages, num_labels=num_labels, num_samples=1, seed=0, image_size=(size, size)
        )
        net, deployed = styled, styled.backbone
    counts = [sum(parameter.numel() for parameter in module.parameters()) for module in (net, deployed)]
    throughput = None
    if repeats:
        throughput = measure_throughput(deployed, size=size, batch_size=batch_size, repeats=repeats, device=device)
    return Measured(counts[0], counts[1], count_macs(deployed, size=size), throughput)
