"""The fraction of present labels that the per-label path restyled, as a styled network reports it."""

from __future__ import annotations

import pytest
import torch
from tests.nn.nets import GLOBAL, fill_maps, label_decoupled, make_context, make_images, styled

PRESENT = torch.tensor([[True, True, False], [True, False, True]])


def mixed(net, *, domain=(0, 1), epoch=9, present=PRESENT, original=None) -> float:
    original = None if original is None else torch.tensor(original)
    context = make_context(2, present=present, domain=torch.tensor(domain), epoch=epoch, original=original)
    return float(net(make_images(2), context).diagnostics["labels_mixed"])


@pytest.mark.parametrize("attention", ["llam", "uniform"])
@pytest.mark.parametrize("operator", ["mixstyle", "efdmix"])
def test_labels_that_both_partners_carry_are_mixed(operator, attention):
    net = styled(label_decoupled(operator, attention))
    assert mixed(net) == 2 / 4
    assert mixed(net, present=torch.ones(2, 3, dtype=torch.bool)) == 1
    assert mixed(net, present=torch.zeros(2, 3, dtype=torch.bool)) == 0


def test_nothing_is_mixed_in_one_domain_without_a_shared_label_in_the_warm_up_or_behind_a_shut_gate():
    net = styled(label_decoupled("efdmix", "uniform", warmup_epochs=3))
    assert mixed(net, epoch=4) > 0
    assert mixed(net, epoch=3) == 0
    assert mixed(net, domain=(1, 1)) == 0
    assert mixed(net, present=torch.tensor([[True, False, False], [False, True, True]])) == 0
    assert mixed(styled(label_decoupled("efdmix", "uniform", gate_prob=0.0))) == 0


def test_a_perturbation_needs_no_partner():
    assert mixed(styled(label_decoupled("csu", "uniform")), domain=(1, 1)) == 1


def test_styles_of_the_bank_count():
    net = styled(label_decoupled("mixstyle", "uniform", bank_size=4))
    assert mixed(net, domain=(0, 0)) == 0
    # The bank holds all three labels of domain 0 by now.
    assert mixed(net, domain=(1, 1)) == 1


def test_the_bank_does_not_give_an_image_the_style_of_its_own_copy():
    for original, expected in (((5, 5), 0), ((6, 6), 1)):
        net = styled(label_decoupled("mixstyle", "uniform", bank_size=4))
        mixed(net, domain=(0, 0), original=(5, 5))
        assert mixed(net, domain=(1, 1), original=original) == expected


def test_samples_without_a_cached_map_are_not_counted():
    net = styled(label_decoupled("efdmix", "gradcam"))
    assert mixed(net) == 0
    fill_maps(net, missing=0.0)
    assert mixed(net) == 2 / 4
    fill_maps(net, missing=1.0)
    assert mixed(net) == 0


def test_a_global_style_has_no_such_number():
    output = styled(GLOBAL["efdmix"])(make_images(), make_context())
    assert "labels_mixed" not in output.diagnostics
