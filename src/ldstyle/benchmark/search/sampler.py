"""Where a search looks next."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial

from ldstyle.seeding import derive_seed


class NumberedSampler(BaseSampler):
    """Multivariate TPE whose draws follow from a trial's number: no two workers draw alike, and no resumed one again.

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
