"""Hyperparameter search on the sources only: the optimizer once with plain training, then the method's own parameters.

Any number of workers share a study, here or elsewhere; each takes trials until as many as wanted are spent. What is
finished is kept whatever happens to a worker.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ldstyle.benchmark.grid.imagery import DataLocation
from ldstyle.benchmark.grid.methods import Method, load_method
from ldstyle.benchmark.grid.presets import Preset, apply_preset, apply_schedule
from ldstyle.benchmark.search.objective import FoldScore, NumberedSampler, Objective, is_spent, train_and_score
from ldstyle.benchmark.search.spaces import SHARED_SPACE, Parameter, method_space, suggest
from ldstyle.benchmark.search.storage import ERROR, HEARTBEAT_SECONDS, open_storage, reclaim, signed_in
from ldstyle.data.loading.splits import SourceFold, leave_one_source_out
from ldstyle.files import replace_file, replace_text
from ldstyle.runs.config import RUNTIME
from ldstyle.runs.settings import (
    Settings,
    complete,
    config_from,
    differences,
    dump_settings,
    flatten,
    list_differences,
    merge,
    nested,
)

SHARED = "shared"
"""Name of the study of the optimizer's parameters, and of the file of its result."""

IDENTITY = "search"
MAY_DIFFER = RUNTIME | {"data.root", "accelerator"}
"""Settings that another worker may have its own of."""

FAILURES_IN_A_ROW = 3
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class SearchConfig:
    """A search.

    Attributes:
        method: The method whose parameters are searched.
        sources: Source domains; a target is never named.
        location: The data.
        preset: How large a run is.
        out: Folder of the search; searches of other methods on the same sources share it, and the optimizer's study.
        storage: URL of a database for workers without a shared folder; ``None`` keeps a journal file in ``out``.
        shared_trials: Trials for the optimizer's parameters; 0 keeps the preset's.
        trials: Trials for the method's own.
        parameters: Settings of the method to search, a part of its space; empty for all.
        seed: Seed of the runs and of the sampler.
        edits: Settings that lie above the preset's and the method's.
        keep_runs: Whether the runs of the folds are kept once they are scored.
        heartbeat_seconds: Seconds between two signs of life of a trial in a database.
    """

    method: Method
    sources: tuple[str, ...]
    location: DataLocation
    preset: Preset
    out: Path
    storage: str | None = None
    shared_trials: int = 40
    trials: int = 20
    parameters: tuple[str, ...] = ()
    seed: int = 0
    edits: Settings = field(default_factory=dict)
    keep_runs: bool = False
    heartbeat_seconds: int = HEARTBEAT_SECONDS

    def __post_init__(self) -> None:
        if self.method.oracle:
            raise ValueError("A search runs on sources only; the oracle has a target's. Search for 'erm' instead.")
        if self.shared_trials < 0 or self.trials < 1:
            raise ValueError(
                "A search needs at least one trial of the method, and none or more of the optimizer; "
                f"got {self.trials} and {self.shared_trials}."
            )
        leave_one_source_out(self.sources)
        if self.shared_trials == 0 and method_phase(self, {}) is None:
            raise ValueError(
                f"Without trials for the optimizer there is nothing to search: '{self.method.name}' has no parameters "
                "of its own. Set --shared-trials to 1 or more."
            )

    @property
    def folds(self) -> tuple[SourceFold, ...]:
        """The sources left out in turn."""
        return leave_one_source_out(self.sources)


@dataclass(frozen=True)
class Phase:
    """One study of a search.

    Attributes:
        name: ``shared``, or the method's name.
        space: Parameters to search.
        settings: Complete settings of a run, but for its parameters, sources and folder.
        budget: Trials wanted.
    """

    name: str
    space: Sequence[Parameter]
    settings: Settings
    budget: int


def shared_phase(config: SearchConfig) -> Phase:
    """Return the study of the optimizer's parameters, with plain training."""
    return Phase(SHARED, SHARED_SPACE, _settings(config, load_method("erm"), {}), config.shared_trials)


def method_phase(config: SearchConfig, optimizer: Settings) -> Phase | None:
    """Return the study of the method's own parameters, given the optimizer's; ``None`` if it has none."""
    settings = _settings(config, config.method, optimizer)
    run = config_from(merge(settings, {"data": {"sources": list(config.sources)}, "out": "."}))
    space = method_space(run.style, algorithm=run.algorithm, loss=run.loss, epochs=run.optimizer.epochs)
    known = [parameter.setting for parameter in space]
    if unknown := [name for name in config.parameters if name not in known]:
        raise ValueError(
            f"'{config.method.name}' has no parameter {unknown[0]!r} to search. Choose from: "
            f"{', '.join(known) or 'none'}."
        )
    space = tuple(p for p in space if not config.parameters or p.setting in config.parameters)
    return Phase(config.method.name, space, settings, config.trials) if space else None


def phases(config: SearchConfig) -> list[Phase]:
    """Return the studies of a search, as far as they are known before it."""
    shared = [shared_phase(config)] if config.shared_trials else []
    own = method_phase(config, {})
    return shared + ([own] if own is not None else [])


def take_part(
    config: SearchConfig, *, score: FoldScore = train_and_score, say: Callable[[str], None] | None = None
) -> Path:
    """Work on a search until all of its trials are spent, together with whoever else does.

    Args:
        config: The search.
        score: Trains and scores a fold.
        say: Takes a line about each trial; the default writes to standard error.

    Returns:
        The file of the selected settings, which is a method file: ``ldstyle train --config`` and the benchmark take it.

    Raises:
        ValueError: The study was begun with other settings, or trial after trial failed.
        KeyboardInterrupt: The search was stopped; its trial is queued again.
    """
    say = say or print_line
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(config.out, config.storage, heartbeat_seconds=config.heartbeat_seconds)
    chosen: Settings = {}
    if config.shared_trials:
        shared = shared_phase(config)
        study = work_off(config, shared, storage, score=score, say=say)
        chosen = best_settings(study, shared)
        _write_selected(config.out / f"{SHARED}.yaml", config, study, merge(load_method("erm").settings, chosen))
    own = method_phase(config, chosen)
    if own is not None:
        study = work_off(config, own, storage, score=score, say=say)
        chosen = merge(chosen, best_settings(study, own))
    selected = config.out / f"{config.method.name}.yaml"
    # Trials ran with the preset's schedule, and so must the selected settings.
    _write_selected(selected, config, study, merge(apply_schedule(config.preset, config.method.settings), chosen))
    return selected


def work_off(
    config: SearchConfig, phase: Phase, storage: BaseStorage, *, score: FoldScore, say: Callable[[str], None]
) -> optuna.Study:
    """Run trials of a study until its number of trials is reached."""
    study = open_study(config, phase, storage)
    failures: list[str] = []

    def note(_study: optuna.Study, trial: FrozenTrial) -> None:
        if not is_spent(trial):  # one too many
            return
        say(describe(trial, phase))
        failures.append(trial.user_attrs[ERROR]) if trial.state is TrialState.FAIL else failures.clear()
        if len(failures) >= FAILURES_IN_A_ROW:
            raise ValueError(f"{len(failures)} trials in a row failed; the last by {failures[-1]}")

    with signed_in(config.out) as worker:
        objective = Objective(
            phase.settings, phase.space, config.folds, phase.budget, config.out, worker, score, config.keep_runs
        )
        watched: set[int] = set()
        while spent(study) < phase.budget:
            reclaim(study, storage, config.out, watched=watched)
            if not _wanted(study, phase):
                time.sleep(POLL_SECONDS)
                continue
            try:
                study.optimize(objective, n_trials=1, catch=(Exception,), callbacks=[note])
            except (UpdateFinishedTrialError, ValueError) as error:
                if isinstance(error, ValueError) and "Cannot tell" not in str(error):
                    raise
                # This process gave no sign of life for so long that another has given its trial up.
                say(f"{phase.name}: a trial was given up by another worker meanwhile ({error})")
    return study


def open_study(config: SearchConfig, phase: Phase, storage: BaseStorage) -> optuna.Study:
    """Create a study, or resume it if its settings are the same."""
    study = optuna.create_study(
        storage=storage,
        sampler=NumberedSampler(config.seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        study_name=study_name(config, phase.name),
        direction="maximize",
        load_if_exists=True,
    )
    identity = {**dict(flatten(phase.settings)), "searched": [parameter.setting for parameter in phase.space]}
    identity = json.loads(json.dumps({key: value for key, value in identity.items() if key not in MAY_DIFFER}))
    saved = study.user_attrs.get(IDENTITY)
    if saved is None:
        study.set_user_attr(IDENTITY, identity)
        return study
    if found := differences(saved, identity):
        raise ValueError(
            f"'{config.storage or config.out}' holds the search {study.study_name!r} with other settings; choose "
            f"another --out:\n{list_differences(found)}"
        )
    return study


def study_name(config: SearchConfig, phase: str) -> str:
    """Return the name of a study; one database may hold many."""
    return f"{config.preset.name}/{'+'.join(config.sources)}/{phase}"


def spent(study: optuna.Study) -> int:
    """Count the trials that have ended; see :func:`is_spent`."""
    return sum(map(is_spent, study.get_trials(deepcopy=False)))


def best_settings(study: optuna.Study, phase: Phase) -> Settings:
    """Return the best trial's parameters as settings.

    Raises:
        ValueError: No trial has a score.
    """
    if not study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
        reasons = [trial.user_attrs[ERROR] for trial in study.trials if ERROR in trial.user_attrs]
        raise ValueError(f"No trial of {study.study_name!r} has a score; the last failed by {reasons[-1:]}.")
    fixed = optuna.trial.FixedTrial(study.best_params)
    return nested({parameter.setting: suggest(fixed, parameter) for parameter in phase.space})


def describe(trial: FrozenTrial, phase: Phase) -> str:
    """Return the outcome of a finished trial in one line."""
    values = ", ".join(
        f"{p.symbol} {_short(trial.params[p.setting])}" for p in phase.space if p.setting in trial.params
    )
    match trial.state:
        case TrialState.COMPLETE:
            outcome = f"mAP {100 * (trial.value or 0):.1f}"
        case TrialState.PRUNED:
            outcome = f"pruned at mAP {100 * (trial.value or 0):.1f}"
        case _:
            outcome = trial.user_attrs.get(ERROR, "cut off")
    return f"{phase.name} trial {trial.number}: {outcome} ({values})"


def print_line(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _settings(config: SearchConfig, method: Method, above: Settings) -> Settings:
    location = {**config.location.settings(), "cache_dir": config.location.cache_dir}
    layers = merge(merge(apply_preset(config.preset, method.settings), above), config.edits)
    settings = complete(merge(layers, {"data": location, "seed": config.seed, "method": method.name}))
    return {key: value for key, value in settings.items() if key != "out"}


def _wanted(study: optuna.Study, phase: Phase) -> bool:
    """Whether a trial waits to be retried, or fewer trials are running than requested."""
    trials = study.get_trials(deepcopy=False)
    waiting = any(trial.state is TrialState.WAITING for trial in trials)
    under_way = sum(is_spent(trial) or not trial.state.is_finished() for trial in trials)
    return waiting or under_way < phase.budget


def _write_selected(path: Path, config: SearchConfig, study: optuna.Study, settings: Settings) -> None:
    """Write the selected settings as a method file; a comment on top names their origin."""
    sentence = (
        f"# Selected by leaving out {', '.join(config.sources)} in turn: mean held-out validation mAP "
        f"{100 * study.best_value:.2f} in trial {study.best_trial.number} of {spent(study)}.\n"
    )
    # Workers that end together would write into one temporary file.
    with FileLock(path.with_name(f".{path.name}.lock")):
        replace_text(path, sentence + dump_settings(settings))


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


ENOUGH = 20
"""Complete trials below which importances are noise: the best tenth must hold at least two."""


def write_plots(study: optuna.Study, folder: Path, *, name: str) -> list[Path]:
    """Write the plots of a study as PNG files and return their paths.

    The history shows every complete trial and the best so far. The importances (PED-ANOVA) need 20 complete trials that
    differ in their score.
    """
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    kinds: dict[str, Callable[..., Any]] = {"history": plots.plot_optimization_history}
    if len(complete) >= ENOUGH and len({trial.value for trial in complete}) > 1:
        kinds["importance"] = plots.plot_param_importances
    written = []
    for kind, plot in kinds.items():
        # Optuna draws by pyplot, whose style and figures belong to the caller.
        with warnings.catch_warnings(), pyplot.rc_context():
            warnings.simplefilter("ignore", ExperimentalWarning)
            figure = plot(study, target_name="mean held-out mAP").figure
        path = folder / f"{name}-{kind}.png"
        replace_file(path, lambda file, figure=figure: figure.savefig(file, format="png", dpi=150, bbox_inches="tight"))  # type: ignore[misc]
        pyplot.close(figure)
        written.append(path)
    return written
