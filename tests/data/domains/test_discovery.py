import os
from pathlib import Path

import pytest

from ldstyle.data.domains.archives import find_images
from ldstyle.data.domains.csv import LabelColumns
from ldstyle.data.domains.discovery import find_domains, official_domains, read_domains, unlabelled_downloads
from ldstyle.data.domains.scene_table import PAPER_VOCABULARY


@pytest.fixture
def root(tmp_path, layouts, make_image):
    layouts.ucm(tmp_path / "UCM")
    layouts.dfc15(tmp_path / "dfc15")
    layouts.aid(tmp_path / "aid")
    for name in ("drone", "plane"):
        make_image(tmp_path / name / "a.png")
    (tmp_path / "drone" / "labels.csv").write_text("path,car,tree\na.png,1,0\n")
    (tmp_path / "flights.csv").write_text("path,domain,tree\nplane/a.png,plane,1\n")
    (tmp_path / "notes.csv").write_text("date,weather\n1,sunny\n")
    (tmp_path / "ucm_sample").mkdir()
    (tmp_path / ".cache").mkdir()
    return tmp_path


def test_all_kinds_of_domains_are_found_official_ones_first(root):
    assert list(find_domains(root)) == ["ucm", "aid", "dfc15", "drone", "plane"]
    tables = read_domains(root)
    assert [table.domain for table in tables] == ["ucm", "aid", "dfc15", "drone", "plane"]
    assert {table.vocabulary for table in tables} == {PAPER_VOCABULARY}


def test_a_label_that_a_domain_lacks_is_unknown_there(root):
    (drone,) = read_domains(root, ["drone"], vocabulary=PAPER_VOCABULARY)
    assert drone.labels.tolist() == [[-1, 1, 0, -1, -1, -1]]
    assert read_domains(root, ["drone", "ucm"])[0].labels.tolist() == drone.labels.tolist()


def test_own_domains_share_the_union_of_their_labels(root):
    drone, plane = read_domains(root, ["drone", "plane"])
    assert drone.vocabulary == plane.vocabulary == ("car", "tree")
    assert (drone.labels.tolist(), plane.labels.tolist()) == ([[1, 0]], [[-1, 1]])


def test_domains_come_in_the_order_asked_for(root):
    assert [table.domain for table in read_domains(root, ["plane", "aid"])] == ["plane", "aid"]


def test_a_folder_with_its_own_table_is_a_domain_by_itself(root):
    (table,) = read_domains(root / "drone")
    assert (table.domain, table.keys) == ("drone", ("a.png",))


def test_an_own_table_replaces_an_official_layout(root, make_image):
    (root / "UCM" / "labels.csv").write_text("path,domain,tree\nUCMerced_LandUse/Images/beach/beach03.tif,ucm,1\n")
    assert find_domains(root)["ucm"].archive is None


def test_a_download_is_recognised_by_its_layout_and_not_by_a_name(root, make_image):
    assert [table.archive for table in read_domains(root)] == ["ucm", "aid", "dfc15", None, None]
    assert official_domains(find_domains(root)) == {"ucm": "ucm", "aid": "aid", "dfc15": "dfc15"}
    for name in ("ucm", "aid"):
        make_image(root / "mine" / name / "a.png")
    (root / "mine" / "all.csv").write_text("path,domain,tree\nucm/a.png,ucm,1\naid/a.png,aid,0\n")
    for names in (None, ["ucm", "aid"]):
        tables = read_domains(root / "mine", names)
        assert [(table.domain, table.archive, len(table)) for table in tables] == [("ucm", None, 1), ("aid", None, 1)]
    assert official_domains(find_domains(root / "mine")) == {}


def test_downloads_in_folders_of_any_name_are_found(tmp_path, layouts):
    layouts.ucm(tmp_path / "UC Merced multi-label")
    layouts.aid(tmp_path / "downloads" / "2019")
    layouts.dfc15(tmp_path / "downloads" / "zeebrugge")
    assert list(find_domains(tmp_path)) == ["ucm", "aid", "dfc15"]
    tables = read_domains(tmp_path, ["dfc15", "ucm", "aid"])
    assert [(table.domain, table.archive, len(table)) for table in tables] == [
        ("dfc15", "dfc15", 3),
        ("ucm", "ucm", 4),
        ("aid", "aid", 4),
    ]
    assert [table.root for table in tables] == [
        tmp_path / "downloads" / "zeebrugge",
        tmp_path / "UC Merced multi-label",
        tmp_path / "downloads" / "2019",
    ]


def test_the_name_of_a_folder_never_says_which_download_it_holds(tmp_path, layouts):
    layouts.aid(tmp_path / "ucm")
    layouts.dfc15(tmp_path / "aid")
    (tmp_path / "dfc15").mkdir()
    found = read_domains(tmp_path)
    assert [(table.domain, table.root.name) for table in found] == [("aid", "ucm"), ("dfc15", "aid")]
    with pytest.raises(ValueError, match=r"There is no domain 'ucm'\. Choose from \['aid', 'dfc15'\]"):
        read_domains(tmp_path, ["ucm"])


def test_a_table_of_other_images_or_labels_is_no_download(tmp_path, layouts):
    for name, rows, labels in (
        ("rows", {"scene-a": "trees"}, ["buildings", "cars", "trees", "water", "pavement", "ship"]),
        ("labels", {"beach03": "oak"}, ["oak", "elm", "trees", "water"]),
    ):
        layouts.table(tmp_path / name / "multilabel.csv", rows, labels)
    with pytest.raises(FileNotFoundError, match="No data found in"):
        find_domains(tmp_path)


def test_a_download_that_is_there_twice_is_an_error(tmp_path, layouts):
    for name in ("one", "two"):
        layouts.ucm(tmp_path / name)
    with pytest.raises(ValueError, match=r"must hold UCM once; '.*/one' and '.*/two' both .* Move one of them out"):
        find_domains(tmp_path)


def test_the_files_of_two_downloads_in_one_folder_are_an_error(tmp_path, layouts):
    layouts.ucm(tmp_path / "all")
    layouts.aid(tmp_path / "all")
    with pytest.raises(ValueError, match=r"needs a folder of its own; '.*/all' has .*'LandUse_Multilabeled.txt'"):
        find_domains(tmp_path)


def test_images_of_a_download_without_its_table_are_named(tmp_path, layouts):
    for name in ("ucm", "aid", "dfc15"):
        getattr(layouts, name)(tmp_path / f"my {name}")
    (tmp_path / "my aid" / "multilabel.csv").unlink()
    (tmp_path / "my dfc15" / "multilabel.csv").unlink()
    sources = find_domains(tmp_path)
    assert list(sources) == ["ucm"]
    aid, dfc15 = unlabelled_downloads(tmp_path, sources)
    assert aid.startswith("'my aid' has the images of AID and no label table")
    assert dfc15.startswith("'my dfc15' has the images of DFC15 and no label table")
    (tmp_path / "my ucm" / "LandUse_Multilabeled.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"No data found in .* 'my ucm' has the images of UCM and no label"):
        find_domains(tmp_path)
    (tmp_path / "my ucm").rename(tmp_path / "ucm")
    layouts.aid(tmp_path / "aid")
    with pytest.raises(FileNotFoundError, match=r"UCM label table not found in '.*/ucm'"):
        read_domains(tmp_path, ["ucm"])


def test_links_that_lead_back_are_followed_once(root):
    for name in ("one", "two", "three"):
        (root / "UCM" / name).symlink_to(root)
        (root / "UCM" / "UCMerced_LandUse" / name).symlink_to(root / "UCM")
    (root / "UCM" / "self.png").symlink_to("self.png")
    assert len(find_images(root)) == len(set(find_images(root))) == 14


def test_a_pipe_among_the_tables_is_passed_over(root):
    os.mkfifo(root / "stream.csv")
    os.mkfifo(root / "UCM" / "stream.txt")
    assert list(find_domains(root)) == ["ucm", "aid", "dfc15", "drone", "plane"]
    assert len(read_domains(root, ["ucm"])[0]) == 4


def test_tables_of_domains_not_asked_for_stay_closed(root, monkeypatch):
    opened = []
    read_text = Path.read_text

    def spy(path, *arguments, **settings):
        opened.append(path.relative_to(root).as_posix())
        return read_text(path, *arguments, **settings)

    monkeypatch.setattr(Path, "read_text", spy)
    read_domains(root, ["ucm", "aid"])
    assert set(opened) == {"UCM/LandUse_Multilabeled.txt", "aid/multilabel.csv"}


def test_a_label_map_applies_to_official_and_own_domains(root, tmp_path):
    (tmp_path / "map.yaml").write_text(
        "vocabulary: [green]\ndomains: {ucm: {trees: green}, drone: {tree: green, car: null}}\n"
    )
    ucm, drone = read_domains(root, ["ucm", "drone"], mapping=tmp_path / "map.yaml")
    assert ucm.labels.tolist() == [[1], [0], [0], [0]]
    assert drone.labels.tolist() == [[0]]
    with pytest.raises(ValueError, match="either `mapping` or `vocabulary`"):
        read_domains(root, mapping=tmp_path / "map.yaml", vocabulary=["green"])


def test_the_label_sea_is_merged_where_asked_for(root):
    dropped, merged = (read_domains(root, ["aid"], sea=sea)[0].labels[:, 3].sum() for sea in ("drop", "water+sea"))
    assert (dropped, merged) == (1, 2)


def test_a_missing_data_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no data folder '.*nowhere'. Set --data or \$LDSTYLE_DATA"):
        read_domains(tmp_path / "nowhere")
    (tmp_path / "labels.csv").write_text("path,domain,tree\n")
    with pytest.raises(NotADirectoryError, match=r"'.*/labels\.csv' is a file\. Give its folder, '[^.]*'\."):
        read_domains(tmp_path / "labels.csv")


def test_a_folder_without_data_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No data found in .* Expected folders with the official UCM"):
        read_domains(tmp_path)


def test_the_folder_of_one_download_is_no_data_folder(root):
    with pytest.raises(FileNotFoundError, match=r"No data found in '.*/dfc15'. .* Did you mean '.*'\?"):
        read_domains(root / "dfc15")


def test_an_unknown_domain_is_an_error_with_a_suggestion(root):
    with pytest.raises(ValueError, match=r"There is no domain 'dorne'. Did you mean 'drone'\? Choose from \['ucm'"):
        read_domains(root, ["dorne"])


def test_one_domain_in_two_places_is_an_error(root, make_image):
    (root / "more.csv").write_text("path,domain,tree\ndrone/a.png,drone,1\n")
    with pytest.raises(ValueError, match=r"Domain 'drone' stands both in .*drone/labels.csv' and in '.*more.csv'"):
        read_domains(root)
    (root / "more.csv").write_text("path,domain,tree\ndrone/a.png,aid,1\n")
    with pytest.raises(ValueError, match="Domain 'aid' stands both in"):
        read_domains(root)


def test_a_label_outside_the_paper_beside_official_domains_is_an_error(root):
    (root / "drone" / "labels.csv").write_text("path,cra\na.png,1\n")
    with pytest.raises(ValueError, match=r"Label 'cra' of domain 'drone' .* Did you mean 'car'\?"):
        read_domains(root)


@pytest.mark.data
def test_the_real_folder_reads_but_for_the_images_of_dfc15(real_data):
    tables = read_domains(real_data, ["ucm", "aid", "drone"])
    assert [len(table) for table in tables] == [2100, 3000, 656]
    assert (tables[2].labels[:, 5] == -1).all()
    assert tables[2].mask_bits == ((0,), (1,), (2,), (3,), (4,), ())
    with pytest.raises(FileNotFoundError, match="DFC15 images not found"):
        read_domains(real_data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"image,domain,tree\na.png,x,1\n", r"has no column `path`, it has \['image', 'domain', 'tree'\]"),
        (b"Path,domain,tree\na.png,x,1\n", r"has no column `path`, .* Did you mean 'Path'\?"),
        ("path,domain,tree\na.png,x,1\n".encode("utf-16"), r"is none: A label table must be UTF-8 text"),
        ("path,domain,tree\na.png,x,1\n".encode("utf-16-le"), r"is none: A label table must be UTF-8 text"),
        (b"", r"is none: A label table needs a header and at least one row"),
    ],
)
def test_a_table_that_is_not_used_is_named_with_the_reason(tmp_path, content, reason):
    (tmp_path / "all.csv").write_bytes(content)
    with pytest.raises(FileNotFoundError, match=rf"No data found in .* 'all.csv' {reason}"):
        read_domains(tmp_path)


def test_tables_whose_domains_differ_in_case_only_are_refused(root):
    (root / "more.csv").write_text("path,domain,tree\ndrone/a.png,Drone,1\n")
    with pytest.raises(ValueError, match=r"Domains must differ in more than case; got 'drone' and 'Drone'"):
        read_domains(root)


def test_a_label_that_no_table_has_is_refused_with_a_suggestion(root):
    with pytest.raises(
        ValueError, match=r"`labels` must name columns of the tables; 'trees' is none. Did you mean 'tree'"
    ):
        read_domains(root, ["drone", "plane"], columns=LabelColumns(("trees",)))
    assert read_domains(root, ["drone"], columns=LabelColumns(ignore=("car",)))[0].vocabulary == ("tree",)
