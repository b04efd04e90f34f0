"""Intervals, tests and corrections against values worked out by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldstyle.benchmark.results.statistics import EXACT_PAIRS, bootstrap_interval, holm, sign_flip_test, smallest_p

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
