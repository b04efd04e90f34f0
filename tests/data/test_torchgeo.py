"""BigEarthNet v2 as torchgeo reads it, from a tiny fake in its real layout."""

from __future__ import annotations

import csv
from importlib.util import find_spec

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")

from ldstyle.cli import main  # noqa: E402
from ldstyle.data.domains.discovery import read_domains  # noqa: E402
from ldstyle.data.loading.decode import decode  # noqa: E402
from ldstyle.data.torchgeo import ImportOptions, import_torchgeo  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torchgeo's own imports warn of much
    pytest.mark.skipif(find_spec("torchgeo") is None, reason="needs the extra `torchgeo`"),
]

BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
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


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    import pandas

    folder = tmp_path_factory.mktemp("bigearthnet")
    (folder / "BigEarthNet-S1").mkdir()
    for number, (patch, _, _, _) in enumerate(PATCHES):
        tile = "_".join(patch.split("_")[:-2])
        for band, name in enumerate(BANDS):
            side = SIDES.get(name, 60)
            values = np.full((side, side), 100 * band + number, dtype=np.uint16)
            write_tif(folder / "BigEarthNet-S2" / tile / patch / f"{patch}_{name}.tif", values)
        clc = np.full((120, 120), 112, dtype=np.uint16)
        write_tif(folder / "Reference_Maps" / tile / patch / f"{patch}_reference_map.tif", clc)
    rows = [
        {"patch_id": patch, "labels": labels, "split": split, "country": country, "s1_name": f"S1_{patch}"}
        for patch, country, split, labels in PATCHES
    ]
    pandas.DataFrame(rows).to_parquet(folder / "metadata.parquet")
    return folder


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


def test_mistakes_are_named(root, tmp_path, capfd):
    command = ["data", "import", "--data", str(root), "--torchgeo"]
    mistakes = (
        (["BigEarthNetV3", "--domain-by", "country"], "Did you mean 'BigEarthNet"),
        (["BigEarthNetV2", "--domain-by", "contry"], "Did you mean 'country'?"),
        (["BigEarthNetV2", "--domain-by", "country", "--bands", "13"], "--bands must be numbers in 1 .. 12"),
        (["BigEarthNetV2", "--domain-by", "country", "--range", "5", "1"], "--range must be two rising numbers"),
        (["BigEarthNetV2", "--domain-by", "country", "--splits", "all"], "(all) cannot be read"),
    )
    for number, (wrong, said) in enumerate(mistakes):
        assert main([*command, *wrong, "--out", str(tmp_path / str(number))]) == 2
        assert said in capfd.readouterr().err
    command[3] = str(tmp_path)
    assert main([*command, "BigEarthNetV2", "--domain-by", "country", "--out", str(tmp_path / "none")]) == 2
    assert "BigEarthNetV2 (train) cannot be read from" in capfd.readouterr().err
