"""Normalisation owned by the network: both forms against float64, and no key in the state dict."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.tolerance import bound
from torch import Tensor, nn

from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.runs.backbone import Preprocessing
from ldstyle.runs.normalized_net import WHITES, Normalize, NormalizedNet

PREPROCESSING = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def every_value(dtype: torch.dtype, channels: int = 3) -> Tensor:
    side = 16 if dtype == torch.uint8 else 256
    values = torch.arange(side * side, dtype=torch.int32).to(dtype)
    return values.view(1, 1, side, side).repeat(2, channels, 1, 1)


def oracle(images: Tensor, preprocessing: Preprocessing) -> np.ndarray:
    mean, std = (np.array(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    return (images.numpy() / float(WHITES[images.dtype]) - mean) / std


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_every_pixel_value_is_normalised_as_in_float64(dtype: torch.dtype, fused: bool) -> None:
    images = every_value(dtype)
    before = images.clone()
    found = Normalize(PREPROCESSING, fused=fused)(images)
    assert found.dtype == torch.float32
    expected = oracle(images, PREPROCESSING)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound(5, scale=4, dtype=torch.float32))
    assert torch.equal(images, before)


def test_the_fused_form_is_the_pass_of_training_bit_for_bit() -> None:
    images = every_value(torch.uint8)
    training = Augmentation(
        mean=PREPROCESSING.mean, std=PREPROCESSING.std, flip_prob=0, brightness=0, contrast=0, saturation=0, hue=0
    )
    expected, _ = training(images, np.random.default_rng(0))
    assert torch.equal(Normalize(PREPROCESSING, fused=True)(images), expected)


def test_floating_point_images_are_in_the_unit_range_and_any_precision() -> None:
    images = every_value(torch.uint8)
    found = Normalize(PREPROCESSING).double()(images.double() / 255)
    assert found.dtype == torch.float64
    # The settings are stored in single precision.
    np.testing.assert_allclose(
        found, oracle(images, PREPROCESSING), rtol=0, atol=bound(3, scale=4, dtype=torch.float32)
    )


def test_the_network_adds_no_key_to_its_backbone() -> None:
    backbone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    keys = [*backbone.state_dict()]
    network = NormalizedNet(backbone, PREPROCESSING, fused=True)
    assert [*network.backbone.state_dict()] == keys
    assert [*network.state_dict()] == [f"backbone.{key}" for key in keys]
    images = every_value(torch.uint8)
    assert torch.equal(network(images), backbone(network.normalise(images)))
