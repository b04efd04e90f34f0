"""Every example runs as it stands and says something true."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


def check_restyle_a_batch(lines):
    shared = [line for line in lines[1:9] if "→" in line]
    assert len(lines) == 12
    assert len(shared) == 6
    for line in shared:
        before, after = map(float, re.search(r"([\d.]+) → +([\d.]+)", line).groups())
        changed, region = map(int, re.search(r"(\d+) of (\d+)$", line).groups())
        assert after < 0.8 * before
        assert 0 < changed < region
    for line in lines[1:9]:
        assert "→" in line or re.search(r"\(not shared\) +0 of \d+$", line)
    equal, outside = re.search(r": (\d+) of (\d+) values bit-equal", lines[9]).groups()
    assert equal == outside
    assert int(outside) > 0
    assert re.search(r"after layer1, layer2: loss \d\.\d+", lines[10])
    assert lines[11] == "the network outside training is the plain backbone: True"


CHECKS = {"restyle_a_batch": check_restyle_a_batch}


def test_every_example_is_checked():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CHECKS)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", CHECKS)
def test_it_runs_and_its_output_is_true(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    CHECKS[name](capsys.readouterr().out.splitlines())
    assert not any(tmp_path.iterdir())
