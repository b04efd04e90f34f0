"""A small model with random weights on disk, and images for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from ldstyle.training.backbones import Preprocessing, build_backbone
from ldstyle.training.config import BackboneConfig
from ldstyle.training.model_file import save_model

VOCABULARY = ("building", "tree", "water")
SIZE = 32
SETTINGS: dict[str, Any] = {
    "name": "ld-efdmix",
    "vocabulary": VOCABULARY,
    "thresholds": [0.5, 0.4, 0.6],
    "preprocessing": Preprocessing((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)),
    "size": SIZE,
    "sources": ("ucm", "dfc15"),
}


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


def direct_probabilities(backbone: nn.Module, images: list[np.ndarray]) -> np.ndarray:
    """Compute probabilities by hand from images (S, S, 3) uint8, (N, L)."""
    settings = SETTINGS["preprocessing"]
    inputs = [(image / 255 - settings.mean) / settings.std for image in images]
    with torch.no_grad():
        logits = backbone(torch.tensor(np.stack(inputs).transpose(0, 3, 1, 2), dtype=torch.float32))
    return (1 / (1 + np.exp(-logits.double().numpy()))).astype(np.float64)
