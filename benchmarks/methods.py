"""Cost of every method of a grid relative to plain training, from steps that alternate in one process.

    python benchmarks/methods.py RESULTS [--data DIR] [--cache DIR] [--methods NAME ...] [--rounds N] [--out FILE]

Takes the settings of the finished runs below RESULTS and times whole training steps of each method, in the last epoch
of its run, on the same images: augmentation, forward and backward pass, optimizer, weight averages. A round has one
step of every method in random order, and two of ERM. The cost of a run is that of its steps, of its sweeps for cached
maps, and of SWAD's validations within epochs and pass for BatchNorm; validation after epochs, which all methods share,
and maps that are computed once for all runs (probe) are left out.
Prints CPU time and wall time relative to ERM and writes the CPU times to RESULTS/costs.json, which the leaderboard
shows.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import nn

from ldstyle.benchmark.grid.methods import BASELINE, method_rank
from ldstyle.benchmark.results.costs import FILE, write_costs
from ldstyle.benchmark.results.records import read_records
from ldstyle.config import GradCamConfig, LabelDecoupledConfig
from ldstyle.cpu.memory import keep_freed_memory
from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.evaluation.predict import pool_batches, predict_pool
from ldstyle.nn import StyledNet
from ldstyle.runs.backbone import preprocessing
from ldstyle.runs.config import RunConfig
from ldstyle.runs.normalized_net import NormalizedNet
from ldstyle.runs.processes import Processes, launch
from ldstyle.runs.settings import config_from, merge
from ldstyle.runs.sources import SourceData, open_sources
from ldstyle.training.algorithms import build_algorithm, build_loss
from ldstyle.training.build import build_net, build_optimizer, new_state
from ldstyle.training.state import averages, pathway_weight, plain
from ldstyle.training.step import BatchSource, StyledLoss
from ldstyle.training.swad import reestimate_batchnorm

SWEPT = 512
"""Images of a timed pass; the cost of a whole one follows."""
WARM_UP = 2  # rounds until the process has all the memory it needs


class Spent(NamedTuple):
    """Seconds of CPU time and of wall time."""

    cpu: float
    wall: float


class Pass(NamedTuple):
    """A pass over images in addition to the steps, and how often a run makes it."""

    make: Callable[[], object]
    times: float


class Method(NamedTuple):
    """A step of a method, the steps of a run, and its other passes over images."""

    step: Callable[[], None]
    steps: int
    passes: tuple[Pass, ...] = ()


def prepare(config: RunConfig, data: SourceData) -> Method:
    """Return the step that ``fit`` makes with these settings in its last epoch."""
    fabric = launch(config)
    processes = Processes(fabric)
    net = build_net(config, data, fabric)
    channels = preprocessing(plain(net))
    augmentation = Augmentation(mean=channels.mean, std=channels.std)
    algorithm = build_algorithm(config, net, data.train, augmentation, processes)
    model, optimizer = fabric.setup(
        StyledLoss(net, algorithm, build_loss(config.loss, data.train)),
        build_optimizer(net, config.optimizer, algorithm),
    )
    state = new_state(config, data, net, optimizer, processes, algorithm)
    source = BatchSource(data.train, augmentation, state.streams["augmentation"], processes)
    batches, epochs = state.batches(), config.optimizer.epochs
    steps = config.optimizer.steps_per_epoch or len(state.sampler)

    def step() -> None:
        model.train()
        images, truth = algorithm.mix(*source.load(next(batches), epoch=epochs), state.streams)
        algorithm.backward(fabric, model, images, truth, done=(epochs - 1) / epochs)
        fabric.clip_gradients(model, optimizer, max_norm=config.optimizer.clip_norm, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        algorithm.after_step(net, done=(epochs - 0.5) / epochs, settled=True)
        if state.swad is not None:
            state.swad.step(state.backbone)

    network = NormalizedNet(plain(net), channels, fused=True)
    sweeps = _sweeps(config, data, net, network)  # first, since they switch cached attention on
    return Method(step, epochs * steps, sweeps + _averaging(config, data, net, network, fabric, steps))


def _averaging(
    config: RunConfig, data: SourceData, net: nn.Module, network: NormalizedNet, fabric: Fabric, steps: int
) -> tuple[Pass, ...]:
    """Return SWAD's validations within epochs, to the end of the run, and its BatchNorm pass over the training set."""
    if config.swad is None:
        return ()
    batch_size, some = config.optimizer.batch_size, np.arange(min(SWEPT, len(data.train)))

    def reestimate() -> None:
        batches = pool_batches(data.train, some, batch_size=batch_size)
        reestimate_batchnorm(network, (batch.images for batch in batches))

    again = Pass(reestimate, len(data.train) / len(some))
    if config.swad.evaluate_every is None:
        return (again,)
    epochs = config.optimizer.epochs
    averaged = sum(averages(net, pathway_weight(net, epoch), epochs) for epoch in range(1, epochs + 1))

    def validate() -> None:
        predict_pool(network, data.validation, fabric, batch_size=batch_size)

    return (Pass(validate, averaged * steps / config.swad.evaluate_every), again)


def _sweeps(config: RunConfig, data: SourceData, net: nn.Module, network: NormalizedNet) -> tuple[Pass, ...]:
    """Fill the maps of cached attention, and return the sweeps that rebuild them."""
    if not isinstance(net, StyledNet) or net.cams is None:
        return ()
    everything = torch.arange(len(data.train))
    net.cams.store(
        everything, torch.rand(len(everything), len(data.vocabulary), 7, 7), data.train.gather(everything).present
    )
    if not isinstance(config.style, LabelDecoupledConfig) or not isinstance(config.style.attention, GradCamConfig):
        return ()
    size = config.style.attention.sweep_size(config.data.size)
    pool = data.train if size == config.data.size else data.train_at(size)
    some = np.arange(min(SWEPT, len(pool)))
    sweeps = sum(net.refresh_due(epoch) for epoch in range(config.optimizer.epochs)) * len(pool) / len(some)

    def sweep() -> None:
        rows = pool_batches(pool, some, batch_size=config.optimizer.batch_size)
        net.refresh((network.normalise(batch.images), batch.present, batch.index) for batch in rows)

    return (Pass(sweep, sweeps),)


def measure(step: Callable[[], object]) -> Spent:
    """Return the time of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    return Spent(time.process_time() - cpu, time.perf_counter() - wall)


def compare(methods: dict[str, Method], rounds: int) -> dict[str, Spent]:
    """Return the cost of a run of each method relative to ERM's.

    Steps are averaged, not their median taken: style modules act in a fraction of the steps.
    """
    spent: dict[str, list[Spent]] = {name: [] for name in methods}
    dice = random.Random(0)
    for turn in range(rounds + WARM_UP):
        order = [*methods, BASELINE]
        dice.shuffle(order)
        for name in order:
            cost = measure(methods[name].step)
            if turn >= WARM_UP:
                spent[name].append(cost)
        print(f"round {turn + 1} of {rounds + WARM_UP}", file=sys.stderr, flush=True)
    totals = {}
    for name, method in methods.items():
        total = [method.steps * statistics.fmean(part) for part in zip(*spent[name], strict=True)]
        for make, times in method.passes:
            least = [min(part) for part in zip(measure(make), measure(make), strict=True)]
            total = [one + times * more for one, more in zip(total, least, strict=True)]
        totals[name] = total
    return {
        name: Spent(*(a / b for a, b in zip(total, totals[BASELINE], strict=True))) for name, total in totals.items()
    }


def open_runs(options: argparse.Namespace, scratch: Path) -> dict[str, Method]:
    """Build the first finished run of every method, on the data of the first one of ERM."""
    records = read_records(options.results)
    runs: dict[str, dict[str, Any]] = {}
    for record in records.values():
        if not options.methods or record["method"] in (*options.methods, BASELINE):
            runs.setdefault(record["method"], record["config"])
    if BASELINE not in runs:
        raise SystemExit(f"'{options.results}' must hold a finished run of {BASELINE}; it has {sorted(runs)}.")
    methods, data = {}, None
    for name in sorted(runs, key=method_rank):
        root = {"root": str(options.data)} if options.data else {}
        shared = {
            "seed": runs[BASELINE]["seed"],
            "data": {**runs[BASELINE]["data"], **root, "cache_dir": str(options.cache)},
        }
        config = config_from(merge(runs[name], {**shared, "out": str(scratch), "quiet": True, "logger": "none"}))
        data = data or open_sources(config.data, seed=config.seed)
        methods[name] = prepare(config, data)
    return methods


def main() -> None:
    """Measure, print and write the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results folder of a grid with ERM")
    parser.add_argument("--data", type=Path, help="data folder (default: that of the runs)")
    parser.add_argument("--cache", type=Path, help="folder of caches (default: a temporary one)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="methods beside ERM (default: all of the grid)")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--out", type=Path, help=f"file to write (default: {FILE} of the results folder)")
    options = parser.parse_args()
    keep_freed_memory()  # as `fit` does
    with tempfile.TemporaryDirectory() as folder:
        options.cache = options.cache or Path(folder, "cache")
        costs = compare(open_runs(options, Path(folder)), options.rounds)
    for name, cost in costs.items():
        print(f"  {name:<24} {cost.cpu:6.3f} of ERM's CPU time, {cost.wall:.3f} of its wall time")
    write_costs(options.out or options.results / FILE, {name: round(cost.cpu, 3) for name, cost in costs.items()})


if __name__ == "__main__":
    main()
