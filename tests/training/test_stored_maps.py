"""Attention from a probe and from masks: in the bank before the first step, and again after resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from tests.runs.test_processes import in_two_processes
from tests.training.runs import SOURCES, at, checkpoint, metrics, same, tiny, weights

from ldstyle.evaluation.probe import features
from ldstyle.nn import GradCamBank, StyledNet
from ldstyle.runs.config import RunConfig
from ldstyle.runs.interruption import Interrupted
from ldstyle.runs.sources import SourceData, open_sources
from ldstyle.training.build import build_net
from ldstyle.training.loop import fit
from ldstyle.training.stored_maps import fill_maps

PROBE = {"style": {"warmup_epochs": 0, "attention": {"size": 64}}}
MASKS = {"style": {"warmup_epochs": 0, "attention": {"probe_size": 64}}}
UNIFORM = {"style": {"warmup_epochs": 0, "attention": {"fallback": "uniform"}}}


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def filled(config: RunConfig, fabric: Fabric, *, data: SourceData | None = None) -> tuple[GradCamBank, SourceData]:
    data = data or open_sources(config.data, seed=config.seed)
    net = build_net(config, data, fabric)
    fill_maps(net, data, config, fabric)
    assert isinstance(net, StyledNet)
    assert net.cams is not None
    return net.cams, data


def state(bank: GradCamBank) -> dict[str, torch.Tensor]:
    return {"maps": bank._maps, "valid": bank._valid}


def count_images(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    plain = features.FrozenBackbone.__call__

    def counted(self: features.FrozenBackbone, images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return plain(self, images)

    monkeypatch.setattr(features.FrozenBackbone, "__call__", counted)
    return seen


def without_masks(scenes: Path, root: Path, domains: tuple[str, ...]) -> Path:
    """Copy the sources; the tables of some domains name no masks."""
    for domain in SOURCES:
        (root / domain).mkdir(parents=True)
        for name in ("images", "masks"):
            (root / domain / name).symlink_to(scenes / domain / name)
        header, *rows = (scenes / domain / "labels.csv").read_text().splitlines()
        column = header.split(",").index("mask")
        keep = [i for i in range(len(header.split(","))) if i != column or domain not in domains]
        lines = [",".join(line.split(",")[i] for i in keep) for line in (header, *rows)]
        (root / domain / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def test_masks_are_averaged_over_the_locations_of_the_finest_point(
    scenes: Path, tmp_path: Path, fabric: Fabric
) -> None:
    bank, data = filled(tiny(scenes, tmp_path / "run", method="ld-efdmix-masks", **UNIFORM), fabric)
    batch = data.train.gather([0, 5, 31], masks=True)
    assert batch.masks is not None
    side = bank._maps.shape[-1]
    assert side == 12  # 48 px at stride 4
    found = bank.lookup(batch.index, None, batch.present)
    for sample in range(3):
        for label in range(6):
            region = batch.masks[sample, label]
            assert found.usable[sample, label] == (batch.present[sample, label] and region.any())
            if not found.usable[sample, label]:
                continue
            cells = torch.tensor(
                [[region[4 * i : 4 * i + 4, 4 * j : 4 * j + 4].sum() / 16 for j in range(side)] for i in range(side)]
            )
            # Divided by their maximum and rounded to half precision.
            torch.testing.assert_close(found.maps[sample, label].float(), cells / cells.max(), rtol=2**-10, atol=2**-14)


def test_images_without_masks_take_the_fallback(scenes: Path, tmp_path: Path, fabric: Fabric) -> None:
    root = without_masks(scenes, tmp_path / "scenes", SOURCES[1:])
    uniform, data = filled(tiny(root, tmp_path / "run", method="ld-efdmix-masks", **UNIFORM), fabric)
    probed, _ = filled(tiny(root, tmp_path / "run", method="ld-efdmix-masks", **MASKS), fabric, data=data)
    pure, _ = filled(tiny(root, tmp_path / "run", method="ld-efdmix-probe", **PROBE), fabric, data=data)
    masked = torch.from_numpy(data.train.masked)
    assert masked.any()
    assert not masked.all()
    assert not uniform._valid[~masked].any()
    assert torch.equal(probed._valid[~masked], pure._valid[~masked])
    assert pure._valid[~masked].any()
    assert torch.equal(probed._maps[uniform._valid], uniform._maps[uniform._valid])
    from_probe = probed._maps[~masked][probed._valid[~masked]].float()
    assert not ((from_probe > 0) & (from_probe < 0.5)).any()


def test_complete_masks_need_no_probe(
    scenes: Path, tmp_path: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(scenes, tmp_path / "run", method="ld-efdmix-masks", **MASKS)
    data = open_sources(config.data, seed=config.seed)
    masks = data.train.gather(range(len(data.train)), masks=True).masks
    assert masks is not None
    monkeypatch.setattr(data.train, "present", masks.flatten(2).any(dim=2).numpy())
    seen = count_images(monkeypatch)
    bank, _ = filled(config, fabric, data=data)
    assert seen == []
    assert torch.equal(bank._valid, torch.from_numpy(data.train.present))


def test_masks_without_any_mask_are_refused(scenes: Path, tmp_path: Path, fabric: Fabric) -> None:
    root = without_masks(scenes, tmp_path / "scenes", SOURCES)
    with pytest.raises(ValueError, match=r"attention 'masks'.*suburb, harbour.*'probe'"):
        filled(tiny(root, tmp_path / "run", method="ld-efdmix-masks", **UNIFORM), fabric)


def test_the_bank_of_a_probe_holds_its_gated_maps(
    scenes: Path, tmp_path: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(scenes, tmp_path / "run", method="ld-efdmix-probe", **PROBE)
    bank, data = filled(config, fabric)
    assert bank.ready
    assert bank.threshold == 0.5
    assert not (bank._valid & ~torch.from_numpy(data.train.present)).any()
    seen = count_images(monkeypatch)
    again, _ = filled(tiny(scenes, tmp_path / "other", method="ld-csu-probe", **PROBE), fabric, data=data)
    assert same(state(again), state(bank))
    assert seen == []  # another method of the same split: no forward pass


@pytest.mark.parametrize(("method", "changes"), [("ld-efdmix-probe", PROBE), ("ld-mixstyle-masks", MASKS)])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    method: str, changes: dict[str, Any], scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ldstyle.progress import Display
    from ldstyle.runs.interruption import Interruption

    config = tiny(scenes, tmp_path / "whole", method=method, **changes)
    fit(config)
    rows = metrics(tmp_path / "whole")
    assert [row["pathway"] for row in rows] == [1.0, 1.0]  # from the first step on
    assert rows[0]["localization"]["cached"]["mean"]["iou"] is not None
    requests: list[Interruption] = []
    enter, step = Interruption.__enter__, Display.step

    def note(self: Interruption) -> Interruption:
        requests.append(self)
        return enter(self)

    def stop(self: Display, epoch: int, number: int, loss: torch.Tensor) -> None:
        step(self, epoch, number, loss)
        requests[-1].requested |= (epoch, number) == (1, 2)

    stopped = at(config, tmp_path / "stopped")
    with monkeypatch.context() as patched:
        patched.setattr(Interruption, "__enter__", note)
        patched.setattr(Display, "step", stop)
        with pytest.raises(Interrupted, match=r"epoch 1 after step 2"):
            fit(stopped)
    fit(stopped)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "stopped")
    assert same(checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "stopped"))


def test_a_request_to_stop_before_training_is_answered(scenes: Path, tmp_path: Path, fabric: Fabric) -> None:
    config = tiny(scenes, tmp_path / "run", method="ld-efdmix-probe", data={"cache_dir": str(tmp_path / "c")}, **PROBE)
    data = open_sources(config.data, seed=config.seed)
    with pytest.raises(Interrupted, match=r"0 of \d+ images of suburb"):
        fill_maps(build_net(config, data, fabric), data, config, fabric, stop=lambda: True)


def test_two_processes_fill_the_whole_bank_in_each(scenes: Path, tmp_path: Path) -> None:
    changes = {**PROBE, "backbone": {"name": "test_convnext"}, "data": {"cache_dir": str(tmp_path / "cache")}}
    one = tiny(scenes, tmp_path / "one", method="ld-csu-probe", **changes)
    fit(one)
    in_two_processes(tiny(scenes, tmp_path / "two", method="ld-csu-probe", devices=2, **changes), tmp_path)
    first, second = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [row["localization"] for row in first] == [row["localization"] for row in second]
    assert [row["pathway"] for row in second] == [1.0, 1.0]


def test_a_random_backbone_is_warned_about(
    scenes: Path, tmp_path: Path, fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tiny(scenes, tmp_path / "run", method="ld-efdmix-probe", **PROBE), fabric)
    assert "backbone.weights is 'none'" in caplog.text


def test_other_methods_are_left_alone(scenes: Path, tmp_path: Path, fabric: Fabric) -> None:
    config = tiny(scenes, tmp_path / "run", method="ld-efdmix-gc")
    bank, _ = filled(config, fabric)
    assert not bank.ready
