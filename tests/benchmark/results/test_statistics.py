"""Intervals, tests and corrections against values worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldstyle.benchmark.results.cell import CellResult, ScoreTable
from ldstyle.benchmark.results.statistics import (
    EXACT_PAIRS,
    Difference,
    Entry,
    best,
    bootstrap_interval,
    holm,
    sign_flip_test,
    smallest_p,
)
from ldstyle.benchmark.results.view import Results

differences = st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=7)


def test_sign_flips_of_three_pairs_are_counted_by_hand():
    # The eight sums are ±6, ±4, ±2 and twice 0; only the two with equal signs reach 6.
    assert sign_flip_test([1.0, 2.0, 3.0]) == 2 / 8
    # Observed 1 + 2 - 3 = 0: every flip is at least as extreme.
    assert sign_flip_test([1.0, 2.0, -3.0]) == 1.0
    # Observed 4: of ±6 (2), ±4 (2), ±2 (2), 0 (2) flips four are as extreme.
    assert sign_flip_test([-1.0, 2.0, 3.0]) == 4 / 8


def test_five_pairs_of_one_sign_give_the_smallest_p_five_pairs_can_give():
    assert sign_flip_test([0.1, 0.7, 0.2, 0.4, 0.3]) == 2 / 32


def test_ties_bring_no_evidence():
    assert sign_flip_test([0.0, 0.0]) == 1.0
    assert sign_flip_test([0.0, 1.0, 1.0]) == sign_flip_test([1.0, 1.0])


def test_sums_that_differ_by_rounding_only_count_as_equal():
    values = [0.1, 0.2, 0.3]  # 0.1 + 0.2 - 0.3 is not 0 in floating point
    assert sign_flip_test([*values, -0.6]) == 1.0
    assert sign_flip_test([0.3, -0.1, -0.2]) == 1.0


def test_without_pairs_there_is_no_p_value_and_no_interval():
    assert sign_flip_test([]) is None
    assert bootstrap_interval([]) == (None, None)
    assert bootstrap_interval([0.3]) == (None, None)


@given(differences)
def test_the_sign_flip_test_equals_plain_enumeration(values):
    count = 0
    for signs in product((-1, 1), repeat=len(values)):
        count += abs(sum(s * v for s, v in zip(signs, values, strict=True))) >= abs(sum(values))
    assert sign_flip_test(values) == count / 2 ** len(values)


@given(differences, st.integers(1, 1000))
def test_the_sign_flip_test_depends_neither_on_scale_nor_on_direction(values, scale):
    assert sign_flip_test([-value * scale for value in values]) == sign_flip_test(values)


def test_many_pairs_are_tested_by_drawn_flips_close_to_the_exact_value():
    values = [1.0] * 6 + [0.0] * EXACT_PAIRS  # the zeros change nothing, so the exact value is 2 / 2**6
    drawn = sign_flip_test(values)
    assert drawn == pytest.approx(2 / 64, rel=0.05)
    assert drawn == sign_flip_test(values)


def test_two_values_give_no_interval_and_three_are_spanned_by_theirs():
    assert bootstrap_interval([0.2, 0.6]) == (None, None)
    # All three resampled values are the lowest with probability 1/27, which is more than 2.5 %.
    assert bootstrap_interval([0.2, 0.4, 0.6]) == pytest.approx((0.2, 0.6), rel=1e-12)


@pytest.mark.parametrize("pairs", [1, 2, 3, 5, EXACT_PAIRS, EXACT_PAIRS + 6])
def test_the_smallest_p_value_is_that_of_equal_differences(pairs):
    found = sign_flip_test([1.0] * pairs)
    assert smallest_p(pairs) <= found
    assert pairs > EXACT_PAIRS or smallest_p(pairs) == found


def test_the_interval_of_five_values_is_that_of_all_resamples():
    values = [0.0, 1.0, 2.0, 5.0, 9.0]
    every = np.array([np.mean(chosen) for chosen in product(values, repeat=5)])
    low, high = bootstrap_interval(values, resamples=200_000)
    exact_low, exact_high = np.quantile(every, [0.025, 0.975])
    assert low == pytest.approx(exact_low, abs=0.11)
    assert high == pytest.approx(exact_high, abs=0.11)


def test_equal_values_have_an_interval_of_no_width():
    assert bootstrap_interval([0.25] * 4) == (0.25, 0.25)


def test_an_interval_is_the_same_every_time_and_leaves_the_global_stream_alone():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    assert bootstrap_interval([0.1, 0.4, 0.2]) == bootstrap_interval([0.1, 0.4, 0.2])
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    assert bootstrap_interval([0.1, 0.4, 0.2], resamples=50) != bootstrap_interval(
        [0.1, 0.4, 0.2], resamples=50, seed=1
    )


@pytest.mark.parametrize(("seeds", "coverage"), [(4, 0.80), (8, 0.88), (16, 0.93)])
def test_the_coverage_of_intervals_of_few_values_is_the_documented_one(seeds, coverage):
    samples = np.random.default_rng(seeds).normal(size=(1000, seeds))
    intervals = [bootstrap_interval(sample.tolist(), resamples=500) for sample in samples]
    covered = np.mean([low is not None and high is not None and low <= 0 <= high for low, high in intervals])
    assert covered == pytest.approx(coverage, abs=3 * (coverage * (1 - coverage) / 1000) ** 0.5)


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.04, made monotone.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


def test_holm_stays_below_one_and_counts_only_tests_that_were_made():
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None, 0.02, None]) == [None, 0.02, None]
    assert holm([]) == []


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=8))
def test_holm_never_helps_and_is_never_stricter_than_bonferroni(p_values):
    for p, corrected in zip(p_values, holm(p_values), strict=True):
        assert p <= corrected <= min(1.0, p * len(p_values)) + 1e-12


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


def test_a_seed_that_was_not_requested_is_named_and_not_averaged_over_silently():
    given = [cell("erm", "a", seed, 0.4 + seed / 10) for seed in range(3)] + [cell("ld", "a", 0, 0.7)]
    results = Results([*given, cell("ld", "a", 2, 0.5)])
    entry = results.entry("ld", split="a")
    assert (entry.mean, entry.complete, entry.absent) == (pytest.approx(0.6), False, {1: "not requested"})
    assert str(entry) == "60.0 ± 14.1 (2 seeds; not requested: seed 1)"
    found = results.difference("ld", "erm", split="a")
    assert values(found) == pytest.approx([0.3, -0.1])
    assert found.absent == {1: "not requested"}
    assert results.difference("erm", "ld", split="a").absent == {1: "not requested for ld"}


def test_a_failed_seed_is_named_where_another_split_was_not_requested():
    results = Results([cell("ld", "a", 0, 0.5), cell("ld", "b", 0, 0.5), made("ld", "b", 1, "failed")])
    assert results.entry("ld").absent == {1: "failed"}
    others = [cell("erm", split, seed, 0.4) for split in "ab" for seed in range(2)]
    both = Results([*results.cells, *others])
    assert both.difference("ld", "erm").absent == {1: "failed"}
    assert both.difference("erm", "ld").absent == {1: "failed for ld"}


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
