"""Reading while the network computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, ahead: int
) -> Iterator[Result]:
    """Yield ``function(item)`` in order, computed by threads before it is asked for.

    Args:
        function: What to do; it should release the interpreter lock, as decoders do.
        items: What to do it with; taken only as fast as results are.
        workers: Number of threads.
        ahead: At most this many results wait, which bounds memory.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
