"""The study's records are whole, and its page shows what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ldstyle.benchmark.records import read_results
from ldstyle.cli import main

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "study.md"
MAIN = ("erm", "mixstyle", "efdmix", "csu", "ld-mixstyle", "ld-efdmix", "ld-csu", "ld-efdmix-gc")
ARCHIVES = ("erm", "efdmix", "ld-efdmix", "ld-efdmix-gc")
TABLES = (
    *("split-s3-all", "split-s1-all", "split-s2-all", "twins-all", "differences-all"),
    *("localization", "learned-attention", "development", "cost"),
)


@pytest.mark.parametrize(
    ("methods", "target", "seeds"), [(MAIN, "drone", 3), (ARCHIVES, "ucm", 2), (ARCHIVES, "aid", 2)]
)
def test_every_cell_of_the_set_ups_is_recorded(methods, target, seeds):
    done = {(one.method, one.seed) for one in read_results(RESULTS) if one.target == target and one.status == "done"}
    assert {(method, seed) for method in methods for seed in range(seeds)} <= done


def test_the_background_was_settled_on_cells_that_differ_in_nothing_else():
    cells = {one.method: one for one in read_results(RESULTS / "background")}
    for name in ("ld-mixstyle", "ld-efdmix", "ld-csu", "ld-efdmix-gc"):
        paper, confined = (cells[method].record["config"] for method in (name, f"{name}-confined"))
        assert (paper["style"]["background"], confined["style"]["background"]) == ("paper", "confined")
        assert paper["optimizer"] == confined["optimizer"]


def test_records_hold_no_images_and_no_weights():
    assert {path.suffix for path in RESULTS.rglob("*") if path.is_file()} == {".json", ".jsonl"}


def test_the_page_shows_the_tables_of_the_report(tmp_path):
    assert main(["report", str(RESULTS), "--out", str(tmp_path), "--only", *TABLES]) == 0
    shown = PAGE.read_text(encoding="utf-8").splitlines()
    for name in TABLES:
        made = (tmp_path / "tables" / f"{name}.md").read_text(encoding="utf-8").splitlines()
        rows = [line for line in made if line.startswith("|")]
        assert len(rows) > 2
        assert [line for line in rows if line not in shown] == [], name
