"""Every notebook runs from top to bottom, is committed without outputs, and is a page of the documentation."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"


def check_own_images(printed, folder):
    assert "path,domain,building,car,tree,water,pavement,ship" in printed
    assert "suburb     60        60" in printed
    assert "source-validation mAP" in printed
    assert "all            60" in printed
    assert "torch.Size([8, 6])" in printed
    assert (folder / "runs" / "mine" / "model.safetensors").is_file()


def check_what_decoupling_does(printed, folder):
    assert "unchanged outside the shared labels: True" in printed
    shared, alone = printed.split("shared: ")[1].splitlines()[0].split(" | only in the image: ")
    assert shared
    assert alone
    assert not set(shared.split(", ")) & set(alone.split(", "))


CHECKS = {"own-images": (check_own_images, 2), "what-decoupling-does": (check_what_decoupling_does, 9)}


def read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def test_every_notebook_is_checked():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_it_is_committed_without_outputs(name):
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


@pytest.mark.parametrize("name", CHECKS)
def test_it_runs_and_its_output_is_true(name, tmp_path):
    check, pictures = CHECKS[name]
    notebook = read(name)
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.data for output in outputs if "data" in output]
    printed = [output.text for output in outputs if output.output_type == "stream"]
    check("".join(printed + [data["text/plain"] for data in shown]), tmp_path)
    assert sum("image/png" in data for data in shown) == pictures


def test_cells_become_a_page_with_fences_longer_than_any_within():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": "x = '''\n```\n'''"},
    ]
    assert hooks.notebook_page("a/b.ipynb", cells) == (
        "# Title\ntext\n\n````python\nx = '''\n```\n'''\n````\n\n[Download this notebook](b.ipynb){: download }\n"
    )
