"""Typed results: entries are read where they are as they must be, and refused by name where not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.report.conftest import Grid

from ldstyle.benchmark.results.cell import EpochLog, MapScores, RecordedData, ScoreTable

MEAN = {"pointing": 0.5, "iou": 0.25, "pointing_chance": 0.2, "iou_chance": 0.1}


def test_scores_are_read_by_metric_and_label():
    table = ScoreTable.from_entries("test", {"map": 0.5, "cf1": None, "of1": 1, "ap": {"a.b": 0.25}, "n": 7})
    assert [table.value(name) for name in ("map", "cf1", "of1", "ap.a.b", "ap.c")] == [0.5, None, 1, 0.25, None]
    with pytest.raises(TypeError, match=r"scores\.all\.car must be int or float or NoneType; got 'high'"):
        ScoreTable.from_entries("scores.all", {"map": 0.5, "cf1": 0, "of1": 0, "ap": {"car": "high"}})
    with pytest.raises(KeyError, match="of1"):
        ScoreTable.from_entries("test", {"map": 0.5, "cf1": 0.5, "ap": {}})


def test_maps_are_judged_by_their_means_and_the_fraction_that_exists():
    table = {"mean": MEAN, "car": {**MEAN, "n": 6, "missing": 2}, "ship": {**MEAN, "n": 0, "missing": 2}}
    assert MapScores.from_table(table) == MapScores(0.5, 0.25, 0.2, 0.1, judged=0.6)
    assert MapScores.from_table({"mean": MEAN}).judged is None
    assert MapScores.from_entries({"iou": 0.25}) == MapScores(None, 0.25, None, None)


def test_a_line_of_metrics_has_its_numbers_by_insertion_point():
    row = {"epoch": 2, "loss": 0.5, "validation": {"map": 0.25}, "localization": {"layer1": {"mean": MEAN}}}
    log = EpochLog.from_entries({**row, "strength": {"layer1": None}})
    assert (log.epoch, log.loss, log.map, log.strength, log.locations) == (2, 0.5, 0.25, {"layer1": None}, {})
    assert log.localization["layer1"].pointing == 0.5
    with pytest.raises(TypeError, match="loss must be int or float or NoneType; got 'low'"):
        EpochLog.from_entries({**row, "loss": "low"})


def test_a_record_of_a_finished_cell_is_typed(tmp_path):
    grid = Grid(tmp_path / "grid", root="/data")
    grid.done("ld-efdmix", pointing=0.5, edits={"attention": {"layer1": {"mean": MEAN}}})
    (cell,) = grid.read()
    assert (cell.score("map", "test"), cell.images("all")) == (0.5, 10)
    assert cell.thresholds == (0.5, 0.5, 0.5)
    assert (cell.machine.host, cell.machine.threads, cell.peak_memory_mb) == ("here", 1, 500.0)
    assert cell.localization.judged == 0.8
    assert cell.attention["layer1"].iou == 0.25
    assert cell.attention_source == "llam" == cell.network.attention
    assert cell.data == RecordedData("/data", None, "drop", (), ())


def test_a_damaged_entry_spoils_its_own_attribute_only(tmp_path):
    grid = Grid(tmp_path / "grid")
    grid.done("erm")
    (cell,) = grid.read()
    damaged = replace(cell, record={**cell.record, "localization": {"mean": 3}, "machine": "here"})
    assert damaged.peak_memory_mb == 500.0
    with pytest.raises(TypeError, match="entries by name; got int"):
        _ = damaged.localization
    with pytest.raises(TypeError, match="entries by name; got str"):
        _ = damaged.machine
