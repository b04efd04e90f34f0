"""Warnings of runs that differ from what their settings suggest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from ldstyle.config import LabelDecoupledConfig
from ldstyle.nn import StyledNet
from ldstyle.runs.algorithms import MiroConfig
from ldstyle.runs.config import RunConfig, mixes_domains
from ldstyle.runs.sources import SourceData

POINT, FLAT = 0.02, 0.98
"""Fractions of a map's locations outside which attention is nearly a point or nearly uniform."""


def label_caveats(data: SourceData) -> Iterator[str]:
    """Yield a sentence on labels that cannot be learned from the training samples."""
    labels = data.train.labels
    if data.untrained_labels:
        yield (
            f"No training image has an annotation of {', '.join(data.untrained_labels)}: such labels are not trained, "
            "are predicted as unknown (NaN), and are left out of all scores. Annotate some, or drop their columns."
        )
    absent = (labels >= 0).any(axis=0) & (labels < 1).all(axis=0)
    never = [data.vocabulary[label] for label in np.flatnonzero(absent)]
    if never:
        yield f"No training image has {', '.join(never)}: the model learns that such labels are always absent."


def algorithm_caveats(config: RunConfig) -> Iterator[str]:
    """Yield a sentence on an algorithm whose settings leave it without its meaning."""
    if isinstance(config.algorithm, MiroConfig) and config.backbone.weights == "none":
        yield (
            "MIRO keeps features close to those of the pretrained network, and there is none: backbone.weights = "
            "'none' starts at random. Choose pretrained weights, or another algorithm."
        )


def path_caveats(config: RunConfig, data: SourceData) -> Iterator[str]:
    """Yield a sentence for each reason that keeps the per-label path from ever running."""
    style, epochs = config.style, config.optimizer.epochs
    if not isinstance(style, LabelDecoupledConfig) or style.gate_prob == 0:
        return
    if style.warmup_epochs >= epochs:
        yield (
            f"The per-label path never runs: style.warmup_epochs = {style.warmup_epochs} is not shorter than "
            f"optimizer.epochs = {epochs}, so that {config.method} trains as its global operator. Shorten the warm-up."
        )
    if not mixes_domains(style):
        return
    samples = config.optimizer.batch_size // config.devices
    if samples < 2:
        yield (
            "The per-label path never mixes: a process has one sample per step, which has no partner. Raise "
            f"optimizer.batch_size = {config.optimizer.batch_size} to at least {2 * config.devices}."
        )
    train = data.train
    domains = [train.present[train.domain == number].any(axis=0) for number in range(len(train.domains))]
    if not (np.sum(domains, axis=0) > 1).any():
        yield (
            f"The per-label path never mixes: no label is present in the training images of two of the domains "
            f"{', '.join(train.domains)}. Choose sources that share labels, or a label map."
        )


def idle_caveat(net: nn.Module, history: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a sentence after the first epoch beyond the warm-up in which modules fired and no label was mixed.

    Args:
        net: The network.
        history: Metrics of the epochs so far.
    """
    style = net.style if isinstance(net, StyledNet) else None
    if not isinstance(style, LabelDecoupledConfig):
        return None
    epochs = [
        row["epoch"]
        for row in history
        if row["epoch"] > style.warmup_epochs and row["fired"] > 0 and row.get("labels_mixed") == 0
    ]
    if epochs != [history[-1]["epoch"]]:
        return None
    assert isinstance(net, StyledNet)
    if net.cams is not None and not net.cams.ready:
        reason = f"no maps are cached yet (style.attention.refresh = {getattr(style.attention, 'refresh', None)!r})"
    elif net.cams is not None:
        reason = "no sample had both a usable cached map and a partner of another domain that shares a label"
    else:
        reason = "no sample had a partner of another domain that shares a label"
    return f"The per-label path mixed no label in epoch {epochs[0]}, although the warm-up is over: {reason}."


def attention_caveat(history: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a sentence after the first epoch beyond the warm-up whose maps are nearly points or nearly uniform.

    Args:
        history: Metrics of the epochs so far.
    """
    extreme = [row for row in history if row.get("pathway") == 1 and any(_extreme_points(row))]
    if not extreme or extreme != [history[-1]]:
        return None
    row = extreme[0]
    listed = ", ".join(f"{100 * row['locations'][point]:.1f} % at {point}" for point in _extreme_points(row))
    return (
        f"Attention hardly localizes the labels: a median map has an effective {listed} of its locations "
        f"in epoch {row['epoch']} (between {100 * POINT:.0f} and {100 * FLAT:.0f} % are usual). Judge the maps by "
        "`ldstyle attention`, and change style.attention."
    )


def _extreme_points(row: Mapping[str, Any]) -> list[str]:
    known = {point: value for point, value in (row.get("locations") or {}).items() if value is not None}
    return [point for point, value in known.items() if value < POINT or value > FLAT]
