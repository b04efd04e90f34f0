"""Style statistics in the plane, and how well they classify domain and label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import fill
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor, nn

from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.view import Results
from ldstyle.data.domains.samples import pick_samples
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.deploy.explain import Explainer
from ldstyle.evaluation.style_statistics import NEIGHBOURS, Accuracy, neighbour_accuracy, standardized, style_points
from ldstyle.functional import label_moments, resize_maps, unit_mass
from ldstyle.functional.global_styles import global_moments
from ldstyle.nn import InsertionPoint
from ldstyle.nn.backbones.layout import capture
from ldstyle.nn.backbones.probe import evaluating
from ldstyle.report.figures.images import (
    BATCH,
    NO_MODELS,
    TrainedCell,
    first_trained,
    has_attention,
    load_cell,
    read_images,
    read_regions,
    read_tables,
    unseen,
)
from ldstyle.report.figures.style import (
    COLOURS,
    INK,
    MARKERS,
    QUIET,
    Plate,
    UnavailableError,
    arrange,
    new_figure,
    require_done,
    shorten,
)
from ldstyle.runs.weights import learned_attention
from ldstyle.types import Moments

GLOBAL, ATTENTION, MASKS = "global", "per label", "per label, true masks"
_SAMPLES = 288
_FEWEST = 12
_KINDS = {GLOBAL: ("o", "white"), ATTENTION: ("o", INK), MASKS: ("s", QUIET)}


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Images, each with one of its labels.

    Attributes:
        domains: Names of the domains.
        labels: Names of the labels in use.
        domain: Domain of each pair, (N,).
        label: Label of each pair, (N,).
        image: Number of its image, (N,): the same for pairs of one image.
        statistics: By kind, (N, F).
    """

    domains: tuple[str, ...]
    labels: tuple[str, ...]
    domain: NDArray[np.int64]
    label: NDArray[np.int64]
    image: NDArray[np.int64]
    statistics: Mapping[str, NDArray[np.float32]]


def style_statistics(results: Results) -> Plate:
    """Embed global and per-label statistics of unseen images by t-SNE, next to nearest-neighbour scores."""
    cell = _choose(results)
    tables = unseen(read_tables(results, cell), cell)
    pairs, source = _measure(load_cell(results, cell), tables)
    positions = {kind: _embed(pairs.statistics[kind]) for kind in (GLOBAL, ATTENTION)}
    scores = _scores(pairs)
    masks = ", and from the true masks instead" if MASKS in pairs.statistics else ""
    caption = (
        f"Channel means and deviations at the first stages of {results.titles[cell.method]} ({cell.split}, target "
        f"{cell.target}, seed {cell.seed}), {len(pairs.label)} images with one of their labels each, up to "
        f"{_per_cell(pairs)} of each label and domain, drawn from {_counted(tables, cell)}. (a) t-SNE "
        f"of the statistics of whole images; (b) of the label's region by {source}. Colours are labels, markers "
        f"domains. (c) Balanced accuracy of domain and label by the {NEIGHBOURS} nearest other images{masks}, with "
        "95 % intervals; grey strokes: chance. t-SNE can suggest groups; the accuracies are computed on the statistics "
        "themselves."
    )

    data = {
        "cell": cell.cell,
        "attention": source,
        "neighbours": NEIGHBOURS,
        "scores": {
            task: {kind: None if one is None else asdict(one) for kind, one in of_task.items()}
            for task, of_task in scores.items()
        },
        "points": [
            {
                "domain": pairs.domains[pairs.domain[i]],
                "label": pairs.labels[pairs.label[i]],
                **{kind: [round(float(v), 3) for v in position[i]] for kind, position in positions.items()},
            }
            for i in range(len(pairs.label))
        ],
    }
    return Plate(caption, lambda: _draw(pairs, positions, scores), data)


def _counted(tables: Mapping[str, SceneTable], cell: CellResult) -> str:
    """Return the images that samples are drawn from, e.g. ``all 656 images of drone and 600 held-out ones of ucm``."""
    trained = cell.trained_on
    whole = [f"all {len(table):,} images of {name}" for name, table in tables.items() if name not in trained]
    parts = [f"{len(table):,} held-out images of {name}" for name, table in tables.items() if name in trained]
    return " and ".join([*whole, *parts])


def _choose(results: Results) -> CellResult:
    """Take LD-EFDMix as the paper does, else another model with attention of its own, else any."""
    require_done(results)
    _require_tsne()
    cell = first_trained(
        results,
        lambda cell: cell.method == "ld-efdmix" and has_attention(results, cell),
        lambda cell: has_attention(results, cell),
        lambda cell: cell.attention_source == "gradcam",
        lambda cell: not cell.oracle,
    )
    if cell is None:
        raise UnavailableError(NO_MODELS)
    return cell


def _require_tsne() -> None:
    try:
        import sklearn.manifold  # noqa: F401
    except ImportError:
        raise UnavailableError("scikit-learn is needed. Install the extra `report`, or scikit-learn itself.") from None


def _measure(trained: TrainedCell, tables: Mapping[str, SceneTable]) -> tuple[_Pairs, str]:
    """Compute the statistics of images that show each label in each domain."""
    first = next(iter(tables.values()))
    labels = _frequent(list(tables.values()))
    per_cell = max(4, _SAMPLES // (len(labels) * len(tables)))
    columns: dict[str, list[Any]] = {"domain": [], "label": [], "image": []}
    parts: dict[str, list[NDArray[np.float32]]] = {}
    computed = _Statistics(trained)
    for d, table in enumerate(tables.values()):
        picked = pick_samples(table, per_cell=per_cell)
        chosen = [(row, label) for label in labels for row in picked[label]]
        for start in range(0, len(chosen), BATCH):
            batch = chosen[start : start + BATCH]
            found, usable = computed(table, [row for row, _ in batch], [label for _, label in batch])
            for kind, values in found.items():
                parts.setdefault(kind, []).append(values[usable])
            kept = [pair for pair, use in zip(batch, usable, strict=True) if use]
            columns["domain"] += [d] * len(kept)
            columns["image"] += [d * 1_000_000 + row for row, _ in kept]
            columns["label"] += [labels.index(label) for _, label in kept]
    arrays = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    if len(arrays["label"]) < _FEWEST:
        raise UnavailableError(f"Statistics of at least {_FEWEST} images are needed; there are {len(arrays['label'])}.")
    whole = {kind: np.concatenate(rows) for kind, rows in parts.items()}
    whole = {kind: values for kind, values in whole.items() if len(values) == len(arrays["label"])}
    names = tuple(first.vocabulary[label] for label in labels)
    return _Pairs(tuple(tables), names, **arrays, statistics=whole), computed.source


def _frequent(tables: Sequence[SceneTable]) -> list[int]:
    """Return the labels that most images of every domain have, as many as there are colours."""
    fractions = np.mean([(table.labels == 1).mean(axis=0) for table in tables], axis=0)
    present = [int(label) for label in np.argsort(-fractions, kind="stable") if fractions[label] > 0]
    if not present:
        raise UnavailableError("No unseen image has a label.")
    return sorted(present[: len(COLOURS)])


class _Statistics:
    """Computes the statistics of images under a model: of the whole map, and of one label's region."""

    def __init__(self, trained: TrainedCell) -> None:
        self.classifier, self.net = trained.classifier, trained.attention
        if self.net is not None:
            self.points: tuple[InsertionPoint, ...] = self.net.points
            self.source = "the attention it has learned"
        else:
            self.points = style_points(self.classifier.backbone, image_size=self.classifier.size)
            self.source = "its class activation maps"
            self.explain = Explainer(self.classifier)

    def __call__(
        self, table: SceneTable, rows: Sequence[int], labels: Sequence[int]
    ) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.bool_]]:
        """Return the statistics by kind, (n, F), and which samples have a map for their label, (n,)."""
        images = read_images(table, rows, self.classifier.model)
        inputs = self.classifier.normalise(images)
        feats = feature_maps(self.classifier.backbone, self.points, inputs)
        here = torch.arange(len(rows))
        attn = {name: maps[here, labels][:, None] for name, maps in self._attend(table, rows, images, feats).items()}
        found = {
            GLOBAL: _flat([global_moments(maps) for maps in feats.values()]),
            ATTENTION: _flat([_under(maps, attn[name]) for name, maps in feats.items()]),
        }
        regions = read_regions(table, rows, size=self.classifier.size)
        usable = torch.stack([maps.flatten(1).any(dim=1) for maps in attn.values()]).all(dim=0).numpy()
        if regions is not None:
            masks = torch.from_numpy(regions)[here, labels][:, None].float()
            found[MASKS] = _flat([_under(maps, masks) for maps in feats.values()])
            usable &= regions[here, labels].any(axis=(1, 2))
        return found, usable

    def _attend(
        self, table: SceneTable, rows: Sequence[int], images: Tensor, feats: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the maps of all labels by insertion point, (n, L, h, w) each."""
        if self.net is None:
            maps = self.explain(images).maps
            return {point.name: maps for point in self.points}
        present = torch.from_numpy(table.labels[list(rows)] == 1)
        with torch.no_grad():
            return {name: llam(feats[name], present) for name, llam in learned_attention(self.net)}


def feature_maps(backbone: nn.Module, points: Sequence[InsertionPoint], images: Tensor) -> dict[str, Tensor]:
    """Compute the feature maps at insertion points, (B, C, H, W) each, in eval mode and without gradient."""

    def copy(_point: InsertionPoint, feats: Tensor) -> Tensor:
        return feats.float().clone()

    with torch.no_grad(), evaluating(backbone), capture(backbone, points, images, copy) as captured:
        backbone(images)
    return captured


def _under(feats: Tensor, attn: Tensor) -> Moments:
    """Compute the moments of maps (B, C, H, W) under one region each, (B, 1, h, w)."""
    resized = resize_maps(attn.float(), (feats.shape[2], feats.shape[3]))
    return label_moments(feats, unit_mass(resized, torch.ones(len(feats), 1, dtype=torch.bool)))


def _flat(moments: Sequence[Moments]) -> NDArray[np.float32]:
    return torch.cat([value[:, 0] for both in moments for value in both], dim=1).numpy()


def _embed(statistics: NDArray[np.float32]) -> NDArray[np.float32]:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(statistics) - 1) / 3)
    embedding = TSNE(perplexity=perplexity, init="pca", random_state=0)
    positions: NDArray[np.float32] = embedding.fit_transform(standardized(statistics).astype(np.float32))
    return positions


def _scores(pairs: _Pairs) -> dict[str, dict[str, Accuracy | None]]:
    """Classify domain, label, and label by images of other domains only, by each kind of statistics."""
    same_image = pairs.image[:, None] == pairs.image[None]
    same_domain = pairs.domain[:, None] == pairs.domain[None]
    tasks = {
        "domain": (pairs.domain, same_image),
        "label": (pairs.label, same_image),
        "label, from other domains": (pairs.label, same_image | same_domain),
    }
    return {
        task: {kind: neighbour_accuracy(values, classes, forbidden) for kind, values in pairs.statistics.items()}
        for task, (classes, forbidden) in tasks.items()
    }


def _per_cell(pairs: _Pairs) -> int:
    return int(np.unique(pairs.domain * len(pairs.labels) + pairs.label, return_counts=True)[1].max())


def _draw(
    pairs: _Pairs, positions: Mapping[str, NDArray[np.float32]], scores: Mapping[str, Mapping[str, Accuracy | None]]
) -> Figure:
    across, down = arrange(2, 2)
    figure = new_figure(3.2 if across > 1 else 8.4)
    wide, tall = ((1.9, 1), None) if across > 1 else (None, (2.2, 1))
    grid = figure.subfigures(down, across, squeeze=False, width_ratios=wide, height_ratios=tall)
    planes, numbers = grid.ravel()
    titles = {GLOBAL: "(a) global statistics", ATTENTION: "(b) per-label statistics"}
    groups = {GLOBAL: (pairs.domain, pairs.domains), ATTENTION: (pairs.label, pairs.labels)}
    for axes, (kind, title) in zip(planes.subplots(down, across), titles.items(), strict=True):
        _scatter(axes, pairs, positions[kind])
        _name_groups(axes, positions[kind], *groups[kind])
        axes.set_title(title)
    handles = [_handle(COLOURS[n], "o", shorten(name)) for n, name in enumerate(pairs.labels)]
    handles += [_handle(QUIET, MARKERS[d % len(MARKERS)], shorten(name)) for d, name in enumerate(pairs.domains)]
    planes.legend(
        handles=handles, loc="outside lower center", ncols=5 if across > 1 else 2, columnspacing=1.2, handletextpad=0.2
    )
    _score_dots(numbers.add_subplot(), scores)
    kinds = [
        Line2D([], [], linestyle="none", label=kind, **_kind_marker(kind))
        for kind in _KINDS
        if kind in pairs.statistics
    ]
    numbers.legend(handles=kinds, loc="outside lower center", ncols=2, columnspacing=1.2, handletextpad=0.2)
    return figure


def _handle(colour: str, marker: str, text: str) -> Line2D:
    return Line2D([], [], linestyle="none", marker=marker, color=colour, label=text)


def _scatter(axes: Axes, pairs: _Pairs, positions: NDArray[np.float32]) -> None:
    for n in range(len(pairs.labels)):
        for d in range(len(pairs.domains)):
            chosen = (pairs.label == n) & (pairs.domain == d)
            axes.plot(*positions[chosen].T, linestyle="none", marker=MARKERS[d % len(MARKERS)], color=COLOURS[n],
                      markersize=3.6, markeredgecolor="white", markeredgewidth=0.3)  # fmt: skip
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(True)


def _name_groups(axes: Axes, positions: NDArray[np.float32], group: NDArray[np.int64], names: Sequence[str]) -> None:
    """Name each group where it is densest and no other name stands, for print without colours."""
    taken: list[NDArray[np.float32]] = []
    reach = np.ptp(positions, axis=0) * (0.2, 0.06)  # about the width and height of a name
    for n, name in enumerate(names):
        own = positions[group == n]
        if len(own) < NEIGHBOURS:
            continue
        distance = np.linalg.norm(own[:, None] - own[None], axis=2)
        crowd = np.sort(distance, axis=1)[:, :NEIGHBOURS].mean(axis=1)
        free = [not any((abs(position - other) < reach).all() for other in taken) for position in own]
        position = own[np.lexsort((crowd, ~np.array(free)))[0]]
        taken.append(position)
        x, y = position.tolist()
        axes.text(x, y, shorten(name, 12), size=6.5, ha="center", va="center", color=INK, weight="bold",
                  path_effects=[withStroke(linewidth=2.2, foreground="white")])  # fmt: skip


def _kind_marker(kind: str) -> dict[str, Any]:
    marker, face = _KINDS[kind]
    return {"marker": marker, "markeredgecolor": INK, "markerfacecolor": face}


def _score_dots(axes: Axes, scores: Mapping[str, Mapping[str, Accuracy | None]]) -> None:
    tasks = [task for task, of_task in scores.items() if any(of_task.values())]
    for row, task in enumerate(tasks):
        known = {kind: one for kind, one in scores[task].items() if one is not None}
        for position, (kind, one) in enumerate(known.items()):
            y = row + (position - (len(known) - 1) / 2) * 0.22
            ends = [100 * (one.score - 1.96 * one.error), 100 * (one.score + 1.96 * one.error)]
            axes.plot(ends, [y, y], color=QUIET, linewidth=1, zorder=2)
            axes.plot(100 * one.score, y, linestyle="none", markersize=5, zorder=3, **_kind_marker(kind))
            axes.text(1.02, y, f"{100 * one.score:.0f}", size=6.5, va="center", transform=axes.get_yaxis_transform())
        chance = next(iter(known.values())).chance
        axes.plot([100 * chance] * 2, [row - 0.38, row + 0.38], color=QUIET, linewidth=1.4, linestyle=(0, (1, 1)))
    axes.set_yticks(range(len(tasks)), [fill(task, 11) for task in tasks])
    axes.set(ylim=(len(tasks) - 0.45, -0.55), xlim=(0, 104), xticks=range(0, 101, 25), xlabel="balanced accuracy (%)")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_title("(c) nearest neighbours")
