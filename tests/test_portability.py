"""The package on systems that lack what POSIX has, and its wheel outside the repository."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import ldstyle
from ldstyle.cli import EXTRAS, main, missing_extra
from ldstyle.files import replace_text
from ldstyle.runs.record import peak_memory_mb

ROOT = Path(__file__).parents[1]
PACKAGE = Path(ldstyle.__file__).parent
POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}


def test_no_module_imports_what_only_posix_has_at_its_top():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert POSIX.isdisjoint(names), f"{path}:{node.lineno}"


def test_peak_memory_is_unknown_without_resource(monkeypatch):
    assert (peak_memory_mb(torch.device("cpu")) or 0) > 0
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory_mb(torch.device("cpu")) is None


def test_files_are_written_where_folders_cannot_be_synchronised(tmp_path, monkeypatch):
    def refuse(path, *_args, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(os, "open", refuse)  # what Windows answers to a folder
    replace_text(tmp_path / "a.txt", "whole")
    monkeypatch.undo()
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_every_command_names_the_extra_that_it_lacks(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ldstyle.cli.train", None)
    for extra, packages in EXTRAS.items():
        for package in packages:
            message = missing_extra(ModuleNotFoundError(f"No module named {package!r}", name=f"{package}.part"))
            assert message is not None
            assert f"'ldstyle[{extra}]'" in message
    assert missing_extra(ModuleNotFoundError("No module named 'ldstyle.nonsense'", name="ldstyle.nonsense")) is None
    with pytest.raises(ModuleNotFoundError, match="train"):  # a defect of our own is not called a missing extra
        main(["train"])
    assert capsys.readouterr().err == ""


USE = """
import sys
sys.path[:0] = [{site!r}]
from importlib.machinery import PathFinder
class Hide(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {refused!r} else PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [Hide if finder is PathFinder else finder for finder in sys.meta_path]
import torch, ldstyle
assert ldstyle.__file__.startswith({site!r}), ldstyle.__file__
backbone = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4)
)
net = ldstyle.attach(backbone, ldstyle.LabelDecoupledConfig(), stages=("0",), num_labels=4)
context = ldstyle.StyleContext(torch.ones(4, 4, dtype=torch.bool), torch.arange(4) % 2, None, None, 9)
print(net.train()(torch.rand(4, 3, 8, 8), context).logits.shape)
from ldstyle.cli import main
sys.exit(main(["train", "--help"]))
"""


def files_in(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {str(path.relative_to(folder)) for path in found}


def test_the_wheel_serves_the_core_alone_and_names_the_extra(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.startswith(("tests/", "results/", "docs/"))]
        archive.extractall(site)
    assert files_in(PACKAGE) == files_in(site / "ldstyle")
    refused = {package for packages in EXTRAS.values() for package in packages}
    script = USE.format(site=str(site), refused=refused)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "torch.Size([4, 4])" in done.stdout, done.stderr
    assert done.returncode == 2
    assert "ldstyle[train]" in done.stderr
