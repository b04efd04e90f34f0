from __future__ import annotations

import dataclasses
import math

import pytest
from tests.deploy.models import SIZE, write_model

from ldstyle.deploy.scene.ground import (
    GroundScale,
    matching_tile,
    scale_words,
    trained_scale,
    unscaled_sources,
)
from ldstyle.runs.model_file import load_model


@pytest.fixture
def model(tmp_path):
    write_model(tmp_path)
    return load_model(tmp_path)


def test_the_ground_of_an_image_is_stated_by_the_user_or_the_model_never_by_a_name(model):
    assert model.sources == ("ucm", "dfc15")
    assert trained_scale(model) is None
    assert trained_scale(dataclasses.replace(model, gsd=0.5)) == GroundScale(0.5 * SIZE, 0.5 * SIZE)
    assert trained_scale(dataclasses.replace(model, gsd=0.5), (0.3, 0.2)) == GroundScale(
        0.2 * SIZE, 0.3 * SIZE, {"ucm": (0.3 * SIZE, 0.3 * SIZE), "dfc15": (0.2 * SIZE, 0.2 * SIZE)}
    )


def test_the_model_states_it_by_source(model):
    known = dataclasses.replace(model, source_gsd={"ucm": (0.2, 0.3), "dfc15": (0.25, 0.25)})
    found = trained_scale(known)
    assert found == GroundScale(0.2 * SIZE, 0.3 * SIZE, {"ucm": (6.4, 9.6), "dfc15": (8.0, 8.0)})
    assert matching_tile(found, 0.1) == round(math.sqrt(6.4 * 9.6) / 0.1)
    assert trained_scale(known, (0.5,)) == GroundScale(0.5 * SIZE, 0.5 * SIZE)


def test_a_source_of_unknown_scale_is_named(model):
    part = dataclasses.replace(model, source_gsd={"ucm": (0.3, 0.3)})
    assert trained_scale(part) is None
    assert unscaled_sources(part) == ("dfc15",)
    assert "the training images of dfc15 showed. State it with --trained-gsd" in scale_words(part, gsd=1.0, tile=9)[0]


def test_sources_that_disagree_are_refused_with_the_values_of_each(model):
    apart = dataclasses.replace(model, source_gsd={"ucm": (2.4, 2.4), "dfc15": (10.0, 150.0)})
    found = trained_scale(apart)
    assert found is not None
    with pytest.raises(
        ValueError, match=r"show 77 to 4800 m \(ucm 77 m, dfc15 320 to 4800 m\) of ground.*--tile .*--trained-gsd"
    ):
        matching_tile(found, 0.5)


def test_stated_values_are_one_for_all_or_one_for_each_source(model):
    with pytest.raises(ValueError, match=r"--trained-gsd takes one .* \['ucm', 'dfc15'\]; got 3 values"):
        trained_scale(model, (0.3, 0.3, 0.3))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_ground_sampling_distance_must_be_positive(model, value):
    with pytest.raises(ValueError, match=rf"--trained-gsd .*got {value:g}"):
        trained_scale(model, (value,))


def test_a_matching_tile_shows_as_much_ground():
    assert matching_tile(GroundScale(64, 64), 0.5) == 128
    assert matching_tile(GroundScale(50, 72), 1.0) == 60


def test_sources_of_different_scales_have_no_matching_tile():
    with pytest.raises(ValueError, match=r"--match-gsd .*77 to 4800 m.*--tile"):
        matching_tile(GroundScale(76.8, 4800), 0.5)


@pytest.mark.parametrize(
    ("gsd", "tile", "words"),
    [
        (1.0, 50, "A tile of 50 px at 1 m shows 50 m of ground, about as the training images did (40 to 77 m)."),
        (0.1, 50, "objects look 8.0 times larger than in the training images. Set --match-gsd (tiles of 554 px)"),
        (10.0, 77, "shows 770 m of ground, the training images 40 to 77 m: objects look 10.0 times smaller"),
        (None, 50, "no reference system"),
    ],
)
def test_a_mismatch_is_told_in_words(model, gsd, tile, words):
    (sentence,) = scale_words(model, gsd=gsd, tile=tile, stated=(40 / SIZE, 76.8 / SIZE))
    assert words in sentence


def test_a_mismatch_with_sources_of_different_scales_does_not_advise_matching(model):
    (sentence,) = scale_words(model, gsd=0.1, tile=50, stated=(30 / SIZE, 76.8 / SIZE))
    assert sentence.startswith("warning: ")
    assert "Set --tile, or" in sentence


def test_a_model_that_does_not_say_is_named(model):
    assert "State it with --trained-gsd" in scale_words(model, gsd=1.0, tile=9)[0]
