"""A map of labels over a scene of any size, in memory that does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ldstyle.data.domains.scene_table import Progress
from ldstyle.data.scenes.raster import alpha_words, has_data_everywhere, is_on_earth
from ldstyle.data.scenes.tile_folder import sole_writer
from ldstyle.deploy.classifier import Classifier
from ldstyle.deploy.scene.ground import (
    band_range_words,
    matching_tile,
    range_words,
    scale_words,
    trained_scale,
    unscaled_sources,
)
from ldstyle.deploy.scene.preview import MapText, write_preview
from ldstyle.deploy.scene.qgis import raster_style
from ldstyle.deploy.scene.reader import Scene, open_scene
from ldstyle.deploy.scene.stac import write_stac_item
from ldstyle.deploy.scene.tiles import TileGrid, TileStore, blend_rows
from ldstyle.deploy.scene.writers import Georeference, write_footprints, write_geotiff
from ldstyle.evaluation.predict import predict
from ldstyle.files import replace_text
from ldstyle.runs.model_file import description_digest
from ldstyle.workers import read_ahead

SUFFIXES = (".tif", ".tiff")


@dataclass(frozen=True)
class MapOptions:
    """How a scene is mapped.

    Attributes:
        tile: Side of a tile in pixels of the scene; ``None`` takes the size of the model's images.
        match_gsd: Choose the tile that shows as much ground as the training images.
        overlap: Tiles along the side of a tile: 1 is no overlap, 2 overlaps the next by half, 4 by three quarters.
        bands: Bands that the model takes, red, green and blue for a model of three; by default the first ones.
        limits: Values that become black and white; needed unless the scene is of 8 bits.
        min_valid: A tile is predicted if at least this fraction of it has data.
        batch_size: Tiles at once.
        trained_gsd: Metres per pixel of the training images at the model's size, for all or one per source.
        allow_virtual: Open rasters of any format, also virtual ones, which read the files and addresses they name.
        allow_remote: Open scenes by addresses, such as ``https://...`` or ``/vsis3/...``.
        preview: Write an interactive HTML page, too.
    """

    tile: int | None = None
    match_gsd: bool = False
    overlap: int = 2
    bands: Sequence[int] | None = None
    limits: tuple[float, float] | None = None
    min_valid: float = 0.5
    batch_size: int = 32
    allow_virtual: bool = False
    allow_remote: bool = False
    preview: bool = False
    trained_gsd: Sequence[float] = ()

    def __post_init__(self) -> None:
        if not 0 < self.min_valid <= 1:
            raise ValueError(f"`min_valid` must be above 0 and at most 1; got {self.min_valid}.")


@dataclass(frozen=True)
class SceneMap:
    """Result of mapping.

    Attributes:
        raster: Probabilities, a band per label.
        footprints: Regions above threshold, GeoJSON.
        others: Further files by kind: the regions as GeoPackage, a style for QGIS, a STAC item, the preview.
        regions: Their number.
        resumed: Rows of tiles of an interrupted run that were kept.
        dropped: Rows of that run that were damaged and computed again.
        sentences: Notes about the map.
    """

    raster: Path
    footprints: Path
    others: dict[str, Path]
    regions: int
    resumed: int
    dropped: int
    sentences: tuple[str, ...]


def map_scene(
    classifier: Classifier,
    path: Path | str,
    out: Path,
    *,
    options: MapOptions | None = None,
    progress: Progress | None = None,
) -> SceneMap:
    """Map the probability of each label over a scene.

    The scene is cut into cells of one stride. A cell's value is the mean of the tiles over it, weighted towards the
    tiles whose middle is near. Finished rows are stored next to ``out`` until the map is there, so an interrupted run
    resumes where it stopped; one process at a time may write to ``out``.

    Args:
        classifier: The model.
        path: A GeoTIFF, PNG, JPEG or JPEG 2000 file, or, if that is allowed, an address that GDAL understands.
        out: GeoTIFF to write; the other files have the same name with other suffixes, see :func:`outputs_of`.
        options: How to map.
        progress: Called after each row of tiles.

    Raises:
        ValueError: The scene or an option cannot be used, or another process is writing to ``out``.
    """
    options = options or MapOptions()
    if out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out must be a GeoTIFF that ends in {' or '.join(SUFFIXES)}; got '{out}'.")
    opened = open_scene(
        path,
        bands=options.bands,
        limits=options.limits,
        number=len(classifier.model.preprocessing.mean),
        allow_virtual=options.allow_virtual,
        allow_remote=options.allow_remote,
        image_format=classifier.model.image_format,
    )
    with opened as scene, sole_writer(out, out.with_name(f".{out.stem}.lock")):
        tile = _tile(classifier, scene, options)
        grid = TileGrid(scene.dataset.height, scene.dataset.width, tile, options.overlap)
        store = TileStore(
            out.with_name(f"{out.name}.tiles"),
            rows=grid.tiles[0],
            columns=grid.tiles[1],
            labels=len(classifier.vocabulary),
            identity=_identity(classifier, path, scene, grid, options),
        )
        resumed = len(store)
        _predict_rows(classifier, scene, grid, store, options, progress)
        return _write(classifier, scene, grid, store, out, resumed, options)


def outputs_of(out: Path, *, preview: bool = False) -> dict[str, Path]:
    """Return the paths of the files next to a map, by kind."""
    suffixes = {"footprints": ".geojson", "geopackage": ".gpkg", "style": ".qml", "stac": ".stac.json"}
    return {
        name: out.with_suffix(suffix)
        for name, suffix in {**suffixes, **({"preview": ".html"} if preview else {})}.items()
    }


def _tile(classifier: Classifier, scene: Scene, options: MapOptions) -> int:
    if not options.match_gsd:
        return options.tile or classifier.size
    scale = trained_scale(classifier.model, options.trained_gsd)
    if scale is None or scene.gsd is None:
        unscaled = ", ".join(unscaled_sources(classifier.model))
        what = "the scene" if scene.gsd is None else f"the model, trained on {unscaled},"
        way_out = "Set --tile" if scene.gsd is None else "State it with --trained-gsd, or set --tile"
        raise ValueError(f"--match-gsd needs the size of a pixel on the ground; {what} does not state it. {way_out}.")
    if options.tile is not None:
        raise ValueError("--tile and --match-gsd both choose the tile; set one of them.")
    pixels = matching_tile(scale, scene.gsd)
    return max(1, round(pixels / options.overlap)) * options.overlap


def _identity(
    classifier: Classifier, path: Path | str, scene: Scene, grid: TileGrid, options: MapOptions
) -> dict[str, Any]:
    """Return what the values of tiles depend on; of a scene at an address, its name and size."""
    named: list[Any] = [path] if isinstance(path, str) else [str(path.resolve()), *_stamp(path)]
    return {
        "model": description_digest(classifier.model.info),
        "device": classifier.device.type,
        "options": {name: value for name, value in asdict(options).items() if name != "preview"},
        "scene": named,
        "grid": [grid.height, grid.width, grid.tile, grid.overlap],
        "bands": list(scene.bands),
        "limits": scene.limits,
        **({} if scene.image_format is None else {"images": scene.image_format.describe()}),
    }


def _stamp(path: Path) -> tuple[int, int]:
    file = path.stat()
    return file.st_size, file.st_mtime_ns


def _predict_rows(
    classifier: Classifier,
    scene: Scene,
    grid: TileGrid,
    store: TileStore,
    options: MapOptions,
    progress: Progress | None,
) -> None:
    """Predict the rows of tiles that are missing, reading ahead while the network computes."""
    rows, columns = grid.tiles
    positions = ((row, column) for row in range(len(store), rows) for column in range(columns))

    def read(position: tuple[int, int]) -> NDArray[Any] | None:
        pixels, valid = scene.read(grid, *position, classifier.size)
        return pixels if valid >= options.min_valid else None

    # One thread: an open raster may not be read by two. It is closed here, after an error too, so that the thread has
    # ended before the raster is closed.
    with closing(read_ahead(read, positions, workers=1, ahead=2 * options.batch_size)) as tiles:
        for row in range(len(store), rows):
            values = np.full(store.shape, np.nan, dtype=np.float32)
            batch: list[tuple[int, NDArray[Any]]] = []
            for column in range(columns):
                pixels = next(tiles)
                if pixels is not None:
                    batch.append((column, pixels))
                if batch and (len(batch) == options.batch_size or column == columns - 1):
                    images = torch.from_numpy(np.stack([pixels for _, pixels in batch]))
                    scores = classifier.judge(predict(classifier, [images]).logits).probabilities
                    values[[column for column, _ in batch]] = scores.numpy()
                    batch = []
            store.append(values)
            if progress is not None:
                progress(row + 1, rows, "rows of tiles")


def _with_data(rows: Iterator[NDArray[np.float32]], scene: Scene, grid: TileGrid) -> Iterator[NDArray[np.float32]]:
    """Take the values from cells in which the scene has no data, although a tile reaches over them."""
    for number, row in enumerate(rows):
        yield np.where(scene.cells_with_data(grid, number), row, np.float32("nan"))


def _write(
    classifier: Classifier,
    scene: Scene,
    grid: TileGrid,
    store: TileStore,
    out: Path,
    resumed: int,
    options: MapOptions,
) -> SceneMap:
    model, gsd = classifier.model, scene.gsd
    thresholds = model.thresholds.tolist()
    name = Path(scene.dataset.name).name
    tags = {
        "model": str(model.info["name"]),
        "model_sha256": str(model.info["sha256"]),
        "thresholds": " ".join(f"{value:.6g}" for value in thresholds),
        "tile": str(grid.tile),
        "stride": str(grid.stride),
        **({"scene_datetime": taken} if (taken := scene.dataset.tags().get("TIFFTAG_DATETIME")) else {}),
    }
    write_geotiff(
        out,
        _with_data(blend_rows(store.rows(), grid), scene, grid),
        shape=grid.cells,
        vocabulary=model.vocabulary,
        place=Georeference.of_cells(scene, grid),
        tags=tags,
    )
    files = outputs_of(out, preview=options.preview)
    area = None if gsd is None else (gsd * grid.stride) ** 2
    regions = write_footprints(
        files["footprints"],
        files["geopackage"],
        out,
        thresholds=thresholds,
        vocabulary=model.vocabulary,
        cell_area=area,
    )
    replace_text(files["style"], raster_style(1, model.vocabulary[0], thresholds[0]))
    if options.preview:
        ground = "" if gsd is None else f", {gsd:.3g} m per pixel"
        subtitle = f"Model {model.info['name']}; tiles of {grid.tile} px{ground}"
        write_preview(
            files["preview"], out, scene, grid, MapText(f"Labels of {name}", subtitle, model.vocabulary, thresholds)
        )
    stac = files.pop("stac")
    write_stac_item(stac, raster=out, files=files, model=model, gsd=gsd, scene=name)
    words = scale_words(model, gsd=gsd, tile=grid.tile, stated=options.trained_gsd)
    if scene.image_format is None:
        words += range_words(scene.sample().ravel(), scene.limits)
    else:
        words += band_range_words(scene.sample(), scene.image_format)
    if not has_data_everywhere(scene.dataset, scene.bands):
        words += alpha_words(scene.dataset)
    if not any(np.isfinite(row).any() for row in store.rows()):
        words.append(
            f"warning: the map has no values, since no tile has data in {options.min_valid:.0%} of its pixels. Lower "
            "--min-valid, or check the scene."
        )
    if model.untrained_labels:
        words.append(f"Labels without training data have no value: {', '.join(model.untrained_labels)}.")
    if not is_on_earth(scene.dataset.crs):
        unit = "pixels" if scene.dataset.crs is None else "local coordinates"
        words.append(f"The footprints are in {unit} of the scene, not in longitude and latitude.")
    store.remove()
    footprints = files.pop("footprints")
    return SceneMap(out, footprints, {**files, "stac": stac}, regions, resumed, store.dropped, tuple(words))
