from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("pyogrio")

from tests.data.scenes.scenes import (  # noqa: E402
    GRID,
    LEFT,
    OPTIONS,
    RESOLUTION,
    SHAPES,
    TOP,
    UTM,
    files_of,
    noise,
    rectangle,
    write_polygons,
    write_raster,
)

from ldstyle.data.domains.discovery import read_domains  # noqa: E402
from ldstyle.data.loading.bands import find_format, load_image  # noqa: E402
from ldstyle.data.loading.splits import PARTS, split_domain  # noqa: E402
from ldstyle.data.scenes.cutting import BlockGrid, TileRules  # noqa: E402
from ldstyle.data.scenes.labels import LabelSource  # noqa: E402
from ldstyle.data.scenes.tiling import FEWEST_BLOCKS, tile_scenes  # noqa: E402
from ldstyle.runs.sources import ground_sides  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def rows_of(out):
    with (out / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def slow_regions(shapes, height, width):
    """Return where each label is, pixel by pixel: a pixel is inside if its centre is."""
    found = {}
    for label, outline in shapes:
        xs, ys = [(x - LEFT) / RESOLUTION for x, _ in outline], [(TOP - y) / RESOLUTION for _, y in outline]
        region = found.setdefault(label, np.zeros((height, width), dtype=bool))
        for row in range(height):
            for column in range(width):
                region[row, column] |= min(ys) < row + 0.5 < max(ys) and min(xs) < column + 0.5 < max(xs)
    return found


def test_tiles_masks_and_labels_equal_a_slow_pixelwise_oracle(tmp_path):
    pixels = noise(65, 85)
    scene = write_raster(tmp_path / "scene.tif", pixels)
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    made = tile_scenes([scene], tmp_path / "city", labels=labels, **OPTIONS)
    rows = rows_of(tmp_path / "city")
    assert list(rows[0]) == ["path", "mask", "scene", "domain", "gsd", "building", "water"]
    assert made.tiles == len(rows) == 3 * 4
    regions = slow_regions(SHAPES, 65, 85)
    for row in rows:
        top, left = map(int, Path(row["path"]).stem.split("_")[1:])
        with rasterio.open(tmp_path / "city" / row["path"]) as tile:
            np.testing.assert_array_equal(tile.read(), pixels[:, top : top + 20, left : left + 20])
            assert tile.crs == rasterio.CRS.from_user_input(UTM)
            assert (tile.transform.c, tile.transform.f) == (LEFT + 0.5 * left, TOP - 0.5 * top)
        with Image.open(tmp_path / "city" / row["mask"]) as mask:
            bits = np.asarray(mask)
        for bit, name in enumerate(("building", "water")):
            region = regions[name][top : top + 20, left : left + 20]
            np.testing.assert_array_equal((bits >> bit) & 1, region)
            fraction = region.mean()
            assert row[name] == ("1" if fraction >= 0.01 else "0" if fraction <= 0.001 else ""), (row, fraction)
    assert made.counts == {"building": (2, 9, 1), "water": (4, 8, 0)}
    (table,) = read_domains(tmp_path)
    assert (table.domain, len(table), table.vocabulary) == ("city", 12, ("building", "water"))


@pytest.mark.parametrize(
    ("crs", "place", "gsd"),
    [
        (UTM, (RESOLUTION, LEFT, TOP), 0.5),
        ("EPSG:2263", (2.0, 1_000_000, 200_000), 2 * 0.3048006),  # US survey feet
        ("EPSG:3857", (2.0, 1_669_792, 8_399_738), 1.0),  # at 60 degrees north
        ("EPSG:4326", (1e-5, 10, 0), 1.1132),
        ("EPSG:4326", (1e-5, 10, 60), 1.1132 * 0.5**0.5),
        ('LOCAL_CS["site",UNIT["metre",1]]', (0.5, 0, 0), None),
        (None, None, None),
    ],
)
def test_tiles_have_metres_per_pixel_from_the_georeference(tmp_path, crs, place, gsd):
    place = {"transform": rasterio.Affine(place[0], 0, place[1], 0, -place[0], place[2])} if place else {}
    scene = write_raster(tmp_path / "scene.tif", noise(40, 60), crs=crs, **place)
    classes = write_raster(tmp_path / "classes.tif", noise(40, 60, bands=1) // 128, crs=crs, **place)
    labels = LabelSource((classes,), classes={"1": "water"})
    tile_scenes([scene], tmp_path / "city", labels=labels, **OPTIONS)
    (table,) = read_domains(tmp_path)
    if gsd is None:
        assert "gsd" not in rows_of(tmp_path / "city")[0]
        assert (table.gsd, ground_sides(table, range(6))) == (None, None)
    else:
        assert table.gsd == pytest.approx([gsd] * 6, rel=1e-3)
        assert ground_sides(table, range(6)) == pytest.approx((20 * gsd, 20 * gsd), rel=1e-3)


def test_degrees_are_metres_at_the_latitude_of_the_tile(tmp_path):
    place = rasterio.Affine(0.5, 0, 10, 0, -0.5, 80)
    scene = write_raster(tmp_path / "scene.tif", noise(160, 20), crs="EPSG:4326", transform=place)
    classes = write_raster(tmp_path / "classes.tif", noise(160, 20, bands=1), crs="EPSG:4326", transform=place)
    tile_scenes([scene], tmp_path / "world", labels=LabelSource((classes,), classes={"1": "water"}), **OPTIONS)
    (table,) = read_domains(tmp_path)
    expected = [0.5 * 111_320 * math.sqrt(math.cos(math.radians(latitude))) for latitude in range(75, -1, -10)]
    assert table.gsd == pytest.approx(expected, rel=1e-4)


def test_many_bands_and_their_description_are_kept(tmp_path):
    pixels = noise(40, 40, bands=12, dtype="uint16")
    scene = write_raster(tmp_path / "s2.tif", pixels, nodata=0)
    with rasterio.open(scene, "r+") as raster:
        raster.descriptions = tuple(f"B{number}" for number in range(12))
        raster.scales, raster.offsets = (1e-4,) * 12, (-0.1,) * 12
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS)
    with rasterio.open(tmp_path / "out/images/s2_000020_000000.tif") as tile:
        np.testing.assert_array_equal(tile.read(), pixels[:, 20:, :20])
        assert (tile.nodata, tile.dtypes[0], tile.descriptions[11]) == (0, "uint16", "B11")
        assert (tile.scales[3], tile.offsets[3]) == (1e-4, -0.1)
    assert not list(tmp_path.rglob("*.aux.xml"))


@pytest.mark.parametrize("how", ["nodata", "nan", "alpha", "mask", "mask of float32"])
def test_tiles_without_enough_data_are_skipped_and_fractions_count_data_alone(tmp_path, how):
    pixels = noise(40, 60, dtype="float32" if how in ("nan", "mask of float32") else "uint8")
    hole = np.zeros((40, 60), dtype=bool)
    hole[:20, :20] = True  # all of the first tile
    hole[:20, 22:40] = True  # 90 % of the second
    hole[20:, 5:20] = True  # 75 % of the fourth
    if not how.startswith("mask"):
        pixels[:, hole] = np.nan if how == "nan" else 0
    if how == "alpha":
        pixels = np.concatenate([pixels, np.where(hole, 0, 255).astype("uint8")[None]])
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        scene = write_raster(tmp_path / "s.tif", pixels, **({"nodata": 0} if how == "nodata" else {}))
        with rasterio.open(scene, "r+") as raster:
            if how.startswith("mask"):
                raster.write_mask(~hole)
            if how == "alpha":
                raster.colorinterp = (*raster.colorinterp[:3], rasterio.enums.ColorInterp.alpha)
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", [("water", rectangle(20, 0, 40, 2))]),))
    rules = TileRules(min_valid=0.2, present=0.3)
    made = tile_scenes([scene], tmp_path / "out", labels=labels, grid=GRID, rules=rules)
    assert not any("alpha" in note for note in made.notes)
    rows = {Path(row["path"]).stem: row for row in rows_of(tmp_path / "out")}
    assert sorted(rows) == ["s_000000_000040", "s_000020_000000", "s_000020_000020", "s_000020_000040"]
    assert rows["s_000020_000000"]["water"] == "1"  # 2 of the 5 columns with data, a tenth of the tile
    if how == "mask":  # a mask of the tile's own would be a second page
        with Image.open(tmp_path / "out/images/s_000020_000000.tif") as tile:
            assert tile.n_frames == 1
    with rasterio.open(tmp_path / "out/images/s_000020_000000.tif") as tile:
        found = tile.read()[:, :, 5:]
        assert np.isnan(found).all() if found.dtype == np.float32 else not found.any()
        if how != "nan":  # NaN needs no statement
            assert np.isnan(tile.nodata) if found.dtype == np.float32 else tile.nodata == 0
    (table,) = read_domains(tmp_path / "out")
    image_format = find_format((), (0.0, 255.0) if found.dtype == np.float32 else (), [table], [[0]])
    trained = load_image(tmp_path / "out/images/s_000020_000000.tif", 20, image_format)
    assert len(np.unique(trained[:, :, 5:])) <= 3  # the mean of each band
    assert trained[:, :, 5:].min() > 0


def test_a_raster_of_classes_with_gaps_in_another_grid(tmp_path):
    classes = np.full((1, 60, 80), 7, dtype=np.uint8)
    classes[0, :20, :20] = 1
    classes[0, 20:40, :20] = 2
    classes[0, :20, 60:] = 255  # not annotated
    mask = write_raster(tmp_path / "mask.tif", classes, nodata=255)
    scene = write_raster(tmp_path / "scene.tif", noise(60, 80))
    source = LabelSource((mask,), classes={"1": "roof", "2": "roof", "7": "ground"})
    made = tile_scenes([scene], tmp_path / "out", labels=source, domains=["d"], **OPTIONS)
    assert made.counts == {"roof": (2, 9, 1), "ground": (9, 2, 1)}
    by_path = {row["path"]: row for row in rows_of(tmp_path / "out")}
    assert by_path["images/scene_000000_000060.tif"]["roof"] == ""

    coarse = np.ascontiguousarray(classes[:, ::2, ::2])
    place = rasterio.Affine(2 * RESOLUTION, 0, LEFT, 0, -2 * RESOLUTION, TOP)
    other = write_raster(tmp_path / "coarse.tif", coarse, nodata=255, transform=place)
    source = LabelSource((other,), classes=source.classes)
    assert tile_scenes([scene], tmp_path / "coarse", labels=source, **OPTIONS).counts == made.counts

    half = write_raster(tmp_path / "half.tif", np.ascontiguousarray(classes[:, :, :40]), nodata=255)
    source = LabelSource((half,), classes=source.classes)
    assert tile_scenes([scene], tmp_path / "half", labels=source, **OPTIONS).counts["ground"] == (4, 2, 6)


def test_a_split_keeps_neighbouring_tiles_together(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(400, 400, bands=1))
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    grid = BlockGrid(size=20, stride=10, block=3, gap=20)
    made = tile_scenes([scene], tmp_path / "city", labels=labels, grid=grid)
    assert made.notes == ()
    (table,) = read_domains(tmp_path)
    split = split_domain(table, seed=0)
    places = np.array([list(map(int, Path(key).stem.split("_")[1:])) for key in table.keys])
    parts = np.zeros(len(table), dtype=int)
    parts[split.validation], parts[split.test] = 1, 2
    assert set(parts) == {0, 1, 2}
    distance = np.abs(places[:, None] - places[None]).max(axis=2)
    assert (distance[parts[:, None] != parts[None]] >= 2 * 20).all()  # a whole tile lies between
    together = np.array(table.groups)[:, None] == np.array(table.groups)[None]
    assert (distance[together] <= 2 * 10).all()


def test_few_blocks_and_scenes_of_the_same_ground_are_noted(tmp_path):
    (tmp_path / "a").mkdir()
    one = write_raster(tmp_path / "a" / "x.tif", noise(40, 40))
    other = write_raster(tmp_path / "x.tif", noise(40, 40, seed=1), left=LEFT + 10)
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    made = tile_scenes([one, other], tmp_path / "out", labels=labels, domains=["a", "b"], **OPTIONS)
    assert "show the same ground" in made.notes[0]
    assert "'a' has 1, 'b' has 1" in made.notes[1]
    assert len(PARTS) == FEWEST_BLOCKS
    names = {row["path"].rpartition("_")[0].rpartition("_")[0] for row in rows_of(tmp_path / "out")}
    assert names == {"images/x", "images/x~2"}
    assert {(row["scene"], row["domain"]) for row in rows_of(tmp_path / "out")} == {("x-0-0", "a"), ("x~2-0-0", "b")}


def test_more_labels_than_bits_give_no_masks(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(40, 40))
    shapes = [(f"l{number}", rectangle(0, number, 20, number + 1)) for number in range(9)]
    made = tile_scenes(
        [scene], tmp_path / "out", labels=LabelSource((write_polygons(tmp_path / "p.geojson", shapes),)), **OPTIONS
    )
    assert "mask" not in rows_of(tmp_path / "out")[0]
    assert not list((tmp_path / "out/masks").iterdir())
    assert made.counts["l8"] == (1, 3, 0)
    assert "8 labels, and there are 9" in made.notes[-1]


def test_processes_give_the_same_files(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(100, 80))
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    for workers in (1, 2):
        tile_scenes([scene], tmp_path / str(workers), labels=labels, domains=["d"], workers=workers, **OPTIONS)
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2")


def test_an_interrupted_call_resumes_and_damaged_tiles_are_cut_again(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(100, 80))
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    whole, out = tmp_path / "whole", tmp_path / "out"
    tile_scenes([scene], whole, labels=labels, domains=["d"], **OPTIONS)

    def stop(done, total, what):
        assert total == 5
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tile_scenes([scene], out, labels=labels, domains=["d"], progress=stop, **OPTIONS)
    assert not (out / "labels.csv").exists()
    (out / "images" / ".scene_000060_000000.tif.123.tmp").write_bytes(b"torn")
    (out / "images" / "scene_000020_000000.tif").write_bytes(b"damaged")
    with (out / "tiles.jsonl").open("ab") as journal:
        journal.write(b'[["scene_000060')
    done = []
    made = tile_scenes(
        [scene], out, labels=labels, domains=["d"], progress=lambda number, *_: done.append(number), **OPTIONS
    )
    assert (made.resumed, done) == (4, [2, 3, 4, 5])
    assert files_of(out) == files_of(whole)
    done.clear()
    again = tile_scenes(
        [scene], out, labels=labels, domains=["d"], progress=lambda number, *_: done.append(number), **OPTIONS
    )
    assert (again.resumed, again.counts, done) == (20, made.counts, [])


KILLED = """
import sys, time
from pathlib import Path
from ldstyle.data.scenes.cutting import BlockGrid
from ldstyle.data.scenes.labels import LabelSource
from ldstyle.data.scenes.tiling import tile_scenes

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    grid = BlockGrid(size=20, stride=20, block=8, gap=0)
    slow = lambda done, total, what: time.sleep(0.1)
    tile_scenes([folder / "scene.tif"], folder / "out", labels=LabelSource((folder / "p.geojson",)), grid=grid,
                domains=["d"], workers=2, progress=slow)
"""


def test_a_killed_process_leaves_a_folder_that_can_be_finished_and_no_workers(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(800, 80))
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    script = tmp_path / "run.py"
    script.write_text(KILLED)
    process = subprocess.Popen([sys.executable, script, tmp_path])
    journal = tmp_path / "out" / "tiles.jsonl"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        time.sleep(0.02)
    children = [int(task) for task in _children(process.pid)]
    assert children
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while any(_runs(child) for child in children):
        time.sleep(0.02)
    assert not (tmp_path / "out/labels.csv").exists()
    made = tile_scenes([scene], tmp_path / "out", labels=labels, domains=["d"], **OPTIONS)
    assert made.resumed >= 3 * 4
    tile_scenes([scene], tmp_path / "whole", labels=labels, domains=["d"], **OPTIONS)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def _children(process):
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


def _runs(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_cutting_tiles_does_not_load_torch():
    """It would take most of the memory that tiling may use."""
    script = "import sys, ldstyle.data.scenes.tiling, ldstyle.cli.data.tiling; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_foreign_files_and_other_options_are_never_written_over(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(40, 40))
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    out = tmp_path / "out"
    (out / "images").mkdir(parents=True)
    (out / "images" / "scene_000000_000000.tif").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"out' was not written by `data tile`"):
        tile_scenes([scene], out, labels=labels, **OPTIONS)
    assert (out / "images" / "scene_000000_000000.tif").read_bytes() == b"mine"
    out = tmp_path / "new"
    tile_scenes([scene], out, labels=labels, **OPTIONS)
    before = files_of(out)
    with pytest.raises(FileExistsError, match="other scenes, labels or options"):
        tile_scenes([scene], out, labels=labels, grid=BlockGrid(10, 10, 8, 0))
    (out / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"also holds 'notes.txt'"):
        tile_scenes([scene], out, labels=labels, **OPTIONS)
    assert files_of(out) == before | {"notes.txt": b"mine"}


def test_a_call_without_tiles_can_be_repeated_with_other_options(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(40, 60) * (np.arange(60) % 4 == 0).astype("uint8"), nodata=0)
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    with pytest.raises(ValueError, match=r"No tile has data in 50% .* --min-valid"):
        tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS)
    made = tile_scenes([scene], tmp_path / "out", labels=labels, rules=TileRules(min_valid=0.2), **OPTIONS)
    assert made.tiles == len(rows_of(tmp_path / "out")) == 6


def test_a_second_process_is_refused(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(40, 40))
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))

    def again(*_):
        tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS)

    with pytest.raises(ValueError, match=r"Another process is writing to .*out'"):
        tile_scenes([scene], tmp_path / "out", labels=labels, progress=again, **OPTIONS)


def test_a_band_marked_as_alpha_and_labels_that_no_tile_shows_are_noted(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(60, 80, bands=4))
    labels = LabelSource(
        (write_polygons(tmp_path / "p.geojson", SHAPES),), classes={"water": "water", "bulding": "building"}
    )
    notes = tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS).notes
    assert "scene.tif' marks band 4 as alpha" in notes[0]
    assert "No tile shows building." in notes[-1]


def test_wrong_options_are_named(tmp_path):
    scene = write_raster(tmp_path / "scene.tif", noise(40, 40))
    polygons = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    with pytest.raises(ValueError, match=r"--absent and --present .* 0.2 and 0.1"):
        TileRules(absent=0.2, present=0.1)
    with pytest.raises(ValueError, match=r"--min-valid .* got 0"):
        TileRules(min_valid=0)
    with pytest.raises(ValueError, match=r"--labels 'm.tif' is a raster.* --classes"):
        LabelSource((Path("m.tif"),))
    with pytest.raises(ValueError, match="--labels must be one file of polygons"):
        LabelSource((Path("m.tif"), Path("p.gpkg")))
    with pytest.raises(ValueError, match="--one-label and --classes"):
        LabelSource((Path("p.gpkg"),), one_label="x", classes={"1": "y"})
    with pytest.raises(ValueError, match="--one-label, --labels-crs and --layer are for polygons"):
        LabelSource((Path("m.tif"),), layer="x", classes={"1": "y"})
    with pytest.raises(ValueError, match="shows no tile of 64 px"):
        tile_scenes([scene], tmp_path / "out", labels=polygons, grid=BlockGrid(64, 64, 8, 0))
    with pytest.raises(ValueError, match=r"--domain must name one .* each of 1 scenes; got 2"):
        tile_scenes([scene], tmp_path / "out", labels=polygons, domains=["a", "b"], **OPTIONS)
    labels = LabelSource((polygons.paths[0],), classes={"water": "scene"})
    with pytest.raises(ValueError, match=r"Labels must be names other than .* 'scene'"):
        tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS)
    labels = LabelSource((polygons.paths[0],), classes={"watre": "lake"})
    with pytest.raises(ValueError, match=r"--classes .* 'label' .* got 'watre'. It has 'building', 'water'"):
        tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS)
    with pytest.raises(ValueError, match=r"--classes of a raster .* numbers as values; got 'roof'"):
        LabelSource((scene,), classes={"1": "x", "roof": "roof"})
    wide = write_raster(tmp_path / "wide.tif", noise(40, 40).astype("float64"))
    with pytest.raises(ValueError, match=r"wide.tif' must have values of type .* it has float64"):
        tile_scenes([wide], tmp_path / "out", labels=polygons, **OPTIONS)
    labels = LabelSource((scene, scene), classes={"1": "x"})
    with pytest.raises(ValueError, match="a raster for each of 1 scenes"):
        tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS)
    with pytest.raises(ValueError, match="must have one band"):
        tile_scenes([scene], tmp_path / "out", labels=LabelSource((scene,), classes={"1": "x"}), **OPTIONS)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_named_and_the_call_can_be_repeated(tmp_path, monkeypatch):
    scene = write_raster(tmp_path / "scene.tif", noise(60, 40))
    labels = LabelSource((write_polygons(tmp_path / "p.geojson", SHAPES),))
    write = Path.write_bytes

    def full(path, content):
        if path.name.startswith(".scene_000040"):
            raise OSError(28, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match=r"scene_000040_000000.tif.*the disk is full"):
            tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS)
    assert tile_scenes([scene], tmp_path / "out", labels=labels, **OPTIONS).resumed == 4
