from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import average_precision_score
from tests.benchmark.grids import cell, cells, record

from ldstyle.benchmark.grid.imagery import DataLocation
from ldstyle.benchmark.results import verify
from ldstyle.benchmark.results.records import append_record, cell_result, read_results
from ldstyle.benchmark.results.verify import (
    changed_versions,
    check_predictions,
    choose_cell,
    compare,
    find_recorded_location,
    rebuild_scores,
    run_again,
)
from ldstyle.cli import main

KEYS = ["a.png", "b.png", "c.png", "d.png", "e.png"]
SCORES = torch.tensor([[0.9], [0.8], [0.4], [0.35], [0.1]], dtype=torch.float64)
LABELS = torch.tensor([[1], [0], [1], [-1], [1]], dtype=torch.int8)
TEST = ["a.png", "b.png", "e.png"]


@pytest.fixture
def finished(tmp_path):
    """A finished cell whose record was made from its predictions, by scikit-learn."""
    one = cell()
    folder = tmp_path / one.slug
    folder.mkdir()
    tensors = {"all/city/scores": SCORES, "all/city/labels": LABELS}
    save_file(tensors, folder / "predictions-city.safetensors", metadata={"keys": json.dumps({"all/city": KEYS})})
    (folder / "parts.json").write_text(json.dumps({"domain": "city", "digest": "abc", "test": TEST}))
    content = record(one)
    content["scores"] = {
        "test": expected([0, 1, 4]),
        "all": expected([0, 1, 2, 4]),
    }
    content["scores"]["all"]["n"] = 5
    append_record(tmp_path, content)
    return tmp_path, content


def expected(known):
    ap = average_precision_score((LABELS[known, 0] == 1).numpy(), SCORES[known, 0].numpy())
    found = SCORES[known, 0] >= 0.5
    right = int((found & (LABELS[known, 0] == 1)).sum())
    f1 = 2 * right / (int(found.sum()) + int((LABELS[known, 0] == 1).sum()))
    return {"map": ap, "ap": {"tree": ap}, "cf1": f1, "cf1_cpcr": f1, "of1": f1, "n": len(known), "left_out": []}


def test_tables_are_rebuilt_from_predictions_alone(finished):
    results, content = finished
    rebuilt = rebuild_scores(results, cell_result(content))
    largest = max((one.size for one in compare(content, {"scores": rebuilt}, names=("scores",))), default=0)
    assert largest < 1e-6
    assert rebuilt["test"]["n"] == len(TEST)
    assert rebuild_scores(results, cell_result({**content, "oracle": True}))["all"] is None


def test_a_record_that_its_predictions_do_not_give_is_found(finished):
    results, content = finished
    exact = rebuild_scores(results, cell_result(content))
    (results / "records.jsonl").unlink()
    append_record(results, {**content, "scores": exact})
    assert check_predictions(results) == {cell().slug: []}
    (results / "records.jsonl").unlink()
    tampered = json.loads(json.dumps(exact))
    tampered["test"]["map"] += 0.01
    append_record(results, {**content, "scores": tampered})
    (difference,) = check_predictions(results)[cell().slug]
    assert difference.name == "scores.test.map"
    assert difference.size == pytest.approx(0.01)


@pytest.mark.parametrize("name", ["predictions-city.safetensors", "parts.json"])
@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 64, b"[" * 200_000, None], ids=str)
def test_damaged_predictions_are_named_and_the_other_cells_are_checked(finished, name, content):
    results, record_ = finished
    exact = {**record_, "scores": rebuild_scores(results, cell_result(record_))}
    other = cell(seed=1)
    (results / other.slug).mkdir()
    for path in (results / cell().slug).iterdir():
        (results / other.slug / path.name).write_bytes(path.read_bytes())
    (results / "records.jsonl").unlink()
    append_record(results, {**exact, "scores": {"test": exact["scores"]["all"], "all": exact["scores"]["all"]}})
    append_record(results, {**exact, "cell": other.slug, "seed": 1})
    bad = results / other.slug / name
    bad.unlink() if content is None else bad.write_bytes(content)
    damaged = []
    assert list(check_predictions(results, damaged=damaged)) == [cell().slug]
    assert [one.path for one in damaged] == [bad]


def test_a_record_that_cannot_be_checked_is_not_counted_as_equal(finished, capsys, monkeypatch):
    results, content = finished
    exact = {**content, "scores": rebuild_scores(results, cell_result(content))}
    other = cell(seed=1)
    shutil.copytree(results / cell().slug, results / other.slug)
    (results / "records.jsonl").unlink()
    append_record(results, exact)
    append_record(results, {**exact, "cell": other.slug, "seed": 1, "thresholds": {}})
    monkeypatch.setattr("ldstyle.cli.bench._compare_again", lambda chosen, arguments: again.append(chosen.cell))
    again = []
    for seed in range(4):
        assert main(["bench", "verify", "--results", str(results), "--seed", str(seed)]) == 1
        said = capsys.readouterr()
        assert "1 of 2 cells: tables rebuilt" in said.out
        assert "left out: " in said.err
    assert set(again) == {cell().slug}


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A stranger's cell: where it was run again, with which data, and a file of one's own next to the results."""
    ran = []

    def run_cell(again, *, location, folder):
        folder.mkdir(parents=True)
        ran.append((again, location, folder))
        return {}

    monkeypatch.setattr(verify, "run_cell", run_cell)
    monkeypatch.delenv("LDSTYLE_DATA", raising=False)
    content = record(cell())
    backbone = {"name": "test_resnet", "weights": "none"}
    content["config"] = {"data": {"root": "/their/data", "cache_dir": "/their/cache"}, "backbone": backbone, "out": "x"}
    content["place"] = {"root": "/their/data", "cache_dir": "/their/cache", "sea": "drop", "mapping": None}
    content["machine"] = {"threads": torch.get_num_threads()}
    (tmp_path / "results").mkdir()
    append_record(tmp_path / "results", content)
    (found,) = read_results(tmp_path / "results")
    return tmp_path, found, ran


def test_a_cell_is_run_again_in_a_temporary_folder_and_nothing_of_the_results_is_touched(foreign):
    folder, found, ran = foreign
    mine = folder / "mine"
    mine.mkdir()
    (mine / found.cell).mkdir()
    (mine / found.cell / "thesis.txt").write_text("years")
    (folder / "results" / "verify").symlink_to(mine)
    before = sorted(folder.rglob("*"))
    run_again(found, DataLocation("/my/data", "/my/cache"))
    ((again, location, where),) = ran
    assert sorted(folder.rglob("*")) == before
    assert not where.exists()
    assert not where.is_relative_to(folder)
    assert (location.root, again.settings["data"]["root"]) == ("/my/data", "/my/data")


@pytest.mark.parametrize("name", ["/etc", "../../mine", "..", "a/b", ""])
def test_names_that_lead_elsewhere_are_no_cells(foreign, name, capsys):
    folder, found, ran = foreign
    (folder / "results" / "records.jsonl").write_text(json.dumps({**found.record, "cell": name}) + "\n")
    assert main(["bench", "verify", "--results", str(folder / "results"), "--trust-record"]) == 2
    assert "records.jsonl' line 1" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"name must be text without '/'"):
        run_again(replace(found, cell=name), DataLocation("/my/data", "/my/cache"))
    assert ran == []


def test_paths_of_a_record_are_used_only_on_request(foreign, tmp_path, monkeypatch):
    folder, found, _ = foreign
    cache = folder / "cache"
    with pytest.raises(ValueError, match=r"data '/their/data'.*--data DIR.*--trust-record"):
        find_recorded_location(found, cache_dir=cache)
    data = folder / "data"
    data.mkdir()
    assert find_recorded_location(found, str(data), cache_dir=cache) == DataLocation(str(data), str(cache))
    monkeypatch.setenv("LDSTYLE_DATA", str(data))
    assert find_recorded_location(found, cache_dir=cache) == DataLocation(str(data), str(cache))
    mapped = replace(found, record={**found.record, "place": {**found.record["place"], "mapping": "/their/map.yaml"}})
    with pytest.raises(ValueError, match=r"mapping '/their/map\.yaml'.*--mapping FILE.*--trust-record"):
        find_recorded_location(mapped, cache_dir=cache)
    trusted = find_recorded_location(mapped, cache_dir=cache, trust=True)
    assert trusted == DataLocation(str(data), str(cache), mapping="/their/map.yaml")
    drawn = {**found.record["place"], "scenes": 9, "pixels": 9, "root": "/their/drawn"}
    location = find_recorded_location(replace(found, record={**found.record, "place": drawn}), cache_dir=cache)
    assert Path(location.root).is_relative_to(cache)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("weights", "hub"), ("weights", "/their/weights.pt"), ("name", "hf-hub:them/net"), ("name", "local-dir:/their")],
)
def test_networks_and_weights_from_elsewhere_are_used_only_on_request(foreign, setting, value):
    _, found, ran = foreign
    config = {**found.record["config"], "backbone": {**found.record["config"]["backbone"], setting: value}}
    named = replace(found, record={**found.record, "config": config})
    location = DataLocation("/my/data", "/my/cache")
    with pytest.raises(ValueError, match=rf"backbone\.{setting} '{value}'.*--trust-record"):
        run_again(named, location)
    assert ran == []
    run_again(named, location, trust=True)
    assert ran[0][0].settings["backbone"][setting] == value


def test_the_seed_decides_which_cell_is_run_again(tmp_path):
    for one in cells(6):
        append_record(tmp_path, record(one))
    results = read_results(tmp_path)
    chosen = [choose_cell(results, seed=seed).cell for seed in range(60)]
    assert chosen == [choose_cell(results[::-1], seed=seed).cell for seed in range(60)]
    assert set(Counter(chosen)) == {one.slug for one in cells(6)}


def test_nothing_done_is_nothing_to_verify():
    with pytest.raises(ValueError, match=r"No cell is done yet.* Start with `ldstyle bench run`"):
        choose_cell([], seed=0)


def test_comparisons_name_what_differs_and_by_how_much():
    one = {**record(cell()), "versions": {"torch": "2"}, "machine": {"process": 1, "threads": 1}}
    other = json.loads(json.dumps(one))
    assert compare(one, other) == []
    other["scores"]["test"]["ap"]["tree"] = 0.75
    other["splits"]["city"] = "abd"
    other["wall_seconds"] = 99.0
    found = {difference.name: difference.size for difference in compare(one, other)}
    assert found == {"scores.test.ap.tree": 0.25, "splits.city": float("inf")}
    other["versions"]["torch"], other["machine"]["process"] = "3", 2
    assert [difference.name for difference in changed_versions(one, other)] == ["versions.torch"]


def test_an_undefined_score_is_not_a_number_close_to_another():
    one, other = {"scores": {"test": None}}, {"scores": {"test": 0.0}}
    (difference,) = compare(one, other, names=("scores",))
    assert difference.size == float("inf")
