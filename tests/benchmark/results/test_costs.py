"""Measured costs are read back as written, and a file that holds something else is named and left out."""

import pytest

from ldstyle.benchmark.results.costs import FILE, read_costs, write_costs


def test_costs_are_read_as_they_were_written(tmp_path):
    assert read_costs(tmp_path) == read_costs(None) == {}
    write_costs(tmp_path / FILE, {"erm": 1.0, "sagm": 1.96})
    assert read_costs(tmp_path) == {"erm": 1.0, "sagm": 1.96}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read"),
        ('{"relative": {}}', "has no entry 'schema'"),
        ('{"schema": 2, "relative": {}}', "schema must be 1; got 2"),
        ('{"schema": 1, "relative": {"erm": "1"}}', "erm must be int or float; got '1'"),
        ('{"schema": 1, "relative": {"erm": 1, "sagm": NaN}}', "sagm must be positive; got nan"),
        ('{"schema": 1, "relative": [1]}', "entries by name; got list"),
    ],
)
def test_a_damaged_file_is_named_and_left_out(tmp_path, content, reason):
    (tmp_path / FILE).write_text(content)
    damaged = []
    assert read_costs(tmp_path, damaged=damaged) == {}
    (error,) = damaged
    assert str(tmp_path / FILE) in str(error)
    assert reason in str(error)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    write_costs(tmp_path / "elsewhere.json", {"erm": 1.0})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / FILE).symlink_to(tmp_path / "elsewhere.json")
    damaged = []
    assert read_costs(tmp_path / "results", damaged=damaged) == {}
    assert "leads out of" in str(damaged[0])
