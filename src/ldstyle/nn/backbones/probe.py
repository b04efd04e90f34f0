"""Forward passes that look at a network and leave no trace in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ldstyle.nn.backbones.geometry import Declared, Geometry, read_geometry
from ldstyle.nn.backbones.layout import first_tensor
from ldstyle.seeding import derive_seed

Watcher: TypeAlias = Callable[[str, nn.Module, tuple[Any, ...], Any], Any]
"""Called with name, module, arguments and output of a submodule; a result other than ``None`` replaces the output."""

DEFAULT_SIDE = 224
_BATCH = 2  # one sample could not be distinguished from outputs that are shared by the batch
REFUSALS = (
    AssertionError,
    IndexError,
    RuntimeError,
    ValueError,
)  # what networks of a fixed image size raise for another


@dataclass(frozen=True)
class Survey:
    """Output shapes of all submodules in one forward pass.

    Attributes:
        image_size: Height and width of the images that were passed through.
        shapes: Shape of each called submodule's first tensor, in the order in which the submodules finished.
        calls: Number of times each submodule was called.
    """

    image_size: tuple[int, int]
    shapes: dict[str, tuple[int, ...]]
    calls: dict[str, int]

    def geometry(self, name: str, declared: Declared | None = None) -> Geometry | None:
        """Return the geometry of a submodule's output; ``None`` if it is no map or not one per sample."""
        shape = self.shapes.get(name, ())
        if not shape or shape[0] != _BATCH:
            return None
        return read_geometry(shape, self.image_size, declared=declared)


def survey(backbone: nn.Module, *, image_size: tuple[int, int] | None = None) -> Survey:
    """Record the output shape of each submodule for one image size.

    If some map has as many channels as rows and columns, a wider image is passed through as well where the network
    takes one, so that its layout is unambiguous.

    Args:
        backbone: Network to look at; nothing in it changes.
        image_size: Height and width of the images; by default the network's own.
    """
    height, width = image_size or default_image_size(backbone)
    try:
        found = _survey(backbone, (height, width))
    except REFUSALS as error:
        raise ValueError(
            f"`image_size` must be one that the network takes; got ({height}, {width}), which it refused: {error} "
            "Pass image_size=(H, W)."
        ) from error
    if any(len(shape) == 4 and len(set(shape[1:])) == 1 and shape[1] > 1 for shape in found.shapes.values()):
        with suppress(*REFUSALS):
            return _survey(backbone, (height, width + width // 2))
    return found


def refusal(backbone: nn.Module, image_size: tuple[int, int]) -> str | None:
    """Return the reason a network gives for refusing images of a size; ``None`` if it takes them."""
    try:
        _survey(backbone, image_size)
    except REFUSALS as error:
        return str(error)
    return None


def _survey(backbone: nn.Module, image_size: tuple[int, int]) -> Survey:
    found = Survey(image_size, {}, {})

    def watch(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        tensor = first_tensor(output)
        found.shapes.pop(name, None)
        found.shapes[name] = () if tensor is None else tuple(tensor.shape)
        found.calls[name] = found.calls.get(name, 0) + 1

    with undisturbed(backbone), watching(backbone, watch), torch.no_grad():
        backbone(probe_images(backbone, image_size))
    return found


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Set a network to eval mode inside; on exit the mode of every submodule is as it was."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            # train() rather than the bare flag: some modules drop there what they cached in eval mode (LeViT).
            if training and not module.training:
                module.train()
            module.training = training


@contextmanager
def undisturbed(backbone: nn.Module) -> Iterator[None]:
    """Set a network to eval mode and full precision inside; on exit modes and random state are as they were."""
    device = _device(backbone)
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        torch.autocast(device.type, enabled=False),
        evaluating(backbone),
    ):
        yield


@contextmanager
def watching(backbone: nn.Module, watch: Watcher) -> Iterator[None]:
    """Call ``watch`` after the forward of each submodule inside."""

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], Any]:
        return lambda module, args, output: watch(name, module, args, output)

    with ExitStack() as hooks:
        for name, module in backbone.named_modules():
            if name:
                hooks.callback(module.register_forward_hook(hook_for(name)).remove)
        yield


def probe_images(backbone: nn.Module, image_size: tuple[int, int]) -> Tensor:
    """Return the same random images each time, (2, C, H, W), on the device and in the dtype of the network."""
    stem = next((module for module in backbone.modules() if isinstance(module, nn.Conv2d)), None)
    generator = torch.Generator().manual_seed(derive_seed("probe"))
    images = torch.randn(_BATCH, stem.in_channels if stem else 3, *image_size, generator=generator)
    parameter = next((p for p in backbone.parameters() if p.is_floating_point()), images)
    return images.to(parameter.device, parameter.dtype)


def default_image_size(backbone: nn.Module) -> tuple[int, int]:
    """Return the image size a network was made for, from its patch embedding, timm or Hugging Face; else 224."""
    sizes = [getattr(module, name, None) for module in backbone.modules() for name in ("img_size", "image_size")]
    sizes.append((getattr(backbone, "default_cfg", None) or {}).get("input_size", ())[-2:])
    sizes.append(getattr(getattr(backbone, "config", None), "image_size", None))
    for size in sizes:
        match size:
            case int():
                return size, size
            case (int(height), int(width)):
                return height, width
    return DEFAULT_SIDE, DEFAULT_SIDE


def _device(backbone: nn.Module) -> torch.device:
    return next((parameter.device for parameter in backbone.parameters()), torch.device("cpu"))
