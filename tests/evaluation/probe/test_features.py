"""Features of a frozen backbone: equal to a plain forward pass, computed once, and never lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from tests.tolerance import bound, operations
from tests.training.runs import SOURCES

from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.loading.pool import Pool
from ldstyle.evaluation.probe import features as module
from ldstyle.evaluation.probe.features import FeatureStore, FrozenBackbone, PoolFeatures
from ldstyle.progress import Display
from ldstyle.runs.backbone import build_backbone, preprocessing
from ldstyle.runs.config import BackboneConfig
from ldstyle.runs.interruption import Interrupted

TINY = BackboneConfig(name="test_resnet", weights="none")
SIZE = 64


@pytest.fixture
def pool(scenes: Path) -> Pool:
    return Pool(read_domains(scenes, SOURCES), size=SIZE, cache_dir=scenes.parent / "cache")


@pytest.fixture
def backbone() -> FrozenBackbone:
    return FrozenBackbone(TINY, num_labels=6, size=SIZE, device=torch.device("cpu"))


class Counting:
    """A backbone that counts its images, and may die after some."""

    def __init__(self, backbone: FrozenBackbone, dies_after: int | None = None) -> None:
        self.backbone, self.digest, self.images, self.dies_after = backbone, backbone.digest, 0, dies_after

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if self.dies_after is not None and self.images >= self.dies_after:
            raise OSError("killed")
        self.images += len(images)
        return self.backbone(images)


class Told(Display):
    def __init__(self) -> None:
        super().__init__()
        self.sentences: list[str] = []
        self.bar: list[tuple[int, int, str]] = []

    def say(self, text: str) -> None:
        self.sentences.append(text)

    def work(self, done: int, total: int, what: str) -> None:
        self.bar.append((done, total, what))


def features_of(pool: Pool, backbone: object, folder: Path) -> PoolFeatures:
    return PoolFeatures(pool, backbone, folder)  # type: ignore[arg-type]


def test_features_are_those_of_a_plain_forward_pass(pool: Pool, backbone: FrozenBackbone, tmp_path: Path) -> None:
    samples = np.array([3, 41, 17, 58])
    found = PoolFeatures(pool, backbone, tmp_path)
    assert found.compute(samples) == 4
    plain = build_backbone(TINY, num_labels=6, image_size=SIZE).double().eval()
    channels = preprocessing(plain)
    mean, std = (torch.tensor(values)[:, None, None].double() for values in (channels.mean, channels.std))
    with torch.no_grad():
        for number, stored in zip(samples, found.read(samples), strict=True):
            image = pool.gather([number]).images[0].double() / 255
            expected = plain.forward_features(((image - mean) / std)[None])[0]  # type: ignore[operator]
            # Half precision keeps 11 bits, and 2^-25 next to zero; the network computes in single precision.
            error = bound(operations(plain), scale=expected.abs().max().item(), dtype=torch.float32)
            torch.testing.assert_close(stored.double(), expected, rtol=2**-11, atol=error + 2**-25)


def test_images_pass_the_network_once_whoever_asks(
    scenes: Path, pool: Pool, backbone: FrozenBackbone, tmp_path: Path
) -> None:
    counting = Counting(backbone)
    first = features_of(pool, counting, tmp_path)
    assert first.compute(np.arange(0, 20)) == 20
    assert features_of(pool, counting, tmp_path).compute(np.arange(10, 25)) == 5
    assert counting.images == 25
    table, cache_dir = read_domains(scenes, SOURCES)[0], scenes.parent / "cache"
    other = Pool([table], [np.arange(9, -1, -1)], size=SIZE, cache_dir=cache_dir)
    reordered = features_of(other, counting, tmp_path)
    assert reordered.compute(np.arange(10)) == 0
    assert torch.equal(reordered.read(np.arange(10)), first.read(np.arange(9, -1, -1)))


def test_a_killed_extraction_continues_with_the_next_batch(
    pool: Pool, backbone: FrozenBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 4)
    samples = np.arange(12)
    whole = features_of(pool, backbone, tmp_path / "whole")
    whole.compute(samples)
    dying = Counting(backbone, dies_after=8)
    with pytest.raises(OSError, match="killed"):
        features_of(pool, dying, tmp_path / "killed").compute(samples)
    alive = Counting(backbone)
    resumed = features_of(pool, alive, tmp_path / "killed")
    assert resumed.compute(samples) == alive.images == 4
    assert torch.equal(resumed.read(samples), whole.read(samples))


def test_a_request_to_stop_keeps_what_was_computed(
    pool: Pool, backbone: FrozenBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 4)
    answers = iter([False, True])
    with pytest.raises(Interrupted, match=r"4 of 12 images of suburb"):
        features_of(pool, backbone, tmp_path).compute(np.arange(12), stop=lambda: next(answers))
    assert features_of(pool, backbone, tmp_path).compute(np.arange(12)) == 8


def damage_a_map(folder: Path) -> None:
    path = folder / "maps.f16"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_the_maps(folder: Path) -> None:
    path = folder / "maps.f16"
    path.write_bytes(path.read_bytes()[:-3])


def cut_the_checks(folder: Path) -> None:
    path = folder / "checks.u32"
    path.write_bytes(path.read_bytes()[:-1])


def lose_the_shape(folder: Path) -> None:
    (folder / "shape.json").write_text("[1, 2")


@pytest.mark.parametrize(
    ("harm", "lost"),
    [(damage_a_map, 1), (cut_the_maps, 1), (cut_the_checks, 1), (lose_the_shape, 6), (shutil.rmtree, 6)],
)
def test_damaged_features_are_computed_again(
    harm: Callable[[Path], object], lost: int, pool: Pool, backbone: FrozenBackbone, tmp_path: Path
) -> None:
    samples = np.arange(6)
    found = features_of(pool, backbone, tmp_path)
    found.compute(samples)
    before = found.read(samples)
    (folder,) = [path for path in (tmp_path / "features").iterdir() if path.name.startswith("suburb")]
    harm(folder)
    again = features_of(pool, backbone, tmp_path)
    assert again.compute(samples) == lost
    # A batch of other images may be summed in another order, which can round a stored half the other way.
    network = build_backbone(TINY, num_labels=6, image_size=SIZE)
    error = 2 * bound(operations(network), scale=before.abs().max().item(), dtype=torch.float32)
    torch.testing.assert_close(again.read(samples).double(), before.double(), rtol=2**-10, atol=error + 2**-24)


def test_features_depend_on_weights_stride_and_size_and_not_on_the_classifier(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"

    def digest(num_labels: int = 6, size: int = SIZE, seed: int = 1, output_stride: int | None = None) -> str:
        torch.save(build_backbone(TINY, num_labels=4, seed=seed).state_dict(), path)
        config = BackboneConfig(name="test_resnet", weights=str(path), output_stride=output_stride)
        return FrozenBackbone(config, num_labels=num_labels, size=size, device=torch.device("cpu")).digest

    usual = digest()
    assert usual == digest(num_labels=3)
    assert len({usual, digest(size=96), digest(output_stride=16), digest(seed=2)}) == 4


def test_a_changed_image_has_other_features(scenes: Path, backbone: FrozenBackbone, tmp_path: Path) -> None:
    from PIL import Image

    root = tmp_path / "scenes"
    shutil.copytree(scenes / "suburb", root / "suburb")
    counting = Counting(backbone)
    for expected in (30, 60):
        found = Pool(read_domains(root, ("suburb",)), size=SIZE, cache_dir=tmp_path / "cache")
        features_of(found, counting, tmp_path / "cache").compute(np.arange(30))
        assert counting.images == expected
        path = root / "suburb" / found.keys[0]
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)


def test_cost_is_announced_and_shown(pool: Pool, backbone: FrozenBackbone, tmp_path: Path) -> None:
    told = Told()
    PoolFeatures(pool, backbone, tmp_path).compute(np.arange(60), display=told)
    assert len(told.sentences) == 2
    assert "30 images of suburb" in told.sentences[0]
    assert "MB" in told.sentences[0]
    assert told.bar == [(done, 30, f"features of {name}") for name in SOURCES for done in (16, 30)]


def test_a_second_process_waits_says_so_and_can_be_stopped(
    pool: Pool, backbone: FrozenBackbone, tmp_path: Path
) -> None:
    found, told = PoolFeatures(pool, backbone, tmp_path), Told()
    with FileLock(found._locks[0]), pytest.raises(Interrupted, match="features of suburb"):
        found.compute(np.arange(4), display=told, stop=lambda: True)
    assert told.sentences == ["Waiting for another process that computes the features of suburb."]
    assert found.compute(np.arange(4)) == 4


def test_a_full_disk_is_an_error_and_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FeatureStore(tmp_path / "store")
    store.write(np.array([0]), torch.ones(1, 2, 3, 3, dtype=torch.float16))

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match=r"maps\.f16.*disk is full"):
        store.write(np.array([1]), torch.ones(1, 2, 3, 3, dtype=torch.float16))
    assert store.missing(np.array([0, 1])).tolist() == [1]
