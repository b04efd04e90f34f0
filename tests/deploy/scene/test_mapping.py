from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.deploy.models import ROUNDED, SIZE, VOCABULARY, direct_probabilities, pixels, write_model
from tests.tolerance import bound

from ldstyle.deploy.classifier import Classifier, load
from ldstyle.deploy.scene.mapping import MapOptions, map_scene

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("rasterio.shutil")  # an attribute only once it was imported
pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

RESOLUTION = 0.5
ORIGIN = (500_000.0, 5_000_000.0)


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    backbone = write_model(folder, gsd=0.5)
    return load(folder).double(), backbone


def write_scene(path, image, *, crs="EPSG:32633", **profile):
    """Write (H, W, bands) as a GeoTIFF."""
    height, width, count = image.shape
    place = {"transform": rasterio.Affine(RESOLUTION, 0, ORIGIN[0], 0, -RESOLUTION, ORIGIN[1])} if crs else {}
    settings = {"driver": "GTiff", "height": height, "width": width, "count": count, "dtype": image.dtype, "crs": crs}
    with rasterio.open(path, "w", **settings, **place, **profile) as raster:
        raster.write(image.transpose(2, 0, 1))
    return path


def read(path):
    with rasterio.open(path) as raster:
        return raster.read(), raster.profile, raster.transform


def test_without_overlap_each_cell_is_the_direct_prediction_of_its_tile(setting, tmp_path):
    classifier, backbone = setting
    image = pixels(0, height=2 * SIZE, width=3 * SIZE)
    scene = write_scene(tmp_path / "scene.tif", image)
    made = map_scene(classifier, scene, tmp_path / "map.tif", options=MapOptions(overlap=1, batch_size=2))
    found, profile, transform = read(made.raster)
    tiles = [image[y : y + SIZE, x : x + SIZE] for y in (0, SIZE) for x in (0, SIZE, 2 * SIZE)]
    expected = direct_probabilities(backbone, tiles).reshape(2, 3, len(VOCABULARY)).transpose(2, 0, 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDED)
    assert profile["crs"] == rasterio.CRS.from_epsg(32633)
    assert profile["dtype"] == "float32"
    assert np.isnan(profile["nodata"])
    assert transform == rasterio.Affine(RESOLUTION * SIZE, 0, ORIGIN[0], 0, -RESOLUTION * SIZE, ORIGIN[1])


def test_overlapping_tiles_are_blended_and_edges_mirrored(setting, tmp_path):
    classifier, backbone = setting
    image = pixels(1, height=SIZE + 20, width=SIZE + 16)
    made = map_scene(classifier, write_scene(tmp_path / "s.tif", image), tmp_path / "map.tif")
    found, _, transform = read(made.raster)
    assert found.shape == (3, 4, 3)
    assert transform.a == RESOLUTION * SIZE / 2
    padded = np.pad(image, ((0, 12), (0, 0), (0, 0)), mode="symmetric")
    starts = [(y, x) for y in (0, 16, 32) for x in (0, 16)]
    scores = direct_probabilities(backbone, [padded[y : y + SIZE, x : x + SIZE] for y, x in starts])
    expected = np.zeros((3, 4, 3))
    for row in range(4):
        for column in range(3):
            over = [
                score
                for (y, x), score in zip(starts, scores, strict=True)
                if y <= 16 * row < y + SIZE and x <= 16 * column < x + SIZE
            ]
            expected[:, row, column] = np.mean(over, axis=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDED)


def test_places_without_data_have_no_value_and_do_not_darken_their_neighbours(setting, tmp_path):
    classifier, backbone = setting
    image = np.maximum(pixels(2, height=3 * SIZE, width=2 * SIZE), 1)
    image[:SIZE] = 0
    image[SIZE : 2 * SIZE, : SIZE // 4] = 0
    made = map_scene(
        classifier,
        write_scene(tmp_path / "s.tif", image, nodata=0),
        tmp_path / "map.tif",
        options=MapOptions(overlap=1),
    )
    found, _, _ = read(made.raster)
    assert np.isnan(found[:, 0]).all()
    partly = image[SIZE : 2 * SIZE, :SIZE].copy()
    partly[:, : SIZE // 4] = np.round(partly[:, SIZE // 4 :].mean(axis=(0, 1), dtype=np.float64))
    expected = direct_probabilities(backbone, [partly, image[SIZE : 2 * SIZE, SIZE:]])
    np.testing.assert_allclose(found[:, 1], expected.T, rtol=0, atol=ROUNDED)


def test_a_cell_without_data_has_no_value_though_a_tile_reaches_over_it(setting, tmp_path):
    classifier, _ = setting
    image = np.maximum(pixels(3, height=SIZE, width=SIZE), 1)
    image[:16, :16] = 0
    made = map_scene(classifier, write_scene(tmp_path / "s.tif", image, nodata=0), tmp_path / "map.tif")
    found, _, _ = read(made.raster)
    np.testing.assert_array_equal(np.isnan(found[0]), [[True, False], [False, False]])


def test_other_bit_depths_bands_and_tiles_are_brought_to_what_the_model_knows(setting, tmp_path):
    classifier, backbone = setting
    small = pixels(4, height=SIZE, width=2 * SIZE)
    deep = np.zeros((SIZE, 2 * SIZE, 4), dtype=np.uint16)
    deep[..., [3, 1, 0]] = small.astype(np.uint16) * 10 + 1000
    scene = write_scene(tmp_path / "s.tif", deep)
    options = MapOptions(overlap=1, bands=(4, 2, 1), limits=(1000, 3550))
    found, _, _ = read(map_scene(classifier, scene, tmp_path / "map.tif", options=options).raster)
    tiles = [small[:, :SIZE], small[:, SIZE:]]
    np.testing.assert_allclose(found[:, 0], direct_probabilities(backbone, tiles).T, rtol=0, atol=ROUNDED)

    large = small.repeat(2, axis=0).repeat(2, axis=1)
    scene = write_scene(tmp_path / "l.tif", large)
    found, _, transform = read(
        map_scene(classifier, scene, tmp_path / "l-map.tif", options=MapOptions(overlap=1, tile=2 * SIZE)).raster
    )
    shrunk = [np.asarray(Image.fromarray(large[:, x : x + 2 * SIZE]).resize((SIZE, SIZE), 2)) for x in (0, 2 * SIZE)]
    np.testing.assert_allclose(found[:, 0], direct_probabilities(backbone, shrunk).T, atol=0.03)
    assert transform.a == RESOLUTION * 2 * SIZE


def test_a_grey_scene_and_one_without_reference_system_can_be_mapped(setting, tmp_path):
    classifier, backbone = setting
    grey = pixels(5)[..., :1]
    made = map_scene(
        classifier, write_scene(tmp_path / "s.tif", grey, crs=None), tmp_path / "map.tif", options=MapOptions(overlap=1)
    )
    found, profile, transform = read(made.raster)
    (expected,) = direct_probabilities(backbone, [grey.repeat(3, axis=2)])
    np.testing.assert_allclose(found[:, 0, 0], expected, rtol=0, atol=ROUNDED)
    assert profile["crs"] is None
    assert (transform.a, transform.e) == (SIZE, SIZE)
    assert "no reference system" in made.sentences[0]
    assert "in pixels of the scene" in made.sentences[1]


def test_an_interrupted_map_goes_on_and_equals_an_uninterrupted_one(setting, tmp_path):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(6, height=4 * SIZE, width=2 * SIZE))
    whole = map_scene(classifier, scene, tmp_path / "whole.tif")

    def stop(done, total, what):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_scene(classifier, scene, tmp_path / "map.tif", progress=stop)
    assert not (tmp_path / "map.tif").exists()
    rows = []
    again = map_scene(classifier, scene, tmp_path / "map.tif", progress=lambda done, *_: rows.append(done))
    assert again.resumed == 3
    assert rows == [4, 5, 6, 7]
    np.testing.assert_array_equal(read(again.raster)[0], read(whole.raster)[0])
    assert again.footprints.read_text() == whole.footprints.read_text()
    assert not list(tmp_path.glob("*.tiles*")) + list(tmp_path.glob("*.tmp"))


def test_a_second_map_to_the_same_file_is_refused_while_the_first_one_runs(setting, tmp_path):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(6, height=2 * SIZE, width=2 * SIZE))
    refused = []

    def again(done, total, what):
        for name in ("map.tif", "map.tiff"):
            with pytest.raises(ValueError, match=rf"Another process is writing to '.*{name}'.*--out"):
                map_scene(classifier, scene, tmp_path / name)
            refused.append(name)

    made = map_scene(classifier, scene, tmp_path / "map.tif", progress=again)
    assert len(refused) == 6
    whole = map_scene(classifier, scene, tmp_path / "whole.tif")
    np.testing.assert_array_equal(read(made.raster)[0], read(whole.raster)[0])


def test_damaged_rows_of_an_interrupted_map_are_computed_again(setting, tmp_path):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(6, height=3 * SIZE, width=2 * SIZE))

    def stop(done, total, what):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_scene(classifier, scene, tmp_path / "map.tif", progress=stop)
    tiles = tmp_path / "map.tif.tiles"
    content = bytearray(tiles.read_bytes())
    content[len(content) // 2] ^= 64
    tiles.write_bytes(content)
    made = map_scene(classifier, scene, tmp_path / "map.tif")
    assert (made.resumed, made.dropped) == (1, 2)
    whole = map_scene(classifier, scene, tmp_path / "whole.tif")
    np.testing.assert_array_equal(read(made.raster)[0], read(whole.raster)[0])


@pytest.mark.parametrize("change", [{"batch_size": 3}, {"min_valid": 0.4}, {"bands": (1, 2, 3)}, {"limits": (0, 255)}])
def test_any_other_option_starts_the_map_anew(setting, tmp_path, change):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(6, height=2 * SIZE, width=SIZE))

    def stop(done, total, what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_scene(classifier, scene, tmp_path / "map.tif", progress=stop)
    assert map_scene(classifier, scene, tmp_path / "map.tif", options=MapOptions(**change)).resumed == 0


@pytest.mark.parametrize("name", ["map.geojson", "map", "map.png"])
def test_the_map_must_be_named_as_a_geotiff(setting, tmp_path, name):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(0))
    with pytest.raises(ValueError, match=rf"--out must .*\.tif.*; got '.*{name}'"):
        map_scene(classifier, scene, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_footprints_are_the_regions_above_threshold_in_longitude_and_latitude(setting, tmp_path):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(7, height=6 * SIZE, width=5 * SIZE))
    made = map_scene(classifier, scene, tmp_path / "map.tif", options=MapOptions(overlap=1))
    found, _, transform = read(made.raster)
    features = json.loads(made.footprints.read_text())["features"]
    assert len(features) == made.regions > 0
    area = (RESOLUTION * SIZE) ** 2
    for label, (name, threshold) in enumerate(zip(VOCABULARY, (0.5, 0.4, 0.6), strict=True)):
        mine = [feature for feature in features if feature["properties"]["label"] == name]
        covered = np.zeros(found.shape[1:], dtype=int)
        for feature in mine:
            shape = rasterio.warp.transform_geom("EPSG:4326", "EPSG:32633", feature["geometry"])
            inside = rasterio.features.geometry_mask([shape], covered.shape, transform, invert=True)
            covered += inside
            values, properties = found[label][inside], feature["properties"]
            assert properties["cells"] == inside.sum()
            assert properties["area_m2"] == pytest.approx(inside.sum() * area)
            assert properties["mean_probability"] == pytest.approx(values.mean(), abs=1e-4)
            assert properties["max_probability"] == pytest.approx(values.max(), abs=1e-4)
        np.testing.assert_array_equal(covered, found[label] >= threshold)
    longitude, latitude = features[0]["geometry"]["coordinates"][0][0]
    assert (longitude, latitude) == pytest.approx((15, 45.15), abs=0.01)


def test_the_raster_is_cloud_optimized_with_overviews_that_average(setting, tmp_path):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(8, height=4 * SIZE, width=140 * 8))
    made = map_scene(classifier, scene, tmp_path / "map.tif", options=MapOptions(overlap=8, tile=64))
    with rasterio.open(made.raster) as raster:
        assert raster.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert raster.overviews(1) == [2]
        assert raster.descriptions == VOCABULARY
        assert raster.tags()["stride"] == "8"
        assert raster.tags()["model_sha256"] == classifier.model.info["sha256"]
        half = raster.read(1, out_shape=(8, 70))
        expected = raster.read(1).reshape(8, 2, 70, 2).mean(axis=(1, 3))
        np.testing.assert_allclose(half, expected, rtol=0, atol=bound(2 * 4, dtype=torch.float32))  # values up to 1


def test_tiles_can_be_matched_to_the_ground_the_training_images_show(setting, tmp_path):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(9, height=100, width=100))
    made = map_scene(classifier, scene, tmp_path / "map.tif", options=MapOptions(match_gsd=True))
    assert "about as the training images did" in made.sentences[0]
    assert read(made.raster)[2].a == RESOLUTION * SIZE / 2
    far = map_scene(classifier, scene, tmp_path / "far.tif", options=MapOptions(tile=100))
    assert far.sentences[0].startswith("warning: A tile of 100 px at 0.5 m shows 50 m")


@pytest.mark.parametrize(
    ("dtype", "options", "message"),
    [
        ("uint16", {}, "has values of type uint16; the model expects 8 bits. Set --range LOW HIGH"),
        ("uint8", {"limits": (9, 9)}, "--range must be two rising numbers; got 9 9"),
        ("uint8", {"bands": (1, 2, 4)}, r"--bands must be three numbers in 1 \.\. 3; got \[1, 2, 4\]"),
        ("uint8", {"match_gsd": True, "tile": 9}, "--tile and --match-gsd both choose the tile"),
        ("uint8", {"tile": 9}, "`overlap` must divide the tile of 9 px; got 2"),
        ("uint8", {"min_valid": 0}, "`min_valid` must be above 0 and at most 1; got 0"),
    ],
)
def test_scenes_and_options_that_do_not_fit_are_refused(setting, tmp_path, dtype, options, message):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(0).astype(dtype))
    with pytest.raises(ValueError, match=message):
        map_scene(classifier, scene, tmp_path / "map.tif", options=MapOptions(**options))


@pytest.fixture
def virtual(tmp_path):
    """Write a virtual raster that is called as a GeoTIFF and shows another file."""
    secret = write_scene(tmp_path / "secret.tif", pixels(0))
    rasterio.shutil.copy(secret, tmp_path / "virtual.tif", driver="VRT")
    return tmp_path / "virtual.tif"


def test_a_virtual_raster_is_opened_only_on_demand(setting, tmp_path, virtual):
    classifier, backbone = setting
    with pytest.raises(ValueError, match=r"virtual\.tif' must be a raster .*b'<VRTData'.*--allow-virtual"):
        map_scene(classifier, virtual, tmp_path / "map.tif")
    made = map_scene(classifier, virtual, tmp_path / "map.tif", options=MapOptions(overlap=1, allow_virtual=True))
    (expected,) = direct_probabilities(backbone, [pixels(0)])
    np.testing.assert_allclose(read(made.raster)[0][:, 0, 0], expected, rtol=0, atol=ROUNDED)


@pytest.mark.parametrize("suffix", [".ovr", ".msk"])
def test_a_virtual_side_file_is_refused(setting, tmp_path, virtual, suffix):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(1))
    virtual.rename(tmp_path / f"s.tif{suffix}")
    with pytest.raises(ValueError, match=rf"s\.tif\{suffix}' must be a raster"):
        map_scene(classifier, scene, tmp_path / "map.tif")


def test_a_side_file_that_leads_elsewhere_is_refused(setting, tmp_path):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(1))
    (tmp_path / "s.tif.aux.xml").write_text('<PAMDataset><MDI key="OVERVIEW_FILE">/etc/x</MDI></PAMDataset>')
    with pytest.raises(ValueError, match=r"s\.tif\.aux\.xml' names another raster.*--allow-virtual"):
        map_scene(classifier, scene, tmp_path / "map.tif")


@pytest.mark.parametrize("suffix", ["png", "jpg", "jp2"])
def test_the_other_formats_are_mapped(setting, tmp_path, suffix):
    classifier, _ = setting
    Image.fromarray(pixels(1)).save(tmp_path / f"s.{suffix}")
    made = map_scene(classifier, tmp_path / f"s.{suffix}", tmp_path / "map.tif")
    assert np.isfinite(read(made.raster)[0]).all()


def test_a_scene_of_two_bands_needs_the_bands_named(setting, tmp_path):
    classifier, backbone = setting
    scene = write_scene(tmp_path / "s.tif", pixels(0)[..., :2])
    with pytest.raises(ValueError, match=r"s\.tif' has 2 bands.*--bands 1 1 1"):
        map_scene(classifier, scene, tmp_path / "map.tif")
    grey = write_scene(
        tmp_path / "g.tif", np.dstack([pixels(0)[..., 0], np.full((SIZE, SIZE), 255, np.uint8)]), alpha="yes"
    )
    (expected,) = direct_probabilities(backbone, [pixels(0)[..., [0, 0, 0]]])
    for path, bands in ((scene, (1, 1, 1)), (grey, None)):
        made = map_scene(classifier, path, tmp_path / "map.tif", options=MapOptions(overlap=1, bands=bands))
        np.testing.assert_allclose(read(made.raster)[0][:, 0, 0], expected, rtol=0, atol=ROUNDED)


def test_a_declared_size_that_the_file_does_not_hold_is_an_error(setting, tmp_path):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(0), compress="deflate")
    content = bytearray(scene.read_bytes())
    entry = bytes([0, 1, 3, 0, 1, 0, 0, 0, SIZE, 0])  # ImageWidth, SHORT, one value
    assert content.count(entry) == 1
    content[content.index(entry) + 8 : content.index(entry) + 10] = (60_000).to_bytes(2, "little")
    scene.write_bytes(content)
    with pytest.raises(ValueError, match=r"s\.tif' of 60000 x 32 px cannot be read"):
        map_scene(classifier, scene, tmp_path / "map.tif")


def test_what_is_no_raster_is_refused(setting, tmp_path):
    classifier, _ = setting
    (tmp_path / "s.tif").write_text("no raster")
    with pytest.raises(ValueError, match=r"s\.tif' must be a raster .*b'no raste'"):
        map_scene(classifier, tmp_path / "s.tif", tmp_path / "map.tif")
    with pytest.raises(FileNotFoundError, match=r"The scene '.*none.tif' is not a file"):
        map_scene(classifier, tmp_path / "none.tif", tmp_path / "map.tif")
    lost = write_scene(tmp_path / "lost.tif", pixels(0), crs=None)
    with pytest.raises(ValueError, match=r"--match-gsd .* the scene .*Set --tile"):
        map_scene(classifier, lost, tmp_path / "map.tif", options=MapOptions(match_gsd=True))


def test_a_label_without_training_data_has_no_value_in_the_map(setting, tmp_path):
    classifier, _ = setting
    scene = write_scene(tmp_path / "s.tif", pixels(5, height=2 * SIZE, width=2 * SIZE))
    whole, _, _ = read(map_scene(classifier, scene, tmp_path / "whole.tif").raster)
    untrained = Classifier(dataclasses.replace(classifier.model, untrained_labels=("tree",))).double()
    made = map_scene(untrained, scene, tmp_path / "map.tif")
    found, _, _ = read(made.raster)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], whole[[0, 2]])
    labels = {feature["properties"]["label"] for feature in json.loads(made.footprints.read_text())["features"]}
    assert "building" in labels
    assert "tree" not in labels
    assert any("tree" in sentence for sentence in made.sentences)
