"""Training algorithms that a run may combine with its style: from their settings to an algorithm."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.data.loading.pool import Pool
from ldstyle.nn import StyledNet, analyse_head
from ldstyle.nn.backbones.insertion import resolve_points
from ldstyle.runs import algorithms as configs
from ldstyle.runs.config import RunConfig
from ldstyle.runs.processes import Processes
from ldstyle.training.algorithms.base import Algorithm, LabelLoss
from ldstyle.training.algorithms.mixing import Fact, Mixup
from ldstyle.training.algorithms.objectives import Coral, GroupDro, Miro
from ldstyle.training.algorithms.optimization import ErmPlusPlus, Sagm


def build_algorithm(
    config: RunConfig, net: nn.Module, train: Pool, augmentation: Augmentation, processes: Processes
) -> Algorithm:
    """Build the algorithm of a run.

    Args:
        config: Settings of the run.
        net: Styled network or plain backbone, with its initial weights.
        train: Training samples.
        augmentation: How images are normalised.
        processes: The processes of the run.
    """
    backbone = net.backbone if isinstance(net, StyledNet) else net
    size = (config.data.size, config.data.size)
    match config.algorithm:
        case None:
            return Algorithm()
        case configs.FactConfig() as chosen:
            return Fact(chosen, augmentation, processes)
        case configs.MixupConfig() as chosen:
            return Mixup(chosen, processes)
        case configs.CoralConfig() as chosen:
            return Coral(chosen, analyse_head(backbone, image_size=size))
        case configs.MiroConfig() as chosen:
            points = resolve_points(backbone, chosen.stages, image_size=size)
            return Miro(chosen, backbone, points, processes.device)
        case configs.GroupDroConfig() as chosen:
            return GroupDro(chosen, len(train.domains), processes)
        case configs.SagmConfig() as chosen:
            return Sagm(chosen, net)
        case configs.ErmPlusPlusConfig() as chosen:
            return ErmPlusPlus(chosen, net, averages=config.swad is None)


def build_loss(config: configs.LossConfig | None, train: Pool) -> LabelLoss | None:
    """Build the classification loss of a run; ``None`` is the mean binary cross-entropy."""
    if config is None:
        return None
    balance = _balance(train) if config.class_balanced else torch.ones(len(train.vocabulary))
    match config:
        case configs.CrossEntropyConfig():
            return LabelLoss(balance)
        case configs.FocalConfig(gamma=gamma, alpha=alpha):
            return LabelLoss(alpha * balance, negative_weight=1 - alpha, gamma_positive=gamma, gamma_negative=gamma)
        case configs.AsymmetricConfig(gamma_positive=positive, gamma_negative=negative, margin=margin):
            return LabelLoss(balance, gamma_positive=positive, gamma_negative=negative, margin=margin)


def _balance(train: Pool) -> torch.Tensor:
    """Return absent / present of each label in the training set, (L,); 1 for a label without either."""
    present, absent = ((train.labels == value).sum(axis=0) for value in (1, 0))
    balanced = (present > 0) & (absent > 0)
    return torch.from_numpy(np.where(balanced, absent / np.maximum(present, 1), 1.0).astype(np.float32))
