"""Which methods are rows of the benchmark, and the order in which tables and figures show them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ldstyle.benchmark.grid.ablations import ABLATIONS
from ldstyle.benchmark.grid.methods import METHODS, plain_name
from ldstyle.benchmark.grid.sensitivity import SWEEPS

BASELINE = "erm"
ORACLE = "oracle"

_EDITED = {ablation.name for ablation in ABLATIONS if ablation.edit}
_GLOBAL = tuple(name for name in METHODS if f"ld-{name}" in METHODS)
_SWEPT = tuple(f"{sweep.base}~{sweep.name}=" for sweep in SWEEPS)


def split_rank(split: str) -> list[tuple[int, str]]:
    """Return where a split stands: ``s2`` before ``s10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", split)]


def is_main(method: str) -> bool:
    """Whether a method is a row of the benchmark, and not an ablation or a point of a sweep, which have their own."""
    return method not in _EDITED and not method.startswith(_SWEPT)


def method_rank(method: str) -> tuple[int, int, str]:
    """Return where a method stands: as in the paper, ``+swad`` and its like after the plain rows, the oracle last."""
    plain = plain_name(method)
    known = METHODS.index(plain) if plain in METHODS else len(METHODS)
    return group(method), known + len(METHODS) * (plain != method), method


def group(method: str) -> int:
    """Return 0 for plain and global methods, 1 for label-decoupled ones, 2 for the user's own, 3 for the oracle."""
    plain = plain_name(method)
    if plain == ORACLE:
        return 3
    return 2 if plain not in METHODS else int(plain.startswith("ld-"))


def global_twin(method: str) -> str | None:
    """Return the global method that a label-decoupled one is compared with; ``None`` for other methods.

    A method of the user's own counts by its name: ``ld-efdmix-mine`` is compared with ``efdmix``.
    """
    plain = plain_name(method)
    for name in _GLOBAL:
        if plain == f"ld-{name}" or plain.startswith(f"ld-{name}-"):
            return name + method.removeprefix(plain)
    return None


def without_style(method: str) -> str | None:
    """Return what is left of a method without its style: ``swad`` of ``ld-efdmix+swad``; ``None`` if that is ERM."""
    plain = plain_name(method)
    rest = method.removeprefix(plain).removeprefix("+")
    return rest if plain != BASELINE and rest in METHODS else None


def leading_pair(methods: Iterable[str]) -> tuple[str, str] | None:
    """Return the first label-decoupled method that mixes with a partner and its global twin, if both are there."""
    there = list(methods)
    pairs = [(method, twin) for method in there if (twin := global_twin(method)) in there and twin is not None]
    return next((pair for pair in pairs if plain_name(pair[1]) in ("mixstyle", "efdmix")), None)
