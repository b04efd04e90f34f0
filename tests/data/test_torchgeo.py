"""Multi-label data sets as torchgeo reads them, from tiny fakes in their real layouts."""

from __future__ import annotations

import csv
import json
import sys
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest
import yaml

rasterio = pytest.importorskip("rasterio")

from PIL import Image  # noqa: E402
from tests.data import fake_torchgeo  # noqa: E402

from ldstyle.benchmark.grid.presets import load_preset  # noqa: E402
from ldstyle.cli import main  # noqa: E402
from ldstyle.data.domains.discovery import read_domains  # noqa: E402
from ldstyle.data.loading.decode import decode  # noqa: E402
from ldstyle.data.torchgeo import ImportOptions, import_torchgeo  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torchgeo's own imports warn of much

INSTALLED = pytest.mark.skipif(find_spec("torchgeo") is None, reason="needs the extra `torchgeo`")
BANDS = fake_torchgeo.S2
SIDES = {"B01": 20, "B09": 20, "B02": 120, "B03": 120, "B04": 120, "B08": 120}
PATCHES = [  # S2 patch, country, split, labels
    ("S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP_26_57", "Austria", "train", ["Urban fabric", "Pastures"]),
    ("S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP_26_58", "Austria", "validation", ["Inland waters"]),
    ("S2B_MSIL2A_20171218T090349_N9999_R007_T35VPK_12_03", "Finland", "train", ["Coniferous forest"]),
    ("S2B_MSIL2A_20180421T114349_N9999_R123_T29UNV_70_10", "Ireland", "test", ["Pastures", "Marine waters"]),
]


def write_tif(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = values.shape
    place = rasterio.Affine(1200 / width, 0, 300_000, 0, -1200 / height, 5_000_000)
    profile = {"driver": "GTiff", "height": height, "width": width, "count": 1, "dtype": values.dtype}
    with rasterio.open(path, "w", crs="EPSG:32633", transform=place, **profile) as raster:
        raster.write(values, 1)


@pytest.fixture(autouse=True, params=["stand-in", pytest.param("installed", marks=INSTALLED)])
def torchgeo(request, monkeypatch):
    """Run every test on the stand-in, and on torchgeo itself where it is installed."""
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "torchgeo", ModuleType("torchgeo"))
        monkeypatch.setitem(sys.modules, "torchgeo.datasets", fake_torchgeo.module())


def write_fake(folder, patches):
    """Write patches of BigEarthNet v2: S2 patch, country, split and labels of each."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    (folder / "BigEarthNet-S1").mkdir(parents=True)
    for number, (patch, _, _, _) in enumerate(patches):
        tile = "_".join(patch.split("_")[:-2])
        for band, name in enumerate(BANDS):
            side = SIDES.get(name, 60)
            values = np.full((side, side), 100 * band + number, dtype=np.uint16)
            write_tif(folder / "BigEarthNet-S2" / tile / patch / f"{patch}_{name}.tif", values)
        clc = np.full((120, 120), 112, dtype=np.uint16)
        write_tif(folder / "Reference_Maps" / tile / patch / f"{patch}_reference_map.tif", clc)
    rows = [
        {"patch_id": patch, "labels": labels, "split": split, "country": country, "s1_name": f"S1_{patch}"}
        for patch, country, split, labels in patches
    ]
    pandas.DataFrame(rows).to_parquet(folder / "metadata.parquet")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_fake(tmp_path_factory.mktemp("bigearthnet"), PATCHES)


def rows_of(out):
    with (out / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_countries_become_domains_with_the_nineteen_labels(root, tmp_path):
    done = []
    table, counts = import_torchgeo(
        "BigEarthNetV2",
        root,
        tmp_path / "ben",
        options=ImportOptions(domain_by="country"),
        progress=lambda number, total, what: done.append((number, total)),
    )
    assert counts == {"Austria": 2, "Finland": 1, "Ireland": 1}
    assert done == [(1, 3), (2, 3), (3, 3)]
    rows = {row["path"]: row for row in rows_of(tmp_path / "ben")}
    assert len(next(iter(rows.values()))) == 3 + 19
    for number, (patch, country, _, labels) in enumerate(PATCHES):
        row = rows[f"images/{patch}.tif"]
        assert (row["domain"], row["scene"]) == (country, "_".join(patch.split("_")[:-2]))
        assert {name for name, cell in row.items() if cell == "1"} == set(labels)
        assert sum(cell == "0" for cell in row.values()) == 19 - len(labels)
        with rasterio.open(table.parent / row["path"]) as image:
            assert (image.count, image.dtypes[0], image.shape) == (12, "uint16", (120, 120))
            np.testing.assert_array_equal(image.read()[:, 0, 0], [100 * band + number for band in range(12)])
    again = import_torchgeo("BigEarthNetV2", root, tmp_path / "ben", options=ImportOptions(domain_by="country"))
    assert again == (table, counts)
    with pytest.raises(FileExistsError, match="other scenes, labels or options"):
        import_torchgeo("BigEarthNetV2", root, tmp_path / "ben", options=ImportOptions(domain_by="season"))


def test_the_command_writes_seasons_in_eight_bits_that_training_reads(root, tmp_path, capfd):
    out = tmp_path / "data" / "ben"
    command = ["data", "import", "--torchgeo", "BigEarthNetV2", "--data", str(root), "--out", str(out)]
    assert main([*command, "--domain-by", "season", "--bands", "4", "3", "2", "--range", "0", "600"]) == 0
    assert "summer: 2 images" in capfd.readouterr().out
    domains = {table.domain: table for table in read_domains(tmp_path / "data")}
    assert sorted(domains) == ["spring", "summer", "winter"]
    pixels = decode(domains["winter"].path(0), 8)
    expected = np.round((np.array([300, 200, 100]) + 2) * 255 / 600)
    np.testing.assert_array_equal(pixels[:, 0, 0], expected)


def write_bands(folder, stem, value):
    for band, name in enumerate(BANDS):
        side = SIDES.get(name, 60)
        write_tif(folder / f"{stem}_{name}.tif", np.full((side, side), value + band, dtype=np.uint16))


def test_the_first_bigearthnet_names_patches_by_their_folders(tmp_path):
    root, patch = tmp_path / "v1", "S2A_MSIL2A_20170613T101031_0_45"
    write_bands(root / "BigEarthNet-v1.0" / patch, patch, 500)
    labels = json.dumps({"labels": ["Pastures", "Coniferous forest"]})
    (root / "BigEarthNet-v1.0" / patch / f"{patch}_labels_metadata.json").write_text(labels)
    for split in ("train", "val", "test"):
        (root / f"bigearthnet-{split}.csv").write_text(f"{patch},S1_{patch}\n" if split == "val" else "")
    options = ImportOptions(domain_by="season", splits=("val",))
    _, counts = import_torchgeo("BigEarthNet", root, tmp_path / "out", options=options)
    assert counts == {"summer": 1}
    (row,) = rows_of(tmp_path / "out")
    assert (row["path"], row["scene"]) == (f"images/{patch}.tif", "S2A_MSIL2A_20170613T101031")
    assert {name for name, cell in row.items() if cell == "1"} == {"Pastures", "Coniferous forest"}
    options = ImportOptions(domain_by="season", splits=("val",), arguments=(("num_classes", "43"),))
    import_torchgeo("BigEarthNet", root, tmp_path / "all", options=options)
    assert len(rows_of(tmp_path / "all")[0]) == 3 + 43


def test_one_sensor_of_treesatai_becomes_the_images(tmp_path):
    root, file = tmp_path / "trees", "Abies_alba_1_834_WEFL_NLF.tif"
    for sensor, value in (("aerial", 80), ("s1", -12.5), ("s2", 900)):
        write_tif(root / sensor / "60m" / file, np.full((6, 6), value, "uint16" if value > 0 else "float32"))
    (root / "labels").mkdir()
    labels = {file: [["Abies", 0.93], ["Picea", 0.06]]}
    (root / "labels" / "TreeSatBA_v9_60m_multi_labels.json").write_text(json.dumps(labels))
    for split, names in (("train", file), ("test", file)):
        (root / f"{split}_filenames.lst").write_text(f"{names}\n")
    found = {}
    for sensor in ("s1", "s2"):
        options = ImportOptions(domain_by="split", splits=("train", "test"), arguments=(("sensors", sensor),))
        _, counts = import_torchgeo("TreeSatAI", root, tmp_path / sensor, options=options)
        assert counts == {"train": 1, "test": 1}
        rows = rows_of(tmp_path / sensor)
        assert len({row["path"] for row in rows}) == 2
        with rasterio.open(tmp_path / sensor / rows[0]["path"]) as image:
            found[sensor] = (image.dtypes[0], float(image.read()[0, 0, 0]))
        assert {name for name, cell in rows[0].items() if cell == "1"} == {"Abies", "Picea"}
    assert found == {"s1": ("float32", -12.5), "s2": ("uint16", 900)}
    with pytest.raises(ValueError, match=r"one image.*image_aerial.*--option sensors=s2"):
        import_torchgeo("TreeSatAI", root, tmp_path / "three", options=ImportOptions("split", splits=("train",)))
    with pytest.raises(FileNotFoundError, match=r"TreeSatAI \(val\) cannot be read from .*--splits"):
        import_torchgeo("TreeSatAI", root, tmp_path / "val", options=ImportOptions("split", splits=("val",)))


def test_labels_that_are_numbers_of_classes_stay_eight_bits(tmp_path):
    root = tmp_path / "aid"
    images = {"train/agriculture_land/grassland/meadow/P1.jpg": 40, "train/water_area/lake/P2.jpg": 90,
              "test/water_area/river/P1.jpg": 120}  # fmt: skip
    for name, value in images.items():
        (root / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((8, 9, 3), value, np.uint8)).save(root / name)
    _, counts = import_torchgeo("MillionAID", root, tmp_path / "out", options=ImportOptions(domain_by="split"))
    assert counts == {"train": 2, "test": 1}
    rows = {row["path"]: row for row in rows_of(tmp_path / "out")}
    lake, river = rows["images/train_P2.tif"], rows["images/test_P1.tif"]
    assert {name for name, cell in lake.items() if cell == "1"} == {"water_area", "lake"}
    assert {name for name, cell in river.items() if cell == "1"} == {"water_area", "river"}
    assert (lake["meadow"], lake["river"], river["lake"]) == ("0", "", "")  # unknown where the split lacks a class
    with rasterio.open(tmp_path / "out" / lake["path"]) as image:
        assert (image.count, image.dtypes[0], image.shape) == (3, "uint8", (8, 9))


def test_images_of_one_name_do_not_overwrite_each_other(tmp_path, monkeypatch):
    """Each is written under a name of its own, also when an import is resumed between them."""
    root = tmp_path / "aid"
    images = {"train/water_area/lake/P1.jpg": 40, "train/water_area/river/P1.jpg": 90,
              "train/water_area/sea/p1.jpg": 160, "test/water_area/lake/P1.jpg": 220}  # fmt: skip
    for name, value in images.items():
        (root / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((8, 9, 3), value, np.uint8)).save(root / name)
    monkeypatch.setattr("ldstyle.data.torchgeo._AT_ONCE", 1)

    def stop(number, _total, _what):
        if number == 2:
            raise KeyboardInterrupt

    options = ImportOptions(domain_by="split")
    with pytest.raises(KeyboardInterrupt):
        import_torchgeo("MillionAID", root, tmp_path / "out", options=options, progress=stop)
    _, counts = import_torchgeo("MillionAID", root, tmp_path / "out", options=options)
    assert counts == {"train": 3, "test": 1}
    found = {}
    for row in rows_of(tmp_path / "out"):
        with rasterio.open(tmp_path / "out" / row["path"]) as image:
            (kind,) = (name for name in ("lake", "river", "sea") if row.get(name) == "1")
            found[row["path"]] = (kind, int(image.read()[0, 0, 0]), row["scene"].casefold())
    assert found == {
        "images/train_P1.tif": ("lake", 40, "train_p1"),
        "images/train_P1~2.tif": ("river", 90, "train_p1"),
        "images/train_p1~3.tif": ("sea", 160, "train_p1"),
        "images/test_P1.tif": ("lake", 220, "test_p1"),
    }


def test_values_that_do_not_fit_the_first_image_are_refused(root, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ldstyle.data.torchgeo._image", lambda sample: np.full((1, 4, 4), 7.5 if sample["label"][17] else 7.0)
    )
    options = ImportOptions(domain_by="country")
    with pytest.raises(ValueError, match=r"T33UUP_26_58' from 7.5 to 7.5 .*--dtype uint16.*--dtype float32"):
        import_torchgeo("BigEarthNetV2", root, tmp_path / "mixed", options=options)
    options = ImportOptions(domain_by="country", dtype="float32")
    _, counts = import_torchgeo("BigEarthNetV2", root, tmp_path / "float", options=options)
    assert sum(counts.values()) == 4


def test_the_preset_trains_on_the_imported_countries(tmp_path):
    """Leave-one-country-out at the size of the patches, with a tiny backbone and few steps."""
    patches = [
        (f"S2A_MSIL2A_2017061{day}T101031_N9999_R022_T{zone}_26_5{day}", country, "train",
         ["Pastures"] if day % 2 else ["Urban fabric", "Inland waters"])
        for country, zone in (("Austria", "33UUP"), ("Finland", "35VPK"), ("Ireland", "29UNV"))
        for day in range(1, 7)
    ]  # fmt: skip
    root, data = write_fake(tmp_path / "bigearthnet", patches), tmp_path / "data"
    command = ["data", "import", "--torchgeo", "BigEarthNetV2", "--data", str(root), "--out", str(data / "ben")]
    bands = ["--bands", "4", "3", "2", "--range", "0", "600", "--splits", "train"]
    assert main([*command, "--domain-by", "country", *bands]) == 0
    (tmp_path / "preset.yaml").write_text(yaml.safe_dump(load_preset("bigearthnet").settings))
    train = ["train", "--method", "ld-mixstyle", "--config", str(tmp_path / "preset.yaml"), "--data", str(data)]
    tiny = ["--backbone.name", "test_resnet", "--backbone.weights", "none", "--optimizer.epochs", "2",
            "--optimizer.steps-per-epoch", "1", "--optimizer.batch-size", "4", "--stages", "1"]  # fmt: skip
    rest = ["--out", str(tmp_path / "run"), "--cache", str(tmp_path / "cache"), "--accelerator", "cpu", "--quiet"]
    assert main([*train, *tiny, *rest, "--sources", "Austria", "Finland", "--logger", "none"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--domain", "Ireland", "--quiet"]) == 0
    config = json.loads((tmp_path / "run" / "record.json").read_text())["config"]
    assert (config["data"]["size"], config["optimizer"]["epochs"]) == (120, 2)


def test_mistakes_are_named(root, tmp_path, capfd):
    command = ["data", "import", "--data", str(root), "--torchgeo"]
    mistakes = (
        (["BigEarthNetV3", "--domain-by", "country"], "Did you mean 'BigEarthNet"),
        (["BigEarthNetV2", "--domain-by", "contry"], "Did you mean 'country'?"),
        (["BigEarthNetV2", "--domain-by", "country", "--bands", "13"], "--bands must be numbers in 1 .. 12"),
        (["BigEarthNetV2", "--domain-by", "country", "--range", "5", "1"], "--range must be two rising numbers"),
        (["BigEarthNetV2", "--domain-by", "country", "--splits", "all"], "(all) cannot be read"),
        (["BigEarthNetV2", "--domain-by", "country", "--option", "band=s1"], "Did you mean 'bands'?"),
        (["BigEarthNet", "--domain-by", "split", "--option", "num_classes=many"], "must be a number; got 'many'"),
        (["BigEarthNetV2", "--domain-by", "country", "--dtype", "int8"], "--dtype must be one of"),
        (["BigEarthNetV2", "--domain-by", "country", "--dtype", "int16", "--range", "0", "1"], "got int16"),
    )
    for number, (wrong, said) in enumerate(mistakes):
        assert main([*command, *wrong, "--out", str(tmp_path / str(number))]) == 2
        assert said in capfd.readouterr().err
    command[3] = str(tmp_path)
    assert main([*command, "BigEarthNetV2", "--domain-by", "country", "--out", str(tmp_path / "none")]) == 2
    assert "BigEarthNetV2 (train) cannot be read from" in capfd.readouterr().err


def test_an_incomplete_installation_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchgeo.datasets", None)
    with pytest.raises(ValueError, match=r"extra `torchgeo`.*\(import of torchgeo.datasets"):
        import_torchgeo("BigEarthNetV2", tmp_path, tmp_path / "out", options=ImportOptions(domain_by="country"))
