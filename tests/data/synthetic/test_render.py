"""Scenes: the same on every machine, labels that agree with masks, and domains that look different label by label."""

from __future__ import annotations

import hashlib
import random
from functools import cache

import numpy as np
import pytest
import torch

from ldstyle.data.synthetic import DOMAINS, VOCABULARY, draw_scene, lay_out
from ldstyle.data.synthetic.render import LEAST_PIXELS

# Scenes that hold every label of their domain between them. A change of these is a change of every drawn scene:
# raise `DRAWING` in write.py with it.
DIGESTS = {
    ("suburb", 0, 128): "86bf690409ccba0c",
    ("suburb", 15, 96): "c2c9522b045fb52c",
    ("suburb", 52, 97): "d1087f91dcd3d199",
    ("region", 0, 128): "189073af666387df",
    ("region", 1, 96): "dc29d956850bccf1",
    ("region", 2, 97): "096c44afa86efad2",
    ("harbour", 0, 128): "9f00469d8c3166db",
    ("harbour", 1, 96): "ce41e0c19c465143",
    ("harbour", 5, 97): "e26aaa737fda70af",
    ("harbour", 7, 64): "11af4eb5887113a2",
}


def digest(scene):
    return hashlib.blake2b(scene.image.tobytes() + scene.masks.tobytes(), digest_size=8).hexdigest()


@pytest.mark.parametrize(("domain", "number", "size"), DIGESTS)
def test_scenes_are_the_same_on_every_machine(domain, number, size):
    assert digest(draw_scene(domain, number, seed=0, size=size)) == DIGESTS[domain, number, size]


def test_scenes_differ_by_number_seed_and_domain():
    scenes = [("suburb", 1, 0), ("suburb", 2, 0), ("suburb", 1, 1), ("region", 1, 0)]
    assert len({digest(draw_scene(name, number, seed=seed, size=64)) for name, number, seed in scenes}) == 4


def test_drawing_leaves_the_global_random_streams_alone():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    draw_scene("region", 0, seed=0, size=64)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert before == after


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("size", [64, 97])
def test_labels_are_those_of_the_layout_and_of_the_masks(domain, size):
    for number in range(40):
        scene = draw_scene(domain, number, seed=3, size=size)
        covered = scene.masks.reshape(len(VOCABULARY), -1).sum(1)
        np.testing.assert_array_equal(scene.labels, covered >= LEAST_PIXELS)
        np.testing.assert_array_equal(covered[~scene.labels], 0)
        assert tuple(scene.labels.tolist()) == lay_out(domain, number, seed=3).labels, number


@pytest.mark.parametrize("size", [48, 64, 101, 128, 224])
def test_a_scene_can_be_drawn_at_any_size(size):
    scene = draw_scene("suburb", 0, seed=0, size=size)
    assert scene.image.shape == (size, size, 3)
    assert scene.masks.shape == (len(VOCABULARY), size, size)
    assert (scene.image.dtype, scene.masks.dtype, scene.labels.dtype) == (np.uint8, np.bool_, np.bool_)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_larger_image_shows_the_same_scene(domain):
    for number in range(6):
        small = draw_scene(domain, number, seed=1, size=64)
        large = draw_scene(domain, number, seed=1, size=192)
        np.testing.assert_allclose(small.masks.mean((1, 2)), large.masks.mean((1, 2)), atol=0.03)
        reduced = large.image.reshape(64, 3, 64, 3, 3).mean((1, 3))
        # The sensor blurs and the texture averages per pixel, so places agree in colour but not exactly.
        assert np.abs(reduced - small.image).mean() < 16


@pytest.mark.parametrize("size", [0, 47, 1025])
def test_sizes_out_of_range_are_refused(size):
    with pytest.raises(ValueError, match=rf"`size` must be from 48 to 1024 pixels; got {size}\."):
        draw_scene("suburb", 0, seed=0, size=size)


@cache
def scenes_with(domain, label, count=14):
    """The first scenes of a domain that hold a label."""
    position = VOCABULARY.index(label)
    numbers = (number for number in range(4000) if lay_out(domain, number, seed=9).labels[position])
    return [draw_scene(domain, next(numbers), seed=9, size=64) for _ in range(count)]


def mean_colours(domain, label):
    position = VOCABULARY.index(label)
    return np.array([scene.image[scene.masks[position]].mean(0) for scene in scenes_with(domain, label)])


@pytest.mark.parametrize("label", VOCABULARY)
def test_a_label_looks_different_in_each_domain(label):
    colours = {domain: mean_colours(domain, label) for domain in DOMAINS}
    for first in DOMAINS:
        for second in DOMAINS:
            if first < second:
                shift = np.linalg.norm(colours[first].mean(0) - colours[second].mean(0))
                spread = [colours[name].std(0) / np.sqrt(len(colours[name])) for name in (first, second)]
                # The means lie further apart than four of their standard errors.
                assert shift > 4 * np.sqrt((np.square(spread)).sum() / 3), (first, second)


def test_the_shift_between_domains_differs_from_label_to_label():
    shifts = {
        label: mean_colours("suburb", label).mean(0) - mean_colours("harbour", label).mean(0) for label in VOCABULARY
    }
    spread = np.std(list(shifts.values()), axis=0)
    # A single change of tone for the whole image would move all labels alike.
    assert spread.max() > 10


def test_things_are_larger_where_a_pixel_is_smaller_on_the_ground():
    extents = {domain: np.mean([lay_out(domain, n, seed=9).extent for n in range(40)]) for domain in DOMAINS}
    for label, ratio in (("car", 0.5), ("tree", 0.35)):
        shares = {}
        for domain in DOMAINS:
            position = VOCABULARY.index(label)
            pixels = sum(int(scene.masks[position].sum()) for scene in scenes_with(domain, label))
            shares[domain] = pixels / things_in_view(domain, label)
        for near, far in (("harbour", "suburb"), ("suburb", "region")):
            # Areas go with the square of the ground sampling distance; crowns overlap, cars hide under them.
            assert shares[near] / shares[far] > ratio * (extents[far] / extents[near]) ** 2, (label, near, far)


def things_in_view(domain, label):
    position = VOCABULARY.index(label)
    layouts = (lay_out(domain, number, seed=9) for number in range(4000))
    chosen = [layout for layout, _ in zip((x for x in layouts if x.labels[position]), range(14), strict=False)]
    return sum(x.sees(t.u, t.v, margin=0) for x in chosen for t in (x.cars if label == "car" else x.trees))
