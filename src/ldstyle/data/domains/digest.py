"""A digest of all that a domain gives to training and scoring: its images, masks, labels and groups."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from ldstyle.data.domains.scene_table import SceneTable


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
