import numpy as np
import pytest

from ldstyle.data.domains.csv import LabelColumns, read_table, unlisted_images
from ldstyle.data.domains.vocabulary import LabelMap


@pytest.fixture
def folder(tmp_path, make_image):
    for name in ("a", "b", "c"):
        make_image(tmp_path / "mine" / "images" / f"{name}.png")
        make_image(tmp_path / "mine" / "masks" / f"{name}.png")
    return tmp_path / "mine"


def write(folder, text):
    (folder / "labels.csv").write_text(text)
    return folder / "labels.csv"


def test_one_table_holds_several_domains(folder):
    text = "path,domain,tree,car\nimages/a.png,east,1,0\nimages/b.png,west,,1\nimages/c.png,east,0,\n"
    east, west = read_table(write(folder, text))
    assert (east.domain, west.domain) == ("east", "west")
    assert east.vocabulary == west.vocabulary == ("tree", "car")
    assert east.keys == ("images/a.png", "images/c.png")
    assert east.labels.tolist() == [[1, 0], [0, -1]]
    assert west.labels.tolist() == [[-1, 1]]
    assert east.masks is east.groups is east.mask_bits is None
    assert west.path(0) == folder / "images" / "b.png"
    assert [table.domain for table in read_table(folder / "labels.csv", domains=["west"])] == ["west"]


def test_a_table_without_domains_takes_its_folders_name(folder):
    (table,) = read_table(write(folder, "tree,path\n1,images/a.png\n"))
    assert table.domain == "mine"


def test_masks_and_scenes_come_along(folder):
    text = "path,mask,scene,tree\nimages/a.png,masks/a.png,7,1\nimages/b.png,,7,0\nimages/c.png,,,1\n"
    (table,) = read_table(write(folder, text))
    assert table.masks == ("masks/a.png", None, None)
    assert table.groups == ("7", "7", "images/c.png")
    assert table.mask_bits is None


def test_labels_and_mask_bits_are_brought_to_the_vocabulary(folder, tmp_path):
    text = "path,mask,oak,car,fir\nimages/a.png,masks/a.png,0,1,1\nimages/b.png,,0,0,\nimages/c.png,,0,1,0\n"
    yaml = tmp_path / "map.yaml"
    yaml.write_text("vocabulary: [car, ship, tree]\ndomains: {mine: {oak: tree, fir: tree}}\n")
    (table,) = read_table(write(folder, text), mapping=yaml)
    assert table.vocabulary == ("car", "ship", "tree")
    assert table.labels.tolist() == [[1, -1, 1], [0, -1, -1], [1, -1, 0]]
    assert table.mask_bits == ((1,), (), (0, 2))


def test_each_domain_of_one_table_has_its_own_names(folder):
    text = "path,domain,roof,house\nimages/a.png,x,1,\nimages/b.png,y,,0\n"
    label_map = LabelMap(("building",), {"x": {"roof": "building"}, "y": {"house": "building"}})
    x, y = read_table(write(folder, text), mapping=label_map)
    assert (x.labels.tolist(), y.labels.tolist()) == ([[1]], [[0]])


def test_paths_are_brought_to_one_spelling(folder):
    (table,) = read_table(write(folder, "path,tree\n./images/a.png,1\nimages\\b.png,1\nimages/../images/c.png,0\n"))
    assert table.keys == ("images/a.png", "images/b.png", "images/c.png")


@pytest.mark.parametrize(
    "path", ["../x.png", "images/../../x.png", "/etc/passwd", "C:\\x.png", "C:x.png", "..\\x.png", "\\\\host\\x.png"]
)
@pytest.mark.parametrize("column", ["path", "mask"])
def test_a_path_that_leaves_the_folder_is_an_error(folder, path, column):
    other = {"path": "mask", "mask": "path"}[column]
    with pytest.raises(ValueError, match=r"below the folder of their table; 1 of .* do not: '.* \(line 2\)'"):
        read_table(write(folder, f"{column},{other},tree\n{path},images/a.png,1\n"))


def test_a_blank_path_is_an_error(folder):
    with pytest.raises(ValueError, match=r"Paths must name files .* ' \(line 3\)'"):
        read_table(write(folder, "path,tree\nimages/a.png,1\n,0\n"))


def test_missing_files_are_named_and_counted(folder):
    rows = (
        "".join(f"images/x{i}.png,,1\n" for i in range(4)) + "images/a.png,masks/x.png,1\nimages/b.png,masks/b.png,0\n"
    )
    path = write(folder, "path,mask,tree\n" + rows)
    with pytest.raises(FileNotFoundError, match=r"5 of 6 rows of domain 'mine' .*: 'images/x0.png'.* and 2 more"):
        read_table(path)
    problems = []
    (table,) = read_table(path, report=problems.append)
    assert (table.keys, len(problems)) == (("images/b.png",), 1)
    (table,) = read_table(path, require_images=False)
    assert len(table) == 6


def test_a_repeated_row_is_an_error(folder):
    with pytest.raises(ValueError, match=r"one row; 1 in .* 'images/a.png \(lines 2, 3\)'. Remove"):
        read_table(write(folder, "path,tree\nimages/a.png,1\n./images/a.png,1\n"))
    with pytest.raises(ValueError, match="Their labels differ"):
        read_table(write(folder, "path,tree\nimages/a.png,1\n./images/a.png,0\n"))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("file,tree\nimages/a.png,1\n", "needs a column `path`"),
        ("Path,tree\nimages/a.png,1\n", r"needs a column `path`; .* Did you mean 'Path'\?"),
        ("path,domain\nimages/a.png,x\n", "at least one label column"),
        ("path,domain,tree\nimages/a.png,,1\n", "must name its domain; 1 lines of .* do not: '2'"),
        ("path,tree\nimages/a.png,maybe\n", r"0, 1 or blank.* 'maybe \(line 2, column tree\)'"),
    ],
)
def test_a_table_of_the_wrong_form_is_an_error(folder, text, match):
    with pytest.raises(ValueError, match=match):
        read_table(write(folder, text))


def test_a_missing_table_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no table '.*nothing.csv'"):
        read_table(tmp_path / "nothing.csv")


def test_an_unknown_label_is_an_error_with_a_suggestion(folder):
    path = write(folder, "path,tres\nimages/a.png,1\n")
    with pytest.raises(ValueError, match=r"Label 'tres' of domain 'mine' .* Did you mean 'tree'\?"):
        read_table(path, mapping=LabelMap(("tree", "car")))


def test_masks_of_more_labels_than_bits_are_an_error(folder):
    labels = [f"l{i}" for i in range(9)]
    text = ",".join(["path", "mask", *labels]) + "\nimages/a.png,masks/a.png" + ",1" * 9 + "\n"
    with pytest.raises(ValueError, match=r"at most 8 labels, one per bit; .* has 9 label columns"):
        read_table(write(folder, text))


def test_any_number_of_labels_reads_without_masks(folder):
    labels = [f"l{i}" for i in range(40)]
    (table,) = read_table(write(folder, ",".join(["path", *labels]) + "\nimages/a.png" + ",1" * 40 + "\n"))
    assert np.array_equal(table.labels, np.ones((1, 40)))


def test_images_that_a_folders_table_leaves_out_are_listed(folder):
    path = write(folder, "path,mask,tree\nimages/a.png,masks/a.png,1\nimages/b.png,masks/b.png,1\n")
    assert unlisted_images(path) == ["images/c.png", "masks/c.png"]
    assert unlisted_images(write(folder, "path,domain,tree\nimages/a.png,x,1\n")) == []


@pytest.mark.data
def test_the_drone_table_reads_with_scenes_and_masks(real_data):
    (table,) = read_table(real_data / "drone" / "labels.csv")
    assert (table.domain, len(table), len(set(table.groups))) == ("drone", 656, 164)
    assert table.vocabulary == ("building", "car", "tree", "water", "pavement")
    assert all((table.root / mask).is_file() for mask in table.masks)
    assert table.mask_bits is None


EXTRA = "path,lat,tree,notes,cloudy\nimages/a.png,51.3,1,low sun,0\nimages/b.png,51.4,0,,1\n"


def test_extra_columns_are_refused_with_the_option_that_names_them(folder):
    with pytest.raises(ValueError, match=r"'51.3 \(line 2, column lat\)'.* --ignore lat notes \(setting data.ignore\)"):
        read_table(write(folder, EXTRA))


@pytest.mark.parametrize(
    "columns",
    [
        LabelColumns(ignore=("lat", "notes", "cloudy")),
        LabelColumns(labels=("tree",)),
        LabelColumns(("tree",), ("lat",)),
    ],
)
def test_extra_columns_are_left_out_where_they_are_named(folder, columns):
    (table,) = read_table(write(folder, EXTRA), columns=columns)
    assert (table.vocabulary, table.labels.tolist()) == (("tree",), [[1], [0]])


def test_a_table_may_have_none_of_the_named_labels(folder):
    (table,) = read_table(write(folder, EXTRA), columns=LabelColumns(("ship",)), mapping=LabelMap(("ship",)))
    assert table.labels.tolist() == [[-1], [-1]]


@pytest.mark.parametrize("names", [("tree", "tree"), ("path", "tree")])
def test_a_column_is_not_both_a_label_and_ignored(names):
    with pytest.raises(ValueError, match=rf"`labels` and `ignore` must be different columns, .* got '{names[0]}'"):
        LabelColumns((names[0],), (names[1],))


def test_domains_that_differ_in_case_only_are_refused(folder):
    text = "path,domain,tree\nimages/a.png,UCM,1\nimages/b.png,ucm,0\n"
    with pytest.raises(ValueError, match=r"Domains must differ in more than case; got 'UCM' and 'ucm'"):
        read_table(write(folder, text))


def test_the_ground_sampling_distance_is_no_label_and_blank_where_unknown(folder):
    (folder / "mine.csv").write_text("path,domain,gsd,tree\nsub/a.png,x,0.3,1\nb.png,x,,0\n")
    (table,) = read_table(folder / "mine.csv", require_images=False)
    assert (table.vocabulary, table.gsd) == (("tree",), (0.3, None))
    assert table.select([1, 0]).gsd == (None, 0.3)
    (folder / "mine.csv").write_text("path,domain,gsd,tree\nb.png,x,,0\n")
    assert read_table(folder / "mine.csv", require_images=False)[0].gsd is None


@pytest.mark.parametrize("cell", ["0", "-0.3", "nan", "inf", "30 cm"])
def test_a_ground_sampling_distance_that_is_no_length_is_named_with_its_line(folder, cell):
    (folder / "mine.csv").write_text(f"path,domain,gsd,tree\na.png,x,0.3,1\nb.png,x,{cell},0\n")
    with pytest.raises(ValueError, match=rf"`gsd` must be metres .*: '{cell} \(line 3\)'"):
        read_table(folder / "mine.csv", require_images=False)
