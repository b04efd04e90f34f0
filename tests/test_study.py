"""The records of the studies are complete, and the pages show what `ldstyle report` makes of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ldstyle.benchmark.results.records import read_results
from ldstyle.benchmark.results.view import Results
from ldstyle.cli import main
from ldstyle.report.tables.entries import change_of

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
LEADERBOARD = ("own-settings", "searched", "epoch-average", "other-targets", "drone", "synthetic", "table3")
GRIDS = [RESULTS, *(RESULTS / "leaderboard" / name for name in LEADERBOARD)]  # the first study, then the leaderboard
PAGES = ("docs/study.md", "docs/study-details.md", "README.md")
PAGE = ROOT / "docs" / "study-details.md"
DIFFERENCE = re.compile(r"[+−]?\d+\.\d \[[+−]?\d+\.\d, [+−]?\d+\.\d\]")
GENERATED = re.compile(r"^<!-- ldstyle: .*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
PAIRS = (  # compared in the text of the study
    ("own-settings", "efdmix-matched", "efdmix"),
    ("own-settings", "ld-efdmix", "efdmix-matched"),
    ("own-settings", "ld-efdmix-uniform", "ld-efdmix"),
    ("synthetic", "ld-efdmix-uniform", "ld-efdmix-masks"),
)
MAIN = ("erm", "mixstyle", "efdmix", "csu", "ld-mixstyle", "ld-efdmix", "ld-csu", "ld-efdmix-gc")
ARCHIVES = ("erm", "efdmix", "ld-efdmix", "ld-efdmix-gc")


@pytest.mark.parametrize(
    ("methods", "target", "seeds"), [(MAIN, "drone", 3), (ARCHIVES, "ucm", 2), (ARCHIVES, "aid", 2)]
)
def test_every_cell_of_the_set_ups_is_recorded(methods, target, seeds):
    done = {(one.method, one.seed) for one in read_results(RESULTS) if one.target == target and one.status == "done"}
    assert {(method, seed) for method in methods for seed in range(seeds)} <= done


def records(folder):
    return {one.cell: one.record for one in read_results(folder)}


def test_the_background_was_settled_on_cells_that_differ_in_nothing_else():
    papers, others = records(RESULTS), records(RESULTS / "background")
    for name in ("ld-mixstyle", "ld-efdmix", "ld-csu", "ld-efdmix-gc"):
        paper = papers[f"study-{name}-s3-seed0"]["config"]
        confined = others[f"study-{name}-confined-s3-seed0"]["config"]
        assert (paper["style"].pop("background"), confined["style"].pop("background")) == ("paper", "confined")
        for part in ("style", "optimizer", "data", "backbone", "seed"):
            assert paper[part] == confined[part]


def test_the_page_says_how_far_a_cell_moves_by_rounding_alone():
    first, second = records(RESULTS / "rounding"), records(RESULTS)
    assert len(first) == 13
    moved = []
    for cell, record in first.items():
        other = second[cell]
        for part in ("style", "optimizer", "data", "backbone", "seed"):
            assert record["config"][part] == other["config"][part]
        moved.append(100 * (other["scores"]["all"]["map"] - record["scores"]["all"]["map"]))
    spread = (sum(move**2 for move in moved) / len(moved) / 2) ** 0.5
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    mean, largest = sum(map(abs, moved)) / len(moved), max(map(abs, moved))
    assert f"moves by {mean:.1f} points on average and {largest:.1f} at most" in page
    assert f"a standard deviation of {spread:.2f} for one run" in page


def test_records_hold_no_images_and_no_weights():
    allowed = {".json", ".jsonl", ".yaml", ".log"}  # the last two are of searches
    assert {path.suffix for path in RESULTS.rglob("*") if path.is_file()} <= allowed


def test_the_studys_pages_are_those_that_the_report_makes(tmp_path):
    copies = [tmp_path / page for page in PAGES]
    for page, copy in zip(PAGES, copies, strict=True):
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, copy)
    assert main(["report", *map(str, GRIDS), "--update", *map(str, copies)]) == 0
    for page, copy in zip(PAGES, copies, strict=True):
        assert copy.read_text(encoding="utf-8") == (ROOT / page).read_text(encoding="utf-8"), page


def shown(folder, method, baseline):
    cells = Results(read_results(RESULTS / "leaderboard" / folder))
    pair = cells.select(lambda cell: cell.method in (method, baseline))
    text = change_of(pair.difference(method, baseline, part="all"), interval=True).text
    return text.removesuffix(" (n = 4)")


def test_every_interval_in_the_text_is_one_of_a_table_or_of_the_pairs_compared_in_it():
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in (*PAGES, "docs/which-method.md")]
    tables = {found for page in pages for part in GENERATED.findall(page) for found in DIFFERENCE.findall(part)}
    texts = [" ".join(GENERATED.sub("", page).split()) for page in pages]
    quoted = {found for text in texts for found in DIFFERENCE.findall(text)}
    pairs = {shown(*pair) for pair in PAIRS}
    assert pairs <= quoted
    assert not quoted - tables - pairs


def test_the_page_says_where_averages_of_weights_start():
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    own = records(RESULTS / "leaderboard" / "own-settings").values()
    for method in ("swad", "ld-efdmix+swad"):
        valleys = [record["valley"] for record in own if record["method"] == method]
        assert len(valleys) == 8
        assert all(valley["last"] == valley["segments"] == valleys[0]["segments"] for valley in valleys)
        assert all(valley["found"] == (valley["first"] < valley["segments"]) for valley in valleys)
        *others, last = sorted(valley["first"] for valley in valleys)
        assert f"{', '.join(map(str, others))} and {last} of {valleys[0]['segments']}" in page


def test_the_page_has_the_best_score_of_every_search():
    text, searches = PAGE.read_text(encoding="utf-8"), sorted((RESULTS / "leaderboard" / "search").rglob("*.yaml"))
    assert searches
    for search in searches:
        score = re.search(r"mean held-out validation mAP ([\d.]+)", search.read_text(encoding="utf-8"))
        assert score is not None
        assert f"| {score[1]} |" in text, search.name
