"""Table 9: parameters in training, operations and throughput of the deployed network.

Parameters and operations follow from the settings of the runs and are counted here. Throughput is a measurement, which
would differ from report to report: it is read from ``complexity.json`` of the results folder, if it was measured.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ldstyle.benchmark.paper import TABLE_9
from ldstyle.benchmark.results.view import Results
from ldstyle.files import replace_text
from ldstyle.report.model import Absent, Column, Number, Row, Span, Table, Value, Word

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
    """The conditions of a measurement of complexity.

    Attributes:
        backbone: Name of a timm network.
        labels: Number of labels.
        size: Height and width of the images.
        stages: Where style modules are attached.
        output_stride: Pixels per location of the last map; ``None`` is the network's own.
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


def complexity_table(results: Results) -> Table | Absent:
    """Return Table 9 for the network of the runs; measurements in the folder's ``complexity.json`` are preferred."""
    folder = results.folder
    try:
        measured = read_complexity(folder / FILE) if folder is not None and (folder / FILE).is_file() else None
        conditions, rows = measured or _counted(results)
    except (OSError, ValueError) as error:
        return Absent(SLUG, TITLE, str(error))
    # Table 9 is of this network and size.
    printed = (conditions.backbone.split(".")[0], conditions.size, conditions.labels) == ("resnet50", 224, 6)
    columns = ["method", "parameters (M)", "added (%)", "MACs (G)", "images/s"]
    columns += [f"{name} (paper)" for name in columns[1:]] if printed else []
    body = tuple(_row(family, row, _hint(conditions, folder), printed=printed) for family, row in rows.items())
    return Table(SLUG, TITLE, _caption(conditions, printed=printed), tuple(map(Column, columns)), body)


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


def conditions_of(results: Results) -> Conditions:
    """Return the network, image size, number of labels and stages of most runs.

    Raises:
        ValueError: No run is done.
    """
    done = sorted(results.done, key=lambda cell: cell.cell)
    known = [(cell.network, len(cell.vocabulary)) for cell in done if cell.network is not None]
    if not known:
        raise ValueError(f"No run is done, so the network is not known. Run `{results.command()}` first.")
    networks = Counter((one.backbone, one.output_stride, one.size, labels) for one, labels in known)
    (backbone, stride, size, labels), _ = networks.most_common(1)[0]
    learned = {network.stages for network, _ in known if network.attention == "llam"}
    stages = learned.pop() if len(learned) == 1 else STAGES
    return Conditions(backbone, labels, size, stages, stride)


def _counted(results: Results) -> tuple[Conditions, dict[str, Measured]]:
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


def _row(family: str, row: Measured, hint: str, *, printed: bool) -> Row:
    from ldstyle.benchmark.complexity import TITLES

    added = Number(number=100 * row.added, digits=2, signed=True, dash_zero=True)
    values = [Word(TITLES[family]), Number(number=row.parameters / 1e6, digits=2), added]
    values += [Number(number=row.macs / 1e9, digits=3), _rate(row.throughput, hint)]
    if printed:
        paper = TABLE_9[family]
        low, high = paper.throughput
        values += [Number(number=paper.parameters, digits=2), Number(number=paper.macs, digits=3)]
        values.insert(-1, Number(number=paper.added, digits=2, signed=True, dash_zero=True))
        values.append(Span(number=(low + high) / 2, low=low, high=high, show_number=False))
    return Row(tuple(values))


def _rate(throughput: tuple[float, float, float] | None, hint: str) -> Value:
    if throughput is None:
        return Value(note=hint)
    low, middle, high = throughput
    return Span(number=middle, low=low, high=high)


def _hint(conditions: Conditions, folder: Path | None) -> str:
    words = ["ldstyle", "bench", "complexity", "--backbone", conditions.backbone]
    words += ["--num-labels", str(conditions.labels), "--size", str(conditions.size)]
    return "not measured; run " + shlex.join([*words, *(["--results", str(folder)] if folder is not None else [])])


def _caption(conditions: Conditions, *, printed: bool) -> str:
    stride = "" if conditions.output_stride is None else f" at output stride {conditions.output_stride}"
    stages = " and ".join(map(str, conditions.stages))
    caption = (
        f"{conditions.backbone}{stride} with {conditions.labels} labels at {conditions.size} px: parameters in "
        f"training with modules at stages {stages}, their increase over the deployed network, and "
        "multiply-accumulate operations per image of the deployed network, which is the same for all methods."
    )
    if conditions.batch_size:
        measured = f"batches of {conditions.batch_size} on {conditions.device}"
        caption += f" Images per second in evaluation, median (least–most), {measured}."
    return caption + (" The paper's throughput was measured on one GPU at batch size 32." if printed else "")


def _with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
