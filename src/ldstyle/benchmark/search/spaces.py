"""Table 2 as data: the parameters of a search, their ranges, and the methods that have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, TypeAlias

from ldstyle.config import (
    CSULiteConfig,
    EFDMixConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    LLAMConfig,
    MixStyleConfig,
    StyleConfig,
)
from ldstyle.runs.algorithms import (
    AlgorithmConfig,
    AsymmetricConfig,
    CoralConfig,
    ErmPlusPlusConfig,
    FactConfig,
    FocalConfig,
    GroupDroConfig,
    LossConfig,
    MiroConfig,
    MixupConfig,
    SagmConfig,
)

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Uniform:
    """Numbers from ``low`` to ``high``."""

    low: float
    high: float


@dataclass(frozen=True)
class LogUniform:
    """Numbers from ``low`` to ``high``, uniform in their logarithm."""

    low: float
    high: float


@dataclass(frozen=True)
class Integers:
    """Whole numbers from ``low`` to ``high``, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class Choice:
    """One of some numbers."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class Subsets:
    """A subset of some numbers, not the empty one."""

    members: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the subsets, small ones first: ``1``, …, ``1+2``, …; a storage keeps names, not tuples."""
        sizes = range(1, len(self.members) + 1)
        subsets = chain.from_iterable(combinations(self.members, size) for size in sizes)
        return tuple("+".join(map(str, subset)) for subset in subsets)


Range: TypeAlias = Uniform | LogUniform | Integers | Choice | Subsets
Applies: TypeAlias = Callable[[Any], bool]


@dataclass(frozen=True)
class Parameter:
    """A row of Table 2.

    Attributes:
        setting: Dotted name of the setting.
        symbol: What the paper calls it.
        range: Where it is searched.
        applies: Whether a method has it, given its style, algorithm or loss; ``None`` stands for plain training.
        shared: Whether it is searched once, for all methods, with plain training.
    """

    setting: str
    symbol: str
    range: Range
    applies: Applies
    shared: bool = False


def _always(_style: StyleConfig | None) -> bool:
    return True


def _augmentation(style: StyleConfig | None) -> bool:
    return style is not None


def _decoupled(style: StyleConfig | None) -> bool:
    return isinstance(style, LabelDecoupledConfig)


def _operator(*kinds: type) -> Applies:
    return lambda style: style is not None and isinstance(style.operator, kinds)


def _decoupled_operator(kind: type) -> Applies:
    return lambda style: isinstance(style, LabelDecoupledConfig) and isinstance(style.operator, kind)


def _learned(style: StyleConfig | None) -> bool:
    return isinstance(style, LabelDecoupledConfig) and isinstance(style.attention, LLAMConfig)


def _swept(style: StyleConfig | None) -> bool:
    match style:
        case LabelDecoupledConfig(attention=GradCamConfig(refresh="sweep")):
            return True
        case _:
            return False


TABLE_2 = (
    Parameter("optimizer.backbone_lr", "backbone learning rate", LogUniform(1e-6, 5e-4), _always, shared=True),
    Parameter("optimizer.head_lr", "head learning rate", LogUniform(1e-5, 5e-2), _always, shared=True),
    Parameter("optimizer.weight_decay", "weight decay", LogUniform(1e-6, 5e-1), _always, shared=True),
    Parameter("style.operator.alpha", "α", Uniform(0.1, 5.0), _operator(MixStyleConfig, EFDMixConfig)),
    Parameter("style.gate_prob", "p", Uniform(0.2, 0.8), _augmentation),
    Parameter("stages", "K", Subsets((1, 2, 3, 4)), _decoupled),
    Parameter("style.warmup_epochs", "W", Integers(0, 10), _decoupled),
    Parameter("style.attention.diversity_weight", "w_div", LogUniform(0.01, 10.0), _learned),
    Parameter("style.attention.temperature", "τ", LogUniform(0.1, 100.0), _learned),
    Parameter("style.bank_size", "M", Choice((64, 128, 256, 512)), _decoupled_operator(MixStyleConfig)),
    Parameter("style.operator.top_ratio", "ρ", Uniform(0.01, 1.0), _decoupled_operator(EFDMixConfig)),
    Parameter("style.operator.strength", "β", Uniform(0.1, 1.0), _operator(CSULiteConfig)),
    Parameter("style.attention.refresh_every", "R", Integers(1, 15), _swept),
)


def _is(kind: type) -> Applies:
    return lambda config: isinstance(config, kind)


ALGORITHMS = (
    Parameter("algorithm.strength", "η (FACT)", Uniform(0.2, 1.0), _is(FactConfig)),
    Parameter("algorithm.gate_prob", "p (FACT)", Uniform(0.2, 0.8), _is(FactConfig)),
    Parameter("algorithm.alpha", "α (mixup)", LogUniform(0.05, 1.0), _is(MixupConfig)),
    Parameter("algorithm.weight", "γ (CORAL)", LogUniform(0.1, 10.0), _is(CoralConfig)),
    Parameter("algorithm.weight", "λ (MIRO)", LogUniform(0.001, 1.0), _is(MiroConfig)),
    Parameter("algorithm.step_size", "η (GroupDRO)", LogUniform(0.001, 0.1), _is(GroupDroConfig)),
    Parameter("algorithm.radius", "ρ (SAGM)", LogUniform(0.01, 0.2), _is(SagmConfig)),
    Parameter("algorithm.alpha", "α (SAGM)", LogUniform(0.0001, 0.01), _is(SagmConfig)),
    Parameter("algorithm.head_ratio", "head first (ERM++)", Uniform(0.0, 0.2), _is(ErmPlusPlusConfig)),
    Parameter("algorithm.average_ratio", "mean after (ERM++)", Uniform(0.0, 0.5), _is(ErmPlusPlusConfig)),
)
"""Search spaces of the baselines that the paper lacks; the ranges of DomainBed where it has them."""

LOSSES = (
    Parameter("loss.gamma", "γ (focal)", Uniform(0.5, 5.0), _is(FocalConfig)),
    Parameter("loss.alpha", "α (focal)", Uniform(0.1, 0.9), _is(FocalConfig)),
    Parameter("loss.gamma_negative", "γ₋ (asymmetric)", Uniform(1.0, 6.0), _is(AsymmetricConfig)),
    Parameter("loss.margin", "m (asymmetric)", Uniform(0.0, 0.2), _is(AsymmetricConfig)),
)
"""Search spaces of the losses."""

SHARED_SPACE = tuple(parameter for parameter in TABLE_2 if parameter.shared)
"""The optimizer's parameters, searched once and reused by all methods."""


def method_space(
    style: StyleConfig | None,
    *,
    algorithm: AlgorithmConfig | None = None,
    loss: LossConfig | None = None,
    epochs: int | None = None,
) -> tuple[Parameter, ...]:
    """Return the parameters that a method has beyond the shared ones; plain training has none.

    Args:
        style: The method's style config; Table 2 has its parameters.
        algorithm: The method's algorithm.
        loss: The method's loss.
        epochs: Epochs of a run. A warm-up is shorter than they are: otherwise no label's style would ever be mixed.
    """
    own = [parameter for parameter in TABLE_2 if not parameter.shared and parameter.applies(style)]
    added = [*filter(lambda p: p.applies(algorithm), ALGORITHMS), *filter(lambda p: p.applies(loss), LOSSES)]
    return tuple(_within(parameter, epochs) for parameter in (*own, *added))


def _within(parameter: Parameter, epochs: int | None) -> Parameter:
    match parameter:
        case Parameter("style.warmup_epochs", _, Integers(low, high)) if epochs is not None and high >= epochs:
            return replace(parameter, range=Integers(low, max(low, epochs - 1)))
        case _:
            return parameter


def suggest(trial: optuna.trial.BaseTrial, parameter: Parameter) -> Any:
    """Draw a value of a parameter, as settings hold it."""
    name = parameter.setting
    match parameter.range:
        case Uniform(low, high):
            return trial.suggest_float(name, low, high)
        case LogUniform(low, high):
            return trial.suggest_float(name, low, high, log=True)
        case Integers(low, high):
            return trial.suggest_int(name, low, high)
        case Choice(values):
            return trial.suggest_categorical(name, values)
        case Subsets() as subsets:
            return [int(part) for part in str(trial.suggest_categorical(name, subsets.names)).split("+")]
