"""The figures of the paper's tables, so that reports can show them next to measured ones. Scores are in percent.

Table 1 is counted in :mod:`ldstyle.data.domains.table1`, and Table 2 is what
:mod:`ldstyle.benchmark.search.spaces` searches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ldstyle.benchmark.search.spaces import TABLE_2
from ldstyle.data.domains.scene_table import PAPER_VOCABULARY
from ldstyle.data.domains.table1 import PAPER_TABLE_1 as TABLE_1

__all__ = [
    "TABLES_BY_TARGET",
    "TABLE_1",
    "TABLE_2",
    "TABLE_3",
    "TABLE_4",
    "TABLE_5",
    "TABLE_6",
    "TABLE_7",
    "TABLE_8",
    "TABLE_9",
    "TILES",
    "AblationRow",
    "Average",
    "Complexity",
    "Score",
    "Selected",
    "SplitRow",
    "Tile",
]


@dataclass(frozen=True)
class Tile:
    """Images of a domain, of Table 1.

    Attributes:
        pixels: Height and width.
        metres: Smallest and largest ground sampling distance.
    """

    pixels: int
    metres: tuple[float, float]


TILES: Mapping[str, Tile] = {
    "ucm": Tile(256, (0.3, 0.3)),
    "aid": Tile(600, (0.5, 8.0)),
    "dfc15": Tile(600, (0.05, 0.05)),
}


@dataclass(frozen=True)
class Score:
    """Mean and standard deviation over five seeds, in percent."""

    mean: float
    sd: float


@dataclass(frozen=True)
class SplitRow:
    """A method on a split, of Tables 4–6.

    Attributes:
        ap: Mean average precision of each label.
        map: Their mean.
        cf1: Macro-averaged F1.
        of1: Micro-averaged F1.
    """

    ap: Mapping[str, float]
    map: Score
    cf1: Score
    of1: Score


@dataclass(frozen=True)
class Average:
    """A method over the three splits, of Table 7.

    Attributes:
        average: Mean mAP.
        gain: What it is above ERM; ``None`` for ERM.
    """

    average: float
    gain: float | None


@dataclass(frozen=True)
class Selected:
    """Selected values of LD-EFDMix-GC on a split, of Table 3."""

    stages: tuple[int, ...]
    alpha: float
    gate_prob: float
    top_ratio: float
    refresh_every: int
    warmup_epochs: int


@dataclass(frozen=True)
class AblationRow:
    """A variant on split 1, of Table 8; ``change`` is its mAP minus that of the full model, which has ``None``."""

    map: Score
    cf1: Score
    of1: Score
    change: float | None


@dataclass(frozen=True)
class Complexity:
    """A family of methods, of Table 9.

    Attributes:
        parameters: Parameters in training, in millions.
        added: What it has more than ERM, in percent.
        macs: Multiply-accumulate operations per image of 224 pixels, in thousand millions.
        throughput: Least and most images per second in evaluation, at batch size 32 on one GPU.
    """

    parameters: float
    added: float
    macs: float
    throughput: tuple[int, int]


def _split(rows: Mapping[str, tuple[float, ...]]) -> Mapping[str, SplitRow]:
    """Read rows of six average precisions, then mean and deviation of mAP, CF1 and OF1."""
    read = {}
    for method, figures in rows.items():
        labels = dict(zip(PAPER_VOCABULARY, figures[:6], strict=True))
        read[method] = SplitRow(labels, Score(*figures[6:8]), Score(*figures[8:10]), Score(*figures[10:]))
    return read


def _ablation(*figures: float, change: float | None = None) -> AblationRow:
    return AblationRow(Score(*figures[:2]), Score(*figures[2:4]), Score(*figures[4:]), change)


TABLE_3: Mapping[str, Selected] = {
    "ucm": Selected((2,), 0.45, 0.20, 0.34, 9, 9),
    "aid": Selected((1,), 5.0, 0.80, 0.60, 13, 5),
    "dfc15": Selected((1,), 5.0, 0.80, 0.60, 13, 5),
}
"""Selected values by target."""

TABLE_4 = _split(
    {
        "erm": (58.2, 71.9, 83.4, 45.9, 84.4, 87.9, 72.0, 1.2, 69.5, 1.5, 73.1, 1.4),
        "mixstyle": (68.7, 77.7, 81.8, 62.9, 87.5, 93.5, 78.7, 1.2, 73.0, 3.0, 74.5, 2.2),
        "efdmix": (68.1, 73.8, 85.0, 63.6, 85.3, 93.4, 78.2, 4.3, 73.0, 3.4, 74.6, 1.7),
        "csu": (70.6, 76.6, 83.2, 52.2, 85.7, 88.3, 76.1, 1.5, 71.2, 1.0, 73.7, 1.8),
        "swad": (56.3, 71.3, 85.0, 47.5, 84.3, 87.4, 72.0, 1.8, 69.3, 2.2, 72.4, 1.9),
        "ld-mixstyle": (67.8, 72.4, 85.4, 65.3, 84.0, 90.4, 77.6, 3.6, 73.5, 2.6, 74.6, 1.9),
        "ld-efdmix": (69.7, 76.5, 86.9, 61.8, 83.8, 92.4, 78.5, 2.3, 73.8, 1.6, 75.0, 1.1),
        "ld-csu": (67.9, 78.4, 85.2, 55.2, 85.2, 95.2, 77.9, 1.8, 73.1, 1.2, 74.9, 1.9),
        "ld-mixstyle-gc": (68.0, 74.3, 85.6, 61.2, 84.4, 96.2, 78.3, 2.9, 73.7, 2.0, 75.0, 2.5),
        "ld-efdmix-gc": (71.8, 79.0, 84.9, 61.0, 83.5, 96.6, 79.5, 2.4, 74.1, 2.4, 74.9, 2.2),
        "ld-csu-gc": (69.0, 77.3, 85.3, 49.4, 85.1, 91.9, 76.3, 3.3, 72.1, 1.9, 74.0, 0.8),
        "oracle": (93.8, 95.6, 95.7, 98.5, 96.5, 99.8, 96.7, 0.3, 90.1, 0.6, 88.6, 0.5),
    }
)
"""Split 1: target UCM."""

TABLE_5 = _split(
    {
        "erm": (91.6, 92.2, 92.6, 62.5, 93.7, 32.4, 77.5, 2.1, 55.7, 4.1, 67.2, 3.8),
        "mixstyle": (93.0, 92.4, 93.6, 61.9, 92.3, 27.4, 76.8, 1.6, 57.3, 1.7, 70.8, 1.1),
        "efdmix": (93.1, 89.1, 93.1, 58.5, 91.1, 36.6, 76.9, 1.8, 56.8, 6.1, 69.1, 3.8),
        "csu": (93.1, 92.7, 92.8, 63.1, 95.6, 32.1, 78.2, 1.0, 60.2, 2.8, 70.1, 2.9),
        "swad": (91.5, 92.6, 92.8, 63.5, 93.7, 29.9, 77.3, 2.1, 54.6, 3.8, 66.7, 3.9),
        "ld-mixstyle": (91.3, 91.7, 91.5, 58.3, 93.5, 43.4, 78.3, 1.6, 57.3, 5.5, 66.4, 3.8),
        "ld-efdmix": (94.5, 92.5, 92.5, 61.7, 92.6, 40.8, 79.1, 1.6, 56.0, 2.0, 69.1, 1.5),
        "ld-csu": (92.8, 92.5, 91.4, 59.6, 94.7, 39.3, 78.4, 1.6, 54.5, 4.5, 66.4, 3.6),
        "ld-mixstyle-gc": (95.2, 92.0, 91.7, 54.5, 94.6, 36.0, 77.3, 1.6, 55.6, 3.7, 70.1, 1.7),
        "ld-efdmix-gc": (93.6, 92.9, 93.2, 60.9, 90.8, 36.0, 77.9, 2.2, 58.0, 4.1, 69.3, 5.4),
        "ld-csu-gc": (93.9, 93.1, 92.9, 58.6, 93.3, 38.3, 78.4, 1.3, 55.1, 2.2, 67.5, 2.8),
        "oracle": (99.3, 98.3, 98.9, 82.5, 99.5, 76.5, 92.5, 0.4, 86.5, 1.5, 92.8, 0.8),
    }
)
"""Split 2: target AID."""

TABLE_6 = _split(
    {
        "erm": (43.1, 42.3, 13.5, 62.1, 96.1, 43.7, 50.1, 6.2, 46.2, 4.2, 60.4, 2.3),
        "mixstyle": (46.4, 36.3, 25.4, 58.5, 97.8, 54.7, 53.2, 4.0, 47.0, 3.8, 61.9, 1.8),
        "efdmix": (48.5, 42.8, 17.3, 55.9, 98.0, 48.8, 51.9, 3.8, 46.8, 2.0, 63.4, 2.1),
        "csu": (51.0, 41.3, 24.3, 63.5, 98.2, 59.7, 56.3, 2.6, 49.4, 1.9, 64.2, 1.9),
        "swad": (42.1, 40.0, 11.0, 60.6, 96.9, 44.6, 49.2, 5.6, 45.9, 5.6, 60.6, 2.7),
        "ld-mixstyle": (60.0, 48.6, 23.4, 61.4, 97.4, 52.7, 57.3, 3.8, 49.4, 3.2, 64.0, 1.7),
        "ld-efdmix": (55.9, 44.1, 21.9, 65.2, 98.1, 54.7, 56.7, 3.1, 47.9, 3.3, 64.6, 2.2),
        "ld-csu": (45.3, 47.8, 30.7, 69.4, 98.2, 55.4, 57.8, 2.5, 50.9, 2.3, 65.9, 2.1),
        "ld-mixstyle-gc": (51.8, 42.8, 17.1, 61.3, 98.3, 54.0, 54.2, 4.3, 49.5, 3.1, 65.6, 2.5),
        "ld-efdmix-gc": (51.7, 52.0, 21.9, 61.8, 98.4, 57.8, 57.3, 5.1, 50.8, 3.2, 65.5, 1.0),
        "ld-csu-gc": (54.2, 43.4, 20.4, 66.2, 97.8, 57.7, 56.6, 2.6, 48.3, 2.7, 62.7, 2.9),
        "oracle": (98.6, 97.7, 92.8, 99.1, 100.0, 94.8, 97.2, 1.1, 91.9, 2.0, 95.6, 0.6),
    }
)
"""Split 3: target DFC15."""

TABLES_BY_TARGET: Mapping[str, Mapping[str, SplitRow]] = {"ucm": TABLE_4, "aid": TABLE_5, "dfc15": TABLE_6}

TABLE_7: Mapping[str, Average] = {
    "erm": Average(66.5, None),
    "mixstyle": Average(69.5, 3.0),
    "efdmix": Average(69.0, 2.5),
    "csu": Average(70.2, 3.7),
    "swad": Average(66.2, -0.4),
    "ld-mixstyle": Average(71.0, 4.5),
    "ld-efdmix": Average(71.4, 4.9),
    "ld-csu": Average(71.3, 4.8),
    "ld-mixstyle-gc": Average(69.9, 3.4),
    "ld-efdmix-gc": Average(71.5, 5.0),
    "ld-csu-gc": Average(70.4, 3.9),
    "oracle": Average(95.4, 28.9),
}

TABLE_8: Mapping[str, AblationRow] = {
    "ld-efdmix-gc": _ablation(79.5, 2.4, 74.1, 2.4, 74.9, 2.2),
    "ld-efdmix-gc.uniform": _ablation(76.8, 3.0, 72.5, 0.8, 74.2, 2.3, change=-2.6),
    "ld-efdmix-gc.no-refresh": _ablation(76.2, 3.5, 72.6, 1.2, 74.4, 1.3, change=-3.3),
    "ld-efdmix-gc.all-places": _ablation(77.8, 2.9, 71.8, 1.1, 73.7, 1.3, change=-1.6),
    "ld-efdmix-gc.shared-lambda": _ablation(78.6, 2.4, 73.7, 2.5, 75.6, 2.4, change=-0.8),
    "ld-efdmix-gc.any-partner": _ablation(78.8, 1.4, 74.1, 2.2, 75.1, 2.4, change=-0.6),
    "ld-efdmix-gc.no-warmup": _ablation(79.0, 2.0, 73.2, 1.7, 75.5, 1.3, change=-0.5),
    "ld-mixstyle": _ablation(77.6, 3.6, 73.5, 2.6, 74.6, 1.9),
    "ld-mixstyle.no-bank": _ablation(77.3, 1.5, 72.0, 2.1, 74.4, 2.1, change=-0.3),
}
"""By the names of :mod:`ldstyle.benchmark.studies`."""

TABLE_9: Mapping[str, Complexity] = {
    "global": Complexity(23.52, 0.0, 4.087, (1495, 1498)),
    "llam": Complexity(23.60, 0.35, 4.087, (1501, 1505)),
    "gradcam": Complexity(23.52, 0.0, 4.087, (1498, 1500)),
}
"""By the names of :mod:`ldstyle.benchmark.complexity`."""
