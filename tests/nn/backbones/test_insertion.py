"""Insertion points of real architectures with random weights."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
import torchvision
from torch import nn

from ldstyle.nn.backbones.insertion import InsertionPoint, insertion_points, resolve_points

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")

SWIN = {"img_size": 64, "window_size": 2, "embed_dim": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}


def swin(**settings):
    return timm.create_model("swin_tiny_patch4_window7_224", **SWIN, **settings)


def swin_of_torchvision():
    return torchvision.models.SwinTransformer([4, 4], 12, [1, 1, 1], [1, 2, 2], [2, 2], num_classes=3)


def vit_of_hugging_face():
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(**size, image_size=(32, 48), patch_size=8))


def resnet_of_hugging_face():
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12, 16], depths=[1, 2, 1], layer_type="basic")
    return ResNetForImageClassification(config)


def swin_of_hugging_face():
    from transformers import SwinConfig, SwinForImageClassification

    size = {"embed_dim": 8, "depths": [1, 1, 1], "num_heads": [1, 2, 4], "window_size": 4}
    return SwinForImageClassification(SwinConfig(**size, image_size=64, patch_size=4))


def plain():
    block = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU())
    stem = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*stem, block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))


def listed(backbone, **settings):
    return [(point.stage, point.name, point.channels, point.stride) for point in insertion_points(backbone, **settings)]


def test_resnet_stages_count_from_the_first_of_stride_four():
    stages = [(0, "act1", 64, 2), (1, "layer1", 256, 4), (2, "layer2", 512, 8), (3, "layer3", 1024, 16)]
    assert listed(timm.create_model("resnet50"), image_size=(64, 64)) == [*stages, (4, "layer4", 2048, 32)]


@pytest.mark.parametrize(("output_stride", "last"), [(32, 32), (16, 16)])
def test_efficientnet_stages_follow_feature_info_whatever_the_output_stride(output_stride, last):
    backbone = timm.create_model("tf_efficientnet_lite0", output_stride=output_stride)
    stages = [(0, "blocks.0", 16, 2), (1, "blocks.1", 24, 4), (2, "blocks.2", 40, 8), (3, "blocks.4", 112, 16)]
    assert listed(backbone, image_size=(64, 64)) == [*stages, (4, "blocks.6", 320, last)]


def test_convnext_has_no_stage_zero():
    expected = [(i + 1, f"stages.{i}", 40 * 2**i, 4 * 2**i) for i in range(4)]
    assert listed(timm.create_model("convnext_atto"), image_size=(64, 64)) == expected


def test_swin_maps_are_channels_last():
    points = insertion_points(swin())
    assert [(p.stage, p.name, p.channels, p.stride) for p in points] == [
        (i + 1, f"layers.{i}", 12 * 2**i, 4 * 2**i) for i in range(4)
    ]
    assert {point.layout for point in points} == {"nhwc"}


@pytest.mark.parametrize(
    ("name", "prefix", "stride"),
    [
        ("vit_tiny_patch16_224", 1, 16),
        ("deit_tiny_distilled_patch16_224", 2, 16),
        ("vit_small_patch14_reg4_dinov2", 5, 14),
        ("vit_medium_patch16_reg4_gap_256", 4, 16),
    ],
)
def test_transformer_blocks_are_stages_and_prefix_tokens_are_known(name, prefix, stride):
    backbone = timm.create_model(name, img_size=(2 * stride, 3 * stride), depth=3, embed_dim=48, num_heads=2)
    assert insertion_points(backbone) == tuple(
        InsertionPoint(f"blocks.{i}", i + 1, 48, stride, "tokens", prefix) for i in range(3)
    )


def test_an_entry_that_names_no_submodule_is_found_by_channels_and_stride():
    # timm's feature_info of Twins and MViTv2 says `block.N`, which neither has.
    backbone = timm.create_model("resnet18")
    for i in range(1, 5):
        backbone.feature_info[i]["module"] = f"block.{i - 1}"
    assert [row[:2] for row in listed(backbone, image_size=(64, 64))] == [
        (0, "act1"),
        (1, "layer1"),
        (2, "layer2"),
        (3, "layer3"),
        (4, "layer4"),
    ]


def test_timm_models_without_feature_info_are_walked():
    backbone = timm.create_model("resnet18")
    del backbone.feature_info
    assert [row[:2] for row in listed(backbone, image_size=(64, 64))] == [
        (None, name) for name in ("act1", "layer1", "layer2", "layer3", "layer4")
    ]


@pytest.mark.parametrize(
    ("build", "image_size", "layout", "expected"),
    [
        (
            partial(torchvision.models.resnet18, num_classes=3),
            (64, 64),
            "nchw",
            [("relu", 64, 2), ("layer1", 64, 4), ("layer2", 128, 8), ("layer3", 256, 16), ("layer4", 512, 32)],
        ),
        (
            swin_of_torchvision,
            (64, 64),
            "nhwc",
            [
                ("features.0", 12, 4),
                ("features.1", 12, 4),
                ("features.2", 24, 8),
                ("features.3", 24, 8),
                ("features.4", 48, 16),
                ("features.5", 48, 16),
            ],
        ),
        (
            vit_of_hugging_face,
            None,
            "tokens",
            [("vit.embeddings", 24, 8), ("vit.layers.0", 24, 8), ("vit.layers.1", 24, 8), ("vit.layers.2", 24, 8)],
        ),
        (
            resnet_of_hugging_face,
            (64, 64),
            "nchw",
            [
                ("resnet.embedder", 8, 4),
                ("resnet.encoder.stages.0", 8, 4),
                ("resnet.encoder.stages.1", 12, 8),
                ("resnet.encoder.stages.2", 16, 16),
            ],
        ),
        (
            swin_of_hugging_face,
            None,
            "tokens",
            [
                ("swin.embeddings", 8, 4),
                ("swin.encoder.layers.0", 16, 8),
                ("swin.encoder.layers.1", 32, 16),
                ("swin.encoder.layers.2", 32, 16),
            ],
        ),
        (plain, (16, 24), "nchw", [("2", 8, 2), ("3", 12, 4)]),
    ],
)
def test_other_networks_list_blocks_and_the_ends_of_plain_layers(build, image_size, layout, expected):
    points = insertion_points(build(), image_size=image_size)
    assert [(point.name, point.channels, point.stride) for point in points] == expected
    assert {point.layout for point in points} == {layout}
    assert {point.stage for point in points} == {None}


def test_a_network_inside_another_is_opened():
    backbone = nn.Sequential(torchvision.models.resnet18(), nn.Linear(1000, 3))
    points = insertion_points(backbone, image_size=(64, 64))
    assert [point.name for point in points] == ["0.relu", "0.layer1", "0.layer2", "0.layer3", "0.layer4"]


def test_channels_equal_to_rows_and_columns_are_told_apart():
    class ChannelsLast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.mix = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mix(self.patches(x).permute(0, 2, 3, 1))

    patches, mix = resolve_points(ChannelsLast(), ["patches", "mix"], image_size=(32, 32))
    assert (patches.layout, mix.layout) == ("nchw", "nhwc")


def test_numbers_and_names_resolve_in_the_given_order():
    backbone = timm.create_model("resnet18")
    points = resolve_points(backbone, ["layer3", 1, "layer2.0.bn1"], image_size=(64, 64))
    assert [(point.name, point.stage) for point in points] == [("layer3", 3), ("layer1", 1), ("layer2.0.bn1", None)]
    assert (points[2].channels, points[2].stride, points[2].layout) == (128, 8, "nchw")
    assert resolve_points(backbone, [], image_size=(64, 64)) == ()


def test_a_missing_stage_lists_those_that_exist():
    backbone = timm.create_model("resnet18")
    with pytest.raises(
        ValueError, match=r"Stage 7 does not exist.*1 = 'layer1' \(64 channels, stride 4\), 2 = 'layer2'"
    ):
        resolve_points(backbone, [1, 7], image_size=(64, 64))


def test_a_missing_name_gets_the_closest_and_the_listing():
    with pytest.raises(ValueError, match=r"'layer_2' does not exist. Did you mean 'layer2'\?.*'layer4' \(512 channels"):
        resolve_points(torchvision.models.resnet18(), ["layer_2"], image_size=(64, 64))


def test_stage_numbers_are_for_timm_models():
    with pytest.raises(ValueError, match=r"timm models.*got 1 .*one of '2' \(8 channels, stride 2\)"):
        resolve_points(plain(), [1], image_size=(16, 16))


@pytest.mark.parametrize("stages", [[1, 1], [2, "layer2"], ["layer1.0", "layer1.0"]])
def test_an_insertion_point_named_twice_is_an_error(stages):
    with pytest.raises(ValueError, match=r"`stages`.*twice"):
        resolve_points(timm.create_model("resnet18"), stages, image_size=(64, 64))


@pytest.mark.parametrize("stages", ["layer1", [1.0], [None]])
def test_stages_of_other_types_are_an_error(stages):
    with pytest.raises(TypeError, match="sequence of stage numbers and submodule names"):
        resolve_points(plain(), stages)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("fc", r"'fc' returns shape \(2, 1000\)"),
        ("layer1.0.relu", "'layer1.0.relu' is called 2 times"),
        ("unused", "'unused' is not called"),
    ],
)
def test_a_submodule_that_cannot_be_styled_says_why(name, problem):
    backbone = torchvision.models.resnet18()
    backbone.unused = nn.ModuleList([nn.ReLU()])
    with pytest.raises(ValueError, match=problem):
        resolve_points(backbone, [name], image_size=(64, 64))
