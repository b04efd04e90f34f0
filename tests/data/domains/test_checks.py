import pytest
from PIL import Image

from ldstyle.data.domains.checks import inspect_domain, unknown_labels
from ldstyle.data.domains.discovery import find_domains, shared_label_map


def inspect(root, name, **settings):
    sources = find_domains(root)
    return inspect_domain(name, sources[name], label_map=shared_label_map(sources), **settings)


@pytest.fixture
def root(tmp_path, layouts, make_image):
    layouts.ucm(tmp_path / "ucm")
    make_image(tmp_path / "mine" / "a.png", size=(9, 7))
    Image.new("L", (9, 7), 1).save(tmp_path / "mine" / "mask.png")
    (tmp_path / "mine" / "labels.csv").write_text("path,mask,tree\na.png,mask.png,1\n")
    return tmp_path


def test_a_sound_domain_has_no_problems_and_its_sizes_are_counted(root, make_image):
    make_image(root / "ucm/UCMerced_LandUse/Images/beach/beach03.tif", size=(9, 6))
    told = []
    found = inspect(root, "ucm", progress=lambda *news: told.append(news))
    assert (found.rows, found.readable, found.problems) == (4, 4, ())
    assert found.sizes == {"8×8": 3, "9×6": 1}
    assert told == [(i, 4, "ucm") for i in range(1, 5)]


def test_differences_from_table_1_are_notes(root):
    assert "ucm: images 4, the paper has 2100" in inspect(root, "ucm").notes
    assert inspect(root, "mine").notes == ()


def test_a_custom_domain_is_not_compared_with_the_paper_whatever_its_name(root, make_image):
    make_image(root / "aid" / "a.png")
    (root / "aid" / "labels.csv").write_text("path,tree\na.png,1\n")
    assert inspect(root, "aid").notes == ()


def test_unreadable_images_are_named_and_counted(root, make_image):
    for name in ("b", "c", "d", "e"):
        make_image(root / "mine" / f"{name}.png", size=(64, 64))
        path = root / "mine" / f"{name}.png"
        path.write_bytes(path.read_bytes()[:60])
    rows = "".join(f"{name}.png,,1\n" for name in "bcde")
    (root / "mine" / "labels.csv").write_text("path,mask,tree\na.png,mask.png,1\n" + rows)
    found = inspect(root, "mine")
    assert (found.rows, found.readable) == (5, 1)
    (problem,) = found.problems
    assert problem.startswith("4 of 5 samples of 'mine' cannot be read. ")
    assert "b.png' cannot be used" in problem
    assert problem.endswith("The same applies to 3 more.")


def test_a_fourth_band_that_is_not_used_is_noted(root):
    for name in ("a", "mask"):
        (root / "mine" / f"{name}.png").unlink()
    Image.new("RGBA", (8, 8)).save(root / "mine" / "a.tif")
    (root / "mine" / "labels.csv").write_text("path,tree\na.tif,1\n")
    found = inspect(root, "mine")
    assert found.problems == ()
    assert any("a.tif' have 4 bands" in note and "--bands 1 2 3 4" in note for note in found.notes)
    assert not any("bands" in note for note in inspect(root, "mine", bands=(1, 2, 3, 4)).notes)


def test_an_unreadable_mask_is_a_problem(root, make_image):
    make_image(root / "mine" / "mask.png")
    (problem,) = inspect(root, "mine").problems
    assert "mask.png' cannot be used: a mask has one 8-bit channel" in problem


def test_every_kind_of_problem_is_told_at_once(root, make_image):
    images = root / "ucm" / "UCMerced_LandUse" / "Images"
    make_image(images / "extra.png")
    (images / "beach" / "beach03.tif").unlink()
    (images / "harbor" / "harbor03.tif").write_bytes(b"")
    found = inspect(root, "ucm")
    assert [problem.split(" ")[0] for problem in found.problems] == ["1", "Every", "1"]
    assert (found.rows, found.readable) == (4, 2)


def test_labels_without_images_are_compared_with_the_paper_all_the_same(root, layouts):
    layouts.dfc15(root / "dfc15", images=False)
    found = inspect(root, "dfc15")
    assert "dfc15: images 3, the paper has 3342" in found.notes
    assert "DFC15 images not found" in found.problems[0]


def test_a_table_that_cannot_be_read_is_a_problem_of_its_domain(root):
    table = root / "ucm" / "LandUse_Multilabeled.txt"
    table.write_bytes(table.read_bytes() + b"beach04\t1\r\n")
    assert "Every row must have the 18 cells of the header; 1 lines" in inspect(root, "ucm").problems[0]


def test_images_that_an_own_table_leaves_out_are_notes(root, make_image):
    make_image(root / "mine" / "b.png")
    assert inspect(root, "mine").notes == ("mine: 1 images are not in 'labels.csv': 'b.png'",)


def test_labels_are_counted_by_domain_and_blank_ones_named(tmp_path, make_image):
    for name in ("east", "west"):
        make_image(tmp_path / name / "a.png")
    (tmp_path / "east" / "labels.csv").write_text("path,tree,ship,dock\na.png,1,,\n")
    (tmp_path / "west" / "labels.csv").write_text("path,tree,ship,dock\na.png,0,1,\n")
    found = [inspect(tmp_path, name) for name in ("east", "west")]
    assert found[0].counts == {"tree": (1, 1), "ship": (0, 0), "dock": (0, 0)}
    ship, dock = unknown_labels(found)
    assert "ship is unknown in every row of east;" in ship
    assert "dock is unknown in every row of every domain;" in dock
