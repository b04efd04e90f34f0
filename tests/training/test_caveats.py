"""Warnings of runs that are not what their settings say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.training.runs import metrics, tiny
from torch import nn

from ldstyle.config import GradCamConfig, LabelDecoupledConfig
from ldstyle.nn import attach
from ldstyle.runs.backbone import create_network
from ldstyle.runs.config import RunConfig
from ldstyle.runs.record import read_record
from ldstyle.runs.sources import SourceData
from ldstyle.training import loop
from ldstyle.training.caveats import algorithm_caveats, attention_caveat, idle_caveat, label_caveats, path_caveats
from ldstyle.training.loop import fit

NAMES = ("tree", "car", "ship")


def sources(labels: Any, domain: Any = (0, 0, 1, 1)) -> SourceData:
    labels = np.array(labels, dtype=np.int8)
    train = SimpleNamespace(
        labels=labels, present=labels == 1, domain=np.array(domain), domains=("a", "b"), vocabulary=NAMES
    )
    return SourceData((), cast("Any", train), cast("Any", None), cast("Any", None), cast("Any", None), ())


SHARED = sources([[1, 0, 0], [1, 1, 1], [1, 0, 1], [0, 1, 0]])
APART = sources([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]])


def config(method: str = "ld-efdmix", **changes: Any) -> RunConfig:
    return tiny(Path("scenes"), Path("run"), method=method, **changes)


def test_labels_without_annotations_and_labels_never_present_are_named() -> None:
    assert list(label_caveats(SHARED)) == []
    unknown, absent = label_caveats(sources([[1, -1, 0], [0, -1, -1], [1, -1, 0], [0, -1, 0]]))
    assert "annotation of car:" in unknown
    assert "No training image has ship:" in absent


def test_a_run_whose_per_label_path_can_run_is_not_warned_of() -> None:
    for method in ("erm", "efdmix", "ld-efdmix", "ld-csu", "ld-mixstyle-gc"):
        assert list(path_caveats(config(method), SHARED)) == []
    assert list(path_caveats(config("efdmix"), APART)) == []
    assert list(path_caveats(config(style={"gate_prob": 0.0, "warmup_epochs": 2}), APART)) == []


@pytest.mark.parametrize("method", ["ld-efdmix", "ld-csu", "ld-mixstyle-gc"])
def test_a_warm_up_as_long_as_the_training_is_warned_of(method: str) -> None:
    (caveat,) = path_caveats(config(method, style={"warmup_epochs": 2}), SHARED)
    assert "style.warmup_epochs = 2 is not shorter than optimizer.epochs = 2" in caveat


def test_sources_without_a_shared_label_are_warned_of_where_labels_are_mixed() -> None:
    (caveat,) = path_caveats(config(), APART)
    assert "two of the domains a, b" in caveat
    assert list(path_caveats(config("ld-csu"), APART)) == []


def test_a_batch_of_one_is_warned_of() -> None:
    (caveat,) = path_caveats(config(optimizer={"batch_size": 2}, devices=2), SHARED)
    assert "optimizer.batch_size = 2 to at least 4" in caveat


def test_the_first_epoch_that_mixes_nothing_beyond_the_warm_up_is_warned_of_once() -> None:
    style = LabelDecoupledConfig(attention=GradCamConfig("online"), warmup_epochs=1)
    backbone = create_network("test_resnet", num_labels=3, output_stride=None)
    net = attach(backbone, style, stages=(1,), num_labels=3, num_samples=4, image_size=(32, 32))
    rows: list[dict[str, Any]] = [
        {"epoch": epoch, "fired": fired, "labels_mixed": 0.0} for epoch, fired in enumerate((1.0, 0.0, 0.5, 1.0), 1)
    ]
    said = [idle_caveat(net, rows[:count]) for count in (1, 2, 3, 4)]
    assert [text is not None for text in said] == [False, False, True, False]
    assert "in epoch 3" in str(said[2])
    assert "refresh = 'online'" in str(said[2])
    assert idle_caveat(net, [{"epoch": 2, "fired": 1.0, "labels_mixed": 0.25}]) is None
    assert idle_caveat(nn.Identity(), rows) is None


def test_a_run_says_before_training_that_its_path_is_idle_and_records_the_fraction_mixed(
    scenes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = tiny(scenes, tmp_path / "idle", method="ld-efdmix", style={"warmup_epochs": 2, "gate_prob": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(loop, "idle_caveat", lambda _, history: f"idle in {history[-1]['epoch']}")
        assert fit(idle).labels_mixed == [0.0, 0.0]
    assert caplog.text.count("style.warmup_epochs = 2 is not shorter") == 1
    assert [line[-9:] for line in caplog.text.splitlines() if "idle in" in line] == ["idle in 1", "idle in 2"]
    caplog.clear()
    usual = tiny(scenes, tmp_path / "usual", method="ld-efdmix", style={"warmup_epochs": 1, "gate_prob": 1.0})
    record = fit(usual)
    assert caplog.text == ""
    assert record.labels_mixed is not None
    first, second = record.labels_mixed
    assert first == 0
    assert 0 < second <= 1
    assert [row["labels_mixed"] for row in metrics(tmp_path / "usual")] == record.labels_mixed


def test_maps_that_are_points_or_flat_beyond_the_warm_up_are_warned_of_once() -> None:
    def row(epoch: int, pathway: float, **locations: float | None) -> dict[str, Any]:
        return {"epoch": epoch, "pathway": pathway, "locations": locations}

    rows = [row(1, 0.0, a=0.001, b=0.3), row(2, 1.0, a=0.3, b=None), row(3, 1.0, a=0.3, b=0.99), row(4, 1.0, a=0.01)]
    said = [attention_caveat(rows[:count]) for count in (1, 2, 3, 4)]
    assert [text is not None for text in said] == [False, False, True, False]
    assert "99.0 % at b" in str(said[2])
    assert "epoch 3" in str(said[2])
    assert attention_caveat([{"epoch": 1, "pathway": None}]) is None


def test_a_record_holds_strength_and_effective_locations_by_epoch(
    trained: Callable[..., Path], scenes: Path, tmp_path: Path
) -> None:
    usual = tiny(scenes, tmp_path / "usual", method="ld-efdmix", style={"warmup_epochs": 1, "gate_prob": 1.0})
    record = fit(usual)
    assert record.strength is not None
    assert record.locations is not None
    assert set(record.strength) == set(record.locations)
    for point, values in record.strength.items():
        assert len(values) == record.epochs_run
        assert all(value is not None and value > 0 for value in values)
        assert all(value is not None and 0 < value <= 1 for value in record.locations[point])
    assert [row["strength"] for row in metrics(tmp_path / "usual")] == [
        {point: values[epoch] for point, values in record.strength.items()} for epoch in range(record.epochs_run)
    ]
    plain = read_record(trained("erm"))
    assert plain.strength is None
    assert plain.locations is None


def test_a_network_without_pretrained_weights_has_nothing_to_stay_close_to() -> None:
    (sentence,) = algorithm_caveats(config("miro"))
    assert "backbone.weights = 'none' starts at random" in sentence
    assert not [*algorithm_caveats(config("miro", backbone={"weights": "hub"})), *algorithm_caveats(config("coral"))]
