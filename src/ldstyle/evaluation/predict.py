"""Scores of the plain backbone on held-back source samples, by domain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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

from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.data.loading.pool import Pool
from ldstyle.evaluation.scores import mean_bce, nullable, predict_logits, probabilities, score_table
from ldstyle.files import replace_file
from ldstyle.metrics import average_precision, best_thresholds
from ldstyle.runs.processes import Processes

MIN_SAMPLES = 10
"""Known positives, and negatives, of a label that a threshold is fitted to at least."""

PREDICTIONS = "predictions.safetensors"


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


def predict(
    backbone: nn.Module,
    pool: Pool,
    augmentation: Augmentation,
    fabric: Fabric,
    *,
    batch_size: int,
    untrained_labels: Sequence[str] = (),
) -> Predictions:
    """Run the plain backbone over a pool, un-augmented; the processes share the work and all get the result."""
    processes = Processes(fabric)
    mine = processes.share(len(pool))
    with fabric.autocast():
        images = plain_images(pool, mine, augmentation, fabric.device, batch_size=batch_size)
        logits = predict_logits(backbone, images, device=fabric.device)
    return Predictions(pool, processes.gather(logits)[: len(pool)], untrained_labels)


def plain_images(
    pool: Pool, rows: NDArray[np.int64], augmentation: Augmentation, device: torch.device, *, batch_size: int
) -> Iterator[Tensor]:
    """Yield normalised images without augmentation, (B, 3, S, S) on the device."""
    for start in range(0, len(rows), batch_size):
        yield augmentation.normalise(pool.gather(rows[start : start + batch_size]).images.to(device, non_blocking=True))


def flat_scalars(row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a nested row by their path, for loggers; what is undefined is left out."""
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
