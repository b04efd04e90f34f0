"""The one path from images to logits: validation, search, evaluation, deployment and figures take it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from ldstyle.data.loading.pool import Batch, Pool
from ldstyle.evaluation.scores import mean_bce, nullable, probabilities, score_table
from ldstyle.files import replace_file
from ldstyle.metrics import average_precision, best_thresholds
from ldstyle.nn import InsertionPoint
from ldstyle.nn.backbones.layout import capture, logits_of
from ldstyle.nn.backbones.probe import evaluating
from ldstyle.runs.normalized_net import NormalizedNet
from ldstyle.runs.processes import Processes

MIN_SAMPLES = 10
"""Known positives, and negatives, of a label that a threshold is fitted to at least."""

PREDICTIONS = "predictions.safetensors"


@dataclass(frozen=True, eq=False)
class Outputs:
    """Outputs of a network for N images, on the host, in the order of the images.

    Attributes:
        logits: (N, L) float32.
        style: Channel means, then standard deviations, point by point, (N, F) float32; F = 0 without style points.
    """

    logits: Tensor
    style: Tensor


def predict(model: nn.Module, batches: Iterable[Tensor], *, style_points: Sequence[InsertionPoint] = ()) -> Outputs:
    """Compute logits in eval mode and without gradient; the mode of every submodule is restored.

    Args:
        model: A :class:`NormalizedNet`, which takes pixels on any device, or a network that takes the batches as they
            are.
        batches: Images, (B, C, H, W).
        style_points: Insertion points of the backbone at which style is measured in the same pass.
    """
    backbone = model.backbone if isinstance(model, NormalizedNet) else model
    logits: list[Tensor] = []
    styles: list[Tensor] = []
    with evaluating(model), torch.no_grad():
        for images in batches:
            with capture(backbone, style_points, images, _measure_style) as captured:
                logits.append(logits_of(model(images)).float())
            if captured:
                styles.append(torch.cat([captured[point.name] for point in style_points], dim=1))
    if not logits:
        raise ValueError("`batches` must hold at least one batch of images; got none.")
    # Only now: copying each batch to the host would make the device wait for it.
    found = torch.cat(logits).cpu()
    return Outputs(found, torch.cat(styles).cpu() if styles else torch.empty(len(found), 0))


def _measure_style(_point: InsertionPoint, feats: Tensor) -> Tensor:
    var, mean = torch.var_mean(feats.float(), dim=(2, 3), correction=0)
    return torch.cat([mean, var.sqrt()], dim=1)


def pool_batches(
    pool: Pool, rows: NDArray[np.int64] | None = None, *, batch_size: int, masks: bool = False
) -> Iterator[Batch]:
    """Yield samples of a pool without augmentation, by default all of them, in the order of ``rows``."""
    rows = np.arange(len(pool)) if rows is None else rows
    for start in range(0, len(rows), batch_size):
        yield pool.gather(rows[start : start + batch_size], masks=masks)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits of a pool, on the host.

    Attributes:
        pool: The samples.
        logits: (N, L) float32.
        untrained_labels: Labels without training data. They take no part in any score, and their stored scores are
            NaN.
    """

    pool: Pool
    logits: Tensor
    untrained_labels: Sequence[str] = ()

    @cached_property
    def labels(self) -> Tensor:
        """1 present, 0 absent, -1 unknown or untrained, (N, L)."""
        return torch.from_numpy(self.pool.labels).masked_fill(self._untrained, -1)

    @property
    def _untrained(self) -> Tensor:
        return torch.tensor([name in self.untrained_labels for name in self.pool.vocabulary])

    def by_domain(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return logits and labels of each domain."""
        rows = {name: torch.from_numpy(self.pool.domain == d) for d, name in enumerate(self.pool.domains)}
        return {name: (self.logits[chosen], self.labels[chosen]) for name, chosen in rows.items()}

    @cached_property
    def ap(self) -> dict[str, Tensor]:
        """AP of each label by domain, (L,); NaN without a positive."""
        return {
            name: average_precision(probabilities(logits), labels == 1, labels >= 0)
            for name, (logits, labels) in self.by_domain().items()
        }

    def map_by_domain(self) -> dict[str, float]:
        """Return the mAP of each domain; NaN for one without a positive label."""
        return {name: float(values.nanmean()) for name, values in self.ap.items()}

    def loss(self) -> float:
        """Return the mean over domains of the binary cross-entropy."""
        losses = [mean_bce(*part) for part in self.by_domain().values()]
        return float(torch.tensor(losses, dtype=torch.float64).nanmean())

    def summary(self) -> dict[str, Any]:
        """Return ``map`` (the plain mean over domains), ``loss``, and the AP by domain and by label."""
        per_domain = self.map_by_domain()
        by_label = torch.stack(list(self.ap.values())).nanmean(dim=0)
        return {
            "map": nullable(torch.tensor(list(per_domain.values()), dtype=torch.float64).nanmean()),
            "loss": nullable(self.loss()),
            "per_domain": {name: nullable(value) for name, value in per_domain.items()},
            "ap": {name: nullable(value) for name, value in zip(self.pool.vocabulary, by_label, strict=True)},
        }

    def thresholds(self) -> Tensor:
        """Return the thresholds that maximise each label's F1 on all domains together, (L,) float64.

        A label with fewer than ``MIN_SAMPLES`` known positives or negatives keeps 0.5: the best threshold of a handful
        of samples is chance.
        """
        fitted = best_thresholds(probabilities(self.logits), self.labels == 1, self.labels >= 0)
        counts = self.threshold_samples().values()
        enough = torch.tensor([min(count.values()) >= MIN_SAMPLES for count in counts])
        return torch.where(enough, fitted, 0.5)

    def threshold_samples(self) -> dict[str, dict[str, int]]:
        """Return the known ``positives`` and ``negatives`` of each label."""
        positives, negatives = ((self.labels == value).sum(dim=0).tolist() for value in (1, 0))
        counts = zip(self.pool.vocabulary, positives, negatives, strict=True)
        return {name: {"positives": present, "negatives": absent} for name, present, absent in counts}

    def scores(self, thresholds: Tensor) -> dict[str, Any]:
        """Return the summary with every metric of each domain."""
        tables = {
            name: score_table(probabilities(logits), truth, thresholds, self.pool.vocabulary)
            for name, (logits, truth) in self.by_domain().items()
        }
        return {**self.summary(), "tables": tables}

    def tensors(self, part: str) -> dict[str, Tensor]:
        """Return scores and labels of each domain, named for a file."""
        tensors = {}
        scores = probabilities(self.logits).masked_fill(self._untrained, torch.nan)
        for d, name in enumerate(self.pool.domains):
            rows = self.pool.domain == d
            tensors[f"{part}/{name}/scores"] = scores[torch.from_numpy(rows)]
            tensors[f"{part}/{name}/labels"] = torch.from_numpy(self.pool.labels[rows])
        return tensors


def predict_pool(
    model: NormalizedNet,
    pool: Pool,
    fabric: Fabric,
    *,
    batch_size: int,
    untrained_labels: Sequence[str] = (),
) -> Predictions:
    """Predict all samples of a pool without augmentation; the processes divide the work and all get the result."""
    processes = Processes(fabric)
    mine = processes.part(len(pool))
    with fabric.autocast():
        outputs = predict(model, (batch.images for batch in pool_batches(pool, mine, batch_size=batch_size)))
    return Predictions(pool, processes.gather(outputs.logits)[: len(pool)], untrained_labels)


def flat_scalars(row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a nested row by their path, for loggers; undefined values are left out."""
    scalars: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            scalars |= flat_scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            scalars[f"{prefix}{key}"] = float(value)
    return scalars


def write_predictions(path: Path, parts: dict[str, Predictions]) -> None:
    """Write scores and labels as ``PART/DOMAIN/scores`` and ``PART/DOMAIN/labels``; the samples' keys are metadata."""
    tensors: dict[str, Tensor] = {}
    keys: dict[str, list[str]] = {}
    for part, predictions in parts.items():
        tensors |= predictions.tensors(part)
        pool = predictions.pool
        for d, name in enumerate(pool.domains):
            keys[f"{part}/{name}"] = [pool.keys[row] for row in np.flatnonzero(pool.domain == d)]
    content = save(tensors, metadata={"keys": json.dumps(keys)})
    replace_file(path, lambda file: file.write(content), shared=True)
