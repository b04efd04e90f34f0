"""Heads are told apart by what they do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from tests.tolerance import bound
from torch import Tensor, nn

from ldstyle.nn.backbones.head import LinearHead, OpaqueHead, analyse_head
from ldstyle.nn.backbones.layout import as_maps, from_maps, logits_of

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")

SIZE = (64, 64)


def swin():
    size = {"img_size": 64, "window_size": 2, "embed_dim": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}
    return timm.create_model("swin_tiny_patch4_window7_224", **size)


def vit(name: str = "vit_tiny_patch16_224", **settings: Any) -> nn.Module:
    return timm.create_model(name, img_size=64, depth=3, embed_dim=48, num_heads=2, **settings)


def hugging_face(kind: str) -> nn.Module:
    import transformers as hf

    match kind:
        case "vit":
            size = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
            return hf.ViTForImageClassification(hf.ViTConfig(**size, image_size=64, patch_size=16))
        case "resnet":
            config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
            return hf.ResNetForImageClassification(config)
        case _:
            size = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
            return hf.SwinForImageClassification(hf.SwinConfig(**size, image_size=64, patch_size=4))


def plain(*tail: nn.Module, activation: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), activation or nn.ReLU(), nn.AdaptiveAvgPool2d(1), *tail
    )


def hooked(backbone: nn.Module, name: str, images: Tensor, hook: Any) -> Tensor:
    handle = backbone.get_submodule(name).register_forward_hook(lambda module, args, output: hook(output))
    logits = logits_of(backbone(images))
    handle.remove()
    return logits


LINEAR = [
    (lambda: timm.create_model("resnet18"), "layer4", "fc", 512),
    (lambda: timm.create_model("tf_efficientnet_lite0"), "bn2", "classifier", 1280),
    (swin, "norm", "head.fc", 96),
    (torchvision.models.resnet18, "layer4", "fc", 512),
    (
        lambda: torchvision.models.SwinTransformer([4, 4], 12, [1, 1], [1, 2], [2, 2], num_classes=3),
        "norm",
        "head",
        24,
    ),
    (lambda: hugging_face("resnet"), "resnet.encoder.stages.1", "classifier.1", 12),
    (lambda: hugging_face("swin"), "swin.layernorm", "classifier", 16),
    (lambda: plain(nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 3)), "2", "6", 8),
    (lambda: plain(nn.Dropout2d(0.5), nn.Conv2d(8, 3, 1), nn.Flatten()), "2", "5", 8),
]


@pytest.mark.parametrize(("build", "features", "classifier", "channels"), LINEAR)
def test_pool_and_linear_heads_are_recognized_and_reproduce_the_logits(build, features, classifier, channels):
    backbone = build().double().eval()
    head = analyse_head(backbone, image_size=SIZE)
    assert isinstance(head, LinearHead)
    assert (head.features, head.classifier, head.point.name) == (features, classifier, features)
    assert head.point.channels == channels
    seen: list[Tensor] = []
    with torch.no_grad():
        images = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        logits = hooked(backbone, head.features, images, lambda output: seen.append(as_maps(output, head.point, SIZE)))
        layer = backbone.get_submodule(head.classifier)
        maps = torch.einsum("lc,bchw->blhw", layer.weight.flatten(1), seen[0])
    operations = seen[0][0].numel()  # both are sums over all channels and locations
    scale = max(1.0, (layer.weight.abs().max() * seen[0].abs().max()).item())
    torch.testing.assert_close(maps.mean(dim=(2, 3)) + layer.bias, logits, rtol=0, atol=bound(operations, scale=scale))


class CosineLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(F.normalize(input), F.normalize(self.weight), self.bias)


class OverwrittenFeatures(nn.Module):
    """Overwrites the last map in place, as torchvision's DenseNet does: what is pooled was never returned."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.fc = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.norm(self.stem(x)), inplace=True).mean(dim=(2, 3)))


OPAQUE = [
    (lambda: timm.create_model("convnext_atto"), "stages.3"),
    (vit, "blocks.1"),  # the class token alone is read, so the patches of the last block have no gradient
    (lambda: vit("deit_tiny_distilled_patch16_224"), "blocks.1"),
    (lambda: vit("vit_medium_patch16_reg4_gap_256"), "blocks.2"),
    (lambda: timm.create_model("mobilenetv3_small_100"), "blocks.5"),
    (lambda: timm.create_model("resnet18", global_pool="avgmax"), "layer4"),
    (lambda: hugging_face("vit"), "vit.layers.1"),
    (lambda: plain(nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 3)), "2"),
    (lambda: plain(nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), "2"),
    (lambda: plain(nn.Flatten(), nn.Linear(8, 3), nn.Softplus()), "2"),
    (lambda: plain(nn.Flatten(), CosineLinear(8, 3)), "2"),
    (OverwrittenFeatures, "stem"),
]


@pytest.mark.parametrize(("build", "features"), OPAQUE)
def test_other_heads_name_the_last_map_on_which_the_logits_depend(build, features):
    backbone = build().eval()
    head = analyse_head(backbone, image_size=SIZE)
    assert isinstance(head, OpaqueHead)
    assert (head.features, head.point.name) == (features, features)

    def disturb(output: Any) -> Any:
        maps = as_maps(output, head.point, SIZE)
        noise = torch.randn(maps.shape, generator=torch.Generator().manual_seed(4))
        return from_maps(maps + maps.std() * noise, output, head.point)

    with torch.no_grad():
        images = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(3))
        assert not torch.equal(
            hooked(backbone, head.features, images, disturb), hooked(backbone, head.features, images, lambda _: None)
        )


def test_the_patches_of_the_last_block_do_not_matter_behind_a_class_token():
    backbone = vit().eval()
    point = analyse_head(backbone).point
    images = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        cleared = hooked(backbone, "blocks.2", images, lambda out: from_maps(as_maps(out, point, SIZE) * 0, out, point))
        assert torch.equal(cleared, backbone(images))


def test_a_zero_classifier_hides_no_head():
    backbone = plain(nn.Flatten(), nn.Linear(8, 3))
    nn.init.zeros_(backbone[-1].weight)
    assert analyse_head(backbone, image_size=SIZE) == analyse_head(
        plain(nn.Flatten(), nn.Linear(8, 3)), image_size=SIZE
    )


def test_layers_that_work_in_place_are_seen_through():
    backbone = plain(nn.Flatten(), nn.Linear(8, 3), activation=nn.ReLU(inplace=True))
    assert analyse_head(backbone, image_size=SIZE).features == "2"


def test_a_head_in_bfloat16_is_recognized():
    backbone = plain(nn.Flatten(), nn.Linear(8, 3)).bfloat16()
    assert isinstance(analyse_head(backbone, image_size=SIZE), LinearHead)


def test_a_frozen_network_can_be_analysed():
    backbone = plain(nn.Flatten(), nn.Linear(8, 3)).requires_grad_(False)
    assert isinstance(analyse_head(backbone, image_size=SIZE), LinearHead)


@pytest.mark.parametrize("build", [lambda: timm.create_model("resnet18", drop_rate=0.5), vit])
def test_the_analysis_changes_nothing_in_the_network(build):
    backbone = build().train()
    for module in list(backbone.modules())[::3]:
        module.training = False
    weight, *others = backbone.parameters()
    weight.requires_grad_(False)
    others[0].grad = torch.ones_like(others[0])
    modes = [module.training for module in backbone.modules()]
    state, random_state = copy.deepcopy(backbone.state_dict()), torch.get_rng_state()
    analyse_head(backbone, image_size=SIZE)
    assert [module.training for module in backbone.modules()] == modes
    assert all(torch.equal(value, backbone.state_dict()[name]) for name, value in state.items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(others[0].grad, torch.ones_like(others[0]))
    assert all(parameter.grad is None for parameter in others[1:])
    assert [parameter.requires_grad for parameter in backbone.parameters()] == [False] + [True] * len(others)
    assert not any(module._forward_hooks for module in backbone.modules())


def test_a_network_that_cuts_its_gradients_is_an_error():
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach()

    backbone = plain(nn.Flatten(), Cut(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="through which gradients flow"):
        analyse_head(backbone, image_size=SIZE)


def test_a_network_without_a_map_is_an_error():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    with pytest.raises(ValueError, match=r"must depend on a feature map.*found none at images of \(8, 8\)"):
        analyse_head(backbone, image_size=(8, 8))
