"""Cross-domain, label-matched pairing (Eqs. 7 and 8)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ldstyle.functional._checks import check_partner, check_present, check_shape


def match_partners(present: Tensor, domain: Tensor, priority: Tensor, *, original: Tensor | None = None) -> Tensor:
    """Pair each sample with one of another domain that shares a label, greedily (Eq. 7).

    Samples choose in order of fewest candidates; among unused candidates the one sharing most labels wins, ties go by
    ``priority``. A candidate is used again only when none is unused. Runs on the host: labels and domains are known
    when a batch is put together.

    Args:
        present: Label presence, (B, L) bool.
        domain: Domain number, (B,) int64.
        priority: Distinct numbers that break ties, the lowest first, (B,).
        original: Number of the image a sample was made from, (B,); samples of one original are never paired.

    Returns:
        Partner of each sample, (B,) int64, on the device of ``present``. A sample without an admissible partner is
        its own partner.
    """
    batch = present.shape[0]
    check_present(present, batch)
    check_shape(domain, (batch,), name="domain", meaning="(B,)")
    check_shape(priority, (batch,), name="priority", meaning="(B,)")
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
    score = np.where(allowed, shared * batch - rank[None, :], -batch)
    candidates = allowed.sum(axis=1)
    partner = np.arange(batch)
    unused = np.ones(batch, dtype=bool)
    for sample in np.lexsort((rank, candidates)):
        if candidates[sample] == 0:
            continue
        free = np.where(unused, score[sample], -batch)
        choice = int(free.argmax())
        if free[choice] == -batch:
            choice = int(score[sample].argmax())
        partner[sample] = choice
        unused[choice] = False
    return torch.from_numpy(partner).to(present.device)


def effective_lambda(lam: Tensor, present: Tensor, partner: Tensor) -> Tensor:
    """Keep the coefficient where both samples carry the label and set it to one elsewhere (Eq. 8).

    λ̃_il = m_il λ_il + (1 − m_il) with m_il = y_il y_jl, and m_il = 0 for a sample that is its own partner.

    Args:
        lam: Coefficients λ, (B, L); they weigh the sample's own statistics.
        present: Label presence, (B, L) bool.
        partner: Partner of each sample, (B,) int64.

    Returns:
        λ̃, (B, L).
    """
    batch = present.shape[0]
    check_present(present, batch)
    check_shape(lam, tuple(present.shape), name="lam", meaning="(B, L)")
    check_partner(partner, batch)
    paired = partner != torch.arange(batch, device=partner.device)
    shared = present & present[partner] & paired[:, None]
    return torch.where(shared, lam, 1.0)
