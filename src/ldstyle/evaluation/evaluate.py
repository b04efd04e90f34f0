"""Scores of a finished run on a domain it never saw."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from ldstyle.data.domains.scene_table import Progress, SceneTable, file_stem
from ldstyle.data.loading.pool import Pool
from ldstyle.data.loading.splits import split_domain
from ldstyle.evaluation.attention.maps import localize_learned, localize_predictions
from ldstyle.evaluation.predict import PREDICTIONS, Predictions, predict_pool, write_predictions
from ldstyle.evaluation.scores import nullable, probabilities, score_table
from ldstyle.files import replace_text
from ldstyle.metrics import expected_calibration_error, fit_temperature
from ldstyle.runs.config import RunConfig
from ldstyle.runs.folder import CONFIG, is_done
from ldstyle.runs.model_file import LoadedModel, load_model
from ldstyle.runs.processes import open_device
from ldstyle.runs.settings import load_config
from ldstyle.runs.sources import read_tables
from ldstyle.runs.weights import ATTENTION, load_attention, load_epochs, set_attention

SCHEMA = 1
EVALUATIONS = "evaluations"

_LEAST = 1e-15
"""Distance from 0 and 1 that stored scores keep when they become logits again."""


def evaluate(
    run_dir: Path | str, *, domain: str, root: Path | str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Score the model of a run on a domain, and keep scores and predictions in the run's folder.

    Nothing is fitted to the domain: thresholds are those of the sources.

    Args:
        run_dir: Folder of a finished run.
        domain: Name of the domain.
        root: Data folder; by default the one the run was trained from.
        progress: Called as a cache is built.

    Returns:
        The content of ``evaluations/DOMAIN.json``: the scores on the domain's test part (the paper's number) and on all
        of it, and the calibration error of each label on both, before and after temperature scaling on source
        validation. For a source domain, whose other parts were trained on, only the former, and attention is judged on
        its validation and test parts. If the run kept the weights of its epochs, the same of each under ``epochs``.
    """
    folder = Path(run_dir).expanduser()
    if not is_done(folder):
        raise FileNotFoundError(f"'{folder}' is not a finished run. Finish it by `ldstyle train` first.")
    config = load_config(folder / CONFIG)
    model = load_model(folder)
    table = read_domain(config, model, domain, Path(root or config.data.root).expanduser())
    split = split_domain(table, seed=config.seed)
    cache_dir = Path(config.data.cache_dir).expanduser()
    pool = Pool([table], size=model.size, cache_dir=cache_dir, progress=progress, image_format=model.image_format)
    fabric = open_device(config)
    network = model.network_on(fabric.device)
    batch_size = config.optimizer.batch_size

    def predicted() -> Predictions:
        unknown = model.untrained_labels
        return predict_pool(network, pool, fabric, batch_size=batch_size, untrained_labels=unknown)

    predictions = predicted()
    styled = None
    if (folder / ATTENTION).is_file():
        styled = load_attention(folder, network.backbone, config, num_labels=len(model.vocabulary)).to(fabric.device)
    looked = pool  # the training part of a source would give too high scores
    if domain in config.data.sources:
        held_out = np.sort(np.concatenate([split.validation, split.test]))
        looked = Pool([table], [held_out], size=model.size, cache_dir=cache_dir, image_format=model.image_format)
    parts = {"test": split.test, "all": None if domain in config.data.sources else np.arange(len(pool))}

    def look(predictions: Predictions) -> dict[str, Any]:
        """Score the network in its present state on the domain, and localize its maps."""
        return {
            "scores": {
                part: None if rows is None else _scores(predictions, rows, model) for part, rows in parts.items()
            },
            "localization": localize_predictions(network, [looked], batch_size=batch_size),
            "attention": None
            if styled is None
            else localize_learned(styled, [looked], network.normalise, batch_size=batch_size),
        }

    result = {
        "schema": SCHEMA,
        "domain": domain,
        "split_digest": split.digest,
        "data_digest": pool.contents[domain],
        "vocabulary": list(model.vocabulary),
        "untrained_labels": list(model.untrained_labels),
        "thresholds": dict(zip(model.vocabulary, model.thresholds.tolist(), strict=True)),
        **look(predictions),
        "calibration": _calibration(folder, predictions, parts),
    }
    result["epochs"] = []
    for epoch, weights, attention in load_epochs(folder):  # last, since they replace the weights of the model
        network.backbone.load_state_dict(weights)
        if styled is not None:
            set_attention(styled, attention)
        row = look(predicted())
        result["epochs"].append({"epoch": epoch, **row})
    write_predictions(folder / f"predictions-{file_stem(domain)}.safetensors", {"all": predictions})
    (folder / EVALUATIONS).mkdir(exist_ok=True)
    replace_text(folder / EVALUATIONS / f"{file_stem(domain)}.json", json.dumps(result, indent=1) + "\n", shared=True)
    return result


def read_domain(config: RunConfig, model: LoadedModel, domain: str, root: Path) -> SceneTable:
    """Read a domain into the labels of a run's model."""
    (table,) = read_tables(config.data, [domain], root=root, vocabulary=model.vocabulary)
    if table.vocabulary != model.vocabulary:
        raise ValueError(
            f"The labels of {domain!r} must be those of the model, {list(model.vocabulary)}; the label map gives "
            f"{list(table.vocabulary)}."
        )
    return table


def _scores(predictions: Predictions, rows: NDArray[np.int64], model: LoadedModel) -> dict[str, Any]:
    chosen = torch.from_numpy(rows)
    scores = probabilities(predictions.logits[chosen])
    return score_table(scores, predictions.labels[chosen], model.thresholds, model.vocabulary)


def _calibration(
    folder: Path, predictions: Predictions, parts: Mapping[str, NDArray[np.int64] | None]
) -> dict[str, Any]:
    temperature, vocabulary = source_temperature(folder), predictions.pool.vocabulary
    judged: dict[str, Any] = {"temperature": temperature}
    for part, rows in parts.items():
        judged[part] = None
        if rows is not None:
            logits, labels = (values[torch.from_numpy(rows)] for values in (predictions.logits, predictions.labels))
            judged[part] = calibration_table(logits, labels, vocabulary, temperature=temperature)
    return judged


def source_temperature(folder: Path) -> float:
    """Fit the temperature of a finished run to the stored predictions of its sources' validation parts."""
    stored = load_file(folder / PREDICTIONS)
    wanted = [name for name in stored if name.startswith("validation/") and name.endswith("/scores")]
    names = [name.removesuffix("/scores") for name in sorted(wanted)]
    scores, labels = (torch.cat([stored[f"{name}/{kind}"] for name in names]) for kind in ("scores", "labels"))
    return fit_temperature(scores.logit(eps=_LEAST), labels == 1, labels >= 0)


def calibration_table(
    logits: Tensor, labels: Tensor, vocabulary: tuple[str, ...], *, temperature: float
) -> dict[str, dict[str, float | None]]:
    """Compute the expected calibration error of each label, ready for JSON.

    Args:
        logits: Logits, (N, L).
        labels: 1 present, 0 absent, -1 unknown, (N, L).
        vocabulary: Names of the L labels.
        temperature: What logits are divided by.

    Returns:
        ``before`` and ``after`` scaling: the error by label, ``None`` for a label that is known nowhere.
    """
    table: dict[str, Any] = {}
    for name, scaled in (("before", logits.double()), ("after", logits.double() / temperature)):
        errors = expected_calibration_error(probabilities(scaled), labels == 1, labels >= 0)
        table[name] = {label: nullable(error) for label, error in zip(vocabulary, errors, strict=True)}
    return table
