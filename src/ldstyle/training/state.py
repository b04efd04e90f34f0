"""All that changes while a run trains, as one thing that is saved and loaded."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ldstyle.config import GlobalConfig, LabelDecoupledConfig, LLAMConfig, StoredAttention, UniformConfig
from ldstyle.data.loading.sampler import BatchSampler
from ldstyle.functional import warmup_weight
from ldstyle.nn import StyledNet
from ldstyle.runs.processes import Processes
from ldstyle.runs.weights import attention_state
from ldstyle.seeding import Streams
from ldstyle.training.algorithms.base import Algorithm
from ldstyle.training.stopping import EarlyStopping
from ldstyle.training.swad import Swad


class TrainingState:
    """The state of a run between two steps.

    Args:
        net: Styled network, or the plain backbone.
        optimizer: Its optimizer.
        sampler: Gives the samples of each step.
        streams: The run's random streams.
        stopping: Keeps the best epoch.
        swad: Weight averaging, or ``None``.
        processes: The processes of the run.
        digests: Content of the data, by domain.
        algorithm: Algorithm of a step in addition to its style; ``None`` for none.

    Attributes:
        epoch: Epoch in progress, counted from 1.
        step: Steps made in it.
        totals: Sums over its steps, by name.
        pathway: Weight of the per-label path in it; ``None`` for methods that have none.
        history: Metrics of the epochs before it.
        best: Weights of the best epoch's backbone, on the host.
        best_attention: Weights of its learned attention, on the host; empty for methods without any.
        segment_epochs: Epoch in which each SWAD segment ended.
        finished: Whether training is over.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        sampler: BatchSampler,
        streams: Streams,
        stopping: EarlyStopping,
        swad: Swad | None,
        processes: Processes,
        digests: dict[str, str],
        algorithm: Algorithm | None = None,
    ) -> None:
        self.algorithm = algorithm or Algorithm()
        self.net, self.optimizer, self.sampler, self.streams = net, optimizer, sampler, streams
        self.stopping, self.swad, self._processes, self._digests = stopping, swad, processes, digests
        self.epoch, self.step = 1, 0
        self.totals: dict[str, Tensor] = {}
        self.pathway: float | None = None
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}
        self.best_attention: dict[str, Tensor] = {}
        self.segment_epochs: list[int] = []
        self.finished = False
        self._seconds, self._since = 0.0, time.monotonic()

    @property
    def backbone(self) -> nn.Module:
        """The plain backbone."""
        return plain(self.net)

    @property
    def seconds(self) -> float:
        """Time spent on the run, by all processes that worked on it one after the other."""
        return self._seconds + time.monotonic() - self._since

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Yield the samples of each step, epoch after epoch."""
        while True:
            yield from self.sampler

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add the values of a step to the sums of the epoch."""
        for name, value in values.items():
            value = value.detach().float()
            self.totals[name] = value + self.totals[name].to(value.device) if name in self.totals else value

    def begin_epoch(self) -> None:
        """Reset the sums and note the weight of the per-label path."""
        self.totals, self.pathway = {}, pathway_weight(self.net, self.epoch)

    def end_epoch(self, row: dict[str, Any]) -> None:
        """Keep the metrics of the epoch and advance to the next."""
        self.history.append(row)
        self.epoch, self.step = self.epoch + 1, 0

    def keep_best(self) -> None:
        """Keep a copy of the backbone's weights and of its learned attention."""
        self.best = {name: value.detach().cpu().clone() for name, value in self.backbone.state_dict().items()}
        self.best_attention = attention_state(self.net)

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as tensors and plain values. All processes must call this."""
        return {
            "digests": dict(self._digests),
            "epoch": self.epoch,
            "step": self.step,
            "totals": dict(self.totals),
            "pathway": self.pathway,
            "history": [json.dumps(row) for row in self.history],
            "best": dict(self.best),
            "best_attention": dict(self.best_attention),
            "segment_epochs": list(self.segment_epochs),
            "finished": self.finished,
            "seconds": self.seconds,
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state_dict(),
            "streams": self.streams.state_dict(),
            "stopping": self.stopping.state_dict(),
            "swad": None if self.swad is None else self.swad.state_dict(),
            "algorithm": dict(self.algorithm.state_dict()),
            "torch": self._processes.gather(random_state(self._processes.device)[None]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken.

        Raises:
            ValueError: The data are not those the run was started with, or the state is not one of this version.
        """
        try:
            self._restore(state)
        except (KeyError, IndexError, AttributeError, TypeError, RuntimeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
            raise ValueError(
                f"The checkpoint must be one of this version of ldstyle and its packages; {reason}. Resume with the "
                "versions that wrote it, or start a new run in another `out`."
            ) from error

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state["digests"] != self._digests:
            changed = sorted(name for name in self._digests if state["digests"].get(name) != self._digests[name])
            raise ValueError(
                f"The data of {', '.join(changed)} changed since the run was started. Restore them, or start a new run "
                "in another `out`."
            )
        if len(state["torch"]) != self._processes.world:
            raise ValueError(f"The run was started with devices = {len(state['torch'])}; got {self._processes.world}.")
        self.epoch, self.step, self.finished = state["epoch"], state["step"], state["finished"]
        self.totals, self.pathway, self.best = dict(state["totals"]), state["pathway"], dict(state["best"])
        self.best_attention = dict(state.get("best_attention", {}))  # older checkpoints lack it
        self.history = [json.loads(row) for row in state["history"]]
        self.segment_epochs = list(state["segment_epochs"])
        self._seconds, self._since = state["seconds"], time.monotonic()
        self.net.load_state_dict(state["net"])
        groups, found = len(self.optimizer.param_groups), len(state["optimizer"]["param_groups"])
        if found != groups:
            raise KeyError(f"{groups} parameter groups: {found}")
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.load_state_dict(state["sampler"])
        self.streams.load_state_dict(state["streams"])
        self.stopping.load_state_dict(state["stopping"])
        if self.swad is not None:
            self.swad.load_state_dict(state["swad"])
            self.swad.segment = {name: value.to(self._processes.device) for name, value in self.swad.segment.items()}
        self.algorithm.load_state_dict(state.get("algorithm", {}))  # older checkpoints lack it
        set_random_state(state["torch"][self._processes.rank], self._processes.device)


def random_state(device: torch.device) -> Tensor:
    """Return the state of torch's own streams, which dropout draws from: the host's, then the CUDA device's."""
    host = torch.get_rng_state()
    return torch.cat([host, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else host


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Continue torch's own streams where ``state`` was taken."""
    length = len(torch.get_rng_state())
    torch.set_rng_state(state[:length])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[length:], device)


def plain(net: nn.Module) -> nn.Module:
    """Return the plain backbone of a styled network, or the network itself."""
    return net.backbone if isinstance(net, StyledNet) else net


def pathway_weight(net: nn.Module, epoch: int) -> float | None:
    """Return the weight of the per-label path in an epoch; ``None`` for methods that have none.

    Cached attention switches at once, when there are maps; learned and uniform attention follow Eq. 12. Modules that
    never fire have no path: such a run is ERM, its selection included.
    """
    match net.style if isinstance(net, StyledNet) else None:
        case LabelDecoupledConfig(gate_prob=0):
            return None
        case LabelDecoupledConfig(attention=attention, warmup_epochs=warmup) if isinstance(attention, StoredAttention):
            assert isinstance(net, StyledNet)
            assert net.cams is not None
            return float(epoch > warmup and net.cams.ready)
        case LabelDecoupledConfig(attention=UniformConfig(switch="step"), warmup_epochs=warmup):
            return float(epoch > warmup)
        case LabelDecoupledConfig(warmup_epochs=warmup):
            return warmup_weight(epoch, warmup)
        case GlobalConfig() | None:
            return None


def averages(net: nn.Module, pathway: float | None, epochs: int) -> bool:
    """Whether weights of an epoch are averaged: once the per-label path is fully on, or at once in too short a run.

    Args:
        net: Styled network, or the plain backbone.
        pathway: Weight of the per-label path in the epoch; see :func:`pathway_weight`.
        epochs: Epochs of the run.
    """
    if pathway is None or pathway == 1 or not isinstance(net, StyledNet):
        return True
    match net.style:
        case LabelDecoupledConfig(attention=LLAMConfig() | UniformConfig(switch="ramp"), warmup_epochs=warmup):
            return 2 * warmup > epochs
        case LabelDecoupledConfig(warmup_epochs=warmup):
            return warmup >= epochs
        case _:
            return True
