"""The faster dilated convolutions are the same convolutions."""

from __future__ import annotations

import pytest
import timm
import torch
from tests.tolerance import bound
from torch import nn

from ldstyle.cpu.dilated import DilatedDepthwiseConv2d, hasten_dilated_convolutions


@pytest.mark.parametrize("size", [(7, 7), (5, 9), (2, 3), (1, 1)])
@pytest.mark.parametrize(("kernel", "dilation"), [(5, 2), (3, 2), (3, 4), ((3, 5), (2, 1))])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_results_and_gradients_are_those_of_torch(size, kernel, dilation, memory):
    torch.manual_seed(0)
    plain = nn.Conv2d(6, 6, kernel, dilation=dilation, padding="same", groups=6).double()
    plain.padding = tuple(d * (k // 2) for d, k in zip(plain.dilation, plain.kernel_size, strict=True))
    ours = nn.Sequential(nn.Conv2d(6, 6, kernel, dilation=dilation, padding=plain.padding, groups=6)).double()
    ours[0].load_state_dict(plain.state_dict())
    assert hasten_dilated_convolutions(ours) == 1
    assert isinstance(ours[0], DilatedDepthwiseConv2d)
    assert ours[0].state_dict().keys() == plain.state_dict().keys()
    feats = torch.randn(3, 6, *size, dtype=torch.double).to(memory_format=memory)
    slopes = torch.randn(3, 6, *size, dtype=torch.double)
    found = []
    for network in (plain, ours):
        given = feats.clone().requires_grad_()
        out = network(given)
        out.backward(slopes)
        found.append((out.detach(), given.grad, *(parameter.grad for parameter in network.parameters())))
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)


def test_only_what_it_can_do_is_changed():
    others = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, groups=4),  # not dilated
        nn.Conv2d(4, 4, 3, padding=2, dilation=2),  # not depthwise
        nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=4),  # several maps per channel
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4, stride=2),
        nn.Conv2d(4, 4, 3, padding=1, dilation=2, groups=4),  # shrinks
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4, padding_mode="reflect"),
    )
    assert hasten_dilated_convolutions(others) == 0


def test_a_network_keeps_its_results_and_its_keys():
    def build():
        torch.manual_seed(0)
        return timm.create_model("tf_efficientnet_lite0", num_classes=3, output_stride=16).eval()

    plain, fast = build(), build()
    assert hasten_dilated_convolutions(fast) == 4
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(plain(images), fast(images))
    assert plain.state_dict().keys() == fast.state_dict().keys()
    for network in (plain, fast):
        network.double()(images.double()).sum().backward()
    # Up to 60 layers, each of sums over at most 2 · 32 · 32 locations or 1280 channels.
    for (name, expected), actual in zip(plain.named_parameters(), fast.parameters(), strict=True):
        tolerance = bound(2 * 60 * 2048, scale=max(1.0, expected.grad.abs().max().item()))
        torch.testing.assert_close(
            actual.grad, expected.grad, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
