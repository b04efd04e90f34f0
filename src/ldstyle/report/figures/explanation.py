"""The method in one row: an image, its label regions, its partner, and the results of global and per-label mixing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from ldstyle.benchmark.grid.methods import leading_pair
from ldstyle.benchmark.results.view import Results
from ldstyle.report.figures.images import first_trained, load_cell
from ldstyle.report.figures.operators import (
    OWN_STYLE,
    Scene,
    apply_operators,
    core,
    label_colours,
    scene_pairs,
    tint_regions,
)
from ldstyle.report.figures.style import (
    QUIET,
    SMALL_WIDTH,
    WIDTH,
    Plate,
    UnavailableError,
    require_done,
    shorten,
    small_screen,
)
from ldstyle.report.tables.entries import joined


@dataclass(frozen=True, eq=False)
class _Mixed:
    """An image mixed with its partner both ways, (S, S, 3) in [0, 1] each."""

    scene: Scene
    partner: Scene
    whole: NDArray[np.float32]
    by_label: NDArray[np.float32]

    @property
    def kept(self) -> float:
        """Fraction of the image with labels that the partner lacks, which mixing per label leaves as they are."""
        alone = (self.scene.present & ~self.partner.present).nonzero()[:, 0]
        return float(core(self.scene.attn[alone]).any(dim=0).float().mean())

    @property
    def shared(self) -> list[int]:
        """Labels that both images have."""
        return [int(label) for label in (self.scene.present & self.partner.present).nonzero()[:, 0]]


def method_picture(results: Results) -> Plate:
    """Draw an image before and after mixing with its partner, as one style and label by label."""
    try:
        return _plate(results)
    except UnavailableError as why:  # a page without it is whole: other figures name the reason
        raise UnavailableError(str(why), optional=True) from why


def _plate(results: Results) -> Plate:
    require_done(results)
    grid = results.main
    names = leading_pair(grid.methods)
    if names is None:
        command = results.command("run", ["efdmix", "ld-efdmix"])
        raise UnavailableError(f"A label-decoupled method and its global twin are needed. Run e.g. `{command}`.")
    method, twin = (grid.titles[name] for name in names)
    cell = first_trained(results, lambda cell: cell.method == names[0], lambda cell: True)
    trained = None if cell is None else load_cell(results, cell)
    vocabulary, pairs, by_masks = scene_pairs(results, cell or grid.done[0], trained)
    shown = max((_mix(*pair) for pair in pairs), key=lambda one: one.kept)
    shared = [vocabulary[label] for label in shown.shared]
    regions = "true masks, blurred" if by_masks else "class activation maps of the model"
    caption = (
        f"An image of {shown.scene.domain}, the regions of its labels ({regions}), and a partner of "
        f"{shown.partner.domain}. {twin} mixes the statistics of the whole image with those of the whole partner, so "
        "the colours of one object affect all others. "
        f"{method} mixes the statistics of each label that both images have ({joined(shared) or 'none here'}) inside "
        "its region and leaves the rest unchanged. The picture mixes the mean and standard deviation of the pixels' "
        f"red, green and blue, with λ = {OWN_STYLE:g}. In training the methods mix features of the network's first "
        "stages, and attention estimates the regions."
    )
    data = {
        "image": f"{shown.scene.domain}/{shown.scene.key}",
        "partner": f"{shown.partner.domain}/{shown.partner.key}",
        "shared_labels": shared,
        "regions": "masks" if by_masks else "class activation maps",
        "lambda": OWN_STYLE,
        "fraction_left": shown.kept,
    }
    return Plate(caption, lambda: _draw(shown, vocabulary), data, photographic=True, stacks=True)


def _mix(scene: Scene, partner: Scene) -> _Mixed:
    images = torch.stack([scene.image, partner.image]).float() / 255
    attn, present = torch.stack([scene.attn, partner.attn]), torch.stack([scene.present, partner.present])
    after = apply_operators(images, attn, present)
    whole, by_label = (after[name][0].clamp(0, 1).permute(1, 2, 0).numpy() for name in ("MixStyle", "LD-MixStyle"))
    return _Mixed(scene, partner, whole, by_label)


def _draw(shown: _Mixed, vocabulary: Sequence[str]) -> Figure:
    image, other = ((one.image.permute(1, 2, 0).float() / 255).numpy() for one in (shown.scene, shown.partner))
    colours = label_colours([shown.scene])
    panels = [
        ("image", shown.scene.domain, image),
        ("label regions", "one colour per label", tint_regions(image, shown.scene, colours)),
        ("partner", shown.partner.domain, other),
        ("global mixing", "one style per image", shown.whole),
        ("per-label mixing", "one style per label", shown.by_label),
    ]
    small = small_screen()
    across, width = (2, SMALL_WIDTH) if small else (len(panels), WIDTH)
    down = -(-len(panels) // across)
    gap, header, foot = 0.08, 0.4, 0.0 if small else 0.3
    side = (width - gap * (across - 1)) / across
    height = down * (side + header) + foot
    figure = Figure(figsize=(width, height))
    for number, (title, subtitle, pixels) in enumerate(panels):
        row, column = divmod(number, across)
        left, top = column * (side + gap), height - row * (side + header)
        axes = figure.add_axes((left / width, (top - header - side) / height, side / width, side / height))
        axes.set_axis_off()
        axes.imshow(pixels, interpolation="nearest")
        figure.text((left + 0.01) / width, (top - 0.14) / height, title, weight="bold", va="center")
        subtitle = shorten(subtitle, 26)
        figure.text((left + 0.01) / width, (top - 0.29) / height, subtitle, size=7, color=QUIET, va="center")
    handles = [Patch(color=colour, label=shorten(vocabulary[label])) for label, colour in colours.items()]
    if small:  # in the room that the last panel leaves
        middle = ((side + gap + side / 2) / width, side / 2 / height)
        figure.legend(handles=handles, loc="center", bbox_to_anchor=middle, handlelength=1)
    else:
        figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.01, -0.03), ncols=6, handlelength=1)
    return figure
