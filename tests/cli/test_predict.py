import csv
import io
import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tests.deploy.models import SIZE, VOCABULARY, direct_probabilities, float32_error, pixels, write_images, write_model

from ldstyle.cli import main
from ldstyle.data.loading.pool import Batch
from ldstyle.deploy.classifier import load
from ldstyle.evaluation.style_statistics import source_style_statistics


@pytest.fixture
def setting(tmp_path):
    backbone = write_model(tmp_path / "run")
    write_images(tmp_path / "images", 5)
    return tmp_path, direct_probabilities(backbone, [pixels(number) for number in range(5)])


def run(*arguments):
    return main(["predict", *map(str, arguments)])


def table(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def scores(rows):
    return np.array([[float(row[f"probability_{name}"]) for name in VOCABULARY] for row in rows])


def test_a_folder_becomes_a_table(setting):
    root, expected = setting
    assert run(root / "run", root / "images", "--out", root / "out.csv", "--batch-size", 2) == 0
    rows = table(root / "out.csv")
    assert [row["path"] for row in rows] == [str(root / "images" / f"{number:02d}.png") for number in range(5)]
    np.testing.assert_allclose(scores(rows), expected, rtol=0, atol=float32_error(load(root / "run")))
    present = [[row[f"present_{name}"] == "1" for name in VOCABULARY] for row in rows]
    np.testing.assert_array_equal(present, expected >= [0.5, 0.4, 0.6])


def test_names_come_from_standard_input_and_the_table_goes_to_standard_output(setting, capfdbinary, monkeypatch):
    root, expected = setting
    names = "\n".join(str(root / "images" / f"{number:02d}.png") for number in (3, 1))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(names.encode())))
    assert run(root / "run", "-", "--format", "jsonl") == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line["path"][-6:] for line in lines] == ["03.png", "01.png"]
    found = [[line["probabilities"][name] for name in VOCABULARY] for line in lines]
    np.testing.assert_allclose(found, expected[[3, 1]], rtol=0, atol=float32_error(load(root / "run")))


def test_unreadable_images_end_it_before_anything_is_written(setting, capfd):
    root, _ = setting
    (root / "images" / "02.png").write_bytes(b"broken")
    assert run(root / "run", root / "images", "--out", root / "out.csv") == 2
    assert run(root / "run", root / "images") == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "02.png' cannot be used" in captured.err
    assert "--skip-bad" in captured.err
    assert not (root / "out.csv").exists()


def test_unreadable_images_are_listed_and_skipped_on_demand(setting, capfd):
    root, expected = setting
    (root / "images" / "02.png").write_bytes(b"broken")
    pattern = root / "images" / "*.png"
    assert run(root / "run", pattern, root / "images" / "none.png", "--out", root / "out.csv", "--skip-bad") == 0
    err = capfd.readouterr().err
    assert "left out: " in err
    assert "02.png" in err
    assert "none.png" in err
    rows = table(root / "out.csv")
    np.testing.assert_allclose(scores(rows), expected[[0, 1, 3, 4]], rtol=0, atol=float32_error(load(root / "run")))


def test_deep_images_are_refused_and_can_be_skipped(setting, capfd):
    root, _ = setting
    Image.fromarray(np.full((SIZE, SIZE), 900, dtype=np.uint16)).save(root / "images" / "deep.tif")
    assert run(root / "run", root / "images") == 2
    err = capfd.readouterr().err
    assert "deep.tif' cannot be used" in err
    assert "--range LOW HIGH" in err
    assert "--skip-bad" in err
    assert run(root / "run", root / "images", "--skip-bad", "--out", root / "out.csv") == 0
    assert "left out" in (err := capfd.readouterr().err)
    assert "deep.tif" in err
    assert len(table(root / "out.csv")) == 5


@pytest.mark.parametrize("name", ["pipe.png", "pipe"])
def test_a_pipe_named_as_an_image_does_not_hang(setting, capfd, name):
    root, _ = setting
    os.mkfifo(root / name)
    assert run(root / "run", root / name, root / "images") == 2
    assert f"{name}' cannot be used: it is not a regular file" in capfd.readouterr().err


def test_an_interrupted_command_ends_in_one_line(setting, capfd, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ldstyle.cli.predict.predict_files", interrupt)
    root, _ = setting
    assert run(root / "run", root / "images") == 130
    assert capfd.readouterr().err == "interrupted\n"


def test_the_check_of_a_shift_says_in_words_whether_to_trust(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    write_model(tmp_path / "bare")
    classifier = load(tmp_path / "bare")
    images = torch.from_numpy(np.stack([pixels(number) for number in range(240)])).permute(0, 3, 1, 2)
    batch = Batch(images, classifier.predict(images).present.long(), torch.zeros(240), torch.arange(240))
    extra = source_style_statistics(classifier, [batch], image_size=SIZE)
    write_model(tmp_path / "run", extra=extra, sources=("ucm",))
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    write_images(tmp_path / "same", 120)
    assert run(tmp_path / "run", tmp_path / "same", "--check-shift", "--out", tmp_path / "same.csv") == 0
    err = capfd.readouterr().err
    assert "nothing in their style speaks against the predictions" in err
    assert "expected here" in err
    write_images(tmp_path / "dark", 120)
    for path in (tmp_path / "dark").iterdir():
        Image.fromarray(pixels(int(path.stem)) // 8).save(path)
    assert run(tmp_path / "run", tmp_path / "dark", "--calibrate", "--out", tmp_path / "dark.csv") == 0
    assert "DO NOT TRUST these predictions" in capfd.readouterr().err
    far = [float(row["shift"]) for row in table(tmp_path / "dark.csv")]
    near = [float(row["shift"]) for row in table(tmp_path / "same.csv")]
    assert np.mean(far) > np.mean(near)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "table.txt"], "must end in one of .csv, .jsonl, .parquet; got 'table.txt'"),
        (["--check-shift"], "this model lacks 'style/center'"),
        (["--device", "nowhere"], "got 'nowhere'"),
    ],
)
def test_mistakes_end_in_one_line(setting, capfd, options, message):
    root, _ = setting
    assert run(root / "run", root / "images", *options) == 2
    captured = capfd.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_changed_or_foreign_model_is_refused(setting, capfd):
    root, _ = setting
    weights = root / "run" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    assert run(root / "run", root / "images") == 2
    assert "SHA-256 differs" in capfd.readouterr().err
    assert run(root / "images", root / "images") == 2
    assert "'model.json'" in capfd.readouterr().err
