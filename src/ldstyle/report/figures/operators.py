"""The effect of each operator: on the pixels of an image, and by location on the features of a network.

The images are pairs of two domains that share labels, with the regions of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.view import Results
from ldstyle.config import (
    CSULiteConfig,
    EFDMixConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    LabelOperator,
    MixStyleConfig,
)
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.deploy.explain import Explainer
from ldstyle.evaluation.style_statistics import style_points
from ldstyle.nn import LabelDecoupledStyle
from ldstyle.nn.banks import CachedMaps
from ldstyle.nn.draws import Draw, Mixing, Perturbation, StyleDraws
from ldstyle.nn.global_style import apply_global
from ldstyle.report.figures.images import (
    TrainedCell,
    first_trained,
    load_cell,
    read_images,
    read_pictures,
    read_regions,
    read_tables,
    unseen,
)
from ldstyle.report.figures.style import COLOURS, QUIET, Plate, UnavailableError, require_done, shorten
from ldstyle.report.figures.style_statistics import feature_maps
from ldstyle.seeding import derive_seed
from ldstyle.types import PairedContext

OWN_STYLE = 0.2
"""Coefficient λ of an image's own style; the partner's style has the rest."""

STRENGTH = 0.5
OPERATORS: Mapping[str, LabelOperator] = {
    "MixStyle": MixStyleConfig(),
    "EFDMix": EFDMixConfig(),
    "CSU": CSULiteConfig(strength=STRENGTH),
}


_CANDIDATES, _SMALL, _PIXELS = 60, 32, 160
_LEAST = 0.02
"""Fraction of the image below which a region is too small to be seen."""


@dataclass(frozen=True, eq=False)
class Scene:
    """An image with the regions of its labels.

    Attributes:
        domain: Its domain.
        key: Its name.
        image: (3, S, S) uint8.
        present: Which labels it has, (L,).
        attn: Attention of each label, (L, S, S), of any scale.
        seen: The image as a network takes it, (C, S, S), if that is not 8-bit RGB.
    """

    domain: str
    key: str
    image: Tensor
    present: Tensor
    attn: Tensor
    seen: Tensor | None = None


@dataclass(frozen=True, eq=False)
class _Example:
    """A scene before and after.

    Attributes:
        scene: The image.
        partner: The image whose style it takes.
        restyled: By operator, (S, S, 3) in [0, 1].
        changed: By operator, how much the features change where, (h, w), in units of their own size.
    """

    scene: Scene
    partner: Scene
    restyled: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    changed: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def shared(self) -> Tensor:
        """Labels that both have, (L,)."""
        return self.scene.present & self.partner.present


def operator_strip(results: Results) -> Plate:
    """Draw two images before and after each operator, global and label-decoupled."""
    require_done(results)
    cell = first_trained(
        results,
        lambda cell: cell.attention_source == "gradcam",
        lambda cell: cell.method == "erm",
        lambda cell: True,
    )
    trained = None if cell is None else load_cell(results, cell)
    vocabulary, pairs, by_masks = scene_pairs(results, cell or results.main.done[0], trained)
    examples = [_restyle(scene, partner, trained) for scene, partner in pairs]
    regions = "their true masks, blurred," if by_masks else "class activation maps of the model"
    below = "the pixels"
    if cell is not None:
        below = f"the features of {results.titles[cell.method]}'s first stage ({cell.split}, seed {cell.seed})"
    caption = (
        "Two images, a partner from another domain each, and the image after each operator. Upper rows: the operator "
        "applied to the red, green and blue values as if they were a feature map of three channels, with "
        f"{regions} as attention; in training it acts on features instead, which have no picture, so this shows which "
        f"statistics it moves and where, not what the network sees. Lower rows: how far it moves "
        f"{below} at each location, relative to their root mean square; dark is untouched. λ = "
        f"{OWN_STYLE:g} throughout, strength {STRENGTH:g} for CSU, whose noise is drawn once. Labels that "
        "both images have are restyled from the partner's region of the same label, others stay, except under CSU."
    )

    data = {
        "lambda": OWN_STYLE,
        "attention": "masks" if by_masks else "class activation maps",
        "model": None if cell is None else cell.cell,
        "examples": [_plain(one, vocabulary) for one in examples],
    }
    changed = "features" if cell else "pixels"
    return Plate(caption, lambda: _draw(examples, vocabulary, changed=changed), data, photographic=True)


def _plain(one: _Example, vocabulary: Sequence[str]) -> dict[str, object]:
    return {
        "image": f"{one.scene.domain}/{one.scene.key}",
        "partner": f"{one.partner.domain}/{one.partner.key}",
        "shared_labels": [vocabulary[label] for label in one.shared.nonzero()[:, 0].tolist()],
        "mean_change": {name: float(change.mean()) for name, change in one.changed.items()},
    }


def _restyle(scene: Scene, partner: Scene, trained: TrainedCell | None) -> _Example:
    images = torch.stack([scene.image, partner.image]).float() / 255
    attn = torch.stack([scene.attn, partner.attn])
    present = torch.stack([scene.present, partner.present])
    pixels = {name: after[0].clamp(0, 1) for name, after in apply_operators(images, attn, present).items()}
    feats = images
    if trained is not None:
        classifier = trained.classifier
        if scene.seen is None or partner.seen is None:
            squares = F.interpolate(images, size=(classifier.size,) * 2, mode="bilinear", antialias=True)
        else:
            squares = torch.stack([scene.seen, partner.seen])
        (point, *_) = style_points(classifier.backbone, image_size=classifier.size)
        feats = feature_maps(classifier.backbone, [point], classifier.normalise(squares))[point.name]
    size = feats[0].square().mean().sqrt()
    changed = {
        name: ((after[0] - feats[0]).square().mean(dim=0).sqrt() / size).numpy()
        for name, after in apply_operators(feats, attn, present).items()
    }
    restyled = {name: after.permute(1, 2, 0).numpy() for name, after in pixels.items()}
    return _Example(scene, partner, restyled, changed)


def apply_operators(feats: Tensor, attn: Tensor, present: Tensor) -> dict[str, Tensor]:
    """Apply every operator, global and label-decoupled, to a pair of maps, each the other's partner.

    Args:
        feats: Maps, (2, C, H, W).
        attn: Attention of each label, (2, L, h, w), of any scale.
        present: Label presence, (2, L) bool.

    Returns:
        Restyled maps by the operator's name, (2, C, H, W).
    """
    partner = torch.tensor([1, 0])
    batch = PairedContext(present, torch.tensor([0, 1]), partner=partner, global_partner=partner)
    usable = present & (attn.flatten(2) > 0).any(dim=2)
    cached = CachedMaps(attn / attn.amax().clamp(min=1e-12), usable)
    restyled = {}
    with torch.no_grad():
        for name, operator in OPERATORS.items():
            draw = _fixed_draw(operator, styles=1, channels=feats.shape[1])
            restyled[name] = apply_global(operator, feats, partner, draw)
        for name, operator in OPERATORS.items():
            config = LabelDecoupledConfig(operator=operator, attention=GradCamConfig(), warmup_epochs=0)
            module = LabelDecoupledStyle(config, feats.shape[1], attn.shape[1])
            global_ = _fixed_draw(operator, styles=1, channels=feats.shape[1])
            local = _fixed_draw(operator, styles=attn.shape[1], channels=feats.shape[1])
            restyled[f"LD-{name}"] = module(feats, batch, StyleDraws(global_, local), cached).feats
    return restyled


def _fixed_draw(operator: LabelOperator, *, styles: int, channels: int) -> Draw:
    generator = torch.Generator().manual_seed(derive_seed("operator strip", styles))
    match operator:
        case CSULiteConfig():
            noise = torch.randn(2, styles, channels, generator=generator)
            return Perturbation(noise, torch.randn(2, styles, generator=generator))
        case _:
            return Mixing(torch.full((2, styles), OWN_STYLE))


def _draw(examples: Sequence[_Example], vocabulary: Sequence[str], *, changed: str) -> Figure:
    names = list(examples[0].restyled)
    columns = ["image", "partner", *names]
    left, top, bottom, gap, width = 0.5, 0.24, 0.3, 0.08, 7.1
    side = (width - left - 0.02) / len(columns)
    height = top + bottom + 2 * side * len(examples) + gap * (len(examples) - 1)
    figure = Figure(figsize=(width, height))
    for c, column in enumerate(columns):
        figure.text((left + (c + 0.5) * side) / width, 1 - 0.12 / height, column, ha="center", va="center",
                    size=7, weight="bold" if column in ("image", "partner") else "normal")  # fmt: skip
    strongest = max(float(np.quantile(change, 0.95)) for one in examples for change in one.changed.values()) or 1.0
    colours = label_colours(scene for one in examples for scene in (one.scene, one.partner))
    for number, one in enumerate(examples):
        for row in range(2):
            y = height - top - number * (2 * side + gap) - (row + 1) * side
            for c, column in enumerate(columns):
                box = ((left + c * side) / width, y / height, 0.97 * side / width, 0.97 * side / height)
                _cell(figure.add_axes(box), one, column, upper=row == 0, strongest=strongest, colours=colours)
            text = "pixels" if row == 0 else f"change of\n{changed}"
            figure.text((left - 0.05) / width, (y + side / 2) / height, text, ha="right", va="center", size=6.5,
                        color=QUIET)  # fmt: skip
    handles = [Patch(color=colour, label=shorten(vocabulary[label])) for label, colour in colours.items()]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), handlelength=1, bbox_to_anchor=(0.5, -0.01))
    return figure


def _cell(axes: Axes, one: _Example, column: str, *, upper: bool, strongest: float, colours: Mapping[int, str]) -> None:
    axes.set_axis_off()
    if column in ("image", "partner"):
        scene = one.scene if column == "image" else one.partner
        image = (scene.image.permute(1, 2, 0).float() / 255).numpy()
        axes.imshow(image if upper else tint_regions(image, scene, colours), interpolation="nearest")
        if upper:
            axes.text(0.04, 0.04, shorten(scene.domain, 12), transform=axes.transAxes, size=6, color="white",
                      va="bottom", path_effects=[withStroke(linewidth=1.6, foreground="black")])  # fmt: skip
    elif upper:
        axes.imshow(one.restyled[column], interpolation="nearest")
    else:
        axes.imshow(one.changed[column], cmap="cividis", vmin=0, vmax=strongest, interpolation="nearest")


def scene_pairs(
    results: Results, cell: CellResult, trained: TrainedCell | None
) -> tuple[tuple[str, ...], list[tuple[Scene, Scene]], bool]:
    """Choose two pairs of held-out images whose shared labels are best to be seen, one in each direction."""
    every = unseen(read_tables(results, cell), cell)
    names = list(dict.fromkeys([*cell.sources, cell.target]))[:2]
    tables = [every[name] for name in names]
    if len(tables) < 2:
        raise UnavailableError("Two domains are needed, since styles come from another domain.")
    rows = [_candidates(table) for table in tables]
    by_masks = all(
        read_regions(table, some[:1], size=_SMALL) is not None for table, some in zip(tables, rows, strict=True)
    )
    if not by_masks and trained is None:
        raise UnavailableError("Masks or a trained model are needed for the regions of labels; there are neither here.")
    # One explainer for all: it studies the network first.
    explain = None if by_masks or trained is None else Explainer(trained.classifier)
    areas = [_areas(table, some, explain) for table, some in zip(tables, rows, strict=True)]
    pairs, used = [], set[tuple[int, int]]()
    for a, b in ((0, 1), (1, 0)):
        i, j = _best_pair(areas[a], areas[b], used, (a, b))
        used |= {(a, i), (b, j)}
        one, other = (
            _scene(tables[side], rows[side][row], explain, shown=cell.shown, trained=trained)
            for side, row in ((a, i), (b, j))
        )
        pairs.append((one, other))
    return tables[0].vocabulary, pairs, by_masks


def _candidates(table: SceneTable) -> list[int]:
    rows = np.flatnonzero((table.labels == 1).any(axis=1))
    if not len(rows):
        raise UnavailableError(f"No held-out image of {table.domain} has a label.")
    return [int(rows[position]) for position in np.linspace(0, len(rows) - 1, min(_CANDIDATES, len(rows))).astype(int)]


def _areas(table: SceneTable, rows: Sequence[int], explain: Explainer | None) -> NDArray[np.float64]:
    """Return the fraction of each image that each of its labels covers, (N, L)."""
    regions = read_regions(table, rows, size=_SMALL) if explain is None else None
    if regions is None:
        assert explain is not None
        maps = explain(read_images(table, rows, explain.classifier.model)).maps
        regions = core(maps).numpy()
    covered: NDArray[np.float64] = regions.mean(axis=(2, 3)) * (table.labels[list(rows)] == 1)
    return covered


def core(maps: Tensor) -> Tensor:
    """Return where maps (..., h, w) reach half of their maximum."""
    highest = maps.amax(dim=(-2, -1), keepdim=True)
    return (maps >= 0.5 * highest) & (highest > 0)


def _best_pair(
    own: NDArray[np.float64], other: NDArray[np.float64], used: set[tuple[int, int]], sides: tuple[int, int]
) -> tuple[int, int]:
    """Return the pair that shares most labels, none of them hardly visible and none all over the image."""
    visible = [np.where(areas >= _LEAST, np.minimum(areas, 0.3), 0.0) for areas in (own, other)]
    common = np.minimum(visible[0][:, None], visible[1][None])  # (N, M, L)
    score = np.sqrt(common).sum(axis=2)
    for side, row in used:
        if side == sides[0]:
            score[row] = -1
        if side == sides[1]:
            score[:, row] = -1
    best = int(score.argmax())
    return best // score.shape[1], best % score.shape[1]


def _scene(
    table: SceneTable, row: int, explain: Explainer | None, *, shown: Sequence[int] | None, trained: TrainedCell | None
) -> Scene:
    image = read_pictures(table, [row], size=_PIXELS, shown=shown)
    present = torch.from_numpy(table.labels[row] == 1)
    if explain is None:
        regions = read_regions(table, [row], size=_PIXELS)
        assert regions is not None
        attn = _blurred(torch.from_numpy(regions).float())
    else:
        maps = explain(read_images(table, [row], explain.classifier.model)).maps
        attn = F.interpolate(maps.float(), size=(_PIXELS, _PIXELS), mode="bilinear", align_corners=False)
    # The network sees 8-bit RGB as it is shown, and other bands as they are.
    seen = None if shown is None or trained is None else read_images(table, [row], trained.classifier.model)[0]
    return Scene(table.domain, table.keys[row], image[0], present, attn[0] * present[:, None, None], seen)


def _blurred(regions: Tensor) -> Tensor:
    """Soften the edges of regions, so that locations near a small one come next in its ranking."""
    width = _PIXELS // 40 * 2 + 1
    for _ in range(3):
        regions = F.avg_pool2d(regions, width, stride=1, padding=width // 2, count_include_pad=False)
    return regions


def label_colours(scenes: Iterable[Scene]) -> dict[int, str]:
    """Return a colour for each label that any of the scenes has."""
    labels = sorted({int(label) for scene in scenes for label in scene.present.nonzero()[:, 0]})
    return {label: COLOURS[n % len(COLOURS)] for n, label in enumerate(labels)}


def tint_regions(image: NDArray[np.float32], scene: Scene, colours: Mapping[int, str]) -> NDArray[np.float32]:
    """Tint each label's region over a grey image."""
    grey = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2)
    tinted = grey.copy()
    cores = {label: core(scene.attn[label]).numpy() for label in scene.present.nonzero()[:, 0].tolist()}
    # The largest first: a car stands on its street, not below it.
    for label, where in sorted(cores.items(), key=lambda one: -one[1].sum()):
        tinted[where] = 0.4 * grey[where] + 0.6 * np.array(to_rgb(colours[label]), dtype=np.float32)
    return tinted
