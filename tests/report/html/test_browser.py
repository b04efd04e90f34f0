import base64
import json
import shutil
from dataclasses import asdict
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from tests.deploy.models import float32_error

from ldstyle.benchmark.execution.cell_run import run_cell
from ldstyle.benchmark.grid.cells import make_cells, make_splits
from ldstyle.benchmark.grid.imagery import DataLocation
from ldstyle.benchmark.grid.methods import load_methods
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.results.data import DataAccess
from ldstyle.benchmark.results.records import append_record, read_results, write_plan
from ldstyle.benchmark.results.view import Results
from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.loading.decode import decode
from ldstyle.deploy.classifier import load
from ldstyle.deploy.explain import Explainer
from ldstyle.report.html.browser import (
    OPACITY,
    BrowserData,
    build_browser,
    choose_cells,
    join_browsers,
    judge,
    pick_images,
)
from ldstyle.report.model import Absent


@pytest.fixture(scope="module")
def trained(scenes, tmp_path_factory):
    """A results folder with two cells that were really run, on drawn scenes."""
    results = tmp_path_factory.mktemp("trained")
    location = DataLocation(str(scenes), str(results / "cache"))
    splits = make_splits(("suburb", "harbour", "region"), ["region"])
    cells = make_cells(load_methods(["erm", "efdmix"]), splits, [0], preset=PRESETS["smoke"], data=location.settings())
    write_plan(results, cells)
    for cell in cells:
        append_record(results, run_cell(cell, location=location, folder=results / cell.slug))
    return results


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "results")


def build(folder, *, root=None, **settings):
    access = DataAccess(root, trust=root is None)
    return build_browser(Results(read_results(folder), folder=folder, access=access), **settings)


def opened(text):
    return Image.open(BytesIO(base64.b64decode(text)))


def test_images_predictions_and_heat_of_real_runs(trained, scenes):
    data = build(trained, images=12)
    (target,) = data.targets
    assert (target.split, target.domain, target.total) == ("s3", "region", 30)
    assert data.notes == ()
    (table,) = read_domains(scenes, ["region"])
    assert target.vocabulary == table.vocabulary
    assert len(target.keys) == 12 == len(set(target.keys))
    assert set(target.keys) <= set(table.keys)
    assert sum(target.random) == 3
    assert [view.method for view in target.views] == ["erm", "efdmix"]
    for n, key in enumerate(target.keys):
        shown = opened(target.thumbnails[n])
        assert (shown.format, shown.size) == ("JPEG", (128, 128))
        with Image.open(table.root / key) as file:
            true = np.asarray(file.convert("RGB").resize((128, 128)), float)
        assert np.abs(np.asarray(shown, float) - true).mean() < 12  # the right image, but for the JPEG's losses
        truth = table.labels[table.keys.index(key)]
        for view in target.views:
            said = load(trained / view.cell).predict(table.root / key)
            # Shown with four decimals, and computed in other batches.
            rounding = 0.5e-4 + 2 * float32_error(load(trained / view.cell))
            np.testing.assert_allclose(view.probabilities[n], said.probabilities[0], rtol=0, atol=rounding)
            words = {(1, True): "h", (1, False): "m", (0, True): "f", (0, False): "a"}
            pairs = zip(truth, said.present[0].tolist(), strict=True)
            assert view.verdicts[n] == "".join("u" if t < 0 else words[t, found] for t, found in pairs)
            assert int(view.errors[n]) == sum(letter in "mf" for letter in view.verdicts[n])


def test_heat_is_tiny_and_as_strong_as_the_evidence(trained, scenes):
    (target,) = build(trained, images=4).targets
    view = target.views[0]
    explain = Explainer(load(trained / view.cell))
    (table,) = read_domains(scenes, ["region"])
    for n, key in enumerate(target.keys):
        maps = explain(torch.from_numpy(decode(table.root / key, 32))[None]).maps[0]
        scaled = (maps / maps.amax()).numpy()
        for label, text in enumerate(view.heat[n]):
            heat = opened(text)
            assert heat.size == (maps.shape[2], maps.shape[1])
            assert len(text) < 600
            opacity = np.asarray(heat.convert("RGBA"))[..., 3] / 255
            np.testing.assert_allclose(opacity, OPACITY * scaled[label], atol=0.5 / 15 + 0.01)


def test_the_data_are_plain_json_and_small(trained):
    data = build(trained)
    text = json.dumps(data.describe())
    assert json.loads(text)["targets"][0]["views"][1]["title"] == "EFDMix"
    assert len(data.targets[0].keys) == 30  # no more than there are
    assert len(text) < 30 * 12_000


def test_a_folder_without_predictions_says_where_they_are(folder):
    for path in folder.glob("*/predictions-*"):
        path.unlink()
    found = build(folder)
    assert isinstance(found, Absent)
    assert "has no predictions of ERM" in found.reason
    assert "make the report from the folder in which the grid was run" in found.reason


def test_images_may_be_elsewhere_or_gone(folder, scenes, tmp_path):
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for line in lines:
        line["place"]["root"] = str(tmp_path / "gone")
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = build(folder)
    assert isinstance(found, Absent)
    assert "The images of 'region' are not available" in found.reason
    assert str(tmp_path / "gone") in found.reason
    assert isinstance(build(folder, root=scenes, images=2), BrowserData)


def test_missing_and_damaged_images_are_left_out_and_counted(folder, scenes, tmp_path):
    copied = shutil.copytree(scenes, tmp_path / "scenes")
    (table,) = read_domains(copied, ["region"])
    table.path(0).unlink()
    table.path(1).write_bytes(b"not an image")
    data = build(folder, root=copied)
    assert len(data.targets[0].keys) == 28
    assert data.notes == (f"2 images of 'region' are not in '{table.root}' or damaged.",)


def test_without_weights_there_is_everything_but_heat(folder):
    for path in folder.glob("*-erm-*/model.safetensors"):
        path.unlink()
    data = build(folder, images=4)
    erm, efdmix = data.targets[0].views
    assert erm.heat is None
    assert len(efdmix.heat) == 4
    (note,) = data.notes
    assert note.startswith("There are no heatmaps of ERM on 'region'")


def test_damaged_predictions_leave_the_other_model(folder):
    (path,) = folder.glob("*-erm-*/predictions-region.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    data = build(folder, images=4)
    assert [view.method for view in data.targets[0].views] == ["efdmix"]
    assert "cannot be read" in data.notes[0]


def test_browsers_of_several_grids_become_one(trained):
    one = build(trained, images=2, group="one")
    gone = Absent("images", "Images", "Other images are gone.")
    joined = join_browsers([one, gone, build(trained, images=2, group="two")])
    assert [target.group for target in joined.targets] == ["one", "two"]
    assert joined.notes == ("Other images are gone.",)
    assert join_browsers([gone]) == gone


def test_plain_training_and_the_best_method_are_shown(make_grid):
    grid = make_grid()
    grid.plan(["erm", "efdmix", "ld-efdmix", "oracle"], ["s1", "s2"], [0, 1])
    for method, ap in (("erm", 0.5), ("efdmix", 0.6), ("ld-efdmix", 0.7), ("oracle", 0.9)):
        for seed in (0, 1):
            grid.done(method, "s1", seed, ap=ap)
    grid.done("efdmix", "s2", 1)
    chosen = choose_cells(grid.view())
    # On s2 nothing but one run of EFDMix is done, so no method is complete and the first stands in.
    assert [[(c.method, c.split, c.seed) for c in cells] for cells in chosen] == [
        [("erm", "s1", 0), ("efdmix", "s1", 0)],
        [("efdmix", "s2", 1)],
    ]
    for method in ("erm", "efdmix", "ld-efdmix", "oracle"):
        for seed in (0, 1):
            grid.done(method, "s2", seed, ap=0.5)
    assert [[c.method for c in cells] for cells in choose_cells(grid.view())] == [["erm", "ld-efdmix"]] * 2


def test_nothing_finished_is_absent(make_grid):
    grid = make_grid()
    grid.plan(["erm"], ["s1"], [0])
    found = build_browser(grid.view())
    assert asdict(found)["reason"].startswith("No run is finished yet")


def test_worse_images_have_larger_errors():
    scores = np.array([[0.9, 0.1], [0.4, 0.1], [0.2, 0.1], [0.4, 0.9], [0.2, 0.9]])
    labels = np.array([[1, 0], [1, 0], [1, 0], [1, 0], [-1, 0]], dtype=np.int8)
    verdicts, errors = judge(scores, labels, np.array([0.5, 0.5]))
    assert verdicts == ["ha", "ma", "ma", "mf", "uf"]
    assert [int(error) for error in errors] == [0, 1, 1, 2, 1]
    assert errors[0] == 0 < errors[1] < errors[2] < errors[4] < errors[3]


def test_a_label_without_training_data_is_unknown_and_no_error():
    scores = np.array([[0.9, np.nan], [0.4, np.nan]])
    labels = np.array([[1, 1], [1, 0]], dtype=np.int8)
    verdicts, errors = judge(scores, labels, np.array([0.5, 0.5]))
    assert verdicts == ["hu", "mu"]
    assert errors[0] == 0 < errors[1]


def test_images_are_the_worst_of_each_model_and_some_at_random():
    one = np.arange(20.0)
    other = one[::-1].copy()
    rows, drawn = pick_images([one, other], count=8, at_random=2, seed=3)
    assert rows[:6] == [19, 0, 18, 1, 17, 2]
    assert len(set(rows)) == 8
    assert drawn == set(rows[6:])
    assert pick_images([one, other], count=8, at_random=2, seed=3) == (rows, drawn)
    assert len(pick_images([one], count=50, at_random=5, seed=0)[0]) == 20
