"""No command writes over what is not its own, and over what is, without a word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image
from tests.deploy.models import SIZE, pixels, write_images, write_model

from ldstyle.cli import main
from ldstyle.cli.outputs import RECORD, guarded


def write(path: Path, text: str, **options) -> None:
    with guarded(path, **options):
        path.write_text(text)


def test_a_file_written_before_may_be_written_again(tmp_path):
    for text in ("one", "two", "three"):
        write(tmp_path / "a.csv", text)
    assert (tmp_path / "a.csv").read_text() == "three"


def test_a_foreign_file_is_left_as_it_is_unless_forced(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("ground truth")
    with pytest.raises(FileExistsError, match=r"labels\.csv' .*--force"):
        write(path, "new")
    assert path.read_text() == "ground truth"
    write(path, "new", force=True)
    write(path, "newer")
    assert path.read_text() == "newer"


def test_a_file_that_was_changed_since_is_left_as_it_is(tmp_path):
    path = tmp_path / "a.csv"
    write(path, "predicted")
    path.write_text("corrected by hand")
    with pytest.raises(FileExistsError, match=r"a\.csv' .*changed since"):
        write(path, "predicted")
    assert path.read_text() == "corrected by hand"


@pytest.mark.parametrize("link", [None, "symlink_to", "hardlink_to"])
def test_an_input_is_never_written_over_even_if_ldstyle_wrote_it(tmp_path, link):
    path = tmp_path / "a.tif"
    write(path, "mine")
    output = tmp_path / "b.tif" if link else path
    if link:
        getattr(output, link)(path)
    with pytest.raises(FileExistsError, match=rf"{output.name}' is an input"):
        write(output, "new", inputs=[path])
    assert path.read_text() == "mine"


def test_what_was_written_before_a_failure_is_recorded(tmp_path):
    def fail() -> None:
        with guarded(tmp_path / "a.csv"):
            (tmp_path / "a.csv").write_text("half")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    write(tmp_path / "a.csv", "whole")


def test_a_refused_command_records_nothing(tmp_path):
    (tmp_path / "a.csv").write_text("mine")
    for _ in range(2):
        with pytest.raises(FileExistsError, match=r"a\.csv'"):
            write(tmp_path / "a.csv", "new")


@pytest.mark.parametrize("content", [b"\xff\n[]\n{}\n" + b"[" * 100_000, b""])
def test_a_damaged_record_only_makes_it_more_careful(tmp_path, content):
    write(tmp_path / "a.csv", "one")
    (tmp_path / RECORD).write_bytes(content)
    with pytest.raises(FileExistsError, match=r"a\.csv'"):
        write(tmp_path / "a.csv", "two")


def test_a_folder_holds_only_what_was_written_there(tmp_path):
    folder = tmp_path / "report"
    for text in ("one", "two"):
        with guarded(folder):
            (folder / "tables").mkdir(parents=True, exist_ok=True)
            (folder / "tables" / "a.csv").write_text(text)
    (folder / "index.html").write_text("of another program")
    with pytest.raises(FileExistsError, match=r"index\.html'"), guarded(folder):
        raise AssertionError
    assert (folder / "tables" / "a.csv").read_text() == "two"


def test_a_pipe_is_no_output(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(FileExistsError, match=r"a\.csv' must be a file"):
        write(tmp_path / "a.csv", "new", force=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_model(folder)
    return folder


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images", 2)
    return tmp_path


def assert_guarded(arguments: list[object], out: Path, capfd) -> None:
    """Run a command twice: over a foreign file it fails, with --force it writes, and then again without."""
    out.parent.mkdir(exist_ok=True)
    out.write_bytes(b"ground truth")
    command = [str(argument) for argument in arguments]
    assert main(command) == 2
    assert out.name in (err := capfd.readouterr().err)
    assert "--force" in err
    assert out.read_bytes() == b"ground truth"
    assert main([*command, "--force"]) == 0
    assert out.read_bytes() != b"ground truth"
    assert main(command) == 0


def test_predict_leaves_a_foreign_table_alone(model, root, capfd):
    out = root / "labels.csv"
    assert_guarded(["predict", model, root / "images", "--out", out], out, capfd)


def test_explain_leaves_foreign_images_alone(model, root, capfd):
    out = root / "sheets" / "01.png"
    assert_guarded(["explain", model, root / "images", "--out", root / "sheets", "--size", 32], out, capfd)


def test_explain_never_draws_over_its_images(model, root, capfd):
    before = (root / "images" / "00.png").read_bytes()
    assert main(["explain", str(model), str(root / "images"), "--out", str(root / "images")]) == 2
    assert "is an input" in capfd.readouterr().err
    assert (root / "images" / "00.png").read_bytes() == before


def test_export_leaves_a_foreign_file_alone(model, root, capfd):
    out = root / "weights.safetensors"
    assert_guarded(["export", model, "--format", "safetensors", "--out", out], out, capfd)


def test_export_never_writes_over_its_model(model, root, capfd):
    weights = model / "model.safetensors"
    before = weights.read_bytes()
    assert main(["export", str(model), "--format", "safetensors", "--out", str(weights)]) == 2
    assert "is an input" in capfd.readouterr().err
    assert weights.read_bytes() == before


@pytest.fixture
def scene(root) -> Path:
    pytest.importorskip("rasterio")
    Image.fromarray(pixels(0, height=SIZE, width=SIZE)).save(root / "s.tif")
    return root / "s.tif"


def test_map_never_writes_over_its_scene(model, scene, capfd):
    before = scene.read_bytes()
    assert main(["map", str(model), str(scene), "--out", str(scene)]) == 2
    assert "s.tif' is an input" in capfd.readouterr().err
    assert scene.read_bytes() == before


@pytest.mark.parametrize("name", ["m.tif", "m.geojson"])
def test_map_leaves_foreign_rasters_and_footprints_alone(model, scene, name, capfd):
    assert_guarded(["map", model, scene, "--out", scene.with_name("m.tif")], scene.with_name(name), capfd)


def test_data_stats_leaves_a_foreign_table_alone(root, capfd):
    (root / "data" / "mine").mkdir(parents=True)
    (root / "data" / "mine" / "labels.csv").write_text("path,car\nimages/00.png,1\nimages/01.png,0\n")
    (root / "images").rename(root / "data" / "mine" / "images")
    for out, arguments in (
        (root / "t.csv", ["stats", "--csv", root / "t.csv"]),
        (root / "c.png", ["show", "--out", root / "c.png", "--size", 32]),
    ):
        assert_guarded(["data", *arguments, "--data", root / "data"], out, capfd)
