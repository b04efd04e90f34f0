from __future__ import annotations

import dataclasses
import math

import pytest

from ldstyle.deploy.ground import GroundScale, matching_tile, metres_per_pixel, scale_words, trained_scale
from ldstyle.training.model_file import load_model

from .models import SIZE, write_model


@pytest.fixture
def model(tmp_path):
    write_model(tmp_path)
    return load_model(tmp_path)


def test_the_ground_of_an_image_goes_by_the_model_and_else_by_its_sources(model):
    assert trained_scale(model) == GroundScale(30.0, 76.8)  # DFC15: 600 px of 5 cm; UC Merced: 256 px of 30 cm
    assert trained_scale(dataclasses.replace(model, gsd=0.5)) == GroundScale(0.5 * SIZE, 0.5 * SIZE)
    assert trained_scale(dataclasses.replace(model, sources=("ucm", "mine"))) is None


def test_degrees_shrink_towards_the_poles():
    equator = metres_per_pixel(1e-5, 1e-5, degrees=True, unit=1, latitude=0)
    assert equator == pytest.approx(1.1132)
    assert metres_per_pixel(1e-5, 1e-5, degrees=True, unit=1, latitude=60) == pytest.approx(equator * math.sqrt(0.5))
    assert metres_per_pixel(2, 2, degrees=False, unit=0.3048, latitude=45) == pytest.approx(0.6096)


def test_a_matching_tile_shows_as_much_ground():
    assert matching_tile(GroundScale(64, 64), 0.5) == 128
    assert matching_tile(GroundScale(10, 1000), 1.0) == 100


@pytest.mark.parametrize(
    ("gsd", "tile", "words"),
    [
        (1.0, 50, "A tile of 50 px at 1 m shows 50 m of ground, about as the training images did (30 to 77 m)."),
        (0.1, 50, "objects look 6.0 times larger than the model knows them. Set --match-gsd (tiles of 480 px)"),
        (10.0, 77, "shows 770 m of ground, the training images 30 to 77 m: objects look 10.0 times smaller"),
        (None, 50, "no reference system"),
    ],
)
def test_a_mismatch_is_told_in_words(model, gsd, tile, words):
    (sentence,) = scale_words(model, gsd=gsd, tile=tile)
    assert words in sentence


def test_a_model_that_does_not_say_is_named(model):
    strange = dataclasses.replace(model, sources=("mine",))
    assert "does not say how much its training images showed" in scale_words(strange, gsd=1.0, tile=9)[0]
