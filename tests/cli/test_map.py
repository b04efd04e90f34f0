import json
from pathlib import Path

import numpy as np
import pytest
from tests.deploy.models import SIZE, VOCABULARY, direct_probabilities, float32_error, pixels, write_model

from ldstyle.cli import main

rasterio = pytest.importorskip("rasterio")


@pytest.fixture
def setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image = pixels(0, height=2 * SIZE, width=2 * SIZE)
    profile = {
        "driver": "GTiff",
        "height": 2 * SIZE,
        "width": 2 * SIZE,
        "count": 3,
        "dtype": "uint8",
        "crs": "EPSG:4326",
        "transform": rasterio.Affine(1e-5, 0, 12.0, 0, -1e-5, 60.0),
    }
    with rasterio.open("scene.tif", "w", **profile) as raster:
        raster.write(image.transpose(2, 0, 1))
    return write_model(tmp_path / "run"), image


def test_a_scene_is_mapped_beside_its_footprints_and_a_mismatch_is_told(setting, capfd):
    backbone, image = setting
    assert main(["map", "run", "scene.tif", "--overlap", "1"]) == 0
    tiles = [image[y : y + SIZE, x : x + SIZE] for y in (0, SIZE) for x in (0, SIZE)]
    with rasterio.open("scene-labels.tif") as raster:
        expected = direct_probabilities(backbone, tiles).T.reshape(len(VOCABULARY), 2, 2)
        np.testing.assert_allclose(raster.read(), expected, rtol=0, atol=float32_error(backbone))
        assert raster.crs.to_epsg() == 4326
        assert raster.bounds == pytest.approx((12.0, 60 - 2e-5 * SIZE, 12 + 2e-5 * SIZE, 60.0))
    features = json.loads(Path("scene-labels.geojson").read_text())["features"]
    err = capfd.readouterr().err
    assert f"{len(features)} footprints: scene-labels.geojson" in err
    assert "A tile of 32 px at 0.787 m shows 25 m of ground; the model does not state" in err


def test_options_reach_the_map(setting, capfd):
    matched = ["map", "run", "scene.tif", "--match-gsd", "--overlap", "4", "--out", "m.tif"]
    assert main(matched) == 2
    assert "--trained-gsd" in capfd.readouterr().err
    assert main([*matched, "--trained-gsd", "0.3", "0.7"]) == 2
    assert "a factor of 2 apart" in capfd.readouterr().err
    assert main([*matched, "--trained-gsd", "1.2", "1.8"]) == 0
    with rasterio.open("m.tif") as raster:
        assert raster.tags()["tile"] == "60"  # 47 m, the geometric mean of 38 m and 58 m, at 0.787 m
        assert raster.tags()["stride"] == "15"
    assert main(["map", "run", "scene.tif", "--bands", "1", "2", "9"]) == 2
    assert "--bands must be three numbers in 1 .. 3" in capfd.readouterr().err
    assert main(["map", "run", "scene.tif", "--tile", "33"]) == 2
    assert "`overlap` must divide the tile of 33 px" in capfd.readouterr().err


def test_an_interrupted_map_says_that_it_can_be_resumed(setting, capfd, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ldstyle.cli.map.map_scene", interrupt)
    assert main(["map", "run", "scene.tif"]) == 130
    assert "resumes" in capfd.readouterr().err


def test_a_missing_scene_is_named(setting, capfd):
    assert main(["map", "run", "none.tif"]) == 2
    assert "The scene 'none.tif' is not a file" in capfd.readouterr().err
