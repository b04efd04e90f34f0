"""Images per second of the cached loader against a plain Pillow + torchvision DataLoader on the same files.

    python benchmarks/data.py [--quick] [--root DIR] [--size S] [--images N] [--rounds R]

Both give normalised batches of flipped and colour-jittered images, and both are timed without augmentation too. In each
round every loader starts again, runs a first epoch (the cached loader builds its cache in it, the plain one starts its
workers) and then later ones; rounds are interleaved and medians are printed. The files are those of ``ucm`` below
``--root`` or $LDSTYLE_DATA, if given, and generated files in the sizes and formats of the official downloads. They
are read once before, so that the disk plays no part, and the compiled augmentation is loaded before, as torch is.

With rasterio, GeoTIFF files of 12 bands in 16 bits are generated too, and the plain loader reads them by rasterio.
``--before DIR`` names another checkout; epochs of the cached loader of 8-bit RGB then run in both in turn, in
separate processes of one thread, and the ratio is printed by the clock and by CPU time, which other jobs hardly change.
They keep freed memory, as training does: without that, a process is fast or half as fast for its whole life, by the
chance of what its heap ends with.
``--only`` runs one of the parts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from ldstyle.cpu.memory import keep_freed_memory
from ldstyle.data.domains.scene_table import PAPER_VOCABULARY, SceneTable
from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.data.loading.pool import Pool
from ldstyle.data.loading.sampler import BatchSampler

if TYPE_CHECKING:
    from ldstyle.data.loading.image_format import ImageFormat

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 32
LATER_EPOCHS = 3
PAIRS_COMPARED, TURNS_COMPARED, EPOCHS_PER_TURN = 8, 20, 5
OFFICIAL = {"UCM": (256, ".tif"), "AID": (600, ".jpg")}
"""Side in pixels and format of the images in official downloads."""
DRAWN = 160
BANDS, RANGE = 12, (0.0, 10_000.0)

Epoch = Callable[[], Iterator[Tensor]]


@dataclass
class Times:
    """Seconds per epoch of one loader by the clock, and CPU seconds of this process in later epochs."""

    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def add(self, epoch: Epoch, later: int) -> None:
        """Run and time the first epoch and some later ones."""
        self.first.append(_timed(epoch)[0])
        for _ in range(later):
            seconds, busy = _timed(epoch)
            self.later.append(seconds)
            self.busy.append(busy)


class Spread(NamedTuple):
    """A ratio of medians, and the quartiles of the ratios of pairs."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} (pairs {self.low:.3f} to {self.high:.3f})"


class Comparison(NamedTuple):
    """How many times as fast one checkout is as another."""

    clock: Spread
    busy: Spread


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
    return _cached_epochs(table, size, cache_dir, Augmentation(mean=MEAN, std=STD), augment=augment)


def _cached_epochs(
    table: SceneTable,
    size: int,
    cache_dir: Path,
    augmentation: Augmentation,
    image_format: ImageFormat | None = None,
    *,
    augment: bool,
) -> Epoch:
    generator = np.random.default_rng(0)
    stated: dict[str, Any] = {} if image_format is None else {"image_format": image_format}
    opened: list[tuple[Pool, BatchSampler]] = []

    def epoch() -> Iterator[Tensor]:
        if not opened:
            pool = Pool([table], size=size, cache_dir=cache_dir, **stated)
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
                record.add(epoch, LATER_EPOCHS if name == "cached" else 1)
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


class PlainBands(Dataset[Tensor]):
    """Reads a GeoTIFF by rasterio, resizes, flips and jitters it, one image at a time, as usual."""

    def __init__(self, table: SceneTable, size: int, *, augment: bool) -> None:
        self.table, self.size, self.augment = table, size, augment

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> Tensor:
        import rasterio

        with rasterio.open(self.table.path(row)) as dataset:
            values = torch.from_numpy(dataset.read().astype(np.float32)).div_(RANGE[1]).clamp_(0, 1)
        images = F.interpolate(values[None], (self.size, self.size), mode="bilinear", antialias=True)[0]
        if self.augment:
            images = images.flip([axis for axis in (1, 2) if torch.rand(()) < 0.5])
            images = images.mul(0.8 + 0.4 * torch.rand(())).clamp_(0, 1)
            factor, mean = 0.8 + 0.4 * torch.rand(()), images.mean((1, 2), keepdim=True)
            images = (factor * images + (1 - factor) * mean).clamp_(0, 1)
        return (images - 0.3) / 0.2


def draw_bands(folder: Path, count: int, side: int = 120) -> SceneTable:
    """Write GeoTIFF files of 12 bands of uint16, as tiles of Sentinel-2 are."""
    import rasterio

    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    keys = tuple(f"{i:04d}.tif" for i in range(count))
    profile = {"driver": "GTiff", "count": BANDS, "height": side, "width": side, "dtype": "uint16"}
    place = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 500_000, 0, -10, 5_000_000)}
    for key in keys:
        coarse = generator.normal(2000, 600, (BANDS, side // 8, side // 8)).repeat(8, axis=1).repeat(8, axis=2)
        values = (coarse + generator.normal(0, 120, coarse.shape)).clip(1, 9999).astype(np.uint16)
        with rasterio.open(folder / key, "w", **profile, **place, compress="deflate") as file:
            file.write(values)
    return _table(folder, keys)


def measure_bands(table: SceneTable, size: int, *, rounds: int) -> dict[str, Times]:
    """Time the loaders of many bands in turn, as :func:`measure` does."""
    from ldstyle.data.loading.bands import find_format

    stated = find_format((), RANGE, [table], [range(len(table))])
    augmentation = Augmentation(mean=(0.3,) * BANDS, std=(0.2,) * BANDS)
    times = {name: Times() for name in ("plain, 0 workers", "plain, 2 workers", "cached")}
    for _ in range(rounds):
        for name, record in times.items():
            with tempfile.TemporaryDirectory() as folder:
                if name == "cached":
                    epoch = _cached_epochs(table, size, Path(folder), augmentation, stated, augment=True)
                else:
                    workers = int(name.split()[1])
                    loader = DataLoader(
                        PlainBands(table, size, augment=True),
                        BATCH,
                        shuffle=True,
                        drop_last=True,
                        num_workers=workers,
                        persistent_workers=workers > 0,
                    )
                    epoch = _epochs_of(loader)
                record.add(epoch, LATER_EPOCHS if name == "cached" else 1)
    return times


def _epochs_of(loader: DataLoader[Tensor]) -> Epoch:
    return lambda: iter(loader)


def serve_epochs(table: SceneTable, size: int) -> None:
    """Run epochs of the cached loader of 8-bit RGB for each line of standard input, and print their two times."""
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        epoch = start_cached(table, size, augment=True, cache_dir=Path(folder))
        for _ in sys.stdin:
            print(*_timed(lambda: itertools.chain.from_iterable(epoch() for _ in range(EPOCHS_PER_TURN))), flush=True)


def compare_checkouts(before: Path, images: int, size: int) -> Comparison:
    """Return how fast this checkout's cached loader is relative to another's, by the clock and by CPU time."""
    here = Path(__file__).resolve().parents[1]
    old: list[tuple[float, float]] = []
    new: list[tuple[float, float]] = []
    for pair in range(PAIRS_COMPARED):
        sides = ((before, old), (here, new))[:: -1 if pair % 2 else 1]
        for (_, times), found in zip(sides, _time_together([side[0] for side in sides], images, size), strict=True):
            times.append(found)
    return Comparison(_ratios(old, new, 0), _ratios(old, new, 1))


def _time_together(checkouts: Sequence[Path], images: int, size: int) -> list[tuple[float, float]]:
    """Run epochs in fresh processes of checkouts in turn; return each one's median times by the clock and of the CPU.

    The first turn, which builds the cache, does not count.
    """
    script = (
        "import sys, tempfile; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "import data as benchmark\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    benchmark.serve_epochs(benchmark.draw_files(Path(folder), int(sys.argv[2])), int(sys.argv[3]))"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).resolve().parent), str(images), str(size)]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    env={**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for checkout in checkouts
        ]
        rounds = [[_asked(process) for process in started] for _ in range(TURNS_COMPARED + 1)][1:]
    return [
        (statistics.median(epoch[side][0] for epoch in rounds), statistics.median(epoch[side][1] for epoch in rounds))
        for side in range(len(started))
    ]


def _ratios(old: list[tuple[float, float]], new: list[tuple[float, float]], column: int) -> Spread:
    """Return the ratio of the medians over processes, and the quartiles of the pairs' ratios."""
    ratio = statistics.median(row[column] for row in old) / statistics.median(row[column] for row in new)
    low, _, high = statistics.quantiles([a[column] / b[column] for a, b in zip(old, new, strict=True)], n=4)
    return Spread(ratio, low, high)


def _asked(process: subprocess.Popen[str]) -> list[float]:
    """Have a process run an epoch, and return its times."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return [float(word) for word in process.stdout.readline().split()]


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
    parser.add_argument("--before", type=Path, help="another checkout to compare 8-bit RGB with")
    parser.add_argument("--only", choices=("rgb", "bands", "before"), help="run this part alone (default: all)")
    parser.add_argument("--quick", action="store_true", help="one round over 64 generated files, as a test")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.rounds, arguments.root = 1, None
    print(f"To {arguments.size} px, batches of {BATCH}, {arguments.rounds} rounds, {torch.get_num_threads()} threads,")
    print(f"load of the machine {os.getloadavg()[0]:.1f}.")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only in (None, "rgb"):
            if arguments.root and (arguments.root / "ucm").is_dir():
                compare(find_files(arguments.root / "ucm", arguments.images), "UCM as found", arguments)
            for name, (side, suffix) in list(OFFICIAL.items())[: 1 if arguments.quick else None]:
                table = draw_files(Path(folder) / name, 64 if arguments.quick else DRAWN, side, suffix)
                compare(table, f"generated, {suffix} of {side} px as in {name}", arguments)
        if arguments.only in (None, "bands") and find_spec("rasterio") is not None:
            compare_bands(draw_bands(Path(folder) / "bands", 64 if arguments.quick else DRAWN), arguments)
    if arguments.before is not None and arguments.only in (None, "before"):
        found = compare_checkouts(arguments.before, DRAWN, arguments.size)
        print(f"\n8-bit RGB, cached, one thread, medians of {PAIRS_COMPARED} processes each. Relative to the speed of")
        print(f"'{arguments.before}': {found.clock} by the clock, {found.busy} by CPU")


def compare_bands(table: SceneTable, arguments: argparse.Namespace) -> None:
    """Print the table of GeoTIFF files with many bands, and the ratio of CPU time."""
    print(f"\n{len(table)} GeoTIFF files of {BANDS} bands in 16 bits. Flips, jitter, normalisation:\n")
    times = measure_bands(table, arguments.size, rounds=arguments.rounds)
    print(report(times, len(table) // BATCH * BATCH), flush=True)
    plain, cached = (statistics.median(times[name].busy) for name in ("plain, 0 workers", "cached"))
    print(f"\nCPU time of a later epoch: plain, 0 workers {plain:.2f} s, cached {cached:.2f} s, {plain / cached:.1f} ×")


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


def _timed(epoch: Epoch) -> tuple[float, float]:
    """Return seconds by the clock, and CPU seconds of all threads of this process."""
    clock, busy = time.perf_counter(), time.process_time()
    for _ in epoch():
        pass
    return time.perf_counter() - clock, time.process_time() - busy


if __name__ == "__main__":
    main()
