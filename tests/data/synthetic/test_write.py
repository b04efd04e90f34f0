"""Folders of drawn scenes: what is in them, that they appear whole, and what they never overwrite."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image

from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.synthetic import DOMAINS, VOCABULARY, contact_sheet, draw_scene, write_scenes
from ldstyle.data.synthetic import write as writing

COUNT = 23  # more than one worker's share, and not a multiple of it


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("scenes") / "drawn", per_domain=COUNT, size=48, seed=4, workers=1)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image)


@pytest.mark.parametrize("domain", DOMAINS)
def test_files_hold_what_is_drawn(folder, domain):
    with (folder / domain / "labels.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["path", "mask", *VOCABULARY]
    assert len(rows) == COUNT
    for number in (0, 7, COUNT - 1):
        path, mask, *labels = rows[number]
        assert (path, mask) == (f"images/{number:05d}.png", f"masks/{number:05d}.png")
        scene = draw_scene(domain, number, seed=4, size=48)
        np.testing.assert_array_equal(pixels(folder / domain / path), scene.image)
        bits = pixels(folder / domain / mask)
        for position in range(len(VOCABULARY)):
            np.testing.assert_array_equal((bits >> position) & 1, scene.masks[position])
        assert labels == [str(int(label)) for label in scene.labels]


def test_the_folder_reads_as_three_domains_with_masks(folder):
    tables = {table.domain: table for table in read_domains(folder)}
    assert set(tables) == set(DOMAINS)
    for domain, table in tables.items():
        assert table.vocabulary == VOCABULARY
        assert len(table) == COUNT
        assert table.masks is not None
        np.testing.assert_array_equal(table.labels[5], draw_scene(domain, 5, seed=4, size=48).labels)


def test_two_workers_write_the_same_files_as_one(folder, tmp_path):
    seen = []
    write_scenes(
        tmp_path / "two",
        per_domain=COUNT,
        size=48,
        seed=4,
        workers=2,
        progress=lambda done, total, what: seen.append((done, total, what)),
    )
    assert contents(tmp_path / "two") == contents(folder)
    assert [done for done, *_ in seen] == sorted({done for done, *_ in seen})
    assert seen[-1] == (3 * COUNT, 3 * COUNT, "scenes")
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_the_same_settings_draw_nothing_again(folder, monkeypatch):
    monkeypatch.setattr(writing, "draw_scene", pytest.fail)
    assert write_scenes(folder, per_domain=COUNT, size=48, seed=4, workers=1) == folder


def test_other_settings_replace_drawn_scenes(tmp_path):
    write_scenes(tmp_path / "drawn", per_domain=2, size=48, workers=1)
    write_scenes(tmp_path / "drawn", per_domain=1, size=64, workers=1)
    assert len(contents(tmp_path / "drawn")) == 1 + 3 * 3
    assert pixels(tmp_path / "drawn" / "region" / "images" / "00000.png").shape == (64, 64, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["drawn"]


def test_a_folder_that_lost_a_file_is_drawn_again(tmp_path):
    write_scenes(tmp_path / "drawn", per_domain=1, size=48, workers=1)
    before = contents(tmp_path / "drawn")
    (tmp_path / "drawn" / "suburb" / "masks" / "00000.png").unlink()
    write_scenes(tmp_path / "drawn", per_domain=1, size=48, workers=1)
    assert contents(tmp_path / "drawn") == before


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "drawn").mkdir()
    write_scenes(tmp_path / "drawn", per_domain=1, size=48, workers=1)
    assert (tmp_path / "drawn" / "harbour" / "labels.csv").is_file()


@pytest.mark.parametrize("manifest", [None, "not json", "[]", "{}"])
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path, manifest):
    (tmp_path / "mine.txt").write_text("precious")
    if manifest is not None:
        (tmp_path / "scenes.json").write_text(manifest)
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match=r"exists and holds no scenes\. Choose another folder\."):
        write_scenes(tmp_path, per_domain=1, size=48, workers=1)
    assert contents(tmp_path) == before


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "taken").write_text("precious")
    with pytest.raises(FileExistsError, match=r"taken' exists and holds no scenes\."):
        write_scenes(tmp_path / "taken", per_domain=1, size=48, workers=1)


def test_drawn_scenes_with_something_else_among_them_are_not_replaced(tmp_path):
    out = write_scenes(tmp_path / "drawn", per_domain=1, size=48, workers=1)
    (out / "notes.txt").write_text("precious")
    with pytest.raises(FileExistsError, match=r"also holds 'notes\.txt'\. Move it away"):
        write_scenes(out, per_domain=2, size=48, workers=1)
    assert (out / "notes.txt").read_text() == "precious"


def test_a_failure_leaves_neither_a_part_nor_a_draft(tmp_path, monkeypatch):
    def full(domain, number, **settings):
        if number == 1:
            raise OSError(28, "No space left on device")
        return draw_scene(domain, number, **settings)

    monkeypatch.setattr(writing, "draw_scene", full)
    with pytest.raises(OSError, match="No space left"):
        write_scenes(tmp_path / "drawn", per_domain=2, size=48, workers=1)
    assert list(tmp_path.iterdir()) == []


def test_scenes_of_an_older_drawing_are_drawn_afresh(tmp_path):
    out = write_scenes(tmp_path / "drawn", per_domain=1, size=48, workers=1)
    manifest = json.loads((out / "scenes.json").read_text())
    (out / "scenes.json").write_text(json.dumps(manifest | {"drawing": 0}))
    write_scenes(out, per_domain=1, size=48, workers=1)
    assert json.loads((out / "scenes.json").read_text()) == manifest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"per_domain": 0}, r"`per_domain` must be from 1 to 100000; got 0\."),
        ({"per_domain": 100_001}, r"`per_domain` must be from 1 to 100000; got 100001\."),
        ({"per_domain": 1, "workers": 0}, r"`workers` must be at least 1; got 0\."),
        ({"per_domain": 1, "size": 20}, r"`size` must be from 48 to 1024 pixels; got 20\."),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        write_scenes(tmp_path / "drawn", **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_contact_sheet_has_a_row_of_different_scenes_per_domain():
    sheet = contact_sheet(columns=3, size=48)
    assert sheet.shape == (3 * 51, 3 * 51, 3)
    tiles = {sheet[r * 51 + 3 : r * 51 + 51, c * 51 + 3 : c * 51 + 51].tobytes() for r in range(3) for c in range(3)}
    assert len(tiles) == 9
    assert (sheet[:3] == 255).all()
