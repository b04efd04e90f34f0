import os

import numpy as np
import pytest
from PIL import Image
from tests.deploy.models import write_images, write_model

from ldstyle.cli import main


@pytest.fixture
def setting(tmp_path):
    write_model(tmp_path / "run")
    write_images(tmp_path / "images", 3)
    return tmp_path


def run(*arguments):
    return main(["explain", *map(str, arguments)])


def test_each_image_gets_a_sheet_with_a_panel_per_label(setting, capfd):
    out = setting / "sheets"
    assert run(setting / "run", setting / "images", "--out", out, "--size", 64, "--batch-size", 2) == 0
    assert sorted(path.name for path in out.glob("*.png")) == ["00.png", "01.png", "02.png"]
    sheets = [np.asarray(Image.open(path).convert("RGB")) for path in sorted(out.glob("*.png"))]
    assert sheets[0].shape[1] == 4 * 64
    assert all(len(np.unique(sheet.reshape(-1, 3), axis=0)) > 100 for sheet in sheets)
    assert not np.array_equal(sheets[0], sheets[1])
    assert "3 sheets" in capfd.readouterr().err


def test_labels_can_be_chosen(setting):
    out = setting / "sheets"
    assert run(setting / "run", setting / "images" / "00.png", "--out", out, "--labels", "tree", "--size", 64) == 0
    assert np.asarray(Image.open(out / "00.png")).shape[1] == 2 * 64


def test_a_label_the_model_does_not_know_is_named(setting, capfd):
    assert run(setting / "run", setting / "images", "--labels", "shrub") == 2
    assert "got 'shrub'. Choose from: building, tree, water" in capfd.readouterr().err


def test_an_unreadable_image_is_named(setting, capfd):
    (setting / "images" / "01.png").write_bytes(b"broken")
    assert run(setting / "run", setting / "images", "--out", setting / "sheets") == 2
    err = capfd.readouterr().err
    assert "01.png' cannot be used" in err
    assert "--skip-bad" in err


def test_unreadable_images_are_listed_and_skipped_on_demand(setting, capfd):
    (setting / "images" / "01.png").write_bytes(b"broken")
    Image.fromarray(np.full((32, 32), 900, dtype=np.uint16)).save(setting / "images" / "deep.tif")
    os.mkfifo(setting / "images" / "pipe.png")
    arguments = [setting / "run", setting / "images", setting / "images" / "pipe.png", "--size", 32]
    assert run(*arguments, "--out", setting / "sheets", "--skip-bad", "--batch-size", 2) == 0
    err = capfd.readouterr().err
    assert "left out: " in err
    assert "01.png' cannot be used" in err
    assert "pipe.png' cannot be used" in err
    assert "deep.tif' cannot be used" in err
    assert "--range LOW HIGH" in err
    assert "2 sheets" in err
    assert sorted(path.name for path in (setting / "sheets").glob("*.png")) == ["00.png", "02.png"]
    assert run(setting / "run", setting / "images" / "01.png", "--out", setting / "sheets", "--skip-bad") == 2
    assert "none is" in capfd.readouterr().err


def test_a_very_long_image_gets_a_sheet_of_bounded_size(setting):
    Image.fromarray(np.zeros((20_000, 2, 3), dtype=np.uint8)).save(setting / "long.png")
    assert run(setting / "run", setting / "long.png", "--out", setting / "sheets", "--size", 16) == 0
    assert np.asarray(Image.open(setting / "sheets" / "long.png")).shape[0] < 16 * 5
