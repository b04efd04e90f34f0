"""Cross-domain, label-matched pairing (Eqs. 7 and 8)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.functional._checks import check_partner, check_present, check_shape


def match_partners(
    present: Tensor,
    domain: Tensor,
    priority: Tensor,
    *,
    original: Tensor | None = None,
    choice: Literal["most-shared", "rarest"] = "most-shared",
) -> Tensor:
    """Pair each sample with one of another domain that shares a label, greedily (Eq. 7).

    Samples choose in order of fewest candidates; among unused candidates the one sharing most labels wins, or with
    ``choice="rarest"`` first the one that shares the rarest label of the batch. Ties go by ``priority``. A candidate is
    used again only when none is unused. Runs on the host: labels and domains are known when a batch is assembled.

    Args:
        present: Label presence, (B, L) bool.
        domain: Domain number, (B,) int64.
        priority: Distinct numbers that break ties, the lowest first, (B,).
        original: Number of the image a sample was made from, (B,); samples of one original are never paired.
        choice: Candidate that wins, ``most-shared`` or ``rarest``.

    Returns:
        Partner of each sample, (B,) int64, on the device of ``present``. A sample without an admissible partner is
        its own partner.

    Example:
        >>> match_partners(torch.ones(3, 1, dtype=torch.bool), torch.tensor([0, 1, 0]), torch.arange(3))
        tensor([1, 0, 1])
    """
    batch = present.shape[0]
    check_present(present, batch)
    check_shape(domain, (batch,), name="domain", meaning="(B,)")
    check_shape(priority, (batch,), name="priority", meaning="(B,)")
    if choice not in ("most-shared", "rarest"):
        raise ValueError(f"`choice` must be 'most-shared' or 'rarest'; got {choice!r}.")
    labels = present.cpu().numpy().astype(np.int64)
    domains = domain.cpu().numpy()
    rank = np.empty(batch, dtype=np.int64)
    rank[np.argsort(priority.cpu().numpy(), kind="stable")] = np.arange(batch)
    shared = labels @ labels.T  # (B, B)
    allowed = (shared > 0) & (domains[:, None] != domains[None, :])
    if original is not None:
        check_shape(original, (batch,), name="original", meaning="(B,)")
        source = original.cpu().numpy()
        allowed &= source[:, None] != source[None, :]
    # One score orders candidates by shared labels first, then by priority.
    wanted = shared if choice == "most-shared" else shared + (labels.shape[1] + 1) * _rarity(labels)
    score = np.where(allowed, wanted * batch - rank[None, :], -batch)
    candidates = allowed.sum(axis=1)
    partner = np.arange(batch)
    unused = np.ones(batch, dtype=bool)
    for sample in np.lexsort((rank, candidates)):
        if candidates[sample] == 0:
            continue
        free = np.where(unused, score[sample], -batch)
        chosen = int(free.argmax())
        if free[chosen] == -batch:
            chosen = int(score[sample].argmax())
        partner[sample] = chosen
        unused[chosen] = False
    return torch.from_numpy(partner).to(present.device)


def _rarity(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how rare the rarest label is that each pair of samples shares, (B, B): 0 for none, larger is rarer."""
    rarity = np.empty(labels.shape[1], dtype=np.int64)
    rarity[np.argsort(-labels.sum(axis=0), kind="stable")] = np.arange(1, labels.shape[1] + 1)
    own: NDArray[np.int64] = labels * rarity
    shared: NDArray[np.int64] = np.minimum(own[:, None], own[None]).max(axis=-1, initial=0)
    return shared


def effective_lambda(lam: Tensor, present: Tensor, partner: Tensor) -> Tensor:
    """Keep the coefficient where both samples carry the label and set it to one elsewhere (Eq. 8).

    λ̃_il = m_il λ_il + (1 − m_il) with m_il = y_il y_jl, and m_il = 0 for a sample that is its own partner.

    Args:
        lam: Coefficients λ, (B, L); they weigh the sample's own statistics.
        present: Label presence, (B, L) bool.
        partner: Partner of each sample, (B,) int64.

    Returns:
        λ̃, (B, L).

    Example:
        >>> present = torch.tensor([[True, True], [True, False]])
        >>> effective_lambda(torch.full((2, 2), 0.25), present, torch.tensor([1, 0])).tolist()
        [[0.25, 1.0], [0.25, 1.0]]
    """
    batch = present.shape[0]
    check_present(present, batch)
    check_shape(lam, tuple(present.shape), name="lam", meaning="(B, L)")
    check_partner(partner, batch)
    paired = partner != torch.arange(batch, device=partner.device)
    shared = present & present[partner] & paired[:, None]
    return torch.where(shared, lam, 1.0)
