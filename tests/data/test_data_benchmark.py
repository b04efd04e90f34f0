import importlib.util
import io
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "data.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("data_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["data_benchmark"] = module  # workers of the plain loader and dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["data_benchmark"]


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_the_quick_run_reports_every_loader_twice(benchmark, capsys):
    benchmark.main(["--quick", "--size", "64"])
    printed = capsys.readouterr().out
    assert float(re.search(r"pixels differ by at most (\S+)\.\n", printed)[1]) < 1e-6
    rows = re.findall(r"^\| (plain, 0 workers|plain, 2 workers|cached) \|(.*)\|$", printed, flags=re.MULTILINE)
    sets = 2 + (find_spec("rasterio") is not None)
    assert [name for name, _ in rows] == ["plain, 0 workers", "plain, 2 workers", "cached"] * sets
    for name, cells in rows:
        first, takes, rate, faster = (float(cell.strip(" ×")) for cell in cells.split("|"))
        assert min(first, takes, rate, faster) > 0
        assert name != "cached" or takes == faster == 1


def test_the_report_gives_ratios_of_medians(benchmark):
    times = {
        "plain, 0 workers": benchmark.Times([4.0, 9.0, 4.0], [2.0, 2.0, 8.0]),
        "cached": benchmark.Times([3.0, 3.0, 1.0], [0.1, 0.5, 0.1]),
    }
    last = benchmark.report(times, 100).splitlines()
    assert last[2] == "| plain, 0 workers | 4.00 | 0.75 × | 50 | 20.0 × |"
    assert last[3] == "| cached | 3.00 | 1.00 × | 1000 | 1.0 × |"


def test_both_loaders_run_over_all_whole_batches(benchmark, tmp_path):
    table = benchmark.draw_files(tmp_path, 70, side=32)
    epochs = [
        benchmark.start_plain(table, 16, augment=False, workers=0),
        benchmark.start_cached(table, 16, augment=False, cache_dir=tmp_path / "cache"),
    ]
    for epoch in epochs:
        assert [tuple(batch.shape) for batch in epoch()] == [(32, 3, 16, 16)] * 2
    pixels = np.asarray(benchmark.Image.open(table.path(0)))
    assert 15 < pixels.std() < 80


def test_a_folder_without_images_is_refused(benchmark, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No \.jpg or \.tif images found below"):
        benchmark.find_files(tmp_path, 5)


def test_epochs_are_served_line_by_line(benchmark, tmp_path, monkeypatch, capsys):
    """As in the comparison of two checkouts: a line asks for an epoch, and its two times are the answer."""
    table = benchmark.draw_files(tmp_path, 32, side=32)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n"))
    benchmark.serve_epochs(table, 16)
    times = [[float(word) for word in line.split()] for line in capsys.readouterr().out.splitlines()]
    assert len(times) == 2
    assert all(clock > 0 and busy >= 0 for clock, busy in times)
