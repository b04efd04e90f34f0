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


def check_own_resnet18(lines):
    points, losses = lines[:5], [float(line.split()[-1]) for line in lines[5:8]]
    assert points[1] == "'layer1' (64 channels, stride 4)"
    assert points[2] == "'layer2' (128 channels, stride 8)"
    assert losses[-1] < 0.6 * losses[0]
    assert re.fullmatch(r"mAP in a domain never seen: \d+\.\d", lines[8])
    assert float(lines[8].split()[-1]) > 65  # chance is 50


def check_own_table(lines):
    assert lines[:2] == ["summer: 100 images, 50 roof, 46 tree", "winter: 100 images, 51 roof, 48 tree"]
    assert re.fullmatch(r"trained on summer, epoch \d of 6 kept", lines[2])
    assert float(re.fullmatch(r"winter: mAP ([\d.]+) on all 100 images", lines[3])[1]) > 80
    found = [re.fullmatch(r"images/winter-\d+\.png: (.+) found, (.+) there", line).groups() for line in lines[4:]]
    assert len(found) == 4
    assert sum(truth in labels for labels, truth in found) >= 3


def check_losses(count, pattern=r"(epoch|step) \d: (torch\.bfloat16, )?loss (\d+\.\d+)"):
    def check(lines):
        losses = [float(re.fullmatch(pattern, line)[3]) for line in lines[:count]]
        assert len(losses) == count
        assert all(0 < loss < 5 for loss in losses)
        assert lines[count:] == []

    return check


def check_steps(lines):
    steps, loss = re.fullmatch(r"(\d+) steps, loss (\d+\.\d+)", lines[-1]).groups()
    assert int(steps) == 8
    assert 0 < float(loss) < 5


def check_compiled(lines):
    check_losses(4)(lines[:4])
    assert lines[4:] == ["as the plain backbone: True"]


CHECKS = {
    "plain_loop": check_losses(3),
    "compiled": check_compiled,
    "lightning_module": check_steps,
    "hugging_face_trainer": check_steps,
    "mixed_precision": check_losses(4),
    "restyle_a_batch": check_restyle_a_batch,
    "own_resnet18": check_own_resnet18,
    "own_table": check_own_table,
}


SHORT = ("plain_loop", "lightning_module", "hugging_face_trainer", "mixed_precision", "compiled")
ARGUMENTS = {"compiled": ["eager"]}  # the backend; the default builds C++ code


@pytest.mark.parametrize("name", SHORT)
def test_a_short_example_has_at_most_forty_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


def test_every_example_is_checked():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CHECKS)


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")  # of Lightning
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of dynamo
@pytest.mark.parametrize("name", CHECKS)
def test_it_runs_and_its_output_is_true(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [f"{name}.py", *ARGUMENTS.get(name, [])])
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    CHECKS[name](capsys.readouterr().out.splitlines())
    assert not any(tmp_path.iterdir())
