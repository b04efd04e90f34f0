"""Which samples and which domains a run may see: the 80/10/10 parts of a domain, and the folds over domains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.seeding import derive_seed

PARTS = ("train", "validation", "test")
HELD_BACK = 0.1
"""Fraction of a domain in its validation part, and in its test part."""


@dataclass(frozen=True, eq=False)
class Split:
    """The parts of one domain: rows of its table, ascending.

    Attributes:
        domain: Name of the domain.
        seed: Seed of the split.
        train: Rows to train on, int64; about 80 %.
        validation: Rows to choose models on, int64; about 10 %.
        test: Rows to report, int64; about 10 %.
        digest: Hash of the keys in each part, for the record of a run.
    """

    domain: str
    seed: int
    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    digest: str


@dataclass(frozen=True)
class DomainFold:
    """A benchmark split: train on the sources, report on the target, which training never opens."""

    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class SourceFold:
    """A fold of the hyperparameter search: train on some sources, score on the one held out.

    Attributes:
        sources: Domains to train on.
        held_out: The source to score on.
        pseudo: Whether the one remaining source is paired with a photometric copy of itself as a second domain.
    """

    sources: tuple[str, ...]
    held_out: str
    pseudo: bool


def split_domain(table: SceneTable, *, seed: int) -> Split:
    """Split a domain 80/10/10 at random, the same for all methods, without cutting a group.

    The split follows from the domain's name, the seed and the keys; the order of the table's rows does not matter.
    Validation and test take a tenth each, rounded, at least one group; groups go one by one, in random order, to the
    part that lacks most samples.

    Raises:
        ValueError: There are fewer than three groups, or samples if there are no groups.
    """
    groups = np.asarray(table.keys if table.groups is None else table.groups, dtype=np.str_)
    names, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < len(PARTS):
        what = "samples" if table.groups is None else "groups"
        raise ValueError(f"A split into train, validation and test needs 3 {what}; {table.domain!r} has {len(names)}.")
    generator = np.random.Generator(np.random.PCG64DXSM(derive_seed("split", table.domain, seed)))
    part = _deal(sizes, generator.permutation(len(names)))[group]
    train, validation, test = (np.flatnonzero(part == p) for p in range(len(PARTS)))
    keys = [sorted(table.keys[row] for row in rows) for rows in (train, validation, test)]
    digest = hashlib.blake2b(json.dumps([table.domain, seed, keys]).encode(), digest_size=16).hexdigest()
    return Split(table.domain, seed, train, validation, test, digest)


def _deal(sizes: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part of each group; groups are dealt in ``order`` to the part that lacks most."""
    held_back = max(1, round(HELD_BACK * int(sizes.sum())))
    lacking = np.array([sizes.sum() - 2 * held_back, held_back, held_back])
    part = np.full(len(sizes), -1)
    empty = set(range(len(lacking)))
    for left, group in zip(range(len(order), 0, -1), order, strict=True):
        # The last groups go to parts that have none yet, so no part stays empty.
        candidates = sorted(empty) if left <= len(empty) else range(len(lacking))
        chosen = max(candidates, key=lambda p: lacking[p])
        part[group] = chosen
        lacking[chosen] -= sizes[group]
        empty.discard(chosen)
    return part


def leave_one_domain_out(domains: Sequence[str]) -> tuple[DomainFold, ...]:
    """Make each domain the target once, with all others as sources."""
    _require_several(domains, "Leave-one-domain-out")
    return tuple(DomainFold(tuple(d for d in domains if d != target), target) for target in domains)


def leave_one_source_out(sources: Sequence[str]) -> tuple[SourceFold, ...]:
    """Hold each source out once; with two sources the remaining one is paired with a copy of itself."""
    _require_several(sources, "Leave-one-source-out")
    folds = ((tuple(s for s in sources if s != held_out), held_out) for held_out in sources)
    return tuple(SourceFold(rest, held_out, pseudo=len(rest) == 1) for rest, held_out in folds)


def _require_several(domains: Sequence[str], what: str) -> None:
    if len(domains) < 2 or len(set(domains)) != len(domains):
        raise ValueError(f"{what} needs at least two different domains; got {tuple(domains)}.")
