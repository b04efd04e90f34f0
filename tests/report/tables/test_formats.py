"""Tables as text: exact bytes, hostile names, and a real TeX engine."""

from __future__ import annotations

import csv
import io
import re
import shutil
import string
import subprocess
from pathlib import Path

import pytest

from ldstyle.report.model import Change, Column, Interval, Mean, Number, Row, Table, Value, Word
from ldstyle.report.tables import make_tables
from ldstyle.report.tables.formats import FORMATS, latex_document, to_csv, to_latex, to_markdown, write_table

FAILED = "1 of 2 seeds; seed 1 failed"
TABLE = Table(
    slug="split-s1-test",
    title="s1: target city",
    caption="Over 2 seeds (0, 1), in %.",
    columns=(Column("method (2 seeds)"), Column("mAP"), Column("Δ"), Column("95 %")),
    rows=(
        Row((Word("ERM"), Mean(number=50.0, sd=14.125, n=2), Value(), Value())),
        Row(
            (
                Word("LD_x"),
                Mean(number=60.0, n=1, missing=1, best=True, note=FAILED),
                Change(number=10.0, by_seed=(10.0,), low=9.5, high=10.5),
                Interval(number=9.5, high=10.5),
            )
        ),
        Row((Word("Oracle"), Value(note=FAILED), Number(number=-0.5, digits=1, note="other"), Value())),
    ),
    rules=(2,),
)
HOSTILE = Table(
    slug="a b_{%}#",
    title="# ] [ * _",
    caption=f"{string.punctuation} {string.punctuation[::-1]} -- --- ?` !` ±−×≈≤≥→…–— αβγλμρστΔ é ü ß",
    columns=(Column(r"\input{x}"), Column("[1]"), Column("*")),
    rows=(
        Row((Word("[2pt] row"), Word("* row", best=True), Word("a & b % c", note="$x^2_1$ {} \\"))),
        Row((Word("*"), Word("line\nbreak\ttab"), Word("nul\x00\u200bhidden"))),
        Row((Word("[+1.0, −2.0]"), Word("100 %", number=100.0), Word("~"))),
    ),
    rules=(1, 2),
)


def test_markdown_is_aligned_and_its_notes_are_below():
    best = "**60.0 (n = 1)**<sup>a</sup>"
    assert to_markdown(TABLE).splitlines() == [
        "### s1: target city",
        "",
        "Over 2 seeds (0, 1), in %.",
        "",
        f"| method (2 seeds) | {'mAP':>28} | {'Δ':>16} | {'95 %':>13} |",
        f"| ---------------- | {'-' * 27}: | {'-' * 15}: | {'-' * 12}: |",
        f"| ERM              | {'50.0 ± 14.1':>28} | {'–':>16} | {'–':>13} |",
        f"| LD\\_x            | {best:>28} | {'+10.0':>16} | [+9.5, +10.5] |",
        f"| Oracle           | {'–<sup>a</sup>':>28} | −0.5<sup>b</sup> | {'–':>13} |",
        "",
        "- <sup>a</sup> 1 of 2 seeds; seed 1 failed",
        "- <sup>b</sup> other",
    ]
    assert to_markdown(TABLE).endswith("other\n")


def test_latex_is_a_whole_table_environment():
    assert to_latex(TABLE) == (
        "% Needs \\usepackage{booktabs} and \\usepackage{graphicx}.\n"
        "\\begin{table}[t]\n"
        "\\centering\n"
        "\\caption{Over 2 seeds (0, 1), in \\%.}\n"
        "\\label{tab:split-s1-test}\n"
        "\\smallskip\\footnotesize\\setlength{\\tabcolsep}{4pt}\n"
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
        "\\begin{tabular}{lrrr}\n"
        "\\toprule\n"
        "method (2 seeds) & mAP & $\\Delta$ & 95 \\% \\\\\n"
        "\\midrule\n"
        "ERM & 50.0 $\\pm$ 14.1 & -- & -- \\\\\n"
        "LD\\_x & \\textbf{60.0 (n = 1)}\\textsuperscript{a} & +10.0 & {[}+9.5, +10.5{]} \\\\\n"
        "\\midrule\n"
        "Oracle & --\\textsuperscript{a} & $-$0.5\\textsuperscript{b} & -- \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}}\n"
        "\n"
        "\\smallskip\n"
        "{\\raggedright \\textsuperscript{a}~1 of 2 seeds; seed 1 failed; "
        "\\textsuperscript{b}~other.\\par}\n"
        "\\end{table}\n"
    )


def test_csv_has_unrounded_numbers_and_what_lies_behind_them():
    assert list(csv.reader(io.StringIO(to_csv(TABLE)))) == [
        ["method (2 seeds)", "mAP", "mAP sd", "mAP n", "Δ", "Δ n", "Δ low", "Δ high", "note"],
        ["ERM", "50", "14.125", "2", "", "", "", "", ""],
        ["LD_x", "60", "", "1", "10", "1", "9.5", "10.5", "mAP: 1 of 2 seeds; seed 1 failed"],
        ["Oracle", "", "", "", "-0.5", "", "", "", "mAP: 1 of 2 seeds; seed 1 failed; Δ: other"],
    ]


def test_a_name_cannot_break_out_of_its_cell():
    rows = to_markdown(HOSTILE).splitlines()
    bars = [line.replace("\\|", "").count("|") for line in rows if line.startswith("| ")]
    assert bars == [4] * 5
    row = Row((Word("<script>a|b</script> [x](y) `c` *d*"),))
    named = Table("x", "x", "x", (Column("m"),), (row,))
    assert "| &lt;script>a\\|b&lt;/script> [x]\\(y) \\`c\\` \\*d\\* |" in to_markdown(named)
    body = to_latex(named).splitlines()
    assert r"\textless{}script\textgreater{}a\textbar{}b\textless{}/script\textgreater{} {[}x{]}(y) " in body[-4]


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", " =1", "\t=1"])
def test_csv_cells_that_spreadsheets_would_compute_become_text(name):
    row = Row((Word(name), Number(number=-1.5, digits=1, note=name)))
    table = Table("t", "T", "", (Column("method"), Column(name)), (row,))
    header, line = csv.reader(to_csv(table).splitlines())
    shown = " ".join(name.split())
    assert header == ["method", f"'{shown}", "note"]
    assert line == [f"'{shown}", "-1.5", f"'{shown}: {shown}"], "numbers stay numbers"


def test_tables_are_written_whole_and_the_same_every_time(tmp_path: Path):
    first = write_table(TABLE, tmp_path / "tables")
    assert [path.name for path in first] == ["split-s1-test.md", "split-s1-test.tex", "split-s1-test.csv"]
    content = [path.read_bytes() for path in first]
    assert [path.read_bytes() for path in write_table(TABLE, tmp_path / "tables")] == content
    assert content == [write(TABLE).encode() for write in FORMATS.values()]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(path.name for path in first)


def compile_tex(folder: Path, document: str) -> int | None:
    """Compile a document and return its number of pages, if the engine says it."""
    engine = next((name for name in ("pdflatex", "lualatex", "tectonic") if shutil.which(name)), None)
    if engine is None:
        pytest.skip("no TeX engine on PATH (pdflatex, lualatex or tectonic)")
    (folder / "tables.tex").write_text(document, encoding="utf-8")
    options = [] if engine == "tectonic" else ["-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape"]
    done = subprocess.run([engine, *options, "tables.tex"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Overfull \\hbox" not in done.stdout + done.stderr
    pages = re.search(r"Output written on tables\.pdf \((\d+) pages?", done.stdout)
    return int(pages[1]) if pages else None


def test_latex_compiles_with_hostile_names_and_a_whole_report(tmp_path, make_grid):
    grid = make_grid(domains=("ucm", "aid", "dfc15"), preset="paper", labels=("building", "car", "tree", "water"))
    methods = ["erm", "efdmix", "ld-efdmix", "ld-efdmix-gc", "oracle"]
    grid.fill(methods, pointing=0.5)
    grid.fill(["ld-efdmix-gc.uniform"], splits=["s1"])
    grid.plan(["csu"], ["s1"], [0, 1])
    grid.fail("csu", "s1", 0)
    made = make_tables(grid.view())
    tables = [HOSTILE, *(table for table in made if isinstance(table, Table))]
    assert len(tables) > 15
    # Each on a page of its own.
    assert compile_tex(tmp_path, latex_document(tables)) in (len(tables), None)
    assert (tmp_path / "tables.pdf").stat().st_size > 10_000
