"""Tables as text: Markdown to read, LaTeX to paste into a paper, CSV to compute with.

The same table gives the same bytes. Notes become footnotes in Markdown and LaTeX and a column in CSV.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ldstyle.files import replace_text
from ldstyle.report.csv_cells import neutral_cell
from ldstyle.report.model import Table, Value
from ldstyle.report.tables.values import DASH, MINUS, Repeated, Statistic

DETAILS = ("sd", "n", "low", "high")
"""Columns that CSV has beside a column of statistics, where it has them."""

_PREAMBLE = ("booktabs", "graphicx")
_GREEK = {
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "λ": "lambda",
    "μ": "mu",
    "ρ": "rho",
    "σ": "sigma",
    "τ": "tau",
    "Δ": "Delta",
}
_LATEX: Mapping[str, str] = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "#": r"\#",
    "$": r"\$",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': "''",
    # A row that begins with one of these would be taken for an argument of the line break before it.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "±": r"$\pm$",
    MINUS: "$-$",
    "×": r"$\times$",
    "≈": r"$\approx$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "→": r"$\rightarrow$",
    "…": r"\dots{}",
    "–": "--",
    "—": "---",
    **{letter: f"$\\{name}$" for letter, name in _GREEK.items()},
}
_MARKDOWN: Mapping[str, str] = {
    "&": "&amp;",
    "<": "&lt;",
    **{mark: f"\\{mark}" for mark in "\\`*_|~$"},
}


def to_markdown(table: Table) -> str:
    """Return a table as Markdown: heading, caption, aligned columns, and footnotes."""
    marks = _footnotes(table)
    grid = [[_markdown(header) for header in table.columns]]
    grid += [[_markdown_cell(value, marks) for value in row] for row in table.rows]
    widths = [max(3, *(len(line[column]) for line in grid)) for column in range(len(table.columns))]
    numeric = _numeric(table)
    dashes = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, numeric, strict=True)]
    body = [
        [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(*line, strict=True)]
        for line in ((cells, widths, numeric) for cells in grid)
    ]
    lines = [f"### {_markdown(table.title)}", "", _markdown(table.caption), ""]
    lines += ["| " + " | ".join(line) + " |" for line in (body[0], dashes, *body[1:])]
    if marks:
        lines += ["", *(f"- <sup>{mark}</sup> {_markdown(note)}" for note, mark in marks.items())]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    r"""Return a table as a LaTeX ``table`` that needs the packages booktabs and graphicx.

    What is too wide is scaled down to the line. Characters of scripts that LaTeX has no command for stay as they are;
    LuaLaTeX or XeLaTeX with a font that has them can print those.
    """
    marks = _footnotes(table)
    kinds = "".join("r" if numeric else "l" for numeric in _numeric(table))
    body = [" & ".join(_latex_cell(value, marks) for value in row) + r" \\" for row in table.rows]
    lines = [
        "% Needs " + " and ".join(f"\\usepackage{{{package}}}" for package in _PREAMBLE) + ".",
        r"\begin{table}[t]",
        r"\centering",
        f"\\caption{{{_latex(table.caption)}}}",
        f"\\label{{tab:{_label(table.slug)}}}",
        r"\smallskip\footnotesize\setlength{\tabcolsep}{4pt}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        f"\\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        " & ".join(_latex(header) for header in table.columns) + r" \\",
        r"\midrule",
    ]
    for row, line in enumerate(body):
        lines += [r"\midrule", line] if row in table.rules else [line]
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if marks:
        notes = "; ".join(f"\\textsuperscript{{{mark}}}~{_latex(note)}" for note, mark in marks.items())
        lines += ["", r"\smallskip", f"{{\\raggedright {notes}.\\par}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def latex_document(tables: Sequence[Table]) -> str:
    """Return a whole document with tables, one per page, to look at them or to see that they compile."""
    preamble = [r"\documentclass{article}", r"\usepackage[margin=2cm]{geometry}"]
    preamble += [f"\\usepackage{{{package}}}" for package in _PREAMBLE]
    pages = [f"{to_latex(table)}\\clearpage" for table in tables]
    return "\n".join([*preamble, r"\begin{document}", *pages, r"\end{document}"]) + "\n"


def to_csv(table: Table) -> str:
    """Return a table as CSV with unrounded numbers, in the unit of its headers.

    A column of statistics is followed by those of its standard deviation ``sd``, its number ``n`` of seeds or pairs,
    and the ends ``low`` and ``high`` of its interval, where it has them. What has no value is empty; the last column
    says why. Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    columns = range(len(table.columns))
    kept = [column for column in columns if not any(isinstance(row[column], Repeated) for row in table.rows)]
    details = {column: _details(table, column) for column in kept}
    header: list[str] = []
    for column, names in details.items():
        name = _clean_cell(table.columns[column])
        header += [name, *(f"{name} {detail}" for detail in names)]
    noted = any(value.note for row in table.rows for value in row)
    lines = [header + ["note"] * noted]
    for row in table.rows:
        line: list[str] = []
        for column, names in details.items():
            line += [_raw(row[column]), *(_number(getattr(row[column], name, None)) for name in names)]
        notes = [f"{_clean_cell(table.columns[i])}: {_clean(value.note)}" for i, value in enumerate(row) if value.note]
        lines.append(line + ["; ".join(notes)] * noted)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Table], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
"""The formats by the endings of their files."""


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write a table in every format and return the files, ``SLUG.md``, ``SLUG.tex`` and ``SLUG.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{table.slug}.{ending}" for ending in FORMATS]
    for path, write in zip(paths, FORMATS.values(), strict=True):
        replace_text(path, write(table))
    return paths


def _footnotes(table: Table) -> dict[str, str]:
    """Return the mark of each note in order of reading; equal notes share one."""
    notes = dict.fromkeys(value.note for row in table.rows for value in row if value.note)
    return {note: _mark(number) for number, note in enumerate(notes)}


def _mark(number: int) -> str:
    """Return a, b, …, z, aa, ab and so on."""
    letters = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("a") + letter) + letters
    return letters


def _numeric(table: Table) -> list[bool]:
    """Whether each column holds numbers, or would if there were any."""
    columns = [[row[column] for row in table.rows] for column in range(len(table.columns))]
    return [
        any(value.number is not None for value in values) or all(value.text == DASH for value in values)
        for values in columns
    ]


def _markdown_cell(value: Value, marks: Mapping[str, str]) -> str:
    text = _markdown(value.text)
    text = f"**{text}**" if value.best else text
    return f"{text}<sup>{marks[value.note]}</sup>" if value.note else text


def _latex_cell(value: Value, marks: Mapping[str, str]) -> str:
    text = _latex(value.text)
    text = f"\\textbf{{{text}}}" if value.best else text
    return f"{text}\\textsuperscript{{{marks[value.note]}}}" if value.note else text


def _markdown(text: str) -> str:
    escaped = "".join(_MARKDOWN.get(letter, letter) for letter in _clean(text))
    return escaped.replace("](", "]\\(")


def _latex(text: str) -> str:
    # Two hyphens in a name are two hyphens, not a dash.
    apart = re.sub(r"-(?=-)", "-\0", _clean(text))
    return "".join(_LATEX.get(letter, letter) for letter in apart).replace("\0", "{}")


def _label(slug: str) -> str:
    return re.sub(r"[^A-Za-z0-9.:-]+", "-", slug)


def _details(table: Table, column: int) -> list[str]:
    """Return which details some entry of a column has."""
    values = [row[column] for row in table.rows]
    statistics = [value for value in values if isinstance(value, Statistic)]
    return [name for name in DETAILS if any(getattr(value, name) is not None for value in statistics)]


def _raw(value: Value) -> str:
    if value.number is not None:
        return _number(value.number)
    return "" if value.text == DASH else _clean_cell(value.text)


def _clean_cell(text: str) -> str:
    return neutral_cell(_clean(text))


def _number(number: float | None) -> str:
    # Twelve digits are beyond what is measured, and short of the noise of adding up in another order.
    return "" if number is None else f"{number:.12g}"


def _clean(text: str) -> str:
    """Make one line of a text and drop what cannot be printed."""
    return "".join(letter for letter in " ".join(text.split()) if unicodedata.category(letter)[0] != "C")
