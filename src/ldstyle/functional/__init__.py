"""The mathematics: pure functions, tensors in and tensors out; random draws are arguments.

Each file is a section of the paper in its plainest form. Where a memory-saving form of the same function exists, it is
the one that runs; `plain_forms` switches to the plain one.
"""

from ldstyle.functional._fast import plain_forms as plain_forms
from ldstyle.functional.attention import (
    attention_cross_entropy,
    attention_diversity,
    class_activation_maps,
    effective_locations,
    flip_maps,
    pooled_logits,
    resize_maps,
    spatial_softmax,
    threshold_maps,
)
from ldstyle.functional.baselines import (
    covariance_distance,
    feature_likelihood,
    mix_amplitudes,
    mix_samples,
    reweigh_domains,
)
from ldstyle.functional.decomposition import (
    blend_weights,
    label_moments,
    recompose,
    relative_change,
    unit_mass,
)
from ldstyle.functional.global_styles import csu, dsu, efdmix, mixstyle
from ldstyle.functional.operators import mix_moments, mix_topk_values, perturb_moments
from ldstyle.functional.pairing import effective_lambda, match_partners
from ldstyle.functional.training import blend_pathways, label_losses, objective, warmup_weight

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
