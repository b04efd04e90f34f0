"""The pages of equations and notation name what exists, and leave no function or argument out."""

from __future__ import annotations

import ast
import re
from inspect import signature
from pathlib import Path

import pytest

from ldstyle import functional as LF

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "equations.md").read_text()
FUNCTIONS = PAGE.partition("\n## ")[0]  # the table of functions precedes the first heading
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in FUNCTIONS.splitlines() if line.startswith("|")
][2:]
TESTS = sorted({name for row in ROWS for name in re.findall(r"`([^`]+::[^`]+)`", row[3])})


def test_every_public_function_is_listed_and_every_listed_one_exists():
    listed = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[2])}
    assert listed == set(LF.__all__)


def test_every_equation_is_listed():
    assert {row[0] for row in ROWS} == {*map(str, range(1, 14)), "–"}


def test_every_row_names_a_test():
    assert all("::" in row[3] for row in ROWS)


@pytest.mark.parametrize("name", TESTS)
def test_listed_tests_exist(name):
    path, function = name.split("::")
    tree = ast.parse((ROOT / path).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", LF.__all__)
def test_every_argument_is_in_the_notation(name):
    notation = (ROOT / "docs" / "notation.md").read_text()
    missing = [argument for argument in signature(getattr(LF, name)).parameters if f"`{argument}`" not in notation]
    assert missing == []
