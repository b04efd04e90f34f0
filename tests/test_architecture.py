"""The architecture as a test: data flows one way, and importing the package stays light."""

from __future__ import annotations

import ast
import json
import pydoc
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import ldstyle

PACKAGE = Path(ldstyle.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# A module may import its own part and every part of a lower rank; parts of one rank do not import each other.
RANKS = {
    "_version": 0,
    "types": 0,
    "seeding": 0,
    "files": 0,
    "messages": 0,
    "progress": 0,
    "workers": 0,
    "config": 1,
    "method_files": 2,
    "functional": 2,
    "metrics": 3,
    "cpu": 3,
    "data": 4,
    "nn": 4,
    "runs": 5,
    "evaluation": 6,
    "training": 7,
    "benchmark": 8,
    "deploy": 9,
    "report": 10,
    "cli": 11,
}
ENTRANCES = {"__init__", "__main__"}  # the package's own doors, free to import what they open
HEAVY = [
    "PIL",
    "jsonargparse",
    "kornia",
    "lightning",
    "matplotlib",
    "numba",
    "optuna",
    "pandas",
    "ray",
    "rich",
    "scipy",
    "sklearn",
    "timm",
    "torchmetrics",
    "torchvision",
    "transformers",
]


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imported_modules(path: Path) -> set[str]:
    """Return every module of this package a file imports, at its top or inside a function."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the module in full"
            # `from ldstyle import functional` names a part, `from ldstyle.data import pool` a module of one.
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module for module in modules if module.split(".")[0] == "ldstyle"}


def imported_parts(path: Path) -> set[str]:
    return {module.split(".")[1] if "." in module else "__init__" for module in imported_modules(path)}


def test_every_part_has_a_rank():
    assert {part_of(path) for path in FILES} - ENTRANCES <= RANKS.keys()


def test_modules_import_only_to_their_left():
    for path in FILES:
        own = part_of(path)
        for part in imported_parts(path) if own not in ENTRANCES else ():
            assert part in RANKS, f"{path} imports `ldstyle.{part}`; import from the part that defines it"
            assert part == own or RANKS[part] < RANKS[own], f"{path}: {own} must not import {part}"


def test_functional_imports_the_types_and_nothing_else():
    for path in FILES:
        if part_of(path) == "functional":
            assert imported_parts(path) <= {"functional", "types"}, path


def test_data_and_networks_do_not_know_each_other():
    for path in FILES:
        assert not ({"data", "nn"} <= {part_of(path), *imported_parts(path)}) or RANKS.get(part_of(path), 9) > 4, path


def test_a_misplaced_import_is_found(tmp_path):
    source = (
        "from ldstyle import nn\ndef f():\n    from ldstyle.data.loading.pool import Pool\n    import ldstyle.cli\n"
    )
    (tmp_path / "module.py").write_text(source)
    assert imported_parts(tmp_path / "module.py") == {"nn", "data", "cli"}


LOADED = """
import contextlib, io, json, sys
from ldstyle.cli import main

def loaded():
    return sorted({name.split(".")[0] for name in sys.modules})

with contextlib.redirect_stdout(io.StringIO()) as shown:
    codes = [main(["--version"]), main(["--help"])]
    try:
        main(["train", "--method", "ld-efdmix", "--help"])
    except SystemExit as stop:
        codes.append(stop.code)
quick = loaded()
import ldstyle
ldstyle.attach, ldstyle.functional.objective
package = loaded()
compiler = "torch._dynamo" in sys.modules
import ldstyle.metrics, ldstyle.report.figures
print(json.dumps({"codes": codes, "shown": shown.getvalue(), "quick": quick, "package": package, "late": loaded(),
                  "compiler": compiler}))
"""


@pytest.fixture(scope="module")
def fresh():
    """What a new interpreter has loaded after ``--version`` and ``--help``, then after more of the package."""
    done = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_version_and_help_load_neither_torch_nor_numpy(fresh):
    assert fresh["codes"] == [0, 0, 0]
    assert fresh["shown"].startswith("ldstyle ")
    assert "--style.operator.top-ratio" in fresh["shown"]
    assert {"torch", "numpy"}.isdisjoint(fresh["quick"])


def test_the_names_of_the_package_load_torch_and_numpy_only(fresh):
    assert {"torch", "numpy", "ldstyle"} <= set(fresh["package"])
    assert set(fresh["package"]).isdisjoint({*HEAVY} - {*fresh["quick"]})


def test_the_compiler_is_loaded_by_those_who_compile_only(fresh):
    assert fresh["compiler"] is False


def test_metrics_and_figures_load_neither_torchmetrics_nor_matplotlib(fresh):
    assert set(fresh["late"]).isdisjoint({"matplotlib", "sklearn", "timm", "torchmetrics"})


def test_every_public_name_is_there_and_no_other():
    public = {name for name in dir(ldstyle) if not name.startswith("_")}
    assert all(getattr(ldstyle, name) is not None for name in public)
    assert {*ldstyle.__all__, "StyledNet", "StyleContext", "StyledOutput", "LLAMConfig"} <= public
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    typed = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed - {None, "__version__"} == public  # type checkers see the same names
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ldstyle.nonsense  # noqa: B018


def test_the_help_of_the_package_is_a_page_that_names_everything():
    page = pydoc.render_doc(ldstyle, renderer=pydoc.plaintext)
    assert len(page.splitlines()) < 150
    assert "net.loss(output, labels)" in page
    for name in dir(ldstyle):
        assert name.startswith("_") or re.search(rf"\b{name}\b", page), name
    assert "class StyledNet" not in page  # it inherits a hundred methods from torch


def test_every_terminal_shows_names_as_they_are():
    """A domain may be called ``[/x]``, which is an error where rich looks for markup."""
    for path in FILES:
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in ("Console", "TextColumn"):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert given.get("markup") == "False", f"{path}:{call.lineno}"
