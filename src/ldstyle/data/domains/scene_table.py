"""The table of one domain: which images there are, and which labels each has, lacks, or leaves unknown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike, NDArray

PAPER_VOCABULARY = ("building", "car", "tree", "water", "pavement", "ship")
"""The six labels that UCM, AID and DFC15 share."""

IMAGE_FORMATS = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
"""The image formats that are read, as Pillow names them, and the suffixes by which folders are searched for them."""

ARRAYS = ".npy"
"""Suffix of NumPy arrays, which hold any bands and depth."""

IMAGE_SUFFIXES = frozenset(suffix for suffixes in IMAGE_FORMATS.values() for suffix in suffixes)

Report: TypeAlias = Callable[[Exception], None]
"""Reaction of a reader to a problem: raise it (the default), or note it and return; offenders are then skipped."""

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called as ``progress(done, total, what)`` while work is done."""


def fail(problem: Exception) -> None:
    """Raise ``problem``: the strict way of reporting."""
    raise problem


def file_stem(domain: str) -> str:
    """Return a domain's name as part of a file name; different names give different ones.

    Letters, digits and most signs stay. What separates folders, has a meaning to shells and file systems, or hides a
    file is written as ``%`` and its bytes in hexadecimal, as in addresses.
    """
    kept = "".join(
        quote(letter, safe="") if letter in '/\\:*?"<>|%' or not letter.isprintable() else letter for letter in domain
    )
    stem = f"%2E{kept[1:]}" if kept.startswith(".") else kept
    if len(stem.encode("utf-8", "surrogateescape")) <= LONGEST_STEM:
        return stem
    # Some 200 bytes are left for the file's own name; file systems take 255.
    return f"{stem[:16]}%{hashlib.blake2b(domain.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}"


LONGEST_STEM = 100
"""Bytes of a domain's name in a file name."""


@dataclass(frozen=True, eq=False)
class SceneTable:
    """The images and labels of one domain.

    Attributes:
        domain: Name of the domain, e.g. ``ucm``.
        root: Folder that the keys and mask paths are relative to.
        vocabulary: The L shared label names.
        keys: Stable name of each sample, unique: the POSIX path of its image relative to ``root``.
        labels: (N, L) int8, read-only: 1 present, 0 absent, -1 unknown.
        masks: POSIX path relative to ``root`` of each sample's bit mask image or ``None``; ``None`` if no sample has
            one.
        mask_bits: For each of the L labels the bits of a mask pixel that mean it, any of them; ``None``: bit l means
            label l.
        groups: What each sample belongs to, e.g. its flight or scene; a split never cuts a group. ``None``: each
            sample stands alone.
        gsd: Metres per pixel of each image file, or ``None`` where unknown; ``None`` if no sample has it.
        archive: The official download that the domain was read from, ``ucm``, ``aid`` or ``dfc15``, recognised by its
            layout; ``None`` for a custom table, whatever its domain is called.
    """

    domain: str
    root: Path
    vocabulary: tuple[str, ...]
    keys: tuple[str, ...]
    labels: NDArray[np.int8]
    masks: tuple[str | None, ...] | None = None
    groups: tuple[str, ...] | None = None
    mask_bits: tuple[tuple[int, ...], ...] | None = None
    archive: str | None = None
    gsd: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        shape = (len(self.keys), len(self.vocabulary))
        if self.labels.dtype != np.int8:
            raise TypeError(f"`labels` must be int8; got {self.labels.dtype}. Use labels.astype(np.int8).")
        if self.labels.shape != shape:
            raise ValueError(f"`labels` must have shape (N, L) = {shape} to match the keys; got {self.labels.shape}.")
        if self.labels.size and not np.isin(self.labels, (-1, 0, 1)).all():
            raise ValueError("`labels` must be 1 (present), 0 (absent) or -1 (unknown).")
        if len(set(self.keys)) != len(self.keys):
            raise ValueError(f"`keys` of domain {self.domain!r} must be unique.")
        for name, values in (("masks", self.masks), ("groups", self.groups), ("gsd", self.gsd)):
            if values is not None and len(values) != len(self.keys):
                raise ValueError(f"`{name}` must have one entry per key, {len(self.keys)}; got {len(values)}.")
        if self.mask_bits is not None and len(self.mask_bits) != len(self.vocabulary):
            raise ValueError(f"`mask_bits` must have one entry per label, {shape[1]}; got {len(self.mask_bits)}.")
        self.labels.setflags(write=False)

    def __len__(self) -> int:
        return len(self.keys)

    def path(self, row: int) -> Path:
        """Return the image file of sample ``row``."""
        return self.root / self.keys[row]

    def select(self, rows: ArrayLike | Sequence[int]) -> SceneTable:
        """Return the table of the given rows, in the order given."""
        chosen = [int(row) for row in np.asarray(rows, dtype=np.int64)]
        return SceneTable(
            domain=self.domain,
            root=self.root,
            vocabulary=self.vocabulary,
            keys=tuple(self.keys[row] for row in chosen),
            labels=self.labels[chosen],
            masks=None if self.masks is None else tuple(self.masks[row] for row in chosen),
            groups=None if self.groups is None else tuple(self.groups[row] for row in chosen),
            mask_bits=self.mask_bits,
            archive=self.archive,
            gsd=None if self.gsd is None else tuple(self.gsd[row] for row in chosen),
        )

    def regions(self, bits: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return where each label is, (..., L, H, W), from mask pixels as stored, (..., H, W)."""
        meanings = self.mask_bits or tuple((label,) for label in range(len(self.vocabulary)))
        weights = [sum(1 << bit for bit in label_bits) for label_bits in meanings]
        return np.stack([(bits & weight) != 0 for weight in weights], axis=-3)


def content_digest(table: SceneTable, files: Sequence[str]) -> str:
    """Return 32 hexadecimal digits that change with any image, mask, label or group of a domain.

    The order of the rows does not matter, nor do labels of the vocabulary that are unknown throughout: a domain has one
    digest in all splits of a grid, whatever labels the other domains add.

    Args:
        table: The domain.
        files: Content of each row's files, as text.
    """
    known = [i for i in range(len(table.vocabulary)) if (table.labels[:, i] != -1).any()]
    bits = table.mask_bits or tuple((i,) for i in range(len(table.vocabulary)))
    meaning = {table.vocabulary[i]: bits[i] if table.masks else () for i in known}
    state = hashlib.blake2b(json.dumps(meaning, sort_keys=True).encode(), digest_size=16)
    columns = sorted(known, key=lambda i: table.vocabulary[i])
    for row in sorted(range(len(table)), key=lambda row: table.keys[row]):
        group = None if table.groups is None else table.groups[row]
        labels = table.labels[row, columns].tolist()
        state.update(json.dumps([table.keys[row], group, files[row], labels]).encode() + b"\n")
    return state.hexdigest()
