"""Several workers of one search on this machine."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from ldstyle.benchmark.execution.local import available_cores, start_process
from ldstyle.benchmark.search.study import SearchConfig, print_line, take_part
from ldstyle.workers import end_with_parent

INTERRUPTED = 130
PRELOADED = ["ldstyle.benchmark.search.study", "ldstyle.training.loop", "timm"]
"""What all workers import, once for all of them."""


def run_search(config: SearchConfig, *, workers: int = 1) -> Path:
    """Run a search, or resume one, by ``workers`` processes that share the cores.

    Returns:
        The file of the selected settings.

    Raises:
        ChildProcessError: A worker ended before the search did; the others have continued without it.
        KeyboardInterrupt: The search was stopped; nothing that was finished is lost.
    """
    if workers < 1:
        raise ValueError(f"A search needs at least one worker; got {workers}.")
    if workers > 1:
        _run_workers(config, workers)
    # All trials are spent now; this reads them and writes the result.
    return take_part(config)


def _run_workers(config: SearchConfig, workers: int) -> None:
    threads = max(1, available_cores() // workers)
    processes: list[BaseProcess] = []
    try:
        for _ in range(workers):
            processes.append(start_process(_context, _serve, (config, threads)))
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        raise
    codes = [process.exitcode for process in processes]
    if INTERRUPTED in codes:
        raise KeyboardInterrupt
    if any(codes):
        raise ChildProcessError(f"Workers ended with exit codes {codes}. The same command resumes.")


def _context() -> BaseContext:
    # Forking a process that runs threads, as torch does, can hang the child; a server that has only imported does not.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _serve(config: SearchConfig, threads: int) -> None:
    end_with_parent()
    import torch

    torch.set_num_threads(threads)
    try:
        take_part(config)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (ValueError, TypeError, OSError) as error:
        print_line(f"error: {error}")
        sys.exit(2)
