"""Between a submodule's output and a (B, C, H, W) feature map, without copies where a view is enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ldstyle.nn.backbones.geometry import token_grids
from ldstyle.nn.compilation import eager

if TYPE_CHECKING:
    from ldstyle.nn.backbones.insertion import InsertionPoint


Visitor: TypeAlias = "Callable[[InsertionPoint, Tensor], Tensor | None]"
"""Called with a point and the feature map (B, C, H, W) there; a result other than ``None`` replaces the map."""


@contextmanager
def visiting(
    backbone: nn.Module, points: Iterable[InsertionPoint], image_size: tuple[int, int], visit: Visitor
) -> Iterator[None]:
    """Call ``visit`` at insertion points in the forward passes inside the block.

    A layer behind a point may overwrite its map in place, so a visitor that keeps the map copies it.

    Args:
        backbone: Network whose forward passes are visited.
        points: Where.
        image_size: Height and width of the images.
        visit: Reads the map, or returns another in its place.
    """
    with ExitStack() as hooks:
        for point in points:
            hook = partial(_visit, visit, point, image_size)
            hooks.callback(backbone.get_submodule(point.name).register_forward_hook(hook).remove)
        yield


@eager
def _visit(
    visit: Visitor, point: InsertionPoint, image_size: tuple[int, int], _module: nn.Module, _args: Any, output: Any
) -> Any:
    feats = as_maps(output, point, image_size)
    result = visit(point, feats)
    return None if result is None or result is feats else from_maps(result, output, point)


def as_maps(output: Any, point: InsertionPoint, image_size: tuple[int, int]) -> Tensor:
    """View the first tensor of a submodule's output as a feature map.

    Args:
        output: What the submodule returned: a tensor, or a tuple, list or mapping that starts with one.
        point: Where it was returned.
        image_size: Height and width of the images; they give a token sequence its grid.

    Returns:
        Feature map, (B, C, H, W), without the prefix tokens; a view of ``output``.
    """
    tensor = first_tensor(output)
    if tensor is None:
        raise TypeError(f"`output` of '{point.name}' must hold a tensor; got {_describe(output)}.")
    rank = 3 if point.layout == "tokens" else 4
    channels = 1 if point.layout == "nchw" else rank - 1
    if tensor.ndim != rank or tensor.shape[channels] != point.channels:
        raise ValueError(
            f"`output` of '{point.name}' must be a {point.layout} map with {point.channels} channels; got shape "
            f"{tuple(tensor.shape)}. Find the point again with insertion_points()."
        )
    match point.layout:
        case "nchw":
            return tensor
        case "nhwc":
            return tensor.permute(0, 3, 1, 2)
        case "tokens":
            grid = _grid(tensor.shape[1] - point.prefix_tokens, point, image_size)
            locations: Tensor = tensor[:, point.prefix_tokens :].unflatten(1, grid)  # (B, H, W, C)
            return locations.permute(0, 3, 1, 2)


def from_maps(feats: Tensor, output: Any, point: InsertionPoint) -> Any:
    """Put a feature map back where :func:`as_maps` took it from.

    Args:
        feats: Feature map, (B, C, H, W).
        output: What the submodule returned; it stays as it is.
        point: Where it was returned.

    Returns:
        A copy of the structure of ``output`` with ``feats`` as its first tensor, in the layout, dtype and memory
        format of the original. Prefix tokens and all other entries are those of ``output``.
    """
    tensor = first_tensor(output)
    if tensor is None:
        raise TypeError(f"`output` of '{point.name}' must hold a tensor; got {_describe(output)}.")
    feats = feats.to(tensor.dtype)
    match point.layout:
        case "nchw":
            restored = feats
        case "nhwc":
            restored = feats.permute(0, 2, 3, 1)
        case "tokens":
            restored = feats.permute(0, 2, 3, 1).flatten(1, 2)  # (B, N, C)
            if point.prefix_tokens:
                restored = torch.cat([tensor[:, : point.prefix_tokens], restored], dim=1)
    if restored.shape != tensor.shape:
        raise ValueError(
            f"`feats` must fill the output of '{point.name}', shape {tuple(tensor.shape)}; got "
            f"{tuple(feats.shape)}, which makes {tuple(restored.shape)}."
        )
    return replace_first(output, _in_format_of(restored, tensor))


def keep_map(_point: InsertionPoint, feats: Tensor) -> Tensor:
    """Keep a feature map as it is, without a copy."""
    return feats


@contextmanager
def capture(
    backbone: nn.Module,
    points: Iterable[InsertionPoint],
    images: Tensor,
    keep: Callable[[InsertionPoint, Tensor], Tensor] = keep_map,
) -> Iterator[dict[str, Tensor]]:
    """Collect the feature maps of the forward pass made inside the block, by the name of their insertion point.

    Args:
        backbone: Network whose forward pass is observed.
        points: Where.
        images: The images of the pass, (B, C, H, W).
        keep: Returns what is kept of a map (B, C, H, W). It runs inside the pass, before a later layer can overwrite
            the map in place.
    """
    captured: dict[str, Tensor] = {}

    def visit(point: InsertionPoint, feats: Tensor) -> None:
        captured[point.name] = keep(point, feats)

    with visiting(backbone, points, (images.shape[2], images.shape[3]), visit):
        yield captured


def logits_of(output: Any) -> Tensor:
    """Return the logits in a network's output: the tensor itself, its ``logits``, or the first of a tuple."""
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif hasattr(output, "logits"):
        logits = output.logits
    elif isinstance(output, tuple | list) and output:
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise TypeError(
            "The network must return logits as a tensor, as `logits` of a mapping or object, or first in a tuple; got "
            f"{_describe(output)}."
        )
    return logits


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor in an output, depth first, or ``None``."""
    if isinstance(output, Tensor):
        return output
    for _, value in _entries(output):
        tensor = first_tensor(value)
        if tensor is not None:
            return tensor
    return None


def replace_first(output: Any, tensor: Tensor) -> Any:
    """Return a copy of an output's structure with its first tensor replaced."""
    if isinstance(output, Tensor):
        return tensor
    key, value = next((key, value) for key, value in _entries(output) if first_tensor(value) is not None)
    replaced = replace_first(value, tensor)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):  # Hugging Face's ModelOutput
        return dataclasses.replace(output, **{key: replaced})
    if isinstance(output, Mapping):
        return {**output, key: replaced}
    values = [*output[:key], replaced, *output[key + 1 :]]
    return output._make(values) if hasattr(output, "_make") else type(output)(values)


def _entries(output: Any) -> list[tuple[Any, Any]]:
    match output:
        case Mapping():
            return list(output.items())
        case tuple() | list():
            return list(enumerate(output))
        case _:
            return []


def _grid(tokens: int, point: InsertionPoint, image_size: tuple[int, int]) -> tuple[int, int]:
    for height, width in token_grids(image_size, point.stride):
        if height * width == tokens:
            return height, width
    raise ValueError(
        f"`image_size` must give '{point.name}' its {tokens} tokens at stride {point.stride}; got {image_size}. "
        "Pass the size of the images as the network saw them."
    )


def _in_format_of(tensor: Tensor, original: Tensor) -> Tensor:
    # Code after the submodule may use .view(), which needs the memory layout it would have found.
    if original.is_contiguous():
        return tensor.contiguous()
    if original.ndim == 4 and original.is_contiguous(memory_format=torch.channels_last):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _describe(output: Any) -> str:
    entries = [f"{key}: {type(value).__name__}" for key, value in _entries(output)]
    return f"{type(output).__name__}({', '.join(entries)})" if entries else type(output).__name__
