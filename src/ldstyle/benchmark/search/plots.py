"""Plots of a search: what each trial came to, and which parameters mattered."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import optuna
from matplotlib.figure import Figure
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState

from ldstyle.benchmark.search.objective import is_spent
from ldstyle.files import replace_file

INK = "#222222"
ACCENT = "#1f6f8b"
QUIET = "#b8b8b8"
ENOUGH = 20
"""Complete trials below which importances are noise: the best tenth must hold at least two."""


def plot_history(study: optuna.Study) -> Figure:
    """Draw the score of each trial in the order of their numbers, and the best so far; pruned ones are hollow."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    scored = [trial for trial in study.get_trials(deepcopy=False) if is_spent(trial) and trial.value is not None]
    complete = [trial for trial in scored if trial.state is TrialState.COMPLETE]
    pruned = [trial for trial in scored if trial.state is TrialState.PRUNED]
    axes.plot(*_points(complete), "o", color=ACCENT, label="complete")
    if pruned:
        axes.plot(*_points(pruned), "o", color=QUIET, markerfacecolor="none", label="pruned")
    numbers, scores = _points(complete)
    axes.step(numbers, list(accumulate(scores, max)), where="post", color=INK, label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel("mean held-out mAP (%)")
    axes.set_title(study.study_name, fontsize="medium")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_importance(study: optuna.Study) -> Figure | None:
    """Draw each parameter's share in telling the best tenth of the trials from the rest (PED-ANOVA).

    Returns:
        The figure; ``None`` below 20 complete trials, or if all came to the same score.
    """
    complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    if len(complete) < ENOUGH or len({trial.value for trial in complete}) == 1:
        return None
    shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    figure = Figure(figsize=(6.4, 0.8 + 0.35 * len(shares)), layout="constrained")
    axes = figure.add_subplot()
    names = list(shares)[::-1]
    axes.barh(names, [shares[name] for name in names], color=ACCENT)
    axes.set_xlabel("importance (share)")
    axes.set_title(study.study_name, fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def write_plots(study: optuna.Study, folder: Path, *, name: str) -> list[Path]:
    """Write the plots of a study as PNG files and return their paths."""
    written = []
    for kind, figure in (("history", plot_history(study)), ("importance", plot_importance(study))):
        if figure is not None:
            path = folder / f"{name}-{kind}.png"
            replace_file(path, lambda file, figure=figure: figure.savefig(file, format="png", dpi=150))  # type: ignore[misc]
            written.append(path)
    return written


def _points(trials: list[optuna.trial.FrozenTrial]) -> tuple[list[int], list[float]]:
    return [trial.number for trial in trials], [100 * (trial.value or 0.0) for trial in trials]
