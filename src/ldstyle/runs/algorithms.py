"""Settings of the training algorithms and of the classification loss: closed unions of small frozen classes.

The defaults are those of the publications. A run has at most one algorithm; style, loss and weight averaging are chosen
apart from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from ldstyle.messages import require


@dataclass(frozen=True)
class FactConfig:
    """Mix Fourier amplitudes of images between domains; labels stay (Xu et al., CVPR 2021).

    Attributes:
        strength: Largest weight η of the partner's amplitudes; the weight is drawn uniformly from 0 to it, per image.
        gate_prob: Probability that an image is mixed. One half weighs plain and mixed images alike, as published.
    """

    choice: ClassVar[str] = "fact"
    strength: float = 1.0
    gate_prob: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.strength <= 1, "algorithm.strength must be in [0, 1]", self.strength)
        require(0 <= self.gate_prob <= 1, "algorithm.gate_prob must be in [0, 1]", self.gate_prob)


@dataclass(frozen=True)
class MixupConfig:
    """Mix images and their labels (Zhang et al., ICLR 2018; between domains as in DomainBed).

    Attributes:
        alpha: Parameter α of the symmetric Beta distribution of the coefficient, drawn per image.
        pairing: ``crossdomain`` mixes with an image of another domain, ``random`` by a permutation of the batch.
    """

    choice: ClassVar[str] = "mixup"
    alpha: float = 0.2
    pairing: Literal["crossdomain", "random"] = "crossdomain"

    def __post_init__(self) -> None:
        require(self.alpha > 0, "algorithm.alpha must be positive", self.alpha)
        choices = ("crossdomain", "random")
        require(self.pairing in choices, f"algorithm.pairing must be one of {choices}", self.pairing)


@dataclass(frozen=True)
class CoralConfig:
    """Align mean and covariance of pooled features between domains (Sun and Saenko, 2016; as in DomainBed).

    Attributes:
        weight: Weight γ of the distance in the objective.
    """

    choice: ClassVar[str] = "coral"
    weight: float = 1.0

    def __post_init__(self) -> None:
        require(self.weight >= 0, "algorithm.weight must not be negative", self.weight)


@dataclass(frozen=True)
class MiroConfig:
    """Keep features close to those of the frozen pretrained network (Cha et al., ECCV 2022).

    Attributes:
        weight: Weight λ of the regularisation in the objective.
        stages: Stages of a timm model, or names of submodules, whose features are compared.
        variance: Variance of each channel at the start; it is learned.
    """

    choice: ClassVar[str] = "miro"
    weight: float = 0.1
    stages: tuple[int | str, ...] = (1, 2, 3, 4)
    variance: float = 0.1

    def __post_init__(self) -> None:
        require(self.weight >= 0, "algorithm.weight must not be negative", self.weight)
        require(bool(self.stages), "algorithm.stages must name at least one stage", self.stages)
        require(self.variance > 1e-4, "algorithm.variance must be above 1e-4", self.variance)


@dataclass(frozen=True)
class GroupDroConfig:
    """Weigh domains by their loss, the worst most (Sagawa et al., ICLR 2020).

    Attributes:
        step_size: Step size η of the exponentiated gradient of the weights.
    """

    choice: ClassVar[str] = "groupdro"
    step_size: float = 0.01

    def __post_init__(self) -> None:
        require(self.step_size >= 0, "algorithm.step_size must not be negative", self.step_size)


@dataclass(frozen=True)
class SagmConfig:
    """Sharpness-aware gradient matching: a second pass at perturbed weights (Wang et al., CVPR 2023).

    Attributes:
        radius: Radius ρ of the perturbation along the gradient.
        alpha: Weight α of the gradient that is subtracted from the perturbation, which matches the gradients.
    """

    choice: ClassVar[str] = "sagm"
    radius: float = 0.05
    alpha: float = 0.001

    def __post_init__(self) -> None:
        require(self.radius >= 0, "algorithm.radius must not be negative", self.radius)
        require(self.alpha >= 0, "algorithm.alpha must not be negative", self.alpha)


@dataclass(frozen=True)
class ErmPlusPlusConfig:
    """Train the head first, then all layers; predict by the running mean of the weights (Teterwak et al., WACV 2025).

    Attributes:
        head_ratio: Fraction of the planned steps in which only the head is trained (500 of 15,000 as published).
        average_ratio: Fraction of the planned steps after which weights are averaged (600 of 15,000 as published).
    """

    choice: ClassVar[str] = "erm++"
    head_ratio: float = 1 / 30
    average_ratio: float = 0.04

    def __post_init__(self) -> None:
        require(0 <= self.head_ratio < 1, "algorithm.head_ratio must be in [0, 1)", self.head_ratio)
        require(0 <= self.average_ratio < 1, "algorithm.average_ratio must be in [0, 1)", self.average_ratio)


AlgorithmConfig: TypeAlias = (
    FactConfig | MixupConfig | CoralConfig | MiroConfig | GroupDroConfig | SagmConfig | ErmPlusPlusConfig
)


@dataclass(frozen=True)
class CrossEntropyConfig:
    """Binary cross-entropy.

    Attributes:
        class_balanced: Weigh the present labels by absent / present in the training set, label by label.
    """

    choice: ClassVar[str] = "bce"
    class_balanced: bool = False


@dataclass(frozen=True)
class FocalConfig:
    """Focal loss: cross-entropy that fades where the prediction is right (Lin et al., ICCV 2017).

    Attributes:
        gamma: Focusing exponent γ; 0 is weighted cross-entropy.
        alpha: Weight of present labels; absent ones have 1 − alpha.
        class_balanced: Weigh the present labels by absent / present in the training set, label by label.
    """

    choice: ClassVar[str] = "focal"
    gamma: float = 2.0
    alpha: float = 0.25
    class_balanced: bool = False

    def __post_init__(self) -> None:
        require(self.gamma >= 0, "loss.gamma must not be negative", self.gamma)
        require(0 < self.alpha < 1, "loss.alpha must be in (0, 1)", self.alpha)


@dataclass(frozen=True)
class AsymmetricConfig:
    """Asymmetric loss: absent labels fade faster, and cost nothing below a margin (Ridnik et al., ICCV 2021).

    Attributes:
        gamma_positive: Focusing exponent γ₊ of present labels.
        gamma_negative: Focusing exponent γ₋ of absent labels.
        margin: Probability m up to which an absent label costs nothing.
        class_balanced: Weigh the present labels by absent / present in the training set, label by label.
    """

    choice: ClassVar[str] = "asymmetric"
    gamma_positive: float = 0.0
    gamma_negative: float = 4.0
    margin: float = 0.05
    class_balanced: bool = False

    def __post_init__(self) -> None:
        require(self.gamma_positive >= 0, "loss.gamma_positive must not be negative", self.gamma_positive)
        require(self.gamma_negative >= 0, "loss.gamma_negative must not be negative", self.gamma_negative)
        require(0 <= self.margin < 1, "loss.margin must be in [0, 1)", self.margin)


LossConfig: TypeAlias = CrossEntropyConfig | FocalConfig | AsymmetricConfig


def mixes_images(algorithm: AlgorithmConfig | None) -> bool:
    """Whether an algorithm changes what an image shows, and with it its labels."""
    return isinstance(algorithm, MixupConfig)


def compares_domains(algorithm: AlgorithmConfig | None) -> bool:
    """Whether an algorithm is plain training when there is one domain only."""
    match algorithm:
        case FactConfig() | CoralConfig() | GroupDroConfig() | MixupConfig(pairing="crossdomain"):
            return True
        case _:
            return False
