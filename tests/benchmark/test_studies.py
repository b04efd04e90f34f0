"""The paper's two studies: which settings their methods change, and their results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ldstyle.benchmark.grid.cells import Split, make_cells
from ldstyle.benchmark.grid.methods import load_method
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.paper import TABLE_8
from ldstyle.benchmark.results.cell import CellResult, ScoreTable
from ldstyle.benchmark.results.view import Results
from ldstyle.benchmark.studies import (
    ABLATIONS,
    SENSITIVITY_SEED,
    SWEEPS,
    ablation_methods,
    ablation_table,
    check_seeds,
    choose_sweeps,
    sensitivity_methods,
    sweep_points,
)
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
    rows = {row.ablation.name: row for row in ablation_table(Results(found), split="s1")}
    assert len(rows) == 9
    change = rows["ld-efdmix-gc.no-warmup"].change
    assert change.mean == pytest.approx(-0.15)
    assert change.absent == {2: "failed"}
    assert rows["ld-efdmix-gc"].change is None
    assert str(rows["ld-efdmix-gc"].map) == "70.0 ± 0.0"
    assert str(rows["ld-mixstyle.no-bank"].map) == "– (not requested: seeds 0, 1, 2)"


def sweep_configs(sweep, preset: str):
    methods = sensitivity_methods([sweep.name])
    cells = make_cells(methods, [SPLIT], [SENSITIVITY_SEED], preset=PRESETS[preset], data={"root": "data"})
    return [config_from(merge(cell.settings, {"out": "run"})) for cell in cells]


def read(config, setting: str):
    found = config
    for part in setting.split("."):
        found = getattr(found, part)
    return found


def test_the_sweeps_are_the_five_panels_of_the_figure():
    assert [(sweep.name, sweep.base) for sweep in SWEEPS] == [
        ("stages", "ld-efdmix-gc"),
        ("top-ratio", "ld-efdmix-gc"),
        ("refresh", "ld-efdmix-gc"),
        ("temperature", "ld-efdmix"),
        ("bank", "ld-mixstyle"),
    ]
    by_name = {sweep.name: sweep.values for sweep in SWEEPS}
    assert (2,) in by_name["stages"]
    assert (1, 2, 3, 4) in by_name["stages"]
    assert (min(by_name["top-ratio"]), max(by_name["top-ratio"])) == (0.2, 1.0)
    assert (min(by_name["refresh"]), max(by_name["refresh"])) == (5, 15)
    assert {1.0, 50.0, 100.0} <= set(by_name["temperature"])
    assert by_name["bank"] == (64, 128, 256, 512)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_a_sweep_reaches_the_runs_whatever_the_preset_and_changes_nothing_else(sweep, preset):
    found = sweep_configs(sweep, preset)
    assert tuple(read(config, sweep.setting) for config in found) == sweep.values
    assert {config.seed for config in found} == {SENSITIVITY_SEED}
    if sweep.name in ("top-ratio", "refresh"):
        assert {config.style.warmup_epochs for config in found} == {1}
    first = found[0]
    for config in found:
        if sweep.setting == "stages":
            same = replace(config, stages=first.stages)
        else:
            _, *path, last = sweep.setting.split(".")
            section = read(config.style, path[0]) if path else config.style
            changed = replace(section, **{last: read(first, sweep.setting)})
            same = replace(config, style=replace(config.style, **{path[0]: changed}) if path else changed)
        assert replace(same, method=first.method) == first


def test_names_are_distinct_and_say_what_is_varied():
    methods = sensitivity_methods()
    assert len({method.name for method in methods}) == len(methods) == sum(len(sweep.values) for sweep in SWEEPS)
    assert "ld-efdmix-gc~stages=1+2" in [method.name for method in methods]
    assert "ld-mixstyle~bank=64" in [method.name for method in methods]


def test_seeds_of_the_main_runs_are_refused():
    check_seeds([SENSITIVITY_SEED])
    with pytest.raises(ValueError, match=r"other than those of the main runs, \[0, 1, 2, 3, 4\]; got \[3\]. Use 1000"):
        check_seeds([7, 3])


def test_an_unknown_sweep_is_refused():
    assert [sweep.name for sweep in choose_sweeps(["bank", "stages"])] == ["bank", "stages"]
    with pytest.raises(ValueError, match=r"no sweep 'banks'\. Choose from: stages, top-ratio"):
        choose_sweeps(["banks"])


def test_points_hold_what_was_measured_and_what_is_missing():
    bank = choose_sweeps(["bank"])[0]
    done = {"test": ScoreTable(0.75, {}), "all": ScoreTable(0.5, {})}
    name = "ld-mixstyle~bank=128"
    results = [CellResult("c", name, name, "s1", ("aid",), "ucm", 1000, "smoke", status="done", scores=done)]
    points = dict(sweep_points(Results(results), bank, split="s1"))
    assert points[128].mean == 0.75
    assert points[64].absent == {1000: "not requested"}
    assert dict(sweep_points(Results(results), bank, split="s1", part="all"))[128].mean == 0.5
