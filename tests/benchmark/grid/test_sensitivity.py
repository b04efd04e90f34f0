"""The sensitivity figure: five sweeps, each of one setting, at a seed of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ldstyle.benchmark.grid.cells import Split, make_cells
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.grid.sensitivity import (
    SENSITIVITY_SEED,
    SWEEPS,
    check_seeds,
    choose_sweeps,
    sensitivity_methods,
)
from ldstyle.benchmark.results.cell import CellResult, ScoreTable
from ldstyle.benchmark.results.studies import sweep_points
from ldstyle.runs.settings import config_from, merge

SPLIT = Split("s1", ("aid", "dfc15"), "ucm")


def configs(sweep, preset: str):
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
    found = configs(sweep, preset)
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
    points = dict(sweep_points(results, bank, split="s1"))
    assert points[128].mean == 0.75
    assert points[64].absent == {1000: "missing"}
    assert dict(sweep_points(results, bank, split="s1", part="all"))[128].mean == 0.5
