"""``ldstyle bench complexity``: Table 9, measured."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--backbone", default="resnet50", metavar="NAME", help="timm network (default: %(default)s)")
    add("--labels", type=int, default=6, metavar="N", help="number of labels (default: %(default)s)")
    add("--size", type=int, default=224, metavar="PX", help="height and width of the images (default: %(default)s)")
    add("--batch-size", type=int, default=32, metavar="N", help="images per batch (default: %(default)s)")
    add("--repeats", type=int, default=10, metavar="N", help="batches timed; 0 times none (default: %(default)s)")
    add("--results", type=Path, metavar="DIR", help="results folder whose report shall have these figures")
    add("--device", default=None, help="where throughput is measured (default: a GPU if there is one)")


def run(arguments: argparse.Namespace) -> int:
    """Measure parameters, operations and throughput of the deployed network, beside Table 9."""
    import torch

    from ldstyle.benchmark.complexity import TITLES, measure_families
    from ldstyle.benchmark.paper import TABLE_9
    from ldstyle.report.tables.complexity import FILE, Conditions, write_complexity

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    measured = measure_families(
        arguments.backbone,
        num_labels=arguments.labels,
        size=arguments.size,
        batch_size=arguments.batch_size,
        repeats=arguments.repeats,
        device=device,
    )
    if arguments.results is not None:
        timed = arguments.batch_size if arguments.repeats else 0
        conditions = Conditions(
            arguments.backbone, arguments.labels, arguments.size, batch_size=timed, device=device if timed else ""
        )
        arguments.results.mkdir(parents=True, exist_ok=True)
        write_complexity(arguments.results / FILE, conditions, measured)
    title = f"{arguments.backbone}, {arguments.size} px, batch {arguments.batch_size} on {device}"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    for name in ("M", "Δ %", "GMACs", "images/s", "paper: M", "Δ %", "GMACs"):
        table.add_column(name, justify="right")
    for family, row in measured.items():
        paper = TABLE_9[family]
        low, middle, high = row.throughput or (0.0, 0.0, 0.0)
        table.add_row(
            TITLES[family],
            f"{row.parameters / 1e6:.2f}",
            f"{100 * row.added:+.2f}" if row.added else "–",
            f"{row.macs / 1e9:.3f}",
            f"{middle:.0f} ({low:.0f}–{high:.0f})" if row.throughput else "",
            f"{paper.parameters:.2f}",
            f"{paper.added:+.2f}" if paper.added else "–",
            f"{paper.macs:.3f}",
        )
    Console(markup=False, emoji=False).print(table)
    return 0
