"""Where a style module can be put into a backbone: by stage number in timm models, by name in any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import nn

from ldstyle.messages import did_you_mean
from ldstyle.nn.backbones.geometry import Declared, Geometry, Layout
from ldstyle.nn.backbones.probe import Survey, survey

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_FIRST_STAGE_STRIDE = 4


@dataclass(frozen=True)
class InsertionPoint:
    """A submodule whose output is a feature map.

    Attributes:
        name: Dotted name of the submodule in the backbone.
        stage: Stage number in a timm model; ``None`` elsewhere.
        channels: Channels C of the map.
        stride: Pixels of the image per location of the map.
        layout: Order of the dimensions.
        prefix_tokens: Class, distillation and register tokens in front of a token sequence, which style leaves alone.
    """

    name: str
    stage: int | None
    channels: int
    stride: int
    layout: Layout
    prefix_tokens: int = 0

    def __str__(self) -> str:
        stage = "" if self.stage is None else f"{self.stage} = "
        return f"{stage}'{self.name}' ({self.channels} channels, stride {self.stride})"


def insertion_points(backbone: nn.Module, *, image_size: tuple[int, int] | None = None) -> tuple[InsertionPoint, ...]:
    """List the points of a backbone where style modules can go, in the order in which they are computed.

    A timm model lists its ``feature_info``: stages count from 1 at the first entry of stride 4 or more, and the last
    entry before it is stage 0. An entry that names no map of its channels stands for the last submodule with them.

    Any other model is walked from its root. Its units are the elements of the first list of modules on each path
    (``nn.Sequential`` and its like) and the submodules next to such lists; a list whose elements share channels and
    stride is one unit, unless they are transformer blocks, and whatever spans three strides is opened further. Listed
    are the units that have submodules of their own, and of plain layers the last before a change of channels or
    stride. Token sequences are taken to be in raster order. Other submodules can be named in :func:`resolve_points`.

    Args:
        backbone: Network to look at. One forward pass in eval mode finds the maps; nothing in the network changes.
        image_size: Height and width of the images; by default the network's own, else 224 px.
    """
    return list_points(backbone, survey(backbone, image_size=image_size))


def resolve_points(
    backbone: nn.Module, stages: Sequence[int | str], *, image_size: tuple[int, int] | None = None
) -> tuple[InsertionPoint, ...]:
    """Find the insertion points for stage numbers of a timm model and for submodule names of any model.

    Args:
        backbone: Network to look at; nothing in it changes.
        stages: Stage numbers and submodule names, each point once. A name need not be in the listing of
            :func:`insertion_points`; its output must be a feature map.
        image_size: Height and width of the images; by default the network's own, else 224 px.

    Returns:
        One insertion point per entry of ``stages``, in their order.
    """
    if isinstance(stages, str) or not all(isinstance(stage, int | str) for stage in stages):
        raise TypeError(f"`stages` must be a sequence of stage numbers and submodule names; got {stages!r}.")
    found = survey(backbone, image_size=image_size)
    listing = list_points(backbone, found)
    points: list[InsertionPoint] = []
    for stage in stages:
        point = _by_name(backbone, stage, found, listing) if isinstance(stage, str) else _by_number(stage, listing)
        if point in points:
            raise ValueError(
                f"`stages` must name each insertion point once; got {list(stages)}, which has {point} twice."
            )
        points.append(point)
    return tuple(points)


def first_stages(backbone: nn.Module, *, image_size: tuple[int, int] | None = None) -> tuple[int | str, ...]:
    """Return stages 1 and 2 of a timm model; of another the first two listed blocks at stride 4 or more."""
    points = insertion_points(backbone, image_size=image_size)
    numbered = tuple(point.stage for point in points if point.stage is not None and point.stage >= 1)[:2]
    if numbered:
        return numbered
    blocks = [point for point in points if any(backbone.get_submodule(point.name).children())] or list(points)
    deep = [point for point in blocks if point.stride >= _FIRST_STAGE_STRIDE] or blocks
    return tuple(point.name for point in deep[:2])


def list_points(backbone: nn.Module, found: Survey) -> tuple[InsertionPoint, ...]:
    """List the insertion points in a survey by the rule of :func:`insertion_points`."""
    info = getattr(backbone, "feature_info", None)
    entries = getattr(info, "info", info)  # timm keeps a list of dicts or a FeatureInfo around one
    if entries and all(isinstance(entry, Mapping) and "reduction" in entry for entry in entries):
        return tuple(_timm_points(backbone, found, entries))
    names = _run_ends(backbone, found, list(units(backbone, found)))
    return tuple(point for name in names if (point := point_at(name, found, ())) is not None)


def units(backbone: nn.Module, found: Survey, name: str = "", *, element: bool = False) -> Iterator[str]:
    """Yield the names of the units below a submodule by the rule of :func:`insertion_points`, maps or not."""
    module = backbone.get_submodule(name)
    if name and not _opens(module, name, found, element=element):
        yield name
        return
    for child, _ in module.named_children():
        yield from units(backbone, found, f"{name}.{child}" if name else child, element=isinstance(module, _LISTS))


def point_at(name: str, found: Survey, listing: Sequence[InsertionPoint]) -> InsertionPoint | None:
    """Return the insertion point at a submodule, listed or not; ``None`` if its output is no map."""
    for point in listing:
        if point.name == name:
            return point
    geometry = found.geometry(name) if found.calls.get(name) == 1 else None
    return None if geometry is None else InsertionPoint(name, None, *geometry)


def _by_number(stage: int, listing: Sequence[InsertionPoint]) -> InsertionPoint:
    for point in listing:
        if point.stage == stage:
            return point
    if any(point.stage is not None for point in listing):
        raise ValueError(f"Stage {stage!r} does not exist. This network has {_enumerate(listing)}.")
    raise ValueError(
        f"Stage numbers are for timm models with `feature_info`; got {stage!r} for another network. Use a submodule "
        f"name, e.g. one of {_enumerate(listing)}."
    )


def _by_name(backbone: nn.Module, name: str, found: Survey, listing: Sequence[InsertionPoint]) -> InsertionPoint:
    names = [name for name, _ in backbone.named_modules() if name]
    if name not in names:
        hint = did_you_mean(name, [point.name for point in listing]) or did_you_mean(name, names)
        raise ValueError(f"Submodule '{name}' does not exist.{hint} This network offers {_enumerate(listing)}.")
    point = point_at(name, found, listing)
    if point is not None:
        return point
    match found.calls.get(name, 0):
        case 0:
            problem = "is not called in the forward pass"
        case 1:
            problem = f"returns shape {found.shapes[name]} for images of {found.image_size}, which is no feature map"
        case calls:
            problem = f"is called {calls} times in one forward pass"
    raise ValueError(
        f"A style module needs a submodule that is called once and returns a feature map; '{name}' {problem}. This "
        f"network offers {_enumerate(listing)}."
    )


def _enumerate(listing: Sequence[InsertionPoint]) -> str:
    return ", ".join(map(str, listing)) or "no insertion points at this image size"


def _timm_points(backbone: nn.Module, found: Survey, entries: Sequence[Mapping[str, Any]]) -> Iterator[InsertionPoint]:
    below = sum(entry["reduction"] < _FIRST_STAGE_STRIDE for entry in entries)
    for position, entry in enumerate(entries):
        declared = Declared(entry["num_chs"], entry["reduction"], getattr(backbone, "num_prefix_tokens", None))
        name = _entry_name(backbone, found, entry["module"], declared)
        geometry = found.geometry(name, declared)
        stage = position - below + 1
        if geometry is not None:
            yield InsertionPoint(name, stage if stage >= 0 else None, *geometry)


def _entry_name(backbone: nn.Module, found: Survey, name: str, declared: Declared) -> str:
    """Name the submodule a ``feature_info`` entry means: some entries name a submodule that is not there (MViT)."""
    geometry = found.geometry(name, declared)
    if geometry is not None and geometry.channels == declared.channels:
        return name
    modules = dict(backbone.named_modules())
    blocks = [other for other in found.shapes if any(modules[other].children()) and found.calls[other] == 1]
    for other in reversed(blocks):
        geometry = found.geometry(other)
        if geometry is not None and (geometry.channels, geometry.stride) == (declared.channels, declared.stride):
            return other
    return name


def _opens(module: nn.Module, name: str, found: Survey, *, element: bool) -> bool:
    """Whether the walk continues inside a submodule instead of taking it as one unit."""
    inside = [
        geometry for inner in found.shapes if inner.startswith(f"{name}.") and (geometry := found.geometry(inner))
    ]
    if len({geometry.stride for geometry in inside}) >= 3:
        return True
    if element or not any(module.children()):
        return False
    if isinstance(module, _LISTS):
        uniform = len({(geometry.channels, geometry.stride) for geometry in _elements(module, name, found)}) == 1
        return not uniform or found.geometry(name) is None or inside[-1].layout == "tokens"
    # An encoder around a list of blocks returns what its last block returns; a block with branches does not.
    own = found.geometry(name)
    lists = ((inner, part) for inner, part in module.named_modules(prefix=name) if isinstance(part, _LISTS))
    ends = [
        _elements(part, inner, found)[-1:] for inner, part in lists if any(any(e.children()) for e in part.children())
    ]
    return own is not None and any(end[0][:2] == own[:2] for end in ends if end)


def _elements(module: nn.Module, name: str, found: Survey) -> list[Geometry]:
    inner = (f"{name}.{child}" for child, _ in module.named_children())
    return [geometry for element in inner if (geometry := found.geometry(element)) is not None]


def _run_ends(backbone: nn.Module, found: Survey, units: Sequence[str]) -> Iterator[str]:
    """Yield the units with submodules, and the last plain layer of each run that holds none."""
    rank = {name: position for position, name in enumerate(found.shapes)}
    spatial = [name for name in units if found.calls.get(name) == 1 and found.geometry(name) is not None]
    spatial.sort(key=rank.__getitem__)
    for _, run in groupby(spatial, key=lambda name: (found.geometry(name) or ())[:2]):
        members = list(run)
        blocks = [name for name in members if any(backbone.get_submodule(name).children())]
        yield from blocks or members[-1:]
