"""Marked parts of Markdown pages are made anew from results; the rest of a page is never touched."""

from __future__ import annotations

import pytest

from ldstyle.cli import main
from ldstyle.report.pages import find_marks

PAGE = """# Study

Before.

<!-- ldstyle: leaderboard -->
outdated
<!-- end -->

Between, with <!-- end --> in a line.

<!-- ldstyle: leaderboard rows=1 caption=no -->
<!-- end -->

After.
"""


@pytest.fixture
def results(make_grid):
    grid = make_grid("results")
    grid.fill(["erm", "efdmix", "ld-efdmix"], seeds=3)
    return grid.folder


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_tables_stand_between_their_marks_and_the_rest_is_kept(results, page):
    assert main(["report", str(results), "--update", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "outdated" not in text
    assert text.startswith(PAGE[: PAGE.index("outdated")])
    assert text.endswith(PAGE[PAGE.rindex("<!-- end -->") :])
    assert (
        "<!-- end -->\n\nBetween, with <!-- end --> in a line.\n\n<!-- ldstyle: leaderboard rows=1 caption=no -->"
        in text
    )
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    names = [line.split("|")[1].strip() for line in rows]
    assert names == ["method (3 seeds)", "LD-EFDMix", "EFDMix", "ERM", "method (3 seeds)", "LD-EFDMix"]
    assert text.count("mAP on the whole target") == 1, "caption=no leaves it out"


def test_a_page_that_is_up_to_date_stays_byte_for_byte(results, page):
    main(["report", str(results), "--update", str(page)])
    first = page.read_bytes()
    assert main(["report", str(results), "--update", str(page)]) == 0
    assert page.read_bytes() == first


def test_characters_that_some_take_for_line_ends_are_kept(results, page):
    odd = "A form feed\x0c, a separator\u2028, a next line\x85 and a file separator\x1c.\n\n"
    page.write_text(odd + PAGE, encoding="utf-8")
    assert main(["report", str(results), "--update", str(page)]) == 0
    assert page.read_text(encoding="utf-8").startswith(odd)


def test_a_damaged_file_of_any_folder_is_named(results, make_grid, page, capsys):
    other = make_grid("other")
    other.fill(["erm"], seeds=1)
    (other.folder / "plans" / "torn.json").write_text("{")
    page.write_text("<!-- ldstyle: results-leaderboard -->\n<!-- end -->\n", encoding="utf-8")
    assert main(["report", str(results), str(other.folder), "--update", str(page)]) == 1
    assert "torn.json" in capsys.readouterr().err


def test_columns_can_be_left_out(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- ldstyle: leaderboard omit=cost,minus_ERM -->\n<!-- end -->\n", encoding="utf-8")
    assert main(["report", str(results), "--update", str(page)]) == 0
    header = next(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| method"))
    assert [name.strip() for name in header.strip("| ").split("|")][-2:] == ["source validation", "minus twin"]


def test_figures_are_stored_next_to_the_page(results, tmp_path):
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("<!-- ldstyle: differences -->\n<!-- end -->\n", encoding="utf-8")
    assert main(["report", str(results), "--update", str(page)]) == 0
    assert (page.parent / "images" / "page-differences.png").read_bytes().startswith(b"\x89PNG")
    assert "](images/page-differences.png)" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("no mark\n", "page.md"),
        ("<!-- ldstyle: leaderboard -->\n", "line 1"),
        ("<!-- ldstyle: leaderboard -->\n<!-- ldstyle: cost -->\n<!-- end -->\n", "line 2"),
        ("<!-- ldstyle: leaderboard rows=0 -->\n<!-- end -->\n", "rows=0"),
        ("<!-- ldstyle: leaderboard lines=2 -->\n<!-- end -->\n", "lines=2"),
        ("<!-- ldstyle: leaderboard omit=price -->\n<!-- end -->\n", "'price'"),
        ("<!-- ldstyle: leaderbord -->\n<!-- end -->\n", "'leaderboard'"),
    ],
)
def test_a_wrong_mark_is_named_and_no_page_is_changed(results, page, tmp_path, capsys, text, named):
    wrong = tmp_path / "wrong" / "page.md"
    wrong.parent.mkdir()
    wrong.write_text(text, encoding="utf-8")
    assert main(["report", str(results), "--update", str(page), str(wrong)]) == 2
    assert named in capsys.readouterr().err
    assert (page.read_text(encoding="utf-8"), wrong.read_text(encoding="utf-8")) == (PAGE, text)


def test_an_item_that_cannot_be_made_is_named_on_the_page_and_its_reason_printed(results, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- ldstyle: oracle-gap -->\n<!-- end -->\n", encoding="utf-8")
    assert main(["report", str(results), "--update", str(page)]) == 0
    assert "*Gap to the oracle: not available.*" in page.read_text(encoding="utf-8")
    assert "oracle-gap: There is no oracle" in capsys.readouterr().err


def test_items_are_named_by_marks_or_by_the_command(results, page, capsys):
    assert main(["report", str(results), "--update", str(page), "--only", "cost"]) == 2
    assert "--only" in capsys.readouterr().err


def test_marks_have_lines_and_options(tmp_path):
    first, second = find_marks(PAGE, page=tmp_path)
    assert (first.slug, first.first, first.last, first.rows, first.caption) == ("leaderboard", 4, 6, None, True)
    assert (second.rows, second.caption) == (1, False)
