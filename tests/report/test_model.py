"""Entries of tables as readers see them, and rows that must fit their columns."""

from __future__ import annotations

import pytest

from ldstyle.report.model import Change, Column, Interval, Mean, Number, PValue, Row, Span, Table, Value, Word


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Value(), "–"),
        (Word("ERM"), "ERM"),
        (Number(number=0.000116), "0.000116"),
        (Number(number=-0.04, digits=1), "0.0"),
        (Number(number=-3.25, digits=1), "−3.2"),
        (Number(number=1.169, digits=2, unit=" ×"), "1.17 ×"),
        (Number(number=2.0, digits=1, signed=True), "+2.0"),
        (Number(number=0.0, digits=1, signed=True, dash_zero=True), "–"),
        (Mean(number=50.0, sd=14.14, n=2), "50.0 ± 14.1"),
        (Mean(number=50.0, sd=14.14, n=2, missing=1, show_sd=False), "50.0 (n = 2)"),
        (Mean(), "–"),
        (Change(number=1.0, low=0.0, high=2.0, by_seed=(0.0, 1.0, 2.0), show_interval=True), "+1.0 [0.0, +2.0]"),
        (Change(number=0.5, by_seed=(0.0, 1.0), missing=1, show_interval=True), "+0.5 (0.0, +1.0) (n = 2)"),
        (Interval(number=-1.0, high=2.0), "[−1.0, +2.0]"),
        (Interval(number=5.0, by_seed=(5.0, 15.0), smallest_p=0.5), "+5.0, +15.0; p ≥ 0.5"),
        (PValue(number=0.0004), "< 0.001"),
        (PValue(number=0.25), "0.250"),
        (Span(number=10.4, low=9.0, high=12.0), "10 (9–12)"),
        (Span(number=10.5, low=9.0, high=12.0, show_number=False), "9–12"),
    ],
)
def test_an_entry_becomes_text_at_the_end(value, text):
    assert value.text == text


def test_notes_share_marks_and_count_beyond_the_alphabet():
    rows = tuple(Row((Word("x", note=f"note {n % 28}"),)) for n in range(30))
    notes = Table("t", "T", "", (Column("c"),), rows).notes
    assert len(notes) == 28
    assert (notes["note 0"], notes["note 25"], notes["note 27"]) == ("a", "z", "ab")


def test_a_row_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="Rows of 't' must have 2 entries; got 1"):
        Table("t", "T", "", (Column("a"), Column("b")), (Row((Word("x"),)),))
