"""Class activation maps of whole networks, with and without a backward pass, and the sweep that stores them."""

from __future__ import annotations

import pytest
import timm
import torch
from tests.nn.nets import LABELS, Toy, global_streams, make_images, seeded
from tests.tolerance import bound, operations
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ldstyle.nn import GradCamBank, LinearHead, OpaqueHead, activation_maps, analyse_head
from ldstyle.nn.backbones.activation_maps import predicted, refresh_bank

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")

SIZE = (64, 96)
PRESENT = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1]], dtype=torch.bool)


def network(name, **settings):
    return seeded(lambda: timm.create_model(name, num_classes=LABELS, **settings)).double().eval()


def rounding(backbone):
    """Bound on the error of a map relative to its size: forwards and backwards the errors of the layers' sums add up.

    Each layer may enlarge the error of the one before, by 10 in all: activations are normalised.
    """
    return bound(2 * operations(backbone), scale=10)


def grad_cam(backbone, features, images):
    """Grad-CAM as published, label by label and image by image, from the gradients of the whole network."""
    kept = []
    handle = backbone.get_submodule(features).register_forward_hook(lambda _m, _a, out: kept.append(out))
    maps = []
    for image in images:
        logits = backbone(image[None])[0]
        row = []
        for logit in logits:
            (slope,) = torch.autograd.grad(logit, kept[-1], retain_graph=True)
            row.append((slope.mean(dim=(2, 3), keepdim=True) * kept[-1]).sum(dim=1)[0])
        maps.append(torch.stack(row))
    handle.remove()
    return torch.stack(maps).detach()


@pytest.mark.parametrize("name", ["resnet50", "tf_efficientnet_lite0"])
def test_maps_without_a_backward_pass_are_grad_cam(name):
    backbone, images = network(name), make_images(2, size=SIZE).double()
    head = analyse_head(backbone, image_size=SIZE)
    assert isinstance(head, LinearHead)
    forward, logits = activation_maps(backbone, head, images)
    backward, same = activation_maps(backbone, OpaqueHead(head.features, head.point), images)
    published = grad_cam(backbone, head.features, images)
    places = forward.shape[2] * forward.shape[3]
    scale = published.abs().max().item()
    assert scale > 0
    torch.testing.assert_close(backward, published, rtol=0, atol=rounding(backbone) * scale)
    torch.testing.assert_close(forward / places, backward, rtol=0, atol=rounding(backbone) * scale)
    torch.testing.assert_close(logits, same, rtol=0, atol=rounding(backbone) * max(1.0, scale * places))
    classifier = backbone.get_submodule(head.classifier)
    found = forward.mean(dim=(2, 3)) + classifier.bias
    torch.testing.assert_close(found, logits, rtol=0, atol=rounding(backbone) * max(1.0, scale * places))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("convnext_atto", {}), ("vit_tiny_patch16_224", {"img_size": SIZE, "depth": 3})],
)
def test_other_heads_take_the_gradient_and_give_maps_that_follow_the_image(name, settings):
    backbone, images = network(name, **settings), make_images(2, size=SIZE).double()
    head = analyse_head(backbone, image_size=SIZE)
    assert isinstance(head, OpaqueHead)
    maps, logits = activation_maps(backbone, head, images)
    grid = tuple(side // head.point.stride for side in SIZE)
    assert maps.shape == (2, LABELS, *grid)
    assert maps.isfinite().all()
    assert maps.flatten(2).std(dim=-1).gt(0).all()
    torch.testing.assert_close(logits, backbone(images).detach(), rtol=0, atol=rounding(backbone))
    alone, _ = activation_maps(backbone, head, images[1:])
    torch.testing.assert_close(maps[1:], alone, rtol=0, atol=rounding(backbone) * maps.abs().max().item())


def test_gradient_maps_of_a_head_with_hidden_layers_equal_published_grad_cam():
    backbone = seeded(Toy).eval()
    backbone.head = nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, LABELS))
    backbone.double()
    head = analyse_head(backbone, image_size=(16, 24))
    assert head.features == "stage3"
    images = make_images(3).double()
    maps, _ = activation_maps(backbone, head, images)
    torch.testing.assert_close(maps, grad_cam(backbone, "stage3", images), rtol=0, atol=rounding(backbone))


class Mixed(nn.Module):
    """Batch statistics, dropout that ignores the mode, and a frozen part."""

    def __init__(self, *, opaque: bool):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.drop = nn.Dropout(0.5)
        self.head = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, LABELS)) if opaque else nn.Linear(12, LABELS)

    def forward(self, images):
        return self.head(self.drop(self.body(self.stem(images)).mean(dim=(2, 3))))


@pytest.mark.parametrize("opaque", [False, True])
def test_a_sweep_leaves_no_trace_in_the_network_or_in_the_random_streams(opaque):
    backbone = seeded(lambda: Mixed(opaque=opaque)).train()
    backbone.stem.eval()
    backbone.stem[0].weight.requires_grad_(False)
    images = make_images(5)
    backbone(images).sum().backward()
    head = analyse_head(backbone, image_size=(16, 24))
    assert isinstance(head, OpaqueHead if opaque else LinearHead)
    state = {name: value.clone() for name, value in backbone.state_dict().items()}
    grads = {n: (p.grad, None if p.grad is None else p.grad.clone()) for n, p in backbone.named_parameters()}
    modes = {name: module.training for name, module in backbone.named_modules()}
    needs = {name: p.requires_grad for name, p in backbone.named_parameters()}
    streams = global_streams()
    # A loader draws from the global stream when it is iterated.
    loader = DataLoader(TensorDataset(images, PRESENT, torch.arange(5)), batch_size=2)
    bank = GradCamBank(5, LABELS)
    refresh_bank(backbone, head, bank, loader)
    assert all(torch.equal(state[name], value) for name, value in backbone.state_dict().items())
    assert modes == {name: module.training for name, module in backbone.named_modules()}
    assert needs == {name: p.requires_grad for name, p in backbone.named_parameters()}
    for name, parameter in backbone.named_parameters():
        kept, before = grads[name]
        assert parameter.grad is kept
        assert before is None or torch.equal(before, kept)
    assert streams == global_streams()
    assert not any(module._forward_hooks for module in backbone.modules())


def test_modes_and_random_state_come_back_after_an_error():
    backbone = seeded(lambda: Mixed(opaque=False)).train()
    head = analyse_head(backbone, image_size=(16, 24))
    streams = global_streams()
    with pytest.raises(IndexError, match="num_samples = 1"):
        refresh_bank(backbone, head, GradCamBank(1, LABELS), [(make_images(5), PRESENT, torch.arange(5))])
    assert all(module.training for module in backbone.modules())
    assert streams == global_streams()
    assert not any(module._forward_hooks for module in backbone.modules())


class Caching(nn.Module):
    """Keeps what it computed in eval mode until it is told to train, as LeViT does."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.cache = None

    def train(self, mode=True):
        super().train(mode)
        if mode:
            self.cache = None
        return self

    def forward(self, feats):
        if self.training:
            return feats + self.shift
        self.cache = self.shift.detach().clone() if self.cache is None else self.cache
        return feats + self.cache


def test_a_sweep_does_not_leave_caches_behind_that_the_next_one_would_trust():
    backbone = seeded(Toy)
    backbone.stage3.append(Caching())
    backbone.train()
    head = analyse_head(backbone, image_size=(16, 24))
    batch = (make_images(5), PRESENT, torch.arange(5))
    bank = GradCamBank(5, LABELS)
    refresh_bank(backbone, head, bank, [batch])
    with torch.no_grad():
        backbone.stage3[-1].shift.fill_(0.3)
    refresh_bank(backbone, head, bank, [batch])
    fresh = GradCamBank(5, LABELS)
    backbone.eval().train()
    refresh_bank(backbone, head, fresh, [batch])
    ours, wanted = (each.lookup(batch[2], None, PRESENT) for each in (bank, fresh))
    assert torch.equal(ours.maps, wanted.maps)


def test_a_sweep_keeps_maps_of_labels_that_are_present_and_predicted():
    backbone, images = seeded(Toy), make_images(5)
    backbone.head.weight.data.abs_()  # maps with a positive part
    logits = backbone(images).detach()
    backbone.head.bias.data -= logits.sort(dim=0).values[1:3].mean(dim=0)  # three of five are positive
    head, bank = analyse_head(backbone, image_size=(16, 24)), GradCamBank(5, LABELS)
    refresh_bank(backbone, head, bank, [(images[:2], PRESENT[:2], torch.tensor([4, 0]))])
    refresh_bank(backbone, head, bank, [(images[2:], PRESENT[2:], torch.tensor([3, 1, 2]))])
    index = torch.tensor([4, 0, 3, 1, 2])
    found = PRESENT & (torch.sigmoid(backbone(images)) >= 0.5)
    assert 0 < found.sum() < PRESENT.sum()
    cached = bank.lookup(index, None, torch.ones_like(PRESENT))
    assert torch.equal(cached.usable, found)
    raw = grad_cam(backbone, "stage3", images).relu()
    wanted = torch.where(found[:, :, None, None], raw / raw.amax(dim=(2, 3), keepdim=True), 0.0)
    # Rounded to half precision; the maps are sums of up to 108 terms through three layers, divided by their maximum.
    tolerance = bound(1, dtype=torch.float16) + bound(3 * 108, scale=10, dtype=torch.float32)
    torch.testing.assert_close(cached.maps.float(), wanted, rtol=0, atol=tolerance)


def test_the_correctness_gate_counts_even_odds_as_found():
    logits = torch.tensor([[0.0, -1e-3, 2.0]])
    assert predicted(logits, torch.tensor([[True, True, False]])).tolist() == [[True, False, False]]


def test_a_sweep_runs_in_the_precision_its_caller_chose():
    backbone = seeded(Toy)
    head, bank, seen = analyse_head(backbone, image_size=(16, 24)), GradCamBank(5, LABELS), []
    backbone.stage3.register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))
    batch = (make_images(5), PRESENT, torch.arange(5))
    refresh_bank(backbone, head, bank, [batch])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        refresh_bank(backbone, head, bank, [batch])
    assert seen == [torch.float32, torch.bfloat16]
