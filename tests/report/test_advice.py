"""Commands in the reasons of absent items run as printed."""

from __future__ import annotations

import re
import shlex

import pytest

from ldstyle.cli import main
from ldstyle.report.advice import with_commands
from ldstyle.report.build import build_report
from ldstyle.report.model import Absent


def commands(text):
    return [shlex.split(found) for found in re.findall(r"`(ldstyle bench [^`]*)`", text)]


def test_missing_methods_are_added_by_the_command_that_is_printed(make_grid, scenes, tmp_path, capsys):
    grid = make_grid(domains=("suburb", "harbour", "region"), root=str(scenes))
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
def test_a_command_without_methods_is_that_of_the_grid(make_grid, command):
    grid = make_grid()
    grid.fill(["erm", "efdmix"], splits=("s1",), seeds=2)
    item = with_commands(Absent("x", "X", f"Run `ldstyle bench {command}`."), grid.folder, grid.read())
    (words,) = commands(item.reason)
    assert words[words.index("--results") + 1] == str(grid.folder)
    if command == "run":
        assert words[words.index("--methods") + 1 :][:2] == ["erm", "efdmix"]
    if command != "status":
        assert words[words.index("--preset") + 1] == "smoke"


def test_commands_that_are_whole_stay_as_they_are(make_grid):
    grid = make_grid()
    grid.fill(["erm"], splits=("s1",), seeds=1)
    item = Absent("x", "X", "Try `ldstyle bench run --data synthetic --methods ld` and `ldstyle data check`.")
    assert with_commands(item, grid.folder, grid.read()) == item
