"""Style modules in timm, torchvision and Hugging Face networks."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from tests.nn.nets import (
    LABELS,
    label_decoupled,
    make_context,
    make_images,
    seeded,
    styled,
)

from ldstyle.functional import objective

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")

SIZE = (32, 64)
LLAM_EFDMIX = label_decoupled("efdmix", "llam")


def vit_of_hugging_face():
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(**size, image_size=SIZE, patch_size=8, num_labels=LABELS))


SWIN = {"window_size": 2, "embed_dim": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}
BACKBONES = {
    "timm-resnet18": (lambda: timm.create_model("resnet18", num_classes=LABELS), (1, 2)),
    "timm-swin": (
        lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=SIZE, num_classes=LABELS, **SWIN),
        (1, 2),
    ),
    "timm-vit": (
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=SIZE, patch_size=8, depth=3, num_classes=LABELS),
        ("blocks.0", "blocks.1"),
    ),
    "torchvision-resnet18": (lambda: torchvision.models.resnet18(num_classes=LABELS), ("layer1", "layer2")),
    "hugging-face-vit": (vit_of_hugging_face, ("vit.layers.0", "vit.layers.1")),
}


def build(name, style=LLAM_EFDMIX, **settings):
    make, stages = BACKBONES[name]
    return styled(style, build=make, stages=stages, image_size=SIZE, **settings)


def logits_of(output):
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.mark.parametrize("name", BACKBONES)
class TestBackbones:
    def test_one_training_step_moves_the_backbone_and_the_attention(self, name):
        net = build(name)
        before = {key: value.clone() for key, value in net.named_parameters()}
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        images, context = make_images(6, size=SIZE), make_context(6)
        output = net(images, context)
        plain = logits_of(net.backbone.train()(images))
        assert not torch.allclose(output.logits, plain, atol=1e-6)
        assert output.diagnostics["fired"] == 2
        assert list(output.attention) == [point.name for point in net.points]
        objective(output, context.present, diversity_weight=0.1).backward()
        optimizer.step()
        assert all(parameter.isfinite().all() for parameter in net.parameters())
        moved = {key for key, value in net.named_parameters() if not torch.equal(value, before[key])}
        # A softmax does not see a shift of all its logits, so the last bias of learned attention stays.
        assert {key for key in before if "llam" in key and "localize.bias" not in key} <= moved
        assert next(iter(before)) in moved

    def test_the_backbone_stays_as_anyone_else_would_load_it(self, name):
        net = build(name)
        net(make_images(6, size=SIZE), make_context(6))
        fresh = seeded(BACKBONES[name][0], seed=1)
        assert list(net.backbone.state_dict()) == list(fresh.state_dict())
        assert type(net.backbone) is type(fresh)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
        fresh.load_state_dict(net.backbone.state_dict())
        images = make_images(2, size=SIZE)
        assert torch.equal(logits_of(fresh.eval()(images)), logits_of(net.eval()(images)))

    def test_outside_training_the_call_is_the_backbones_own(self, name):
        net, images = build(name).eval(), make_images(3, size=SIZE)
        output, own = net(images), net.backbone(images)
        assert type(output) is type(own)
        assert torch.equal(logits_of(output), logits_of(own))
        assert torch.equal(net(images, make_context(3)).logits, logits_of(own))


@pytest.mark.parametrize(("name", "second"), [("timm-vit", "blocks.1"), ("hugging-face-vit", "vit.layers.1")])
def test_the_class_token_is_untouched_and_the_places_are_not(name, second):
    make, stages = BACKBONES[name]
    net = styled(LLAM_EFDMIX, build=make, stages=stages[:1], image_size=SIZE)
    net.backbone.eval()  # without dropout
    seen = []
    net.backbone.get_submodule(second).register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    images = make_images(6, size=SIZE)
    net.backbone(images)
    net(images, make_context(6))
    plain, restyled = seen
    assert torch.equal(plain[:, 0], restyled[:, 0])
    assert not torch.equal(plain[:, 1:], restyled[:, 1:])
