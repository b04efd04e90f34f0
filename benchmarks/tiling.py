"""Time and memory of `ldstyle data tile` against a plain rasterio + geopandas script with the same result.

    python benchmarks/tiling.py [--side PIXELS] [--polygons N] [--tile PIXELS] [--rounds R] [--workers N]

The scene is a tiled, compressed 8-bit RGB GeoTIFF, the polygons of five labels are in longitude and latitude. Both cut
the same tiles with the same compression and write masks and a table; the contents are compared. Each run is a
separate process, rounds are interleaved, and medians are printed: seconds, CPU seconds, and the peak memory (sum of the
resident sets) of the process and its workers.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

LABELS = ("building", "field", "forest", "road", "water")
PRESENT, ABSENT = 0.01, 0.001


def write_scene(folder: Path, side: int, polygons: int) -> None:
    """Draw a scene with texture, and polygons of 8 to 60 corners all over it."""
    import geopandas
    import rasterio
    import shapely

    generator = np.random.default_rng(0)
    place = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_000_000)
    profile = {"driver": "GTiff", "height": side, "width": side, "count": 3, "dtype": "uint8", "crs": "EPSG:32633"}
    options = {"transform": place, "tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "deflate"}
    texture = generator.integers(0, 24, (3, 512, 512), dtype=np.uint8)
    with rasterio.open(folder / "scene.tif", "w", **profile, **options) as scene:
        for top in range(0, side, 512):
            for left in range(0, side, 512):
                height, width = min(512, side - top), min(512, side - left)
                ground = generator.integers(40, 200, (3, 1, 1)).astype(np.uint8)
                scene.write((texture + ground)[:, :height, :width], window=((top, top + height), (left, left + width)))
    shapes = []
    for _ in range(polygons):
        x, y = generator.uniform(0, side / 2, 2)
        corners = int(generator.integers(8, 60))
        angles = np.sort(generator.uniform(0, 2 * np.pi, corners))
        radius = generator.uniform(0.6, 1.0, corners) * generator.uniform(4, 60)
        points = np.stack([500_000 + x + radius * np.cos(angles), 5_000_000 - y + radius * np.sin(angles)], axis=1)
        shapes.append(shapely.Polygon(points))
    labels = generator.choice(LABELS, polygons)
    frame = geopandas.GeoDataFrame({"label": labels}, geometry=shapes, crs="EPSG:32633").to_crs(4326)
    frame.to_file(folder / "polygons.gpkg", driver="GPKG")


def plain(folder: Path, out: Path, size: int) -> None:
    """Cut the tiles in a loop, as one would write it with rasterio and geopandas."""
    import geopandas
    import rasterio
    import shapely
    from PIL import Image
    from rasterio.features import rasterize
    from rasterio.windows import Window

    (out / "images").mkdir(parents=True)
    (out / "masks").mkdir()
    rows = []
    with rasterio.open(folder / "scene.tif") as scene:
        frame = geopandas.read_file(folder / "polygons.gpkg").to_crs(scene.crs)
        for top in range(0, scene.height - size + 1, size):
            for left in range(0, scene.width - size + 1, size):
                window = Window(left, top, size, size)
                transform = scene.window_transform(window)
                pixels = scene.read(window=window)
                near = frame[frame.intersects(shapely.box(*scene.window_bounds(window)))]
                bits = np.zeros((size, size), dtype=np.uint8)
                cells = []
                for number, label in enumerate(LABELS):
                    shapes = near[near.label == label].geometry
                    region = (
                        rasterize(shapes, (size, size), transform=transform) if len(shapes) else np.zeros_like(bits)
                    )
                    bits |= (region << number).astype(np.uint8)
                    fraction = region.mean()
                    cells.append(1 if fraction >= PRESENT else 0 if fraction <= ABSENT else "")
                name = f"scene_{top:06d}_{left:06d}"
                profile = {**scene.profile, "height": size, "width": size, "transform": transform, "tiled": False}
                profile = {key: value for key, value in profile.items() if key != "blockxsize"}
                profile |= {"compress": "deflate", "zlevel": 1, "predictor": 2, "interleave": "pixel"}
                with rasterio.open(out / "images" / f"{name}.tif", "w", **(profile | {"blockysize": size})) as tile:
                    tile.write(pixels)
                Image.fromarray(bits).save(out / "masks" / f"{name}.png", compress_level=1)
                rows.append([f"images/{name}.tif", f"masks/{name}.png", *cells])
    with (out / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "mask", *LABELS], *rows])


def measure(command: list[str]) -> tuple[float, float, float]:
    """Run a process; return its seconds, its CPU seconds, and the peak in MB of it and its children together."""
    before = os.times()
    began = time.perf_counter()
    process = subprocess.Popen(command)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, sum(map(_resident, [process.pid, *_descendants(process.pid)])))
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    after = os.times()
    if process.returncode:
        raise SystemExit(process.returncode)
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, busy, peak


def _descendants(process: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return found + [below for child in found for below in _descendants(child)]


def _resident(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))


def compare(one: Path, other: Path) -> int:
    """Raise unless two folders hold the same tiles, masks and labels; return the number of tiles."""
    tables = []
    for out in (one, other):
        with (out / "labels.csv").open(newline="") as file:
            tables.append({row["path"]: [row["mask"], *(row[name] for name in LABELS)] for row in csv.DictReader(file)})
    assert tables[0] == tables[1]
    for path, (mask, *_) in list(tables[0].items())[::17]:
        for name in (path, mask):
            assert np.array_equal(*(_pixels(out / name) for out in (one, other))), name
    return len(tables[0])


def _pixels(path: Path) -> Any:
    import rasterio
    from PIL import Image

    if path.suffix == ".png":  # a mask, which has no georeference and of which rasterio would warn
        return np.asarray(Image.open(path))
    with rasterio.open(path) as image:
        return image.read()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=10_000, help="side of the scene in pixels")
    parser.add_argument("--polygons", type=int, default=2_000)
    parser.add_argument("--tile", type=int, default=256, help="side of a tile in pixels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--plain", type=Path, nargs=2, metavar=("FOLDER", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        plain(options.plain[0], options.plain[1], options.tile)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_scene(folder, options.side, options.polygons)
        script = [sys.executable, __file__, "--tile", str(options.tile), "--plain", str(folder)]
        tile = [sys.executable, "-m", "ldstyle", "data", "tile", str(folder / "scene.tif"), "--size", str(options.tile)]
        tile += ["--labels", str(folder / "polygons.gpkg"), "--gap", "0", "--out"]
        found: dict[str, list[tuple[float, float, float]]] = {}
        for number in range(options.rounds):
            for workers in sorted({1, options.workers}):
                command = [*tile, str(folder / f"{workers}-{number}"), "--workers", str(workers)]
                found.setdefault(f"ldstyle, {workers} workers", []).append(measure(command))
            found.setdefault("plain", []).append(measure([*script, str(folder / f"plain-{number}")]))
            tiles = compare(folder / f"1-{number}", folder / f"plain-{number}")
        print(f"{tiles} tiles of {options.tile} px, scene of {options.side} px, {options.polygons} polygons")
        medians = {
            name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in found.items()
        }
        print_table(medians)


def print_table(medians: dict[str, list[Any]]) -> None:
    """Print a line per program, each with its ratio to the plain script."""
    plain_seconds, plain_busy, _ = medians["plain"]
    for name, (seconds, busy, peak) in medians.items():
        ratios = f"plain / this: time {plain_seconds / seconds:.2f}, CPU time {plain_busy / busy:.2f}"
        print(f"  {name:<20} {seconds:7.1f} s  {busy:7.1f} s of CPU  peak {peak:5.0f} MB  {ratios}")


if __name__ == "__main__":
    main()
