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
from ldstyle.report.model import DASH, MINUS, Interval, Table, Value

DETAILS = ("sd", "n", "low", "high")
"""Columns that CSV has next to a column of statistics, where it has them."""

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")

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
    marks = table.notes
    grid = [[_markdown(header) for header in table.headers]]
    grid += [[_markdown_cell(value, marks) for value in row.values] for row in table.rows]
    widths = [max(3, *(len(line[column]) for line in grid)) for column in range(len(table.columns))]
    numeric = table.numeric
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

    A table that is too wide is scaled down to the line. Characters of scripts without LaTeX commands stay
    unchanged; LuaLaTeX or XeLaTeX with a font that has them can print those.
    """
    marks = table.notes
    kinds = "".join("r" if numeric else "l" for numeric in table.numeric)
    body = [" & ".join(_latex_cell(value, marks) for value in row.values) + r" \\" for row in table.rows]
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
        " & ".join(_latex(header) for header in table.headers) + r" \\",
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
    and the ends ``low`` and ``high`` of its interval, where it has them. An entry without a value is empty; the last
    column has the reason. Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    columns = [[row.values[n] for row in table.rows] for n in range(len(table.columns))]
    # The ends of an interval are next to its change.
    kept = [n for n, values in enumerate(columns) if not any(isinstance(value, Interval) for value in values)]
    details = {n: _details(columns[n]) for n in kept}
    headers = [_clean_cell(header) for header in table.headers]
    first = [name for n, names in details.items() for name in (headers[n], *(f"{headers[n]} {one}" for one in names))]
    noted = bool(table.notes)
    lines = [first + ["note"] * noted]
    for row in table.rows:
        line: list[str] = []
        for n, names in details.items():
            value = row.values[n]
            line += [_raw(value), *(_number(value.details.get(name)) for name in names)]
        notes = [f"{headers[n]}: {_clean(value.note)}" for n, value in enumerate(row.values) if value.note]
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


def _details(column: Sequence[Value]) -> list[str]:
    """Return the details that some entry of a column has."""
    return [name for name in DETAILS if any(value.details.get(name) is not None for value in column)]


def _raw(value: Value) -> str:
    if value.number is not None:
        return _number(value.number)
    return "" if value.text == DASH else _clean_cell(value.text)


def _clean_cell(text: str) -> str:
    """Return a text cell that spreadsheets show instead of computing it: ``=cmd|...`` would be run on opening."""
    shown = _clean(text)
    return f"'{shown}" if shown.startswith(_FORMULAS) else shown


def _number(number: float | None) -> str:
    # Twelve digits exceed any measurement, and hide the noise of adding up in another order.
    return "" if number is None else f"{number:.12g}"


def _clean(text: str) -> str:
    """Make one line of a text and drop characters that cannot be printed."""
    return "".join(letter for letter in " ".join(text.split()) if unicodedata.category(letter)[0] != "C")
