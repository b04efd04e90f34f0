"""How a classifier reads the last feature map, which decides how class activation maps are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ldstyle.nn.backbones.insertion import InsertionPoint, list_points, point_at, units
from ldstyle.nn.backbones.layout import as_maps, first_tensor, logits_of, replace_first
from ldstyle.nn.backbones.probe import Survey, probe_images, survey, undisturbed, watching
from ldstyle.seeding import derive_seed


@dataclass(frozen=True)
class LinearHead:
    """Global average pooling and one linear layer: activation maps need a forward pass only.

    Attributes:
        features: Name of the submodule whose output is pooled.
        classifier: Name of the ``nn.Linear`` or 1×1 ``nn.Conv2d`` that makes the logits.
        point: The pooled map.
    """

    features: str
    classifier: str
    point: InsertionPoint


@dataclass(frozen=True)
class OpaqueHead:
    """Any other head (norms after pooling, class tokens, several layers): activation maps need its gradient.

    Attributes:
        features: Name of the submodule that returns the last feature map on which the logits depend.
        point: That map.
    """

    features: str
    point: InsertionPoint


Head: TypeAlias = LinearHead | OpaqueHead


@dataclass(frozen=True)
class _Observed:
    maps: dict[str, Tensor] = field(default_factory=dict)  # as the rest of the network received them
    versions: dict[str, int] = field(default_factory=dict)  # of the maps when they were received
    classifiers: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # input and output, (B, C) and (B, L)


def analyse_head(backbone: nn.Module, *, image_size: tuple[int, int] | None = None) -> Head:
    """Find the map the classifier reads, and whether nothing but average pooling and one linear layer follows it.

    The judgement goes by behaviour: in a forward pass on fixed random images, the input of the linear layer must be
    the spatial mean of some submodule's output and its output the logits, so anything that is the identity in eval
    mode (dropout) may stand between. For other heads the last map counts whose locations, prefix tokens apart, have a
    gradient: in a ViT with a class token that is the output of the last block but one.

    Args:
        backbone: Network to look at. Its modes, buffers, gradients and the random state stay as they are.
        image_size: Height and width of the images; by default the network's own, else 224 px.
    """
    found = survey(backbone, image_size=image_size)
    listing = list_points(backbone, found)
    points = _candidates(backbone, found, listing)
    observed = _Observed()
    with undisturbed(backbone), watching(backbone, _observer(points, observed)), torch.enable_grad():
        images = probe_images(backbone, found.image_size).requires_grad_()
        logits = logits_of(backbone(images))
    classifier = _classifier(backbone, logits, observed)
    objective = logits if classifier is None else observed.classifiers[classifier][0]
    alive = _with_gradient(objective, observed, points, found.image_size)
    if classifier is not None:
        pooled = observed.classifiers[classifier][0]
        linear = [
            name for name in alive if _is_mean(pooled, as_maps(observed.maps[name], points[name], found.image_size))
        ]
        if linear:
            name = _best_name(linear, observed, listing)
            return LinearHead(name, classifier, points[name])
    if not alive:
        raise ValueError(
            "The logits must depend on a feature map through which gradients flow; found none at images of "
            f"{found.image_size}. Pass a larger image_size, or a network that maps images to logits."
        )
    name = _best_name(alive, observed, listing)
    return OpaqueHead(name, points[name])


def _candidates(backbone: nn.Module, found: Survey, listing: Sequence[InsertionPoint]) -> dict[str, InsertionPoint]:
    """Return the listed insertion points and the maps outside all units, in the order in which they are computed."""
    listed = [point.name for point in listing]
    closed = tuple(f"{name}." for name in (*listed, *units(backbone, found)))
    names = [name for name in found.shapes if name in listed or not name.startswith(closed)]
    return {name: point for name in names if (point := point_at(name, found, listing)) is not None}


def _observer(points: dict[str, InsertionPoint], observed: _Observed) -> Any:
    def watch(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if _is_linear(module) and args and args[0][0].numel() == args[0].shape[1]:
            observed.classifiers[name] = (args[0].flatten(1), output.flatten(1))
        tensor = first_tensor(output) if name in points else None
        if tensor is None:
            return None
        # A view of its own gives each submodule its own gradient, even where several return the same tensor.
        observed.maps[name] = tensor.view_as(tensor)
        observed.versions[name] = tensor._version
        return replace_first(output, observed.maps[name])

    return watch


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (
        isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1
    )


def _classifier(backbone: nn.Module, logits: Tensor, observed: _Observed) -> str | None:
    """Return the layer whose weight and bias make the logits of its input, if there is one."""
    for name, (pooled, output) in reversed(observed.classifiers.items()):
        layer = backbone.get_submodule(name)
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        # A subclass may use its weight and bias in another way (a cosine classifier).
        plain = F.linear(pooled, layer.weight.flatten(1), layer.bias)
        if torch.equal(output, logits.flatten(1)) and _close(plain, output, scale=output):
            return name
    return None


def _with_gradient(
    objective: Tensor, observed: _Observed, points: dict[str, InsertionPoint], image_size: tuple[int, int]
) -> list[str]:
    """Return the submodules on whose locations the objective depends, in the order in which they are computed."""
    generator = torch.Generator().manual_seed(derive_seed("probe", "objective"))
    # A plain sum would not do: behind a layer norm it is constant.
    direction = torch.randn(objective.shape, generator=generator).to(objective)
    # A map that was overwritten in place (by a ReLU behind it) is no longer the output of the submodule.
    whole = {name: maps for name, maps in observed.maps.items() if maps._version == observed.versions[name]}
    maps = {name: maps for name, maps in whole.items() if maps.requires_grad}
    if not maps or not objective.requires_grad:
        return []
    gradients = torch.autograd.grad(objective, list(maps.values()), direction, allow_unused=True)
    found = zip(maps, gradients, strict=True)
    return [name for name, grad in found if grad is not None and as_maps(grad, points[name], image_size).any()]


def _is_mean(pooled: Tensor, maps: Tensor) -> bool:
    return maps.shape[1] == pooled.shape[1] and _close(pooled, maps.mean(dim=(2, 3)), scale=maps)


def _close(first: Tensor, second: Tensor, *, scale: Tensor) -> bool:
    slack = 64 * torch.finfo(scale.dtype).eps * scale.abs().amax().item()
    return torch.allclose(first, second, rtol=0, atol=slack)


def _best_name(names: Sequence[str], observed: _Observed, listing: Sequence[InsertionPoint]) -> str:
    """Name the last map: by its insertion point if it has one, else by the outermost submodule that ends in it."""
    last = observed.maps[names[-1]]
    same = [name for name in names if observed.maps[name].data_ptr() == last.data_ptr()]
    listed = [point.name for point in listing]

    def preference(name: str) -> tuple[bool, bool, int]:
        return name not in listed, any(other.startswith(f"{name}.") for other in listed), name.count(".")

    return min(same, key=preference)
