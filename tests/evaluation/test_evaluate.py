"""Evaluation: the plain model on a domain it never saw, against an independent reading of the files."""

from __future__ import annotations

import copy
import csv
import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score, f1_score
from tests.deploy.models import float32_error
from tests.tolerance import bound
from tests.training.runs import SOURCES, TARGET, tiny

from ldstyle import files as atomic
from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.loading.pool import Batch, Pool
from ldstyle.data.loading.splits import split_domain
from ldstyle.evaluation.attention import maps
from ldstyle.evaluation.evaluate import evaluate
from ldstyle.evaluation.predict import pool_batches
from ldstyle.evaluation.scores import score_table
from ldstyle.metrics import expected_calibration_error, fit_temperature
from ldstyle.runs.model_file import load_model
from ldstyle.runs.record import read_record
from ldstyle.training.loop import fit


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate") / "run"
    with pytest.MonkeyPatch.context() as patch:
        one_by_one(patch)
        fit(tiny(scenes, folder, method="ld-efdmix"))
    return folder


def one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Compute maps image by image: rounding, which depends on the batch, may change the order of their locations."""

    def singly(pool: Pool, rows: np.ndarray, *, batch_size: int, masks: bool) -> Iterator[Batch]:
        return pool_batches(pool, rows, batch_size=1, masks=masks)

    patch.setattr(maps, "pool_batches", singly)


def test_scores_equal_those_of_the_files_read_by_hand(run: Path, scenes: Path) -> None:
    result = evaluate(run, domain=TARGET)
    model = load_model(run)
    rows = list(csv.DictReader((scenes / TARGET / "labels.csv").read_text().splitlines()))
    truth = np.array([[int(row[label]) for label in model.vocabulary] for row in rows])
    images = np.stack([np.asarray(Image.open(scenes / TARGET / row["path"]).convert("RGB")) for row in rows])
    scaled = torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255
    mean, std = (
        torch.tensor(values).double().view(3, 1, 1) for values in (model.preprocessing.mean, model.preprocessing.std)
    )
    with torch.no_grad():
        by_hand = copy.deepcopy(model.backbone).double()((scaled - mean) / std).sigmoid()
    stored = load_file(run / f"predictions-{TARGET}.safetensors")
    assert np.array_equal(stored[f"all/{TARGET}/labels"].numpy(), truth)
    scores = stored[f"all/{TARGET}/scores"].numpy()
    np.testing.assert_allclose(scores, by_hand, rtol=0, atol=float32_error(model.backbone))
    expected = {
        label: average_precision_score(truth[:, i], scores[:, i]) if truth[:, i].any() else None
        for i, label in enumerate(model.vocabulary)
    }
    whole = result["scores"]["all"]
    # In float32, four operations on values up to 1 for each of at most 30 positives; six labels.
    tolerance = bound(4 * 30 + 6, dtype=torch.float32)
    assert whole["ap"] == {label: value and pytest.approx(value, abs=tolerance) for label, value in expected.items()}
    found = [value for value in expected.values() if value is not None]
    assert whole["map"] == pytest.approx(np.mean(found), abs=tolerance)
    predicted = scores >= model.thresholds.numpy()
    assert whole["of1"] == pytest.approx(f1_score(truth.ravel(), predicted.ravel()), abs=tolerance)
    assert json.loads((run / "evaluations" / f"{TARGET}.json").read_text()) == result


def test_calibration_is_judged_before_and_after_scaling_by_the_sources_temperature(run: Path) -> None:
    result = evaluate(run, domain=TARGET)
    model, judged = load_model(run), result["calibration"]
    held_back = load_file(run / "predictions.safetensors")
    logits, labels = (
        torch.cat([held_back[f"validation/{name}/{kind}"] for name in sorted(SOURCES)]) for kind in ("scores", "labels")
    )
    logits = logits.logit()
    assert judged["temperature"] == pytest.approx(fit_temperature(logits, labels == 1, labels >= 0))
    stored = load_file(run / f"predictions-{TARGET}.safetensors")
    scores, truth = stored[f"all/{TARGET}/scores"], stored[f"all/{TARGET}/labels"] == 1
    scaled = (scores.logit() / judged["temperature"]).sigmoid()
    for name, values in (("before", scores), ("after", scaled)):
        wanted = expected_calibration_error(values, truth)
        assert list(judged["all"][name]) == list(model.vocabulary)
        # In float64; the logit of a score and the division by a temperature of at least 0.01 enlarge an error by 100.
        assert list(judged["all"][name].values()) == pytest.approx(wanted.tolist(), abs=bound(4 * 30, scale=100))
    assert judged["test"]["before"].keys() == judged["all"]["before"].keys()
    assert evaluate(run, domain=SOURCES[0])["calibration"]["all"] is None


def test_the_test_part_is_the_splits(run: Path) -> None:
    result = evaluate(run, domain=TARGET)
    assert (result["scores"]["test"]["n"], result["scores"]["all"]["n"]) == (3, 30)
    assert 0 < result["localization"]["mean"]["pointing_chance"] < 1
    chance = {point: table["mean"]["pointing_chance"] for point, table in result["attention"].items()}
    assert set(chance) == {"layer1", "layer2"}
    assert all(0 < value < 1 for value in chance.values())


def test_a_source_has_no_score_on_what_it_was_trained_on(run: Path, scenes: Path) -> None:
    record = json.loads((run / "record.json").read_text())
    result = evaluate(run, domain=SOURCES[0])
    assert result["scores"]["all"] is None
    assert result["split_digest"] == record["splits"][SOURCES[0]]
    # The network sees the images in other batches, so scores agree but for rounding; their ranks need not.
    model, name = load_model(run), SOURCES[0]
    at_end, now = (load_file(run / f"{stem}.safetensors") for stem in ("predictions", f"predictions-{name}"))
    rows = split_domain(read_domains(scenes, [name])[0], seed=record["seed"]).test
    scores, labels = (now[f"all/{name}/{kind}"][torch.from_numpy(rows)] for kind in ("scores", "labels"))
    tolerance = 2 * float32_error(model.backbone)
    torch.testing.assert_close(scores, at_end[f"test/{name}/scores"], rtol=0, atol=tolerance)
    assert result["scores"]["test"] == score_table(scores, labels, model.thresholds, model.vocabulary)


def test_attention_is_judged_on_held_out_images_of_a_source(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one(monkeypatch)
    record = read_record(run)
    assert record.attention is not None
    assert list(record.attention) == ["training", "held-out"]
    assert list(record.attention["held-out"]) == ["cam", "llam/layer1", "llam/layer2"]
    evaluated = [evaluate(run, domain=domain) for domain in SOURCES]
    for source, read in {
        "cam": lambda result: result["localization"],
        "llam/layer1": lambda result: result["attention"]["layer1"],
    }.items():
        for label, row in record.attention["held-out"][source].items():
            if label == "mean" or not row["n"]:
                continue
            tables = [read(result)[label] for result in evaluated]
            assert row["n"] == sum(table["n"] for table in tables)
            pooled = sum(table["n"] * table["iou"] for table in tables if table["n"]) / row["n"]
            assert row["iou"] == pytest.approx(pooled, rel=bound(100))


def test_kept_epochs_are_scored_as_the_run_itself(scenes: Path, tmp_path: Path) -> None:
    config = tiny(scenes, tmp_path / "run", method="ld-efdmix", keep_epochs=True)
    record = fit(config)
    result = evaluate(tmp_path / "run", domain=TARGET)
    assert [row["epoch"] for row in result["epochs"]] == [1, 2]
    kept = result["epochs"][record.selected_epoch - 1]
    assert {name: kept[name] for name in ("scores", "localization", "attention")} == {
        name: result[name] for name in ("scores", "localization", "attention")
    }
    other = result["epochs"][2 - record.selected_epoch]
    assert other["attention"] != result["attention"]
    assert other["localization"] != result["localization"]
    path = tmp_path / "run" / "epochs" / "001.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"001\.safetensors' must hold the weights of an epoch"):
        evaluate(tmp_path / "run", domain=TARGET)


def test_two_evaluations_at_once_leave_whole_files(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process begins and ends each time this one is about to force a file to disk."""
    sync, others = atomic.os.fsync, 0

    def meanwhile(descriptor: int) -> None:
        nonlocal others
        if stat.S_ISREG(atomic.os.fstat(descriptor).st_mode):  # folders are forced to disk as well
            others += 1
            with monkeypatch.context() as other:
                other.setattr(atomic.os, "getpid", lambda: 1)
                other.setattr(atomic.os, "fsync", sync)
                evaluate(run, domain=TARGET)
        sync(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", meanwhile)
    result = evaluate(run, domain=TARGET)
    assert others == 2, "the predictions and the scores"
    assert json.loads((run / "evaluations" / f"{TARGET}.json").read_text()) == result
    assert len(load_file(run / f"predictions-{TARGET}.safetensors")[f"all/{TARGET}/scores"]) == 30
    assert not list(run.rglob("*.tmp"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_run_of_a_device_that_is_not_there_is_scored_on_what_there_is(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("accelerator: cpu", "accelerator: cuda"))
    assert "cuda" in (copy / "config.yaml").read_text()
    assert evaluate(copy, domain=TARGET) == evaluate(run, domain=TARGET)


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is not a finished run\. Finish it by `ldstyle train`"):
        evaluate(tmp_path, domain=TARGET)


def test_an_unknown_domain_is_named_with_its_neighbour(run: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no domain 'regoin'\. Did you mean 'region'\?"):
        evaluate(run, domain="regoin")
