"""The cached attention source: class activation maps of correct predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ldstyle.functional import flip_maps, resize_maps, threshold_maps, unit_mass
from ldstyle.types import Gather


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
