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
from ldstyle.functional.baselines import (
    covariance_distance,
    feature_likelihood,
    mix_amplitudes,
    mix_samples,
    reweigh_domains,
)
from ldstyle.functional.decomposition import blend_weights, label_moments, recompose, relative_change
from ldstyle.functional.global_styles import csu, dsu, efdmix, mixstyle
from ldstyle.functional.losses import label_losses
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
    "covariance_distance",
    "csu",
    "dsu",
    "efdmix",
    "effective_lambda",
    "effective_locations",
    "feature_likelihood",
    "flip_maps",
    "label_losses",
    "label_moments",
    "match_partners",
    "mix_amplitudes",
    "mix_moments",
    "mix_samples",
    "mix_topk_values",
    "mixstyle",
    "objective",
    "perturb_moments",
    "pooled_logits",
    "recompose",
    "relative_change",
    "resize_maps",
    "reweigh_domains",
    "spatial_softmax",
    "threshold_maps",
    "unit_mass",
    "warmup_weight",
]
