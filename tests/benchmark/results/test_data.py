"""The data of a grid's cells: equal, and readable where it may be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.benchmark.grids import cell, record
from tests.benchmark.results.test_status import shown
from tests.report.conftest import Grid

from ldstyle.benchmark.results.data import DataAccess, differing_data
from ldstyle.benchmark.results.records import append_record, read_results


def finish(results, method, data, *, seed=0):
    append_record(results, {**record(cell(method, seed=seed)), **({} if data is None else {"data": data})})


def test_cells_of_the_same_data_are_comparable(tmp_path):
    for method in ("erm", "csu"):
        finish(tmp_path, method, {"city": "a", "harbour": "b"})
    finish(tmp_path, "dsu", None)
    assert differing_data(read_results(tmp_path)) == ()


def test_cells_of_other_data_are_named_in_the_status(tmp_path):
    finish(tmp_path, "erm", {"city": "a", "harbour": "b"})
    finish(tmp_path, "erm", {"city": "a", "harbour": "b"}, seed=1)
    finish(tmp_path, "csu", {"city": "changed", "harbour": "b"})
    (sentence,) = differing_data(read_results(tmp_path))
    assert "'city'" in sentence
    assert "smoke-erm-s1-seed0 and 1 more against smoke-csu-s1-seed0" in sentence
    assert any("warning: The data of 'city'" in line for line in shown(read_results(tmp_path)))


@pytest.fixture
def finished(tmp_path, make_image):
    """A finished cell whose record names a custom data set."""
    make_image(tmp_path / "data" / "mine" / "a.png")
    (tmp_path / "data" / "mine" / "labels.csv").write_text("path,roof,lat\na.png,1,51.3\n")
    place = {"root": str(tmp_path / "data"), "sea": "drop", "ignore": ["lat"]}
    grid = Grid(tmp_path / "grid", labels=["roof"])
    grid.done("erm", edits={"place": place})
    return grid.read()[0]


def with_mapping(cell, path):
    return replace(cell, record={**cell.record, "place": {**cell.record["place"], "mapping": str(path)}})


def test_a_label_map_that_a_record_names_is_not_read(finished, tmp_path):
    (tmp_path / "secret.txt").write_text("pass: [phrase")
    named = with_mapping(finished, tmp_path / "secret.txt")
    with pytest.raises(FileNotFoundError, match=r"label map '.*secret.txt'.* --mapping FILE") as caught:
        DataAccess(tmp_path / "data").read(named, ["mine"], within=tmp_path / "grid")
    assert "phrase" not in str(caught.value)


def test_a_label_map_that_the_caller_gives_is_read(finished, tmp_path):
    (tmp_path / "map.yaml").write_text("vocabulary: [building]\ndomains: {mine: {roof: building}}\n")
    access = DataAccess(tmp_path / "data", tmp_path / "map.yaml")
    (table,) = access.read(with_mapping(finished, "theirs.yaml"), ["mine"], within=tmp_path / "grid")
    assert (table.vocabulary, table.labels.tolist()) == (("building",), [[1]])


def test_columns_are_chosen_as_in_the_runs(finished, tmp_path):
    (table,) = DataAccess(trust=True).read(finished, ["mine"], within=tmp_path / "grid")
    assert table.labels.tolist() == [[1]]
