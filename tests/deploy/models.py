"""A small model with random weights on disk, and images for it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.tolerance import bound, operations
from torch import nn

from ldstyle.runs.backbone import Preprocessing, build_backbone
from ldstyle.runs.config import BackboneConfig
from ldstyle.runs.model_file import save_model

VOCABULARY = ("building", "tree", "water")
SIZE = 32
SETTINGS: dict[str, Any] = {
    "name": "ld-efdmix",
    "vocabulary": VOCABULARY,
    "thresholds": [0.5, 0.4, 0.6],
    # Powers of two and their sums: exact in float32, so a classifier in float64 computes with the same numbers.
    "preprocessing": Preprocessing((0.375, 0.5, 0.625), (0.25, 0.5, 0.5)),
    "size": SIZE,
    "sources": ("ucm", "dfc15"),
}
ROUNDED = 2**-20
"""Bound on the error of a probability computed in float64 and rounded once: logits below 64 lose at most 2^-18 in
float32, and the slope of the sigmoid is at most 1/4."""


def write_model(
    folder: Path, *, network: str = "test_resnet", output_stride: int | None = None, **changes: Any
) -> nn.Module:
    """Save a network whose logits vary from image to image, and return it in eval mode."""
    config = BackboneConfig(network, "none", output_stride)
    backbone = build_backbone(config, num_labels=len(VOCABULARY), image_size=SIZE, seed=3)
    classifier = backbone.eval().get_classifier()  # type: ignore[operator]
    generator = torch.Generator().manual_seed(1)
    images = [pixels(number) for number in range(20)]
    with torch.no_grad():
        classifier.weight.copy_(torch.randn(classifier.weight.shape, generator=generator))
        classifier.bias.zero_()
        odds = torch.from_numpy(direct_probabilities(backbone, images)).logit()
        spread = 1.5 / odds.std(dim=0)
        classifier.weight.mul_(spread[:, None])
        classifier.bias.copy_(-(odds * spread).mean(dim=0))
    save_model(folder, backbone, backbone_config=config, **(SETTINGS | changes))
    return backbone


def pixels(seed: int, *, height: int = SIZE, width: int = SIZE) -> np.ndarray:
    """Draw an image of coarse blocks, (H, W, 3) uint8."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (-(-height // 4), -(-width // 4), 3), dtype=np.uint8)
    return np.repeat(np.repeat(blocks, 4, axis=0), 4, axis=1)[:height, :width]


def write_images(folder: Path, count: int, *, height: int = SIZE, width: int = SIZE) -> list[Path]:
    """Write PNG images and return their paths in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:02d}.png" for number in range(count)]
    for number, path in enumerate(paths):
        Image.fromarray(pixels(number, height=height, width=width)).save(path)
    return paths


def float32_error(backbone: nn.Module) -> float:
    """Bound the error of a probability computed in float32, in any order and batch composition.

    A sum of n terms loses at most n 2^-24 of the sum of their magnitudes; the errors of the layers add up.
    """
    return bound(operations(backbone), dtype=torch.float32)


def direct_probabilities(backbone: nn.Module, images: list[np.ndarray]) -> np.ndarray:
    """Compute probabilities by hand in float64 from images (S, S, 3) uint8, (N, L)."""
    settings = SETTINGS["preprocessing"]
    inputs = [(image / 255 - settings.mean) / settings.std for image in images]
    with torch.no_grad():
        logits = copy.deepcopy(backbone).double()(torch.tensor(np.stack(inputs).transpose(0, 3, 1, 2)))
    return logits.sigmoid().numpy()
