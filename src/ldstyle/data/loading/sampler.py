"""Batches balanced over domains, in which samples of different domains share labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LOOK_AHEAD = 64
"""How far down a queue a sample with a common label is looked for."""


class BatchSampler:
    """Draws batches with B/S samples per domain, each anchor with samples of the other domains that share a label.

    Each domain has a shuffled queue, refilled when it is empty. Anchors are the head of one domain's queue, another
    domain's with each batch. Next to each anchor goes, from every other queue, the first of its next ``look_ahead``
    samples that shares a present label with the anchor, or the queue's head if none does. So samples are reordered
    and not re-weighted: each is drawn once per pass of its domain. If B is no multiple of S, the domains that give
    one sample more change with each batch; those without an anchor are heads of their queues.

    Iterating gives the rest of the current epoch, floor(N / B) batches in all; the queues run on from one epoch to
    the next. Each batch is an int64 array of sample numbers, anchors directly before their matches.

    All ranks of a data-parallel run make the same stream of batches from equally seeded generators, and each takes
    B / ``world_size`` samples of every batch: whole groups of an anchor and its matches as far as they go.

    Args:
        present: Known-present labels, (N, L) bool.
        domain: Domain numbers from 0 to S - 1, (N,).
        batch_size: Size B of a batch over all ranks.
        generator: Shuffles the queues. Its state is not part of the sampler's; it belongs to the run.
        original: Number of the sample that each one is a copy of, itself if it is none, (N,). A copy is not matched
            with its original unless it is the head.
        look_ahead: How far down a queue to look.
        rank: Number of this process.
        world_size: Number of processes.
    """

    def __init__(
        self,
        present: NDArray[np.bool_],
        domain: NDArray[np.int64],
        *,
        batch_size: int,
        generator: np.random.Generator,
        original: NDArray[np.int64] | None = None,
        look_ahead: int = LOOK_AHEAD,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _check_samples(present, domain)
        self._members = [np.flatnonzero(domain == d) for d in range(int(domain.max()) + 1)]
        _check_sizes(len(self._members), batch_size, len(domain), rank, world_size)
        if look_ahead < 1:
            raise ValueError(f"`look_ahead` must be at least 1; got {look_ahead}.")
        self.batch_size, self.rank, self.world_size, self._look_ahead = batch_size, rank, world_size, look_ahead
        self._words = _pack(present)
        self._original = np.arange(len(domain)) if original is None else original
        self._generator = generator
        self._steps = len(domain) // batch_size
        self._step = 0  # within the epoch
        self._batches = 0  # since the start; turns the wheel of anchors and remainders
        self._queues = [members[:0] for members in self._members]

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._steps

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """Yield the batches that are left of the current epoch; after the last one, the next epoch begins."""
        while self._step < self._steps:
            batch = self._shard(self._draw())
            self._step += 1
            yield batch
        self._step = 0

    def state_dict(self) -> dict[str, Tensor]:
        """Return the queues and the position in the epoch, so that a copy resumes with the next batch."""
        state = {f"queue{d}": torch.from_numpy(queue.copy()) for d, queue in enumerate(self._queues)}
        return {"place": torch.tensor([self._step, self._batches]), **state}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Resume where ``state`` was taken. The generator must be restored as well."""
        if set(state) != set(self.state_dict()):
            raise ValueError(
                f"The sampler's state must be of {len(self._members)} domains; got the entries {sorted(state)}."
            )
        queues = [state[f"queue{d}"].numpy().copy() for d in range(len(self._members))]
        for d, (queue, members) in enumerate(zip(queues, self._members, strict=True)):
            if not np.isin(queue, members).all():
                raise ValueError(f"The sampler's state is of other data: queue {d} holds samples of other domains.")
        self._queues = queues
        self._step, self._batches = (int(value) for value in state["place"])

    def _draw(self) -> list[list[int]]:
        """Draw a batch as groups of an anchor and its matches, then the samples left over, one by one."""
        count = len(self._members)
        share, extra = divmod(self.batch_size, count)
        turn = self._batches % count
        wanted = [share + ((d - turn) % count < extra) for d in range(count)]
        self._batches += 1
        groups = []
        for _ in range(wanted[turn]):
            anchor = self._take(turn, 0)
            group = [anchor]
            for d in range(count):
                if d != turn and wanted[d]:
                    wanted[d] -= 1
                    group.append(self._take(d, self._find(d, anchor)))
            groups.append(group)
        wanted[turn] = 0
        return groups + [[self._take(d, 0)] for d in range(count) for _ in range(wanted[d])]

    def _find(self, d: int, anchor: int) -> int:
        """Return the position in queue ``d`` of the first match, 0 if there is none within reach."""
        window = self._queue(d)[: self._look_ahead]
        fits = (self._words[window] & self._words[anchor]).any(axis=1)
        fits &= self._original[window] != self._original[anchor]
        return int(fits.argmax())

    def _take(self, d: int, place: int) -> int:
        """Remove a sample from queue ``d``; those before it keep their order."""
        queue = self._queue(d)
        sample = int(queue[place])
        queue[1 : place + 1] = queue[:place].copy()
        self._queues[d] = queue[1:]
        return sample

    def _queue(self, d: int) -> NDArray[np.int64]:
        if not len(self._queues[d]):
            self._queues[d] = self._generator.permutation(self._members[d])
        return self._queues[d]

    def _shard(self, groups: list[list[int]]) -> NDArray[np.int64]:
        """Return this rank's part: its whole groups, then its part of the remaining samples."""
        part = self.batch_size // self.world_size
        whole = part // len(self._members)
        mine = groups[self.rank * whole : (self.rank + 1) * whole]
        rest = [sample for group in groups[self.world_size * whole :] for sample in group]
        share = part - whole * len(self._members)
        return np.array([*(s for group in mine for s in group), *rest[self.rank * share : (self.rank + 1) * share]])


def _pack(present: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return the labels as bits of 64-bit words, (N, ceil(L / 64)), so that sharing a label is one ``&``."""
    padded = np.zeros((len(present), -(-present.shape[1] // 64) * 64), dtype=bool)
    padded[:, : present.shape[1]] = present
    return np.packbits(padded, axis=1).view(np.uint64)


def _check_samples(present: NDArray[np.bool_], domain: NDArray[np.int64]) -> None:
    if present.dtype != np.bool_ or present.ndim != 2:
        raise TypeError(
            f"`present` must be (N, L) bool; got {present.dtype} of shape {present.shape}. Use labels == 1."
        )
    if domain.shape != present.shape[:1]:
        raise ValueError(f"`domain` must have shape (N,) = {present.shape[:1]}; got {domain.shape}.")
    if not len(domain) or domain.min() < 0 or len(np.unique(domain)) != domain.max() + 1:
        raise ValueError(f"`domain` must number the domains 0, 1, ... without gaps; got {np.unique(domain).tolist()}.")


def _check_sizes(domains: int, batch_size: int, samples: int, rank: int, world_size: int) -> None:
    if not domains <= batch_size <= samples:
        raise ValueError(
            f"`batch_size` must be at least the number of domains, {domains}, and at most the number of samples, "
            f"{samples}; got {batch_size}."
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"`rank` must be in 0 .. world_size - 1 = {world_size - 1}; got {rank}.")
    if batch_size % world_size:
        raise ValueError(f"`batch_size` must be a multiple of `world_size` {world_size}; got {batch_size}.")
