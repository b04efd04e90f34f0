from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from tests.benchmark.grids import cell, record

from ldstyle.benchmark.grid.cells import Split
from ldstyle.benchmark.results.records import append_record, claim, read_results, write_failure, write_plan
from ldstyle.benchmark.results.status import describe_counts, duration, estimate_seconds, status_view

OTHER = Split("s2", ("city", "harbour"), "meadow")


def shown(results) -> list[str]:
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(status_view(results))
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


def test_the_table_counts_what_is_done_running_failed_and_missing(tmp_path):
    grid = [cell(method, seed=seed, split=split) for method in ("erm", "csu") for seed in (0, 1)
            for split in (cell().split, OTHER)]  # fmt: skip
    write_plan(tmp_path, grid)
    by_slug = {one.slug: one for one in grid}
    append_record(tmp_path, record(by_slug["smoke-erm-s1-seed0"], seconds=19))
    append_record(tmp_path, record(by_slug["smoke-erm-s1-seed1"], seconds=39))
    append_record(tmp_path, record(by_slug["smoke-csu-s1-seed0"], seconds=99))
    write_failure(tmp_path, by_slug["smoke-csu-s2-seed0"], error="ValueError: no\nluck")
    (tmp_path / "smoke-csu-s2-seed1").mkdir()
    (tmp_path / "smoke-csu-s2-seed1" / "metrics.jsonl").write_text("{}\n")
    held = claim(tmp_path, "smoke-erm-s2-seed0")
    lines = shown(read_results(tmp_path))
    held.release()
    assert lines[0].split() == ["method", "s1", "→", "city", "s2", "→", "meadow"]
    assert lines[2].split() == ["ERM", "2/2", "▶1", "0/2"]
    assert lines[3].split() == ["CSU", "1/2", "✗1", "0/2"]
    assert lines[4] == "▶ smoke-erm-s2-seed0  after epoch 0 of at most 2"
    assert lines[5] == "✗ smoke-csu-s2-seed0  ValueError: no"
    # To do: two of ERM at (20 + 40) / 2 s, three of CSU at 100 s.
    assert lines[6] == (
        "3 of 8 cells done, 1 running, 1 failed, 1 cut, 2 missing, about 6 min 0 s of work left, 1 at a time"
    )


def test_a_method_without_a_time_takes_the_presets(tmp_path):
    grid = [cell("erm"), cell("csu"), cell("dsu", preset="paper")]
    write_plan(tmp_path, grid)
    append_record(tmp_path, record(grid[0], seconds=29))
    erm, csu, paper = read_results(tmp_path)
    assert estimate_seconds([csu], [erm], workers=1) == 30
    assert estimate_seconds([csu, csu, csu, csu], [erm], workers=2) == 60
    assert estimate_seconds([csu], [erm], workers=4) == 30
    assert estimate_seconds([paper], [erm], workers=1) is None
    assert estimate_seconds([], [erm], workers=1) == 0


def test_a_finished_grid_promises_nothing(tmp_path):
    write_plan(tmp_path, [cell()])
    append_record(tmp_path, record(cell()))
    assert describe_counts(read_results(tmp_path)) == "1 of 1 cells done"


def test_durations_are_readable():
    assert [duration(seconds) for seconds in (7.4, 61, 7260)] == ["7 s", "1 min 1 s", "2 h 1 min"]


def test_names_are_shown_as_they_are_and_never_as_markup(tmp_path):
    odd = replace(cell(), title="[/x] :smile:", split=replace(cell().split, target="[bold]city[/y]"))
    write_plan(tmp_path, [odd])
    write_failure(tmp_path, odd, error="[/z] is wrong")
    text = "\n".join(shown(read_results(tmp_path)))
    assert all(name in text for name in ("[/x]", "s1 → [bold]city[/y]", "[/z] is wrong"))
