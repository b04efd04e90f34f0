"""Style settings: closed unions of small frozen classes, composed instead of named.

The six label-decoupled variants are three operators times two attention sources; the global methods are one operator
each. Every setting carries its full word; the symbols of the paper stand in the docstrings. ``choice`` is the name of a
class in settings files, so a new class in one of the unions is all that a new choice needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from ldstyle.messages import require

Background: TypeAlias = float | Literal["paper", "confined"]
"""The identity's density b at every location: a number >= 0 or a preset (``paper`` = H·W·1e-6, ``confined`` = 0.1)."""

PAPER_BACKGROUND = 1e-6
CONFINED_BACKGROUND = 0.1


def _require_one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    require(value in choices, f"{name} must be one of {choices}", value)


def _require_threshold(value: float, *, name: str = "attention.threshold") -> None:
    require(0 <= value < 1, f"{name} must be in [0, 1)", value)


@dataclass(frozen=True)
class MixStyleConfig:
    """Interpolate moments with a partner's (Eq. 9).

    Attributes:
        alpha: Parameter α of the symmetric Beta distribution the coefficient is drawn from.
    """

    choice: ClassVar[str] = "mixstyle"
    alpha: float = 0.1

    def __post_init__(self) -> None:
        require(self.alpha > 0, "operator.alpha must be positive", self.alpha)


@dataclass(frozen=True)
class EFDMixConfig:
    """Mix sorted feature values with a partner's (Eq. 10).

    Attributes:
        alpha: Parameter α of the symmetric Beta distribution the coefficient is drawn from.
        top_ratio: Fraction ρ of the locations, by attention, whose values are matched; global EFDMix matches all.
    """

    choice: ClassVar[str] = "efdmix"
    alpha: float = 0.1
    top_ratio: float = 0.34

    def __post_init__(self) -> None:
        require(self.alpha > 0, "operator.alpha must be positive", self.alpha)
        require(0 < self.top_ratio <= 1, "operator.top_ratio must be in (0, 1]", self.top_ratio)


@dataclass(frozen=True)
class CSULiteConfig:
    """Perturb moments with independent and channel-common noise, without a partner (Eq. 11).

    Attributes:
        strength: Strength β of the perturbation.
    """

    choice: ClassVar[str] = "csu-lite"
    strength: float = 0.5

    def __post_init__(self) -> None:
        require(self.strength >= 0, "operator.strength must not be negative", self.strength)


@dataclass(frozen=True)
class CSUConfig:
    """Correlated style uncertainty as published: noise shaped by the batch covariance of the statistics. Global only.

    Attributes:
        alpha: Parameter of the symmetric Beta distribution of the per-sample factor.
    """

    choice: ClassVar[str] = "csu"
    alpha: float = 0.3

    def __post_init__(self) -> None:
        require(self.alpha > 0, "operator.alpha must be positive", self.alpha)


@dataclass(frozen=True)
class DSUConfig:
    """Domain shift with uncertainty: noise scaled by the batch deviation of the statistics. Global only."""

    choice: ClassVar[str] = "dsu"


LabelOperator: TypeAlias = MixStyleConfig | EFDMixConfig | CSULiteConfig
GlobalOperator: TypeAlias = MixStyleConfig | EFDMixConfig | CSULiteConfig | CSUConfig | DSUConfig


@dataclass(frozen=True)
class LLAMConfig:
    """Learned attention: two 1×1 convolutions and a spatial softmax (Eq. 4).

    Attributes:
        temperature: Sharpness τ of the softmax; its logits are multiplied by it.
        diversity_weight: Weight w_div of the diversity loss (Eq. 5) in the objective (Eq. 13).
        input_norm: ``instance`` standardises the module's input per sample and channel over the map, without
            parameters; ``none`` takes the features unchanged.
        input_gradient: Whether the module's input passes its gradient on to the backbone.
        blend_gradient: Whether the maps inside Eq. 3 pass their gradient on to the module.
        grounding: Loss that teaches the maps where labels are; none of them is in the paper. ``cam`` is the
            cross-entropy between each map and the network's own class activation map of a correct prediction; ``lse``
            classifies present and absent labels by log-sum-exp pooling of the attention logits.
        grounding_weight: Weight of that loss in the objective.
        grounding_threshold: Fraction of a class activation map's maximum in [0, 1) below which its values are removed
            before ``cam`` compares attention with it.
    """

    choice: ClassVar[str] = "llam"
    temperature: float = 10.0
    diversity_weight: float = 0.1
    input_norm: Literal["instance", "none"] = "instance"
    input_gradient: bool = False
    blend_gradient: bool = True
    grounding: Literal["none", "cam", "lse"] = "none"
    grounding_weight: float = 1.0
    grounding_threshold: float = 0.0

    def __post_init__(self) -> None:
        require(self.temperature > 0, "attention.temperature must be positive", self.temperature)
        require(self.diversity_weight >= 0, "attention.diversity_weight must not be negative", self.diversity_weight)
        _require_one_of("attention.input_norm", self.input_norm, ("instance", "none"))
        _require_one_of("attention.grounding", self.grounding, ("none", "cam", "lse"))
        require(self.grounding_weight >= 0, "attention.grounding_weight must not be negative", self.grounding_weight)
        _require_threshold(self.grounding_threshold, name="attention.grounding_threshold")

    @property
    def needs_class_maps(self) -> bool:
        """Whether the network's class activation maps take part in the loss."""
        return self.grounding == "cam" and self.grounding_weight > 0


@dataclass(frozen=True)
class GradCamConfig:
    """Cached class activation maps of the network's own correct predictions (Eq. 6).

    Attributes:
        refresh: ``sweep`` passes over the training set every ``refresh_every`` epochs; ``online`` updates entries
            from those training batches in which no module fired, at no extra pass; ``never`` builds the bank once.
        refresh_every: Epochs R between two sweeps.
        threshold: Fraction of a map's maximum in [0, 1) below which its values are removed before use.
        average_flips: Average the maps of a sweep over the four flips of each image.
        scales: Factors of the sweep's image size; the maps of several are averaged.
        map_scale: Image side of the sweep as a factor of the training size; images are read again at that size.
        map_size: Image side of the sweep in pixels, in place of ``map_scale``.
    """

    choice: ClassVar[str] = "gradcam"
    refresh: Literal["sweep", "online", "never"] = "sweep"
    refresh_every: int = 9
    threshold: float = 0.0
    average_flips: bool = False
    scales: tuple[float, ...] = (1.0,)
    map_scale: float = 1.0
    map_size: int | None = None

    def __post_init__(self) -> None:
        _require_one_of("attention.refresh", self.refresh, ("sweep", "online", "never"))
        require(self.refresh_every >= 1, "attention.refresh_every must be at least 1", self.refresh_every)
        _require_threshold(self.threshold)
        positive = bool(self.scales) and all(scale > 0 for scale in self.scales)
        require(positive, "attention.scales must hold at least one positive factor", self.scales)
        require(self.map_size is None or self.map_size >= 1, "attention.map_size must be positive", self.map_size)
        require(
            math.isfinite(self.map_scale) and self.map_scale > 0, "attention.map_scale must be positive", self.map_scale
        )
        if self.map_size is not None and self.map_scale != 1:
            raise ValueError(
                f"attention.map_size {self.map_size} and attention.map_scale {self.map_scale:g} both set the size of "
                "the sweep's images. Leave one of them out."
            )
        plain = not self.average_flips and self.scales == (1.0,) and self.map_size is None and self.map_scale == 1
        if self.refresh == "online" and not plain:
            raise ValueError(
                "attention.refresh 'online' takes its maps from training batches, so average_flips, scales, "
                "map_scale and map_size must keep their defaults. Set them back (map_scale to 1), or use 'sweep'."
            )

    def sweep_size(self, training_size: int) -> int:
        """Return the image side of the sweep in pixels."""
        return self.map_size or max(1, round(training_size * self.map_scale))


@dataclass(frozen=True)
class ProbeConfig:
    """Maps of a linear probe on the frozen pretrained backbone, computed once before training; not in the paper.

    Attributes:
        size: Image side in pixels at which the probe is trained and its maps are made.
        threshold: Fraction of a map's maximum in [0, 1) below which its values are removed before use.
    """

    choice: ClassVar[str] = "probe"
    size: int = 320
    threshold: float = 0.5

    def __post_init__(self) -> None:
        require(self.size >= 1, "attention.size must be a positive number of pixels", self.size)
        _require_threshold(self.threshold)


@dataclass(frozen=True)
class MasksConfig:
    """The data set's own label masks; an upper bound for research, a choice for those who have masks.

    Attributes:
        fallback: Source of the maps of images without a mask: ``uniform`` or ``probe``.
        probe_size: Image side in pixels of that probe; see :class:`ProbeConfig`.
        probe_threshold: Threshold of its maps.
    """

    choice: ClassVar[str] = "masks"
    fallback: Literal["uniform", "probe"] = "uniform"
    probe_size: int = 320
    probe_threshold: float = 0.5

    def __post_init__(self) -> None:
        _require_one_of("attention.fallback", self.fallback, ("uniform", "probe"))
        require(self.probe_size >= 1, "attention.probe_size must be a positive number of pixels", self.probe_size)
        _require_threshold(self.probe_threshold, name="attention.probe_threshold")


@dataclass(frozen=True)
class UniformConfig:
    """A uniform map per label: the ablation without attention.

    Attributes:
        switch: ``ramp`` blends the per-label path in by Eq. 12, as learned attention does; ``step`` turns it on after
            the warm-up, as cached attention does.
    """

    choice: ClassVar[str] = "uniform"
    switch: Literal["ramp", "step"] = "ramp"

    def __post_init__(self) -> None:
        _require_one_of("attention.switch", self.switch, ("ramp", "step"))


StoredAttention: TypeAlias = GradCamConfig | ProbeConfig | MasksConfig
"""Sources whose maps are looked up by sample number."""

Attention: TypeAlias = LLAMConfig | StoredAttention | UniformConfig


@dataclass(frozen=True)
class GlobalConfig:
    """A published method: one style per image.

    Attributes:
        operator: Perturbation of the statistics.
        gate_prob: Probability p that a module fires on a batch.
        pairing: ``random`` pairs by a permutation of the batch, ``crossdomain`` with a sample of another domain.
    """

    choice: ClassVar[str] = "global"
    operator: GlobalOperator = field(default_factory=MixStyleConfig)
    gate_prob: float = 0.5
    pairing: Literal["random", "crossdomain"] = "random"

    def __post_init__(self) -> None:
        require(0 <= self.gate_prob <= 1, "gate_prob must be in [0, 1]", self.gate_prob)
        _require_one_of("pairing", self.pairing, ("random", "crossdomain"))


@dataclass(frozen=True)
class LabelDecoupledConfig:
    """Label-decoupled augmentation: one style per label, inside that label's region.

    Attributes:
        operator: Perturbation of each label's statistics.
        attention: Where each label's region comes from.
        gate_prob: Probability p that a module fires on a batch.
        warmup_epochs: Epochs W of purely global augmentation; the per-label path is then blended in (Eq. 12).
        background: Weight b of the identity at every location, relative to the unit mass of attention.
        max_gain: Bound on the ratio of new to old standard deviation and on its inverse.
        bank_size: Entries M per label of the cross-domain style bank; 0 pairs within the batch only. MixStyle only.
        per_label: Draw an independent coefficient per label; off, one per sample (an ablation).
        label_matched: Pair only with samples that share a label; off, with any of another domain (an ablation).
        partner_choice: Which candidate a sample is paired with: ``most-shared`` shares most labels with it,
            ``rarest`` shares the rarest label of the batch.
    """

    choice: ClassVar[str] = "label-decoupled"
    operator: LabelOperator = field(default_factory=EFDMixConfig)
    attention: Attention = field(default_factory=LLAMConfig)
    gate_prob: float = 0.5
    warmup_epochs: int = 5
    background: Background = "paper"
    max_gain: float = 10.0
    bank_size: int = 0
    per_label: bool = True
    label_matched: bool = True
    partner_choice: Literal["most-shared", "rarest"] = "most-shared"

    def __post_init__(self) -> None:
        require(0 <= self.gate_prob <= 1, "gate_prob must be in [0, 1]", self.gate_prob)
        require(self.warmup_epochs >= 0, "warmup_epochs must not be negative", self.warmup_epochs)
        _require_one_of("partner_choice", self.partner_choice, ("most-shared", "rarest"))
        if isinstance(self.background, str):
            presets = ("paper", "confined")
            require(self.background in presets, f"background must be a number or one of {presets}", self.background)
        else:
            require(self.background >= 0, "background must not be negative", self.background)
        if isinstance(self.attention, GradCamConfig) and self.attention.refresh == "online":
            rule = "gate_prob must be below 1 with refresh = 'online', which learns from batches that no module touched"
            require(self.gate_prob < 1, rule, self.gate_prob)
        require(self.max_gain >= 1, "max_gain must be at least 1", self.max_gain)
        require(self.bank_size >= 0, "bank_size must not be negative", self.bank_size)
        if self.bank_size and not isinstance(self.operator, MixStyleConfig):
            name = type(self.operator).__name__
            raise ValueError(f"bank_size needs a MixStyleConfig operator, whose styles are moments; got {name}. Use 0.")


StyleConfig: TypeAlias = GlobalConfig | LabelDecoupledConfig


def background_weight(background: Background, locations: int) -> float:
    """Return b for a map of ``locations`` = H·W locations."""
    match background:
        case "paper":
            return PAPER_BACKGROUND * locations
        case "confined":
            return CONFINED_BACKGROUND
        case _:
            return float(background)
