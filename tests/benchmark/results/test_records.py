from __future__ import annotations

import json

import pytest
from tests.benchmark.grids import cell, cells, record

from ldstyle.benchmark.results.records import (
    CLAIM,
    FAILURE,
    RECORDS,
    RESULT,
    append_record,
    claim,
    collect_strays,
    is_claimed,
    read_plans,
    read_records,
    read_results,
    write_failure,
    write_plan,
)


def test_a_cell_is_recorded_once(tmp_path):
    assert append_record(tmp_path, record(cell(), score=0.5))
    assert not append_record(tmp_path, record(cell(), score=0.9))
    assert len((tmp_path / RECORDS).read_text().splitlines()) == 1
    assert read_records(tmp_path)[cell().slug]["scores"]["test"]["map"] == 0.5


def test_of_two_lines_for_a_cell_the_first_counts(tmp_path):
    lines = [json.dumps(record(cell(), score=score)) for score in (0.5, 0.9)]
    (tmp_path / RECORDS).write_text("\n".join(lines) + "\n")
    (result,) = read_results(tmp_path)
    assert result.scores["test"].map == 0.5


def test_a_torn_line_spoils_itself_only(tmp_path):
    one, two, three = cells(3)
    append_record(tmp_path, record(one))
    with (tmp_path / RECORDS).open("a") as file:
        file.write(json.dumps(record(two))[:40])
    append_record(tmp_path, record(three))
    assert set(read_records(tmp_path)) == {one.slug, three.slug}
    assert append_record(tmp_path, record(two))
    assert set(read_records(tmp_path)) == {one.slug, two.slug, three.slug}


def test_a_line_that_a_crash_has_torn_is_named_until_the_cell_is_recorded_again(tmp_path):
    (tmp_path / RECORDS).write_text(json.dumps(record(cell()))[:60] + "\n")
    damaged = []
    read_records(tmp_path, damaged=damaged)
    assert [one.path.name for one in damaged] == [RECORDS]
    append_record(tmp_path, record(cell()))
    damaged.clear()
    assert list(read_records(tmp_path, damaged=damaged)) == [cell().slug]
    assert damaged == []


BROKEN = {
    "empty": "",
    "foreign schema": '{"schema": 7}',
    "no mapping": "[1, 2]",
    "no entries": "{}",
    "endless nesting": "[" * 200_000,
    "not text": "\udcff",
    "outer name": json.dumps({**record(cell()), "cell": "../../elsewhere"}),
    "absolute name": json.dumps({**record(cell()), "cell": "/etc"}),
    "scores of another kind": json.dumps({**record(cell(seed=9)), "scores": {"test": 1, "all": None}}),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_one_damaged_file_of_any_kind_is_named_and_the_rest_is_read(tmp_path, content):
    one, two, three = cells(3)
    write_plan(tmp_path, [one, two, three])
    append_record(tmp_path, record(one))
    damaged_files = [tmp_path / "plans" / "damaged.json", tmp_path / two.slug / FAILURE]
    (tmp_path / two.slug).mkdir()
    for path in damaged_files:
        path.write_text(content, errors="surrogateescape")
    (tmp_path / three.slug).mkdir()
    (tmp_path / three.slug / RESULT).write_text(content, errors="surrogateescape")
    with (tmp_path / RECORDS).open("a", errors="surrogateescape") as file:
        file.write(content + "\n")
    damaged = []
    assert collect_strays(tmp_path, damaged=damaged) == []
    assert [found.path for found in damaged] == [tmp_path / three.slug / RESULT]
    damaged.clear()
    found = {result.cell: result.status for result in read_results(tmp_path, damaged=damaged)}
    assert found == {one.slug: "done", two.slug: "failed", three.slug: "missing"}
    expected = {*damaged_files, tmp_path / RECORDS} - ({tmp_path / RECORDS} if not content else set())
    assert {found.path for found in damaged} == expected
    assert all("\n" not in str(found) and str(found.path) in str(found) for found in damaged)
    assert read_results(tmp_path)  # also where nobody asks


def test_a_damaged_plan_is_written_again(tmp_path):
    path = write_plan(tmp_path, cells(2))
    path.write_text("{")
    assert write_plan(tmp_path, cells(2)) == path
    assert [found.slug for found in read_plans(tmp_path)] == [one.slug for one in cells(2)]


def test_links_out_of_the_results_folder_are_not_followed(tmp_path):
    results, secret = tmp_path / "results", tmp_path / "secret"
    one, two = cells(2)
    write_plan(results, [one, two])
    secret.mkdir()
    (secret / RESULT).write_text(json.dumps(record(one)))
    (secret / CLAIM).write_text("mine")
    (results / one.slug).symlink_to(secret)
    (results / two.slug).mkdir()
    (results / two.slug / FAILURE).symlink_to(secret / RESULT)
    damaged = []
    assert collect_strays(results, damaged=damaged) == []
    assert [found.status for found in read_results(results, damaged=damaged)] == ["missing", "failed"]
    assert [found.path for found in damaged] == [results / one.slug / RESULT, results / two.slug / FAILURE]
    assert all("leads out of" in str(found) for found in damaged)
    with pytest.raises(ValueError, match=rf"{one.slug}.*leads out of"):
        claim(results, one.slug)
    assert (secret / CLAIM).read_text() == "mine"


def test_a_result_reads_as_it_was_recorded(tmp_path):
    append_record(tmp_path, record(cell("ld-csu", seed=3), score=0.25))
    (result,) = read_results(tmp_path)
    assert (result.method, result.title, result.split, result.seed, result.preset) == (
        *("ld-csu", "LD-CSU", "s1"),
        *(3, "smoke"),
    )
    assert (result.sources, result.target) == (("meadow", "harbour"), "city")
    assert (result.status, result.error, result.epochs) == ("done", None, 2)
    assert (result.validation_map, result.selected_epoch, result.wall_seconds) == (0.8, 2, 10.0)
    assert result.scores["all"].ap == {"tree": 0.25}
    assert result.splits == {"city": "abc"}


def test_plans_say_what_is_missing_and_each_cell_counts_once(tmp_path):
    one, two, three = cells(3)
    write_plan(tmp_path, [one, two])
    write_plan(tmp_path, [two, three])
    write_plan(tmp_path, [two, three])
    assert [found.slug for found in read_plans(tmp_path)] == [one.slug, two.slug, three.slug]
    append_record(tmp_path, record(two))
    append_record(tmp_path, record(cell("unplanned")))
    statuses = {found.cell: found.status for found in read_results(tmp_path)}
    assert statuses == {
        one.slug: "missing",
        two.slug: "done",
        three.slug: "missing",
        cell("unplanned").slug: "done",
    }


def test_a_claim_is_exclusive_and_shows_as_running(tmp_path):
    one = cell()
    write_plan(tmp_path, [one])
    assert not is_claimed(tmp_path, one.slug)
    held = claim(tmp_path, one.slug)
    assert held is not None
    assert claim(tmp_path, one.slug) is None
    assert read_results(tmp_path)[0].status == "running"
    held.release()
    assert read_results(tmp_path)[0].status == "missing"
    again = claim(tmp_path, one.slug)
    assert again is not None
    again.release()


def test_a_failure_shows_until_the_cell_runs_again(tmp_path):
    one = cell()
    write_plan(tmp_path, [one])
    write_failure(tmp_path, one, error="ValueError: no", trace="Traceback")
    (tmp_path / one.slug / "metrics.jsonl").write_text("{}\n{}\n")
    (result,) = read_results(tmp_path)
    assert (result.status, result.error, result.epochs) == ("failed", "ValueError: no", 2)
    held = claim(tmp_path, one.slug)
    assert read_results(tmp_path)[0].status == "running"
    held.release()
    assert json.loads((tmp_path / one.slug / FAILURE).read_text())["traceback"] == "Traceback"


def test_a_cell_finished_by_a_process_that_died_is_not_lost(tmp_path):
    one, two = cells(2)
    (tmp_path / one.slug).mkdir()
    (tmp_path / one.slug / RESULT).write_text(json.dumps(record(one)))
    append_record(tmp_path, record(two))
    assert collect_strays(tmp_path) == [one.slug]
    assert collect_strays(tmp_path) == []
    assert set(read_records(tmp_path)) == {one.slug, two.slug}


def test_an_empty_folder_is_no_grid(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no results in .* Start with `ldstyle bench run --results DIR`"):
        read_results(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(FileNotFoundError, match=r"no results in .* It is a single run, which `ldstyle evaluate`"):
        read_results(tmp_path)
