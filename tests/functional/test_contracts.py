"""What every function promises: pure, silent on the global random streams, at home in every precision and layout."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
import torch
from tests.functional import oracles
from tests.functional.cases import OPERATORS, ROUNDING, arrays, augment, calls, effective, make_case
from tests.tolerance import bound

from ldstyle import functional as LF
from ldstyle.types import Moments, StyledOutput

NAMES = sorted(LF.__all__)
RESTYLERS = ("blend_pathways", "csu", "dsu", "efdmix", "mix_topk_values", "mixstyle", "recompose")


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def widened(value):
    """Return arguments with every tensor of floats in double precision, of the same values."""
    if isinstance(value, dict):
        return {key: widened(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, StyledOutput):
        return StyledOutput(value.logits.double(), value.diversity.double())
    return type(value)(*map(widened, value)) if isinstance(value, Moments) else value


def single(wanted):
    """Bound on the error of single precision: 1000 operations on values of the result's size and at least 1."""
    return bound(1000, scale=max(1.0, wanted.abs().max().item()), dtype=torch.float32)


def lowered_once(wanted):
    """Bound on the error of a result that is computed in single precision and rounded to bfloat16."""
    return bound(1, scale=wanted.abs().max().item(), dtype=torch.bfloat16) + single(wanted)


def global_streams():
    legacy = np.random.get_state()  # noqa: NPY002 - the very stream that must not move
    return random.getstate(), legacy[1].tolist(), legacy[2], torch.get_rng_state().tolist()


def test_every_public_function_has_an_example_call():
    assert sorted(calls(make_case(0))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_global_random_streams_stay_untouched(name):
    arguments = calls(make_case(1, relu=True))[name]
    inputs = [tensor for value in arguments.values() for tensor in tensors_in(value)]
    before = [(tensor.clone(), tensor._version) for tensor in inputs]
    streams = global_streams()
    first, second = (getattr(LF, name)(**arguments) for _ in range(2))
    for tensor, (copy, version) in zip(inputs, before, strict=True):
        assert torch.equal(tensor, copy)
        assert tensor._version == version
    assert global_streams() == streams
    for one, other in zip(tensors_in(first), tensors_in(second), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_finite_for_every_edge_size(name):
    edges = ({"batch": 1}, {"labels": 1}, {"channels": 1}, {"size": (1, 1)}, {"density": 0.0}, {"size": (1, 9)})
    for number, edge in enumerate(edges):
        result = getattr(LF, name)(**calls(make_case(number, **edge))[name])
        assert all(tensor.isfinite().all() for tensor in tensors_in(result))


@pytest.mark.parametrize("name", sorted({*NAMES} - {"match_partners", "warmup_weight"}))
def test_double_precision_stays_double(name):
    result = getattr(LF, name)(**calls(make_case(2, dtype=torch.float64))[name])
    assert {tensor.dtype for tensor in tensors_in(result)} == {torch.float64}


@pytest.mark.parametrize("name", sorted({*NAMES} - {"match_partners", "warmup_weight"}))
def test_the_layout_in_memory_does_not_change_values(name):
    arguments = calls(make_case(2, relu=True, dtype=torch.float64))[name]
    moved = {
        key: value.contiguous(memory_format=torch.channels_last)
        if isinstance(value, torch.Tensor) and value.ndim == 4
        else value
        for key, value in arguments.items()
    }
    function = getattr(LF, name)
    for actual, wanted in zip(tensors_in(function(**moved)), tensors_in(function(**arguments)), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"match_partners", "warmup_weight"}))
def test_single_precision_gives_the_values_of_double_precision(name):
    arguments = calls(make_case(2, relu=True))[name]
    function = getattr(LF, name)
    found, wanted = tensors_in(function(**arguments)), tensors_in(function(**widened(arguments)))
    for actual, expected in zip(found, wanted, strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=single(expected))


@pytest.mark.parametrize("name", RESTYLERS)
def test_a_restyled_map_keeps_precision_and_memory_format(name):
    arguments = calls(make_case(3, batch=4, relu=True))[name]
    for dtype in (torch.float32, torch.bfloat16):
        arguments = {
            key: value.to(dtype).float() if key in ("feats", "local", "global_") else value
            for key, value in arguments.items()
        }
        plain = getattr(LF, name)(**arguments)
        moved = {
            key: value.to(dtype).contiguous(memory_format=torch.channels_last)
            if key in ("feats", "local", "global_")
            else value
            for key, value in arguments.items()
        }
        out = getattr(LF, name)(**moved)
        assert out.dtype == dtype
        assert out.is_contiguous(memory_format=torch.channels_last)
        tolerance = single(plain) if dtype == torch.float32 else lowered_once(plain)
        torch.testing.assert_close(out.float(), plain, rtol=0, atol=tolerance)


def emptied(value, batch):
    """Return arguments without any of their samples."""
    if isinstance(value, Moments):
        return Moments(*(emptied(item, batch) for item in value))
    return value[:0] if isinstance(value, torch.Tensor) and len(value) == batch else value


@pytest.mark.filterwarnings("ignore:var_mean.*degrees of freedom")
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", [*RESTYLERS, "label_moments", "relative_change"])
def test_an_empty_batch_has_an_empty_result(name, plain):
    case = make_case(3)
    arguments = {key: emptied(value, len(case.feats)) for key, value in calls(case)[name].items()}
    with LF.plain_forms() if plain else contextlib.nullcontext():
        found = tensors_in(getattr(LF, name)(**arguments))
    assert [tensor.shape[1:] for tensor in found] == [
        tensor.shape[1:] for tensor in tensors_in(getattr(LF, name)(**calls(case)[name]))
    ]
    assert all(len(tensor) == 0 for tensor in found)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("lowered", [False, True])
def test_operators_agree_under_autocast(operator, lowered):
    case = make_case(4, batch=3, size=(4, 5))
    given = case.but(feats=case.feats.bfloat16()) if lowered else case
    wanted = augment(given.but(feats=given.feats.float()), operator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = augment(given, operator)
    tolerance = lowered_once(wanted) if lowered else 0  # float32 features keep their precision: only layers are lowered
    assert out.dtype == given.feats.dtype
    torch.testing.assert_close(out.float(), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("mean", [1.0, 50.0])
def test_recomposition_rounds_to_half_precision_once(mean):
    feats = (torch.from_numpy(np.random.default_rng(9).normal(size=(3, 4, 6, 7))).float() + mean).bfloat16()
    attn = LF.unit_mass(torch.rand(3, 2, 6, 7) + 0.1, torch.ones(3, 2, dtype=torch.bool))
    old = LF.label_moments(feats, attn)
    new = Moments(old.mean * 0.5, old.std * 3)
    wanted = LF.recompose(feats.float(), attn, old, new, background=0.1)
    assert torch.equal(LF.recompose(feats, attn, old, new, background=0.1), wanted.bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", RESTYLERS)
def test_restyled_maps_and_their_gradient_are_rounded_to_half_precision_once(name, dtype):
    arguments = calls(make_case(3, batch=4, relu=True))[name]
    lowered = {key: value.to(dtype) for key, value in arguments.items() if key in ("feats", "local", "global_")}

    def restyled(precision):
        maps = {key: value.detach().to(precision).requires_grad_() for key, value in lowered.items()}
        out = getattr(LF, name)(**arguments | maps)
        out.backward(next(iter(lowered.values())).cos().to(precision))
        return [out, *(value.grad for value in maps.values())]

    for found, wanted in zip(restyled(dtype), restyled(torch.float32), strict=True):
        assert torch.equal(found, wanted.to(dtype))


@pytest.mark.parametrize("operator", ["mixstyle", "efdmix"])
def test_the_identity_is_bit_exact_in_half_precision_too(operator):
    case = make_case(5)
    case = case.but(feats=case.feats.bfloat16(), lam=torch.ones_like(case.lam))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(augment(case, operator, masked=False), case.feats)


@pytest.mark.parametrize(
    "name", ["attention_diversity", "class_activation_maps", "label_moments", "spatial_softmax", "unit_mass"]
)
def test_statistics_and_maps_are_computed_in_single_precision_under_autocast(name):
    arguments = calls(make_case(6, density=1.0))[name]
    wanted = getattr(LF, name)(**arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = getattr(LF, name)(**arguments)
    for actual, expected in zip(tensors_in(got), tensors_in(wanted), strict=True):
        assert actual.dtype == torch.float32
        assert torch.equal(actual, expected)


def test_draws_of_double_precision_do_not_widen_single_precision_moments():
    case = make_case(7)
    own = Moments(*(torch.rand(5, 3, 4) + 1 for _ in range(2)))
    mixed = LF.mix_moments(own, own, case.lam.double())
    perturbed = LF.perturb_moments(own, case.noise.double(), case.common.double(), strength=0.5)
    assert {value.dtype for value in (*mixed, *perturbed)} == {torch.float32}


@pytest.mark.parametrize("seed", range(4))
def test_small_deviations_on_a_large_mean_keep_their_precision(seed):
    rng = np.random.default_rng(seed)
    feats = torch.from_numpy(rng.normal(1000.0, 1.0, (2, 3, 14, 15)).astype(np.float32))
    attn = LF.unit_mass(torch.from_numpy(rng.random((2, 4, 14, 15)).astype(np.float32)), torch.ones(2, 4) > 0)
    _, wanted = oracles.label_moments(*arrays(feats, attn))
    actual = LF.label_moments(feats, attn).std.numpy()
    # Values near 1000 carry a rounding error of 1000 · 2^-24 each, and deviations are near 1: the mean of 210 of them
    # moves the deviation by at most twice that sum.
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=bound(2 * 210, scale=1004, dtype=torch.float32))
    flat, maps = feats.flatten(2).transpose(1, 2), attn.flatten(2)
    naive = ((maps @ flat.square() - (maps @ flat).square()).clamp(min=0) + 1e-6).sqrt().numpy()
    assert np.abs(naive / wanted - 1).max() > 0.02, "the naive formula would do: this test no longer shows anything"


def test_a_label_without_mass_has_the_channel_mean_and_the_smallest_deviation():
    case = make_case(8, density=0.0)
    moments = LF.label_moments(case.feats, LF.unit_mass(case.attn, case.present))
    wanted = case.feats.mean(dim=(2, 3))[:, None].expand_as(moments.mean)
    torch.testing.assert_close(moments.mean, wanted, rtol=0, atol=bound(42, scale=10, dtype=torch.float32))
    torch.testing.assert_close(
        moments.std, torch.full_like(moments.std, 1e-3), rtol=bound(4, dtype=torch.float32), atol=0
    )


def test_a_perturbed_deviation_never_falls_below_its_bound():
    own = Moments(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3))
    moved = LF.perturb_moments(own, torch.ones(2, 1, 3), torch.ones(2, 1), strength=0.5, eps=0.25)
    assert torch.equal(moved.std, torch.full((2, 1, 3), 0.25))


def test_global_pathways_of_weight_one_and_zero_are_returned_bit_for_bit():
    case = make_case(9)
    other = case.feats.flip(0) * 3
    assert LF.blend_pathways(case.feats, other, 1.0) is case.feats
    assert LF.blend_pathways(case.feats, other, 0.0) is other
    mixed = LF.blend_pathways(case.feats, other, torch.tensor([1.0, 0.0, 1.0, 0.5, 0.0]))
    assert torch.equal(mixed[[0, 2]], case.feats[[0, 2]])
    assert torch.equal(mixed[[1, 4]], other[[1, 4]])


@pytest.mark.parametrize("name", ["csu", "dsu", "efdmix", "mixstyle"])
def test_global_operators_leave_a_lone_sample_as_it_is(name):
    case = make_case(10, batch=1)
    assert torch.equal(getattr(LF, name)(**calls(case)[name]), case.feats)


@pytest.mark.parametrize("name", ["efdmix", "mixstyle"])
def test_global_mixing_by_one_is_the_identity(name):
    case = make_case(11)
    partner = torch.tensor([1, 2, 3, 4, 0])
    assert torch.equal(getattr(LF, name)(case.feats, partner, torch.ones(5)), case.feats)


def test_maps_of_the_wanted_size_are_returned_as_they_are():
    case = make_case(12)
    assert LF.resize_maps(case.attn, (6, 7)) is case.attn


@pytest.mark.parametrize(
    ("epoch", "warmup_epochs", "weight"),
    [
        (1, 5, 0.0),
        (5, 5, 0.0),
        (6, 5, 0.2),
        (9, 5, 0.8),
        (10, 5, 1.0),
        (99, 5, 1.0),
        (1, 0, 1.0),
        (1, 1, 0.0),
        (2, 1, 1.0),
    ],
)
def test_warm_up_is_global_then_rises_linearly(epoch, warmup_epochs, weight):
    assert LF.warmup_weight(epoch, warmup_epochs) == pytest.approx(weight, abs=1e-12)


def test_objective_without_any_known_label_is_the_diversity_alone():
    arguments = calls(make_case(13))["objective"]
    unknown = torch.zeros_like(arguments["known"])
    assert LF.objective(**{**arguments, "known": unknown}) == pytest.approx(0.1 * 0.25)


def test_extra_memory_of_matching_does_not_grow_with_labels():
    """What the backward pass holds on to: at most one map of changes, however many labels there are."""
    held = []
    for labels in (2, 20):
        case = make_case(14, batch=8, labels=labels, channels=16, size=(8, 8), density=1.0)
        attn = LF.unit_mass(case.attn, case.present).requires_grad_()
        out = LF.mix_topk_values(case.feats, attn, case.partner, effective(case), top_ratio=0.34, background=0.1)
        kept = out.grad_fn.kept or [case.feats]
        held.append(sum(tensor.numel() for tensor in kept))
    assert max(held) <= case.feats.numel()


def test_objective_weighs_the_evidence_of_every_insertion_point_alike():
    case = make_case(15)
    known = case.lam < 0.5
    points = torch.stack([case.common, 2 * case.common])
    plain = StyledOutput(case.common, torch.tensor(0.0))
    grounded = StyledOutput(case.common, torch.tensor(0.0), evidence=points)

    def loss(output, **settings):
        return LF.objective(output, case.present, diversity_weight=0.0, known=known, **settings)

    alone = [loss(StyledOutput(logits, torch.tensor(0.0))) for logits in points]
    assert loss(grounded) == loss(plain)
    assert loss(grounded, grounding_weight=0.5) == pytest.approx(loss(plain) + 0.25 * (alone[0] + alone[1]))
