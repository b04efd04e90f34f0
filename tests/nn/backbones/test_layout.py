"""Outputs of submodules become maps and go back without loss."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ldstyle.nn.backbones.insertion import InsertionPoint
from ldstyle.nn.backbones.layout import as_maps, first_tensor, from_maps, logits_of, replace_first

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")

Pair = namedtuple("Pair", ["x", "size"])
LAYOUTS = [("nchw", 0), ("nhwc", 0), ("tokens", 0), ("tokens", 1), ("tokens", 5)]


def place(layout: str, prefix: int = 0, *, channels: int = 5, stride: int = 8) -> InsertionPoint:
    return InsertionPoint("stage", None, channels, stride, layout, prefix)


def draw(point: InsertionPoint, *, batch: int = 2, grid: tuple[int, int] = (3, 4), seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    match point.layout:
        case "nchw":
            shape = (batch, point.channels, *grid)
        case "nhwc":
            shape = (batch, *grid, point.channels)
        case _:
            shape = (batch, point.prefix_tokens + grid[0] * grid[1], point.channels)
    return torch.randn(shape, generator=generator)


def entry(output: Tensor, point: InsertionPoint, b: int, c: int, h: int, w: int, width: int) -> Tensor:
    match point.layout:
        case "nchw":
            return output[b, c, h, w]
        case "nhwc":
            return output[b, h, w, c]
        case _:
            return output[b, point.prefix_tokens + h * width + w, c]


@pytest.mark.parametrize(("layout", "prefix"), LAYOUTS)
def test_every_entry_of_a_map_is_the_one_at_its_place(layout, prefix):
    point = place(layout, prefix)
    output = draw(point)
    maps = as_maps(output, point, (24, 32))
    assert maps.shape == (2, 5, 3, 4)
    for b, c, h, w in torch.cartesian_prod(*map(torch.arange, maps.shape)).tolist():
        assert maps[b, c, h, w] == entry(output, point, b, c, h, w, 4)


@given(
    layout=st.sampled_from(LAYOUTS),
    batch=st.integers(1, 3),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_the_way_there_and_back_is_exact(layout, batch, height, width, seed):
    point = place(*layout)
    output = draw(point, batch=batch, grid=(height, width), seed=seed)
    maps = as_maps(output, point, (height * 8, width * 8))
    restored = from_maps(maps, output, point)
    assert torch.equal(restored, output)
    assert restored.stride() == output.stride()


@pytest.mark.parametrize(("layout", "prefix"), LAYOUTS)
def test_maps_are_views(layout, prefix):
    point = place(layout, prefix)
    output = draw(point)
    assert as_maps(output, point, (24, 32)).untyped_storage().data_ptr() == output.untyped_storage().data_ptr()


@pytest.mark.parametrize(("layout", "prefix"), [("nchw", 0), ("nhwc", 0), ("tokens", 0)])
def test_an_elementwise_change_goes_back_without_a_copy(layout, prefix):
    point = place(layout, prefix)
    output = draw(point)
    changed = as_maps(output, point, (24, 32)) * 2
    restored = from_maps(changed, output, point)
    assert restored.data_ptr() == changed.data_ptr()
    assert torch.equal(restored, output * 2)


@pytest.mark.parametrize("prefix", [1, 5])
def test_prefix_tokens_stay_bit_exact(prefix):
    point = place("tokens", prefix)
    output = draw(point)
    original = output.clone()
    restored = from_maps(as_maps(output, point, (24, 32)) + 1, output, point)
    assert torch.equal(restored[:, :prefix], original[:, :prefix])
    assert torch.equal(restored[:, prefix:], original[:, prefix:] + 1)
    assert torch.equal(output, original)


def test_channels_last_stays_channels_last():
    point = place("nchw")
    output = draw(point).contiguous(memory_format=torch.channels_last)
    restored = from_maps(output.contiguous() * 2, output, point)
    assert restored.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(restored, output * 2)


def test_channels_last_output_takes_view_again_after_a_plain_map():
    point = place("nhwc")
    output = draw(point)
    plain = as_maps(output, point, (24, 32)).contiguous()
    assert torch.equal(from_maps(plain, output, point).view(2, -1), output.view(2, -1))


def test_a_wider_dtype_goes_back_to_that_of_the_output():
    point = place("tokens", 1)
    output = draw(point).bfloat16()
    restored = from_maps(as_maps(output, point, (24, 32)).float(), output, point)
    assert restored.dtype == torch.bfloat16
    assert torch.equal(restored, output)


@pytest.mark.parametrize("image_size", [(17, 30), (24, 32), (19, 25)])
def test_padded_patches_count(image_size):
    point = place("tokens")
    assert as_maps(draw(point), point, image_size).shape == (2, 5, 3, 4)


def test_patches_that_drop_the_remainder_count():
    point = place("tokens")
    assert as_maps(draw(point), point, (30, 39)).shape == (2, 5, 3, 4)


def model_output(first: Tensor, second: Any) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=first, hidden_states=second)


@pytest.mark.parametrize(
    "build",
    [
        lambda first, second: (first, second),
        lambda first, second: [first, second],
        lambda first, second: {"x": first, "more": second},
        lambda first, second: (None, (first, second)),
        Pair,
        model_output,
    ],
)
def test_the_structure_around_a_map_is_kept(build):
    point = place("nchw")
    feats, rest = draw(point), (3, 4)
    output = build(feats, rest)
    restored = from_maps(feats + 1, output, point)
    assert type(restored) is type(output)
    assert torch.equal(as_maps(restored, point, (24, 32)), feats + 1)
    assert first_tensor(output) is feats
    assert str(replace_first(restored, feats)) == str(output)


def test_logits_are_found_wherever_networks_put_them():
    from transformers.modeling_outputs import ImageClassifierOutput

    logits, loss = torch.ones(2, 3), torch.zeros(())
    Outputs = namedtuple("Outputs", ["aux", "logits"])
    assert logits_of(logits) is logits
    assert logits_of((logits, loss)) is logits
    assert logits_of([logits]) is logits
    assert logits_of({"loss": loss, "logits": logits}) is logits
    assert logits_of(ImageClassifierOutput(loss=loss, logits=logits)) is logits
    assert logits_of(Outputs(loss, logits)) is logits


@pytest.mark.parametrize(
    ("output", "got"), [({"out": torch.ones(1)}, r"dict\(out: Tensor\)"), ((), "tuple"), (None, "NoneType")]
)
def test_missing_logits_are_an_error_that_names_what_came(output, got):
    with pytest.raises(TypeError, match=f"must return logits.*got {got}"):
        logits_of(output)


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "tokens"])
def test_an_output_of_other_channels_is_an_error(layout):
    output = draw(place(layout, channels=6))
    with pytest.raises(ValueError, match=f"must be a {layout} map with 5 channels; got shape"):
        as_maps(output, place(layout), (24, 32))


def test_an_output_without_a_tensor_is_an_error():
    with pytest.raises(TypeError, match=r"'stage' must hold a tensor; got tuple\(0: NoneType\)"):
        as_maps((None,), place("nchw"), (24, 32))
    with pytest.raises(TypeError, match="must hold a tensor; got NoneType"):
        from_maps(torch.ones(1, 5, 2, 2), None, place("nchw"))


def test_an_image_size_that_gives_other_tokens_is_an_error():
    point = place("tokens", 1)
    with pytest.raises(ValueError, match=r"its 12 tokens at stride 8; got \(64, 64\)"):
        as_maps(draw(point), point, (64, 64))


def test_a_map_that_does_not_fill_the_output_is_an_error():
    point = place("tokens", 1)
    with pytest.raises(ValueError, match=r"must fill the output of 'stage', shape \(2, 13, 5\); got \(2, 5, 3, 3\)"):
        from_maps(torch.ones(2, 5, 3, 3), draw(point), point)
