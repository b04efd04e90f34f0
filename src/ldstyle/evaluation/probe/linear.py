"""A linear probe on frozen features: a logistic regression whose weights make class activation maps.

The probe is an attention source that the paper lacks. It sees the sources' training part only, at an image size of its
own, and its maps are there before the first step of training. They are stored in the cache folder below ``probes/``,
under a digest of everything they depend on: images, labels, split, backbone and size. All methods of a split share
them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ldstyle.data.loading.pool import Pool
from ldstyle.evaluation.probe.features import FrozenBackbone, PoolFeatures, waiting
from ldstyle.files import replace_file
from ldstyle.functional import class_activation_maps
from ldstyle.nn.backbones.activation_maps import predicted
from ldstyle.progress import Display
from ldstyle.seeding import derive_seed

FORMAT = 1
"""Version of the fit and of the file; a change of either makes new probes."""

STRENGTHS = (1.0, 0.1, 0.01, 0.001)
"""L2 penalties among which a held-out fifth of the training samples chooses by its cross-entropy."""

HELD_OUT = 5
_READ = 64  # maps read at a time
_STEPS = 200
_log = logging.getLogger(__name__)


class LinearProbe(NamedTuple):
    """A multi-label logistic regression on pooled features.

    Attributes:
        weight: (L, C), for features as they are: the standardisation of the fit is folded in.
        bias: (L,).
    """

    weight: Tensor
    bias: Tensor

    def maps(self, feats: Tensor) -> Tensor:
        """Return raw class activation maps Σ_c W_lc F_c of feature maps (B, C, h, w), (B, L, h, w) (Eq. 6)."""
        return class_activation_maps(feats.float(), self.weight)

    def logits(self, feats: Tensor) -> Tensor:
        """Return the logits of feature maps: the mean of the raw map plus the bias, (B, L)."""
        return self.maps(feats).mean(dim=(2, 3)) + self.bias


@dataclass(frozen=True, eq=False)
class ProbeMaps:
    """The maps of a probe for the samples of the pool it was fitted on.

    Attributes:
        probe: The probe.
        maps: Raw maps of the samples that are no copies, (M, L, h, w) float16.
        keep: Where a label is present and the probe finds it, (M, L) bool.
        entry: Row of ``maps`` that belongs to each sample of the pool, (N,) int64. A photometric copy has the
            original's, with which it is aligned.
    """

    probe: LinearProbe
    maps: Tensor
    keep: Tensor
    entry: NDArray[np.int64]


def probe_maps(
    pool: Pool,
    backbone: FrozenBackbone,
    cache_dir: Path,
    *,
    display: Display | None = None,
    stop: Callable[[], bool] | None = None,
) -> ProbeMaps:
    """Fit a probe on a pool and compute its maps there, or load both from the cache folder.

    Several processes may call this at once: one computes, the others wait and load.

    Args:
        pool: Training samples at the backbone's image size.
        backbone: The frozen network.
        cache_dir: Folder of the caches.
        display: Shows the work.
        stop: Asked now and then whether to stop.

    Raises:
        Interrupted: ``stop`` requested it; the features computed so far are kept.
    """
    display = display or Display()
    originals = np.flatnonzero(pool.original == np.arange(len(pool)))
    digest = _digest(pool, originals, backbone)
    path = cache_dir / "probes" / f"{digest}.safetensors"
    shape = (len(originals), len(pool.vocabulary))
    with waiting(path.with_name(f".{digest}.lock"), display, "the same probe", stop):
        stored = _load(path, shape)
        if stored is None:
            features = PoolFeatures(pool, backbone, cache_dir)
            features.compute(originals, display=display, stop=stop)
            _save(path, _fitted(pool, originals, features, display))
            stored = _load(path, shape)
            assert stored is not None
    entry = np.searchsorted(originals, pool.original)
    return ProbeMaps(LinearProbe(stored["weight"], stored["bias"]), stored["maps"], stored["keep"], entry)


def fit_probe(feats: Tensor, labels: Tensor) -> LinearProbe:
    """Fit one logistic regression per label on standardised features, by L-BFGS in double precision.

    The L2 penalty, one for all labels, is that of :data:`STRENGTHS` with the lowest cross-entropy on a fifth of the
    samples that is left out of the fit; the fit is then repeated on all samples. Nothing random is involved but the
    fixed choice of that fifth.

    Args:
        feats: Pooled features, (N, C).
        labels: 1 present, 0 absent, -1 unknown, which is left out, (N, L). A label that is only ever present, or only
            ever absent, has zero weights.

    Returns:
        The probe, in single precision.
    """
    feats, labels = feats.double(), labels.to(feats.device)
    mean, std = feats.mean(dim=0), feats.std(dim=0, correction=0)
    std = torch.where(std > 1e-6 * std.amax(), std, torch.inf)  # a constant channel has no weight
    inputs = (feats - mean) / std
    best = STRENGTHS[0]
    generator = torch.Generator().manual_seed(derive_seed("probe", "held out"))
    order = torch.randperm(len(feats), generator=generator)
    held, rest = order[: len(feats) // HELD_OUT], order[len(feats) // HELD_OUT :]
    if len(held):
        losses = {}
        for strength in STRENGTHS:
            weight, bias = _fit(inputs[rest], labels[rest], strength)
            losses[strength] = _cross_entropy(inputs[held] @ weight.T + bias, labels[held]).sum().item()
        best = min(losses, key=losses.__getitem__)
    weight, bias = _fit(inputs, labels, best)
    weight = weight / std
    return LinearProbe(weight.float(), (bias - weight @ mean).float())


def _fit(inputs: Tensor, labels: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Minimise the mean cross-entropy of each label plus strength / 2 · ‖w‖²; the bias is free."""
    positive, known = (labels == 1).sum(dim=0), (labels >= 0).sum(dim=0)
    both = (positive > 0) & (positive < known)
    # Where only one kind is known the best bias would be infinite; these labels keep the start.
    fitted = torch.where(both, labels, -1)
    weight = inputs.new_zeros(labels.shape[1], inputs.shape[1], requires_grad=True)
    bias = ((positive + 0.5) / (known - positive + 0.5)).to(inputs).log().requires_grad_()
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=_STEPS, tolerance_grad=1e-7, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = _cross_entropy(inputs @ weight.T + bias, fitted).sum() + strength / 2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)
    return weight.detach(), bias.detach()


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of each label over its known samples, (L,); 0 without any."""
    known = labels >= 0
    target = labels.clamp(min=0).to(logits)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return torch.where(known, losses, 0.0).sum(dim=0) / known.sum(dim=0).clamp(min=1)


def _fitted(pool: Pool, samples: NDArray[np.int64], features: PoolFeatures, display: Display) -> dict[str, Tensor]:
    """Fit a probe on the stored features of some samples and return it with its maps."""
    labels = torch.from_numpy(pool.labels[samples])
    probe = fit_probe(torch.cat([feats.float().mean(dim=(2, 3)) for feats in _read(features, samples)]), labels)
    maps, logits = [], []
    for feats in _read(features, samples):
        maps.append(probe.maps(feats).half())
        logits.append(probe.logits(feats))
    keep = predicted(torch.cat(logits), labels == 1)
    display.say(f"Fitted a probe on {len(samples)} images; it finds {_rate(keep, labels == 1)} of their labels.")
    return {"weight": probe.weight, "bias": probe.bias, "maps": torch.cat(maps), "keep": keep}


def _read(features: PoolFeatures, samples: NDArray[np.int64]) -> Iterator[Tensor]:
    for start in range(0, len(samples), _READ):
        yield features.read(samples[start : start + _READ])


def _rate(keep: Tensor, present: Tensor) -> str:
    return f"{100 * keep.sum().item() / max(1, int(present.sum())):.0f} %"


def _digest(pool: Pool, samples: NDArray[np.int64], backbone: FrozenBackbone) -> str:
    rules = [FORMAT, backbone.digest, pool.size, list(pool.vocabulary), list(pool.digests.items()), STRENGTHS]
    state = hashlib.blake2b(json.dumps(rules).encode(), digest_size=16)
    for values in (pool.domain[samples], pool.rows[samples], pool.labels[samples]):
        state.update(np.ascontiguousarray(values).tobytes())
    return state.hexdigest()


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    content = save({name: value.contiguous() for name, value in tensors.items()})
    replace_file(path, lambda file: file.write(content))


def _load(path: Path, shape: tuple[int, int]) -> dict[str, Tensor] | None:
    """Return the stored probe; ``None`` if it is missing or damaged."""
    if not path.is_file():
        return None
    try:
        stored = load_file(path)
        if {"weight", "bias", "maps", "keep"} <= stored.keys() and stored["maps"].shape[:2] == shape:
            return stored
        reason = "it holds other tensors"
    except (SafetensorError, OSError) as error:
        reason = str(error)
    _log.warning("The probe '%s' is damaged and will be fitted again: %s.", path, reason)
    return None
