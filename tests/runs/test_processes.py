"""Two processes against one: the same batches, the same draws, the same gradients, the same banks."""

from __future__ import annotations

import runpy
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from tests.tolerance import bound, operations
from tests.training.runs import metrics, process_context, same, tiny, weights, well_conditioned
from torch import Tensor

import ldstyle
from ldstyle.nn import StyledNet
from ldstyle.runs.backbone import create_network
from ldstyle.runs.config import RunConfig
from ldstyle.runs.processes import Processes, synchronize_batchnorm
from ldstyle.runs.sources import open_sources
from ldstyle.training.build import build_net
from ldstyle.training.loop import fit
from ldstyle.types import StyleContext

WORLD = 2
RATE = 0.1
LAYERNORM = {"name": "test_convnext"}  # BatchNorm would see half a batch in each of two processes


def in_two_processes(config: RunConfig, out: Path, batches: Any = None) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context, script = process_context(), str(Path(__file__).with_name("worker.py"))
    names = {"CONFIG": config, "PORT": port, "OUT": str(out), "BATCHES": batches}
    processes = [
        context.Process(target=runpy.run_path, args=(script, {**names, "RANK": rank})) for rank in range(WORLD)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]


# CSU has draws for every sample of the global batch and no partner, so nothing depends on the shards; neither do the
# algorithms that pair no samples.
@pytest.mark.parametrize("method", ["csu", "groupdro", "sagm", "miro", "erm++"])
def test_a_run_of_two_processes_is_the_run_of_one(method: str, scenes: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"backbone": LAYERNORM, "optimizer": {"backbone_lr": RATE, "head_lr": RATE}}
    one = tiny(scenes, tmp_path / "one", method=method, **settings)
    two = tiny(scenes, tmp_path / "two", method=method, **settings, devices=2)
    with well_conditioned():
        fit(one)
    in_two_processes(two, tmp_path)
    before = create_network(LAYERNORM["name"], num_labels=6, output_stride=None)
    after, shared_after = weights(tmp_path / "one"), weights(tmp_path / "two")
    # A gradient is summed over the layers forwards and backwards and over the batch. Six steps add up their errors,
    # and an error grows by less than 100 on its way through a network whose activations are normalised.
    tolerance = bound(2 * 6 * (2 * operations(before) + 8 * 48 * 48), scale=100)
    for name, value in after.items():
        torch.testing.assert_close(shared_after[name], value, rtol=0, atol=tolerance)
    moved = max((value - before.get_parameter(name)).abs().max().item() for name, value in after.items())
    assert moved > 1e6 * tolerance
    rounded = bound(8, dtype=torch.float32)  # losses are added up in single precision
    for alone, shared in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert shared["loss"] == pytest.approx(alone["loss"], rel=rounded)
        assert shared.get("fired") == alone.get("fired")
        assert shared["validation"]["loss"] == pytest.approx(alone["validation"]["loss"], rel=rounded)


def batches_of(rank: int) -> list[tuple[Tensor, StyleContext]]:
    """Two batches of four; the first fills the bank, the second draws from it."""
    generator = torch.Generator().manual_seed(rank)
    batches = []
    for step in range(2):
        images = torch.randn(4, 3, 48, 48, generator=generator)
        present = torch.rand(4, 6, generator=generator) < 0.6
        index = torch.arange(4) + 4 * (WORLD * step + rank)
        flips = torch.rand(4, 2, generator=generator) < 0.5
        batches.append((images, StyleContext(present, torch.tensor([0, 1, 0, 1]), index, flips, epoch=3)))
    return batches


def gradients(net: StyledNet, images: Tensor, context: StyleContext) -> dict[str, Tensor]:
    net.zero_grad()
    output = net.train()(images, context)
    loss = ldstyle.functional.objective(output, context.present, **net.loss_weights)
    loss.backward()
    return {name: value.grad for name, value in net.named_parameters() if value.grad is not None}


class Outbox:
    """Stands in for the other processes and notes what is sent to them."""

    def __init__(self) -> None:
        self.sent: list[Tensor] = []

    def __call__(self, value: Tensor) -> Tensor:
        self.sent.append(value)
        return value


def emulate(
    build: Callable[[], StyledNet], batches: list[list[tuple[Tensor, StyleContext]]]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Do in one process what two do: for each rank, pair within its part, and push what both ranks gathered."""
    nets = [build() for _ in range(WORLD)]
    for step in range(2):
        sent = [Outbox() for _ in range(WORLD)]
        for rank, net in enumerate(nets):  # a first pass, on copies, notes what each rank sends
            copy = build()
            copy.load_state_dict(net.state_dict())
            copy.distribute(rank=rank, world=WORLD, gather=sent[rank])
            gradients(copy, *batches[rank][step])
        parts = []
        for rank, net in enumerate(nets):
            received = iter([torch.cat(pair) for pair in zip(*(box.sent for box in sent), strict=True)])
            net.distribute(rank=rank, world=WORLD, gather=lambda _, received=received: next(received))
            parts.append(gradients(net, *batches[rank][step]))
    memory = banks(nets[0].state_dict())
    assert same(memory, banks(nets[1].state_dict()))
    return {name: (parts[0][name] + parts[1][name]) / 2 for name in parts[0]}, memory


def banks(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name.endswith("bank._extra_state") or "cams" in name}


@pytest.mark.parametrize("method", ["ld-mixstyle", "ld-efdmix-gc"])
def test_gradients_and_banks_of_two_processes_are_those_of_one(method: str, scenes: Path, tmp_path: Path) -> None:
    style: dict[str, Any] = {"gate_prob": 1.0}
    if method == "ld-efdmix-gc":
        style = {
            "gate_prob": 0.0,
            "attention": {"refresh": "online", "map_scale": 1.0},
        }  # maps are taken from untouched batches
    config = tiny(scenes, tmp_path, method=method, style=style, devices=2)
    batches = [batches_of(rank) for rank in range(WORLD)]
    in_two_processes(config, tmp_path, batches)
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    assert same(banks(results[0]["state"]), banks(results[1]["state"]))

    data = open_sources(config.data, seed=config.seed)

    def build() -> StyledNet:
        net = build_net(config, data, Fabric(accelerator="cpu", devices=1))
        assert isinstance(net, StyledNet)
        return net

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes: the same operations on the same batches, and halving is exact
    try:
        grads, memory = emulate(build, batches)
    finally:
        torch.set_num_threads(threads)
    for result in results:
        assert result["grads"].keys() == grads.keys()
        for name, value in grads.items():
            assert torch.equal(result["grads"][name], value), name
    # Behind a module that fired nothing is clean, so only the first of the two banks takes entries.
    assert any(bool(bank["valid"].any() if "valid" in bank else bank["entries"].any()) for bank in memory.values())
    for name, bank in memory.items():
        for key, value in bank.items():
            assert torch.equal(results[0]["state"][name][key], value), (name, key)


def test_batchnorm_is_synchronized_on_cuda_and_left_alone_elsewhere() -> None:
    """The conversion needs no GPU; synchronized statistics do, since torch has them for no other device."""
    alone, shared = (tiny(Path("scenes"), Path("run"), devices=devices) for devices in (1, 2))
    backbone = create_network("test_resnet", num_labels=6, output_stride=None).eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before, state = backbone(images), backbone.state_dict()
    norms = [module for module in backbone.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert synchronize_batchnorm(backbone, alone, torch.device("cuda")) is backbone
    assert synchronize_batchnorm(backbone, shared, torch.device("cpu")) is backbone
    converted = synchronize_batchnorm(backbone, shared, torch.device("cuda"))
    found = [module for module in converted.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    assert len(found) == len(norms) > 0
    assert all(isinstance(module, torch.nn.SyncBatchNorm) for module in found)
    assert same(dict(converted.state_dict()), dict(state))
    assert torch.equal(converted(images), before)


def test_one_process_sends_nothing() -> None:
    processes = Processes(Fabric(accelerator="cpu", devices=1))
    value = torch.rand(3)
    assert processes.gather(value) is value
    assert processes.any(True, False) == (True, False)
    assert processes.mean(torch.tensor(2.5)) == 2.5
    assert processes.part(5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("count", "world"), [(7, 2), (4, 2), (1, 3), (10, 4)])
def test_shares_are_equally_long_and_cover_everything_in_order(count: int, world: int) -> None:
    shares = []
    for rank in range(world):
        processes = Processes(Fabric(accelerator="cpu", devices=1))
        processes.rank, processes.world = rank, world
        shares.append(processes.part(count).tolist())
    assert len({len(share) for share in shares}) == 1
    assert [row for share in shares for row in share][:count] == list(range(count))
