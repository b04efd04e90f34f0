"""The changes that docs/extending.md shows apply to the package, touch what CONTRIBUTING names, and work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
KINDS = ("A global operator", "An attention source", "A figure", "A data set")

USE = """
import sys
from pathlib import Path

import torch
from tests.conftest import Layouts, write_image
from tests.training.runs import metrics, tiny

import ldstyle
from ldstyle import functional as LF
from ldstyle.benchmark.grid.methods import load_method
from ldstyle.benchmark.results.records import read_results
from ldstyle.benchmark.results.view import Results
from ldstyle.data.domains.archives import find_downloads, read_archive
from ldstyle.data.synthetic import write_scenes
from ldstyle.report.figures import make_figure
from ldstyle.report.model import Picture
from ldstyle.training.loop import fit

root, results, folder = map(Path, sys.argv[1:])
assert Path(ldstyle.__file__).is_relative_to(root), ldstyle.__file__

# The operator: a function, a setting, a method of the benchmark.
feats = torch.randn(4, 3, 5, 5, dtype=torch.float64)
mixed = LF.meanmix(feats, torch.tensor([1, 0, 3, 2]), torch.zeros(4, dtype=torch.float64))
torch.testing.assert_close(mixed.mean((2, 3)), feats.mean((2, 3))[[1, 0, 3, 2]])
torch.testing.assert_close(mixed.std((2, 3)), feats.std((2, 3)))
assert load_method("meanmix").title == "MeanMix"
write_scenes(folder / "scenes", per_domain=24, size=48, workers=1)
one = {"optimizer": {"epochs": 1, "steps_per_epoch": 2}}
fit(tiny(folder / "scenes", folder / "operator", method="meanmix", style={"gate_prob": 1.0}, **one))
assert metrics(folder / "operator")[-1]["strength"].keys()

# The attention source: in settings, and its maps in use from the first step.
style = {"warmup_epochs": 0, "gate_prob": 1.0, "attention": {"name": "centre", "width": 0.2}}
config = tiny(folder / "scenes", folder / "attention", method="ld-efdmix-masks", **one)
from dataclasses import replace
from ldstyle.config import CentreConfig
config = replace(config, style=replace(config.style, attention=CentreConfig(0.2), warmup_epochs=0, gate_prob=1.0))
fit(config)
row = metrics(folder / "attention")[-1]
assert row["labels_mixed"] > 0
assert all(0.1 < value < 0.6 for value in row["locations"].values()), row["locations"]

# The figure, of the results that the repository has.
picture = make_figure("seeds", Results(read_results(results), folder=results))
assert isinstance(picture, Picture), picture
assert picture.data["values"]

# The data set, recognised by its table.
for name in ("port-1", "port-2"):
    write_image(folder / "download" / "images" / f"{name}.png")
table = "IMAGE\\\\LABEL,warehouse,lorry,water,quay,vessel,tree\\nport-1,1,0,1,1,1,0\\nport-2,0,1,0,1,0,1\\n"
(folder / "download" / "labels.csv").write_text(table)
[(archive, where)] = find_downloads(folder / "download")
table = read_archive(archive, where)
assert (table.domain, len(table.keys), table.labels[0].tolist()) == ("ports", 2, [1, 0, 0, 1, 1, 1])
"""


def diffs() -> dict[str, str]:
    return {
        title: re.search(r"```diff\n(.*?)```", text, re.DOTALL)[1]
        for title, text in zip(*[iter(re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:])] * 2, strict=True)
    }


def touched(diff: str) -> set[str]:
    return set(re.findall(r"^\+\+\+ src/ldstyle/(.+)$", diff, re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_touches_the_files_that_contributing_names(kind):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = re.search(rf"^### {kind}$(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)[1]
    named = set(re.findall(r"`([\w/]+\.(?:py|yaml)|[\w/]+/)`", section))
    files = touched(diffs()[kind])
    assert files
    assert not {file for file in files if file not in named and f"{file.rpartition('/')[0]}/" not in named}
    assert not {name for name in named if not any(file.startswith(name) for file in files)}


def test_the_changes_apply_and_work(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    found = diffs()
    assert tuple(found) == KINDS
    for kind, diff in found.items():
        command = ["git", "apply", "-p0", "-"]
        done = subprocess.run(command, cwd=tmp_path, input=diff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (kind, done.stderr)
    lint = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", ROOT / "pyproject.toml", "src"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert lint.returncode == 0, lint.stdout
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(ROOT)])}
    command = [sys.executable, "-c", USE, tmp_path, ROOT / "results", tmp_path / "work"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
