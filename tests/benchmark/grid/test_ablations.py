"""Table 8: every row is one edit, and it reaches the run whatever the preset."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ldstyle.benchmark.grid.ablations import ABLATIONS, ablation_methods
from ldstyle.benchmark.grid.cells import Split, make_cells
from ldstyle.benchmark.grid.methods import load_method
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.paper import TABLE_8
from ldstyle.benchmark.results.cell import CellResult, ScoreTable
from ldstyle.benchmark.results.studies import ablation_table
from ldstyle.config import UniformConfig
from ldstyle.runs.config import RunConfig
from ldstyle.runs.settings import config_from, merge

SPLIT = Split("s1", ("aid", "dfc15"), "ucm")
DATA = {"root": "data", "sea": "drop", "mapping": None}
EDITS = {
    "ld-efdmix-gc.uniform": lambda style: style.attention == UniformConfig(switch="step"),
    "ld-efdmix-gc.no-refresh": lambda style: style.attention.refresh == "never",
    "ld-efdmix-gc.all-places": lambda style: style.operator.top_ratio == 1.0,
    "ld-efdmix-gc.shared-lambda": lambda style: not style.per_label,
    "ld-efdmix-gc.any-partner": lambda style: not style.label_matched,
    "ld-efdmix-gc.no-warmup": lambda style: style.warmup_epochs == 0,
    "ld-mixstyle.no-bank": lambda style: style.bank_size == 0,
}


def configs(preset: str, selected=None) -> dict[str, RunConfig]:
    cells = make_cells(ablation_methods(), [SPLIT], [0], preset=PRESETS[preset], data=DATA, selected=selected)
    return {cell.method: config_from(merge(cell.settings, {"out": "run"})) for cell in cells}


def test_the_rows_are_those_of_table_8():
    assert tuple(ablation.name for ablation in ABLATIONS) == tuple(TABLE_8)
    assert [ablation.name for ablation in ABLATIONS if not ablation.edit] == ["ld-efdmix-gc", "ld-mixstyle"]
    assert all(len(ablation.edit["style"]) == 1 for ablation in ABLATIONS if ablation.edit)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_row_differs_from_the_full_method_by_its_edit_alone(preset):
    found = configs(preset)
    for ablation in ABLATIONS:
        full, row = found[ablation.base], found[ablation.name]
        assert replace(row, method=full.method, style=full.style) == full
        if not ablation.edit:
            continue
        assert EDITS[ablation.name](row.style)
        assert not EDITS[ablation.name](full.style)
        (section,) = ablation.edit["style"]
        assert replace(row.style, **{section: getattr(full.style, section)}) == full.style


def test_a_full_row_is_the_method_itself_so_that_its_runs_are_shared():
    for name in ("ld-efdmix-gc", "ld-mixstyle"):
        main = make_cells([load_method(name)], [SPLIT], [0], preset=PRESETS["paper"], data=DATA)
        (mine,) = [cell for cell in make_cells(ablation_methods(), [SPLIT], [0], preset=PRESETS["paper"], data=DATA)
                   if cell.method == name]  # fmt: skip
        assert mine.slug == main[0].slug
        assert not mine.differences(main[0])


def test_selected_values_of_the_full_method_carry_over_to_its_rows():
    selected = {("ld-efdmix-gc", "s1"): {"style": {"operator": {"alpha": 0.45}, "gate_prob": 0.2}, "stages": [2]}}
    for name, config in configs("paper", selected).items():
        expected = (0.45, 0.2, (2,)) if name.startswith("ld-efdmix-gc") else (0.1, 0.5, (1, 2))
        assert (config.style.operator.alpha, config.style.gate_prob, config.stages) == expected


def result(method: str, seed: int, value: float | None) -> CellResult:
    known = {"status": "failed"}
    if value is not None:
        table = {"map": value, "cf1": value, "of1": value, "ap": {}}
        known = {"status": "done", "scores": {"test": ScoreTable(**table), "all": ScoreTable(**table)}}
    return CellResult(f"{method}-{seed}", method, method, "s1", ("aid",), "ucm", seed, "smoke", **known)


def test_changes_are_paired_with_the_full_method_and_missing_rows_say_so():
    found = [result("ld-efdmix-gc", seed, 0.7) for seed in range(3)]
    found += [result("ld-efdmix-gc.no-warmup", seed, 0.6 - 0.1 * seed) for seed in range(2)]
    found += [result("ld-efdmix-gc.no-warmup", 2, None), result("erm", 0, 0.1)]
    rows = {row.ablation.name: row for row in ablation_table(found, split="s1")}
    assert len(rows) == 9
    change = rows["ld-efdmix-gc.no-warmup"].change
    assert change.mean == pytest.approx(-0.15)
    assert change.absent == {2: "failed"}
    assert rows["ld-efdmix-gc"].change is None
    assert str(rows["ld-efdmix-gc"].map) == "70.0 ± 0.0"
    assert str(rows["ld-mixstyle.no-bank"].map) == "– (missing: seeds 0, 1, 2)"
