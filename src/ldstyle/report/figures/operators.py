"""The effect of each operator: on the pixels of an image, and by location on the features of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.benchmark.results.view import Results
from ldstyle.config import (
    CSULiteConfig,
    EFDMixConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    LabelOperator,
    MixStyleConfig,
)
from ldstyle.evaluation.style_statistics import style_points
from ldstyle.nn import LabelDecoupledStyle
from ldstyle.nn.banks import CachedMaps
from ldstyle.nn.draws import Draw, Mixing, Perturbation, StyleDraws
from ldstyle.nn.global_style import apply_global
from ldstyle.report.figures.images import TrainedCell, first_trained, load_cell
from ldstyle.report.figures.scene_pairs import Scene, label_colours, scene_pairs, tint_regions
from ldstyle.report.figures.style import QUIET, Plate, require_done, shorten
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
