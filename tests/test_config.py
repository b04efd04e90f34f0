"""Settings: the selected values by default, and no value that makes no sense."""

from __future__ import annotations

import dataclasses
import math

import pytest

from ldstyle.config import (
    CSUConfig,
    CSULiteConfig,
    DSUConfig,
    EFDMixConfig,
    GlobalConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    LLAMConfig,
    MixStyleConfig,
    UniformConfig,
    background_weight,
)

EVERY = (
    CSUConfig,
    CSULiteConfig,
    DSUConfig,
    EFDMixConfig,
    GlobalConfig,
    GradCamConfig,
    LLAMConfig,
    LabelDecoupledConfig,
    MixStyleConfig,
    UniformConfig,
)

BAD = [
    (MixStyleConfig, {"alpha": 0.0}, r"operator.alpha must be positive; got 0.0"),
    (MixStyleConfig, {"alpha": math.nan}, r"operator.alpha must be positive; got nan"),
    (EFDMixConfig, {"alpha": -1.0}, r"operator.alpha must be positive; got -1.0"),
    (EFDMixConfig, {"top_ratio": 0.0}, r"operator.top_ratio must be in \(0, 1\]; got 0.0"),
    (EFDMixConfig, {"top_ratio": 1.01}, r"operator.top_ratio must be in \(0, 1\]; got 1.01"),
    (CSULiteConfig, {"strength": -0.1}, r"operator.strength must not be negative; got -0.1"),
    (CSUConfig, {"alpha": 0.0}, r"operator.alpha must be positive; got 0.0"),
    (LLAMConfig, {"temperature": 0.0}, r"attention.temperature must be positive; got 0.0"),
    (LLAMConfig, {"diversity_weight": -1.0}, r"attention.diversity_weight must not be negative; got -1.0"),
    (
        GradCamConfig,
        {"refresh": "daily"},
        r"attention.refresh must be one of \('sweep', .*\); got 'daily'",
    ),
    (GradCamConfig, {"refresh_every": 0}, r"attention.refresh_every must be at least 1; got 0"),
    (GradCamConfig, {"map_scale": 0.0}, r"attention.map_scale must be positive; got 0.0"),
    (GradCamConfig, {"map_size": 64, "map_scale": 2.0}, r"map_size 64 and attention.map_scale 2 both .* Leave one"),
    (
        GradCamConfig,
        {"refresh": "online", "map_scale": 2.0},
        r"'online' takes its maps from training .* Set them back .*, or use 'sweep'",
    ),
    (GlobalConfig, {"gate_prob": 1.5}, r"gate_prob must be in \[0, 1\]; got 1.5"),
    (GlobalConfig, {"pairing": "nearest"}, r"pairing must be one of \('random', 'crossdomain'\); got 'nearest'"),
    (LabelDecoupledConfig, {"gate_prob": -0.1}, r"gate_prob must be in \[0, 1\]; got -0.1"),
    (LabelDecoupledConfig, {"warmup_epochs": -1}, r"warmup_epochs must not be negative; got -1"),
    (LabelDecoupledConfig, {"background": -1.0}, r"background must not be negative; got -1.0"),
    (LabelDecoupledConfig, {"background": "loose"}, r"background must be a number or one of \('paper', 'confined'\)"),
    (LabelDecoupledConfig, {"max_gain": 0.9}, r"max_gain must be at least 1; got 0.9"),
    (LabelDecoupledConfig, {"bank_size": -1}, r"bank_size must not be negative; got -1"),
    (LabelDecoupledConfig, {"bank_size": 8}, r"bank_size needs a MixStyleConfig operator.*; got EFDMixConfig. Use 0"),
]


@pytest.mark.parametrize(("config", "changes", "message"), BAD)
def test_a_value_without_sense_is_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize("config", EVERY, ids=lambda config: config.__name__)
def test_settings_are_frozen_and_comparable(config):
    made = config()
    assert made == config()
    assert hash(made) == hash(config())
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError, match=field.name):
            setattr(made, field.name, None)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (EFDMixConfig, {"top_ratio": 1.0}),
        (CSULiteConfig, {"strength": 0.0}),
        (GlobalConfig, {"gate_prob": 0.0}),
        (GlobalConfig, {"gate_prob": 1.0}),
        (LabelDecoupledConfig, {"background": 0.0, "max_gain": 1.0, "warmup_epochs": 0}),
        (LabelDecoupledConfig, {"operator": MixStyleConfig(), "bank_size": 8}),
    ],
)
def test_the_bounds_themselves_are_allowed(config, changes):
    made = config(**changes)
    assert {name: getattr(made, name) for name in changes} == changes


@pytest.mark.parametrize(
    ("background", "share"), [("paper", 56 * 56 * 1e-6), ("confined", 0.1), (0, 0.0), (0.25, 0.25)]
)
def test_backgrounds_are_presets_or_numbers(background, share):
    actual = background_weight(background, 56 * 56)
    assert isinstance(actual, float)
    assert actual == pytest.approx(share)


def test_six_variants_are_three_operators_times_two_attention_sources():
    operators = (MixStyleConfig(), EFDMixConfig(), CSULiteConfig())
    variants = {
        LabelDecoupledConfig(operator=operator, attention=attention)
        for operator in operators
        for attention in (LLAMConfig(), GradCamConfig())
    }
    assert len(variants) == 6


def test_online_maps_need_batches_that_no_module_touched():
    with pytest.raises(ValueError, match="gate_prob must be below 1 with refresh = 'online'"):
        LabelDecoupledConfig(attention=GradCamConfig(refresh="online"), gate_prob=1.0)
