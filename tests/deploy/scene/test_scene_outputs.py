"""What a map is written as, and where its scene may come from."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sqlite3
import subprocess
import threading
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.deploy.models import SIZE, VOCABULARY, pixels, write_model

from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.deploy.classifier import load
from ldstyle.deploy.scene.ground import range_words
from ldstyle.deploy.scene.mapping import MapOptions, map_scene
from ldstyle.deploy.scene.qgis import colour_of
from ldstyle.deploy.scene.reader import open_scene

rasterio = pytest.importorskip("rasterio")
pyogrio = pytest.importorskip("pyogrio")

PLACE = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_000_000)


def write_scene(path, image, **profile):
    height, width, count = image.shape
    settings = {"driver": "GTiff", "height": height, "width": width, "count": count, "dtype": image.dtype}
    with rasterio.open(path, "w", **settings, **({"crs": "EPSG:32633", "transform": PLACE} | profile)) as raster:
        raster.write(image.transpose(2, 0, 1))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    write_model(folder / "run", gsd=0.5)
    scene = write_scene(folder / "scene.tif", pixels(0, height=4 * SIZE, width=3 * SIZE))
    with rasterio.open(scene, "r+") as raster:
        raster.update_tags(TIFFTAG_DATETIME="2024:06:01 10:20:30")
    classifier = load(folder / "run")
    return classifier, map_scene(classifier, scene, folder / "map.tif", options=MapOptions(overlap=1))


def test_the_geopackage_holds_the_footprints_and_a_default_style(made):
    _, scene_map = made
    features = json.loads(scene_map.footprints.read_text())["features"]
    assert scene_map.regions == len(features) > 3
    meta, _, shapes, columns = pyogrio.raw.read(scene_map.others["geopackage"], layer="footprints")
    assert meta["crs"] == "EPSG:32633"
    found = dict(zip(meta["fields"], columns, strict=True))
    for name in ("label", "mean_probability", "cells", "area_m2"):
        assert found[name].tolist() == [feature["properties"][name] for feature in features]
    shapely = pytest.importorskip("shapely")
    assert sum(shapely.area(shapely.from_wkb(shapes))) == pytest.approx(found["area_m2"].sum())
    assert "layer_styles" in pyogrio.list_layers(scene_map.others["geopackage"])[:, 0]
    with closing(sqlite3.connect(scene_map.others["geopackage"])) as database:
        table, column, default, style = database.execute(
            "select f_table_name, f_geometry_column, useAsDefault, styleQML from layer_styles"
        ).fetchone()
        assert database.execute(
            "select count(*) from gpkg_geometry_columns where column_name = ?", (column,)
        ).fetchone()
    assert (table, default) == ("footprints", 1)
    root = ElementTree.fromstring(style)
    assert [category.get("value") for category in root.iter("category")] == list(VOCABULARY)
    symbols = {symbol.get("name") for symbol in root.iter("symbol")}
    assert {category.get("symbol") for category in root.iter("category")} == symbols


def test_the_style_of_the_raster_has_its_name_and_first_label(made):
    _, scene_map = made
    path = scene_map.others["style"]
    assert path == scene_map.raster.with_suffix(".qml")  # the name by which QGIS finds it
    root = ElementTree.fromstring(path.read_text())
    renderer = root.find("pipe/rasterrenderer")
    assert (root.tag, renderer.get("type"), renderer.get("band")) == ("qgis", "singlebandpseudocolor", "1")
    items = [(float(item.get("value")), int(item.get("alpha"))) for item in renderer.iter("item")]
    assert items == [(0, 0), (0.5, 128), (1, 255)]
    # The layout that QGIS writes: limits that are fixed, and a ramp with the same stops as the colours.
    assert [part.tag for part in root.find("pipe")] == [
        "provider", "rasterrenderer", "brightnesscontrast", "huesaturation", "rasterresampler",
    ]  # fmt: skip
    assert renderer.findtext("minMaxOrigin/limits") == "None"
    ramp = {option.get("name"): option.get("value") for option in renderer.findall(".//colorramp/Option/Option")}
    first = renderer.find(".//item").get("color")
    channels = ",".join(str(int(first[i : i + 2], 16)) for i in (1, 3, 5))
    assert (ramp["color1"], ramp["color2"]) == (f"{channels},0", f"{channels},255")
    assert ramp["stops"] == f"0.5;{channels},128"


def test_qgis_finds_both_styles_and_shows_the_colours_of_the_labels(made):
    _, scene_map = made
    python = "/usr/bin/python3"
    if not Path(python).is_file() or subprocess.run([python, "-c", "import qgis.core"], capture_output=True).returncode:
        pytest.skip("QGIS is not installed for the Python of the system")
    command = [python, str(Path(__file__).with_name("qgis_view.py")), str(scene_map.raster.with_suffix(""))]
    environment = {"PATH": os.environ["PATH"], "QT_QPA_PLATFORM": "offscreen"}
    shown = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert shown["valid"]
    assert shown["bands"] == [f"Band {number}: {name}" for number, name in enumerate(VOCABULARY, start=1)]
    assert shown["band"] == 1
    first = colour_of(0)
    assert shown["colours"] == [[0, first, 0], [0.5, first, 128], [1, first, 255]]
    assert shown["middle"] == [True, *(int(first[i : i + 2], 16) for i in (1, 3, 5)), 128]
    assert shown["regions"] == scene_map.regions
    assert shown["categories"] == [[name, colour_of(number)] for number, name in enumerate(VOCABULARY)]


def test_the_stac_item_says_where_when_and_by_which_model(made):
    classifier, scene_map = made
    item = json.loads(scene_map.others["stac"].read_text())
    assert (item["type"], item["stac_version"], item["id"]) == ("Feature", "1.1.0", "map")
    assert any("/mlm/" in extension for extension in item["stac_extensions"])
    properties = item["properties"]
    assert properties["datetime"] == "2024-06-01T10:20:30Z"
    assert (properties["gsd"], properties["proj:code"], properties["proj:shape"]) == (0.5, "EPSG:32633", [4, 3])
    assert properties["mlm:name"] == "ld-efdmix"
    assert properties["mlm:architecture"] == "test_resnet"
    (taken,) = properties["mlm:input"]
    assert taken["input"]["shape"] == [-1, 3, SIZE, SIZE]
    means = [255 * mean for mean in classifier.model.preprocessing.mean]
    assert [one["mean"] for one in taken["value_scaling"]] == pytest.approx(means)
    (given,) = properties["mlm:output"]
    assert [one["name"] for one in given["classification:classes"]] == list(VOCABULARY)
    assert [band["name"] for band in item["assets"]["probabilities"]["bands"]] == list(VOCABULARY)
    west, south, east, north = item["bbox"]
    assert (west, north) == pytest.approx((15.0, 45.1534), abs=1e-3)
    assert west < east
    assert south < north
    for role, asset in item["assets"].items():
        assert asset["roles"]
        assert role == "model" or (scene_map.raster.parent / asset["href"]).is_file()


def require_valid(item):
    """Check what STAC 1.1, the projection extension 2.0 and the MLM extension require of an item.

    The schemas are not in the package; these are their rules for the fields that are written.
    """
    assert {"type", "stac_version", "id", "geometry", "properties", "links", "assets"} <= set(item)
    assert ("bbox" in item) == (item["geometry"] is not None)
    properties = item["properties"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", properties["datetime"])
    assert properties["proj:code"] is None or re.fullmatch(r"[A-Z]+:\w+", properties["proj:code"])
    assert {"mlm:name", "mlm:architecture", "mlm:tasks", "mlm:input", "mlm:output"} <= set(properties)
    assert re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_.\-\s]+[a-zA-Z0-9]", properties["mlm:name"])
    assert properties["mlm:framework"] == "PyTorch"
    assert re.match(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", properties["mlm:framework_version"])
    for taken in properties["mlm:input"]:
        assert {"name", "bands", "input"} <= set(taken)
        assert {"shape", "dim_order", "data_type"} <= set(taken["input"])
        assert len(taken["value_scaling"]) in (1, taken["input"]["shape"][1])
        for one in taken["value_scaling"]:
            assert set(one) == {"type", "mean", "stddev"}
        # An input has the dimension `bands` if and only if it names them, and the item must describe them.
        assert ("bands" in taken["input"]["dim_order"]) == bool(taken["bands"])
        assert taken["bands"] == [band["name"] for band in properties.get("bands", [])]
    for given in properties["mlm:output"]:
        assert {"name", "tasks", "result"} <= set(given)
        for one in given["classification:classes"]:
            assert re.fullmatch(r"[0-9A-Za-z_-]+", one["name"])
            assert re.fullmatch(r"[0-9A-F]{6}", one["color_hint"])
            assert isinstance(one["value"], int)
    assert [name for name, asset in item["assets"].items() if "mlm:model" in asset["roles"]] == ["model"]
    assert "mlm:artifact_type" in item["assets"]["model"]
    assert all({"href", "type", "title", "roles"} <= set(asset) for asset in item["assets"].values())


def test_the_stac_item_is_valid_for_every_name_and_reference_system(made, tmp_path):
    _, scene_map = made
    require_valid(json.loads(scene_map.others["stac"].read_text()))
    names = ("Urban fabric, dense", "wasser/ufer", "ü")
    write_model(tmp_path / "run", vocabulary=names, name="erm++")
    local = rasterio.CRS.from_proj4("+proj=laea +lat_0=10 +lon_0=20 +datum=WGS84 +units=m")
    scene = write_scene(tmp_path / "s.tif", pixels(1), crs=local)
    item = json.loads(map_scene(load(tmp_path / "run"), scene, tmp_path / "m.tif").others["stac"].read_text())
    require_valid(item)
    properties = item["properties"]
    assert properties["mlm:name"] == "erm-plus-plus"
    assert properties["proj:code"] is None
    assert rasterio.CRS.from_wkt(properties["proj:wkt2"]) == local
    classes = properties["mlm:output"][0]["classification:classes"]
    assert [(one["name"], one["description"].split(":")[0]) for one in classes] == [
        ("Urban-fabric-dense", names[0]), ("wasser-ufer", names[1]), ("label-2", names[2]),
    ]  # fmt: skip


BANDS = ImageFormat((2, 1, 4), ("nir", "red", "swir"), 12, "uint16", ((0, 10_000), (0, 8_000), (5, 9_000)))


def require_part(whole, part):
    """Check that all fields are in another object, which may have more."""
    if isinstance(part, dict):
        assert set(part) <= set(whole)
        for name, value in part.items():
            require_part(whole[name], value)
    elif isinstance(part, list):
        for one, other in zip(whole, part, strict=True):
            require_part(one, other)
    else:
        assert whole == part


def write_item(tmp_path, image_format):
    write_model(tmp_path / "run", **({} if image_format is None else {"image_format": image_format}))
    bands = 3 if image_format is None else 12
    image = np.repeat(pixels(1), bands // 3, axis=2).astype("uint8" if image_format is None else "uint16")
    scene = write_scene(tmp_path / "s.tif", image)
    item = json.loads(map_scene(load(tmp_path / "run"), scene, tmp_path / "m.tif").others["stac"].read_text())
    require_valid(item)
    return item


@pytest.mark.parametrize("image_format", [None, BANDS])
def test_the_stac_item_passes_the_schema_of_stac(tmp_path, image_format):
    pystac = pytest.importorskip("pystac", reason="the schemas of STAC")
    pytest.importorskip("jsonschema")
    from pystac.validation.stac_validator import JsonSchemaSTACValidator

    item = write_item(tmp_path, image_format)
    # That of STAC itself is in the package; those of the extensions are at addresses.
    JsonSchemaSTACValidator().validate_core(item, pystac.STACObjectType.ITEM, item["stac_version"])
    assert pystac.Item.from_dict(item).to_dict()["properties"] == item["properties"]


@pytest.mark.parametrize("image_format", [None, BANDS])
def test_the_stac_item_is_read_by_the_authors_of_the_model_extension(tmp_path, image_format):
    mlm = pytest.importorskip("stac_model.schema", reason="not in the extra `dev`: it pins pip")
    item = write_item(tmp_path, image_format)
    read = json.loads(mlm.MLModelProperties(**item["properties"]).model_dump_json(by_alias=True))
    require_part(read, {name: value for name, value in item["properties"].items() if name.startswith("mlm:")})


def test_without_a_reference_system_the_files_are_there_without_a_place(made, tmp_path):
    classifier, _ = made
    with pytest.warns(rasterio.errors.NotGeoreferencedWarning):
        scene = write_scene(tmp_path / "s.tif", pixels(1), crs=None, transform=rasterio.Affine.identity())
    scene_map = map_scene(classifier, scene, tmp_path / "m.tif")
    item = json.loads(scene_map.others["stac"].read_text())
    require_valid(item)
    assert item["geometry"] is None
    assert pyogrio.read_info(scene_map.others["geopackage"], layer="footprints")["crs"] is None


def test_a_scene_in_local_coordinates_is_mapped_in_them(made, tmp_path):
    classifier, _ = made
    local = rasterio.CRS.from_wkt('LOCAL_CS["site",UNIT["metre",1]]')
    scene = write_scene(tmp_path / "s.tif", pixels(1), crs=local, transform=rasterio.Affine(0.5, 0, 7, 0, -0.5, 9))
    scene_map = map_scene(classifier, scene, tmp_path / "m.tif", options=MapOptions(preview=True))
    assert any("local coordinates" in sentence for sentence in scene_map.sentences)
    item = json.loads(scene_map.others["stac"].read_text())
    require_valid(item)
    assert item["geometry"] is None
    for feature in json.loads(scene_map.footprints.read_text())["features"]:
        assert min(x for x, _ in feature["geometry"]["coordinates"][0]) == 7


class Ranges(SimpleHTTPRequestHandler):
    """Serves parts of files, as stores of rasters do."""

    def do_GET(self):
        content = (self.server.folder / self.path.lstrip("/")).read_bytes()
        first, last = self.headers.get("Range", f"bytes=0-{len(content) - 1}").removeprefix("bytes=").split("-")
        part = content[int(first) : int(last) + 1]
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(part)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str((self.server.folder / self.path.lstrip("/")).stat().st_size))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def log_message(self, *_):
        self.server.asked.append(self.path)


@pytest.fixture
def server(tmp_path):
    served = ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges))
    served.folder, served.asked = tmp_path, []
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def test_an_address_is_read_only_if_it_is_allowed(made, tmp_path, server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    classifier, _ = made
    scene = write_scene(tmp_path / "remote.tif", pixels(2, height=SIZE, width=2 * SIZE))
    address = f"http://127.0.0.1:{server.server_port}/remote.tif"
    with pytest.raises(ValueError, match=r"remote.tif' is an address.* --allow-remote"):
        map_scene(classifier, address, tmp_path / "refused.tif")
    assert server.asked == []
    options = MapOptions(overlap=1)
    local = map_scene(classifier, scene, tmp_path / "local.tif", options=options)
    options = dataclasses.replace(options, allow_remote=True)
    remote = map_scene(classifier, address, tmp_path / "far.tif", options=options)
    with rasterio.open(local.raster) as one, rasterio.open(remote.raster) as other:
        np.testing.assert_array_equal(one.read(), other.read())
    assert set(server.asked) == {"/remote.tif"}  # and no side file
    vrt = '<VRTDataset rasterXSize="1" rasterYSize="1"></VRTDataset>'
    (tmp_path / "remote.vrt").write_text(vrt)
    with pytest.raises(ValueError, match="must be a raster; it cannot be opened"):
        map_scene(classifier, address.replace(".tif", ".vrt"), tmp_path / "vrt.tif", options=options)


def test_scenes_in_an_archive_are_virtual_addresses(made, tmp_path):
    import zipfile

    classifier, _ = made
    scene = write_scene(tmp_path / "s.tif", pixels(3))
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.write(scene, "s.tif")
    options = MapOptions(overlap=1, allow_remote=True)
    made_map = map_scene(classifier, f"/vsizip/{tmp_path}/s.zip/s.tif", tmp_path / "m.tif", options=options)
    assert made_map.raster.is_file()


def test_a_range_that_does_not_suit_the_scene_is_warned_of(made, tmp_path):
    classifier, _ = made
    deep = pixels(4, height=SIZE, width=2 * SIZE).astype(np.uint16) * 10 + 1000
    scene = write_scene(tmp_path / "s.tif", deep)
    words = {
        limits: " ".join(
            map_scene(
                classifier, scene, tmp_path / f"{limits[1]}.tif", options=MapOptions(overlap=1, limits=limits)
            ).sentences
        )
        for limits in ((1000, 3550), (0, 65535), (1000, 2000))
    }
    assert "range" not in words[1000, 3550]
    assert "fills little of the range 0 to 65535" in words[0, 65535]
    assert "outside the range 1000 to 2000" in words[1000, 2000]
    assert range_words(np.empty(0), None) == []


def test_a_model_of_many_bands_reads_as_many(tmp_path):
    image = np.concatenate([pixels(5), pixels(6)[..., :2]], axis=2)
    scene = write_scene(tmp_path / "s.tif", image)
    with open_scene(scene, bands=None, limits=None, number=5) as opened:
        values, valid = opened.overview((SIZE, SIZE))
        np.testing.assert_array_equal(values, image.transpose(2, 0, 1))
        assert valid.all()
    with open_scene(scene, bands=(5, 1), limits=None, number=2) as opened:
        np.testing.assert_array_equal(opened.overview((SIZE, SIZE))[0], image[..., [4, 0]].transpose(2, 0, 1))
    with (
        pytest.raises(ValueError, match=r"--bands must be 6 numbers in 1 .. 5"),
        open_scene(scene, bands=None, limits=None, number=6),
    ):
        pass


@pytest.mark.parametrize(("count", "way_out"), [(2, "Map a scene with all 3"), (5, "--bands")])
def test_a_scene_of_other_bands_than_the_training_images_is_answered(tmp_path, count, way_out):
    scene = write_scene(tmp_path / "s.tif", np.ones((SIZE, SIZE, count), np.uint16))
    with (
        pytest.raises(ValueError, match=rf"s.tif' has {count} bands.* had 12.* nir, red, swir\. .*{way_out}"),
        open_scene(scene, bands=None, limits=None, number=3, image_format=BANDS),
    ):
        pass


def test_metres_of_web_mercator_are_brought_to_the_ground(tmp_path):
    place = rasterio.Affine(2, 0, 1_669_792, 0, -2, 8_399_738)  # at 60 degrees north
    scene = write_scene(tmp_path / "s.tif", pixels(7), crs="EPSG:3857", transform=place)
    with open_scene(scene, bands=None, limits=None, number=3) as opened:
        assert opened.gsd == pytest.approx(1.0, rel=1e-3)
