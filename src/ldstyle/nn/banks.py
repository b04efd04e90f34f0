"""Memories of a styled network: recent styles per label, and cached attention maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ldstyle.functional import flip_maps, resize_maps, threshold_maps, unit_mass
from ldstyle.types import Gather, Moments


class StyleBank(nn.Module):
    """First-in-first-out memory of M (mean, std, domain, original) per label, drawn from across domains.

    Domains, originals and fill levels stay on the host, where labels are known anyway, so that neither drawing nor
    pushing makes the device wait. The bank is part of a training checkpoint and never of an exported model.

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
        self._originals = self._domains.copy()
        self._next = np.zeros(num_labels, dtype=np.int64)
        self._entries = torch.empty(2, num_labels, size, 0)
        self.gather: Gather | None = None

    def __len__(self) -> int:
        return int((self._domains >= 0).sum())

    def draw(
        self, present: Tensor, domain: Tensor, choice: Tensor, *, original: Tensor | None = None
    ) -> tuple[Moments, Tensor]:
        """Draw an entry of another domain for every present label.

        Args:
            present: Labels to draw for, (B, L) bool, on the host.
            domain: Domain of each sample, (B,), on the host.
            choice: Uniform numbers in [0, 1) that pick the entries, (B, L), on the host.
            original: Number of the image that each sample was made from, (B,), on the host; entries of a copy of the
                same image are not drawn. ``None`` means that every sample is an image of its own.

        Returns:
            Moments (B, L, C) and where an entry was found, (B, L) bool on the host; moments elsewhere are arbitrary.
        """
        found = np.zeros(tuple(present.shape), dtype=bool)
        entry = np.zeros(tuple(present.shape), dtype=np.int64)
        samples, labels, suitable = self._candidates(present, domain, original)
        count = suitable.sum(axis=1)
        # In single precision, so that the numbers pick the same entries whatever the type of the count.
        picked = (choice.numpy()[samples, labels] * count.astype(np.float32)).astype(np.int64)
        picked = np.minimum(picked, count - 1)
        entry[samples, labels] = (suitable.cumsum(axis=1) > picked[:, None]).argmax(axis=1)
        found[samples, labels] = count > 0
        if not found.any():
            empty = torch.zeros(*found.shape, self.channels)
            return Moments(empty, empty), torch.from_numpy(found)
        index = torch.from_numpy(entry).to(self._entries.device, non_blocking=True)
        mean, std = self._entries[:, torch.arange(self.num_labels, device=index.device), index]
        return Moments(mean, std), torch.from_numpy(found)

    def offers(self, present: Tensor, domain: Tensor, *, original: Tensor | None = None) -> Tensor:
        """Mark the present labels that :meth:`draw` finds an entry for, (B, L) bool on the host."""
        samples, labels, suitable = self._candidates(present, domain, original)
        found = torch.zeros_like(present)
        found[samples, labels] = torch.from_numpy(suitable.any(axis=1))
        return found

    def _candidates(
        self, present: Tensor, domain: Tensor, original: Tensor | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return sample and label of each present label, (P,), and the entries that it may take, (P, M)."""
        samples, labels = np.nonzero(present.numpy())
        stored = self._domains[labels]
        suitable = (stored >= 0) & (stored != domain.numpy()[samples, None])
        if original is not None:
            suitable &= self._originals[labels] != original.numpy()[samples, None]
        return samples, labels, suitable

    def push(self, moments: Moments, keep: Tensor, domain: Tensor, *, original: Tensor | None = None) -> None:
        """Store the styles of a batch; the oldest entries give way.

        With ``gather`` set, those of the global batch are stored, so that every process holds what one would.

        Args:
            moments: Clean moments, (B, L, C); no gradient is kept.
            keep: Which of them to store, (B, L) bool, on the host.
            domain: Domain of each sample, (B,), on the host.
            original: Number of the image that each sample was made from, (B,), on the host; see :meth:`draw`.
        """
        original = torch.full_like(domain, -1) if original is None else original
        if self.gather is not None:
            moments = Moments(self.gather(moments.mean), self.gather(moments.std))
            keep, domain, original = self.gather(keep), self.gather(domain), self.gather(original)
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
        self._originals[labels, slots] = original.numpy()[samples]
        self._next = (self._next + counts) % self.size
        device = self._entries.device
        at = tuple(torch.from_numpy(part).to(device, non_blocking=True) for part in (labels, slots, samples))
        stored = torch.stack([value.detach()[at[2], at[0]].float() for value in moments])
        self._entries[:, at[0], at[1]] = stored

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return all entries, for resuming."""
        host = {"domains": self._domains, "originals": self._originals, "next": self._next}
        copies = {name: torch.from_numpy(value.copy()) for name, value in host.items()}
        return {**copies, "entries": self._entries.detach().cpu().clone()}

    def set_extra_state(self, state: Any) -> None:
        """Continue with the entries of a checkpoint."""
        if tuple(state["domains"].shape) != self._domains.shape:
            raise ValueError(
                f"The stored style bank has shape {tuple(state['domains'].shape)} (labels, size); this one has "
                f"{self._domains.shape}. Resume with the settings the run was started with."
            )
        self._domains = state["domains"].numpy().copy()
        # Checkpoints of earlier versions have no originals.
        self._originals = state.get("originals", torch.full_like(state["domains"], -1)).numpy().copy()
        self._next = state["next"].numpy().copy()
        self._entries = state["entries"].clone().to(self._entries.device)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"num_labels={self.num_labels}, channels={self.channels}, size={self.size}"


@dataclass(frozen=True)
class CachedMaps:
    """Maps looked up for a batch, at the bank's own resolution.

    Attributes:
        maps: float16 maps as stored, flipped like their images, (B, L, h, w).
        usable: Where there is an entry, (B, L) bool, on the host.
        threshold: Fraction of a map's maximum below which its values are removed.
    """

    maps: Tensor
    usable: Tensor
    threshold: float = 0.0

    def at(self, feats: Tensor) -> Tensor:
        """Return unit-mass maps on the locations and device of a feature map, (B, L, H, W); zero where unusable."""
        size = (feats.shape[2], feats.shape[3])
        precision = torch.promote_types(feats.dtype, torch.float32)
        maps = resize_maps(self.maps.to(feats.device, non_blocking=True).to(precision), size)
        return unit_mass(
            threshold_maps(maps, threshold=self.threshold), self.usable.to(feats.device, non_blocking=True)
        )


class GradCamBank(nn.Module):
    """Host memory of one map per (sample, label), in half precision (Eq. 6).

    Args:
        num_samples: Number of training samples; `index` runs from 0 below it.
        num_labels: Number of labels L.
        threshold: Fraction of a map's maximum below which its values are removed on use.
        saved: Whether entries are part of a checkpoint; off for maps that are filled in again before training resumes.
    """

    def __init__(self, num_samples: int, num_labels: int, *, threshold: float = 0.0, saved: bool = True) -> None:
        super().__init__()
        self.threshold, self.saved = threshold, saved
        if num_samples < 1:
            raise ValueError(f"`num_samples` must be at least 1; got {num_samples}.")
        self.num_samples, self.num_labels = num_samples, num_labels
        self._valid = torch.zeros(num_samples, num_labels, dtype=torch.bool)
        self._maps = torch.zeros(num_samples, num_labels, 0, 0, dtype=torch.float16)
        self.gather: Gather | None = None

    @property
    def filled(self) -> bool:
        """Whether `store` was ever called, even if no entry was kept."""
        return self._maps.shape[2] > 0

    @property
    def ready(self) -> bool:
        """Whether any entry is stored."""
        return bool(self._valid.any())

    @property
    def coverage(self) -> Tensor:
        """Number of entries per label, (L,)."""
        return self._valid.sum(dim=0)

    def store(self, index: Tensor, maps: Tensor, keep: Tensor, flips: Tensor | None = None) -> None:
        """Replace the entries of some samples.

        The negative part of a map is removed and the rest divided by its maximum. An entry that is not kept, or whose
        map has no positive part, is dropped. With ``gather`` set, the entries of all processes are replaced in all.

        Args:
            index: Numbers of the samples, (B,) int64.
            maps: Raw maps, (B, L, h, w).
            keep: Which entries to keep: present and predicted, (B, L) bool.
            flips: How the images were flipped, (B, 2) bool; maps are stored as of the unflipped image.
        """
        index = self.checked(index)
        maps = maps.detach().float()
        if flips is not None:
            maps = flip_maps(maps, flips.to(maps.device, non_blocking=True))
        maps = maps.relu()
        peak = maps.amax(dim=(2, 3), keepdim=True)
        keep = keep.to(maps.device, non_blocking=True) & (peak[:, :, 0, 0] > 0) & peak[:, :, 0, 0].isfinite()
        maps, keep = torch.where(keep[:, :, None, None], maps / peak, 0.0).half().cpu(), keep.cpu()
        if self.gather is not None:
            index, maps, keep = self.gather(index), self.gather(maps), self.gather(keep)
        if self._maps.shape[2:] != maps.shape[2:]:
            self._maps = torch.zeros(self.num_samples, self.num_labels, *maps.shape[2:], dtype=torch.float16)
            self._valid.zero_()
        self._maps[index] = maps
        self._valid[index] = keep

    def lookup(self, index: Tensor | None, flips: Tensor | None, present: Tensor) -> CachedMaps:
        """Return the maps of some samples, flipped as their images were.

        Args:
            index: Numbers of the samples, (B,) int64.
            flips: How the images were flipped, (B, 2) bool; ``None`` means unflipped.
            present: Label presence, (B, L) bool, on the host.
        """
        index = self.checked(index)
        maps = self._maps[index]
        maps = maps if flips is None else flip_maps(maps, flips.cpu())
        return CachedMaps(maps, self._valid[index] & present, self.threshold)

    def checked(self, index: Tensor | None) -> Tensor:
        """Return sample numbers (B,) on the host, or raise if they have no entry in this bank."""
        if index is None:
            raise ValueError(
                "`index` must be given when attention is cached; got None. Wrap the data set in ldstyle.data.Indexed, "
                "which adds each sample's number, and call net(..., index=index)."
            )
        index = index.cpu()
        outside = (index < 0) | (index >= self.num_samples)
        if outside.any():
            value = int(index[outside][0])
            raise IndexError(
                f"`index` must be at least 0 and below num_samples = {self.num_samples}, the size of the map bank; got "
                f"{value}. Give attach() the number of training samples."
            )
        return index

    def clear(self) -> None:
        """Drop all entries."""
        self._valid.zero_()

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return all entries, for resuming; nothing where they are not part of a checkpoint."""
        if not self.saved:
            return {}
        return {"maps": self._maps.clone(), "valid": self._valid.clone()}

    def set_extra_state(self, state: Any) -> None:
        """Continue with the entries of a checkpoint."""
        if not self.saved:
            return
        if state["valid"].shape != self._valid.shape:
            raise ValueError(
                f"The stored map bank has shape {tuple(state['valid'].shape)} (samples, labels); this one has "
                f"{tuple(self._valid.shape)}. Resume with the data the run was started with."
            )
        self._maps, self._valid = state["maps"].cpu().clone(), state["valid"].cpu().clone()

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"num_samples={self.num_samples}, num_labels={self.num_labels}"
