"""``ldstyle attention``: whether attention finds its labels."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ldstyle.cli.model_options import device_of, positive
from ldstyle.evaluation.attention.judge import Judgement, judge_data, judge_run, write_judgement
from ldstyle.progress import Display, open_display
from ldstyle.report.figures.overlays import title, write_sheets
from ldstyle.runs.config import BackboneConfig, DataConfig, default_cache_dir
from ldstyle.runs.folder import CONFIG


def main(argv: Sequence[str]) -> int:
    """Judge attention sources against the masks of domains, next to the uniform map.

    Of a finished run all sources; of a data folder those that need no run: the masks, and with --probe a linear probe.
    """
    arguments = _parser().parse_args(argv)
    if arguments.out.exists() and not arguments.out.is_dir():
        raise NotADirectoryError(f"--out must be a folder; '{arguments.out}' is a file.")
    with open_display(quiet=arguments.quiet) as display:
        judgement = _judge(arguments, display)
        paths = [*write_judgement(arguments.out, judgement), *write_sheets(arguments.out, judgement)]
    if not arguments.quiet:
        console = Console(markup=False, emoji=False, highlight=False)
        console.print("Means over labels, in percent; × is the ratio to the uniform map.")
        console.print(_means(judgement))
        console.print("IoU by label, in percent.")
        console.print(_by_label(judgement))
        for path in paths:
            console.print(str(path), markup=False, soft_wrap=True)
    return 0


def _judge(arguments: argparse.Namespace, display: Display) -> Judgement:
    common: dict[str, Any] = {
        "thresholds": arguments.threshold,
        "probe_size": arguments.probe_size if arguments.probe else None,
        "most": arguments.images,
        "device": device_of(arguments),
        "display": display,
    }
    is_run = (arguments.subject / CONFIG).is_file()
    if not is_run and not arguments.sources:
        raise FileNotFoundError(
            f"'{arguments.subject}' is not a finished run. To judge a data folder, name the domains to train on by "
            "--sources."
        )
    if is_run:
        return judge_run(
            arguments.subject,
            arguments.domain,
            root=arguments.root,
            map_size=arguments.map_size,
            average_flips=arguments.average_flips,
            scales=arguments.scales,
            **common,
        )
    data = DataConfig(
        root=str(arguments.subject),
        sources=tuple(arguments.sources),
        size=arguments.size,
        mapping=None if arguments.mapping is None else str(arguments.mapping),
        cache_dir=str(arguments.cache or default_cache_dir()),
    )
    backbone = BackboneConfig(name=arguments.backbone, weights=arguments.weights)
    return judge_data(data, arguments.domain, backbone=backbone, seed=arguments.seed, **common)


def _means(judgement: Judgement) -> Table:
    """Return the means over labels of all measures."""
    titles = ("pointing", "IoU", "×", "mass", "×", "covers", "maps")
    return _table(judgement, titles, lambda labels: _cells(labels["mean"]))


def _by_label(judgement: Judgement) -> Table:
    """Return the IoU of each label."""
    names = judgement.vocabulary
    return _table(judgement, names, lambda labels: [_percent(labels[name]["iou"]) for name in names])


def _table(judgement: Judgement, titles: Sequence[str], cells: Callable[[Mapping[str, Any]], list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("domain", "images", "source"):
        table.add_column(heading, no_wrap=True)
    for heading in titles:
        table.add_column(heading, justify="right")
    for part, tables in zip(judgement.parts, judgement.tables, strict=True):
        for source, labels in tables.items():
            table.add_row(part.domain, part.group, title(source), *cells(labels))
        table.add_section()
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    measures = [_percent(row["pointing"])]
    for name in ("iou", "mass"):
        ratio = row[f"{name}_ratio"]
        measures += [_percent(row[name]), "-" if ratio is None else f"{ratio:.2f}"]
    return [*measures, _percent(row["coverage"]), f"{row['n']}/{row['n'] + row['missing']}"]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ldstyle attention", description=main.__doc__)
    parser.add_argument("subject", type=Path, metavar="RUN|DATA", help="folder of a finished run, or of data")
    parser.add_argument(
        "--domain", required=True, action="append", help="name of a domain with masks; may be given several times"
    )
    parser.add_argument("--root", type=Path, help="data folder (default: the one the run was trained from)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables and pictures")
    parser.add_argument(
        "--threshold",
        type=float,
        nargs="+",
        default=[0.5],
        metavar="FRACTION",
        help="also judge cached maps without their part below this fraction of their maximum (default: 0.5)",
    )
    parser.add_argument(
        "--map-size",
        type=positive,
        metavar="PIXELS",
        help="image side that class activation maps are computed from (default: that of training)",
    )
    parser.add_argument(
        "--average-flips", action="store_true", help="average class activation maps over the four flips of an image"
    )
    parser.add_argument(
        "--scales",
        type=float,
        nargs="+",
        default=[1.0],
        metavar="FACTOR",
        help="average class activation maps over these factors of the image size (default: 1)",
    )
    parser.add_argument(
        "--probe",
        action="store_true",
        help="also judge a linear probe on the frozen pretrained backbone, fitted on the sources' training images",
    )
    parser.add_argument(
        "--probe-size",
        type=positive,
        default=320,
        metavar="PIXELS",
        help="image side of the probe (default: %(default)s)",
    )
    parser.add_argument("--images", type=positive, metavar="N", help="most images of each part (default: all)")
    data = parser.add_argument_group("of a data folder")
    data.add_argument("--sources", nargs="+", metavar="NAME", help="domains whose training images a probe is fitted on")
    data.add_argument("--backbone", default="tf_efficientnet_lite0", help="timm model (default: %(default)s)")
    data.add_argument(
        "--weights", default="efficientnet_lite0", help="its weights, as backbone.weights (default: %(default)s)"
    )
    data.add_argument("--size", type=positive, default=112, help="side of the masks in pixels (default: %(default)s)")
    data.add_argument("--seed", type=int, default=0, help="seed of the splits (default: %(default)s)")
    data.add_argument("--mapping", type=Path, help="label map, a YAML file")
    data.add_argument("--cache", type=Path, help="folder of caches (default: that of training)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps, ... (default: cuda if there is one)")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    return parser
