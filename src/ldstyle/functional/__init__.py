"""The mathematics: pure functions, tensors in and tensors out; random draws are arguments."""

from ldstyle.functional.activation import class_activation_maps
from ldstyle.functional.attention import (
    attention_cross_entropy,
    attention_diversity,
    effective_locations,
    flip_maps,
    pooled_logits,
    resize_maps,
    spatial_softmax,
    threshold_maps,
    unit_mass,
)
from ldstyle.functional.decomposition import blend_weights, label_moments, recompose, relative_change
from ldstyle.functional.global_styles import csu, dsu, efdmix, mixstyle
from ldstyle.functional.matching import mix_topk_values
from ldstyle.functional.operators import mix_moments, perturb_moments
from ldstyle.functional.pairing import effective_lambda, match_partners
from ldstyle.functional.training import blend_pathways, objective, warmup_weight

__all__ = [
    "attention_cross_entropy",
    "attention_diversity",
    "blend_pathways",
    "blend_weights",
    "class_activation_maps",
    "csu",
    "dsu",
    "efdmix",
    "effective_lambda",
    "effective_locations",
    "flip_maps",
    "label_moments",
    "match_partners",
    "mix_moments",
    "mix_topk_values",
    "mixstyle",
    "objective",
    "perturb_moments",
    "pooled_logits",
    "recompose",
    "relative_change",
    "resize_maps",
    "spatial_softmax",
    "threshold_maps",
    "unit_mass",
    "warmup_weight",
]
