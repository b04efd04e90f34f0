"""The data side: files on disk to training batches."""

from ldstyle.data.indexed import Indexed

__all__ = ["Indexed"]
