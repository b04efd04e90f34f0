"""Batches to compute on, the three label-decoupled operators on them, and one example call of every public function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tests.tolerance import bound
from torch import Tensor

from ldstyle import functional as LF
from ldstyle.types import Moments, StyledOutput

ROUNDING = bound(1000, scale=1000)
"""Of the functions on these cases in double precision: values and their sums over at most 42 locations and 5 samples
take fewer than 1000 operations, and a division by a deviation, at least 1e-3, enlarges an error by at most 1000."""

OPERATORS = ("mixstyle", "efdmix", "csu")
PAIRED = ("mixstyle", "efdmix")


@dataclass(frozen=True)
class Case:
    """One batch and all draws an operator may need; maps are raw, λ is not masked yet."""

    feats: Tensor
    attn: Tensor
    present: Tensor
    domain: Tensor
    partner: Tensor
    lam: Tensor
    noise: Tensor
    common: Tensor

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)


def make_case(
    seed: int,
    *,
    batch: int = 5,
    labels: int = 3,
    channels: int = 4,
    size: tuple[int, int] = (6, 7),
    density: float = 0.6,
    domains: int = 3,
    relu: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Draw a case; sizes differ from each other by default, so that a swapped dimension cannot pass."""
    rng = np.random.default_rng(seed)
    feats = rng.normal(0.3, 1.0, (batch, channels, *size)) * rng.uniform(0.5, 2.0, (batch, channels, 1, 1))
    present = torch.from_numpy(rng.random((batch, labels)) < density)
    domain = torch.from_numpy(rng.integers(0, domains, batch))
    return Case(
        feats=torch.from_numpy(feats.clip(min=0) if relu else feats).to(dtype),
        attn=torch.from_numpy(rng.uniform(0.05, 1.0, (batch, labels, *size))).to(dtype),
        present=present,
        domain=domain,
        partner=LF.match_partners(present, domain, torch.from_numpy(rng.permutation(batch))),
        lam=torch.from_numpy(rng.uniform(0.0, 1.0, (batch, labels))).to(dtype),
        noise=torch.from_numpy(rng.normal(size=(batch, labels, channels))).to(dtype),
        common=torch.from_numpy(rng.normal(size=(batch, labels))).to(dtype),
    )


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    min_labels: int = 1,
    min_places: int = 1,
    relu: bool | None = None,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Draw batches down to one sample, one label, one channel and one place.

    Bit-exact laws hold in single precision; those that hold up to rounding are tested in double precision.
    """
    size = draw(st.tuples(st.integers(min_places, 5), st.integers(min_places, 6)))
    return make_case(
        draw(st.integers(0, 2**32 - 1)),
        batch=draw(st.integers(1, 5)),
        labels=draw(st.integers(min_labels, 4)),
        channels=draw(st.integers(1, 5)),
        size=size,
        density=draw(st.sampled_from([0.0, 0.5, 1.0])),
        domains=draw(st.integers(1, 4)),
        relu=draw(st.booleans()) if relu is None else relu,
        dtype=dtype,
    )


backgrounds = st.sampled_from([0.0, 1e-4, 0.1, 3.0])
top_ratios = st.sampled_from([1e-6, 0.34, 0.5, 1.0])


def at_partner(moments: Moments, partner: Tensor) -> Moments:
    return Moments(moments.mean[partner], moments.std[partner])


def effective(case: Case) -> Tensor:
    return LF.effective_lambda(case.lam, case.present, case.partner)


def augment(
    case: Case,
    operator: str,
    *,
    background: float = 0.1,
    top_ratio: float = 0.34,
    strength: float = 0.5,
    masked: bool = True,
) -> Tensor:
    """Run one label-decoupled operator from raw maps to the restyled map; ``masked=False`` takes λ as it is."""
    attn = LF.unit_mass(case.attn, case.present)
    lam = effective(case) if masked else case.lam
    if operator == "efdmix":
        return LF.mix_topk_values(case.feats, attn, case.partner, lam, top_ratio=top_ratio, background=background)
    own = LF.label_moments(case.feats, attn)
    if operator == "mixstyle":
        new = LF.mix_moments(own, at_partner(own, case.partner), lam)
    else:
        new = LF.perturb_moments(own, case.noise, case.common, strength=strength)
    return LF.recompose(case.feats, attn, own, new, background=background)


def calls(case: Case) -> dict[str, dict[str, Any]]:
    """Return one set of arguments for every public function of `ldstyle.functional`."""
    attn = LF.unit_mass(case.attn, case.present)
    lam, one = effective(case), case.lam[:, 0]
    own = LF.label_moments(case.feats, attn)
    new = LF.mix_moments(own, at_partner(own, case.partner), lam)
    noise = {"noise_mean": case.noise[:, 0], "noise_std": case.noise[:, 0].flip(0)}
    output = StyledOutput(logits=case.common, diversity=torch.tensor(0.25))
    flips = torch.stack([case.common[:, 0] > 0, case.common[:, 0] < 0.5], dim=1)
    return {
        "attention_cross_entropy": {"logits": case.attn, "target": attn, "keep": case.present, "temperature": 10.0},
        "attention_diversity": {"attn": attn, "present": case.present},
        "blend_pathways": {"local": case.feats, "global_": case.feats.flip(0), "weight": 0.3},
        "blend_weights": {"attn": attn, "background": 0.1},
        "class_activation_maps": {"feats": case.feats, "head_weight": case.noise[0]},
        "covariance_distance": {"pooled": case.noise.flatten(1), "domain": case.domain},
        "csu": {"feats": case.feats, "factor": one, **noise},
        "dsu": {"feats": case.feats, **noise},
        "efdmix": {"feats": case.feats, "partner": case.partner, "lam": one},
        "effective_lambda": {"lam": case.lam, "present": case.present, "partner": case.partner},
        "effective_locations": {"attn": attn},
        "feature_likelihood": {
            "feats": case.feats,
            "frozen": case.feats.flip(0),
            "raw_variance": case.noise[0, 0],
        },
        "flip_maps": {"attn": attn, "flips": flips},
        "label_losses": {
            "logits": case.common,
            "labels": case.lam,
            "positive_weight": case.lam[0],
            "gamma_negative": 4.0,
            "margin": 0.05,
        },
        "label_moments": {"feats": case.feats, "attn": attn},
        "match_partners": {"present": case.present, "domain": case.domain, "priority": case.common[:, 0]},
        "mix_amplitudes": {"images": case.feats, "partner": case.partner, "lam": one},
        "mix_moments": {"own": own, "other": new, "lam": lam},
        "mix_samples": {"samples": case.common, "partner": case.partner, "lam": one},
        "mix_topk_values": {
            "feats": case.feats,
            "attn": attn,
            "partner": case.partner,
            "lam": lam,
            "top_ratio": 0.34,
            "background": 0.1,
        },
        "mixstyle": {"feats": case.feats, "partner": case.partner, "lam": one},
        "objective": {"output": output, "present": case.present, "diversity_weight": 0.1, "known": case.common < 1},
        "perturb_moments": {"own": own, "noise": case.noise, "common": case.common, "strength": 0.5},
        "pooled_logits": {"logits": case.attn, "temperature": 10.0},
        "recompose": {"feats": case.feats, "attn": attn, "old": own, "new": new, "background": 0.1},
        "relative_change": {"before": case.feats, "after": case.feats.flip(0)},
        "reweigh_domains": {
            "domain_weights": torch.full_like(case.noise[0, 0], 0.25),
            "losses": case.noise[0, 0].abs(),
            "step_size": 0.01,
        },
        "resize_maps": {"attn": attn, "size": (3, 11)},
        "spatial_softmax": {"logits": case.attn, "present": case.present, "temperature": 10.0},
        "threshold_maps": {"attn": attn, "threshold": 0.5},
        "unit_mass": {"attn": case.attn, "present": case.present},
        "warmup_weight": {"epoch": 3, "warmup_epochs": 2},
    }


def arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    """Return float tensors as float64 arrays and the others as they are."""
    return tuple(t.double().numpy() if t.is_floating_point() else t.numpy() for t in (t.detach() for t in tensors))
