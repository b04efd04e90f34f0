"""A memory of recent styles, per label."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ldstyle.types import Gather, Moments


class StyleBank(nn.Module):
    """First-in-first-out memory of M (mean, std, domain) per label, drawn from across domains.

    Domains and fill levels stay on the host, where labels are known anyway, so that neither drawing nor pushing makes
    the device wait. The bank is part of a training checkpoint and never of an exported model.

    Args:
        num_labels: Number of labels L.
        channels: Channels C of the moments.
        size: Entries M per label.
    """

    def __init__(self, num_labels: int, channels: int, *, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"`size` must be at least 1; got {size}.")
        self.num_labels, self.channels, self.size = num_labels, channels, size
        self._domains = np.full((num_labels, size), -1, dtype=np.int64)
        self._next = np.zeros(num_labels, dtype=np.int64)
        self._entries = torch.empty(2, num_labels, size, 0)
        self.gather: Gather | None = None

    def __len__(self) -> int:
        return int((self._domains >= 0).sum())

    def draw(self, present: Tensor, domain: Tensor, choice: Tensor) -> tuple[Moments, Tensor]:
        """Draw an entry of another domain for every present label.

        Args:
            present: Labels to draw for, (B, L) bool, on the host.
            domain: Domain of each sample, (B,), on the host.
            choice: Uniform numbers in [0, 1) that pick the entries, (B, L), on the host.

        Returns:
            Moments (B, L, C) and where an entry was found, (B, L) bool on the host; moments elsewhere are arbitrary.
        """
        found = np.zeros(tuple(present.shape), dtype=bool)
        entry = np.zeros(tuple(present.shape), dtype=np.int64)
        wanted, domains, uniform = present.numpy(), domain.numpy(), choice.numpy()
        for home in np.unique(domains):
            rows = domains == home
            for label in np.flatnonzero(wanted[rows].any(axis=0)):
                stored = self._domains[label]
                candidates = np.flatnonzero((stored >= 0) & (stored != home))
                if len(candidates):
                    chosen = np.minimum((uniform[rows, label] * len(candidates)).astype(np.int64), len(candidates) - 1)
                    entry[rows, label] = candidates[chosen]
                    found[rows, label] = wanted[rows, label]
        if not found.any():
            empty = torch.zeros(*found.shape, self.channels)
            return Moments(empty, empty), torch.from_numpy(found)
        index = torch.from_numpy(entry).to(self._entries.device, non_blocking=True)
        mean, std = self._entries[:, torch.arange(self.num_labels, device=index.device), index]
        return Moments(mean, std), torch.from_numpy(found)

    def offers(self, present: Tensor, domain: Tensor) -> Tensor:
        """Mark the present labels that have an entry of another domain, (B, L) bool on the host; see :meth:`draw`."""
        foreign = (self._domains >= 0) & (self._domains != domain.numpy()[:, None, None])  # (B, L, M)
        return present & torch.from_numpy(foreign.any(axis=2))

    def push(self, moments: Moments, keep: Tensor, domain: Tensor) -> None:
        """Store the styles of a batch; the oldest entries give way.

        With ``gather`` set, those of the global batch are stored, so that every process holds what one would.

        Args:
            moments: Clean moments, (B, L, C); no gradient is kept.
            keep: Which of them to store, (B, L) bool, on the host.
            domain: Domain of each sample, (B,), on the host.
        """
        if self.gather is not None:
            moments = Moments(self.gather(moments.mean), self.gather(moments.std))
            keep, domain = self.gather(keep), self.gather(domain)
        if self._entries.shape[-1] == 0 or self._entries.device != moments.mean.device:
            old, shape = self._entries, (2, self.num_labels, self.size, self.channels)
            self._entries = torch.zeros(shape, device=moments.mean.device)
            if old.shape[-1]:
                self._entries.copy_(old)
        labels, samples = (part.numpy() for part in keep.T.nonzero(as_tuple=True))
        if not len(labels):
            return
        counts = np.bincount(labels, minlength=self.num_labels)
        order = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels]  # position within the label
        recent = order >= (counts - self.size)[labels]
        labels, samples, order = labels[recent], samples[recent], order[recent]
        slots = (self._next[labels] + order) % self.size
        self._domains[labels, slots] = domain.numpy()[samples]
        self._next = (self._next + counts) % self.size
        device = self._entries.device
        at = tuple(torch.from_numpy(part).to(device, non_blocking=True) for part in (labels, slots, samples))
        stored = torch.stack([value.detach()[at[2], at[0]].float() for value in moments])
        self._entries[:, at[0], at[1]] = stored

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return all entries, for resuming."""
        host = {"domains": torch.from_numpy(self._domains.copy()), "next": torch.from_numpy(self._next.copy())}
        return {**host, "entries": self._entries.detach().cpu().clone()}

    def set_extra_state(self, state: Any) -> None:
        """Continue with the entries of a checkpoint."""
        if tuple(state["domains"].shape) != self._domains.shape:
            raise ValueError(
                f"The stored style bank has shape {tuple(state['domains'].shape)} (labels, size); this one has "
                f"{self._domains.shape}. Resume with the settings the run was started with."
            )
        self._domains = state["domains"].numpy().copy()
        self._next = state["next"].numpy().copy()
        self._entries = state["entries"].clone().to(self._entries.device)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"num_labels={self.num_labels}, channels={self.channels}, size={self.size}"
