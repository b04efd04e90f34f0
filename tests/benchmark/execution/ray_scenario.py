"""A Ray cluster of two worker nodes on this machine, one of which is killed mid-cell; run by ``test_ray.py``.

Usage: python ray_scenario.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

# Ray would advertise the address of a network card; without "clusters" it keeps to 127.0.0.1. Read when imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = "only-for-this-test-" * 2
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray's workers yield to every other process by default: next to other tests they would hardly run.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 Ray spells it so
# A killed node is missed after five checks, which by default are 3 s apart; a slow one still has 10 s to answer each.
os.environ["RAY_health_check_period_ms"] = "500"  # noqa: SIM112

import ray
from ray.cluster_utils import Cluster

from ldstyle.benchmark.execution.cell_run import Job
from ldstyle.benchmark.execution.ray import RayExecutor
from ldstyle.benchmark.execution.runner import run_cells
from ldstyle.benchmark.grid.cells import make_cells, make_splits
from ldstyle.benchmark.grid.imagery import DataLocation, prepare_location
from ldstyle.benchmark.grid.methods import load_methods
from ldstyle.benchmark.grid.presets import load_preset
from ldstyle.data.synthetic import DOMAINS

STORE_MB = 80


class Blinded(RayExecutor):
    """An executor whose workers cannot tell that they see the results folder."""

    def submit(self, job: Job) -> None:
        super().submit(replace(job, store="another folder", scratch=f"{job.results}-scratch"))


def start_cluster() -> Cluster:
    node = {"node_ip_address": "127.0.0.1", "object_store_memory": STORE_MB * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1, wait=False, **node)
    cluster.wait_for_nodes(timeout=60)
    return cluster


def main(folder: Path) -> None:
    location = DataLocation(str(folder / "scenes"), str(folder / "cache"), scenes=20, pixels=64)
    prepare_location(location)
    schedule = {"optimizer": {"epochs": 25, "patience": 25, "steps_per_epoch": 3}}
    methods, splits = load_methods(["erm", "mixstyle", "csu"]), make_splits(DOMAINS, ["s1"])
    preset = load_preset("smoke")
    cells = make_cells(methods, splits, [0], preset=preset, data=location.settings(), edits=schedule)
    results, events = folder / "results", []
    before: dict[str, str] = {}
    cluster = start_cluster()

    def kill_a_node() -> None:
        begun = [results / cell.slug / "metrics.jsonl" for cell in cells[:2]]
        while not all(path.exists() and path.read_text().count("\n") >= 3 for path in begun):
            time.sleep(0.02)
        before.update({path.parent.name: path.read_text() for path in begun})
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    summary = run_cells(
        cells,
        results=results,
        location=location,
        executor=RayExecutor(cluster.address),
        report=lambda event: events.append((event.kind, event.cell.slug)),
    )
    killer.join()
    sent = make_cells(load_methods(["dsu"]), splits, [0], preset=preset, data=location.settings())
    apart = run_cells(sent, results=results, location=location, executor=Blinded(cluster.address))
    report = {
        "events": events,
        "before": before,
        "failed": {**summary.failed, **apart.failed},
        "done": summary.done,
        "sent": apart.done,
    }
    (folder / "report.json").write_text(json.dumps(report))
    cluster.shutdown()
    assert not ray.is_initialized()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
