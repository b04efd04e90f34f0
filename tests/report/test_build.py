"""A report from results folders to files, and the command that makes it."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest
from tests.report.conftest import Grid

from ldstyle.cli import main
from ldstyle.cli.outputs import RECORD
from ldstyle.report.build import PAGE, build_report, find_grids


def filled(grid):
    """Two methods on two splits with two seeds, and a cell that failed."""
    grid.fill(["erm", "ld-efdmix"], splits=("s1", "s2"))
    grid.plan(["efdmix"], ["s1"], [0])
    grid.fail("efdmix")
    return grid.folder


@pytest.fixture
def results(make_grid):
    return filled(make_grid("results"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A whole report made by the command: its results and its folder, and what was printed on either stream."""
    folder = tmp_path_factory.mktemp("made")
    results, out = filled(Grid(folder / "results")), folder / "report"
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        assert main(["report", str(results), "--out", str(out)]) == 0
    return results, out, output.getvalue(), errors.getvalue()


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_records_alone_give_tables_figures_and_a_page_and_the_rest_is_named(made):
    _, out, output, errors = made
    page = (out / PAGE).read_text(encoding="utf-8")
    for slug in ("summary-test", "split-s1-test", "differences-test", "cost", "search-space"):
        assert (out / "tables" / f"{slug}.tex").read_text(encoding="utf-8").count(r"\begin{table}") == 1
        assert f"item-{slug}" in page
    assert page.count('<source class="drawing"') == page.count('<img class="drawing"') > 0, "all have a small form"
    for slug in ("label-ap", "differences", "cost-accuracy"):
        assert json.loads((out / "figures" / f"{slug}.json").read_text(encoding="utf-8"))
        assert (out / "figures" / f"{slug}.png").stat().st_size > 5000
    assert "| ERM" in output
    assert f"Open {(out / PAGE).resolve().as_uri()}" in output
    for slug in ("class-samples", "attention"):
        assert f"not made: {slug}: " in errors
        assert not (out / "figures" / f"{slug}.png").exists()


def test_what_nobody_asked_for_is_not_missed_on_the_page(made, tmp_path, capsys):
    results, out, _, errors = made
    page = (out / PAGE).read_text(encoding="utf-8")
    assert "Ablations" not in page
    assert "sensitivity" not in page
    assert "not made: ablation" not in errors
    assert main(["report", str(results), "--out", str(tmp_path), "--only", "ablation", "sensitivity"]) == 0
    shown = capsys.readouterr().err
    assert "not made: ablation: " in shown
    assert "not made: sensitivity: " in shown


def test_the_same_records_give_the_same_bytes(made):
    results, out, _, _ = made
    first = files_of(out)
    shutil.rmtree(out)
    assert main(["report", str(results), "--out", str(out)]) == 0
    assert files_of(out) == first


def test_one_item_is_made_again_by_its_slug(results, tmp_path, capsys):
    out = tmp_path / "report"
    assert main(["report", str(results), "--out", str(out), "--only", "summary-test", "label-ap"]) == 0
    assert {path.name for path in files_of(out)} == {
        *("summary-test.md", "summary-test.tex", "summary-test.csv"),
        *("label-ap.png", "label-ap.svg", "label-ap.json"),
        RECORD,
    }
    (out / "tables" / "summary-test.csv").write_text("corrected by hand")
    assert main(["report", str(results), "--out", str(out), "--only", "summary-test"]) == 2
    assert "summary-test.csv' was not written by ldstyle, or was changed since" in capsys.readouterr().err
    assert main(["report", str(results), "--out", str(out), "--only", "summary-test", "--force"]) == 0
    assert main(["report", str(results), "--out", str(out), "--only", "sumary-test"]) == 2
    assert "There is no item 'sumary-test'. Did you mean 'summary-test'?" in capsys.readouterr().err


def test_several_grids_stand_side_by_side(make_grid, tmp_path):
    grids = [make_grid("north"), make_grid("south")]
    for grid in grids:
        grid.fill(["erm", "ld-efdmix"], splits=("s1",), seeds=1)
    folders = [grid.folder for grid in grids]
    report = build_report(folders, tmp_path / "report")
    assert [grid.name for grid in find_grids(folders)] == ["north", "south"]
    assert [table.slug for table in report.summaries] == ["north-summary-all", "south-summary-all"]
    page = (tmp_path / "report" / PAGE).read_text(encoding="utf-8")
    assert "north: Results" in page
    assert "south: Results" in page


@pytest.mark.parametrize("names", [("a_b", "a-b"), ("\u6771", "\u897f")], ids=["punctuation", "scripts"])
def test_grids_of_similar_names_have_files_of_their_own(make_grid, tmp_path, names):
    folders = []
    for name in names:
        grid = make_grid(name)
        grid.fill(["erm", "ld-efdmix"], splits=("s1",), seeds=1)
        folders.append(grid.folder)
    report = build_report(folders, tmp_path / "report")
    slugs = [table.slug for table in report.summaries]
    assert len(set(slugs)) == 2
    assert not any(slug.startswith("-") for slug in slugs)
    assert all((tmp_path / "report" / "tables" / f"{slug}.csv").is_file() for slug in slugs)


def test_what_holds_no_results_is_refused(tmp_path, results):
    with pytest.raises(FileNotFoundError, match="There are no results in"):
        build_report([tmp_path / "gone"], tmp_path / "report")
    with pytest.raises(ValueError, match=r"Each results folder must be named once; got '.*results' twice"):
        build_report([results, results], tmp_path / "report")
    assert not (tmp_path / "report").exists()
