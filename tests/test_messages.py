"""Messages name the value and the nearest choice."""

from __future__ import annotations

import pytest

from ldstyle.messages import choose_from, did_you_mean, first_few, kinds_of, require


def test_a_rule_that_does_not_hold_is_raised_with_the_value():
    require(True, "size must be positive", 0)
    with pytest.raises(ValueError, match=r"^size must be positive; got '0'\.$"):
        require(False, "size must be positive", "0")


def test_the_nearest_choice_is_suggested_whatever_its_case():
    assert did_you_mean("TREEE", ["car", "Tree"]) == " Did you mean 'Tree'?"
    assert choose_from("treee", ["car", "tree"]) == " Did you mean 'tree'? Choose from: car, tree."


def test_no_suggestion_is_made_for_a_name_unlike_any_other():
    assert did_you_mean("zebra", ["tree", "car"]) == ""
    assert did_you_mean("are", ["tree", "bar"], cutoff=0.7) == ""
    assert did_you_mean("are", ["tree", "bar"], cutoff=0.5) != ""


def test_offenders_are_named_up_to_a_few_and_counted():
    assert first_few(["a"]) == "'a'"
    assert first_few("abc") == "'a', 'b', 'c'"
    assert first_few("abcdef") == "'a', 'b', 'c' and 3 more"


def test_sentences_on_several_files_are_shown_once_per_kind():
    same = [f"'{name}.png' is truncated." for name in "abcd"]
    assert kinds_of(same) == "'a.png' is truncated. The same applies to 3 more."
    assert kinds_of(["'a' is x.", "'b' is y."]) == "'a' is x. 'b' is y."
    assert kinds_of(["'a' is x.", "'b' is y.", "'c' is y."], most=1) == "'a' is x. And 2 more."
