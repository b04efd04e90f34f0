"""The start of a run: the network, its optimizer, and the state before the first step."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric import Fabric
from torch import nn

from ldstyle.config import GradCamConfig, LabelDecoupledConfig
from ldstyle.cpu.dilated import hasten_dilated_convolutions
from ldstyle.data.loading.pool import Pool
from ldstyle.data.loading.sampler import BatchSampler
from ldstyle.nn import attach
from ldstyle.nn.backbones.activation_maps import require_sweep
from ldstyle.runs.backbone import backbone_parameters, build_backbone, head_parameters
from ldstyle.runs.config import OptimizerConfig, RunConfig
from ldstyle.runs.processes import Processes, synchronize_batchnorm
from ldstyle.runs.sources import SourceData
from ldstyle.seeding import Streams, derive_seed
from ldstyle.training.algorithms.base import Algorithm
from ldstyle.training.state import TrainingState
from ldstyle.training.stopping import EarlyStopping
from ldstyle.training.swad import Swad


def build_net(config: RunConfig, data: SourceData, fabric: Fabric) -> nn.Module:
    """Build the backbone, the same for all methods of one seed, with style modules attached if the method has any."""
    num_labels = len(data.vocabulary)
    backbone = build_backbone(
        config.backbone,
        num_labels=num_labels,
        image_size=config.data.size,
        seed=config.seed,
        bands=data.train.channels,
        measured=data.measured,
    )
    backbone = synchronize_batchnorm(backbone, config, fabric.device)
    if fabric.device.type == "cpu":
        hasten_dilated_convolutions(backbone)
    if config.backbone.channels_last:
        # Images need no conversion: a convolution takes the order of its weights.
        backbone = backbone.to(memory_format=torch.channels_last)
    if config.style is None:
        return backbone
    match config.style:
        case LabelDecoupledConfig(attention=GradCamConfig() as attention):
            side = attention.sweep_size(config.data.size)
            if side != config.data.size:  # now, not after the warm-up
                require_sweep(backbone, (side, side), scales=attention.scales)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "style modules"))
        net = attach(
            backbone,
            config.style,
            stages=config.stages,
            num_labels=num_labels,
            num_samples=len(data.train),
            seed=derive_seed(config.seed, "style"),
            image_size=(config.data.size, config.data.size),
        )
    processes = Processes(fabric)
    if processes.world > 1:
        net.distribute(rank=processes.rank, world=processes.world, gather=processes.gather)
    return net


def build_optimizer(
    net: nn.Module, config: OptimizerConfig, algorithm: Algorithm | None = None
) -> torch.optim.Optimizer:
    """Build AdamW with a group each for the backbone, the head and, if it has parameters, the algorithm."""
    groups: list[dict[str, Any]] = [
        {"params": backbone_parameters(net), "lr": config.backbone_lr},
        {"params": head_parameters(net), "lr": config.head_lr},
    ]
    if algorithm is not None and (added := list(algorithm.parameters())):
        groups.append({"params": added, "lr": algorithm.lr_ratio * config.backbone_lr})
    return torch.optim.AdamW(groups, weight_decay=config.weight_decay)


def new_state(
    config: RunConfig,
    data: SourceData,
    net: nn.Module,
    optimizer: Any,
    processes: Processes,
    algorithm: Algorithm | None = None,
) -> TrainingState:
    """Build the state of a run before its first step."""
    _require_enough(data.train, config.optimizer.batch_size)
    streams = Streams(config.seed)
    sampler = BatchSampler(
        data.train.present,
        data.train.domain,
        batch_size=config.optimizer.batch_size,
        generator=streams["sampler"],
        original=data.train.original,
        rank=processes.rank,
        world_size=processes.world,
    )
    swad = None
    if config.swad is not None:
        swad = Swad(
            n_converge=config.swad.n_converge,
            n_tolerance=config.swad.n_tolerance,
            tolerance_ratio=config.swad.tolerance_ratio,
        )
    stopping = EarlyStopping(config.optimizer.patience)
    return TrainingState(net, optimizer, sampler, streams, stopping, swad, processes, data.digests, algorithm)


def _require_enough(pool: Pool, batch_size: int) -> None:
    """Raise if the training images do not fill a batch."""
    if len(pool) < batch_size:
        found = ", ".join(f"{(pool.domain == d).sum()} of {name}" for d, name in enumerate(pool.domains))
        raise ValueError(
            f"Training needs at least a batch of images, optimizer.batch_size = {batch_size}; there are {len(pool)} "
            f"({found}), for a tenth of each domain, and at least one image, goes to validation and to test each. Add "
            f"images, or set optimizer.batch_size to at most {len(pool)}."
        )
