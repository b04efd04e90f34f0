"""Speed and memory of a trained model in use, as ratios measured side by side in one run.

    python benchmarks/inference.py [--quick] [--rounds N] [--only exported|onnx|predict|map ...]

- exported: the network saved by each method and loaded again, against the plain timm network (0.98 to 1.02)
- onnx: ONNX Runtime against eager PyTorch, threads alike (at least 1.3)
- predict: a folder from file names to a table, against the network alone on batches in memory (at least 0.85)
- map: peak memory of mapping a 20,000² scene against a 2,000² one, each in a process of its own (flat: at most 1.05)

Rounds of the sides alternate, so that a busy machine slows both; medians of their ratios are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import ldstyle
from ldstyle.deploy.classifier import load
from ldstyle.deploy.export import export_model
from ldstyle.deploy.files import list_images, predict_files
from ldstyle.deploy.prediction_table import render, write_table
from ldstyle.deploy.scene.mapping import MapOptions, map_scene
from ldstyle.runs.backbone import build_backbone, preprocessing
from ldstyle.runs.config import BackboneConfig
from ldstyle.runs.model_file import load_model, save_model
from ldstyle.runs.settings import config_from, method_settings, methods

LABELS = ("building", "car", "tree", "water", "pavement", "ship")
PARTS = ("exported", "onnx", "predict", "map")


@dataclass(frozen=True)
class Case:
    """A network at the size of its images."""

    network: str
    size: int
    batch: int

    def __str__(self) -> str:
        return f"{self.network} {self.size} px"


CASES = (Case("resnet50", 224, 8), Case("tf_efficientnet_lite0", 128, 32))
QUICK = (Case("resnet18", 64, 8),)


def ratio(first: Callable[[], object], second: Callable[[], object], *, rounds: int) -> tuple[float, float, float]:
    """Return the median of time(second) / time(first) over alternating rounds, and the median times."""
    first(), second()
    times = []
    for number in range(rounds):
        order = (first, second) if number % 2 else (second, first)
        took = {}
        for function in order:
            begin = time.perf_counter()
            function()
            took[function] = time.perf_counter() - begin
        times.append((took[first], took[second]))
    return (
        statistics.median(two / one for one, two in times),
        statistics.median(one for one, _ in times),
        statistics.median(two for _, two in times),
    )


def save(folder: Path, case: Case, backbone: nn.Module) -> Path:
    """Save a network as a run would."""
    save_model(
        folder,
        backbone,
        name="benchmark",
        vocabulary=LABELS,
        thresholds=[0.5] * len(LABELS),
        preprocessing=preprocessing(backbone),
        size=case.size,
        sources=("ucm",),
        backbone_config=BackboneConfig(case.network, "none"),
    )
    return folder


def plain(case: Case) -> nn.Module:
    """Build the network by timm alone."""
    network: nn.Module = timm.create_model(case.network, num_classes=len(LABELS)).eval()
    return network


def trained(case: Case, method: str) -> nn.Module:
    """Return the backbone that a method would save."""
    backbone = build_backbone(BackboneConfig(case.network, "none"), num_labels=len(LABELS), image_size=case.size)
    settings = method_settings(method) | {"data": {"root": "none", "sources": ["a", "b"]}, "out": "none"}
    config = config_from(settings)
    if config.style is None:
        return backbone
    size = (case.size, case.size)
    net = ldstyle.attach(
        backbone, config.style, stages=config.stages, num_labels=len(LABELS), num_samples=64, seed=0, image_size=size
    )
    return net.backbone


def forward(network: Callable[[Tensor], object], images: Tensor) -> Callable[[], object]:
    """Return a function that computes one batch without gradient."""

    def run() -> object:
        with torch.inference_mode():
            return network(images)

    return run


def exported(case: Case, folder: Path, *, rounds: int, names: Sequence[str]) -> None:
    """Compare what each method saves with the plain network, and that with another of its kind: the noise."""
    # They compute the same, so only a difference of percents is of interest: many short rounds.
    batch, rounds = max(1, case.batch // 4), 6 * rounds
    images = torch.randn(batch, 3, case.size, case.size)
    reference = forward(plain(case), images)
    networks = {"(plain again)": lambda: plain(case)} | {
        name: lambda name=name: load(save(folder / name, case, trained(case, name))).backbone for name in names
    }
    for name, build in networks.items():
        found, _, took = ratio(reference, forward(build(), images), rounds=rounds)
        print(f"exported  {case!s:32} {name:16} time {found:5.3f} of plain  ({batch / took:.1f} images/s)", flush=True)


def onnx(case: Case, folder: Path, *, rounds: int) -> None:
    """Compare ONNX Runtime with eager PyTorch on the same threads."""
    import onnxruntime

    model = load_model(save(folder / "onnx", case, plain(case)))
    out = export_model(model, "onnx", folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(out), options, providers=["CPUExecutionProvider"])
    for batch in (1, case.batch):
        images = torch.randn(batch, 3, case.size, case.size)
        array = images.numpy()

        def run(array: np.ndarray = array) -> object:
            return session.run(None, {"images": array})

        found, slow, fast = ratio(run, forward(model.backbone, images), rounds=rounds)
        print(
            f"onnx      {case!s:32} batch {batch:<3} {found:5.2f} times eager  "
            f"({batch / slow:.1f} against {batch / fast:.1f} images/s)"
        )


def predict(case: Case, folder: Path, *, rounds: int, count: int) -> None:
    """Compare a folder, from names to a table, with the network alone, as it is and with its channels last."""
    classifier = load(save(folder / "predict", case, plain(case))).to(memory_format=torch.channels_last)
    network = plain(case)
    generator = np.random.default_rng(0)
    images = folder / f"images-{case.network}"
    images.mkdir()
    for number in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        coarse.resize((256, 256), Image.Resampling.BICUBIC).save(images / f"{number:04d}.jpg", quality=90)
    batch = 32
    inputs = torch.randn(batch, 3, case.size, case.size)

    def alone(network: nn.Module) -> None:
        with torch.inference_mode():
            for start in range(0, count, batch):
                network(inputs[: count - start])

    def whole() -> None:
        found = predict_files(classifier, list_images([str(images)]), batch_size=batch)
        write_table(render(found, "csv"), folder / "out.csv")

    for name, reference in (("as loaded", network), ("channels last", classifier.backbone)):
        found, took, took_alone = ratio(whole, partial(alone, reference), rounds=rounds)
        print(
            f"predict   {case!s:32} {found:5.3f} of the network alone, {name}  "
            f"({count / took:.1f} against {count / took_alone:.1f} images/s, 256 px JPEG)"
        )


def write_scene(path: Path, side: int) -> None:
    """Write a tiled scene of random blocks, without ever holding it."""
    import rasterio

    generator = np.random.default_rng(0)
    profile = {"driver": "GTiff", "height": side, "width": side, "count": 3, "dtype": "uint8", "crs": "EPSG:32633"}
    place = rasterio.Affine(0.3, 0, 500_000, 0, -0.3, 5_000_000)
    with rasterio.open(path, "w", **profile, transform=place, tiled=True, compress="deflate") as raster:
        for top in range(0, side, 256):
            height = min(256, side - top)
            blocks = generator.integers(0, 256, (3, 8, -(-side // 32)), dtype=np.uint8)
            values = blocks.repeat(32, axis=1).repeat(32, axis=2)[:, :height, :side]
            raster.write(values, window=((top, top + height), (0, side)))


def map_memory(folder: Path, *, sides: Sequence[int], overlap: int) -> None:
    """Measure the peak memory of mapping scenes, each in a process of its own; the network is tiny."""
    case = Case("test_resnet", 128, 32)
    save(folder / "map", case, plain(case))
    peaks = []
    for side in sides:
        scene = folder / f"scene-{side}.tif"
        write_scene(scene, side)
        command = [sys.executable, __file__, "--map-one", str(folder / "map"), str(scene), str(overlap)]
        done = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        peaks.append(done["peak_mb"])
        print(
            f"map       {side:>6}² scene, stride {128 // overlap} px: peak {done['peak_mb']:.0f} MB "
            f"({done['peak_mb'] - done['before_mb']:.0f} MB above the loaded model), {done['seconds']:.0f} s, "
            f"scene {scene.stat().st_size / 1e6:.0f} MB on disk, {3 * side**2 / 1e6:.0f} MB of pixels"
        )
        scene.unlink()
    print(f"map       peak memory of the largest to the smallest: {peaks[-1] / peaks[0]:.3f}")


def map_one(model: Path, scene: Path, overlap: int) -> None:
    """Map one scene and print the peak memory of this process while it does."""
    classifier = load(model)
    classifier.predict(torch.zeros(32, 3, 128, 128))  # what the first batch allocates is no part of the map
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of importing and loading (Linux)
    before = peak_mb()
    begin = time.perf_counter()
    map_scene(classifier, scene, scene.with_suffix(".map.tif"), options=MapOptions(overlap=overlap))
    seconds = time.perf_counter() - begin
    print(json.dumps({"before_mb": before, "peak_mb": peak_mb(), "seconds": seconds}))


def peak_mb() -> float:
    """Return the peak of the memory that this process has held."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small network and small scenes: does it run?")
    parser.add_argument("--rounds", type=int, help="alternating rounds (default: 15, quick 3)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--map-one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.map_one:
        model, scene, overlap = arguments.map_one
        map_one(Path(model), Path(scene), int(overlap))
        return
    quick = arguments.quick
    rounds = arguments.rounds or (3 if quick else 15)
    load_average = os.getloadavg()[0]
    print(f"{torch.get_num_threads()} threads, {rounds} rounds, load {load_average:.1f} when started")
    with tempfile.TemporaryDirectory() as temporary:
        for case in QUICK if quick else CASES:
            folder = Path(temporary) / case.network
            folder.mkdir()
            if "exported" in arguments.only:
                exported(case, folder, rounds=rounds, names=methods()[-3:] if quick else methods())
            if "onnx" in arguments.only:
                onnx(case, folder, rounds=rounds)
            if "predict" in arguments.only:
                predict(case, folder, rounds=max(3, rounds // 3), count=64 if quick else 256)
        if "map" in arguments.only:
            map_memory(Path(temporary), sides=(1000, 4000) if quick else (2000, 20_000), overlap=1 if quick else 2)


if __name__ == "__main__":
    main()
