from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.deploy.models import ROUNDED, SIZE, direct_probabilities, pixels, write_images, write_model

from ldstyle.data.domains.archives import find_images
from ldstyle.data.loading.decode import decode
from ldstyle.deploy.classifier import load
from ldstyle.deploy.files import list_images, predict_files, sheet_names
from ldstyle.evaluation.style_statistics import style_points


@pytest.fixture
def setting(tmp_path):
    backbone = write_model(tmp_path / "run")
    return load(tmp_path / "run").double(), backbone, write_images(tmp_path / "images", 7)


def expected(backbone, numbers):
    return direct_probabilities(backbone, [pixels(number) for number in numbers])


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 1), (3, 2), (7, 3), (50, 1)])
def test_files_are_predicted_in_order(setting, batch_size, workers):
    classifier, backbone, paths = setting
    told = []
    found = predict_files(
        classifier, paths, batch_size=batch_size, workers=workers, progress=lambda *work: told.append(work)
    )
    assert found.paths == tuple(paths)
    assert found.problems == ()
    assert found.style is None
    np.testing.assert_allclose(found.prediction.probabilities, expected(backbone, range(7)), rtol=0, atol=ROUNDED)
    assert told[-1] == (7, 7, "images")
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_unreadable_images_are_all_named_and_nothing_is_returned(setting):
    classifier, _, paths = setting
    paths[1].write_bytes(b"not an image")
    paths[5].unlink()
    with pytest.raises(ValueError, match=r"(?s)2 images cannot be read:.*01\.png.*05\.png.*--skip-bad"):
        predict_files(classifier, paths, batch_size=2)


def test_unreadable_images_can_be_left_out(setting):
    classifier, backbone, paths = setting
    paths[0].write_bytes(b"")
    paths[6].write_bytes(paths[6].read_bytes()[:60])
    found = predict_files(classifier, paths, batch_size=2, skip_bad=True)
    assert found.paths == tuple(paths[1:6])
    assert [name in problem for name, problem in zip(("00.png", "06.png"), found.problems, strict=True)] == [True] * 2
    np.testing.assert_allclose(found.prediction.probabilities, expected(backbone, range(1, 6)), rtol=0, atol=ROUNDED)


def test_without_any_readable_image_there_is_nothing_to_return(setting):
    classifier, _, paths = setting
    for path in paths[:2]:
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"(?s)At least one image must be readable; none is.*00\.png"):
        predict_files(classifier, paths[:2], skip_bad=True)


def test_style_is_read_in_the_same_pass(setting):
    classifier, backbone, paths = setting
    points = style_points(classifier.backbone, image_size=SIZE)
    found = predict_files(classifier, paths, batch_size=3, style_points=points)
    assert found.style.shape == (7, 2 * sum(point.channels for point in points))
    np.testing.assert_allclose(found.prediction.probabilities, expected(backbone, range(7)), rtol=0, atol=ROUNDED)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_images(tmp_path / "b", 2)
    write_images(tmp_path / "a" / "deep", 1)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "a" / "deep" / "LOUD.JPG").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_folders_are_searched_at_any_depth_in_the_order_of_names(folder):
    assert list_images(["."]) == [Path(p) for p in ("a/deep/00.png", "a/deep/LOUD.JPG", "b/00.png", "b/01.png")]
    assert list_images(["b", "a"])[:2] == [Path("b/00.png"), Path("b/01.png")]


@pytest.mark.parametrize("suffix", ["bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp"])
def test_folders_are_searched_for_every_format_that_is_read(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    Image.new("RGB", (4, 4), (10, 20, 30)).save(path)
    assert list_images([str(tmp_path)]) == find_images(tmp_path) == [path]
    assert decode(path, 4).shape == (3, 4, 4)


def test_patterns_are_expanded_where_the_shell_did_not(folder):
    assert list_images(["**/*.png"]) == [Path("a/deep/00.png"), Path("b/00.png"), Path("b/01.png")]
    assert list_images([f"{folder}/b/?1.png"]) == [folder / "b" / "01.png"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(folder):
    name = Path("b/[1].png")
    name.write_bytes(b"")
    assert list_images([str(name)]) == [name]


def test_each_file_is_listed_once(folder):
    assert list_images(["b/01.png", "b", "b/*.png"]) == [Path("b/01.png"), Path("b/00.png")]


@pytest.mark.parametrize("text", [b"b/01.png\nb/00.png\n", b"b/01.png\r\n\r\nb/00.png", b"b/01.png\0b/00.png\0"])
def test_standard_input_holds_lines_or_names_ended_by_nul(folder, text):
    assert list_images(["-"], standard_input=io.BytesIO(text)) == [Path("b/01.png"), Path("b/00.png")]


def test_a_missing_file_is_left_for_the_reader_to_find(folder):
    assert list_images(["b/99.png"]) == [Path("b/99.png")]


def test_nothing_found_is_an_error(folder):
    (folder / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"No image found by 'empty'. Folders are searched for .*\.png"):
        list_images(["b", "empty"])
    with pytest.raises(FileNotFoundError, match=r"No image found by '\*.bmp'"):
        list_images(["*.bmp"])
    with pytest.raises(FileNotFoundError, match="No image is named"):
        list_images(["-"], standard_input=io.BytesIO(b"\n"))
    with pytest.raises(ValueError, match="of which there is none"):
        list_images(["-"])


def test_sheets_are_named_by_their_image_and_by_folder_only_where_needed(folder):
    names = sheet_names([Path("a/deep/00.png"), Path("b/00.png"), Path("b/01.png")])
    assert names[2] == Path("01.png")
    assert len(set(names)) == 3
    assert all(name.parent == Path() for name in names)
