"""Running a search: its cost beforehand, then one or several workers on this machine."""

from __future__ import annotations

import multiprocessing
import sys
import time
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import optuna
import torch
from optuna.trial import TrialState

from ldstyle.benchmark.execution.local import default_threads, start_process
from ldstyle.benchmark.search.objective import fold_config
from ldstyle.benchmark.search.storage import open_storage
from ldstyle.benchmark.search.study import SearchConfig, phases, print_line, spent, study_name, take_part
from ldstyle.data.loading.splits import split_domain
from ldstyle.runs.config import RunConfig
from ldstyle.runs.sources import read_tables
from ldstyle.workers import end_with_parent

INTERRUPTED = 130
PRELOADED = ["ldstyle.benchmark.search.study", "ldstyle.training.loop", "timm"]
"""What all workers import, once for all of them."""


@dataclass(frozen=True)
class Cost:
    """Remaining work.

    Attributes:
        trials: Trials left, by study.
        folds: Runs per trial.
        steps: Training steps at most; early stopping and pruning save some.
        seconds: Time at most for all workers together, or expected if trials have been timed.
        basis: What the time follows from.
    """

    trials: dict[str, int]
    folds: int
    steps: int
    seconds: float
    basis: str

    def describe(self, *, workers: int) -> str:
        """Return the estimate as a sentence or two."""
        left = " + ".join(f"{count} {name}" for name, count in self.trials.items())
        hours = self.seconds / workers / 3600
        span = (
            f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min" if hours >= 1 / 30 else f"{3600 * hours:.0f} s"
        )
        runs = sum(self.trials.values()) * self.folds
        return (
            f"Trials left: {left}, {self.folds} runs each: {runs} runs, at most {self.steps} steps. About {span} with "
            f"{workers} worker{'s' if workers > 1 else ''}, {self.basis}."
        )


def estimate_cost(config: SearchConfig) -> Cost:
    """Estimate the remaining cost of a search: from the trials it has finished, or from a step timed here."""
    storage = open_storage(config.out, config.storage)
    studies = phases(config)
    known = {summary.study_name for summary in optuna.get_all_study_summaries(storage)}
    left: dict[str, int] = {}
    durations: list[float] = []
    for phase in studies:
        left[phase.name] = phase.budget
        name = study_name(config, phase.name)
        if name in known:
            study = optuna.load_study(study_name=name, storage=storage)
            left[phase.name] = max(0, phase.budget - spent(study))
            durations += _durations(study)
    steps = {fold: _steps(fold_config(studies[0].settings, fold, Path())) for fold in config.folds}
    total = sum(steps.values()) * sum(left.values())
    if durations:
        seconds, basis = float(np.mean(durations)) * sum(left.values()), f"as the {len(durations)} trials before"
    elif total:
        seconds = total * time_step(fold_config(studies[-1].settings, config.folds[0], Path()))
        basis = "from one timed step, without what early stopping and pruning save"
    else:
        seconds, basis = 0.0, "since all is done"
    return Cost(left, len(config.folds), total, seconds, basis)


def time_step(config: RunConfig) -> float:
    """Return the seconds that a forward and a backward pass of a plain batch take here, the faster of two."""
    from lightning.fabric import Fabric

    from ldstyle.nn.backbones.layout import logits_of
    from ldstyle.runs.backbone import create_network

    device = Fabric(accelerator=config.accelerator, devices=1).device
    bands = len(config.data.bands) or 3  # the first layer hardly counts
    network = create_network(
        config.backbone.name, num_labels=6, output_stride=config.backbone.output_stride, bands=bands
    ).to(device)
    images = torch.zeros(config.optimizer.batch_size, bands, config.data.size, config.data.size, device=device)
    times = []
    for _ in range(2):
        began = time.perf_counter()
        logits_of(network(images)).sum().backward()
        # Copying to the host makes the device finish.
        next(network.parameters()).detach().cpu()
        times.append(time.perf_counter() - began)
    return min(times)


def _steps(run: RunConfig) -> int:
    """Return the most steps of a fold's run."""
    optimizer = run.optimizer
    if optimizer.steps_per_epoch is not None:
        return optimizer.epochs * optimizer.steps_per_epoch
    tables = read_tables(run.data, run.data.sources, require_images=False)
    samples = sum(len(split_domain(table, seed=run.seed).train) for table in tables)
    return optimizer.epochs * ((1 + run.data.pseudo_domain) * samples // optimizer.batch_size)


def _durations(study: optuna.Study) -> list[float]:
    trials = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE, TrialState.PRUNED])
    return [trial.duration.total_seconds() for trial in trials if trial.duration is not None]


def run_search(config: SearchConfig, *, workers: int = 1) -> Path:
    """Run a search, or resume one, by ``workers`` processes that share the cores.

    Returns:
        The file of the selected settings.

    Raises:
        ChildProcessError: A worker ended before the search did; the others have continued without it.
        KeyboardInterrupt: The search was stopped; nothing that was finished is lost.
    """
    if workers < 1:
        raise ValueError(f"A search needs at least one worker; got {workers}.")
    if workers > 1:
        _run_workers(config, workers)
    # All trials are spent now; this reads them and writes the result.
    return take_part(config)


def _run_workers(config: SearchConfig, workers: int) -> None:
    threads = default_threads(workers)
    processes: list[BaseProcess] = []
    try:
        for _ in range(workers):
            processes.append(start_process(_context, _serve, (config, threads)))
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        raise
    codes = [process.exitcode for process in processes]
    if INTERRUPTED in codes:
        raise KeyboardInterrupt
    if any(codes):
        raise ChildProcessError(f"Workers ended with exit codes {codes}. The same command resumes.")


def _context() -> BaseContext:
    # Forking a process that runs threads, as torch does, can hang the child; a server that has only imported does not.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _serve(config: SearchConfig, threads: int) -> None:
    end_with_parent()
    torch.set_num_threads(threads)
    try:
        take_part(config)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (ValueError, TypeError, OSError) as error:
        print_line(f"error: {error}")
        sys.exit(2)
