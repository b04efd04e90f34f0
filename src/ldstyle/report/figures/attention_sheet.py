"""Contact sheets of a judgement of attention: image, outline of the label's region, and the map of each source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.data.domains.samples import save_figure
from ldstyle.data.loading.decode import decode, decode_mask
from ldstyle.evaluation.attention.judge import Judgement
from ldstyle.evaluation.attention.sources import AttentionSource, Part
from ldstyle.report.figures.overlays import AREA, PIXELS, Shown, draw_overlays, show

PER_LABEL = 2
"""Images shown of each label."""

_TITLES = {"llam": "LLAM", "cam": "CAM"}
_DPI = 200
_BATCH = 32


def write_sheets(folder: Path, judgement: Judgement) -> list[Path]:
    """Write ``DOMAIN.png`` for each domain, of the images furthest from training: held-out ones of a source."""
    last = {part.domain: part for part in judgement.parts}
    paths = []
    for domain, part in last.items():
        paths.append(folder / f"{domain}.png")
        save_figure(attention_sheet(part, judgement.sources), paths[-1])
    return paths


def attention_sheet(part: Part, sources: Sequence[AttentionSource]) -> Figure:
    """Draw images of each label with the maps of all sources but the uniform one."""
    shown = [one for label, places in pick(part).items() for one in _show(part, label, places, sources)]
    return draw_overlays(shown, dpi=_DPI)


def pick(part: Part, *, per_label: int = PER_LABEL) -> dict[int, list[int]]:
    """Choose images of each label by the size of its region alone, nearest to :data:`AREA`; each once if possible.

    Returns:
        By label that any image has, numbers of images of the part.
    """
    areas = np.concatenate([_areas(batch.masks, batch.present) for batch in part.batches(_BATCH)])
    distance = np.abs(np.log(np.maximum(areas, 1e-4) / AREA))
    used: set[int] = set()
    chosen: dict[int, list[int]] = {}
    for label in np.argsort((areas > 0).sum(axis=0), kind="stable").tolist():  # rare labels choose first
        ranked = [int(n) for n in np.argsort(distance[:, label], kind="stable") if areas[n, label] > 0]
        chosen[label] = sorted(ranked, key=lambda n: n in used)[:per_label]
        used.update(chosen[label])
    return {label: chosen[label] for label in sorted(chosen) if chosen[label]}


def _areas(masks: Tensor | None, present: Tensor) -> NDArray[np.float64]:
    assert masks is not None
    areas: NDArray[np.float64] = (masks.double().mean(dim=(2, 3)) * present).numpy()
    return areas


def _show(part: Part, label: int, places: Sequence[int], sources: Sequence[AttentionSource]) -> list[Shown]:
    batch = part.batch(np.array(places))
    maps: dict[str, Tensor] = {}
    for source in sources:
        maps |= source.maps(part, batch)
    table = part.table
    assert table.masks is not None
    shown = []
    for n, row in enumerate(part.rows[list(places)].tolist()):
        region = table.regions(decode_mask(table.root / str(table.masks[row]), PIXELS))[label]
        own = {title(name): found[n, label] for name, found in maps.items() if name != "uniform"}
        shown.append(show(table, row, label, decode(table.path(row), PIXELS), region, own))
    return shown


def title(source: str) -> str:
    """Return a source's name for a table or a picture."""
    name, _, point = source.partition("/")
    name, _, threshold = name.partition(">")
    name = _TITLES.get(name, name)
    if threshold:
        return f"{name}, > {threshold} of max"
    if name == "masks":
        return f"{name}, stride {point}"
    return f"{name}, {point}" if point else name
