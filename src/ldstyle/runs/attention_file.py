"""Learned attention of a finished run, stored next to the model for inspection; predictions never need it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ldstyle.files import replace_file
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
        reason = str(error).splitlines()[0]
        raise ValueError(f"'{path}' must hold the attention of this run; it cannot be used: {reason}.") from error
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
