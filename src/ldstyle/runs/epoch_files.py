"""Weights of every epoch, kept on request, to evaluate how a run developed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ldstyle.files import replace_file
from ldstyle.runs.attention_file import attention_state

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
