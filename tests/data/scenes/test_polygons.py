"""Polygons of any reference system, laid over scenes of any; files that cannot be are named."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("pyogrio")

from tests.data.scenes.scenes import (  # noqa: E402
    LEFT,
    OPTIONS,
    RESOLUTION,
    SHAPES,
    TOP,
    UTM,
    files_of,
    noise,
    rectangle,
    write_polygons,
    write_raster,
)

from ldstyle.data.scenes.labels import LabelSource  # noqa: E402
from ldstyle.data.scenes.tiling import tile_scenes  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3035"])
def test_polygons_in_another_reference_system_land_where_they_belong(tmp_path, crs):
    scene = write_raster(tmp_path / "scene.tif", noise(60, 80))
    made = {}
    for name in (UTM, crs):
        path = write_polygons(tmp_path / f"{name[5:]}.geojson", SHAPES, crs=name)
        out = tmp_path / name[5:]
        made[name] = tile_scenes([scene], out, labels=LabelSource((path,)), domains=["d"], **OPTIONS)
        made[name] = {name: content for name, content in files_of(out).items() if name.startswith(("m", "l"))}
    assert made[UTM] == made[crs]


def test_a_geopackage_and_classes_that_are_numbers(tmp_path):
    from pyogrio.raw import write

    shapely = pytest.importorskip("shapely")
    shapes = [shapely.Polygon(outline) for _, outline in SHAPES]
    fields = [np.array([3.0, 1.0, 1.0, np.nan])]
    write(tmp_path / "p.gpkg", shapely.to_wkb(shapes), fields, ["kind"], geometry_type="Polygon", crs=UTM, layer="land")
    scene = write_raster(tmp_path / "scene.tif", noise(60, 80))
    source = LabelSource((tmp_path / "p.gpkg",), column="kind", classes={"3": "sea", "1": "house", "9": "ship"})
    made = tile_scenes([scene], tmp_path / "out", labels=source, **OPTIONS)
    assert made.counts["sea"][0] == 4
    assert made.counts["house"][0] == 1  # the polygon without a class is left out
    assert made.counts["ship"] == (0, 12, 0)
    with pytest.raises(ValueError, match=r"--label-column .* got 'label'.* \['kind'\]"):
        tile_scenes([scene], tmp_path / "b", labels=LabelSource((tmp_path / "p.gpkg",)), **OPTIONS)
    one = LabelSource((tmp_path / "p.gpkg",), one_label="thing")
    assert tile_scenes([scene], tmp_path / "c", labels=one, **OPTIONS).counts["thing"][0] == 5


def test_missing_and_wrong_reference_systems_are_named(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(40, 40))
    polygons = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    bare = write_raster(tmp_path / "bare.tif", noise(40, 40), crs=None)
    with pytest.raises(ValueError, match=r"bare.tif' has no reference system"):
        tile_scenes([bare], tmp_path / "a", labels=polygons, **OPTIONS)
    # Metres that are taken for degrees.
    text = (tmp_path / "p.geojson").read_text()
    (tmp_path / "wrong.geojson").write_text(text.replace(UTM, "EPSG:32634"))
    with pytest.raises(ValueError, match=r"wrong.geojson' are outside all scenes: .* EPSG:32634"):
        tile_scenes([scene], tmp_path / "b", labels=LabelSource((tmp_path / "wrong.geojson",)), **OPTIONS)
    mask = write_raster(tmp_path / "mask.tif", np.ones((1, 30, 40), dtype=np.uint8), crs=None)
    with pytest.raises(ValueError, match=r"mask.tif' has no reference system"):
        tile_scenes([scene], tmp_path / "c", labels=LabelSource((mask,), classes={"1": "roof"}), **OPTIONS)
    mask = write_raster(tmp_path / "far.tif", np.ones((1, 40, 40), dtype=np.uint8), left=LEFT + 1000)
    with pytest.raises(ValueError, match=r"far.tif' is outside '.*scene.tif'"):
        tile_scenes([scene], tmp_path / "d", labels=LabelSource((mask,), classes={"1": "roof"}), **OPTIONS)
    assert not any((tmp_path / name).exists() for name in "abcd")


def test_a_stated_reference_system_replaces_that_of_the_layer(tmp_path):
    """GeoJSON without one is read as longitude and latitude, whatever its numbers are."""
    scene = write_raster(tmp_path / "scene.tif", noise(60, 80))
    path = write_polygons(tmp_path / "p.geojson", SHAPES)
    layer = json.loads(path.read_text())
    del layer["crs"]
    path.write_text(json.dumps(layer))
    with pytest.raises(ValueError, match=r"outside all scenes.* in EPSG:4326.* --labels-crs"):
        tile_scenes([scene], tmp_path / "a", labels=LabelSource((path,)), **OPTIONS)
    made = tile_scenes([scene], tmp_path / "a", labels=LabelSource((path,), crs=UTM), **OPTIONS)
    assert made.counts["water"][0] == 4


@pytest.mark.parametrize("crs", [UTM, "EPSG:4326"])
def test_rows_of_a_scene_may_lead_north(tmp_path, crs):
    pixels = noise(60, 80)
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES, crs=crs),))
    scene = write_raster(tmp_path / "down.tif", pixels)
    place = rasterio.Affine(RESOLUTION, 0, LEFT, 0, RESOLUTION, TOP - 60 * RESOLUTION)
    turned = write_raster(tmp_path / "up.tif", np.ascontiguousarray(pixels[:, ::-1]), transform=place)
    expected = tile_scenes([scene], tmp_path / "a", labels=labels, **OPTIONS)
    assert tile_scenes([turned], tmp_path / "b", labels=labels, **OPTIONS).counts == expected.counts
    assert expected.counts["water"][0] == 4


def test_local_coordinates_are_kept_and_other_systems_refused(tmp_path):
    local = rasterio.CRS.from_wkt('LOCAL_CS["site",UNIT["metre",1]]')
    scene = write_raster(tmp_path / "scene.tif", noise(40, 60), crs=local)
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    with pytest.raises(ValueError, match=r"scene.tif' has local coordinates"):
        tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS)
    classes = write_raster(tmp_path / "classes.tif", noise(40, 80, bands=1))
    with pytest.raises(ValueError, match=r"classes.tif' and .*the scene has .* local"):
        tile_scenes([scene], tmp_path / "out", labels=LabelSource((classes,), classes={"1": "water"}), **OPTIONS)


def test_polygons_without_a_reference_system_need_one(tmp_path):
    from pyogrio.raw import write

    shapely = pytest.importorskip("shapely")
    shapes, path = [shapely.Polygon(outline) for _, outline in SHAPES], tmp_path / "p.gpkg"
    with pytest.warns(UserWarning, match="'crs' was not provided"):
        write(
            path, shapely.to_wkb(shapes), [np.array([name for name, _ in SHAPES])], ["label"], geometry_type="Polygon"
        )
    scene = write_raster(tmp_path / "scene.tif", noise(60, 80))
    with pytest.raises(ValueError, match=r"p.gpkg' states no reference system.* --labels-crs"):
        tile_scenes([scene], tmp_path / "a", labels=LabelSource((path,)), **OPTIONS)
    with pytest.raises(ValueError, match=r"--labels-crs .* got 'EPSG:nonsense'"):
        tile_scenes([scene], tmp_path / "a", labels=LabelSource((path,), crs="EPSG:nonsense"), **OPTIONS)
    made = tile_scenes([scene], tmp_path / "a", labels=LabelSource((path,), crs=UTM), **OPTIONS)
    assert made.counts["water"][0] == 4


def test_files_that_lead_elsewhere_or_hold_no_polygons_are_refused(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(40, 40))
    (tmp_path / "v.geojson").write_text('<OGRVRTDataSource><OGRVRTLayer name="x"/></OGRVRTDataSource>')
    with pytest.raises(ValueError, match="must be a GeoJSON or GeoPackage file; it begins with b'<OGRVRTDataS'"):
        tile_scenes([scene], tmp_path / "out", labels=LabelSource((tmp_path / "v.geojson",)), **OPTIONS)
    with sqlite3.connect(tmp_path / "s.gpkg") as database:
        database.execute("create table x (y)")
    database.close()
    with pytest.raises(ValueError, match="must be a GeoJSON or GeoPackage file"):
        tile_scenes([scene], tmp_path / "out", labels=LabelSource((tmp_path / "s.gpkg",)), **OPTIONS)
    point = {"type": "Feature", "properties": {"label": "tree"}, "geometry": {"type": "Point", "coordinates": [0, 0]}}
    point["geometry"]["coordinates"] = rectangle(5, 5, 6, 6)[0]
    crs = {"type": "name", "properties": {"name": UTM}}
    text = json.dumps({"type": "FeatureCollection", "crs": crs, "features": [point]})
    (tmp_path / "points.geojson").write_text(text)
    with pytest.raises(ValueError, match=r"must be polygons; 1 of 1 .* a Point"):
        tile_scenes([scene], tmp_path / "out", labels=LabelSource((tmp_path / "points.geojson",)), **OPTIONS)
    (tmp_path / "none.geojson").write_text('{"type": "FeatureCollection", "features": []}')
    point["geometry"] = None
    text = json.dumps({"type": "FeatureCollection", "crs": crs, "features": [point]})
    (tmp_path / "null.geojson").write_text(text)
    for name in ("none.geojson", "null.geojson"):
        with pytest.raises(ValueError, match=rf"--labels must be a layer of polygons; '.*{name}' has none"):
            tile_scenes([scene], tmp_path / "out", labels=LabelSource((tmp_path / name,)), **OPTIONS)
    (tmp_path / "torn.geojson").write_text('{"type": "FeatureCollection", "features": [')
    with pytest.raises(ValueError, match=r"torn.geojson' must be a layer of polygons"):
        tile_scenes([scene], tmp_path / "out", labels=LabelSource((tmp_path / "torn.geojson",)), **OPTIONS)
    with pytest.raises(FileNotFoundError, match=r"'gone.geojson' are not a file"):
        tile_scenes([scene], tmp_path / "out", labels=LabelSource((Path("gone.geojson"),)), **OPTIONS)
    assert not (tmp_path / "out").exists()
