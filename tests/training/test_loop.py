"""The loop: it learns, it is a function of its seed, and it stops before it does harm."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests.tolerance import bound
from tests.training.runs import SOURCES, TARGET, at, metrics, same, tiny, weights
from torch import nn

import ldstyle.training.loop as loop
from ldstyle.config import Attention, GradCamConfig, LabelDecoupledConfig, UniformConfig
from ldstyle.data.loading import bands as sources
from ldstyle.data.synthetic import write_scenes
from ldstyle.evaluation.evaluate import evaluate
from ldstyle.nn import attach
from ldstyle.nn.backbones import activation_maps
from ldstyle.runs.backbone import create_network
from ldstyle.runs.config import OptimizerConfig
from ldstyle.runs.interruption import Interrupted
from ldstyle.runs.model_file import load_model
from ldstyle.runs.record import RunRecord, read_record
from ldstyle.runs.settings import load_config
from ldstyle.training.loop import fit, set_learning_rates
from ldstyle.training.state import averages, pathway_weight


def kept(record: RunRecord) -> dict[str, object]:
    """A record without what differs between equal runs."""
    content = asdict(record)
    del content["wall_seconds"], content["peak_memory_mb"], content["config"]["out"]
    return content


def test_erm_overfits_sixteen_images(tmp_path: Path) -> None:
    scenes = write_scenes(tmp_path / "scenes", per_domain=10, size=48, workers=1)
    optimizer = {"backbone_lr": 1e-2, "head_lr": 1e-2, "batch_size": 16, "epochs": 3, "steps_per_epoch": 14}
    fit(tiny(scenes, tmp_path / "run", optimizer=optimizer, data={"size": 32}))
    first, _, last = metrics(tmp_path / "run")
    assert first["loss"] > 0.2
    assert last["loss"] < 0.05


@pytest.mark.parametrize("method", ["efdmix", "ld-mixstyle", "ld-efdmix-gc"])
def test_with_a_shut_gate_a_run_is_erm_bit_for_bit(
    method: str, trained: Callable[..., Path], scenes: Path, tmp_path: Path
) -> None:
    erm = trained("erm")
    style: dict[str, object] = {"gate_prob": 0.0}
    if method == "ld-mixstyle":
        # Its losses are there whether or not a gate fires, and the norm of all gradients together is clipped.
        style["attention"] = {"diversity_weight": 0.0, "grounding": "none"}
    fit(tiny(scenes, tmp_path / "shut", method=method, style=style))
    assert same(weights(erm), weights(tmp_path / "shut"))
    for plain, shut in zip(metrics(erm), metrics(tmp_path / "shut"), strict=True):
        assert {name: shut[name] for name in ("loss", "grad_norm", "validation")} == {
            name: plain[name] for name in ("loss", "grad_norm", "validation")
        }


def test_the_same_seed_gives_the_same_record_and_leaves_the_callers_stream_alone(scenes: Path, tmp_path: Path) -> None:
    config = tiny(scenes, tmp_path / "one", method="ld-csu")
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - must be untouched
    one = fit(config)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
    torch.rand(3)
    two = fit(at(config, tmp_path / "two"))
    assert kept(one) == kept(two)
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")
    assert same(weights(tmp_path / "one"), weights(tmp_path / "two"))
    other = fit(replace(at(config, tmp_path / "other"), seed=1))
    assert other.splits != one.splits
    assert not same(weights(tmp_path / "one"), weights(tmp_path / "other"))


def test_a_finished_run_is_not_run_again(scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(scenes, tmp_path / "run", optimizer={"epochs": 1, "steps_per_epoch": 1})
    record = fit(config)
    assert load_config(tmp_path / "run" / "config.yaml") == config
    monkeypatch.setattr(loop, "_train", lambda *_: pytest.fail("trained again"))
    assert fit(config) == record


def test_the_selected_epoch_has_seen_the_per_label_path(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.9, 0.8, 0.7, 0.6] * 3)
    monkeypatch.setattr(loop, "selection_score", lambda _: next(scores))
    optimizer = {"epochs": 4, "steps_per_epoch": 1}
    runs = {}
    for method in ("erm", "ld-efdmix", "ld-efdmix-gc"):
        style = {"style": {"warmup_epochs": 2 if method == "ld-efdmix-gc" else 1}} if method != "erm" else {}
        record = fit(tiny(scenes, tmp_path / method, method=method, optimizer=optimizer, **style))
        runs[method] = (record.selected_epoch, record.selected_warmup_weight)
    # Learned attention is fully on from epoch 2 W = 2, cached maps from epoch W + 1 = 3.
    assert runs == {"erm": (1, None), "ld-efdmix": (2, 1.0), "ld-efdmix-gc": (3, 1.0)}


def test_patience_ends_a_run(scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.5, 0.6, 0.4, 0.3, 0.2])
    monkeypatch.setattr(loop, "selection_score", lambda _: next(scores))
    record = fit(tiny(scenes, tmp_path / "run", optimizer={"epochs": 5, "steps_per_epoch": 1, "patience": 2}))
    assert (record.selected_epoch, record.epochs_run) == (2, 4)


def test_the_learning_rates_fall_as_torchs_cosine() -> None:
    config = OptimizerConfig(backbone_lr=0.3, head_lr=0.9, min_lr=0.01, epochs=7)

    def optimizer() -> torch.optim.Optimizer:
        layers = nn.Linear(1, 1), nn.Linear(1, 1)
        rates = (config.backbone_lr, config.head_lr)
        return torch.optim.SGD(
            [{"params": layer.parameters(), "lr": lr} for layer, lr in zip(layers, rates, strict=True)]
        )

    ours, theirs = optimizer(), optimizer()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=7, eta_min=0.01)
    for epoch in range(1, 8):
        set_learning_rates(ours, config, epoch)
        for group, expected in zip(ours.param_groups, theirs.param_groups, strict=True):
            assert group["lr"] == pytest.approx(expected["lr"], rel=1e-9)
        theirs.step()
        schedule.step()


def test_a_loss_that_is_no_number_stops_the_run_and_spares_the_checkpoint(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(scenes, tmp_path / "run", checkpoint_minutes=0.0)
    original, calls = loop.StyledLoss.forward, []

    def diverge(self: loop.StyledLoss, *arguments: object) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        loss, scalars = original(self, *arguments)  # type: ignore[arg-type]
        calls.append(1)
        factor = math.nan if len(calls) == 5 else 1.0
        return loss * factor, {**scalars, "loss": scalars["loss"] * factor}

    monkeypatch.setattr(loop.StyledLoss, "forward", diverge)
    with pytest.raises(ValueError, match=r"The loss became nan in epoch 2, by step 2\. The last checkpoint in .* kept"):
        fit(config)
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert (state["epoch"], state["step"]) == (2, 1)
    assert all(value.isfinite().all() for value in state["net"].values())
    assert not (tmp_path / "run" / "done").exists()


def blank(scenes: Path, root: Path, label: str) -> Path:
    """Copy the sources with one label unknown everywhere."""
    for domain in SOURCES:
        (root / domain).mkdir(parents=True)
        (root / domain / "images").symlink_to(scenes / domain / "images")
        (root / domain / "masks").symlink_to(scenes / domain / "masks")
        header, *rows = (scenes / domain / "labels.csv").read_text().splitlines()
        column = header.split(",").index(label)
        cells = [row.split(",") for row in rows]
        lines = [",".join([*row[:column], "", *row[column + 1 :]]) for row in cells]
        (root / domain / "labels.csv").write_text("\n".join([header, *lines]) + "\n")
    return root


def test_a_label_without_training_data_is_named_takes_no_part_and_is_predicted_as_unknown(
    scenes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = blank(scenes, tmp_path / "scenes", "ship")
    record = fit(tiny(root, tmp_path / "run"))
    assert "No training image has an annotation of ship" in caplog.text
    assert record.untrained_labels == ("ship",)
    assert record.scores["validation"]["ap"]["ship"] is None
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    (moments,) = [entry["exp_avg"] for entry in state["optimizer"]["state"].values() if entry["exp_avg"].shape == (6,)]
    assert moments[:5].abs().min() > 0
    assert moments[5] == 0  # the classifier of an unknown label never had a gradient
    assert load_model(tmp_path / "run").untrained_labels == ("ship",)

    result = evaluate(tmp_path / "run", domain=TARGET, root=scenes)
    table = result["scores"]["all"]
    assert result["untrained_labels"] == ["ship"]
    assert table["ap"]["ship"] is None
    assert "ship" in table["left_out"]
    stored = load_file(tmp_path / "run" / f"predictions-{TARGET}.safetensors")
    assert stored[f"all/{TARGET}/scores"][:, 5].isnan().all()
    assert (stored[f"all/{TARGET}/labels"][:, 5] == 1).any()  # the target has ships; the model cannot tell


def test_predictions_thresholds_and_scores_agree(trained: Callable[..., Path]) -> None:
    from sklearn.metrics import average_precision_score

    run = trained("erm")
    record = read_record(run)
    with safe_open(run / "predictions.safetensors", "pt") as file:
        keys = json.loads(file.metadata()["keys"])
        stored = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118 - not a dict
    tolerance = bound(4 * 3 + 6, dtype=torch.float32)  # four operations for each of three images; six labels
    for part, scored in (("validation", "validation"), ("test", "source_test")):
        means = []
        for domain in SOURCES:
            scores, labels = stored[f"{part}/{domain}/scores"], stored[f"{part}/{domain}/labels"]
            assert len(keys[f"{part}/{domain}"]) == len(scores) == 3
            ap = [average_precision_score(labels[:, i], scores[:, i]) for i in range(6) if labels[:, i].any()]
            means.append(np.mean(ap))
            assert record.scores[scored]["per_domain"][domain] == pytest.approx(means[-1], abs=tolerance)
        assert record.scores[scored]["map"] == pytest.approx(np.mean(means), abs=tolerance)
    extra = load_model(run).extra  # what new images are later compared with
    pooled = np.concatenate([stored[f"validation/{domain}/labels"] for domain in SOURCES])
    assert extra["label/prevalence"].tolist() == pytest.approx((pooled == 1).mean(axis=0).tolist())
    assert extra["style/count"].tolist() == [24, 24]  # all training images
    selected = metrics(run)[record.selected_epoch - 1]
    assert selected["validation"]["map"] == pytest.approx(record.scores["validation"]["map"])


@pytest.mark.parametrize("method", ["ld-efdmix", "ld-efdmix-gc"])
def test_localization_of_the_attention_in_use_is_logged(method: str, trained: Callable[..., Path]) -> None:
    run = trained(method, optimizer={"epochs": 3, "head_lr": 0.05})
    record, rows = read_record(run), metrics(run)
    if method == "ld-efdmix":
        assert set(rows[0]["localization"]) == {"layer1", "layer2"}
        table = rows[0]["localization"]["layer1"]
    else:
        assert rows[0]["localization"] is None
        table = rows[2]["localization"]["cached"]
    assert 0 < table["mean"]["pointing_chance"] < 1
    assert table["tree"]["n"] + table["tree"]["missing"] > 0
    assert record.localization == rows[record.selected_epoch - 1]["localization"]


def test_an_averaged_model_is_the_mean_of_its_steps_with_its_own_batchnorm(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    original = loop.TrainingState.add

    def note(self: loop.TrainingState, values: Mapping[str, torch.Tensor]) -> None:
        original(self, values)
        seen.append({name: value.detach().clone() for name, value in self.backbone.named_parameters()})

    monkeypatch.setattr(loop.TrainingState, "add", note)
    swad = {"n_converge": 1, "n_tolerance": 9, "tolerance_ratio": 9.0, "evaluate_every": 2}
    record = fit(tiny(scenes, tmp_path / "run", method="ld-csu", swad=swad, optimizer={"epochs": 4}))
    assert record.selection.startswith("SWAD")
    assert record.selected_epoch == 4
    assert record.valley == {"found": True, "first": 1, "last": 5, "segments": 5, "epochs": [2, 4]}
    # W = 1: the per-label path is fully on from epoch 2, after three steps; the odd segment of two loses none.
    used = seen[3:]
    saved = weights(tmp_path / "run")
    segments = [used[:1], used[1:3], used[3:5], used[5:7], used[7:9]]
    for name in seen[0]:
        means = [torch.stack([step[name] for step in segment]).double().mean(0) for segment in segments]
        # Nine steps in five segments, averaged in float32.
        tolerance = bound(2 * 9 + 5, scale=seen[0][name].abs().max().item() + 1e-2, dtype=torch.float32)
        torch.testing.assert_close(saved[name].double(), torch.stack(means).mean(0), atol=tolerance, rtol=0)
    last = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["net"]
    assert not torch.equal(saved["bn1.running_mean"], last["backbone.bn1.running_mean"])


def test_an_average_without_a_valley_says_so(scenes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    swad = {"n_converge": 9, "evaluate_every": 2}
    record = fit(tiny(scenes, tmp_path / "run", method="erm", swad=swad))
    assert record.selection.startswith("weights of the last SWAD segment")
    assert record.valley is not None
    assert not record.valley["found"]
    assert record.valley["first"] == record.valley["last"] == record.valley["segments"]
    (warning,) = [entry.getMessage() for entry in caplog.records if "no valley" in entry.getMessage()]
    assert "swad.evaluate_every" in warning


def settled_epochs(attention: Attention, *, warmup: int, epochs: int) -> list[int]:
    """The epochs in which weights are averaged, if cached maps are there from the first."""
    style = LabelDecoupledConfig(attention=attention, warmup_epochs=warmup)
    net = attach(create_network("test_resnet", num_labels=3), style, num_labels=3, num_samples=1)
    if net.cams is not None:
        net.cams.store(torch.arange(1), torch.ones(1, 3, 2, 2), torch.ones(1, 3, dtype=torch.bool))
    return [epoch for epoch in range(1, epochs + 1) if averages(net, pathway_weight(net, epoch), epochs)]


def test_averaging_leaves_out_the_warm_up_unless_there_is_nothing_else() -> None:
    ramp, step, cached = UniformConfig(), UniformConfig(switch="step"), GradCamConfig()
    assert settled_epochs(ramp, warmup=3, epochs=6) == [6]
    assert settled_epochs(ramp, warmup=4, epochs=6) == [1, 2, 3, 4, 5, 6]
    for attention in (step, cached):
        assert settled_epochs(attention, warmup=4, epochs=6) == [5, 6]
        assert settled_epochs(attention, warmup=6, epochs=6) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("warmup", "every"), [(1, None), (1, 100), (2, 100)])
def test_a_run_whose_cached_attention_never_switches_on_is_averaged(
    warmup: int, every: int | None, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_maps, "CORRECT", 2.0)  # no map is ever kept
    changes = {"style": {"warmup_epochs": warmup}, "swad": {"n_converge": 1, "evaluate_every": every}}
    record = fit(tiny(scenes, tmp_path / "run", method="ld-efdmix-gc-paper", **changes))
    assert record.selected_epoch == 2
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    last = state["net"]["backbone.fc.weight"]
    assert not torch.equal(weights(tmp_path / "run")["fc.weight"], last)  # the mean of the steps, not the last one


def test_the_pseudo_domain_joins_training_only(scenes: Path, tmp_path: Path) -> None:
    data = {"sources": ["suburb"], "pseudo_domain": True}
    record = fit(tiny(scenes, tmp_path / "run", method="ld-mixstyle", data=data))
    assert record.sources == ("suburb",)
    assert list(record.scores["validation"]["per_domain"]) == ["suburb"]


def test_a_logger_that_is_not_installed_is_named(scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ldstyle.training.loggers.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"logger 'wandb' needs the package 'wandb', which is not installed"):
        fit(tiny(scenes, tmp_path / "run", logger="wandb"))


def test_too_few_images_for_a_batch_are_counted_by_domain(scenes: Path, tmp_path: Path) -> None:
    root = tmp_path / "few"
    for name in SOURCES:
        shutil.copytree(scenes / name, root / name)
        lines = (root / name / "labels.csv").read_text().splitlines()
        (root / name / "labels.csv").write_text("\n".join(lines[:4]) + "\n")
    config = tiny(root, tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"optimizer.batch_size = 8; there are 2 \(1 of suburb, 1 of harbour\).* at most 2"
    ):
        fit(config)


def test_a_request_to_stop_is_answered_while_images_are_prepared(scenes: Path, tmp_path: Path) -> None:
    config = tiny(scenes, tmp_path / "run", data={"cache_dir": str(tmp_path / "cache")})
    read = sources.decode

    def interrupt(*arguments: Any, **settings: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return read(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "decode", interrupt)
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # for the signals after the first
        with pytest.raises(Interrupted, match="while the images were prepared"):
            fit(config)
        signal.signal(signal.SIGTERM, before)
    assert not list((tmp_path / "cache").glob("*/header.json"))


def test_the_ground_sampling_distance_of_each_source_is_kept_with_run_and_model(scenes: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(scenes, root)
    header, *lines = (root / SOURCES[0] / "labels.csv").read_text().splitlines()
    stated = [f"{0.5 if i % 2 else 0.25},{line}" for i, line in enumerate(lines)]
    (root / SOURCES[0] / "labels.csv").write_text("\n".join([f"gsd,{header}", *stated]) + "\n")
    changes = {"data": {"size": 24}, "optimizer": {"epochs": 1, "steps_per_epoch": 1}}
    record = fit(tiny(root, tmp_path / "run", **changes))
    assert record.gsd == {SOURCES[0]: (0.5, 1.0)}  # of images of 48 px trained on at 24
    assert load_model(tmp_path / "run").source_gsd == record.gsd == read_record(tmp_path / "run").gsd


def test_a_domain_named_like_a_path_trains_and_is_evaluated(scenes: Path, tmp_path: Path) -> None:
    rows = []
    for name, domain in zip((*SOURCES, TARGET), ("2020/spring", "2021/spring", "2022/spring"), strict=True):
        header, *lines = (scenes / name / "labels.csv").read_text().splitlines()
        rows += [f"{domain},51.3,{name}/{line.replace('masks/', f'{name}/masks/')}" for line in lines]
    root = tmp_path / "data"
    shutil.copytree(scenes, root, ignore=shutil.ignore_patterns("labels.csv"))
    (root / "all.csv").write_text("\n".join([f"domain,lat,{header}", *rows]) + "\n")
    config = tiny(
        root,
        tmp_path / "run",
        data={"sources": ["2020/spring", "2021/spring"], "ignore": ["lat"]},
        optimizer={"epochs": 1, "steps_per_epoch": 1},
    )
    record = fit(config)
    assert set(record.data) == {"2020/spring", "2021/spring"}
    result = evaluate(tmp_path / "run", domain="2022/spring")
    assert result["scores"]["all"]["map"] is not None
    assert (tmp_path / "run" / "predictions-2022%2Fspring.safetensors").is_file()
    assert (tmp_path / "run" / "evaluations" / "2022%2Fspring.json").is_file()


@pytest.mark.parametrize(
    ("attention", "side"), [({"map_scale": 2.0}, 96), ({"map_size": 64}, 64), ({"scales": [1.0, 1.5]}, 72)]
)
def test_a_sweep_that_a_backbone_of_fixed_size_refuses_is_refused_before_training(
    attention: dict[str, Any], side: int, scenes: Path, tmp_path: Path
) -> None:
    vit = {"backbone": {"name": "vit_tiny_patch16_224"}}
    config = tiny(scenes, tmp_path / "run", method="ld-efdmix-gc-paper", style={"attention": attention}, **vit)
    with pytest.raises(ValueError, match=rf"{side} × {side} px .* Set attention\.map_scale to 1"):
        fit(config)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_sweep_at_twice_the_training_size_is_one_at_so_many_pixels(scenes: Path, tmp_path: Path) -> None:
    sizes = {"plain": {}, "scaled": {"map_scale": 2.0}, "pixels": {"map_size": 96}}
    found = {}
    for name, attention in sizes.items():
        config = tiny(scenes, tmp_path / name, method="ld-efdmix-gc-paper", style={"attention": attention})
        fit(config)
        found[name] = weights(tmp_path / name)
    assert same(found["scaled"], found["pixels"])
    assert not same(found["scaled"], found["plain"])
