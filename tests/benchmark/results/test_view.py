"""Commands of a view, which absent items of a report print, run as printed."""

from __future__ import annotations

import re
import shlex

import pytest
from tests.report.conftest import Grid

from ldstyle.benchmark.results.view import Results
from ldstyle.cli import main
from ldstyle.report.build import build_report


def commands(text):
    return [shlex.split(found) for found in re.findall(r"`(ldstyle bench [^`]*)`", text)]


def test_missing_methods_are_added_by_the_command_that_is_printed(scenes, tmp_path, capsys):
    grid = Grid(tmp_path / "grid", domains=("suburb", "harbour", "region"), root=str(scenes))
    grid.fill(["ld-efdmix"], splits=("s1",), seeds=2)
    slugs = ["twins-all", "differences-all", "oracle-gap"]
    report = build_report([grid.folder], tmp_path / "report", only=slugs)
    expected = {"twins-all": "efdmix", "differences-all": "erm", "oracle-gap": "oracle"}
    assert {item.slug for item in report.absent} == expected.keys()
    for item in report.absent:
        (words,) = commands(item.reason)
        assert main([*words[1:], "--dry-run"]) == 0
        shown = capsys.readouterr().out
        assert all(f"smoke-{expected[item.slug]}-s1-seed{seed}" in shown for seed in (0, 1)), shown
        assert words[words.index("--results") + 1] == str(grid.folder)


@pytest.mark.parametrize("command", ["run", "ablations", "sensitivity", "status"])
def test_a_command_without_methods_is_that_of_the_grid(tmp_path, scenes, capsys, command):
    grid = Grid(tmp_path / "grid", domains=("suburb", "harbour", "region"), root=str(scenes))
    grid.fill(["erm", "efdmix"], splits=("s1",), seeds=2)
    words = shlex.split(grid.view().command(command))
    assert words[words.index("--results") + 1] == str(grid.folder)
    if command == "run":
        assert words[words.index("--methods") + 1 :][:2] == ["erm", "efdmix"]
    if command != "status":
        assert words[words.index("--preset") + 1] == "smoke"
        assert words[words.index("--data") + 1] == str(scenes)
        assert main([*words[1:], "--dry-run"]) == 0, capsys.readouterr().err


def test_a_view_without_a_folder_has_short_commands():
    assert Results([]).command("run", ["erm"]) == "ldstyle bench run --methods erm"
