"""Looking at a network leaves no trace in it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ldstyle.nn.backbones.probe import default_image_size, probe_images, survey, undisturbed


class Careless(nn.Module):
    """Draws from the global stream and caches in eval mode what training would make stale, as LeViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.cache: torch.Tensor | None = None

    def train(self, mode: bool = True) -> Careless:
        self.cache = None if mode else self.cache
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training and self.cache is None:
            self.cache = self.bias.detach().clone()
        return x + (self.bias if self.training else self.cache) + torch.rand(())


def network() -> nn.Sequential:
    conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(8), nn.Dropout(0.5), Careless(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_a_survey_changes_no_mode_buffer_gradient_or_random_state():
    net = network().train()
    net[1].eval()
    net[0].weight.requires_grad_(False)
    net[0].bias.grad = torch.ones(8)
    modes = {name: module.training for name, module in net.named_modules()}
    state, random_state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    survey(net, image_size=(8, 8))
    assert {name: module.training for name, module in net.named_modules()} == modes
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in state.items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(net[0].bias.grad, torch.ones(8))
    assert net[3].bias.grad is None
    assert not net[0].weight.requires_grad
    assert net[3].bias.requires_grad
    assert not any(module._forward_hooks for module in net.modules())


def test_caches_of_eval_mode_are_dropped_on_the_way_back_to_training():
    net = network().train()
    survey(net, image_size=(8, 8))
    assert net[3].cache is None


def test_modes_come_back_after_an_error():
    net = network().train()
    net[2].eval()
    seen = []

    def stop() -> None:
        seen.extend(module.training for module in net.modules())
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"), undisturbed(net):
        stop()
    assert not any(seen)
    assert [module.training for module in net] == [True, True, False, True, True, True]


def test_a_survey_records_shapes_and_calls_in_order():
    relu = nn.ReLU()
    net = nn.Sequential(nn.Conv2d(3, 4, 2, stride=2), relu, nn.Conv2d(4, 5, 2, stride=2), relu)
    found = survey(net, image_size=(8, 12))
    assert found.image_size == (8, 12)
    assert found.shapes == {"0": (2, 4, 4, 6), "2": (2, 5, 2, 3), "1": (2, 5, 2, 3)}
    assert found.calls == {"0": 1, "1": 2, "2": 1}


def test_a_cube_is_looked_at_again_in_a_wider_image():
    found = survey(nn.Sequential(nn.Conv2d(3, 8, 4, stride=4)), image_size=(32, 32))
    assert found.image_size == (32, 48)
    assert found.geometry("0") == (8, 4, "nchw", 0)


def test_outputs_that_are_shared_by_the_batch_are_no_maps():
    class Positions(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(1, 16, 4)

    assert survey(nn.Sequential(Positions()), image_size=(16, 16)).geometry("0") is None


def test_a_refused_image_size_is_an_error_that_says_so():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(ValueError, match=r"one that the network takes; got \(8, 8\).*Pass image_size"):
        survey(net, image_size=(8, 8))


def test_probe_images_are_fixed_and_fit_the_network():
    net = nn.Sequential(nn.Conv2d(5, 8, 3)).to(torch.bfloat16)
    images = probe_images(net, (6, 7))
    assert images.shape == (2, 5, 6, 7)
    assert images.dtype == torch.bfloat16
    assert torch.equal(images, probe_images(net, (6, 7)))


def test_the_default_image_size_is_the_networks_own():
    net = nn.Sequential(nn.Flatten())
    assert default_image_size(net) == (224, 224)
    net.default_cfg = {"input_size": (3, 96, 128)}
    assert default_image_size(net) == (96, 128)
    net[0].img_size = (64, 80)  # a patch embedding made for another size than the published weights
    assert default_image_size(net) == (64, 80)
