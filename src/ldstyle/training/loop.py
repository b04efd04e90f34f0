"""The training loop, from top to bottom."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from ldstyle.config import GradCamConfig, LabelDecoupledConfig
from ldstyle.cpu.memory import keep_freed_memory
from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.evaluation.attention.maps import localize_attention
from ldstyle.evaluation.predict import Predictions, flat_scalars, pool_batches, predict_pool
from ldstyle.files import replace_text
from ldstyle.nn import StyledNet
from ldstyle.progress import Display, open_display
from ldstyle.runs.backbone import preprocessing
from ldstyle.runs.checkpoint import CheckpointWriter, load_checkpoint
from ldstyle.runs.config import OptimizerConfig, RunConfig
from ldstyle.runs.folder import METRICS, is_done, open_run, run_folder, sole_writer
from ldstyle.runs.interruption import Interrupted, Interruption
from ldstyle.runs.normalized_net import NormalizedNet
from ldstyle.runs.processes import Processes, check_devices, launch
from ldstyle.runs.record import RunRecord
from ldstyle.runs.sources import SourceData, open_sources
from ldstyle.runs.weights import save_epoch
from ldstyle.seeding import derive_seed
from ldstyle.training.algorithms import build_algorithm, build_loss
from ldstyle.training.build import build_net, build_optimizer, new_state
from ldstyle.training.caveats import algorithm_caveats, attention_caveat, idle_caveat, label_caveats, path_caveats
from ldstyle.training.finish import finish
from ldstyle.training.loggers import open_logger
from ldstyle.training.state import TrainingState, averages, plain
from ldstyle.training.step import KNOWN, BatchSource, StyledLoss
from ldstyle.training.stopping import selection_score
from ldstyle.training.stored_maps import fill_maps

_log = logging.getLogger(__name__)

LOOK_EVERY = 10
"""Steps after which several processes, or a device that should not wait, look at the loss and at requests to stop."""


def fit(config: RunConfig) -> RunRecord:
    """Train a model on the source domains, or resume a run that was stopped.

    Called again with the same config, a stopped run resumes with the step after its last checkpoint and a finished
    one returns its record. On the CPU a resumed run ends bit for bit as an uninterrupted one.

    Args:
        config: All settings.

    Returns:
        The record of the finished run, as in ``record.json`` of its folder.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
        ValueError: The folder holds a run with other settings, the device is not there, or the loss is no longer
            finite.
        OSError: The disk is full; the last checkpoint is untouched.
    """
    if not is_done(run_folder(config)):
        check_devices(config)  # before anything is written
    finished = open_run(config)
    if finished is not None:
        return finished
    fabric = launch(config)
    first = fabric.global_rank == 0
    if fabric.device.type == "cpu":
        keep_freed_memory()
    with ExitStack() as stack:
        stack.enter_context(sole_writer(run_folder(config)) if first else nullcontext())
        display = stack.enter_context(open_display(quiet=config.quiet or not first))
        interruption = stack.enter_context(Interruption())
        stack.enter_context(_own_torch_stream(config, fabric))
        stack.callback(Processes(fabric).close)
        checkpoints = stack.enter_context(CheckpointWriter(run_folder(config)))
        return _train(config, fabric, display, interruption, checkpoints)


def _train(
    config: RunConfig, fabric: Fabric, display: Display, interruption: Interruption, checkpoints: CheckpointWriter
) -> RunRecord:
    folder, processes = run_folder(config), Processes(fabric)

    def prepare(done: int, total: int, what: str) -> None:
        display.work(done, total, what)
        if interruption.requested:
            raise Interrupted("Stopped while the images were prepared; the same command starts again.")

    data = open_sources(config.data, seed=config.seed, progress=prepare)
    caveats = (*label_caveats(data), *path_caveats(config, data), *algorithm_caveats(config))
    for sentence in caveats if processes.first else ():
        _log.warning(sentence)
    net = build_net(config, data, fabric)
    channels = preprocessing(plain(net))
    augmentation = Augmentation(mean=channels.mean, std=channels.std)
    network = NormalizedNet(plain(net), channels, fused=True).to(fabric.device)
    algorithm = build_algorithm(config, net, data.train, augmentation, processes)
    model, optimizer = fabric.setup(
        StyledLoss(net, algorithm, build_loss(config.loss, data.train)),
        build_optimizer(net, config.optimizer, algorithm),
    )
    state = new_state(config, data, net, optimizer, processes, algorithm)
    source = BatchSource(data.train, augmentation, state.streams["augmentation"], processes)
    checkpoint = load_checkpoint(folder)
    if checkpoint is not None:
        state.load_state_dict(checkpoint)
        display.say(f"Resuming in epoch {state.epoch}, after step {state.step}.")
    fill_maps(net, data, config, fabric, display=display, stop=lambda: interruption.requested)
    steps = config.optimizer.steps_per_epoch or len(state.sampler)
    logger = open_logger(config, folder) if processes.first else None
    for row in state.history if logger else ():
        logger.log_metrics(flat_scalars(row), step=row["epoch"])  # type: ignore[union-attr]
    planned = config.optimizer.epochs * steps
    display.begin(epochs=config.optimizer.epochs, steps=steps, done=(state.epoch - 1) * steps + state.step)
    batches, clip_norm, saved_at = state.batches(), config.optimizer.clip_norm, time.monotonic()

    while not state.finished:
        if state.step == 0:
            if isinstance(net, StyledNet) and net.refresh_due(state.epoch - 1):
                _refresh_maps(net, data, network, fabric, batch_size=config.optimizer.batch_size)
            state.begin_epoch()
        set_learning_rates(optimizer, config.optimizer, state.epoch, added=algorithm.lr_ratio)
        settled = averages(net, state.pathway, config.optimizer.epochs)
        last = state.epoch == config.optimizer.epochs
        # Cached attention may never switch on, where no map is kept: the last epoch then stands for the valley.
        averaging = state.swad is not None and (settled or last)

        model.train()
        while state.step < steps:
            done = (state.epoch - 1) * steps + state.step
            images, truth = algorithm.mix(*source.load(next(batches), epoch=state.epoch), state.streams)
            scalars = algorithm.backward(fabric, model, images, truth, done=done / planned)
            norm = fabric.clip_gradients(model, optimizer, max_norm=clip_norm, error_if_nonfinite=False)
            assert norm is not None
            optimizer.step()
            optimizer.zero_grad()
            algorithm.after_step(net, done=(done + 1) / planned, settled=settled)
            state.step += 1
            state.add({**scalars, "grad_norm": norm})
            if averaging:
                state.swad.step(state.backbone)  # type: ignore[union-attr]
                if _segment_ends(config, state, steps):
                    _close_segment(state, _validate(config, data, network, fabric))

            display.step(state.epoch, state.step, scalars["loss"])
            if state.step % LOOK_EVERY == 0 or (processes.world == 1 and processes.device.type == "cpu"):
                _require_finite(state, folder)
                due = time.monotonic() - saved_at >= 60 * config.checkpoint_minutes
                stop, due = processes.any(interruption.requested, due)
                if stop or due:
                    _save(state, folder, processes, checkpoints)
                    saved_at = time.monotonic()
                if stop:
                    raise Interrupted(f"Stopped in epoch {state.epoch} after step {state.step}; all of it is saved.")

        _require_finite(state, folder)
        processes.agree_on_buffers(state.backbone)
        with algorithm.predicting(net):
            predictions = _validate(config, data, network, fabric)
            if averaging and _epoch_closes_segment(config, state, last=last):
                _close_segment(state, predictions)
            if config.keep_epochs and processes.first:
                save_epoch(folder, state.epoch, net, state.backbone)
            row = _judge(config, state, data, predictions, network, processes)
        display.epoch(row)
        for caveat in (idle_caveat(net, state.history), attention_caveat(state.history)):
            if caveat is not None and processes.first:
                _log.warning(caveat)
        if logger is not None:
            logger.log_metrics(flat_scalars(row), step=row["epoch"])
            logger.save()
        _save(state, folder, processes, checkpoints)
        saved_at = time.monotonic()
        if processes.any(interruption.requested)[0] and not state.finished:
            raise Interrupted(f"Stopped after epoch {state.epoch - 1}; all of it is saved.")

    if logger is not None:
        logger.finalize("success")
    checkpoints.wait()
    return finish(config, state, data, network, fabric)


def set_learning_rates(
    optimizer: torch.optim.Optimizer, config: OptimizerConfig, epoch: int, *, added: float = 1.0
) -> None:
    """Let the learning rates fall by a cosine, from their start in epoch 1 towards ``min_lr`` after the last.

    Args:
        optimizer: Has a group each for the backbone, the head and perhaps the algorithm.
        config: Learning rates and epochs.
        epoch: Number of the epoch, from 1.
        added: Learning rate of the algorithm's parameters relative to the backbone's.
    """
    factor = (1 + math.cos(math.pi * (epoch - 1) / config.epochs)) / 2
    starts = (config.backbone_lr, config.head_lr, added * config.backbone_lr)
    for group, start in zip(optimizer.param_groups, starts, strict=False):
        group["lr"] = config.min_lr + (start - config.min_lr) * factor


def _refresh_maps(net: StyledNet, data: SourceData, network: NormalizedNet, fabric: Fabric, *, batch_size: int) -> None:
    """Rebuild the cached maps from the un-augmented training set; the processes divide the work."""
    mine = Processes(fabric).part(len(data.train))
    assert isinstance(net.style, LabelDecoupledConfig)
    assert isinstance(net.style.attention, GradCamConfig)
    size = net.style.attention.sweep_size(data.train.size)
    pool = data.train if size == data.train.size else data.train_at(size)
    batches = pool_batches(pool, mine, batch_size=batch_size)
    with fabric.autocast():
        net.refresh((network.normalise(batch.images), batch.present, batch.index) for batch in batches)


def _validate(config: RunConfig, data: SourceData, network: NormalizedNet, fabric: Fabric) -> Predictions:
    Processes(fabric).agree_on_buffers(network.backbone)
    return predict_pool(
        network,
        data.validation,
        fabric,
        batch_size=config.optimizer.batch_size,
        untrained_labels=data.untrained_labels,
    )


def _segment_ends(config: RunConfig, state: TrainingState, steps: int) -> bool:
    every = None if config.swad is None else config.swad.evaluate_every
    return every is not None and ((state.epoch - 1) * steps + state.step) % every == 0


def _epoch_closes_segment(config: RunConfig, state: TrainingState, *, last: bool) -> bool:
    """Whether a segment ends with the epoch: each epoch's by default, and an only one with the run."""
    assert config.swad is not None
    assert state.swad is not None
    return config.swad.evaluate_every is None or (last and not state.swad.valley.losses)


def _close_segment(state: TrainingState, predictions: Predictions) -> None:
    assert state.swad is not None
    if not state.swad.ended:
        state.swad.close(predictions.loss())
        state.segment_epochs.append(state.epoch)


def _judge(
    config: RunConfig,
    state: TrainingState,
    data: SourceData,
    predictions: Predictions,
    network: NormalizedNet,
    processes: Processes,
) -> dict[str, Any]:
    """Score the epoch, keep its model if it is the best, and decide whether training is over."""
    summary = predictions.summary()
    score = selection_score(predictions.map_by_domain())
    if state.stopping.update(score, epoch=state.epoch, warmup_weight=state.pathway):
        state.keep_best()
    best = state.stopping.best
    assert best is not None
    localization = localize_attention(state.net, data, network.normalise, batch_size=config.optimizer.batch_size)
    row = {
        "epoch": state.epoch,
        "steps": state.step,
        **_epoch_means(state, processes),
        "learning_rates": [group["lr"] for group in state.optimizer.param_groups],
        "pathway": state.pathway,
        "validation": summary,
        "best": best.score,
        "best_epoch": best.epoch,
        "localization": localization,
        "seconds": state.seconds,
    }
    over = state.stopping.should_stop if state.swad is None else state.swad.ended
    state.finished = over or state.epoch >= config.optimizer.epochs
    state.end_epoch(row)
    return row


def _epoch_means(state: TrainingState, processes: Processes) -> dict[str, Any]:
    """Average the sums of the epoch over its steps; what only some steps have, over those, by insertion point."""
    means: dict[str, Any] = {}
    for name, total in state.totals.items():
        if name.endswith(KNOWN):
            continue
        if (steps := state.totals.get(f"{name}{KNOWN}")) is None:
            means[name] = processes.mean(total / state.step)
            continue
        section, point = name.split("/", 1)
        value = processes.mean(total / steps)
        means.setdefault(section, {})[point] = value if math.isfinite(value) else None
    return means


def _require_finite(state: TrainingState, folder: Path) -> None:
    """Stop before anything good is overwritten when the loss or the gradient is no longer a number."""
    for name in ("loss", "grad_norm"):
        value = float(state.totals[name])
        if not math.isfinite(value):
            raise ValueError(
                f"The {name.replace('_', ' ')} became {value} in epoch {state.epoch}, by step {state.step}. The last "
                f"checkpoint in '{folder}' is from before and was kept. Lower optimizer.backbone_lr or "
                "optimizer.head_lr, in another `out`."
            )


def _save(state: TrainingState, folder: Path, processes: Processes, checkpoints: CheckpointWriter) -> None:
    content = state.state_dict()
    if processes.first:
        replace_text(folder / METRICS, "".join(f"{json.dumps(row)}\n" for row in state.history))
        checkpoints.save(content)
    processes.wait()


@contextmanager
def _own_torch_stream(config: RunConfig, fabric: Fabric) -> Iterator[None]:
    """Seed torch's own stream, which dropout draws from, for this run; the caller's is restored at the end."""
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive_seed(config.seed, "torch", fabric.global_rank))
        yield
