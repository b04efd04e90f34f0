"""Bad input is answered with the argument's name, its rule and the value given."""

from __future__ import annotations

import pytest
import torch
from tests.functional.cases import calls, make_case

from ldstyle import functional as LF
from ldstyle.types import Moments

FLOAT = torch.zeros(5, 3)
BAD = [
    (
        "unit_mass",
        {"attn": torch.ones(5, 3, 42)},
        ValueError,
        r"`attn` must be a floating-point tensor of shape",
    ),
    ("unit_mass", {"attn": torch.ones(5, 3, 6, 7).long()}, ValueError, r"`attn` must be .*; got torch.int64 of shape"),
    ("unit_mass", {"present": FLOAT}, TypeError, r"`present` must be bool; got torch.float32. Use labels == 1"),
    ("unit_mass", {"present": FLOAT[:4] > 0}, ValueError, r"`present` must have shape .* = \(5, 3\); got \(4, 3\)"),
    ("label_moments", {"feats": torch.ones(5, 4, 42)}, ValueError, r"`feats` must be .* got .* of shape \(5, 4, 42\)"),
    (
        "label_moments",
        {"attn": torch.ones(5, 3, 3, 7)},
        ValueError,
        r"to match `feats`; got .*\. Use resize_maps",
    ),
    ("label_moments", {"attn": torch.ones(4, 3, 6, 7)}, ValueError, r"= \(5, 3, 6, 7\) to match `feats`; got \(4, 3"),
    ("blend_weights", {"background": -0.1}, ValueError, r"`background` must not be negative; got -0.1"),
    ("recompose", {"background": -1.0}, ValueError, r"`background` must not be negative; got -1.0"),
    ("recompose", {"max_gain": 0.5}, ValueError, r"`max_gain` must be at least 1; got 0.5"),
    ("recompose", {"new": Moments(FLOAT, FLOAT)}, ValueError, r"`new.mean` must have shape \(B, L, C\) = \(5, 3, 4\)"),
    ("spatial_softmax", {"temperature": 0.0}, ValueError, r"`temperature` must be positive; got 0.0"),
    ("attention_cross_entropy", {"temperature": 0.0}, ValueError, r"`temperature` must be positive; got 0.0"),
    ("pooled_logits", {"temperature": -1.0}, ValueError, r"`temperature` must be positive; got -1.0"),
    ("pooled_logits", {"temperature": float("nan")}, ValueError, r"`temperature` must be positive; got nan"),
    ("blend_weights", {"background": float("nan")}, ValueError, r"`background` must not be negative; got nan"),
    ("recompose", {"max_gain": float("nan")}, ValueError, r"`max_gain` must be at least 1; got nan"),
    ("match_partners", {"choice": "most_shared"}, ValueError, r"`choice` must be .*; got 'most_shared'"),
    ("spatial_softmax", {"logits": FLOAT}, ValueError, r"`logits` must be .* got torch.float32 of shape \(5, 3\)"),
    ("attention_diversity", {"present": FLOAT}, TypeError, r"`present` must be bool"),
    (
        "class_activation_maps",
        {"head_weight": FLOAT},
        ValueError,
        r"`head_weight` must have shape .* C = 4 .* got \(5,",
    ),
    ("flip_maps", {"flips": torch.zeros(5, 2)}, TypeError, r"`flips` must be bool \(horizontal, vertical\)"),
    ("flip_maps", {"flips": torch.zeros(5, 3) > 0}, ValueError, r"`flips` must have shape \(B, 2\) = \(5, 2\)"),
    ("resize_maps", {"attn": FLOAT}, ValueError, r"`attn` must be a floating-point tensor"),
    ("match_partners", {"present": FLOAT}, TypeError, r"`present` must be bool"),
    ("match_partners", {"domain": torch.zeros(4)}, ValueError, r"`domain` must have shape \(B,\) = \(5,\); got \(4,\)"),
    ("match_partners", {"priority": FLOAT}, ValueError, r"`priority` must have shape \(B,\) = \(5,\)"),
    ("match_partners", {"original": FLOAT}, ValueError, r"`original` must have shape \(B,\) = \(5,\)"),
    ("effective_lambda", {"lam": FLOAT[:, :2]}, ValueError, r"`lam` must have shape \(B, L\) = \(5, 3\); got \(5, 2\)"),
    (
        "effective_lambda",
        {"partner": torch.zeros(5)},
        TypeError,
        r"`partner` must be int64; got torch.float32. Use",
    ),
    ("mix_moments", {"lam": FLOAT[:2]}, ValueError, r"`lam` must have shape \(B, L\) = \(5, 3\)"),
    ("mix_moments", {"other": Moments(FLOAT, FLOAT)}, ValueError, r"`other.mean` must have shape \(B, L, C\)"),
    ("perturb_moments", {"noise": FLOAT}, ValueError, r"`noise` must have shape \(B, L, C\) = \(5, 3, 4\)"),
    ("perturb_moments", {"common": FLOAT[0]}, ValueError, r"`common` must have shape \(B, L\) = \(5, 3\)"),
    ("mix_topk_values", {"top_ratio": 0.0}, ValueError, r"`top_ratio` must be in \(0, 1\]; got 0.0"),
    ("mix_topk_values", {"top_ratio": 1.1}, ValueError, r"`top_ratio` must be in \(0, 1\]; got 1.1"),
    ("mix_topk_values", {"lam": FLOAT[0]}, ValueError, r"`lam` must have shape \(B, L\) = \(5, 3\)"),
    ("mix_topk_values", {"partner": torch.zeros(5).int()}, TypeError, r"`partner` must be int64; got torch.int32"),
    ("mix_topk_values", {"whole_map": FLOAT[0] > 0}, ValueError, r"`whole_map` must have shape \(B, L\) = \(5, 3\)"),
    ("mix_topk_values", {"ranking": FLOAT}, ValueError, r"`ranking` must have shape that of `attn` = \(5, 3, 6, 7\)"),
    ("mix_topk_values", {"background": -1.0}, ValueError, r"`background` must not be negative; got -1.0"),
    ("mixstyle", {"lam": FLOAT}, ValueError, r"`lam` must have shape \(B,\) = \(5,\); got \(5, 3\)"),
    ("mixstyle", {"partner": torch.zeros(4).long()}, ValueError, r"`partner` must have shape \(B,\) = \(5,\)"),
    ("efdmix", {"lam": FLOAT}, ValueError, r"`lam` must have shape \(B,\) = \(5,\); got \(5, 3\)"),
    ("efdmix", {"partner": torch.zeros(5)}, TypeError, r"`partner` must be int64"),
    ("csu", {"factor": FLOAT}, ValueError, r"`factor` must have shape \(B,\) = \(5,\)"),
    ("csu", {"noise_std": FLOAT}, ValueError, r"`noise_std` must have shape \(B, C\) = \(5, 4\); got \(5, 3\)"),
    ("dsu", {"noise_mean": FLOAT}, ValueError, r"`noise_mean` must have shape \(B, C\) = \(5, 4\); got \(5, 3\)"),
    ("dsu", {"feats": FLOAT}, ValueError, r"`feats` must be a floating-point map of shape \(B, C, H, W\)"),
    ("blend_pathways", {"global_": FLOAT}, ValueError, r"`global_` must have shape that of `local` = \(5, 4, 6, 7\)"),
    ("blend_pathways", {"weight": FLOAT}, ValueError, r"`weight` must have shape \(B,\) = \(5,\); got \(5, 3\)"),
    ("warmup_weight", {"epoch": 0}, ValueError, r"`epoch` must count from 1; got 0"),
    ("warmup_weight", {"warmup_epochs": -1}, ValueError, r"`warmup_epochs` must not be negative; got -1"),
    ("objective", {"present": FLOAT}, TypeError, r"`present` must be bool"),
    ("objective", {"known": FLOAT[0] > 0}, ValueError, r"`known` must have shape \(B, L\) = \(5, 3\)"),
]


@pytest.mark.parametrize(
    ("name", "change", "error", "message"), BAD, ids=[f"{name}-{next(iter(change))}" for name, change, _, _ in BAD]
)
def test_bad_input_is_named(name, change, error, message):
    with pytest.raises(error, match=message):
        getattr(LF, name)(**{**calls(make_case(0))[name], **change})
