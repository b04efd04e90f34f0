"""The three lines of the API: the same as the long form, and mistakes are answered."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import ldstyle
from ldstyle import functional as LF
from ldstyle.method_files import method_settings, method_style

LABELS, BATCH, SIZE = 3, 6, (32, 32)


def make_backbone():
    torch.manual_seed(0)
    stem, body = (nn.Sequential(nn.Conv2d(c, 8, k, k), nn.ReLU()) for c, k in ((3, 4), (8, 2)))
    return nn.Sequential(stem, body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, LABELS))


def attach(style="ld-efdmix", **options):
    return ldstyle.attach(make_backbone(), style, num_labels=LABELS, image_size=SIZE, **options)


def batch():
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(BATCH, LABELS, generator=generator) < 0.6).float()
    labels[0, 0] = torch.nan
    return torch.randn(BATCH, 3, *SIZE, generator=generator), labels, torch.arange(BATCH) % 2


def test_stages_default_to_the_first_two():
    assert [point.name for point in attach().points] == ["0", "1"]


STYLED = [name for name in ldstyle.methods() if method_settings(name).get("style")]


@pytest.mark.parametrize("name", STYLED)
def test_every_method_is_attached_by_its_name_and_trains(name):
    net = attach(name, num_samples=BATCH).train()
    assert net.style == method_style(name)
    images, labels, domain = batch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cached attention has no maps here
        loss = net.loss(net(images, labels=labels, domain=domain, epoch=99, index=torch.arange(BATCH)), labels)
    loss.backward()
    assert net.backbone[0][0].weight.grad.isfinite().all()
    assert net.backbone[0][0].weight.grad.abs().max() > 0


def test_the_styles_of_methods_are_those_that_training_uses():
    from ldstyle.runs.settings import config_from, merge

    needed = {"out": "x", "data": {"root": "x", "sources": ["x", "y"]}}
    for name in STYLED:
        assert method_style(name) == config_from(merge(method_settings(name), needed)).style


@pytest.mark.parametrize("name", sorted({*ldstyle.methods()} - {*STYLED}))
def test_a_method_without_style_is_refused(name):
    with pytest.raises(ValueError, match=rf"`style`.*'{re.escape(name)}'"):
        attach(name)


def test_an_unknown_method_is_answered_with_a_near_one():
    with pytest.raises(ValueError, match=r"'ld-efdmx'.*'ld-efdmix'"):
        attach("ld-efdmx")


def test_labels_and_loss_equal_a_context_and_the_objective():
    images, labels, domain = batch()
    short = attach().train()
    output = short(images, labels=labels, domain=domain, epoch=9)
    long = attach().train()
    context = ldstyle.StyleContext(labels == 1, domain, epoch=9)
    wanted = long(images, context)
    assert torch.equal(output.logits, wanted.logits)
    attention = short.style.attention
    loss = LF.objective(
        wanted,
        labels == 1,
        diversity_weight=attention.diversity_weight,
        grounding_weight=attention.grounding_weight,
        known=~labels.isnan(),
    )
    assert torch.equal(short.loss(output, labels), loss)


def test_an_unknown_label_takes_no_part_in_the_loss():
    images, labels, domain = batch()
    net = attach("efdmix").train()
    output = net(images, labels=labels, domain=domain, epoch=1)
    moved = output.logits.detach().clone()
    moved[0, 0] += 5
    assert torch.equal(net.loss(output, labels), net.loss(replace(output, logits=moved), labels))


@pytest.mark.parametrize("given", [[0, 1, 0, 1, 0, 1], None])
def test_a_domain_that_is_no_tensor_is_answered(given):
    images, labels, _ = batch()
    with pytest.raises((TypeError, ValueError), match="`domain` must be"):
        attach().train()(images, labels=labels, domain=given)


def test_labels_that_are_no_tensor_are_answered():
    images, labels, domain = batch()
    with pytest.raises(TypeError, match=r"`labels` must be a tensor.*got list"):
        attach().train()(images, labels=labels.tolist(), domain=domain)


def test_output_of_eval_mode_is_no_ground_for_a_loss():
    images, labels, domain = batch()
    net = attach().eval()
    for output in (net(images), net(images, labels=labels, domain=domain)):
        with pytest.raises(TypeError, match=r"`output` must be.*training mode.*net\.train"):
            net.loss(output, labels)


def test_training_without_labels_is_answered():
    with pytest.raises(ValueError, match="`labels` and `domain` must be given"):
        attach().train()(batch()[0])


def test_a_batch_of_one_domain_is_warned_of_once():
    images, labels, _ = batch()
    net = attach().train()
    with pytest.warns(UserWarning, match="All 6 samples.*domain 4") as warned:
        net(images, labels=labels, domain=torch.full((BATCH,), 4), epoch=1)
    assert [warning.filename for warning in warned] == [__file__]  # points at the call
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(images, labels=labels, domain=torch.full((BATCH,), 4), epoch=1)
        attach("ld-csu").train()(images, labels=labels, domain=torch.zeros(BATCH, dtype=torch.int64), epoch=1)


def test_a_forgotten_epoch_is_warned_of_once():
    images, labels, domain = batch()
    net = attach().train()
    with pytest.warns(UserWarning, match=r"`epoch` is not given.*warm-up of 5.*epoch=epoch"):
        net(images, labels=labels, domain=domain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(images, labels=labels, domain=domain)
        attach("efdmix").train()(images, labels=labels, domain=domain)  # has no warm-up


def test_names_of_domains_and_other_numbers_of_labels_are_answered():
    images, labels, domain = batch()
    net = attach().train()
    with pytest.raises(TypeError, match=r"`domain` must be a tensor.*names\.index"):
        net(images, labels=labels, domain=["aid"] * BATCH, epoch=1)
    with pytest.raises(ValueError, match=rf"`labels` .*{LABELS}\) to match.*got \({BATCH}, {LABELS - 1}\)"):
        net(images, labels=labels[:, 1:], domain=domain, epoch=1)


def test_cached_attention_that_was_never_refreshed_is_warned_of():
    images, labels, domain = batch()
    net = attach("ld-efdmix-gc", num_samples=BATCH).train()
    index = torch.arange(BATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(images, labels=labels, domain=domain, epoch=1, index=index)
    with pytest.warns(UserWarning, match=r"no maps in epoch 6.*net\.refresh"):
        net(images, labels=labels, domain=domain, epoch=6, index=index)
    refreshed = attach("ld-efdmix-gc", num_samples=BATCH).train()
    refreshed.refresh([(images, labels == 1, index)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refreshed(images, labels=labels, domain=domain, epoch=6, index=index)


def test_cached_attention_asks_for_sample_numbers():
    images, labels, domain = batch()
    with pytest.raises(ValueError, match=r"`index`.*got None.*ldstyle\.data\.Indexed"):
        attach("ld-efdmix-gc", num_samples=BATCH).train()(images, labels=labels, domain=domain, epoch=1)


def test_indexed_adds_the_number_of_a_sample():
    dataset = ldstyle.data.Indexed([("a", 1), ("b", 0)])
    assert [dataset[i] for i in range(len(dataset))] == [("a", 1, 0), ("b", 0, 1)]
    assert dataset[-1] == ("b", 0, 1)
    with pytest.raises(TypeError, match=r"`dataset`.*got int"):
        ldstyle.data.Indexed([3])[0]


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert ldstyle.__version__ == version("ldstyle")
