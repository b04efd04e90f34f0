import csv
import io
import zipfile

import pytest
from PIL import Image

from ldstyle.cli import main


@pytest.fixture
def root(tmp_path, layouts, make_image, monkeypatch):
    monkeypatch.delenv("LDSTYLE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    root = tmp_path / "data"
    layouts.ucm(root / "ucm")
    layouts.dfc15(root / "dfc15", images=False)
    make_image(root / "mine" / "a.png")
    (root / "mine" / "labels.csv").write_text("path,tree,car\na.png,1,\n")
    return root


def run(*arguments):
    return main(["data", *map(str, arguments)])


def test_check_passes_on_sound_data_and_notes_differences(root, capsys):
    assert run("check", "--data", root, "--domains", "ucm", "mine") == 0
    out = capsys.readouterr().out
    assert "note: ucm: images 4, the paper has 2100" in out
    assert "error" not in out


def test_check_fails_on_missing_images_unless_asked_to_list(root, capsys):
    assert run("check", "--data", root) == 1
    assert "error: DFC15 images not found" in capsys.readouterr().out
    assert run("check", "--data", root, "--skip-bad") == 0
    out = capsys.readouterr().out
    assert "warning: DFC15 images not found" in out
    assert "error" not in out


def test_check_names_unreadable_files(root, capsys):
    (root / "mine" / "a.png").write_bytes(b"not an image")
    assert run("check", "--data", root, "--domains", "mine") == 1
    assert "a.png' cannot be used" in capsys.readouterr().out


def test_stats_stand_beside_the_papers_and_need_no_images(root, capsys):
    assert run("stats", "--data", root, "--out", "-") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    table = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows}
    assert table["images"] == {
        "statistic": "images",
        "ucm": "4",
        "ucm (paper)": "2100",
        "dfc15": "3",
        "dfc15 (paper)": "3342",
        "mine": "1",
    }
    assert table["files found"]["dfc15"] == "0"
    assert table["tree"]["dfc15 (paper)"] == "258"
    assert table["car"]["mine"] == "unknown"


def test_stats_print_as_a_table_or_go_to_a_file(root, tmp_path, capsys):
    assert run("stats", "--data", root) == 0
    assert "4 (-2096)" in capsys.readouterr().out
    assert run("stats", "--data", root, "--out", tmp_path / "table1.csv") == 0
    assert (tmp_path / "table1.csv").read_text().startswith("statistic,ucm,ucm (paper),")
    assert not list(tmp_path.glob("*.tmp"))


def test_the_sea_and_a_label_map_reach_the_readers(root, tmp_path, capsys):
    run("stats", "--data", root, "--domains", "ucm", "--sea", "water+sea", "--out", "-")
    assert "\nwater,2,203" in capsys.readouterr().out.replace("\r", "")
    (tmp_path / "map.yaml").write_text("vocabulary: [sand]\ndomains: {mine: {tree: null, car: null}}\n")
    assert run("stats", "--data", root, "--mapping", tmp_path / "map.yaml", "--out", "-") == 0
    assert "\nsand,1,,unknown,,unknown" in capsys.readouterr().out.replace("\r", "")


def test_prepare_builds_caches_that_are_found_again(root, tmp_path, capsys):
    arguments = ("prepare", "--data", root, "--domains", "ucm", "mine", "--size", 8, "--cache", tmp_path / "cache")
    assert run(*arguments) == 0
    first = capsys.readouterr().out
    built = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("images.u8")}
    assert len(built) == 2
    assert run(*arguments) == 0
    assert capsys.readouterr().out == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("images.u8")} == built


def test_prepare_refuses_a_domain_without_images(root, tmp_path, capsys):
    assert run("prepare", "--data", root, "--cache", tmp_path / "cache") == 2
    assert "error: DFC15 images not found" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_show_draws_what_has_images(root, tmp_path, capsys):
    assert run("show", "--data", root, "--out", tmp_path / "grid.png", "--size", 16, "--per-cell", 2) == 0
    assert "dfc15 is left out" in capsys.readouterr().err
    with Image.open(tmp_path / "grid.png") as image:
        assert image.width > 4 * 16
        assert (120, 120, 120) in {color for _, color in image.convert("RGB").getcolors(1 << 20)}


def test_show_without_any_image_is_an_error(root, tmp_path, capsys):
    (root / "mine" / "a.png").unlink()
    assert run("show", "--data", root / "mine", "--out", tmp_path / "grid.png") == 2
    assert "No images found" in capsys.readouterr().err


def test_drawn_scenes_are_a_data_folder(tmp_path, capsys):
    out = tmp_path / "drawn"
    assert run("synth", "--out", out, "--per-domain", 2, "--size", 64, "--workers", 1) == 0
    capsys.readouterr()
    assert run("check", "--data", out) == 0
    assert run("stats", "--data", out, "--out", "-") == 0
    assert "\nimages,2,2,2" in capsys.readouterr().out.replace("\r", "")


def test_unpack_puts_a_download_in_place(root, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "aid.zip", "w") as archive:
        archive.writestr("images_tr/a.txt", "content")
    assert run("unpack", tmp_path / "aid.zip", "--out", root / "aid") == 0
    assert capsys.readouterr().out.strip() == str(root / "aid" / "images_tr")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("../evil.txt", "content")
    assert run("unpack", tmp_path / "bad.zip", "--out", root / "aid") == 2
    assert "1 of" in capsys.readouterr().err


def test_the_root_comes_from_the_environment(root, monkeypatch, capsys):
    assert run("stats") == 2
    assert "set --data DIR or $LDSTYLE_DATA" in capsys.readouterr().err
    monkeypatch.setenv("LDSTYLE_DATA", str(root))
    assert run("stats") == 0


@pytest.mark.parametrize("arguments", [(), ("chekc",), ("show", "--size", "0"), ("synth",)])
def test_a_wrong_call_ends_with_the_usage(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(*arguments)
    assert "usage: ldstyle data" in capsys.readouterr().err


def test_help_tells_the_layouts(capsys):
    with pytest.raises(SystemExit, match="0"):
        run("--help")
    assert "LandUse_Multilabeled.txt" in capsys.readouterr().out


@pytest.mark.data
def test_the_real_folder_is_sound_but_for_the_images_of_dfc15(real_data, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run("check", "--data", real_data) == 1
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines() if ": " in line] == ["note", "error"]
    assert "aid: tree 2407, the paper has 2406" in out


def test_check_lists_labels_by_domain_and_names_those_without_data(root, capsys):
    (root / "mine" / "labels.csv").write_text("path,tree,car,cloudy,lat\na.png,1,,0,51.3\n")
    assert run("check", "--data", root, "--domains", "mine") == 1
    assert "--ignore lat (setting data.ignore)" in capsys.readouterr().out
    assert run("check", "--data", root, "--domains", "mine", "--ignore", "lat") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["tree", "1", "of", "1"] in lines
    assert ["cloudy", "0", "of", "1"] in lines
    assert ["car", "unknown"] in lines
    assert any(line[:3] == ["note:", "car", "is"] for line in lines)
    assert run("stats", "--data", root, "--domains", "mine", "--labels", "tree", "--out", "-") == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.split()[-1:]] == ["tree"]


def test_names_that_look_like_markup_are_printed_as_they_are(root, capsys):
    (root / "mine" / "labels.csv").write_text("path,domain,[/x],[red]roof\na.png,[/y] east,1,0\n")
    assert run("check", "--data", root, "--domains", "[/y] east") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["[/x]", "1", "of", "1"] in lines
    assert ["[red]roof", "0", "of", "1"] in lines
    assert run("stats", "--data", root, "--domains", "[/y] east") == 0
    assert "[/y] east" in capsys.readouterr().out
