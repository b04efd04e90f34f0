"""Weights that a run keeps next to its model: learned attention, and those of every epoch on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ldstyle.files import replace_file
from ldstyle.messages import first_line
from ldstyle.nn import LLAM, LabelDecoupledStyle, StyledNet, attach
from ldstyle.runs.config import RunConfig

ATTENTION = "attention.safetensors"


def attention_state(net: nn.Module) -> dict[str, Tensor]:
    """Return copies of the weights of learned attention on the host, by insertion point; empty without any."""
    return {
        f"{name}/{key}": value.detach().cpu().clone()
        for name, llam in learned_attention(net)
        for key, value in llam.state_dict().items()
    }


def save_attention(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write ``attention.safetensors`` into the folder of a run; nothing for methods without learned attention."""
    if state:
        content = save({key: value.contiguous() for key, value in state.items()})
        replace_file(folder / ATTENTION, lambda file: file.write(content))


def load_attention(folder: Path, backbone: nn.Module, config: RunConfig, *, num_labels: int) -> StyledNet:
    """Put the learned attention of a run back onto its backbone.

    Args:
        folder: Folder of the run.
        backbone: Its plain backbone, as :func:`ldstyle.runs.model_file.load_model` returns it.
        config: Its settings.
        num_labels: Number of labels L.

    Raises:
        FileNotFoundError: The run kept no learned attention.
        ValueError: The file does not hold the attention that the settings describe.
    """
    path = folder / ATTENTION
    if not path.is_file() or config.style is None:
        raise FileNotFoundError(f"There is no learned attention '{path}'; only finished runs that learn it have one.")
    size = (config.data.size, config.data.size)
    net = attach(backbone, config.style, stages=config.stages, num_labels=num_labels, image_size=size)
    try:
        set_attention(net, load_file(path))
    except (SafetensorError, KeyError, RuntimeError) as error:
        problem = f"it cannot be used: {first_line(error)}."
        raise ValueError(f"'{path}' must hold the attention of this run; {problem}") from error
    return net.eval()


def set_attention(net: StyledNet, state: Mapping[str, Tensor]) -> None:
    """Load what :func:`attention_state` returned."""
    for name, llam in learned_attention(net):
        llam.load_state_dict({key: state[f"{name}/{key}"] for key in llam.state_dict()})


def learned_attention(net: nn.Module) -> Iterator[tuple[str, LLAM]]:
    """Yield the insertion points of a network that have learned attention, with their modules."""
    if isinstance(net, StyledNet):
        for point, style in zip(net.points, net.styles, strict=True):
            if isinstance(style, LabelDecoupledStyle) and style.llam is not None:
                yield point.name, style.llam


EPOCHS = "epochs"
_BACKBONE, _ATTENTION = "backbone:", "attention:"


def save_epoch(folder: Path, epoch: int, net: nn.Module, backbone: nn.Module) -> None:
    """Write the weights of the plain backbone and of learned attention to ``epochs/NNN.safetensors``."""
    tensors = {f"{_BACKBONE}{name}": value.detach().cpu() for name, value in backbone.state_dict().items()}
    tensors |= {f"{_ATTENTION}{name}": value for name, value in attention_state(net).items()}
    # Cloned, since two names may share their weights, which the format does not allow.
    content = save({name: value.contiguous().clone() for name, value in tensors.items()})
    (folder / EPOCHS).mkdir(exist_ok=True)
    replace_file(folder / EPOCHS / f"{epoch:03d}.safetensors", lambda file: file.write(content))


def load_epochs(folder: Path) -> Iterator[tuple[int, dict[str, Tensor], dict[str, Tensor]]]:
    """Yield epoch, weights of the backbone and of learned attention, epoch by epoch; nothing if none were kept.

    Raises:
        ValueError: A file is damaged.
    """
    for path in sorted((folder / EPOCHS).glob("*.safetensors")):
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"'{path}' must hold the weights of an epoch; it cannot be read: {error}.") from error
        yield int(path.stem), _under(_BACKBONE, tensors), _under(_ATTENTION, tensors)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
