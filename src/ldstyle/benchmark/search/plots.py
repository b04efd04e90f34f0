"""Plots of a search by Optuna: the score of each trial, and which parameters mattered."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState

from ldstyle.files import replace_file

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
