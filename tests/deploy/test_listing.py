from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from tests.deploy.models import write_images

from ldstyle.data.domains.archives import find_images
from ldstyle.data.loading.decode import decode
from ldstyle.deploy.listing import list_images, sheet_names


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
