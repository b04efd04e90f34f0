"""``ldstyle attention``: whether attention finds its labels."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ldstyle.cli.options import TRAINED, add_shared, choose_device, make_table, positive
from ldstyle.cli.outputs import guarded
from ldstyle.evaluation.attention.judge import REPORT, TABLE, Judgement, judge_data, judge_run, write_judgement
from ldstyle.progress import Display, open_display
from ldstyle.report.figures.overlays import sheet_path, title, write_sheets
from ldstyle.runs.config import BackboneConfig, DataConfig
from ldstyle.runs.folder import CONFIG


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("subject", type=Path, metavar="RUN|DATA", help="folder of a finished run, or of data")
    text = "domain with masks; may be given several times"
    add("--domain", required=True, action="append", metavar="NAME", help=text)
    add_shared(parser, "--data", help=TRAINED)
    add_shared(parser, "--out", required=True, metavar="DIR", help="folder of the tables and pictures")
    text = "also judge cached maps without their part below this fraction of their maximum (default: 0.5)"
    add("--threshold", type=float, nargs="+", default=[0.5], metavar="FRACTION", help=text)
    text = "image side in pixels that class activation maps are computed from (default: that of training)"
    add("--map-size", type=positive, metavar="PX", help=text)
    add("--average-flips", action="store_true", help="average class activation maps over the four flips of an image")
    text = "average class activation maps over these factors of the image size (default: 1)"
    add("--scales", type=float, nargs="+", default=[1.0], metavar="FACTOR", help=text)
    text = "also judge a linear probe on the frozen pretrained backbone, fitted on the sources' training images"
    add("--probe", action="store_true", help=text)
    text = "image side of the probe in pixels (default: %(default)s)"
    add("--probe-size", type=positive, default=320, metavar="PX", help=text)
    add("--max-images", type=positive, metavar="N", help="most images of each part (default: all)")
    add_shared(parser, "--device", "--force", "--quiet")
    data = parser.add_argument_group("options of a data folder")
    add = data.add_argument
    add("--sources", nargs="+", metavar="NAME", help="domains whose training images a probe is fitted on (required)")
    add("--backbone", default="tf_efficientnet_lite0", metavar="NAME", help="timm model (default: %(default)s)")
    text = "its weights, as backbone.weights (default: %(default)s)"
    add("--weights", default="efficientnet_lite0", metavar="NAME", help=text)
    add_shared(data, "--size", default=112, help="side of the masks in pixels (default: %(default)s)")
    add_shared(data, "--seed", "--mapping", "--cache")


def run(arguments: argparse.Namespace) -> int:
    """Judge attention sources against the masks of domains, next to the uniform map.

    Of a finished run all sources; of a data folder those that need no run: the masks, and with --probe a linear probe.
    """
    if arguments.out.exists() and not arguments.out.is_dir():
        raise NotADirectoryError(f"--out must be a folder; '{arguments.out}' is a file.")
    out: Path = arguments.out
    outputs = [out / REPORT, out / TABLE, *(sheet_path(out, domain) for domain in arguments.domain)]
    with guarded(*outputs, force=arguments.force), open_display(quiet=arguments.quiet) as display:
        judgement = _judge(arguments, display)
        paths = [*write_judgement(out, judgement), *write_sheets(out, judgement)]
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
        "most": arguments.max_images,
        "device": choose_device(arguments),
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
            root=arguments.data,
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
        cache_dir=str(arguments.cache),
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
    rows = [
        [part.domain, part.group, title(source), *cells(labels)]
        for part, tables in zip(judgement.parts, judgement.tables, strict=True)
        for source, labels in tables.items()
    ]
    return make_table(("domain", "images", "source", *titles), rows, left=3)


def _cells(row: Mapping[str, Any]) -> list[str]:
    measures = [_percent(row["pointing"])]
    for name in ("iou", "mass"):
        ratio = row[f"{name}_ratio"]
        measures += [_percent(row[name]), "-" if ratio is None else f"{ratio:.2f}"]
    return [*measures, _percent(row["coverage"]), f"{row['n']}/{row['n'] + row['missing']}"]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
