"""The measuring scripts run and print the figures they promise; how large the figures are is not a test's matter."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.benchmark.grids import record

from ldstyle.benchmark.grid.cells import make_cells, make_splits
from ldstyle.benchmark.grid.methods import load_methods
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.results.costs import read_costs
from ldstyle.benchmark.results.records import append_record
from ldstyle.nn import attach
from ldstyle.runs.backbone import create_network
from ldstyle.runs.settings import config_from

ROOT = Path(__file__).parents[1]


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_operators_prints_a_ratio_for_every_method_and_measure():
    printed = run("operators.py", "--quick")
    ratios = dict(re.findall(r"^  (\S.*?) +([\d.]+)  \(CPU time [\d.]+\)", printed, flags=re.MULTILINE))
    operators = ("MixStyle", "EFDMix", "CSU")
    methods = [f"{head}{name}{tail}" for head, tail in (("", ""), ("LD-", ""), ("LD-", "-GC")) for name in operators]
    measures = ["naive loop / LD-MixStyle", "naive loop / LD-EFDMix", "sweep / forward + backward sweep"]
    assert {"EFDMix (as published)", *methods, *measures, "step with online refresh / without"} == set(ratios)
    assert all(float(value) > 0 for value in ratios.values())
    assert len(re.findall(r"at L = 6,.*at L = 60", printed)) == 4


def test_methods_writes_the_cost_of_every_method_of_a_grid(scenes, tmp_path):
    methods = load_methods(["erm", "swad", "ld-efdmix-gc", "sagm"])
    (split,) = make_splits(("suburb", "region", "harbour"), ["harbour"])
    grid = make_cells(methods, [split], [0], preset=PRESETS["smoke"], data={"root": str(scenes)})
    for one in grid:
        append_record(tmp_path, {**record(one), "config": {**one.settings, "out": "run"}})
    printed = run("methods.py", tmp_path, "--rounds", "1")
    costs = read_costs(tmp_path)
    assert list(costs) == ["erm", "swad", "sagm", "ld-efdmix-gc"]
    assert costs["erm"] == 1
    assert min(costs.values()) > 0
    assert all(f"{name:<24} {cost:6.3f} of ERM's CPU time" in printed for name, cost in costs.items())


@pytest.mark.parametrize(
    ("method", "times"),
    [("swad", 6 * 30 / 5), ("ld-efdmix+swad", 5 * 30 / 5), ("erm", None)],  # after one epoch of warm-up
)
def test_methods_counts_the_passes_of_swad_from_the_end_of_the_warm_up(method, times):
    script = runpy.run_path(str(ROOT / "benchmarks" / "methods.py"))
    (split,) = make_splits(("ucm", "aid", "dubai"), ["dubai"])
    (cell,) = make_cells(load_methods([method]), [split], [0], preset=PRESETS["study"], data={"root": "data"})
    config = config_from({**cell.settings, "out": "run"})
    net = create_network("test_resnet", num_labels=3)
    if config.style is not None:
        net = attach(net, config.style, stages=config.stages, num_labels=3)
    data = SimpleNamespace(train=range(2 * script["SWEPT"]))
    passes = script["_averaging"](config, data, net, None, None, 30)
    assert [one.times for one in passes] == ([] if times is None else [times, 2.0])  # validations, BatchNorm's pass


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # rasterio multiplies transforms in affine's old way
def test_tiling_compares_tiles_and_masks_without_a_warning(tmp_path):
    """Masks have no georeference, of which rasterio warns; warnings are errors here."""
    for package in ("geopandas", "rasterio"):
        pytest.importorskip(package)
    script = runpy.run_path(str(ROOT / "benchmarks" / "tiling.py"))
    script["write_scene"](tmp_path, 64, 5)
    script["plain"](tmp_path, tmp_path / "out", 32)
    assert script["compare"](tmp_path / "out", tmp_path / "out") == 4
