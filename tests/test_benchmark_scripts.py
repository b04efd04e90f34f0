"""The measuring scripts run and print the figures they promise; how large the figures are is not a test's matter."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # rasterio multiplies transforms in affine's old way
def test_tiling_compares_tiles_and_masks_without_a_warning(tmp_path):
    """Masks have no georeference, of which rasterio warns; warnings are errors here."""
    for package in ("geopandas", "rasterio"):
        pytest.importorskip(package)
    script = runpy.run_path(str(ROOT / "benchmarks" / "tiling.py"))
    script["write_scene"](tmp_path, 64, 5)
    script["plain"](tmp_path, tmp_path / "out", 32)
    assert script["compare"](tmp_path / "out", tmp_path / "out") == 4
