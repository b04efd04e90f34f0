"""How each label looks in each domain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ldstyle.benchmark.results.view import Results
from ldstyle.data.domains.samples import class_samples, pick_samples
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.report.figures.images import read_tables
from ldstyle.report.figures.style import Plate

_LABELS = 12
"""Most labels that are shown; of more, the most frequent ones."""

_COLUMNS = 9
_PIXELS = 128


def class_samples_figure(results: Results) -> Plate:
    """Draw samples of each label, a row per label and a block of columns per domain."""
    tables = _most_frequent(list(read_tables(results).values()))
    per_cell = max(1, min(3, _COLUMNS // len(tables)))
    known = len(results.main.done[0].vocabulary)
    shown = tables[0].vocabulary
    caption = (
        f"Images of each label in each domain, up to {per_cell} per label, drawn at random from all "
        f"{', '.join(f'{len(table):,} images of {table.domain}' for table in tables)} that have it "
        "(where a domain sorts its images into folders, from those in which the label is most frequent). An image may "
        f"have other labels too.{f' The {len(shown)} most frequent of {known} labels.' if len(shown) < known else ''}"
    )

    bands = results.main.done[0].shown
    data = {
        table.domain: {
            "images": len(table),
            "shown": {
                label: [table.keys[row] for row in rows]
                for label, rows in zip(shown, pick_samples(table, per_cell=per_cell), strict=True)
            },
        }
        for table in tables
    }
    return Plate(
        caption, lambda: class_samples(tables, per_cell=per_cell, size=_PIXELS, shown=bands), data, photographic=True
    )


def _most_frequent(tables: list[SceneTable]) -> list[SceneTable]:
    """Leave out the labels that are rare over all domains, where there are too many for one figure."""
    frequency = sum((table.labels == 1).mean(axis=0) for table in tables)
    if len(tables[0].vocabulary) <= _LABELS:
        return tables
    kept = np.sort(np.argsort(-np.asarray(frequency), kind="stable")[:_LABELS])
    return [_only(table, kept.tolist()) for table in tables]


def _only(table: SceneTable, labels: list[int]) -> SceneTable:
    names = tuple(table.vocabulary[label] for label in labels)
    return replace(table, vocabulary=names, labels=table.labels[:, labels].copy(), masks=None, mask_bits=None)
