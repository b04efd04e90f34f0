from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ldstyle.data.domains.samples import class_samples, pick_samples, save_figure
from ldstyle.data.domains.scene_table import SceneTable


def make(keys, labels, *, root=Path("nowhere"), domain="mine", vocabulary=("tree", "car")):
    return SceneTable(domain, root, vocabulary, tuple(keys), np.array(labels, dtype=np.int8))


def test_samples_have_the_label_and_no_row_serves_twice_if_there_are_enough():
    rng = np.random.default_rng(0)
    table = make([f"{i}.png" for i in range(60)], rng.integers(-1, 2, (60, 2)))
    picked = pick_samples(table, per_cell=5)
    for label, rows in enumerate(picked):
        assert len(rows) == 5
        assert (table.labels[rows, label] == 1).all()
    assert len({row for rows in picked for row in rows}) == 10


def test_a_row_serves_twice_before_a_cell_stays_empty():
    assert pick_samples(make(["a.png"], [[1, 1]]), per_cell=3) == [[0], [0]]


def test_samples_come_from_the_folder_where_the_label_is_most_frequent():
    keys = [f"beach/{i}.png" for i in range(20)] + [f"lot/{i}.png" for i in range(5)]
    labels = [[1, i == 0] for i in range(20)] + [[0, 1]] * 5
    _, cars = pick_samples(make(keys, labels), per_cell=4)
    assert all(keys[row].startswith("lot/") for row in cars)


def test_the_seed_decides_and_decides_the_same_again():
    table = make([f"{i}.png" for i in range(60)], np.ones((60, 2)))
    assert pick_samples(table, per_cell=3, seed=1) == pick_samples(table, per_cell=3, seed=1)
    assert pick_samples(table, per_cell=3, seed=1) != pick_samples(table, per_cell=3, seed=2)


@pytest.fixture
def figure(tmp_path):
    Image.new("RGB", (10, 10), (200, 30, 40)).save(tmp_path / "a.png")
    return class_samples(
        [
            make(["a.png"], [[1, 0, -1]], root=tmp_path, vocabulary=("tree", "car", "ship"), domain="east"),
            make(["a.png"], [[1, 1, 1]], root=tmp_path, vocabulary=("tree", "car", "ship"), domain="west"),
        ],
        per_cell=1,
        size=32,
    )


def test_the_grid_names_labels_and_domains_and_shows_the_pixels(figure):
    assert {"east", "west", "tree", "car", "ship", "1 images"} == {text.get_text() for text in figure.texts}
    shown = [[np.asarray(image.get_array())[0, 0].tolist() for image in axes.images] for axes in figure.axes]
    assert shown == [[[200, 30, 40]], [], [], [[200, 30, 40]], [[200, 30, 40]], [[200, 30, 40]]]


def test_an_empty_cell_says_whether_the_label_is_absent_or_unknown(figure):
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == [
        "none present",
        "unknown in this domain",
    ]


def test_the_figure_is_written_whole_or_not_at_all(figure, tmp_path, monkeypatch):
    save_figure(figure, tmp_path / "new" / "grid.png")
    with Image.open(tmp_path / "new" / "grid.png") as image:
        assert (200, 30, 40) in {color for _, color in image.convert("RGB").getcolors(1 << 20)}

    def full(path, **settings):
        Path(path).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(OSError, match="No space left"):
        save_figure(figure, tmp_path / "other.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "new"]
