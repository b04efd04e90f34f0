"""Windows of a scene as images of a model: the same as files of the same pixels."""

from __future__ import annotations

import threading
import time
import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest
from tests.deploy.models import SIZE, pixels, write_model

from ldstyle.data.loading.bands import load_image
from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.deploy.classifier import load
from ldstyle.deploy.scene.mapping import MapOptions, map_scene
from ldstyle.deploy.scene.reader import Scene, open_scene
from ldstyle.deploy.scene.tiles import TileGrid

rasterio = pytest.importorskip("rasterio")

PLACE = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_000_000)
DEEP = ImageFormat((1, 2, 3), ("red", "green", "blue"), 3, "uint16", ((0.0, 3000.0),) * 3)
PLAIN = {"bands": None, "limits": None, "number": 3}


def write_scene(path, image, **profile):
    """Write (bands, H, W) as a GeoTIFF."""
    count, height, width = image.shape
    settings = {"driver": "GTiff", "height": height, "width": width, "count": count, "dtype": image.dtype}
    with rasterio.open(path, "w", **settings, **({"crs": "EPSG:32633", "transform": PLACE} | profile)) as raster:
        raster.write(image)
    return path


def clouds(height, width, *, bands=3, seed=0):
    """Draw dark ground with single pixels far above the range of ``DEEP``."""
    generator = np.random.default_rng(seed)
    ground = generator.integers(1, 600, (bands, height, width))
    return np.where(generator.random((height, width)) < 0.1, 60_000, ground).astype(np.uint16)


@pytest.mark.parametrize("tile", [SIZE, 4 * SIZE, SIZE + SIZE // 2, SIZE // 2])
def test_a_tile_of_a_deep_scene_is_read_as_a_file_of_its_pixels(tmp_path, tile):
    image = clouds(2 * tile, 2 * tile)
    scene = write_scene(tmp_path / "s.tif", image)
    with rasterio.open(scene, "r+") as raster:
        raster.build_overviews([2], rasterio.enums.Resampling.nearest)
    grid = TileGrid(2 * tile, 2 * tile, tile, 1)
    with open_scene(scene, image_format=DEEP, **PLAIN) as opened:
        found, valid = opened.read(grid, 1, 0, SIZE)
    assert valid == 1
    expected = load_image(write_scene(tmp_path / "t.tif", image[:, tile:, :tile]), SIZE, DEEP)
    np.testing.assert_array_equal(found, expected)


def test_large_tiles_are_read_in_little_memory(tmp_path):
    scene = write_scene(tmp_path / "s.tif", clouds(1024, 1024))
    with open_scene(scene, image_format=DEEP, **PLAIN) as opened:
        tracemalloc.start()
        found, valid = opened.read(TileGrid(1024, 1024, 1 << 16, 1), 0, 0, SIZE)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (found.shape, valid) == ((3, SIZE, SIZE), 1)
    assert peak < 8 << 20


@pytest.mark.parametrize("image_format", [None, replace(DEEP, dtype="float32")])
def test_pixels_that_are_nan_count_as_no_data(tmp_path, image_format):
    image = clouds(SIZE, 4 * SIZE).astype(np.float32)
    image[1, :, : 2 * SIZE + SIZE // 2] = np.nan
    scene = write_scene(tmp_path / "s.tif", image)
    grid = TileGrid(SIZE, 4 * SIZE, SIZE, 1)
    limits = (0.0, 3000.0) if image_format is None else None
    with open_scene(scene, image_format=image_format, **(PLAIN | {"limits": limits})) as opened:
        tiles = [opened.read(grid, 0, column, SIZE) for column in range(4)]
        assert [valid for _, valid in tiles] == [0, 0, 0.5, 1]
        assert opened.cells_with_data(grid, 0).tolist() == [False, False, True, True]
        filled, kept = tiles[2][0][:, :, : SIZE // 2], tiles[2][0][:, :, SIZE // 2 :]
        mean = np.round(kept.mean(axis=(1, 2), dtype=np.float64))
        np.testing.assert_array_equal(filled, np.broadcast_to(mean[:, None, None], (3, SIZE, SIZE // 2)))
        assert opened.overview((1, 4))[1].tolist() == [[False, False, False, True]]


BYTES = ImageFormat((1, 2, 3), ("red", "green", "blue"), 3, "uint8", ((0.0, 255.0),) * 3)
DECIBELS = ImageFormat((1, 2), ("vv", "vh"), 2, "float32", ((-25.0, 0.0), (-30.0, -5.0)))


@pytest.mark.parametrize(
    ("image_format", "bands", "dtype", "nodata"),
    [
        (None, 3, "uint8", 0),
        (None, 3, "uint8", 255),
        (BYTES, 3, "uint8", 255),
        (DEEP, 3, "uint16", 0),
        (DEEP, 3, "uint16", 65535),
        (DEEP, 3, "int16", -32768),
        (DECIBELS, 2, "float32", -9999),
        (DECIBELS, 2, "float32", np.nan),
    ],
)
@pytest.mark.parametrize("tile", [SIZE, 2 * SIZE])
def test_a_tile_with_pixels_without_data_is_read_as_a_file_of_its_pixels(
    tmp_path, image_format, bands, dtype, nodata, tile
):
    """A network sees the same fill in training, in files and in maps."""
    if image_format is None and tile != SIZE:
        pytest.skip("GDAL resizes 8-bit RGB, which has other values than files that Pillow resizes")
    generator = np.random.default_rng(0)
    low, high = (-24, -6) if dtype == "float32" else (1, 250)
    image = generator.uniform(low, high, (bands, tile, tile)).astype(dtype)
    hole = np.zeros((tile, tile), dtype=bool)
    hole[: tile // 3, : tile // 2] = True
    image[:, hole] = nodata
    number = {"number": bands, "bands": None, "limits": None}
    scene = write_scene(tmp_path / "s.tif", image, nodata=nodata)
    with open_scene(scene, image_format=image_format, **number) as opened:
        found, valid = opened.read(TileGrid(tile, tile, tile, 1), 0, 0, SIZE)
    assert valid == pytest.approx(1 - hole.mean())
    np.testing.assert_array_equal(found, load_image(scene, SIZE, image_format))
    if tile == SIZE:
        mean = found[:, ~hole].mean(axis=1, dtype=np.float64)
        np.testing.assert_array_equal(found[:, hole], np.repeat(np.round(mean)[:, None], hole.sum(), axis=1))


def test_an_alpha_band_that_the_model_takes_is_data(tmp_path):
    """Writers mark the fourth band of 8 bits as alpha, near infrared too, in which water is 0."""
    image = np.concatenate([pixels(0), pixels(1)[..., :1]], axis=2).transpose(2, 0, 1).copy()
    image[3, :, : SIZE // 2] = 0
    scene = write_scene(tmp_path / "s.tif", image)
    with rasterio.open(scene) as raster:
        assert raster.colorinterp[3].name == "alpha"
    grid = TileGrid(SIZE, SIZE, SIZE, 2)
    four = ImageFormat((1, 2, 3, 4), ("1", "2", "3", "nir"), 4, "uint8", ((0.0, 255.0),) * 4)
    with open_scene(scene, bands=None, limits=None, number=4, image_format=four) as opened:
        found, valid = opened.read(grid, 0, 0, SIZE)
        assert valid == 1
        assert opened.cells_with_data(grid, 0).all()
    np.testing.assert_array_equal(found, image)
    write_model(tmp_path / "run")
    made = map_scene(load(tmp_path / "run"), scene, tmp_path / "map.tif")
    assert "s.tif' marks band 4 as alpha" in " ".join(made.sentences)
    with open_scene(scene, **PLAIN) as opened:  # red, green and blue: it is the mask
        assert opened.read(grid, 0, 0, SIZE)[1] == 0.5
        assert opened.cells_with_data(grid, 0).tolist() == [False, True]


def test_nodata_next_to_alpha_is_no_warning(tmp_path):
    image = np.concatenate([pixels(0), pixels(1)[..., :1]], axis=2).transpose(2, 0, 1)
    scene = write_scene(tmp_path / "s.tif", image, nodata=0)
    with open_scene(scene, **PLAIN) as opened, warnings.catch_warnings(record=True) as caught:
        opened.read(TileGrid(SIZE, SIZE, SIZE, 1), 0, 0, SIZE)
    assert caught == []


def test_colour_numbers_of_a_palette_are_not_taken_for_grey(tmp_path):
    scene = write_scene(tmp_path / "s.tif", pixels(0).transpose(2, 0, 1)[:1])
    with rasterio.open(scene, "r+") as raster:
        raster.write_colormap(1, {number: (255 - number, number, 7, 255) for number in range(256)})
    with (
        pytest.raises(ValueError, match=r"s.tif' has a palette.*gdal_translate -expand rgb"),
        open_scene(scene, **PLAIN),
    ):
        pass


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_a_range_is_enough_for_values_of_any_type(tmp_path, dtype):
    image = clouds(SIZE, SIZE)
    scene = write_scene(tmp_path / "s.tif", image.astype(dtype))
    with open_scene(scene, image_format=DEEP, **(PLAIN | {"limits": (0, 3000)})) as opened:
        found, _ = opened.read(TileGrid(SIZE, SIZE, SIZE, 1), 0, 0, SIZE)
    np.testing.assert_array_equal(found, load_image(write_scene(tmp_path / "t.tif", image), SIZE, DEEP))


def test_a_scene_without_data_is_warned_of(tmp_path):
    write_model(tmp_path / "run")
    scene = write_scene(tmp_path / "s.tif", np.zeros((3, SIZE, SIZE), np.uint8), nodata=0)
    made = map_scene(load(tmp_path / "run"), scene, tmp_path / "map.tif")
    assert "warning: the map has no values" in " ".join(made.sentences)
    assert made.regions == 0


def test_a_failed_map_closes_its_scene_after_the_last_read(tmp_path, monkeypatch):
    write_model(tmp_path / "run")
    classifier = load(tmp_path / "run")
    scene = write_scene(tmp_path / "s.tif", pixels(0, height=2 * SIZE, width=8 * SIZE).transpose(2, 0, 1))
    read, closed = Scene.read, []

    def slow_read(self, *position):
        time.sleep(0.02)
        closed.append(self.dataset.closed)
        return read(self, *position)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Scene, "read", slow_read)
    monkeypatch.setattr("ldstyle.deploy.scene.mapping.predict", stop)
    running = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        map_scene(classifier, scene, tmp_path / "map.tif", options=MapOptions(batch_size=1))
    assert threading.active_count() == running
    assert not any(closed)
