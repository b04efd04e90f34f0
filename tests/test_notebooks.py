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


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cells_become_a_page_with_fences_longer_than_any_within(hooks):
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": "x = '''\n```\n'''"},
    ]
    page, pictures = hooks.notebook_page("a/b.ipynb", cells)
    assert page == (
        "# Title\ntext\n\n````python\nx = '''\n```\n'''\n````\n\n[Download this notebook](b.ipynb){: download }\n"
    )
    assert pictures == {}


def test_outputs_are_shown_on_the_page(hooks, tmp_path):
    cell = nbformat.v4.new_code_cell(
        "import sys, pathlib\n"
        "from IPython.display import Image, display\n"
        "print('\\x1b[1mprinted\\x1b[0m')\n"
        "advice = 'UserWarning: install \"ipywidgets\" for Jupyter support'\n"
        "display({'text/plain': advice + '\\n  warnings.warn(advice)'}, raw=True)\n"
        "print('progress', file=sys.stderr)\n"
        "pathlib.Path('made').touch()\n"
        "display(Image(b'picture', format='png'))\n"
        "6 * 7"
    )
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "b.ipynb")
    page, pictures = hooks.notebook_page("a/b.ipynb", hooks.executed_cells(tmp_path / "b.ipynb"))
    assert pictures == {"b-1.png": b"picture"}
    assert "![Output of the cell above](b-1.png)\n\n```text\nprinted\n42\n```\n" in page
    assert "progress" not in page.split("```")[3]
    assert [path.name for path in tmp_path.iterdir()] == ["b.ipynb"]  # it ran in a folder of its own
