"""Attention against masks, and the level of chance."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerance import bound

from ldstyle.config import GradCamConfig, LabelDecoupledConfig, LLAMConfig
from ldstyle.data.loading.pool import Batch
from ldstyle.evaluation.attention.maps import localize_attention, localize_learned, localize_predictions
from ldstyle.evaluation.localization import MEASURES, Localization, locate, with_mean
from ldstyle.functional import resize_maps, threshold_maps
from ldstyle.nn import attach
from ldstyle.runs.backbone import Preprocessing, create_network
from ldstyle.runs.normalized_net import NormalizedNet

ROUNDED = bound(8, dtype=torch.float32)
"""Of ratios of counts, and of values computed in float64 and rounded: a handful of operations on values up to 1."""


def region(shape: tuple[int, int], rows: slice, columns: slice) -> torch.Tensor:
    mask = torch.zeros(1, 1, *shape, dtype=torch.bool)
    mask[..., rows, columns] = True
    return mask


def oracle(attn: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
    """One map without ties: visit the places from the highest down."""
    places = sorted(range(attn.numel()), key=lambda place: -attn.flatten()[place].item())
    truth = {place for place in range(mask.numel()) if mask.flatten()[place]}
    chosen = set(places[: len(truth)])
    return float(places[0] in truth), len(chosen & truth) / len(chosen | truth)


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 6))
def test_pointing_and_iou_agree_with_a_walk_over_the_places(seed, height, width):
    generator = torch.Generator().manual_seed(seed)
    attn = torch.randperm(6 * height * width, generator=generator).reshape(2, 3, height, width) + 1.0
    masks = torch.rand(2, 3, height, width, generator=generator) < 0.4
    hits = locate(attn, masks)
    for b in range(2):
        for label in range(3):
            if masks[b, label].any():
                expected = oracle(attn[b, label], masks[b, label])
                assert hits.pointing[b, label].item() == expected[0]
                assert hits.iou[b, label].item() == pytest.approx(expected[1], abs=ROUNDED)
                assert hits.area[b, label].item() == pytest.approx(masks[b, label].double().mean().item(), abs=ROUNDED)
            else:
                assert hits.pointing[b, label].isnan()


@given(st.floats(1e-6, 1e3), st.integers(1, 9), st.integers(1, 11), st.integers(1, 7))
def test_a_map_of_equal_values_scores_exactly_chance_at_any_resolution(value, rows, columns, side):
    mask = region((9, 11), slice(0, rows), slice(0, columns))
    hits = locate(torch.full((1, 1, side, side), value), mask)
    area = rows * columns / 99
    assert hits.pointing.item() == pytest.approx(area, abs=ROUNDED)
    assert hits.area.item() == pytest.approx(area, abs=ROUNDED)
    assert hits.iou.item() == pytest.approx(area / (2 - area), abs=ROUNDED)
    assert hits.iou_chance.item() == pytest.approx(area / (2 - area), abs=ROUNDED)


def test_the_true_region_scores_one_and_its_complement_zero():
    mask = region((8, 8), slice(2, 5), slice(1, 4))
    perfect, opposite = locate(mask.float(), mask), locate((~mask).float(), mask)
    assert (perfect.pointing.item(), perfect.iou.item()) == (1.0, 1.0)
    assert (opposite.pointing.item(), opposite.iou.item()) == (0.0, 0.0)


def test_a_coarse_map_is_resized_to_the_mask():
    coarse = torch.zeros(1, 1, 2, 2)
    coarse[0, 0, 0, 0] = 1.0
    hits = locate(coarse, region((16, 16), slice(0, 8), slice(0, 8)))
    assert hits.pointing.item() == 1.0
    assert hits.iou.item() > 0.75
    assert locate(coarse, region((16, 16), slice(8, 16), slice(8, 16))).iou.item() == 0.0


@given(st.floats(1e-3, 1e3))
def test_only_the_order_of_the_places_counts(scale):
    generator = torch.Generator().manual_seed(1)
    attn, masks = torch.rand(2, 3, 7, 5, generator=generator), torch.rand(2, 3, 7, 5, generator=generator) < 0.3
    first, second = locate(attn, masks), locate(attn * scale, masks)
    torch.testing.assert_close(first.pointing, second.pointing, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(first.iou, second.iou, equal_nan=True, rtol=0, atol=0)


def test_flipping_maps_and_regions_together_changes_nothing():
    generator = torch.Generator().manual_seed(2)
    attn, masks = torch.rand(2, 3, 4, 5, generator=generator), torch.rand(2, 3, 12, 15, generator=generator) < 0.3
    first, second = locate(attn, masks), locate(attn.flip(-1), masks.flip(-1))
    torch.testing.assert_close(first.iou, second.iou, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(first.pointing, second.pointing, equal_nan=True, rtol=0, atol=0)


def test_batches_add_up_to_means_by_label():
    """Building: a hit of area 1/4 and a miss of area 1/2. Car: a region without a map. Tree: never there.

    In the miss the map's 4 places lie outside the 8 of the region; 4 of the 12 equally low ones make it up to 8, of
    which 4 · 8/12 lie inside.
    """
    collected = Localization(["building", "car", "tree"])
    for rows, row in ((slice(0, 1), 0), (slice(0, 2), 3)):
        masks, attn = torch.zeros(1, 3, 4, 4, dtype=torch.bool), torch.zeros(1, 3, 4, 4)
        masks[:, 0, rows] = True
        masks[:, 1, 0, 0] = rows == slice(0, 1)
        attn[:, 0, row] = 1.0
        collected.update(attn, masks)
    table = json.loads(json.dumps(collected.compute(), allow_nan=False))
    assert table["building"] == {
        "pointing": 0.5,
        "iou": pytest.approx((1 + (8 / 3) / (16 - 8 / 3)) / 2, abs=ROUNDED),
        "pointing_chance": 0.375,
        "iou_chance": pytest.approx((1 / 7 + 1 / 3) / 2, abs=ROUNDED),
        "mass": 0.5,
        "coverage": pytest.approx(0.25, abs=ROUNDED),
        "n": 2,
        "missing": 0,
    }
    nothing = dict.fromkeys(MEASURES)
    assert table["car"] == {**nothing, "n": 0, "missing": 1}
    assert table["tree"] == {**nothing, "n": 0, "missing": 0}


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 6))
def test_mass_and_coverage_agree_with_sums_over_the_locations(seed, height, width):
    generator = torch.Generator().manual_seed(seed)
    attn = torch.rand(2, 3, height, width, generator=generator, dtype=torch.float64) + 0.01
    masks = torch.rand(2, 3, height, width, generator=generator) < 0.4
    hits = locate(attn, masks)
    for b in range(2):
        for label in range(3):
            values, inside = attn[b, label].flatten().tolist(), masks[b, label].flatten().tolist()
            if any(inside):
                unit = [value / sum(values) for value in values]
                mass = sum(value for value, here in zip(unit, inside, strict=True) if here)
                assert hits.mass[b, label].item() == pytest.approx(mass, abs=ROUNDED)
                coverage = 1 / sum(value**2 for value in unit) / len(unit)
                assert hits.coverage[b, label].item() == pytest.approx(coverage, abs=ROUNDED)
            else:
                assert hits.mass[b, label].isnan()
                assert hits.coverage[b, label].isnan()


def test_a_threshold_changes_the_mass_and_hardly_the_iou():
    mask = region((4, 4), slice(0, 2), slice(0, 4))
    attn = torch.cat([torch.full((1, 1, 2, 4), 1.0), torch.full((1, 1, 2, 4), 0.4)], dim=2)
    sharp = torch.where(attn >= 0.5, attn, 0.0)
    before, after = locate(attn, mask), locate(sharp, mask)
    assert (before.iou.item(), after.iou.item()) == (1.0, 1.0)
    assert (before.mass.item(), after.mass.item()) == (pytest.approx(1 / 1.4, abs=ROUNDED), 1.0)
    assert (before.coverage.item(), after.coverage.item()) == (pytest.approx(1.4**2 / 2 / 1.16, abs=ROUNDED), 0.5)


def test_the_mean_runs_over_the_labels_that_were_judged():
    rows = {"tree": dict.fromkeys(MEASURES, 0.2), "car": dict.fromkeys(MEASURES, 0.6), "ship": dict.fromkeys(MEASURES)}
    table = with_mean(rows)
    assert list(table) == ["mean", "tree", "car", "ship"]
    assert table["mean"] == {name: pytest.approx(0.4) for name in MEASURES}
    assert with_mean({"ship": rows["ship"]})["mean"] == dict.fromkeys(MEASURES)


def test_inputs_are_left_as_they_are():
    attn, masks = torch.rand(1, 2, 3, 3), torch.ones(1, 2, 6, 6, dtype=torch.bool)
    copies = attn.clone(), masks.clone()
    locate(attn, masks)
    assert torch.equal(attn, copies[0])
    assert torch.equal(masks, copies[1])


def test_shapes_and_types_are_checked():
    masks = torch.ones(2, 3, 6, 6, dtype=torch.bool)
    with pytest.raises(TypeError, match="`regions` must be bool"):
        locate(torch.ones(2, 3, 6, 6), masks.float())
    with pytest.raises(ValueError, match=r"\(B, L\) = \(2, 3\); got \(2, 4, 6, 6\)"):
        locate(torch.ones(2, 4, 6, 6), masks)
    with pytest.raises(ValueError, match="must have 1 labels, as the vocabulary; got 3"):
        Localization(["tree"]).update(torch.ones(2, 3, 6, 6), masks)


def masked_pool():
    """One image in which a tree and a ship have a region; the tree is annotated, the ship is not."""
    trees, ships = (slice(0, 20), slice(0, 30)), (slice(24, 48), slice(0, 9))
    masks = torch.cat([region((48, 48), *trees), region((48, 48), *ships)], dim=1)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 3, 48, 48), dtype=np.uint8))
    one = Batch(images, torch.tensor([[1, -1]], dtype=torch.int8), torch.zeros(1).long(), torch.arange(1), masks)
    return SimpleNamespace(
        vocabulary=("tree", "ship"), size=48, masked=np.array([True]), gather=lambda _rows, *, masks: one
    )


def test_regions_of_labels_that_are_not_known_to_be_present_are_not_judged():
    pool, backbone = masked_pool(), create_network("test_resnet", num_labels=2)
    model = NormalizedNet(backbone, Preprocessing((0.5,) * 3, (0.5,) * 3))
    backbone.get_classifier().bias.data += 9
    backbone.get_classifier().weight.data.abs_()
    net = attach(backbone, LabelDecoupledConfig(attention=LLAMConfig()), num_labels=2)
    learned = localize_learned(net, [pool], model.normalise, batch_size=1)
    for table in (localize_predictions(model, [pool], batch_size=1), *learned.values()):
        assert table["tree"]["n"] == 1
        assert (table["ship"]["n"], table["ship"]["missing"]) == (0, 0)


def test_cached_maps_are_judged_as_they_are_used():
    pool, maps = masked_pool(), torch.rand(1, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    style = LabelDecoupledConfig(attention=GradCamConfig(threshold=0.6))
    net = attach(create_network("test_resnet", num_labels=2), style, num_labels=2, num_samples=1)
    net.cams.store(torch.arange(1), maps, torch.ones(1, 2, dtype=torch.bool))
    table = localize_attention(net, SimpleNamespace(train=pool), lambda images: images, batch_size=1)["cached"]
    assert (table["ship"]["n"], table["ship"]["missing"]) == (0, 0)
    stored = (maps / maps.amax(dim=(2, 3), keepdim=True)).half().float()
    used = threshold_maps(resize_maps(stored, (12, 12)), threshold=0.6)  # the first stage has stride 4
    hits = locate(used, pool.gather(None, masks=True).masks)
    assert table["tree"]["mass"] == pytest.approx(hits.mass[0, 0].item(), abs=ROUNDED)
    assert table["tree"]["coverage"] == pytest.approx(hits.coverage[0, 0].item(), abs=12 * 12 * ROUNDED)
