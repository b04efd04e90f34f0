"""Writes synthetic scenes to disk: images, masks and a table of labels for each domain."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from ldstyle.data.domains.scene_table import Progress
from ldstyle.data.synthetic.domains import DOMAINS, VOCABULARY
from ldstyle.data.synthetic.render import check_size, draw_scene
from ldstyle.workers import end_with_parent

MANIFEST = "scenes.json"
TABLE = "labels.csv"
DRAWING = 1
"""Goes up whenever the same seed draws something else, so that older folders are generated again."""

MOST = 100_000
"""Scenes per domain that five digits can number."""

_CHUNK = 20

_Rows: TypeAlias = list[list[int]]
_Task: TypeAlias = tuple[str, int, int]


def write_scenes(
    out: Path, *, per_domain: int, size: int = 128, seed: int = 0, workers: int = 2, progress: Progress | None = None
) -> Path:
    """Draw scenes of every built-in domain into a folder, and return it.

    The folder holds ``<domain>/images/NNNNN.png``, ``<domain>/masks/NNNNN.png`` (bit l of a pixel is label l) and
    ``<domain>/labels.csv``; it appears whole or not at all. Nothing is drawn if the same scenes are there already; a
    folder of other synthetic scenes is replaced, and any other folder that is not empty is refused.

    With more than one worker, a script must call this below ``if __name__ == "__main__":``, as ``multiprocessing``
    demands.

    Args:
        out: The folder to write.
        per_domain: Scenes per domain.
        size: Side of the images in pixels.
        seed: Seed of the collection; a scene depends on it, its domain and its number alone.
        workers: Processes that draw.
        progress: Called with the number of scenes written so far.
    """
    check_size(size)
    if not 1 <= per_domain <= MOST:
        raise ValueError(f"`per_domain` must be from 1 to {MOST}; got {per_domain}.")
    if workers < 1:
        raise ValueError(f"`workers` must be at least 1; got {workers}.")
    manifest = {
        "drawing": DRAWING,
        "domains": list(DOMAINS),
        "vocabulary": list(VOCABULARY),
        "per_domain": per_domain,
        "size": size,
        "seed": seed,
    }
    out = Path(out)
    known = _own_manifest(out)
    if known == manifest and _complete(out, per_domain):
        return out
    draft = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}.tmp")
    draft.mkdir(parents=True)
    try:
        _draw_all(draft, per_domain=per_domain, size=size, seed=seed, workers=workers, progress=progress)
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        _put(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out


def _own_manifest(out: Path) -> dict[str, Any] | None:
    """Return the manifest of a folder of synthetic scenes, ``None`` if nothing is there, and refuse everything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    try:
        manifest: dict[str, Any] = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        foreign = {path.name for path in out.iterdir()} - {MANIFEST, *manifest["domains"]}
    except (OSError, ValueError, TypeError, KeyError):
        raise FileExistsError(
            f"Synthetic scenes overwrite no other files; '{out}' exists and holds no scenes. Choose another folder."
        ) from None
    if foreign:
        raise FileExistsError(
            f"Synthetic scenes overwrite no other files; '{out}' also holds '{min(foreign)}'. Move it away or choose "
            "another folder."
        )
    return manifest


def _complete(out: Path, per_domain: int) -> bool:
    tables = all((out / domain / TABLE).is_file() for domain in DOMAINS)
    folders = [out / domain / kind for domain in DOMAINS for kind in ("images", "masks")]
    return tables and all(folder.is_dir() and len(list(folder.iterdir())) == per_domain for folder in folders)


def _draw_all(draft: Path, *, per_domain: int, size: int, seed: int, workers: int, progress: Progress | None) -> None:
    for domain in DOMAINS:
        for kind in ("images", "masks"):
            (draft / domain / kind).mkdir(parents=True)
    tasks = [
        (domain, start, min(start + _CHUNK, per_domain)) for domain in DOMAINS for start in range(0, per_domain, _CHUNK)
    ]
    rows: dict[_Task, _Rows] = {}
    done = 0
    for task, labels in _draw_tasks(draft, tasks, size=size, seed=seed, workers=workers):
        rows[task] = labels
        done += len(labels)
        if progress is not None:
            progress(done, per_domain * len(DOMAINS), "scenes")
    for domain in DOMAINS:
        _write_table(draft / domain / TABLE, [row for task in tasks if task[0] == domain for row in rows[task]])


def _draw_tasks(
    draft: Path, tasks: list[_Task], *, size: int, seed: int, workers: int
) -> Iterator[tuple[_Task, _Rows]]:
    if min(workers, len(tasks)) == 1:
        for task in tasks:
            yield task, _draw_some(draft, task, size, seed)
        return
    # Forking a process that runs threads (torch does) can hang the child.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context, initializer=end_with_parent) as pool:
        waiting = {pool.submit(_draw_some, draft, task, size, seed): task for task in tasks}
        try:
            for finished in as_completed(waiting):
                yield waiting[finished], finished.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _draw_some(draft: Path, task: _Task, size: int, seed: int) -> _Rows:
    domain, start, stop = task
    rows = []
    for number in range(start, stop):
        scene = draw_scene(domain, number, seed=seed, size=size)
        bits = np.packbits(scene.masks, axis=0, bitorder="little")[0]  # (S, S)
        name = _name(number)
        # Noise hardly compresses: a higher level costs time and saves little.
        Image.fromarray(scene.image).save(draft / domain / "images" / name, compress_level=1)
        Image.fromarray(bits).save(draft / domain / "masks" / name)
        rows.append(scene.labels.astype(int).tolist())
    return rows


def _write_table(path: Path, rows: _Rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["path", "mask", *VOCABULARY])
        for number, labels in enumerate(rows):
            name = _name(number)
            table.writerow([f"images/{name}", f"masks/{name}", *labels])


def _name(number: int) -> str:
    return f"{number:05d}.png"


def _put(draft: Path, out: Path) -> None:
    old = draft.with_suffix(".old.tmp")
    if out.exists():
        out.rename(old)
    try:
        draft.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
