from dataclasses import replace

import pytest
from tests.report.conftest import Grid

from ldstyle.benchmark.results.data_access import DataAccess


@pytest.fixture
def cell(tmp_path, make_image):
    """A finished cell whose record names a custom data set."""
    make_image(tmp_path / "data" / "mine" / "a.png")
    (tmp_path / "data" / "mine" / "labels.csv").write_text("path,roof,lat\na.png,1,51.3\n")
    place = {"root": str(tmp_path / "data"), "sea": "drop", "ignore": ["lat"]}
    grid = Grid(tmp_path / "grid", labels=["roof"])
    grid.done("erm", edits={"place": place})
    return grid.read()[0]


def with_mapping(cell, path):
    return replace(cell, record={**cell.record, "place": {**cell.record["place"], "mapping": str(path)}})


def test_a_label_map_that_a_record_names_is_not_read(cell, tmp_path):
    (tmp_path / "secret.txt").write_text("pass: [phrase")
    named = with_mapping(cell, tmp_path / "secret.txt")
    with pytest.raises(FileNotFoundError, match=r"label map '.*secret.txt'.* --mapping FILE") as caught:
        DataAccess(tmp_path / "data").read(named, ["mine"], within=tmp_path / "grid")
    assert "phrase" not in str(caught.value)


def test_a_label_map_that_the_caller_gives_is_read(cell, tmp_path):
    (tmp_path / "map.yaml").write_text("vocabulary: [building]\ndomains: {mine: {roof: building}}\n")
    access = DataAccess(tmp_path / "data", tmp_path / "map.yaml")
    (table,) = access.read(with_mapping(cell, "theirs.yaml"), ["mine"], within=tmp_path / "grid")
    assert (table.vocabulary, table.labels.tolist()) == (("building",), [[1]])


def test_columns_are_chosen_as_in_the_runs(cell, tmp_path):
    (table,) = DataAccess(trust=True).read(cell, ["mine"], within=tmp_path / "grid")
    assert table.labels.tolist() == [[1]]
