"""Table 9: parameters in training, operations and throughput of the deployed network.

Parameters and operations follow from the settings of the runs and are counted here. Throughput is a measurement, which
would differ from report to report: it is read from ``complexity.json`` of the results folder, if somebody measured it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ldstyle.benchmark.paper import TABLE_9
from ldstyle.benchmark.results.records import CellResult
from ldstyle.files import replace_text
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.tables.values import DASH, Statistic, number, plain, signed

if TYPE_CHECKING:
    from ldstyle.benchmark.complexity import Measured

SLUG = "complexity"
TITLE = "Complexity"
FILE = "complexity.json"
SCHEMA = 1
STAGES = (1, 2)
"""Where learned attention is attached unless all runs that have it agree on other stages."""


@dataclass(frozen=True)
class Conditions:
    """What complexity depends on.

    Attributes:
        backbone: Name of a timm network.
        labels: Number of labels.
        size: Height and width of the images.
        stages: Where style modules are attached.
        output_stride: Pixels per place of the last map; ``None`` is the network's own.
        batch_size: Images per batch in the measurement of throughput; 0 if it was not measured.
        device: Where it was measured.
    """

    backbone: str = "resnet50"
    labels: int = 6
    size: int = 224
    stages: tuple[int | str, ...] = STAGES
    output_stride: int | None = None
    batch_size: int = 0
    device: str = ""


def complexity_table(results: Sequence[CellResult], *, folder: Path | None = None) -> Table | Absent:
    """Return Table 9 for the network of the runs.

    Args:
        results: Cells of one set.
        folder: Results folder; measurements in its ``complexity.json`` are preferred.
    """
    try:
        measured = read_complexity(folder / FILE) if folder is not None and (folder / FILE).is_file() else None
        conditions, rows = measured or _counted(results)
    except (OSError, ValueError) as error:
        return Absent(SLUG, TITLE, str(error))
    # Table 9 is of this network and size.
    printed = (conditions.backbone.split(".")[0], conditions.size, conditions.labels) == ("resnet50", 224, 6)
    columns = ["method", "parameters (M)", "added (%)", "MACs (G)", "images/s"]
    columns += [f"{name} (paper)" for name in columns[1:]] if printed else []
    body = tuple(_row(family, row, printed=printed) for family, row in rows.items())
    return Table(SLUG, TITLE, _caption(conditions, printed=printed), tuple(columns), body)


def write_complexity(path: Path, conditions: Conditions, rows: Mapping[str, Measured]) -> None:
    """Write measurements as JSON; :func:`read_complexity` gives them back."""
    content = {"schema": SCHEMA, **asdict(conditions), "rows": {family: asdict(row) for family, row in rows.items()}}
    replace_text(path, json.dumps(content, indent=1) + "\n")


def read_complexity(path: Path) -> tuple[Conditions, dict[str, Measured]]:
    """Read measurements.

    Raises:
        ValueError: The file holds something else.
    """
    from ldstyle.benchmark.complexity import Measured

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema", None) != SCHEMA:
            raise ValueError(f"its schema must be {SCHEMA}")
        rows = {family: Measured(**_with_tuples(row)) for family, row in content.pop("rows").items()}
        if rows.keys() != TABLE_9.keys():
            raise ValueError(f"its rows must be {list(TABLE_9)}")
        return Conditions(**_with_tuples(content)), rows
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"'{path}' is not a measurement of complexity: {error}"
        raise ValueError(f"{problem}. Remove it, or measure again.") from None


def conditions_of(results: Sequence[CellResult]) -> Conditions:
    """Return what most runs of a set have in common: network, image size, labels and stages.

    Raises:
        ValueError: No run is done.
    """
    done = sorted((cell for cell in results if cell.status == "done" and "config" in cell.record), key=lambda c: c.cell)
    if not done:
        raise ValueError("No run is done, so the network is not known. Run `ldstyle bench run` first.")
    networks = Counter(
        (config["backbone"]["name"], config["backbone"]["output_stride"], config["data"]["size"], len(cell.vocabulary))
        for cell in done
        for config in [cell.record["config"]]
    )
    (backbone, stride, size, labels), _ = networks.most_common(1)[0]
    learned = {tuple(config["stages"]) for config in map(_config, done) if _has_learned_attention(config)}
    stages = learned.pop() if len(learned) == 1 else STAGES
    return Conditions(backbone, labels, size, stages, stride)


def _counted(results: Sequence[CellResult]) -> tuple[Conditions, dict[str, Measured]]:
    """Count parameters and operations of every family; nothing is timed."""
    from ldstyle.benchmark.complexity import count_macs, measure_families
    from ldstyle.runs.backbone import create_network

    conditions = conditions_of(results)
    name, size, labels = conditions.backbone, conditions.size, conditions.labels
    rows = measure_families(name, num_labels=labels, size=size, stages=conditions.stages, repeats=0)
    if conditions.output_stride is not None:
        # A smaller stride changes the operations and not the parameters.
        network = create_network(name, num_labels=labels, output_stride=conditions.output_stride)
        macs = count_macs(network, size=size)
        rows = {family: replace(row, macs=macs) for family, row in rows.items()}
    return conditions, rows


def _row(family: str, row: Measured, *, printed: bool) -> tuple[Value, ...]:
    from ldstyle.benchmark.complexity import TITLES

    cells = [Value(TITLES[family]), number(row.parameters / 1e6, digits=2), _added(100 * row.added)]
    cells += [number(row.macs / 1e9, digits=3), _rate(row.throughput)]
    if printed:
        paper = TABLE_9[family]
        low, high = paper.throughput
        cells += [number(paper.parameters, digits=2), _added(paper.added), number(paper.macs, digits=3)]
        cells.append(Statistic(f"{low}–{high}", (low + high) / 2, low=low, high=high))
    return tuple(cells)


def _added(percent: float) -> Value:
    return Value(signed(percent, digits=2), percent) if percent else Value(DASH, 0.0)


def _rate(throughput: tuple[float, float, float] | None) -> Value:
    if throughput is None:
        return Value(DASH, note="not measured; ldstyle bench complexity does")
    low, middle, high = throughput
    text = f"{plain(middle, digits=0)} ({plain(low, digits=0)}–{plain(high, digits=0)})"
    return Statistic(text, middle, low=low, high=high)


def _caption(conditions: Conditions, *, printed: bool) -> str:
    stride = "" if conditions.output_stride is None else f" at output stride {conditions.output_stride}"
    stages = " and ".join(map(str, conditions.stages))
    caption = (
        f"{conditions.backbone}{stride} with {conditions.labels} labels at {conditions.size} px: parameters in "
        f"training with modules at stages {stages}, how many more they are than those of the deployed network, and "
        "multiply-accumulate operations per image of the deployed network, which is the same for all methods."
    )
    if conditions.batch_size:
        measured = f"batches of {conditions.batch_size} on {conditions.device}"
        caption += f" Images per second in evaluation, median (least–most), {measured}."
    return caption + (" The paper's throughput was measured on one GPU at batch size 32." if printed else "")


def _config(cell: CellResult) -> Mapping[str, Any]:
    found: Mapping[str, Any] = cell.record["config"]
    return found


def _has_learned_attention(config: Mapping[str, Any]) -> bool:
    attention = (config.get("style") or {}).get("attention") or {}
    return attention.get("name") == "llam"


def _with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
