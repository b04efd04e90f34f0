"""A trial: where it looks, and its score, the mean over the sources left out in turn."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import optuna
from filelock import FileLock
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from ldstyle.benchmark.search.spaces import Parameter, suggest
from ldstyle.benchmark.search.storage import ERROR, FOLDS, WORKER, WORKERS, retry_history
from ldstyle.data.domains.scene_table import file_stem
from ldstyle.data.loading.splits import SourceFold, split_domain
from ldstyle.runs.config import RunConfig
from ldstyle.runs.settings import Settings, config_from, merge, nested
from ldstyle.seeding import derive_seed

FoldScore: TypeAlias = Callable[[RunConfig, SourceFold], float]
"""Trains a config and returns the mAP on the validation part of the fold's held-out source."""


class Surplus(Exception):  # noqa: N818 - not an error: another worker's trial was the last one requested
    """A trial was started although the requested number is already running."""


@dataclass(frozen=True)
class Objective:
    """The leave-one-source-out objective of one study.

    Attributes:
        settings: Settings of a run but for its parameters, sources and folder.
        space: Parameters to search.
        folds: The sources left out in turn.
        budget: Trials wanted.
        out: Folder of the search.
        worker: Name of the worker that runs the trials.
        score: Trains and scores a fold.
        keep_runs: Whether the runs of the folds are kept once they are scored.
    """

    settings: Settings
    space: Sequence[Parameter]
    folds: Sequence[SourceFold]
    budget: int
    out: Path
    worker: str
    score: FoldScore
    keep_runs: bool = False

    def __call__(self, trial: optuna.Trial) -> float:
        """Return the mean held-out mAP; the median rule is asked after each fold with the mean so far.

        A fold that an earlier attempt at the same trial has scored is not run again, and one that it has begun resumes
        from its checkpoint.

        Raises:
            optuna.TrialPruned: The mean so far is below the median of the other trials at that fold.
            Surplus: There are enough trials already.
        """
        if not admitted(trial, budget=self.budget):
            raise Surplus
        trial.set_user_attr(WORKER, self.worker)
        drawn = {parameter.setting: suggest(trial, parameter) for parameter in self.space}
        settings = merge(self.settings, nested(drawn))
        folder = self.out / "runs" / _digest(settings)
        locks = self.out / WORKERS
        locks.mkdir(parents=True, exist_ok=True)
        try:
            # Another worker may have drawn the same values, above all of few categories: one after the other.
            with FileLock(locks / f"{folder.name}.run.lock"), self._runs_in(folder):
                return self._mean_over_folds(trial, settings, folder)
        except KeyboardInterrupt:
            trial.study.enqueue_trial(trial.params, user_attrs={FOLDS: trial.user_attrs.get(FOLDS, {})})
            raise
        except Exception as error:
            if not isinstance(error, optuna.TrialPruned):
                trial.set_user_attr(ERROR, f"{type(error).__name__}: {error}")
            raise

    @contextmanager
    def _runs_in(self, folder: Path) -> Iterator[None]:
        """Delete the runs of a trial at its end, unless they are kept or the trial was stopped and resumes later."""
        stopped = False
        try:
            yield
        except KeyboardInterrupt:
            stopped = True
            raise
        finally:
            if not stopped and not self.keep_runs:
                shutil.rmtree(folder, ignore_errors=True)

    def _mean_over_folds(self, trial: optuna.Trial, settings: Settings, folder: Path) -> float:
        scores: dict[str, float] = dict(trial.user_attrs.get(FOLDS, {}))
        mean = 0.0
        for step, fold in enumerate(self.folds):
            if fold.held_out not in scores:
                scores[fold.held_out] = self.score(fold_config(settings, fold, folder / file_stem(fold.held_out)), fold)
                trial.set_user_attr(FOLDS, scores)
            mean = float(np.mean([scores[done.held_out] for done in self.folds[: step + 1]]))
            trial.report(mean, step)
            if step + 1 < len(self.folds) and trial.should_prune():
                raise optuna.TrialPruned
        return mean


def admitted(trial: optuna.Trial, *, budget: int) -> bool:
    """Whether a trial is among the requested ``budget``; numbers decide, so all workers agree.

    Two workers may both have seen that a third died, and retried its trial twice; the first counts.
    """
    trials = trial.study.get_trials(deepcopy=False)
    before = [other for other in trials if other.number < trial.number]
    history = retry_history(trials[trial.number])
    if history and any(retry_history(other) == history for other in before):
        return False
    return sum(is_spent(other) or not other.state.is_finished() for other in before) < budget


def is_spent(trial: FrozenTrial) -> bool:
    """Whether a trial has ended by a score, by pruning or by an error of its own, not by the death of its worker."""
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or (
        trial.state is TrialState.FAIL and ERROR in trial.user_attrs
    )


def fold_config(settings: Settings, fold: SourceFold, out: Path) -> RunConfig:
    """Return the config of a fold's run, which never names the held-out source."""
    data = {"sources": list(fold.sources), "pseudo_domain": fold.pseudo}
    return config_from(merge(settings, {"data": data, "out": str(out), "logger": "none", "quiet": True}))


def train_and_score(config: RunConfig, fold: SourceFold) -> float:
    """Train on a fold's sources and return the mAP on the validation part of its held-out source.

    Raises:
        ValueError: Training diverged, or no trained label has a positive in that part.
    """
    from ldstyle.training.loop import fit

    fit(config)
    return held_out_map(config, fold.held_out)


def held_out_map(config: RunConfig, domain: str) -> float:
    """Return the mAP of a finished run on the validation part of a domain it was not trained on.

    Labels without training data are left out, as in ``evaluate``.

    Raises:
        ValueError: No trained label has a positive in that part.
    """
    from lightning.fabric import Fabric

    from ldstyle.data.loading.pool import Pool
    from ldstyle.evaluation.predict import predict_pool
    from ldstyle.runs.model_file import load_model
    from ldstyle.runs.sources import read_tables

    model = load_model(Path(config.out))
    (table,) = read_tables(config.data, [domain], vocabulary=model.vocabulary)
    rows = split_domain(table, seed=config.seed).validation
    cache_dir = Path(config.data.cache_dir).expanduser()
    pool = Pool([table], [rows], size=model.size, cache_dir=cache_dir, image_format=model.image_format)
    fabric = Fabric(accelerator=config.accelerator, devices=1, precision=config.precision)
    network = model.network_on(fabric.device)
    batch_size, untrained = config.optimizer.batch_size, model.untrained_labels
    score = predict_pool(network, pool, fabric, batch_size=batch_size, untrained_labels=untrained).summary()["map"]
    if score is None:
        raise ValueError(
            f"The validation part of {domain!r} must show a label that {', '.join(config.data.sources)} annotate; none "
            f"of its {len(pool)} images does. Add images, or choose sources that share labels."
        )
    return float(score)


def _digest(settings: Settings) -> str:
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()


class NumberedSampler(BaseSampler):
    """Multivariate TPE whose draws follow from a trial's number, so no two workers draw the same.

    Args:
        seed: Seed of the search.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters that are drawn together."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw parameters together."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw one parameter on its own, while there are too few trials to learn from."""
        return self._of(trial, param_name).sample_independent(study, trial, param_name, param_distribution)

    def _of(self, trial: FrozenTrial, *purpose: str) -> TPESampler:
        seed = derive_seed("search", self._seed, trial.number, *purpose) % 2**32
        return TPESampler(multivariate=True, constant_liar=True, seed=seed)
