"""The end of a run: the selected model, its thresholds and scores, and the files that hold them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from ldstyle.evaluation.attention.maps import localize_sources
from ldstyle.evaluation.predict import PREDICTIONS, Predictions, pool_batches, predict_pool, write_predictions
from ldstyle.evaluation.style_statistics import labelled_batches, source_style_statistics
from ldstyle.nn.backbones.probe import evaluating
from ldstyle.runs.backbone import preprocessing
from ldstyle.runs.checkpoint import PREVIOUS
from ldstyle.runs.config import RunConfig
from ldstyle.runs.folder import close_run, run_folder
from ldstyle.runs.model_file import save_model
from ldstyle.runs.normalized_net import NormalizedNet
from ldstyle.runs.processes import Processes
from ldstyle.runs.record import RunRecord, git_commit, peak_memory_mb, read_record, versions
from ldstyle.runs.settings import settings_of
from ldstyle.runs.sources import SourceData
from ldstyle.runs.weights import ATTENTION, load_attention, save_attention
from ldstyle.seeding import Streams
from ldstyle.training.state import TrainingState
from ldstyle.training.stopping import SELECTION
from ldstyle.training.swad import reestimate_batchnorm

SWAD_SELECTION = "SWAD on mean source-validation loss"
NO_VALLEY = "weights of the last SWAD segment: no valley of the mean source-validation loss"

_log = logging.getLogger(__name__)


def finish(
    config: RunConfig, state: TrainingState, data: SourceData, network: NormalizedNet, fabric: Fabric
) -> RunRecord:
    """Write the selected model, its predictions on the sources' held-back parts, and the record; then mark it done."""
    folder, processes = run_folder(config), Processes(fabric)
    epoch = _select(config, state, data, network, fabric)
    batch_size = config.optimizer.batch_size
    validation, test = (
        predict_pool(network, part, fabric, batch_size=batch_size, untrained_labels=data.untrained_labels)
        for part in (data.validation, data.test)
    )
    if processes.first:
        thresholds = validation.thresholds()
        save_model(
            folder,
            state.backbone,
            name=config.method,
            vocabulary=data.vocabulary,
            thresholds=thresholds,
            preprocessing=preprocessing(state.backbone),
            size=config.data.size,
            sources=config.data.sources,
            untrained_labels=data.untrained_labels,
            source_gsd=data.gsd,
            image_format=data.image_format,
            backbone_config=config.backbone,
            extra=source_style_statistics(
                network,
                labelled_batches(data.train, batch_size=batch_size),
                held_back=labelled_batches(data.validation, batch_size=batch_size),
                image_size=config.data.size,
            ),
        )
        if state.swad is None:  # averaged weights have no attention of their own
            save_attention(folder, state.best_attention)
        write_predictions(folder / PREDICTIONS, {"validation": validation, "test": test})
        attention = _judge_attention(folder, config, data, network)
        record = _record(config, state, data, validation, test, thresholds, epoch, attention, processes.device)
        close_run(folder, record)
        (folder / PREVIOUS).unlink(missing_ok=True)
    processes.wait()
    return read_record(folder)


def _select(config: RunConfig, state: TrainingState, data: SourceData, network: NormalizedNet, fabric: Fabric) -> int:
    """Put the selected weights into the backbone and return the epoch they are of."""
    if state.swad is None:
        assert state.stopping.best is not None
        state.backbone.load_state_dict(state.best)
        return state.stopping.best.epoch
    state.swad.write(state.backbone)
    if not state.swad.valley.found and fabric.global_rank == 0:
        count = len(state.swad.valley.losses)
        _log.warning(
            f"SWAD found no valley in {count} validation losses, so it averages the last segment alone. Validate more "
            "often (swad.evaluate_every, in steps), or train for longer."
        )
    # Whole batches of mixed domains, as in training.
    order = Streams(config.seed)["batchnorm"].permutation(len(data.train))
    batch_size = config.optimizer.batch_size
    whole = order[: max(batch_size, len(order) // batch_size * batch_size)]
    batches = pool_batches(data.train, whole, batch_size=batch_size)
    with fabric.autocast():
        reestimate_batchnorm(network, (batch.images for batch in batches))
    return state.segment_epochs[state.swad.valley.judged - 1]


def _judge_attention(
    folder: Path, config: RunConfig, data: SourceData, network: NormalizedNet
) -> dict[str, Any] | None:
    """Compare the maps of the selected model with the masks of the sources."""
    net = None
    with evaluating(network):
        if (folder / ATTENTION).is_file():
            num_labels = len(data.vocabulary)
            net = load_attention(folder, network.backbone, config, num_labels=num_labels).to(network.device)
        return localize_sources(network, net, data, batch_size=config.optimizer.batch_size)


def _record(
    config: RunConfig,
    state: TrainingState,
    data: SourceData,
    validation: Predictions,
    test: Predictions,
    thresholds: Tensor,
    epoch: int,
    attention: dict[str, Any] | None,
    device: torch.device,
) -> RunRecord:
    row = state.history[epoch - 1]
    return RunRecord(
        method=config.method,
        sources=config.data.sources,
        seed=config.seed,
        scores={"validation": validation.scores(thresholds), "source_test": test.scores(thresholds)},
        thresholds=dict(zip(data.vocabulary, thresholds.tolist(), strict=True)),
        selected_epoch=epoch,
        selected_warmup_weight=row["pathway"],
        epochs_run=len(state.history),
        selection=_selection(state),
        splits={split.domain: split.digest for split in data.splits},
        data=data.train.contents,
        vocabulary=data.vocabulary,
        config=settings_of(config),
        versions=versions(),
        git_commit=git_commit(),
        wall_seconds=state.seconds,
        peak_memory_mb=peak_memory_mb(device),
        localization=row["localization"],
        untrained_labels=data.untrained_labels,
        threshold_samples=validation.threshold_samples(),
        labels_mixed=[row["labels_mixed"] for row in state.history if "labels_mixed" in row] or None,
        strength=_by_point(state.history, "strength"),
        locations=_by_point(state.history, "locations"),
        attention=attention,
        valley=_valley(state),
        gsd=data.gsd,
    )


def _selection(state: TrainingState) -> str:
    if state.swad is None:
        return SELECTION
    return SWAD_SELECTION if state.swad.valley.found else NO_VALLEY


def _valley(state: TrainingState) -> dict[str, Any] | None:
    if state.swad is None:
        return None
    valley = state.swad.valley
    assert valley.start is not None
    first, last = valley.start, valley.judged - 1
    epochs = [state.segment_epochs[first], state.segment_epochs[last]]
    return {
        "found": valley.found,
        "first": first + 1,
        "last": last + 1,
        "segments": len(valley.losses),
        "epochs": epochs,
    }


def _by_point(history: Sequence[Mapping[str, Any]], name: str) -> dict[str, list[float | None]] | None:
    """Return a figure of the epochs as one list per insertion point; ``None`` where no epoch has it."""
    points = sorted({point for row in history for point in row.get(name, {})})
    return {point: [row.get(name, {}).get(point) for row in history] for point in points} or None
