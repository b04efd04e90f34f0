from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch

from ldstyle.deploy.classifier import Prediction
from ldstyle.deploy.files import FilePredictions
from ldstyle.deploy.prediction_table import check_format, format_of, render, write_table

SCORES = torch.tensor([[0.123456789, 0.9], [1e-12, 0.5]], dtype=torch.float64)
FOUND = torch.tensor([[False, True], [False, True]])
PREDICTIONS = FilePredictions(
    (Path("a, b.png"), Path("ü.png")), Prediction(SCORES, FOUND, ("car", "big tree")), None, ()
)
SHIFT = torch.tensor([0.25, 1.0], dtype=torch.float64)


def test_csv_has_probabilities_and_decisions_by_label():
    rows = list(csv.DictReader(io.StringIO(render(PREDICTIONS, "csv", shift=SHIFT).decode())))
    assert rows == [
        {
            "path": "a, b.png",
            "probability_car": "0.123457",
            "probability_big tree": "0.9",
            "present_car": "0",
            "present_big tree": "1",
            "shift": "0.25",
        },
        {
            "path": "ü.png",
            "probability_car": "1e-12",
            "probability_big tree": "0.5",
            "present_car": "0",
            "present_big tree": "1",
            "shift": "1",
        },
    ]
    assert b"shift" not in render(PREDICTIONS, "csv")


def test_json_lines_have_an_object_per_image():
    lines = [json.loads(line) for line in render(PREDICTIONS, "jsonl", shift=SHIFT).splitlines()]
    assert lines[0] == {
        "path": "a, b.png",
        "probabilities": {"car": 0.123457, "big tree": 0.9},
        "labels": ["big tree"],
        "shift": 0.25,
    }
    assert lines[1]["path"] == "ü.png"
    assert "shift" not in json.loads(render(PREDICTIONS, "jsonl").splitlines()[0])


def test_parquet_has_the_columns_of_csv_in_full_precision():
    table = parquet.read_table(io.BytesIO(render(PREDICTIONS, "parquet", shift=SHIFT)))
    assert table.column_names == [
        "path",
        "probability_car",
        "probability_big tree",
        "present_car",
        "present_big tree",
        "shift",
    ]
    np.testing.assert_array_equal(table["probability_car"], SCORES[:, 0])
    assert json.loads(table.schema.metadata[b"vocabulary"]) == ["car", "big tree"]


def test_parquet_without_its_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        ValueError, match=r"needs the package pyarrow.*Run `pip install 'ldstyle\[parquet\]'`, or choose csv or jsonl"
    ):
        check_format("parquet")
    check_format("csv")


def test_the_format_goes_by_the_suffix():
    assert [format_of(Path(name)) for name in ("a.csv", "b.JSONL", "c.parquet")] == ["csv", "jsonl", "parquet"]
    with pytest.raises(ValueError, match=r"one of \.csv, \.jsonl, \.parquet; got 'a.txt'"):
        format_of(Path("a.txt"))


def test_a_table_appears_whole_in_a_folder_made_for_it(tmp_path):
    write_table(b"first", tmp_path / "new" / "table.csv")
    write_table(b"second", tmp_path / "new" / "table.csv")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "new").iterdir()] == [("table.csv", b"second")]


def test_bytes_of_a_name_that_are_no_text_pass_through():
    odd = Path(b"caf\xe9.png".decode("utf-8", errors="surrogateescape"))
    one = FilePredictions((odd,), Prediction(SCORES[:1], FOUND[:1], ("car", "big tree")), None, ())
    assert render(one, "csv").splitlines()[1].startswith(b"caf\xe9.png,")
    assert json.loads(render(one, "jsonl"))["path"] == str(odd)


UNKNOWN = FilePredictions(
    (Path("a.png"),),
    Prediction(torch.tensor([[torch.nan, 0.9]]).double(), torch.tensor([[False, True]]), ("ship", "car"), ("ship",)),
    None,
    (),
)


def test_an_unknown_label_is_empty_in_every_format():
    assert render(UNKNOWN, "csv").decode().splitlines()[1] == "a.png,nan,0.9,,1"
    assert json.loads(render(UNKNOWN, "jsonl")) == {
        "path": "a.png",
        "probabilities": {"ship": None, "car": 0.9},
        "labels": ["car"],
        "unknown": ["ship"],
    }
    table = parquet.read_table(io.BytesIO(render(UNKNOWN, "parquet")))
    assert table["present_ship"].to_pylist() == [None]
    assert table["present_car"].to_pylist() == [1]
    assert np.isnan(table["probability_ship"].to_pylist()[0])


@pytest.mark.parametrize("name", ["=1+1.png", "+a.png", "-2.png", "@SUM(A1).png", "\tx.png"])
def test_a_path_that_looks_like_a_formula_stays_a_path(name):
    one = FilePredictions((Path(name),), Prediction(SCORES[:1], FOUND[:1], ("car", "big tree")), None, ())
    (row,) = csv.DictReader(io.StringIO(render(one, "csv", shift=torch.tensor([-0.5])).decode()))
    assert row["path"] == f"./{name}"
    assert Path(row["path"]) == Path(name)
    assert row["shift"] == "-0.5"


def test_names_that_are_not_utf8_are_written_in_every_format():
    path = Path(os.fsdecode(b"caf\xe9.png"))
    one = FilePredictions((path,), Prediction(SCORES[:1], FOUND[:1], ("car", "big tree")), None, ())
    assert b"caf\xe9.png," in render(one, "csv")
    assert json.loads(render(one, "jsonl"))["path"] == str(path)
    assert parquet.read_table(io.BytesIO(render(one, "parquet")))["path"].to_pylist() == ["caf\\xe9.png"]
