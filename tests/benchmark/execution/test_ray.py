from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from ldstyle.benchmark.results.records import read_results

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: the extra `ray`"),
]
SECONDS = 400


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    script = Path(__file__).with_name("ray_scenario.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, folder], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "results", json.loads((folder / "report.json").read_text())


def test_a_killed_node_loses_no_cell_and_none_runs_twice(scenario):
    results, report = scenario
    assert report["failed"] == {}
    events = Counter(map(tuple, report["events"]))
    lost = [slug for kind, slug in events if kind == "lost"]
    assert len(lost) == 1
    assert sorted(report["done"]) == sorted(f"smoke-{name}-s1-seed0" for name in ("erm", "mixstyle", "csu"))
    assert {slug: events["done", slug] for slug in report["done"]} == dict.fromkeys(report["done"], 1)
    cells = [json.loads(line)["cell"] for line in (results / "records.jsonl").read_text().splitlines()]
    assert sorted(cells) == sorted([*report["done"], *report["sent"]])
    assert [cell.status for cell in read_results(results)] == ["done"] * 4


def test_the_lost_cell_went_on_from_its_checkpoint_on_the_other_node(scenario):
    results, report = scenario
    (lost,) = [slug for kind, slug in map(tuple, report["events"]) if kind == "lost"]
    # The epochs before the loss keep their times: they were not trained again. Of the last one seen, the checkpoint may
    # not have been written yet.
    kept = report["before"][lost].splitlines()[:-1]
    rows = (results / lost / "metrics.jsonl").read_text().splitlines()
    assert len(kept) >= 2
    assert rows[: len(kept)] == kept
    assert [json.loads(row)["epoch"] for row in rows] == list(range(1, 26))


def test_files_of_a_node_that_does_not_see_the_results_folder_are_sent_to_it(scenario):
    results, report = scenario
    (slug,) = report["sent"]
    folder = results / slug
    sent = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    target = json.loads((folder / "result.json").read_text())["split"]["target"]
    assert {"result.json", "record.json", "model.safetensors", f"predictions-{target}.safetensors"} <= sent
    assert not any(name.endswith(".ckpt") for name in sent)
    assert (results.with_name("results-scratch") / slug / "result.json").exists()
