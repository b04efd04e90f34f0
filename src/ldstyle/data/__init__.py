"""The data side: files on disk to training batches, and sample numbers for any data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    _Base = Dataset[tuple[Any, ...]]
else:
    _Base = object  # help texts import this package without torch

__all__ = ["Indexed"]


class _Samples(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Indexed(_Base):
    """A data set whose samples end with their own number: ``(image, label)`` becomes ``(image, label, index)``.

    A `torch.utils.data.DataLoader` takes it like any other map-style data set. Give the numbers of a batch to
    ``net(..., index=index)``.

    Args:
        dataset: Data set with ``len()`` whose samples are tuples.

    Example:
        >>> Indexed([("first image", 1.0), ("second image", 0.0)])[1]
        ('second image', 0.0, 1)
    """

    def __init__(self, dataset: _Samples) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        sample = self.dataset[index]
        if not isinstance(sample, tuple | list):
            raise TypeError(f"Samples of `dataset` must be tuples such as (image, label); got {type(sample).__name__}.")
        # From the start, as a sequence counts: -1 is the last sample.
        return (*sample, index % len(self))
