"""Grounded attention: a loss of its own teaches it where labels are, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.nn.nets import IMAGE_SIZE, label_decoupled, make_context, make_images, seeded, styled
from tests.tolerance import bound

from ldstyle import functional as LF
from ldstyle.config import LLAMConfig
from ldstyle.nn import activation_maps, analyse_head
from ldstyle.nn.llam import LLAM

PLAIN = label_decoupled("mixstyle", "llam")


def grounded(grounding: str):
    return replace(PLAIN, attention=LLAMConfig(grounding=grounding))


def confident(net):
    """Labels for which the network predicts what is there, so that its maps may teach."""
    with torch.no_grad():
        net.backbone.get_submodule("head").bias.fill_(1.0)
    return make_context(6)


def features_at(net, name, images):
    found = []
    handle = net.backbone.get_submodule(name).register_forward_hook(lambda _m, _a, output: found.append(output))
    with torch.no_grad():
        net.backbone(images)
    handle.remove()
    return found[0]


def planted(seed: int):
    """Maps with a bright patch of a label's own channel where the label is, and the patches, (B, L, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    feats = 0.1 * torch.randn(32, 32, 6, 6, generator=generator)
    present = torch.rand(32, 2, generator=generator) < 0.5
    where = torch.zeros(32, 2, 6, 6, dtype=torch.bool)
    corner = torch.randint(0, 5, (32, 2, 2), generator=generator)
    for sample, label in present.nonzero().tolist():
        top, left = corner[sample, label]
        where[sample, label, top : top + 2, left : left + 2] = True
        feats[sample, label] += 2.0 * where[sample, label]
    return feats, present, where


@pytest.mark.parametrize(("grounding", "temperature"), [("cam", 1.0), ("lse", 10.0)])
def test_it_finds_what_tells_the_labels_apart(grounding, temperature):
    llam = seeded(lambda: LLAM(32, 2, temperature=temperature, input_norm="none"))
    optimizer = torch.optim.Adam(llam.parameters(), lr=0.03)

    def mass_on_label():
        feats, present, where = planted(99)
        attn = llam(feats, present).detach()
        return float((attn * where).sum() / present.sum())

    before = mass_on_label()
    for step in range(150):
        feats, present, where = planted(step)
        logits = llam.logits(feats)
        if grounding == "lse":
            pooled = LF.pooled_logits(logits, temperature=temperature)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(pooled, present.float())
        else:
            loss = LF.attention_cross_entropy(
                logits, LF.unit_mass(where.float(), present), present, temperature=temperature
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # The patches are a ninth of the map, and their contrast alone draws some attention before training.
    assert mass_on_label() > max(0.8, before + 0.1)


@pytest.mark.parametrize("grounding", ["cam", "lse"])
def test_only_attention_learns_from_it(grounding):
    net = styled(grounded(grounding))
    output = net(make_images(6), confident(net))
    loss = output.grounding if grounding == "cam" else output.evidence.square().sum()
    loss.backward()
    touched = {
        name for name, parameter in net.named_parameters() if parameter.grad is not None and parameter.grad.any()
    }
    assert touched
    assert all("llam" in name for name in touched)
    assert {name.split(".")[1] for name in touched} == {"0", "1"}  # at both insertion points


def test_the_evidence_is_pooled_from_the_attention_logits():
    net = styled(grounded("lse"))
    output = net(make_images(6), make_context(6))
    assert output.grounding is None
    assert output.evidence.shape == (len(net.points), 6, net.num_labels)


@pytest.mark.parametrize("threshold", [0.0, 0.6])
def test_the_target_is_the_class_activation_map_of_the_same_pass(threshold):
    attention = LLAMConfig(grounding="cam", grounding_threshold=threshold)
    net = styled(replace(PLAIN, attention=attention, gate_prob=0.0))
    images, context = make_images(6), confident(net)
    output = net(images, context)
    with torch.no_grad():
        maps, logits = activation_maps(net.backbone, analyse_head(net.backbone, image_size=IMAGE_SIZE), images)
    keep = context.present & (logits.sigmoid() >= 0.5)
    assert keep.any()
    losses = []
    for point, style in zip(net.points, net.styles, strict=True):
        feats = features_at(net, point.name, images)
        logits = style.llam.logits(feats)
        target = LF.threshold_maps(LF.resize_maps(maps.relu(), tuple(logits.shape[2:])), threshold=threshold)
        target = LF.unit_mass(target, keep)
        found = target.sum(dim=(2, 3)) > 0
        losses.append(LF.attention_cross_entropy(logits, target, found, temperature=style.llam.temperature))
    # The same operations, up to the attention logits of whole maps: sums of up to 96 locations and 12 channels.
    tolerance = bound(1000, scale=10, dtype=torch.float32)
    torch.testing.assert_close(output.grounding, torch.stack(losses).mean(), rtol=0, atol=tolerance)


def test_a_wrong_prediction_teaches_nothing():
    net = styled(grounded("cam"))
    with torch.no_grad():
        net.backbone.get_submodule("head").bias.fill_(-1e4)
    assert net(make_images(6), make_context(6)).grounding == 0


def test_without_blend_gradient_the_classification_loss_teaches_attention_by_the_statistics_alone():
    for operator, learns in (("efdmix", False), ("mixstyle", True), ("csu", True)):
        style = replace(label_decoupled(operator, "llam"), attention=LLAMConfig(blend_gradient=False))
        net = styled(style)
        net(make_images(6), replace(make_context(6), epoch=9)).logits.square().sum().backward()
        grads = [p.grad for name, p in net.named_parameters() if "llam" in name and p.grad is not None]
        assert any(grad.any() for grad in grads) == learns


def test_switched_off_it_is_not_there():
    output = styled(PLAIN)(make_images(6), make_context(6))
    assert output.evidence is None
    assert output.grounding is None
    present = make_context(6).present
    plain = LF.objective(output, present, diversity_weight=0.1)
    assert LF.objective(output, present, diversity_weight=0.1, grounding_weight=1.0) == plain


@pytest.mark.parametrize(
    ("setting", "value"),
    [("grounding_weight", -1), ("grounding", "mask"), ("grounding_threshold", 1.0), ("input_norm", "batch")],
)
def test_settings_outside_their_range_are_refused(setting, value):
    with pytest.raises(ValueError, match=f"attention.{setting} must .*{value}"):
        LLAMConfig(**{setting: value})
