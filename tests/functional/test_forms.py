"""The memory-saving forms equal the plain ones, and what only the plain ones can do is answered clearly."""

from __future__ import annotations

import pytest
import torch
from tests.functional.cases import calls, make_case
from torch.autograd import gradgradcheck

from ldstyle import functional as LF
from ldstyle.types import Moments

CHOSEN = (
    "attention_diversity",
    "efdmix",
    "label_moments",
    "mix_topk_values",
    "recompose",
    "relative_change",
    "spatial_softmax",
)
LEARNING = ("feats", "attn", "logits")
layouts = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])


def prepared(name, seed, layout=torch.contiguous_format, dtype=torch.float64, **sizes):
    """Arguments of a function, with gradients asked for in its maps, and those maps."""
    arguments = dict(calls(make_case(seed, relu=True, dtype=dtype, **sizes))[name])
    leaves = []
    for key, value in arguments.items():
        if key in LEARNING:
            arguments[key] = value.detach().clone(memory_format=layout).requires_grad_()
            leaves.append(arguments[key])
    return arguments, leaves


def results(name, arguments):
    out = getattr(LF, name)(**arguments)
    return list(out) if isinstance(out, Moments) else [out]


def values_and_slopes(name, seed, layout, **sizes):
    arguments, leaves = prepared(name, seed, layout, **sizes)
    outs = results(name, arguments)
    wanted = [out for out in outs if out.requires_grad]
    slopes = torch.autograd.grad(wanted, leaves, [out.detach().cos() for out in wanted]) if wanted else ()
    return [*(out.detach() for out in outs), *slopes]


@pytest.mark.parametrize("sizes", [{}, {"batch": 1}, {"labels": 1}, {"size": (1, 1)}, {"density": 0.0}, {"batch": 17}])
@layouts
@pytest.mark.parametrize("name", CHOSEN)
def test_values_and_gradients_equal_those_of_the_plain_form(name, layout, sizes):
    fast = values_and_slopes(name, 3, layout, **sizes)
    with LF.plain_forms():
        plain = values_and_slopes(name, 3, layout, **sizes)
    assert len(fast) == len(plain)
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("top_ratio", [0.2, 1.0])
def test_both_forms_leave_out_places_without_attention(top_ratio):
    case = make_case(5, dtype=torch.float64, density=1.0)
    attn = LF.unit_mass(case.attn * (case.attn > 0.7), case.present)
    attn[0, 0] = 0  # a region of no place at all
    arguments = (case.feats, attn, case.partner, case.lam)
    fast = LF.mix_topk_values(*arguments, top_ratio=top_ratio, background=0.1)
    with LF.plain_forms():
        plain = LF.mix_topk_values(*arguments, top_ratio=top_ratio, background=0.1)
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-11)
    assert fast.isfinite().all()
    assert not torch.equal(fast, case.feats)


def test_moments_of_a_constant_map_equal_those_of_the_plain_form():
    """The map in training is detached, which is another path than one with a gradient."""

    def run():
        arguments, _ = prepared("label_moments", 4)
        attn = arguments["attn"]
        moments = LF.label_moments(arguments["feats"].detach(), attn)
        (moments.mean.cos().sum() + moments.std.sin().sum()).backward()
        return *moments, attn.grad

    fast = run()
    with LF.plain_forms():
        plain = run()
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_the_memory_saving_form_runs_by_default_and_outside_the_block(monkeypatch):
    arguments, _ = prepared("efdmix", 5)
    with LF.plain_forms():
        assert "MatchWhole" not in type(LF.efdmix(**arguments).grad_fn).__name__
    assert "MatchWhole" in type(LF.efdmix(**arguments).grad_fn).__name__


@pytest.mark.parametrize("name", ["efdmix", "mix_topk_values", "recompose", "spatial_softmax"])
def test_a_second_derivative_is_refused_with_the_way_out(name):
    arguments, leaves = prepared(name, 6)
    out = results(name, arguments)[0]
    with pytest.raises(RuntimeError, match=r"`create_graph` must be False.*plain_forms"):
        torch.autograd.grad(out.square().sum(), leaves, create_graph=True, allow_unused=True)


@pytest.mark.parametrize("name", ["attention_diversity", "label_moments", "mix_topk_values", "recompose"])
def test_plain_forms_have_the_right_second_derivative(name):
    arguments, leaves = prepared(name, 7, batch=3, labels=2, channels=2, size=(2, 3), density=1.0)
    keys = [key for key in arguments if key in LEARNING]
    if name == "mix_topk_values":  # straight-through in the features, which is no derivative
        keys, leaves = ["attn"], [arguments["attn"]]

    def run(*given):
        return tuple(results(name, {**arguments, **dict(zip(keys, given, strict=True))}))

    with LF.plain_forms():
        assert gradgradcheck(run, leaves)


@pytest.mark.parametrize("name", CHOSEN)
def test_compiled_functions_are_whole_graphs_of_the_plain_form(name):
    arguments, _ = prepared(name, 8)
    compiled = torch.compile(getattr(LF, name), backend="eager", fullgraph=True)
    with LF.plain_forms():
        wanted = results(name, arguments)
    out = compiled(**arguments)
    for one, other in zip(list(out) if isinstance(out, Moments) else [out], wanted, strict=True):
        assert torch.equal(one, other)
