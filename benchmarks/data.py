"""Images per second of the cached loader against a plain Pillow + torchvision DataLoader on the same files.

    python benchmarks/data.py [--quick] [--root DIR] [--size S] [--images N] [--rounds R]

Both give normalised batches of flipped and colour-jittered images, and both are timed without augmentation too. In each
round every loader starts afresh, runs a first epoch (the cached loader builds its cache in it, the plain one starts its
workers) and then later ones; rounds are interleaved and medians are printed. The files are those of ``ucm`` below
``--root`` or $LDSTYLE_DATA, if it is given, and files drawn in the sizes and formats of the official downloads. They
are read once before, so that the disk plays no part, and the compiled augmentation is loaded before, as torch is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from ldstyle.data.domains.scene_table import PAPER_VOCABULARY, SceneTable
from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.data.loading.pool import Pool
from ldstyle.data.loading.sampler import BatchSampler

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 32
LATER_EPOCHS = 3
OFFICIAL = {"UCM": (256, ".tif"), "AID": (600, ".jpg")}
"""Side in pixels and format of the images in official downloads."""
DRAWN = 160

Epoch = Callable[[], Iterator[Tensor]]


@dataclass
class Times:
    """Seconds per epoch of one loader, one entry per round."""

    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)


class PlainImages(Dataset[Tensor]):
    """Decodes, resizes and augments one image at a time, as usual."""

    def __init__(self, table: SceneTable, size: int, *, augment: bool) -> None:
        jitter = [
            transforms.RandomHorizontalFlip(),
            transforms.RandomVerticalFlip(),
            transforms.ColorJitter(0.2, 0.2, 0.2, 0.05),
        ]
        self.table = table
        self.transform = transforms.Compose(
            [
                transforms.Resize((size, size)),
                *(jitter if augment else []),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> Tensor:
        with Image.open(self.table.path(row)) as image:
            result: Tensor = self.transform(image.convert("RGB"))
        return result


def start_plain(table: SceneTable, size: int, *, augment: bool, workers: int) -> Epoch:
    """Return an epoch of the plain loader; its workers start with the first one and stay."""
    dataset = PlainImages(table, size, augment=augment)
    loader = DataLoader(
        dataset, BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: iter(loader)


def start_cached(table: SceneTable, size: int, *, augment: bool, cache_dir: Path) -> Epoch:
    """Return an epoch of the cached loader; the first one builds the cache."""
    generator = np.random.default_rng(0)
    augmentation = Augmentation(mean=MEAN, std=STD)
    opened: list[tuple[Pool, BatchSampler]] = []

    def epoch() -> Iterator[Tensor]:
        if not opened:
            pool = Pool([table], size=size, cache_dir=cache_dir)
            opened.append((pool, BatchSampler(pool.present, pool.domain, batch_size=BATCH, generator=generator)))
        pool, sampler = opened[0]
        for index in sampler:
            images = pool.gather(index).images
            yield augmentation(images, generator)[0] if augment else augmentation.normalise(images)

    return epoch


def measure(table: SceneTable, size: int, *, augment: bool, rounds: int) -> dict[str, Times]:
    """Time the loaders in turn, each from a fresh start in every round."""
    times = {name: Times() for name in ("plain, 0 workers", "plain, 2 workers", "cached")}
    for _ in range(rounds):
        for name, record in times.items():
            with tempfile.TemporaryDirectory() as folder:
                match name:
                    case "cached":
                        epoch = start_cached(table, size, augment=augment, cache_dir=Path(folder))
                    case _:
                        epoch = start_plain(table, size, augment=augment, workers=int(name.split()[1]))
                record.first.append(_seconds(epoch))
                later = LATER_EPOCHS if name == "cached" else 1
                record.later += [_seconds(epoch) for _ in range(later)]
    return times


def same_pixels(table: SceneTable, size: int, *, cache_dir: Path) -> float:
    """Return the largest difference between what the two loaders give for the same images, without augmentation."""
    rows = list(range(min(len(table), BATCH)))
    plain = torch.stack([PlainImages(table, size, augment=False)[row] for row in rows])
    pool = Pool([table], size=size, cache_dir=cache_dir)
    cached = Augmentation(mean=MEAN, std=STD).normalise(pool.gather(rows).images)
    return float((plain - cached).abs().max())


def draw_files(folder: Path, count: int, side: int = 256, suffix: str = ".jpg") -> SceneTable:
    """Write files with the detail of aerial images: noise of every scale."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    keys = tuple(f"{i:04d}{suffix}" for i in range(count))
    for key in keys:
        values = np.full((side, side, 3), 110.0)
        for cells in (4, 16, 64, 256):
            noise = generator.normal(0, 22, (cells, cells, 3)).clip(-127, 127) + 127
            values += np.asarray(Image.fromarray(noise.astype(np.uint8)).resize((side, side)), dtype=float) - 127
        Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(folder / key, quality=90)
    return _table(folder, keys)


def find_files(root: Path, limit: int) -> SceneTable:
    """List images of UCM, spread over its classes."""
    keys = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.suffix in (".jpg", ".tif"))
    if not keys:
        raise FileNotFoundError(f"No .jpg or .tif images found below '{root}'. Leave --root out to draw some.")
    return _table(root, tuple(keys[:: max(1, len(keys) // limit)][:limit]))


def report(times: dict[str, Times], images: int) -> str:
    """Return the medians as a table: seconds of the first epoch, images per second later, and both as ratios."""
    cached = times["cached"]
    lines = [
        "| loader | first epoch, s | cached takes | later epochs, images/s | cached is faster by |",
        "|---|---|---|---|---|",
    ]
    for name, record in times.items():
        first, later = statistics.median(record.first), statistics.median(record.later)
        takes = statistics.median(cached.first) / first
        faster = later / statistics.median(cached.later)
        lines.append(f"| {name} | {first:.2f} | {takes:.2f} × | {images / later:.0f} | {faster:.1f} × |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=os.environ.get("LDSTYLE_DATA"), help="folder that holds ucm/")
    parser.add_argument("--size", type=int, default=128, help="side of the images in batches (128)")
    parser.add_argument("--images", type=int, default=640, help="how many files of those found to use (640)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round over 64 drawn files, to see that all works")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.rounds, arguments.root = 1, None
    print(f"To {arguments.size} px, batches of {BATCH}, {arguments.rounds} rounds, {torch.get_num_threads()} threads,")
    print(f"load of the machine {os.getloadavg()[0]:.1f}.")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.root and (arguments.root / "ucm").is_dir():
            compare(find_files(arguments.root / "ucm", arguments.images), "UCM as found", arguments)
        for name, (side, suffix) in list(OFFICIAL.items())[: 1 if arguments.quick else None]:
            table = draw_files(Path(folder) / name, 64 if arguments.quick else DRAWN, side, suffix)
            compare(table, f"drawn, {suffix} of {side} px as in {name}", arguments)


def compare(table: SceneTable, what: str, arguments: argparse.Namespace) -> None:
    """Print the tables of one set of files, with and without augmentation."""
    for row in range(len(table)):
        table.path(row).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        difference = same_pixels(table, arguments.size, cache_dir=Path(folder))
    print(f"\n{len(table)} files, {what}. Without augmentation, pixels differ by at most {difference:.1g}.")
    for augment in (True, False):
        print(f"\n{'Flips, jitter' if augment else 'No augmentation'}, normalisation:\n")
        times = measure(table, arguments.size, augment=augment, rounds=arguments.rounds)
        print(report(times, len(table) // BATCH * BATCH), flush=True)


def _table(root: Path, keys: tuple[str, ...]) -> SceneTable:
    labels = (np.random.default_rng(0).random((len(keys), len(PAPER_VOCABULARY))) < 0.4).astype(np.int8)
    return SceneTable("benchmark", root, PAPER_VOCABULARY, keys, labels)


def _seconds(epoch: Epoch) -> float:
    start = time.perf_counter()
    for _ in epoch():
        pass
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
