"""The baselines' equations in float64, value by value."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np


def mix_samples(samples, partner, lam):
    out = np.zeros(samples.shape)
    for i in range(len(samples)):
        out[i] = lam[i] * samples[i] + (1 - lam[i]) * samples[partner[i]]
    return out


def mix_amplitudes(images, partner, lam):
    """The full spectrum of each channel, amplitude and phase apart."""
    out = np.zeros(images.shape)
    for i, c in np.ndindex(images.shape[:2]):
        own, other = np.fft.fft2(images[i, c]), np.fft.fft2(images[partner[i], c])
        amplitude = lam[i] * np.abs(own) + (1 - lam[i]) * np.abs(other)
        out[i, c] = np.fft.ifft2(amplitude * np.exp(1j * np.angle(own))).real
    return out


def covariance_distance(pooled, domain):
    channels = pooled.shape[1]
    moments = []
    for number in sorted(set(domain.tolist())):
        rows = [pooled[i] for i in range(len(pooled)) if domain[i] == number]
        if len(rows) < 2:
            continue
        mean = sum(rows) / len(rows)
        covariance = np.zeros((channels, channels))
        for a, b in np.ndindex(covariance.shape):
            covariance[a, b] = sum((row[a] - mean[a]) * (row[b] - mean[b]) for row in rows) / (len(rows) - 1)
        moments.append((mean, covariance))
    distances = []
    for one, other in combinations(moments, 2):
        means = sum((one[0][c] - other[0][c]) ** 2 for c in range(channels)) / channels
        frobenius = sum((one[1][place] - other[1][place]) ** 2 for place in np.ndindex(channels, channels))
        distances.append(means + frobenius / channels**2)
    return sum(distances) / len(distances) if distances else 0.0


def feature_likelihood(feats, frozen, raw_variance, floor=1e-5):
    total = 0.0
    for i, c, h, w in np.ndindex(feats.shape):
        variance = math.log1p(math.exp(raw_variance[c])) + floor
        total += (math.log(variance) + (feats[i, c, h, w] - frozen[i, c, h, w]) ** 2 / variance) / 2
    return total / feats.size


def reweigh_domains(domain_weights, losses, step_size):
    grown = [weight * math.exp(step_size * loss) for weight, loss in zip(domain_weights, losses, strict=True)]
    return np.array([value / sum(grown) for value in grown])


def label_losses(logits, labels, weights, negative_weight, gamma_positive, gamma_negative, margin):
    out = np.zeros(logits.shape)
    for i, k in np.ndindex(logits.shape):
        p = 1 / (1 + math.exp(-logits[i, k]))
        shifted = max(p - margin, 0.0)
        present = weights[k] * (1 - p) ** gamma_positive * -math.log(p)
        absent = negative_weight * shifted**gamma_negative * -math.log(1 - shifted)
        out[i, k] = labels[i, k] * present + (1 - labels[i, k]) * absent
    return out
