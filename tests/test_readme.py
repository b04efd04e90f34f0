"""The Python blocks of the texts run as written, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
TEXTS = ("README.md", "docs/backbones.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")
@pytest.mark.parametrize("text", TEXTS)
def test_its_python_blocks_run_as_written(text, monkeypatch, tmp_path):
    source = (ROOT / text).read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(source))
    assert blocks, f"{text} has no python block"
    monkeypatch.chdir(tmp_path)  # what a block saves stays out of the repository
    namespace = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]):
        for block in blocks:
            before = source[: block.start(1)].count("\n")
            code = compile("\n" * before + block[1], str(ROOT / text), "exec")  # errors point at the text's own lines
            exec(code, namespace)
