from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import average_precision_score

from ldstyle.benchmark.records import append_record, read_results
from ldstyle.benchmark.verify import changed_versions, check_predictions, choose_cell, compare, rebuild_scores

from .grids import cell, cells, record

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
    rebuilt = rebuild_scores(results / cell().slug, content)
    largest = max((one.size for one in compare(content, {"scores": rebuilt}, names=("scores",))), default=0)
    assert largest < 1e-6
    assert rebuilt["test"]["n"] == len(TEST)
    assert rebuild_scores(results / cell().slug, {**content, "oracle": True})["all"] is None


def test_a_record_that_its_predictions_do_not_give_is_found(finished):
    results, content = finished
    exact = rebuild_scores(results / cell().slug, content)
    (results / "records.jsonl").unlink()
    append_record(results, {**content, "scores": exact})
    assert check_predictions(results) == {}
    (results / "records.jsonl").unlink()
    tampered = json.loads(json.dumps(exact))
    tampered["test"]["map"] += 0.01
    append_record(results, {**content, "scores": tampered})
    (difference,) = check_predictions(results)[cell().slug]
    assert difference.name == "scores.test.map"
    assert difference.size == pytest.approx(0.01)


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
