"""Settings of a training run: frozen, complete, and saved with the run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ldstyle.config import (
    CSULiteConfig,
    EFDMixConfig,
    GlobalConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    MixStyleConfig,
    StyleConfig,
)
from ldstyle.data.loading.image_format import Bands, Range, parse_bands, parse_range
from ldstyle.messages import require
from ldstyle.runs.algorithms import AlgorithmConfig, LossConfig, SagmConfig, compares_domains, mixes_images


def default_cache_dir() -> str:
    """Return the folder of decoded images: ``$LDSTYLE_CACHE``, or ``ldstyle`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return os.environ.get("LDSTYLE_CACHE") or str(Path(base, "ldstyle"))


@dataclass(frozen=True)
class DataConfig:
    """The source domains. A target is not named here, so training cannot reach it.

    Attributes:
        root: Data folder.
        sources: Source domains.
        size: Image side in pixels.
        cache_dir: Folder of decoded images.
        sea: Treatment of the label ``sea`` of UCM and AID: dropped, or merged with ``water``.
        mapping: Label map, a YAML file; ``None`` where the domains share their label names.
        labels: Label columns of custom CSV files; empty takes all but ``path``, ``domain``, ``mask``, ``scene`` and
            ``gsd``.
        ignore: Columns of custom CSV files that are not labels.
        pseudo_domain: Add a photometrically augmented copy of the one source as a second domain.
        bands: Bands of the image files to train on, numbers from 1 or ``NAME=NUMBER``, e.g. ``red=4,green=3,blue=2``;
            bands named red, green and blue are those that pictures show. Empty takes all bands if ``range`` is given,
            else 8-bit RGB.
        range: Darkest and brightest value, e.g. ``0,10000``, for all bands or for each in turn; or percentiles of the
            training images, e.g. ``1%,99%``. Required for values of more than 8 bits.
    """

    root: str
    sources: tuple[str, ...]
    size: int = 224
    cache_dir: str = field(default_factory=default_cache_dir)
    sea: Literal["drop", "water+sea"] = "drop"
    mapping: str | None = None
    labels: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    pseudo_domain: bool = False
    bands: Bands = ()
    range: Range = ()

    def __post_init__(self) -> None:
        parse_bands(self.bands)
        if self.range:
            parse_range(self.range)
        distinct = bool(self.sources) and len(set(self.sources)) == len(self.sources)
        require(distinct, "data.sources must name at least one domain, each once", self.sources)
        require(self.size >= 1, "data.size must be a positive number of pixels", self.size)
        single = not self.pseudo_domain or len(self.sources) == 1
        require(single, "data.pseudo_domain makes a second domain of a single source", self.sources)


@dataclass(frozen=True)
class BackboneConfig:
    """The network that is trained and later deployed.

    Attributes:
        name: Name of a timm model.
        weights: ``hub`` downloads timm's pretrained weights, ``none`` starts at random, ``efficientnet_lite0`` takes
            the weights of the extra ``pretrained``, which needs no network; anything else is a weights file.
        output_stride: Pixels per location of the last feature map, if the model supports it; ``None`` keeps its own.
        channels_last: Keep a location's channels adjacent in memory while training, which is faster for networks of
            depthwise convolutions on the CPU and for most on a GPU. Results differ by rounding.
        mean: Mean that is subtracted from images in [0, 1], one for all bands or one per band; give it, with ``std``,
            if the weights were trained with another than their network's. Empty takes that of the weights, or, if
            ``data.bands`` or ``data.range`` is given, measures it on the training images.
        std: Standard deviation that is divided by; see ``mean``.
    """

    name: str = "resnet50"
    weights: str = "hub"
    output_stride: int | None = None
    channels_last: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.mean) == bool(self.std), "backbone.mean and backbone.std must be given together",
                (self.mean, self.std))  # fmt: skip
        positive = all(value > 0 for value in self.std)
        require(positive, "backbone.std must be above 0 in each band", self.std)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with two learning rates that fall by a cosine per epoch.

    Attributes:
        backbone_lr: Learning rate of the backbone in the first epoch.
        head_lr: Learning rate of the classifier, and of learned attention, in the first epoch.
        weight_decay: Decoupled weight decay.
        min_lr: Learning rate the cosine ends at.
        clip_norm: Bound on the norm of the gradient of all parameters together.
        batch_size: Samples per step over all domains and processes.
        epochs: Most epochs to train for.
        patience: Epochs without a better model after which training stops.
        steps_per_epoch: Steps per epoch; ``None`` means one pass, floor(N / batch_size).
    """

    backbone_lr: float = 1.16e-4
    head_lr: float = 9.39e-4
    weight_decay: float = 1.59e-5
    min_lr: float = 1e-6
    clip_norm: float = 1.0
    batch_size: int = 32
    epochs: int = 100
    patience: int = 15
    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        for name in ("backbone_lr", "head_lr", "clip_norm"):
            require(getattr(self, name) > 0, f"optimizer.{name} must be positive", getattr(self, name))
        for name in ("weight_decay", "min_lr"):
            require(getattr(self, name) >= 0, f"optimizer.{name} must not be negative", getattr(self, name))
        for name in ("batch_size", "epochs", "patience"):
            require(getattr(self, name) >= 1, f"optimizer.{name} must be at least 1", getattr(self, name))
        require(self.steps_per_epoch is None or self.steps_per_epoch >= 1,
                 "optimizer.steps_per_epoch must be at least 1 or null", self.steps_per_epoch)  # fmt: skip


@dataclass(frozen=True)
class SwadConfig:
    """Dense averaging of the weights over the flat part of the validation loss, an option of any method.

    Attributes:
        n_converge: Evaluations N_s that the loss must not fall below its start for the average to begin.
        n_tolerance: Evaluations N_e over which the loss must stay above the tolerance for the average to end.
        tolerance_ratio: Tolerance r of the loss, relative to its mean at the start.
        evaluate_every: Steps between evaluations; ``None`` means once per epoch.
    """

    n_converge: int = 3
    n_tolerance: int = 6
    tolerance_ratio: float = 0.3
    evaluate_every: int | None = None

    def __post_init__(self) -> None:
        require(self.n_converge >= 1, "swad.n_converge must be at least 1", self.n_converge)
        require(self.n_tolerance >= 1, "swad.n_tolerance must be at least 1", self.n_tolerance)
        require(self.tolerance_ratio >= 0, "swad.tolerance_ratio must not be negative", self.tolerance_ratio)
        require(self.evaluate_every is None or self.evaluate_every >= 1,
                 "swad.evaluate_every must be at least 1 or null", self.evaluate_every)  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run; together with the data and the code they determine it.

    Attributes:
        data: The source domains.
        out: Folder of the run.
        method: Name of the method, for tables; ``style``, ``algorithm``, ``loss`` and ``swad`` define it.
        style: Style augmentation, or ``None`` for plain training (ERM).
        stages: Stages of a timm model, or names of submodules, that style augmentation is attached to.
        algorithm: What a training step does beyond its style, or ``None``.
        loss: Classification loss; ``None`` is the mean binary cross-entropy.
        backbone: The network.
        optimizer: How it is trained.
        swad: Dense weight averaging, or ``None``.
        seed: What splits, initialization and all draws are derived from.
        accelerator: Device kind as Lightning names it: ``auto``, ``cpu``, ``cuda``, ``mps``.
        devices: Number of processes, one device each.
        precision: Precision as Lightning names it; statistics are computed in single precision either way.
        checkpoint_minutes: Minutes between checkpoints within an epoch; one is written after every epoch anyway.
        keep_epochs: Keep the weights of every epoch, so that ``evaluate`` shows how scores on the target and attention
            developed.
        logger: ``tensorboard``, ``csv``, ``mlflow``, ``wandb`` or ``none``.
        quiet: Show no progress.
    """

    data: DataConfig
    out: str
    method: str = "erm"
    style: StyleConfig | None = None
    stages: tuple[int | str, ...] = (1, 2)
    algorithm: AlgorithmConfig | None = None
    loss: LossConfig | None = None
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    swad: SwadConfig | None = None
    seed: int = 0
    accelerator: str = "auto"
    devices: int = 1
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    checkpoint_minutes: float = 10.0
    keep_epochs: bool = False
    logger: Literal["tensorboard", "csv", "mlflow", "wandb", "none"] = "tensorboard"
    quiet: bool = False

    def __post_init__(self) -> None:
        require(self.devices >= 1, "devices must be at least 1", self.devices)
        require(self.checkpoint_minutes >= 0, "checkpoint_minutes must not be negative", self.checkpoint_minutes)
        split = self.optimizer.batch_size % self.devices == 0
        require(split, f"devices must divide optimizer.batch_size {self.optimizer.batch_size}", self.devices)
        # Without a partner in another domain every sample would be its own: plain training under another name.
        if mixes_domains(self.style):
            self._require_domains("a style that mixes them")
        self._check_algorithm()

    def _require_domains(self, what: str) -> None:
        if len(self.data.sources) == 1 and not self.data.pseudo_domain:
            raise ValueError(
                f"data.sources must name at least two domains for {what}; got {self.data.sources!r}. Name another, or "
                "set data.pseudo_domain to true: a photometric copy of the one is then the second."
            )

    def _check_algorithm(self) -> None:
        """Refuse an algorithm that would be plain training under another name, or that its style excludes."""
        kind = type(self.algorithm).__name__.removesuffix("Config")
        if compares_domains(self.algorithm):
            self._require_domains(f"algorithm {kind}")
        if mixes_images(self.algorithm) and (isinstance(self.style, LabelDecoupledConfig) or mixes_domains(self.style)):
            raise ValueError(
                f"algorithm {kind} mixes images and labels, and this style needs the labels and the domain of single "
                f"images; got {type(self.style).__name__}. Set style to null, or choose another algorithm."
            )
        match self.algorithm, self.style:
            case SagmConfig(), LabelDecoupledConfig(attention=GradCamConfig(refresh="online")):
                raise ValueError(
                    "algorithm Sagm passes each batch twice, at other weights the second time; got "
                    "style.attention.refresh = 'online', which stores maps of every pass. Use 'sweep'."
                )


def mixes_domains(style: StyleConfig | None) -> bool:
    """Whether a style takes statistics from a sample of another domain."""
    match style:
        case LabelDecoupledConfig(operator=CSULiteConfig()):
            return False
        case LabelDecoupledConfig() | GlobalConfig(operator=MixStyleConfig() | EFDMixConfig(), pairing="crossdomain"):
            return True
        case _:
            return False


RUNTIME = frozenset({"out", "checkpoint_minutes", "keep_epochs", "logger", "quiet", "data.cache_dir"})
"""Settings that cannot change a result, so that a run may be continued with others."""
