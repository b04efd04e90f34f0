from __future__ import annotations

import pytest

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("pyogrio")

from tests.data.scenes.scenes import noise, rectangle, write_polygons, write_raster  # noqa: E402

from ldstyle.cli import main  # noqa: E402

SHAPES = [("water", rectangle(0, 0, 40, 30)), ("roof", rectangle(45, 45, 49, 49))]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_raster(tmp_path / "ortho.tif", noise(200, 200))
    write_polygons(tmp_path / "land.geojson", SHAPES)
    return tmp_path


def test_a_scene_becomes_a_data_set_that_the_other_commands_take(folder, capfd):
    command = ["data", "tile", "ortho.tif", "--labels", "land.geojson", "--size", "20", "--block", "3", "--gap", "0"]
    command += ["--workers", "1"]
    assert main([*command, "--out", "data/city"]) == 0
    out = capfd.readouterr().out
    assert "water: present in 4 tiles, absent in 96, unknown in 0" in out
    assert "100 tiles: data/city/labels.csv" in out
    assert main([*command, "--out", "data/city"]) == 0
    assert "100 tiles of an earlier run were kept" in capfd.readouterr().out
    assert main(["data", "check", "--data", "data"]) == 0
    assert "4 of 100" in capfd.readouterr().out
    assert main(["data", "prepare", "--data", "data", "--size", "16", "--cache", "cache"]) == 0


def test_options_reach_the_tiles_and_mistakes_are_named(folder, capfd):
    command = ["data", "tile", "ortho.tif", "--labels", "land.geojson", "--out", "t", "--workers", "1"]
    options = ["--size", "50", "--stride", "25", "--present", "0.3", "--absent", "0.2", "--min-valid", "0.9"]
    classes = ["--classes", "water=lake", "roof=lake", "--domain", "north", "--label-column", "label"]
    assert main([*command, *options, *classes]) == 0
    text = (folder / "t" / "labels.csv").read_text()
    assert text.startswith("path,mask,scene,domain,gsd,lake\n")
    assert "images/ortho_000000_000000.tif,masks/ortho_000000_000000.png,ortho-0-0,north,0.5,1\n" in text
    assert "images/ortho_000000_000025.tif" in text
    capfd.readouterr()
    for wrong, said in (
        (["--workers", "0"], "--workers must be at least 1"),
        (["--stride", "0"], "--stride must be at least 1"),
        (["--label-column", "labl"], "Did you mean 'label'?"),
    ):
        assert main([*command, *wrong]) == 2
        assert said in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--classes", "water"])
    assert "must be VALUE=LABEL; got 'water'" in capfd.readouterr().err


def test_an_interrupted_command_says_that_it_can_be_resumed(folder, capfd, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ldstyle.data.scenes.tiling.tile_scenes", interrupt)
    assert main(["data", "tile", "ortho.tif", "--labels", "land.geojson", "--out", "t"]) == 130
    assert "the same command resumes" in capfd.readouterr().err
