import random

import numpy as np
import pytest

from ldstyle.data.domains.archives import AID, DFC15, UCM, find_images, read_aid, read_archive, read_dfc15, read_ucm
from ldstyle.data.domains.scene_table import PAPER_VOCABULARY
from ldstyle.data.domains.table1 import count
from ldstyle.data.domains.vocabulary import LabelMap

LAND_USE = {
    "building": "buildings",
    "car": "cars",
    "tree": "trees",
    "water": "water",
    "pavement": "pavement",
    "ship": "ship",
}
ZEEBRUGGE = {
    "building": "building",
    "car": "car",
    "tree": "tree",
    "water": "water",
    "pavement": "impervious",
    "ship": "boat",
}


def by_name(table):
    """Each image's name and the labels present in it."""
    names = [key.rsplit("/", 1)[-1].split(".")[0] for key in table.keys]
    present = [{word for word, value in zip(table.vocabulary, row, strict=True) if value == 1} for row in table.labels]
    return dict(zip(names, present, strict=True))


def expected(rows, names):
    return {name: {label for label, word in names.items() if word in text.split()} for name, text in rows.items()}


@pytest.mark.parametrize("suffix", [".tif", ".jpg", ".png", ".JPG"])
def test_ucm_reads_with_images_of_any_kind(tmp_path, layouts, suffix):
    table = read_ucm(layouts.ucm(tmp_path, suffix=suffix))
    assert by_name(table) == expected(layouts.UCM, LAND_USE)
    assert table.keys[0] == f"UCMerced_LandUse/Images/agricultural/agricultural00{suffix}"
    assert table.vocabulary == PAPER_VOCABULARY
    assert all(table.path(row).is_file() for row in range(len(table)))


@pytest.mark.parametrize("nested", ["", "images", "AID_multilabel/images"])
def test_aid_reads_however_deep_its_images_are(tmp_path, layouts, nested):
    assert by_name(read_aid(layouts.aid(tmp_path, nested=nested))) == expected(layouts.AID, LAND_USE)


def test_dfc15_reads_with_integer_names(tmp_path, layouts):
    table = read_dfc15(layouts.dfc15(tmp_path))
    assert by_name(table) == expected(layouts.DFC15, ZEEBRUGGE)
    assert set(table.keys) == {"images_tr/1.png", "images_test/2.png", "images_tr/10.png"}


def test_numbered_images_match_with_or_without_leading_zeros(tmp_path, layouts, make_image):
    layouts.dfc15(tmp_path, images=False)
    for name in ("0001", "0002", "0010"):
        make_image(tmp_path / "images_tr" / f"{name}.png")
    assert by_name(read_dfc15(tmp_path)).keys() == {"0001", "0002", "0010"}


@pytest.mark.parametrize("delimiter", ["\t", ","])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("corner", ["IMAGE\\LABEL", "image\\label", '"IMAGE\\LABEL"', "Image/Label"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_every_spelling_of_the_table_gives_the_same_labels(tmp_path, layouts, delimiter, newline, corner, encoding):
    reference = read_aid(layouts.aid(tmp_path))
    rows = list(layouts.AID.items())
    random.Random(0).shuffle(rows)
    labels = ["cars", "ship", "sea", "pavement", "trees", "water", "grass", "buildings"]
    layouts.table(
        tmp_path / "multilabel.csv",
        {f"{name}.jpg".title(): text for name, text in rows},
        labels,
        corner=corner,
        delimiter=delimiter,
        newline=newline,
        encoding=encoding,
    )
    table = read_aid(tmp_path)
    assert table.keys == reference.keys
    assert np.array_equal(table.labels, reference.labels)


def test_sea_is_dropped_unless_merged_into_water(tmp_path, layouts):
    layouts.ucm(tmp_path / "ucm")
    assert by_name(read_ucm(tmp_path / "ucm"))["beach03"] == set()
    assert by_name(read_ucm(tmp_path / "ucm", sea="water+sea"))["beach03"] == {"water"}
    assert by_name(read_ucm(tmp_path / "ucm", sea="water+sea"))["harbor03"] == {"water", "ship"}
    layouts.dfc15(tmp_path / "dfc15")
    assert by_name(read_dfc15(tmp_path / "dfc15", sea="water+sea")) == by_name(read_dfc15(tmp_path / "dfc15"))
    with pytest.raises(ValueError, match=r"`sea` must be 'drop' or 'water\+sea'; got 'keep'"):
        read_ucm(tmp_path / "ucm", sea="keep")


def test_singular_names_of_the_paper_are_understood(tmp_path, layouts):
    layouts.ucm(tmp_path)
    table = tmp_path / "LandUse_Multilabeled.txt"
    table.write_text(table.read_text().replace("buildings", "building").replace("trees", "tree"))
    assert by_name(read_ucm(tmp_path)) == expected(layouts.UCM, LAND_USE)


def test_a_label_map_widens_the_vocabulary(tmp_path, layouts):
    label_map = LabelMap(("car", "grass", "bare", "ship"), {"aid": {"bare-soil": "bare", "dock": "ship"}})
    table = read_archive(AID, layouts.aid(tmp_path), label_map=label_map)
    assert by_name(table) == {"airport_1": {"car"}, "bareland_9": {"bare"}, "park_101": {"grass"}, "port_2": {"ship"}}


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"UCM not found: there is no folder '.*nowhere'"):
        read_ucm(tmp_path / "nowhere")


def test_a_missing_label_table_is_an_error(tmp_path, layouts):
    (layouts.aid(tmp_path) / "multilabel.csv").write_text("something,else\n1,2\n")
    with pytest.raises(FileNotFoundError, match=r"AID label table not found .* Expected 'multilabel.csv'"):
        read_aid(tmp_path)


def test_two_label_tables_are_an_error(tmp_path, layouts):
    layouts.aid(tmp_path)
    layouts.table(tmp_path / "old" / "multilabel.csv", layouts.AID, ["cars"])
    with pytest.raises(ValueError, match=r"one label table; .* has 2: 'multilabel.csv', 'old/multilabel.csv'"):
        read_aid(tmp_path)


def test_labels_read_without_images_only_where_that_is_asked_for(tmp_path, layouts):
    layouts.dfc15(tmp_path, images=False)
    with pytest.raises(
        FileNotFoundError,
        match=r"DFC15 images not found in .* Expected 3342 files below 'images_tr/' and 'images_test/'; found 0",
    ):
        read_dfc15(tmp_path)
    table = read_archive(DFC15, tmp_path, require_images=False)
    assert by_name(table) == expected(layouts.DFC15, ZEEBRUGGE)


def test_missing_images_are_named_and_counted(tmp_path, layouts):
    layouts.ucm(tmp_path)
    for name in ("beach03", "harbor03"):
        next(tmp_path.rglob(f"{name}.tif")).unlink()
    with pytest.raises(
        FileNotFoundError, match=r"2 of 4 UCM images not found in .*: 'beach03', 'harbor03'. Expected 2100"
    ):
        read_ucm(tmp_path)
    problems = []
    assert by_name(read_archive(UCM, tmp_path, report=problems.append)).keys() == {"agricultural00", "parkinglot03"}
    assert len(problems) == 1


def test_extra_images_are_named_and_counted(tmp_path, layouts, make_image):
    layouts.ucm(tmp_path)
    for number in range(5):
        make_image(tmp_path / "UCMerced_LandUse" / f"extra{number}.png")
    with pytest.raises(ValueError, match=r"must have a row; 5 in .* 'UCMerced_LandUse/extra0.png'.* and 2 more"):
        read_ucm(tmp_path)
    assert by_name(read_archive(UCM, tmp_path, report=lambda problem: None)) == expected(layouts.UCM, LAND_USE)


def test_two_images_for_one_row_are_an_error(tmp_path, layouts, make_image):
    layouts.ucm(tmp_path)
    make_image(tmp_path / "UCMerced_LandUse/Images/beach/beach03.jpg")
    with pytest.raises(ValueError, match=r"one image; 1 in .* have several: '.*beach03.jpg = .*beach03.tif'"):
        read_ucm(tmp_path)


def test_a_repeated_row_is_an_error(tmp_path, layouts):
    layouts.ucm(tmp_path)
    with (tmp_path / "LandUse_Multilabeled.txt").open("a") as file:
        file.write("Beach03.tif" + "\t0" * 11 + "\t1\t1" + "\t0" * 4 + "\r\n")
    with pytest.raises(ValueError, match=r"one row; 1 in .* have several: 'beach03 \(lines 3, 6\)'. Remove"):
        read_ucm(tmp_path)


def test_a_label_of_another_value_is_an_error(tmp_path, layouts):
    table = layouts.aid(tmp_path) / "multilabel.csv"
    table.write_text(table.read_text().replace("port_2,0", "port_2,2"))
    with pytest.raises(ValueError, match=r"1 cells of .* are not: '2 \(line 5, column airplane\)'"):
        read_aid(tmp_path)


def test_a_misspelt_label_is_an_error_with_a_suggestion(tmp_path, layouts):
    table = layouts.aid(tmp_path) / "multilabel.csv"
    table.write_text(table.read_text().replace("buildings", "buidlings"))
    with pytest.raises(ValueError, match=r"AID has a label 'buildings'; the header .* Did you mean 'buidlings'\?"):
        read_aid(tmp_path)


def test_hidden_files_and_mac_leftovers_are_no_images(tmp_path, make_image):
    for name in ("a.png", ".hidden.png", "__MACOSX/b.png", ".git/c.png"):
        make_image(tmp_path / name)
    (tmp_path / "Thumbs.db").touch()
    assert [path.name for path in find_images(tmp_path)] == ["a.png"]


@pytest.mark.data
@pytest.mark.parametrize(
    ("archive", "positives", "per_image", "empty"),
    [
        (UCM, (691, 886, 1009, 203, 1300, 102), "2.00", 323),
        (AID, (2161, 2026, 2407, 852, 2328, 284), "3.35", 262),
        (DFC15, (1001, 705, 258, 998, 3133, 270), "1.90", 0),
    ],
    ids=lambda value: getattr(value, "domain", None),
)
def test_the_real_tables_hold_the_counts_of_the_paper(real_data, archive, positives, per_image, empty):
    table = read_archive(archive, real_data / archive.domain, require_images=archive is not DFC15)
    assert len(table) == archive.images
    assert tuple((table.labels == 1).sum(axis=0)) == positives
    assert f"{count(table).labels_per_image:.2f}" == per_image
    assert int((table.labels == 1).any(axis=1).sum()) == archive.images - empty
    assert not (table.labels == -1).any()


@pytest.mark.data
def test_the_released_tiffs_are_found(real_data, tmp_path, layouts):
    (tmp_path / "ucm").mkdir()
    (tmp_path / "ucm" / "UCMerced_LandUse").symlink_to(real_data / "ucm_original_sample" / "UCMerced_LandUse")
    names = [path.stem for path in find_images(tmp_path / "ucm")]
    assert len(names) == 6
    layouts.table(tmp_path / "ucm" / "labels.txt", dict.fromkeys(names, "cars"), list(LAND_USE.values()))
    assert set(by_name(read_ucm(tmp_path / "ucm"))) == set(names)
