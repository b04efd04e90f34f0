"""Whole-epoch time of ``fit`` for ERM against a plain PyTorch loop.

    python benchmarks/training.py [--quick] [--backbone NAME] [--size S] [--per-domain N] [--rounds R] [--most RATIO]

Both train the same network from the same start on the same batches with the same augmentation, AdamW and clipping, and
run over the validation part after each epoch. ``fit`` also scores, logs, selects, and writes a checkpoint; the plain
loop does not. Epochs of the two alternate in one process, so that a busy machine slows both; the medians of their
ratio are printed, and the exit code is 1 if the clock exceeds ``--most``. Scenes are drawn into a temporary folder.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

import ldstyle.training.loop as loop
from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.data.loading.sampler import BatchSampler
from ldstyle.data.synthetic import write_scenes
from ldstyle.progress import Display
from ldstyle.runs.backbone import backbone_parameters, build_backbone, head_parameters, preprocessing
from ldstyle.runs.config import BackboneConfig, DataConfig, OptimizerConfig, RunConfig
from ldstyle.runs.sources import SourceData, open_sources
from ldstyle.seeding import Streams


def plain_epochs(config: RunConfig, data: SourceData) -> Callable[[], None]:
    """Return a function that trains one epoch and runs over the validation part, with nothing around it."""
    labels = len(data.vocabulary)
    model = build_backbone(config.backbone, num_labels=labels, image_size=config.data.size, seed=config.seed)
    channels = preprocessing(model)
    augmentation = Augmentation(mean=channels.mean, std=channels.std)
    streams, pool, batch = Streams(config.seed), data.train, config.optimizer.batch_size
    sampler = BatchSampler(pool.present, pool.domain, batch_size=batch, generator=streams["sampler"])
    groups = [
        {"params": backbone_parameters(model), "lr": config.optimizer.backbone_lr},
        {"params": head_parameters(model), "lr": config.optimizer.head_lr},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=config.optimizer.weight_decay)

    def epoch() -> None:
        model.train()
        for rows in sampler:
            samples = pool.gather(rows)
            images, _ = augmentation(samples.images, streams["augmentation"])
            loss = F.binary_cross_entropy_with_logits(model(images), samples.present.float())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for start in range(0, len(data.validation), batch):
                held_back = list(range(start, min(start + batch, len(data.validation))))
                model(augmentation.normalise(data.validation.gather(held_back).images))

    return epoch


class Alternating(Display):
    """Runs and times an epoch of the plain loop after each epoch of ``fit``.

    Args:
        plain: One epoch of the plain loop.
    """

    def __init__(self, plain: Callable[[], None]) -> None:
        super().__init__()
        self.clock: list[float] = []
        self.cpu: list[float] = []
        self._plain = plain
        self._since: tuple[float, float] | None = None

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Compare the time since the last epoch, which spans its checkpoint, with that of a plain one."""
        began = _times()
        self._plain()
        ended = _times()
        if self._since is not None:
            ours = [now - then for now, then in zip(began, self._since, strict=True)]
            plain = [now - then for now, then in zip(ended, began, strict=True)]
            self.clock.append(ours[0] / plain[0])
            self.cpu.append(ours[1] / plain[1])
            print(f"epoch {row['epoch']}: fit {ours[0]:.2f} s, plain {plain[0]:.2f} s by the clock; "
                  f"{ours[1]:.2f} s and {plain[1]:.2f} s of CPU time", flush=True)  # fmt: skip
        self._since = _times()


def _times() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> int:
    """Run the benchmark and return 1 if ``fit`` is slower than allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small network, in about a minute")
    parser.add_argument("--backbone", default="resnet18", help="timm network (default: %(default)s)")
    parser.add_argument("--size", type=int, default=128, help="pixels per side (default: %(default)s)")
    parser.add_argument("--per-domain", type=int, default=400, help="images per domain (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="epochs of each (default: %(default)s)")
    parser.add_argument("--most", type=float, default=1.05, help="largest ratio allowed (default: %(default)s)")
    options = parser.parse_args()
    if options.quick:
        options.backbone, options.size, options.per_domain, options.rounds = "test_resnet", 128, 300, 5
    with tempfile.TemporaryDirectory() as folder:
        clock, cpu = compare(Path(folder), options)
    print(f"fit / plain, median of {options.rounds} pairs of epochs: {clock:.3f} by the clock, {cpu:.3f} by "
          f"CPU time (at most {options.most})")  # fmt: skip
    # On a shared machine the clock also measures the others; CPU time does not count waiting for the disk.
    return int(clock > options.most)


def compare(folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Return the medians over pairs of epochs of the time of ``fit`` relative to the plain loop."""
    root = write_scenes(folder / "scenes", per_domain=options.per_domain, size=max(48, options.size))
    config = RunConfig(
        data=DataConfig(str(root), ("suburb", "harbour"), size=options.size, cache_dir=str(folder / "cache")),
        out=str(folder / "run"),
        backbone=BackboneConfig(options.backbone, "none"),
        optimizer=OptimizerConfig(epochs=options.rounds + 1, patience=options.rounds + 1),
        accelerator="cpu",
    )
    display = Alternating(plain_epochs(config, open_sources(config.data, seed=config.seed)))
    with mock.patch.object(loop, "open_display", return_value=display):
        loop.fit(config)
    return statistics.median(display.clock), statistics.median(display.cpu)


if __name__ == "__main__":
    sys.exit(main())
