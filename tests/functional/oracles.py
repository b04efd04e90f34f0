"""Slow and obvious: the equations as float64 loops, written from the paper and docs/deviations.md."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np

EPS = 1e-6


def places(array):
    return list(product(range(array.shape[-2]), range(array.shape[-1])))


def unit_mass(attn, present):
    out = np.zeros(attn.shape)
    for i, k in np.ndindex(present.shape):
        mass = math.fsum(attn[i, k].ravel())
        if present[i, k] and mass > 0:
            out[i, k] = attn[i, k] / mass
    return out


def spatial_softmax(logits, present, temperature):
    out = np.zeros(logits.shape)
    for i, k in np.ndindex(present.shape):
        if present[i, k]:
            z = temperature * (logits[i, k] - logits[i, k].max())
            out[i, k] = np.exp(z) / np.exp(z).sum()
    return out


def attention_diversity(attn, present):
    total = 0.0
    for i in range(len(attn)):
        pairs = list(combinations(np.flatnonzero(present[i]), 2))
        for k, m in pairs:
            a, b = attn[i, k].ravel(), attn[i, m].ravel()
            norms = math.sqrt(a @ a) * math.sqrt(b @ b)
            total += (a @ b / norms if norms else 0.0) / len(pairs)
    return total / len(attn)


def label_moments(feats, attn, eps=EPS):
    mean = np.zeros((attn.shape[0], attn.shape[1], feats.shape[1]))
    std = np.zeros_like(mean)
    for i, k, c in np.ndindex(mean.shape):
        if attn[i, k].sum() == 0:
            mean[i, k, c], std[i, k, c] = feats[i, c].mean(), math.sqrt(eps)
            continue
        mu = sum(attn[i, k, h, w] * feats[i, c, h, w] for h, w in places(feats))
        variance = sum(attn[i, k, h, w] * (feats[i, c, h, w] - mu) ** 2 for h, w in places(feats))
        mean[i, k, c], std[i, k, c] = mu, math.sqrt(variance + eps)
    return mean, std


def blend_weights(attn, background):
    area = attn.shape[2] * attn.shape[3]
    weights, residual = np.zeros(attn.shape), np.zeros((len(attn), 1, *attn.shape[2:]))
    for i in range(len(attn)):
        for h, w in places(attn):
            total = sum(area * attn[i, k, h, w] for k in range(attn.shape[1])) + background
            residual[i, 0, h, w] = background / total if total > 0 else 1.0
            for k in range(attn.shape[1]):
                weights[i, k, h, w] = area * attn[i, k, h, w] / total if total > 0 else 0.0
    return weights, residual


def recompose(feats, attn, old, new, background, max_gain=10.0):
    """Build every label's restyled map, then blend: the form the library avoids."""
    weights, residual = blend_weights(attn, background)
    out = np.zeros(feats.shape)
    for i, c in np.ndindex(feats.shape[:2]):
        out[i, c] = residual[i, 0] * feats[i, c]
        for k in range(attn.shape[1]):
            gain = min(max(new[1][i, k, c] / old[1][i, k, c], 1 / max_gain), max_gain)
            out[i, c] += weights[i, k] * (gain * (feats[i, c] - old[0][i, k, c]) + new[0][i, k, c])
    return out


def mix_moments(own, other, lam):
    return tuple(lam[:, :, None] * a + (1 - lam[:, :, None]) * b for a, b in zip(own, other, strict=True))


def perturb_moments(own, noise, common, strength, eps=EPS):
    mean, std = np.array(own[0]), np.array(own[1])
    for i, k in np.ndindex(common.shape):
        average = own[1][i, k].mean()
        for c in range(mean.shape[2]):
            independent = own[1][i, k, c] * noise[i, k, c]
            mean[i, k, c] += strength * (independent + average * common[i, k])
            std[i, k, c] = max(std[i, k, c] + strength * abs(independent), eps)
    return mean, std


def top_places(attn_map, count):
    """Return the flat places of the largest values, ascending."""
    return sorted(sorted(range(attn_map.size), key=lambda place: -attn_map.flat[place])[:count])


def covered_places(attn_map, count):
    """Return those of the `top_places` that have attention."""
    return [place for place in top_places(attn_map, count) if attn_map.flat[place] > 0]


def top_count(top_ratio, area):
    return max(1, math.floor(Fraction(str(top_ratio)) * area))


def mix_topk_values(feats, attn, partner, lam, top_ratio, background, whole_map=None, ranking=None):
    weights, _ = blend_weights(attn, background)
    ranking = attn if ranking is None else ranking
    area = attn.shape[2] * attn.shape[3]
    out = np.array(feats, dtype=np.float64)
    for i, k in np.ndindex(lam.shape):
        everywhere = whole_map is not None and whole_map[i, k]
        count = area if everywhere else top_count(top_ratio, area)
        mine = covered_places(ranking[i, k], count) if not everywhere else range(area)
        theirs = covered_places(ranking[partner[i], k], count) if not everywhere else range(area)
        for c in range(feats.shape[1]):
            ranked = sorted(mine, key=lambda place: feats[i, c].flat[place])  # stable
            values = sorted(feats[partner[i], c].flat[place] for place in theirs)
            for rank, place in enumerate(ranked if values else ()):
                value = values[math.floor(Fraction(2 * rank + 1, 2 * len(ranked)) * len(values))]
                change = lam[i, k] * feats[i, c].flat[place] + (1 - lam[i, k]) * value - feats[i, c].flat[place]
                out[i, c].flat[place] += weights[i, k].flat[place] * change
    return out


def match_partners(present, domain, priority, original=None):
    batch = len(present)
    original = list(range(batch)) if original is None else original

    def shared(i, j):
        return sum(1 for k in range(present.shape[1]) if present[i, k] and present[j, k])

    candidates = {
        i: [j for j in range(batch) if domain[i] != domain[j] and original[i] != original[j] and shared(i, j)]
        for i in range(batch)
    }
    partner, used = list(range(batch)), set()
    for i in sorted(range(batch), key=lambda i: (len(candidates[i]), priority[i])):
        pool = [j for j in candidates[i] if j not in used] or candidates[i]
        if pool:
            partner[i] = min(pool, key=lambda j: (-shared(i, j), priority[j]))
            used.add(partner[i])
    return np.array(partner)


def effective_lambda(lam, present, partner):
    out = np.ones(lam.shape)
    for i, k in np.ndindex(lam.shape):
        if partner[i] != i and present[i, k] and present[partner[i], k]:
            out[i, k] = lam[i, k]
    return out


def global_moments(feats):
    return feats.mean(axis=(2, 3)), np.sqrt(feats.var(axis=(2, 3)) + EPS)  # (B, C)


def restyle(feats, new_mean, new_std):
    mean, std = global_moments(feats)
    out = np.zeros(feats.shape)
    for i, c in np.ndindex(mean.shape):
        out[i, c] = new_std[i, c] * (feats[i, c] - mean[i, c]) / std[i, c] + new_mean[i, c]
    return out


def mixstyle(feats, partner, lam):
    mean, std = global_moments(feats)
    own = lam[:, None]
    return restyle(feats, own * mean + (1 - own) * mean[partner], own * std + (1 - own) * std[partner])


def efdmix(feats, partner, lam):
    out = np.zeros(feats.shape)
    for i, c in np.ndindex(feats.shape[:2]):
        order = np.argsort(feats[i, c].ravel(), kind="stable")
        theirs = np.sort(feats[partner[i], c].ravel())
        for rank, place in enumerate(order):
            out[i, c].flat[place] = lam[i] * feats[i, c].flat[place] + (1 - lam[i]) * theirs[rank]
    return out


def published_efdmix(feats, partner, lam, slopes):
    """x_i + (1 − λ)(sort(x_j)[rank of x_i] − x_i without gradient), and its gradient by the chain rule."""
    gradient = slopes.copy()
    for i, c in np.ndindex(feats.shape[:2]):
        own = np.argsort(feats[i, c].ravel(), kind="stable")
        theirs = np.argsort(feats[partner[i], c].ravel(), kind="stable")
        for mine, other in zip(own, theirs, strict=True):
            gradient[partner[i], c].flat[other] += (1 - lam[i]) * slopes[i, c].flat[mine]
    return efdmix(feats, partner, lam), gradient


def effective_locations(attn):
    out = np.zeros(attn.shape[:2])
    for i, k in np.ndindex(out.shape):
        square = math.fsum(value**2 for value in attn[i, k].ravel())
        out[i, k] = 1 / square if square > 0 else 0.0
    return out


def threshold_maps(attn, threshold):
    out = np.zeros(attn.shape)
    for i, k in np.ndindex(attn.shape[:2]):
        for h, w in places(attn):
            if attn[i, k, h, w] >= threshold * attn[i, k].max():
                out[i, k, h, w] = attn[i, k, h, w]
    return out


def attention_cross_entropy(logits, target, keep, temperature):
    everywhere = np.ones(keep.shape, dtype=bool)
    maps = spatial_softmax(logits, everywhere, temperature)
    area = max(logits.shape[2] * logits.shape[3], 2)
    found = [-(target[i, k] * np.log(maps[i, k])).sum() / math.log(area) for i, k in np.argwhere(keep)]
    return sum(found) / keep.size


def pooled_logits(logits, temperature):
    out = np.zeros(logits.shape[:2])
    for i, k in np.ndindex(out.shape):
        out[i, k] = math.log(np.exp(temperature * logits[i, k]).mean()) / temperature
    return out


def relative_change(before, after):
    out = np.zeros(len(before))
    for i in range(len(before)):
        spread = sum(((before[i, c] - before[i, c].mean()) ** 2).sum() for c in range(before.shape[1]))
        out[i] = math.sqrt(((after[i] - before[i]) ** 2).sum() / spread) if spread > 0 else 0.0
    return out


def csu_lite(feats, noise, common, strength):
    mean, std = global_moments(feats)
    new = perturb_moments((mean[:, None], std[:, None]), noise[:, None], common[:, None], strength)
    return restyle(feats, new[0][:, 0], new[1][:, 0])


def covariance_root(statistics):
    """Root of the C×C covariance, divided by B, from its own eigenvectors."""
    channels = statistics.shape[1]
    covariance = np.zeros((channels, channels))
    centred = statistics - statistics.mean(axis=0)
    for c, d in np.ndindex(covariance.shape):
        covariance[c, d] = (centred[:, c] * centred[:, d]).sum() / len(statistics)
    values, vectors = np.linalg.eigh(covariance)
    values = np.where(
        values > 1e-10 * values.max(), values, 0
    )  # the root of rounding would be a hundred million times it
    return vectors @ np.diag(np.sqrt(values)) @ vectors.T


def csu(feats, factor, noise_mean, noise_std):
    mean, std = global_moments(feats)
    new_mean = mean + factor[:, None] * (noise_mean @ covariance_root(mean))
    new_std = std + factor[:, None] * (noise_std @ covariance_root(std))
    return restyle(feats, new_mean, new_std)


def dsu(feats, noise_mean, noise_std):
    mean, std = global_moments(feats)
    if len(feats) == 1:
        return feats
    spread = [np.sqrt(value.var(axis=0, ddof=1) + EPS) for value in (mean, std)]
    return restyle(feats, mean + noise_mean * spread[0], std + noise_std * spread[1])


def class_activation_maps(feats, head_weight):
    out = np.zeros((len(feats), len(head_weight), *feats.shape[2:]))
    for i, k in np.ndindex(out.shape[:2]):
        out[i, k] = sum(head_weight[k, c] * feats[i, c] for c in range(feats.shape[1]))
    return out


def resize_maps(attn, size):
    """A triangle filter as wide as the larger of both grids' pixels, with pixel centres at half integers."""
    down, across = (triangles(old, new) for old, new in zip(attn.shape[2:], size, strict=True))
    return np.einsum("yh,xw,blhw->blyx", down, across, attn)


def triangles(old, new):
    scale, weights = old / new, np.zeros((new, old))
    for target, source in np.ndindex(new, old):
        distance = abs((target + 0.5) * scale - (source + 0.5)) / max(scale, 1)
        weights[target, source] = max(0.0, 1 - distance)
    return weights / weights.sum(axis=1, keepdims=True)


def flip_maps(attn, flips):
    out = np.array(attn)
    height, width = attn.shape[2:]
    for i, (h, w) in product(range(len(attn)), places(attn)):
        out[i, :, h, w] = attn[i, :, height - 1 - h if flips[i, 1] else h, width - 1 - w if flips[i, 0] else w]
    return out


def objective(logits, present, diversity, diversity_weight, known=None):
    losses = []
    for i, k in np.ndindex(logits.shape):
        if known is None or known[i, k]:
            probability = 1 / (1 + math.exp(-logits[i, k]))
            losses.append(-math.log(probability if present[i, k] else 1 - probability))
    return sum(losses) / max(len(losses), 1) + diversity_weight * diversity
