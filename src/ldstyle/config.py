"""Style settings: closed unions of small frozen classes, composed instead of named.

The six label-decoupled variants are three operators times two attention sources; the global methods are one operator
each. Every setting carries its full word; the symbols of the paper stand in the docstrings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Background: TypeAlias = float | Literal["paper", "confined"]
"""The identity's density b at every place: a number >= 0 or a preset (``paper`` = H·W·1e-6, ``confined`` = 0.1)."""

PAPER_BACKGROUND = 1e-6
CONFINED_BACKGROUND = 0.1


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{rule}; got {value!r}.")


@dataclass(frozen=True)
class MixStyleConfig:
    """Interpolate moments with a partner's (Eq. 9).

    Attributes:
        alpha: Parameter α of the symmetric Beta distribution the coefficient is drawn from.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        _require(self.alpha > 0, "operator.alpha must be positive", self.alpha)


@dataclass(frozen=True)
class EFDMixConfig:
    """Mix sorted feature values with a partner's (Eq. 10).

    Attributes:
        alpha: Parameter α of the symmetric Beta distribution the coefficient is drawn from.
        top_ratio: Share ρ of the places, by attention, whose values are matched. Global EFDMix always matches all.
    """

    alpha: float = 0.1
    top_ratio: float = 0.34

    def __post_init__(self) -> None:
        _require(self.alpha > 0, "operator.alpha must be positive", self.alpha)
        _require(0 < self.top_ratio <= 1, "operator.top_ratio must be in (0, 1]", self.top_ratio)


@dataclass(frozen=True)
class CSULiteConfig:
    """Perturb moments with independent and channel-common noise, without a partner (Eq. 11).

    Attributes:
        strength: Strength β of the perturbation.
    """

    strength: float = 0.5

    def __post_init__(self) -> None:
        _require(self.strength >= 0, "operator.strength must not be negative", self.strength)


@dataclass(frozen=True)
class CSUConfig:
    """Correlated style uncertainty as published: noise shaped by the batch covariance of the statistics. Global only.

    Attributes:
        alpha: Parameter of the symmetric Beta distribution of the per-sample factor.
    """

    alpha: float = 0.3

    def __post_init__(self) -> None:
        _require(self.alpha > 0, "operator.alpha must be positive", self.alpha)


@dataclass(frozen=True)
class DSUConfig:
    """Domain shift with uncertainty: noise scaled by the batch deviation of the statistics. Global only."""


LabelOperator: TypeAlias = MixStyleConfig | EFDMixConfig | CSULiteConfig
GlobalOperator: TypeAlias = MixStyleConfig | EFDMixConfig | CSULiteConfig | CSUConfig | DSUConfig


@dataclass(frozen=True)
class LLAMConfig:
    """Learned attention: two 1×1 convolutions and a spatial softmax (Eq. 4).

    Attributes:
        temperature: Sharpness τ of the softmax; its logits are multiplied by it.
        diversity_weight: Weight w_div of the diversity loss (Eq. 5) in the objective (Eq. 13).
        grounding_weight: Weight of a loss that is not the paper's: each label is to be told from the features under its
            map, so that maps learn where labels are. The backbone is not trained by it. 0 switches it off.
    """

    temperature: float = 10.0
    diversity_weight: float = 0.1
    grounding_weight: float = 0.0

    def __post_init__(self) -> None:
        _require(self.temperature > 0, "attention.temperature must be positive", self.temperature)
        _require(self.diversity_weight >= 0, "attention.diversity_weight must not be negative", self.diversity_weight)
        _require(self.grounding_weight >= 0, "attention.grounding_weight must not be negative", self.grounding_weight)


@dataclass(frozen=True)
class GradCamConfig:
    """Cached class activation maps of the network's own correct predictions (Eq. 6).

    Attributes:
        refresh: ``sweep`` passes over the training set every ``refresh_every`` epochs; ``online`` updates entries
            from those training batches in which no module fired, at no extra pass; ``never`` builds the bank once.
        refresh_every: Epochs R between two sweeps.
    """

    refresh: Literal["sweep", "online", "never"] = "sweep"
    refresh_every: int = 9

    def __post_init__(self) -> None:
        choices = ("sweep", "online", "never")
        _require(self.refresh in choices, f"attention.refresh must be one of {choices}", self.refresh)
        _require(self.refresh_every >= 1, "attention.refresh_every must be at least 1", self.refresh_every)


@dataclass(frozen=True)
class UniformConfig:
    """The same weight everywhere: the ablation without attention."""


Attention: TypeAlias = LLAMConfig | GradCamConfig | UniformConfig


@dataclass(frozen=True)
class GlobalConfig:
    """A published method: one style per image.

    Attributes:
        operator: What is done to the statistics.
        gate_prob: Probability p that a module fires on a batch.
        pairing: ``random`` pairs by a permutation of the batch, ``crossdomain`` with a sample of another domain.
    """

    operator: GlobalOperator = field(default_factory=MixStyleConfig)
    gate_prob: float = 0.5
    pairing: Literal["random", "crossdomain"] = "random"

    def __post_init__(self) -> None:
        _require(0 <= self.gate_prob <= 1, "gate_prob must be in [0, 1]", self.gate_prob)
        choices = ("random", "crossdomain")
        _require(self.pairing in choices, f"pairing must be one of {choices}", self.pairing)


@dataclass(frozen=True)
class LabelDecoupledConfig:
    """Label-decoupled augmentation: one style per label, inside that label's region.

    Attributes:
        operator: What is done to each label's statistics.
        attention: Where each label's region comes from.
        gate_prob: Probability p that a module fires on a batch.
        warmup_epochs: Epochs W of purely global augmentation; the per-label path is then blended in (Eq. 12).
        background: Share b of every place that keeps the identity.
        max_gain: Bound on the ratio of new to old standard deviation and on its inverse.
        bank_size: Entries M per label of the cross-domain style bank; 0 pairs within the batch only. MixStyle only.
        per_label: Draw an independent coefficient per label; off, one per sample (an ablation).
        label_matched: Pair only with samples that share a label; off, with any of another domain (an ablation).
    """

    operator: LabelOperator = field(default_factory=EFDMixConfig)
    attention: Attention = field(default_factory=LLAMConfig)
    gate_prob: float = 0.5
    warmup_epochs: int = 5
    background: Background = "paper"
    max_gain: float = 10.0
    bank_size: int = 0
    per_label: bool = True
    label_matched: bool = True

    def __post_init__(self) -> None:
        _require(0 <= self.gate_prob <= 1, "gate_prob must be in [0, 1]", self.gate_prob)
        _require(self.warmup_epochs >= 0, "warmup_epochs must not be negative", self.warmup_epochs)
        if isinstance(self.background, str):
            presets = ("paper", "confined")
            _require(self.background in presets, f"background must be a number or one of {presets}", self.background)
        else:
            _require(self.background >= 0, "background must not be negative", self.background)
        if isinstance(self.attention, GradCamConfig) and self.attention.refresh == "online":
            rule = "gate_prob must be below 1 with refresh = 'online', which learns from batches that no module touched"
            _require(self.gate_prob < 1, rule, self.gate_prob)
        _require(self.max_gain >= 1, "max_gain must be at least 1", self.max_gain)
        _require(self.bank_size >= 0, "bank_size must not be negative", self.bank_size)
        if self.bank_size and not isinstance(self.operator, MixStyleConfig):
            name = type(self.operator).__name__
            raise ValueError(f"bank_size needs a MixStyleConfig operator, whose styles are moments; got {name}. Use 0.")


StyleConfig: TypeAlias = GlobalConfig | LabelDecoupledConfig


def background_share(background: Background, places: int) -> float:
    """Return b for a map of ``places`` = H·W places."""
    match background:
        case "paper":
            return PAPER_BACKGROUND * places
        case "confined":
            return CONFINED_BACKGROUND
        case _:
            return float(background)
