from __future__ import annotations

from tests.benchmark.grids import cell, record
from tests.benchmark.results.test_status import shown

from ldstyle.benchmark.results.records import append_record, read_results
from ldstyle.benchmark.results.same_data import differing_data


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
