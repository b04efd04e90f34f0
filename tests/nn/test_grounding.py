"""Grounded attention: a loss of its own teaches it where labels are, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ldstyle import functional as LF
from ldstyle.config import LLAMConfig
from ldstyle.nn.llam import LLAM

from .nets import label_decoupled, make_context, make_images, seeded, styled

PLAIN = label_decoupled("mixstyle", "llam")
GROUNDED = replace(PLAIN, attention=LLAMConfig(grounding_weight=1.0))


def planted(seed: int):
    """Maps with a bright patch of a label's own channel where the label is, and the patches, (B, L, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    feats = 0.1 * torch.randn(32, 8, 6, 6, generator=generator)
    present = torch.rand(32, 2, generator=generator) < 0.5
    where = torch.zeros(32, 2, 6, 6, dtype=torch.bool)
    corner = torch.randint(0, 5, (32, 2, 2), generator=generator)
    for sample, label in present.nonzero().tolist():
        top, left = corner[sample, label]
        where[sample, label, top : top + 2, left : left + 2] = True
        feats[sample, label] += 2.0 * where[sample, label]
    return feats, present, where


def test_it_finds_what_tells_the_labels_apart():
    llam = seeded(lambda: LLAM(8, 2, temperature=1.0, grounded=True))
    optimizer = torch.optim.Adam(llam.parameters(), lr=0.03)

    def mass_on_label():
        feats, present, where = planted(99)
        attn = llam(feats, present).detach()
        return float((attn * where).sum() / present.sum())

    before = mass_on_label()
    for step in range(150):
        feats, present, _ = planted(step)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(llam.evidence(feats), present.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert before < 0.3  # the patches are a ninth of the map
    assert mass_on_label() > 0.8


def test_only_attention_learns_from_the_evidence():
    net = styled(GROUNDED)
    images, context = make_images(6), make_context(6)
    output = net(images, context)
    assert output.evidence.shape == (len(net.points), 6, net.num_labels)
    output.evidence.square().sum().backward()
    touched = {name for name, parameter in net.named_parameters() if parameter.grad is not None}
    assert touched
    assert all("llam" in name for name in touched)
    assert any("classify" in name for name in touched)


def test_switched_off_it_is_not_there():
    net = styled(PLAIN)
    assert not [key for key in net.state_dict() if "classify" in key]
    output = net(make_images(6), make_context(6))
    assert output.evidence is None
    present = make_context(6).present
    plain = LF.objective(output, present, diversity_weight=0.1)
    assert LF.objective(output, present, diversity_weight=0.1, grounding_weight=1.0) == plain


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="grounding_weight must not be negative"):
        LLAMConfig(grounding_weight=-1)
