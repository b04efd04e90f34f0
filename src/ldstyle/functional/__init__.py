"""The mathematics: pure functions, tensors in and tensors out; random draws are arguments."""

from ldstyle.functional.activation import class_activation_maps
from ldstyle.functional.attention import attention_diversity, flip_maps, resize_maps, spatial_softmax, unit_mass
from ldstyle.functional.decomposition import blend_weights, label_moments, recompose
from ldstyle.functional.global_styles import csu, dsu, efdmix, mixstyle
from ldstyle.functional.matching import mix_topk_values
from ldstyle.functional.operators import mix_moments, perturb_moments
from ldstyle.functional.pairing import effective_lambda, match_partners
from ldstyle.functional.training import blend_pathways, objective, warmup_weight

__all__ = [
    "attention_diversity",
    "blend_pathways",
    "blend_weights",
    "class_activation_maps",
    "csu",
    "dsu",
    "efdmix",
    "effective_lambda",
    "flip_maps",
    "label_moments",
    "match_partners",
    "mix_moments",
    "mix_topk_values",
    "mixstyle",
    "objective",
    "perturb_moments",
    "recompose",
    "resize_maps",
    "spatial_softmax",
    "unit_mass",
    "warmup_weight",
]
