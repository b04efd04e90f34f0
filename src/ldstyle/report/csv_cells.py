"""Text cells of CSV files that no spreadsheet takes for a formula."""

from __future__ import annotations

_STARTS = ("=", "+", "-", "@", "\t", "\r")


def neutral_cell(text: str) -> str:
    """Return a text cell of a CSV file so that spreadsheets show it instead of computing it.

    Names of labels, domains, methods and files are somebody's text: ``=cmd|...`` would be run on opening the file. An
    apostrophe before it makes it text. Numbers are not to be passed through here.
    """
    return f"'{text}" if text.lstrip(" ").startswith(_STARTS) else text
