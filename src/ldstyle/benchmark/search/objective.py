"""What a trial does: train on all sources but one, score on the one left out, and average over the folds."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import optuna
from optuna.trial import TrialState

from ldstyle.benchmark.search.spaces import Parameter, nested, suggest
from ldstyle.benchmark.search.storage import ERROR, FOLDS, RETRY_OF, WORKER, queue_again
from ldstyle.data.loading.splits import SourceFold, split_domain
from ldstyle.runs.config import RunConfig
from ldstyle.runs.settings import Settings, config_from, merge

FoldScore: TypeAlias = Callable[[RunConfig, SourceFold], float]
"""Trains as a config says and returns the mAP on the validation part of the fold's held-out source."""


class Surplus(Exception):  # noqa: N818 - not an error: another worker's trial was the last one wanted
    """A trial was begun although as many as wanted are under way."""


@dataclass(frozen=True)
class Objective:
    """The leave-one-source-out objective of one study.

    Attributes:
        settings: Settings of a run but for its parameters, sources and folder.
        space: What is searched.
        folds: The sources left out in turn.
        budget: Trials wanted.
        out: Folder of the search.
        worker: Name of the worker that runs the trials.
        score: What is done in a fold.
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

        A fold that an earlier attempt at the same trial has scored is not run again, and one that it has begun goes on
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
        try:
            value = self._mean_over_folds(trial, settings, folder)
        except KeyboardInterrupt:
            queue_again(trial.study, trial.study.trials[trial.number], died=False)
            raise
        except Exception as error:
            if not isinstance(error, optuna.TrialPruned):
                trial.set_user_attr(ERROR, f"{type(error).__name__}: {error}")
            self._clear(folder)
            raise
        self._clear(folder)
        return value

    def _mean_over_folds(self, trial: optuna.Trial, settings: Settings, folder: Path) -> float:
        scores: dict[str, float] = dict(trial.user_attrs.get(FOLDS, {}))
        mean = 0.0
        for step, fold in enumerate(self.folds):
            if fold.held_out not in scores:
                scores[fold.held_out] = self.score(fold_config(settings, fold, folder / fold.held_out), fold)
                trial.set_user_attr(FOLDS, scores)
            mean = float(np.mean([scores[done.held_out] for done in self.folds[: step + 1]]))
            trial.report(mean, step)
            if step + 1 < len(self.folds) and trial.should_prune():
                raise optuna.TrialPruned
        return mean

    def _clear(self, folder: Path) -> None:
        if not self.keep_runs:
            shutil.rmtree(folder, ignore_errors=True)


def admitted(trial: optuna.Trial, *, budget: int) -> bool:
    """Whether a trial is among the ``budget`` that are wanted; numbers decide, so all workers agree.

    Two workers may both have seen that a third died, and queued its trial twice; the first counts.
    """
    before = [other for other in trial.study.get_trials(deepcopy=False) if other.number < trial.number]
    origin = trial.user_attrs.get(RETRY_OF)
    if origin is not None and any(other.user_attrs.get(RETRY_OF) == origin for other in before):
        return False
    return sum(is_spent(other) or not other.state.is_finished() for other in before) < budget


def is_spent(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial came to its end: a score, pruned, or an error of its own; not if it was only cut off."""
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
        ValueError: Training diverged, or no label has a positive in that part.
    """
    from ldstyle.training.loop import fit

    fit(config)
    return held_out_map(config, fold.held_out)


def held_out_map(config: RunConfig, domain: str) -> float:
    """Return the mAP of a finished run on the validation part of a domain it was not trained on."""
    from lightning.fabric import Fabric

    from ldstyle.data.loading.augmentation import Augmentation
    from ldstyle.data.loading.pool import Pool
    from ldstyle.evaluation.predict import predict
    from ldstyle.runs.model_file import load_model
    from ldstyle.runs.sources import read_tables

    model = load_model(Path(config.out))
    (table,) = read_tables(config.data, [domain], vocabulary=model.vocabulary)
    rows = split_domain(table, seed=config.seed).validation
    pool = Pool([table], [rows], size=model.size, cache_dir=Path(config.data.cache_dir).expanduser())
    fabric = Fabric(accelerator=config.accelerator, devices=1, precision=config.precision)
    look = Augmentation(mean=model.preprocessing.mean, std=model.preprocessing.std)
    backbone = model.backbone.to(fabric.device)
    return float(predict(backbone, pool, look, fabric, batch_size=config.optimizer.batch_size).summary()["map"])


def _digest(settings: Settings) -> str:
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()
