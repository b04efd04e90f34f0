"""Scenes and labels in, a custom data set out: tiles, masks and a table, in memory that does not grow."""

from __future__ import annotations

import multiprocessing
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ldstyle.data.domains.csv import MASK_BITS, refuse_twins
from ldstyle.data.domains.scene_table import Progress, file_stem
from ldstyle.data.loading.image_format import DTYPES
from ldstyle.data.scenes.cutting import BlockGrid, CutJob, Cutter, Run, TileRules, chunks
from ldstyle.data.scenes.labels import LabelSource, open_labels, read_vocabulary
from ldstyle.data.scenes.polygons import Extent, require_overlap
from ldstyle.data.scenes.raster import alpha_words, bounds_in, open_raster, rasterio
from ldstyle.data.scenes.tile_folder import TABLE, TileFolder, TileRow, sole_writer
from ldstyle.workers import end_with_parent

SCHEMA = 2
FEWEST_BLOCKS = 3
"""Blocks of a domain that a split into train, validation and test needs."""
_AT_ONCE = 16 << 20
"""Most bytes of pixels and regions of labels that one process holds at once."""
_SMALLEST_OVERLAP = 0.01
"""Fraction of a scene below which its overlap with another is not worth a note."""


@dataclass(frozen=True)
class TileSet:
    """Result of tiling.

    Attributes:
        table: The table of labels.
        tiles: Number of tiles.
        counts: For each label the tiles in which it is present, absent and unknown.
        resumed: Tiles of an interrupted run that were kept.
        notes: Notes about the tiles, in sentences.
    """

    table: Path
    tiles: int
    counts: dict[str, tuple[int, int, int]]
    resumed: int
    notes: tuple[str, ...]


def tile_scenes(
    scenes: Sequence[Path],
    out: Path,
    *,
    labels: LabelSource,
    grid: BlockGrid,
    rules: TileRules | None = None,
    domains: Sequence[str] = (),
    workers: int = 1,
    allow_virtual: bool = False,
    progress: Progress | None = None,
) -> TileSet:
    """Cut scenes into tiles with labels.

    The folder gets ``images/*.tif`` (GeoTIFF with the georeference, type and bands of the scene), ``masks/*.png`` (bit
    l of a pixel is label l; at most eight labels) and ``labels.csv``. The same call resumes after an interruption.

    Args:
        scenes: Rasters of any size.
        out: Folder to write; new, empty, or that of an interrupted call.
        labels: Where the labels come from.
        grid: Where the tiles are, and the blocks that a split does not cut.
        rules: When a tile is kept, and which labels it has.
        domains: Domain of all scenes, or of each; by default the name of the folder.
        workers: Processes that cut.
        allow_virtual: Open scenes of any format that GDAL reads; see :func:`~ldstyle.data.scenes.raster.open_raster`.
        progress: Called with the rows of tiles done so far.

    Raises:
        FileExistsError: The folder holds something else.
        ValueError: A scene, the labels or an option cannot be used, or another process is writing to the folder.
    """
    rules = rules or TileRules()
    named = tuple(domains) or (out.absolute().name,)
    if len(named) not in (1, len(scenes)):
        raise ValueError(f"--domain must name one domain, or one for each of {len(scenes)} scenes; got {len(named)}.")
    refuse_twins(named)
    if not labels.polygons and len(labels.paths) != len(scenes):
        raise ValueError(
            f"--labels must be a raster for each of {len(scenes)} scenes, in their order; got {len(labels.paths)}."
        )
    vocabulary = read_vocabulary(labels)
    job = CutJob(
        scenes=tuple(scenes),
        stems=_stems(scenes),
        domains=named if len(named) == len(scenes) else named * len(scenes),
        labels=labels,
        vocabulary=vocabulary,
        size=grid.size,
        rules=rules,
        out=out,
        masks=len(vocabulary) <= MASK_BITS,
        allow_virtual=allow_virtual,
    )
    runs, notes = _plan(job, grid)
    with sole_writer(out):
        folder = TileFolder(out, _manifest(job, grid))
        resumed = sum(1 for _ in folder.rows())
        for number, rows in enumerate(_cut(job, runs[folder.done :], workers), start=folder.done + 1):
            folder.append(rows)
            if progress is not None:
                progress(number, len(runs), "rows of tiles")
        return _finish(folder, job, resumed, notes)


def _finish(folder: TileFolder, job: CutJob, resumed: int, notes: Sequence[str]) -> TileSet:
    """Write the table of all tiles and count their labels."""
    counts = np.zeros((len(job.vocabulary), 3), dtype=np.int64)
    blocks: dict[str, set[str]] = {}
    tiles = 0
    for row in folder.rows():
        tiles += 1
        blocks.setdefault(row.domain, set()).add(row.scene)
        counts[np.arange(len(job.vocabulary)), [{1: 0, 0: 1, -1: 2}[value] for value in row.labels]] += 1
    if not tiles:
        raise ValueError(
            f"No tile has data in {job.rules.min_valid:.0%} of its pixels. Lower --min-valid, or check the scenes."
        )
    folder.write_table(job.vocabulary, masks=job.masks)
    few = [f"{name!r} has {len(found)}" for name, found in blocks.items() if len(found) < FEWEST_BLOCKS]
    words = list(notes)
    if few:
        words.append(
            f"A split into train, validation and test needs {FEWEST_BLOCKS} blocks of a domain; {', '.join(few)}. "
            "Lower --block, or add scenes."
        )
    if never := [name for name, (present, _, _) in zip(job.vocabulary, counts, strict=True) if not present]:
        words.append(f"No tile shows {', '.join(never)}. Check the labels and --classes.")
    if not job.masks:
        words.append(f"No masks are written: they hold {MASK_BITS} labels, and there are {len(job.vocabulary)}.")
    summary = {name: (int(p), int(a), int(u)) for name, (p, a, u) in zip(job.vocabulary, counts, strict=True)}
    return TileSet(folder.path / TABLE, tiles, summary, resumed, tuple(words))


def _plan(job: CutJob, grid: BlockGrid) -> tuple[list[Run], list[str]]:
    """Return the runs of tiles of all scenes, and notes about the scenes."""
    runs: list[Run] = []
    extents: list[Extent] = []
    notes: list[str] = []
    for number, path in enumerate(job.scenes):
        with open_raster(path, allow_virtual=job.allow_virtual) as scene:
            _require_tiles(scene, grid)
            with open_labels(job.labels, number, scene, job.vocabulary):
                pass  # errors in the labels of any scene are raised before anything is written
            per_column = grid.size * (scene.count * np.dtype(scene.dtypes[0]).itemsize + len(job.vocabulary) + 2)
            rows, columns = grid.along(scene.height), grid.along(scene.width)
            extents.append(Extent(scene.name, scene.crs, tuple(scene.bounds)))
            notes += alpha_words(scene)
        runs += [Run(number, row, tuple(run)) for row in rows for run in chunks(columns, _AT_ONCE // per_column)]
    if job.labels.polygons:
        require_overlap(job.labels, extents)
    return runs, notes + _overlaps(extents)


def _require_tiles(scene: Any, grid: BlockGrid) -> None:
    if len(set(scene.dtypes)) > 1:
        raise ValueError(f"'{scene.name}' must have bands of one type; it has {sorted(set(scene.dtypes))}.")
    if scene.dtypes[0] not in DTYPES:
        raise ValueError(
            f"'{scene.name}' must have values of type {', '.join(DTYPES)}; it has {scene.dtypes[0]}. Convert it, e.g. "
            "with `gdal_translate -ot Float32`."
        )
    if min(scene.height, scene.width) < grid.size:
        raise ValueError(
            f"'{scene.name}' has {scene.width} x {scene.height} px and shows no tile of {grid.size} px. Lower --size, "
            "or leave it out."
        )


def _overlaps(scenes: Sequence[Extent]) -> list[str]:
    """Name scenes that show the same ground, whose tiles are neighbours in different blocks."""
    degrees = rasterio().CRS.from_epsg(4326)
    boxes = [(scene.name, box) for scene in scenes if (box := bounds_in(scene, degrees)) is not None]
    notes = []
    for number, (name, one) in enumerate(boxes):
        for other_name, other in boxes[number + 1 :]:
            width = min(one[2], other[2]) - max(one[0], other[0])
            height = min(one[3], other[3]) - max(one[1], other[1])
            smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
            if width > 0 and height > 0 and width * height > _SMALLEST_OVERLAP * smaller:
                notes.append(
                    f"'{name}' and '{other_name}' show the same ground, so a split may put it into two parts. Make "
                    "them one mosaic, or two domains."
                )
    return notes


def _stems(scenes: Sequence[Path]) -> tuple[str, ...]:
    """Name the scenes by their files, with a number where two are called alike."""
    stems: list[str] = []
    for scene in scenes:
        stem = name = file_stem(scene.stem)
        number = 1
        while name.casefold() in map(str.casefold, stems):
            number += 1
            name = f"{stem}~{number}"
        stems.append(name)
    return tuple(stems)


def _manifest(job: CutJob, grid: BlockGrid) -> dict[str, Any]:
    """Return everything the tiles depend on."""

    def identity(path: Path) -> list[Any]:
        file = path.stat()
        return [str(path.resolve()), file.st_size, file.st_mtime_ns]

    return {
        "schema": SCHEMA,
        "scenes": [identity(path) for path in job.scenes],
        "domains": list(job.domains),
        "labels": [identity(path) for path in job.labels.paths],
        "label_options": [
            job.labels.column,
            dict(job.labels.classes),
            job.labels.one_label,
            job.labels.crs,
            job.labels.layer,
        ],
        "vocabulary": list(job.vocabulary),
        "grid": asdict(grid),
        "rules": asdict(job.rules),
    }


def _cut(job: CutJob, runs: Sequence[Run], workers: int) -> Iterator[list[TileRow]]:
    """Cut the runs and yield their rows in order."""
    if min(workers, len(runs)) <= 1:
        with Cutter(job) as cutter:
            yield from map(cutter.cut, runs)
        return
    # Forking a process that runs threads can hang the child.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(runs)), mp_context=context, initializer=_begin, initargs=(job,)) as pool:
        waiting: deque[Future[list[TileRow]]] = deque()
        try:
            for run in runs:
                waiting.append(pool.submit(_work, run))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


_cutter: Cutter | None = None
"""That of a worker process."""


def _begin(job: CutJob) -> None:
    global _cutter
    # pyogrio imports these if they are installed, at 120 MB a process, and polygons are read without them.
    for name in ("geopandas", "pandas", "pyarrow"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    _cutter = Cutter(job)
    end_with_parent()


def _work(run: Run) -> list[TileRow]:
    assert _cutter is not None
    return _cutter.cut(run)
