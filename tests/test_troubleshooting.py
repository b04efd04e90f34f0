"""Each message on the troubleshooting page is one that the program has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `(.+?)` \| ", PAGE, re.MULTILINE)
GAP = "\0"


def fixed_words(node):
    """Return a string of the source with a gap for each inserted value, or nothing."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(part.value if isinstance(part, ast.Constant) else GAP for part in parts)


@pytest.fixture(scope="module")
def texts():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    strings = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [fixed_words(node) for node in [*strings, *(node for node in nodes if isinstance(node, ast.JoinedStr))]]


def test_the_page_has_messages():
    assert len(MESSAGES) >= 15
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_program_has_the_message(message, texts):
    words = re.sub(r"'[A-Z]+'|\b[A-Z]{2,}\b", GAP, message)
    pattern = re.compile("'?\0'?".join(map(re.escape, words.split(GAP))))
    assert any(pattern.search(text) for text in texts), message
