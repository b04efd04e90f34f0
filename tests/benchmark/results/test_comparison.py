"""Hand-made results give hand-computed tables; what is not there is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ldstyle.benchmark.results.cell import CellResult, ScoreTable
from ldstyle.benchmark.results.comparison import Difference, Entry, best
from ldstyle.benchmark.results.view import Results


def made(
    method: str, split: str, seed: int, status: Any = "done", scores: Mapping[str, Any] | None = None
) -> CellResult:
    tables = {part: table and ScoreTable(**table) for part, table in (scores or {}).items()}
    return CellResult(
        f"{method}-{split}-{seed}", method, method, split, (), "t", seed, "smoke", status=status, scores=tables
    )


def cell(method: str, split: str, seed: int, value: float, *, whole: float = 0.0, ap: Any = None) -> CellResult:
    table = {"map": value, "cf1": value / 2, "of1": None, "ap": ap or {"car": value, "ship": None}}
    return made(method, split, seed, "done", {"test": table, "all": {**table, "map": whole}})


@pytest.fixture
def results() -> Results:
    """Two splits, three seeds; `ld` beats `erm` by 0.1, 0.2, 0.3 on `a` and by 0.3, 0.0, -0.1 on `b`."""
    erm = {"a": (0.50, 0.40, 0.60), "b": (0.20, 0.30, 0.40)}
    gains = {"a": (0.10, 0.20, 0.30), "b": (0.30, 0.00, -0.10)}
    cells = []
    for split in ("a", "b"):
        for seed in range(3):
            base = erm[split][seed]
            cells.append(cell("erm", split, seed, base, whole=0.5))
            cells.append(cell("ld", split, seed, base + gains[split][seed], whole=0.25))
            cells.append(cell("oracle", split, seed, 0.9))
    return Results(cells)


def values(difference: Difference) -> list[float]:
    return list(difference.values.values())


def test_mean_and_deviation_are_those_worked_out_by_hand(results):
    entry = results.entry("erm", split="a")
    assert entry.mean == pytest.approx(0.5)
    assert entry.sd == pytest.approx(0.1)  # sqrt((0 + 0.01 + 0.01) / 2): ddof 1
    assert str(entry) == "50.0 ± 10.0"


def test_the_average_over_splits_is_taken_seed_by_seed(results):
    entry = results.entry("erm")
    assert list(entry.values.values()) == pytest.approx([0.35, 0.35, 0.5])
    assert entry.mean == pytest.approx(0.4)


def test_parts_of_the_target_and_metrics_are_told_apart(results):
    assert results.entry("ld", split="a", part="all").mean == 0.25
    assert results.entry("erm", split="a", metric="cf1").mean == pytest.approx(0.25)


def test_one_seed_has_a_mean_and_no_deviation():
    assert str(Results([cell("erm", "a", 0, 0.5)]).entry("erm", split="a")) == "50.0"


def test_differences_are_paired_by_seed(results):
    found = results.difference("ld", "erm", split="a")
    assert values(found) == pytest.approx([0.1, 0.2, 0.3])
    assert found.mean == pytest.approx(0.2)
    assert found.p == 2 / 8
    assert found.low == pytest.approx(0.1, abs=0.04)
    assert found.high == pytest.approx(0.3, abs=0.04)
    assert found.low < found.mean < found.high


def test_differences_over_all_splits_pair_cells_and_average_by_seed(results):
    found = results.difference("ld", "erm")
    assert values(found) == pytest.approx([0.2, 0.1, 0.1])
    assert found.ties == 1
    assert found.p == 2 / 8  # three seeds, all in favour
    # Six cells 1, 2, 3, 3, 0, -1 (tenths) with sum 8 of at most 10. Without the zero, 32 flips: |sum| = 10 for two,
    # and 8 for the two that flip the 1 of either split: 2 + 2 * 2 = 6 of 32.
    assert results.difference("ld", "erm", unit="cell").p == 6 / 32


def test_comparisons_are_corrected_over_the_methods():
    gains = {"first": 0.3, "second": 0.2, "third": 0.1}
    cells = [cell("erm", "a", seed, 0.4) for seed in range(4)]
    for method, gain in gains.items():
        cells += [cell(method, "a", seed, 0.4 + (gain if method != "third" or seed else -gain)) for seed in range(4)]
    cells += [cell("oracle", "a", seed, 0.9) for seed in range(4)]
    found = Results(cells).compare("erm", split="a")
    assert [one.method for one in found] == ["first", "second", "third"]
    # 2/16 for the two that win on every seed; the third is at +1 of 3, 1, -1, ...: 3 or more wins or losses, 10/16.
    assert [one.p for one in found] == [2 / 16, 2 / 16, 10 / 16]
    assert [one.p_holm for one in found] == [6 / 16, 6 / 16, 10 / 16]


def test_the_oracle_gap_is_what_is_missing_to_the_ceiling(results):
    gaps = {gap.baseline: gap for gap in results.oracle_gap(split="a")}
    assert list(gaps) == ["erm", "ld"]
    assert values(gaps["erm"]) == pytest.approx([0.4, 0.5, 0.3])
    assert gaps["ld"].mean == pytest.approx(0.2)


def test_a_missing_seed_is_named_and_not_averaged_over_silently():
    given = [cell("erm", "a", seed, 0.4 + seed / 10) for seed in range(3)] + [cell("ld", "a", 0, 0.7)]
    results = Results([*given, cell("ld", "a", 2, 0.5)])
    entry = results.entry("ld", split="a")
    assert (entry.mean, entry.complete, entry.absent) == (pytest.approx(0.6), False, {1: "missing"})
    assert str(entry) == "60.0 ± 14.1 (2 seeds; missing: seed 1)"
    found = results.difference("ld", "erm", split="a")
    assert values(found) == pytest.approx([0.3, -0.1])
    assert found.absent == {1: "missing"}
    assert results.difference("erm", "ld", split="a").absent == {1: "missing for ld"}


def test_a_failed_cell_is_named():
    results = Results([cell("ld", "a", 0, 0.5), made("ld", "a", 1, "failed"), made("ld", "a", 2, "running")])
    assert str(results.entry("ld", split="a")) == "50.0 (1 seeds; failed: seed 1; running: seed 2)"
    nothing = Results([made("ld", "a", 0, "failed"), made("ld", "a", 1, "failed")])
    assert str(nothing.entry("ld", split="a")) == "– (failed: seeds 0, 1)"
    found = nothing.difference("ld", "erm", split="a")
    assert (found.mean, found.low, found.p, found.ties) == (None, None, None, 0)


def test_a_seed_that_failed_on_one_split_has_no_average_over_splits():
    done = [cell("ld", split, seed, 0.5) for split, seed in (("a", 0), ("a", 1), ("b", 0))]
    results = Results([*done, made("ld", "b", 1, "failed")])
    assert results.entry("ld").absent == {1: "failed"}
    assert results.entry("ld", split="a").complete


def test_seeds_that_were_asked_for_and_never_run_are_missing():
    assert Results([cell("ld", "a", 0, 0.5)], seeds=(0, 1)).entry("ld", split="a").absent == {1: "missing"}


def test_an_undefined_metric_is_named(results):
    assert results.entry("erm", split="a", metric="of1").absent == dict.fromkeys(range(3), "undefined")


def test_label_tables_hold_each_label_with_its_undefined_seeds():
    cells = [cell("erm", "a", 0, 0.5, ap={"car": 0.2, "ship": 0.4}), cell("erm", "a", 1, 0.5, ap={"car": 0.4})]
    table = Results(cells).label_table(split="a")["erm"]
    assert table["car"].mean == pytest.approx(0.3)
    assert (table["ship"].mean, table["ship"].absent) == (0.4, {1: "undefined"})


def test_the_best_are_all_that_tie_in_print_and_none_that_lacks_seeds():
    entries = {
        "one": Entry({0: 0.7004}, {}),
        "two": Entry({0: 0.7001}, {}),
        "worse": Entry({0: 0.6}, {}),
        "lucky": Entry({0: 0.9}, {1: "failed"}),
        "none": Entry({}, {0: "missing", 1: "missing"}),
    }
    assert best(entries) == ("one", "two")
    assert best(entries, digits=2) == ("one",)
    assert best({}) == ()


def test_a_cell_given_twice_is_refused():
    with pytest.raises(ValueError, match=r"must occur once; got \('erm', 'a', 0\) twice"):
        Results([cell("erm", "a", 0, 0.5), cell("erm", "a", 0, 0.5)])


def test_the_oracle_has_no_score_on_the_whole_target_which_it_was_trained_on():
    table = {"map": 0.9, "ap": {"car": 0.9}}
    results = Results([made("oracle", "a", 0, "done", {"test": table, "all": None}), cell("erm", "a", 0, 0.5)])
    assert results.entry("oracle", split="a").mean == 0.9
    assert results.entry("oracle", split="a", part="all").absent == {0: "undefined"}
    assert results.label_table(split="a", part="all")["oracle"]["car"].absent == {0: "undefined"}
