"""Shapes are read as maps over an image."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldstyle.nn.backbones.geometry import Declared, Geometry, read_geometry, token_grids


@pytest.mark.parametrize(
    ("shape", "image_size", "expected"),
    [
        ((2, 256, 56, 56), (224, 224), Geometry(256, 4, "nchw")),
        ((2, 56, 56, 96), (224, 224), Geometry(96, 4, "nhwc")),
        ((2, 197, 192), (224, 224), Geometry(192, 16, "tokens", 1)),
        ((2, 198, 192), (224, 224), Geometry(192, 16, "tokens", 2)),
        ((2, 261, 384), (224, 224), Geometry(384, 14, "tokens", 5)),
        ((2, 3136, 96), (224, 224), Geometry(96, 4, "tokens", 0)),
        ((2, 77, 768), (224, 336), Geometry(768, 32, "tokens", 0)),  # 10.5 places padded to 11
        ((2, 512, 7, 11), (224, 336), Geometry(512, 32, "nchw")),
        ((2, 288, 35, 35), (299, 299), Geometry(288, 8, "nchw")),  # Inception pads nothing
        ((2, 2048, 8, 8), (299, 299), Geometry(2048, 32, "nchw")),
        ((2, 32, 16, 16), (230, 230), Geometry(32, 14, "nchw")),  # 14 px patches, remainder dropped
        ((2, 6, 4, 6), (32, 48), Geometry(6, 8, "nchw")),
        ((2, 4, 6, 6), (32, 48), Geometry(6, 8, "nhwc")),
    ],
)
def test_shapes_of_known_networks_are_read(shape, image_size, expected):
    assert read_geometry(shape, image_size) == expected


@pytest.mark.parametrize(
    "shape",
    [
        (2, 1000),
        (2, 512, 1, 1),  # pooled
        (2, 768, 1),  # pooled tokens
        (2, 12, 197, 197),  # attention between tokens
        (2, 64, 448, 448),  # larger than the image
        (2, 64, 56, 28),  # not the image's aspect
        (2, 64, 0, 0),
        (2, 5, 7, 9, 11),
    ],
)
def test_what_is_no_map_over_the_image_is_none(shape):
    assert read_geometry(shape, (224, 224)) is None


def test_declared_channels_settle_what_two_layouts_explain():
    shape, image_size = (2, 8, 8, 9), (32, 34)
    assert read_geometry(shape, image_size, declared=Declared(channels=8)) == Geometry(8, 4, "nchw")
    assert read_geometry(shape, image_size, declared=Declared(channels=9)) == Geometry(9, 4, "nhwc")
    assert read_geometry((2, 8, 8, 8), (32, 32)) == Geometry(8, 4, "nchw")


def test_a_declared_stride_beats_one_that_divides_the_image():
    shape = (2, 16, 384)  # LeViT's last stage: 3.5 patches padded to 4
    assert read_geometry(shape, (224, 224), declared=Declared(384, 64)) == Geometry(384, 64, "tokens")
    assert read_geometry(shape, (224, 224)) == Geometry(384, 56, "tokens")


def test_a_declared_stride_allows_a_single_place():
    assert read_geometry((2, 512, 1, 1), (32, 32), declared=Declared(512, 32)) == Geometry(512, 32, "nchw")
    assert read_geometry((2, 2, 64), (16, 16), declared=Declared(64, 16, 1)) == Geometry(64, 16, "tokens", 1)


def test_declared_prefix_tokens_rule_out_other_counts():
    assert read_geometry((2, 18, 64), (64, 64)) == Geometry(64, 16, "tokens", 2)
    assert read_geometry((2, 18, 64), (64, 64), declared=Declared(prefix_tokens=1)) is None


@given(
    stride=st.sampled_from([2, 4, 8, 14, 16, 32]),
    height=st.integers(3, 12),
    extra=st.integers(1, 5),
    channels=st.integers(40, 60),
    prefix=st.integers(0, 5),
)
def test_a_map_is_read_back_whatever_its_layout(stride, height, extra, channels, prefix):
    grid = (height, height + extra)
    image_size = (grid[0] * stride, grid[1] * stride)
    assert read_geometry((2, channels, *grid), image_size) == Geometry(channels, stride, "nchw")
    assert read_geometry((2, *grid, channels), image_size) == Geometry(channels, stride, "nhwc")
    tokens = Declared(stride=stride)
    length = math.prod(grid) + prefix
    expected = Geometry(channels, stride, "tokens", prefix)
    assert read_geometry((2, length, channels), image_size, declared=tokens) == expected


def test_grids_are_padded_first_then_cut():
    assert list(token_grids((20, 17), 8)) == [(3, 3), (2, 2), (3, 2), (2, 3)]
    assert list(token_grids((32, 48), 16)) == [(2, 3)]
