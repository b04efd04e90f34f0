"""The reliability page: every promise names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)) or [pytest.param("", "", marks=pytest.mark.skip)])
def test_a_promise_names_an_existing_test(file, name):
    assert re.search(rf"^\s*def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
