"""Results folders of strangers: damaged files, names that mean harm, and records that name other people's files."""

from __future__ import annotations

import csv
import json
from xml.etree import ElementTree

import pytest

from ldstyle.benchmark.results.data import DataAccess
from ldstyle.benchmark.results.view import Results
from ldstyle.cli import main
from ldstyle.report.build import PAGE, build_report
from ldstyle.report.html.browser import build_browser
from ldstyle.report.model import Absent

NAMES = (
    "<script>alert(1)</script>",
    r"$\frac$ and $x^",
    "[/x] [bold]red",
    "=cmd|' /C calc'!A0",
    "two\nlines\x01",
    "مرحبا \u202e txt.exe",
    "`tick` | pipe \\ & %",
    "_hidden " + 60 * "very long ",
)


def edit_records(folder, edit):
    path = folder / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        edit(record)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def test_names_that_mean_harm_make_a_whole_report(make_grid, tmp_path, capsys):
    grid = make_grid(domains=NAMES[:3], labels=NAMES[2:])
    grid.fill(["erm", "efdmix", "ld-efdmix"], splits=("s1", "s2"), seeds=2, pointing=0.3)
    titles = dict(zip(("efdmix", "ld-efdmix"), NAMES[3:5], strict=True))
    # Methods of the benchmark go by its own names, so these become methods of the user's.
    splits = {"s1": "s1", "s2": f"=s {NAMES[5]} {300 * 'x'}"}

    def harm(record):
        title = titles.get(record["method"])
        if title:
            record |= {"method": title.replace("/", ""), "title": title}
            record["cell"] = f"{title.replace('/', '')}-{record['cell']}"
        record["split"]["name"] = splits[record["split"]["name"]]

    for path in (grid.folder / "plans").iterdir():
        path.unlink()
    edit_records(grid.folder, harm)
    out = tmp_path / "report"
    assert main(["report", str(grid.folder), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "left out" not in shown.err
    made = [path for path in out.rglob("*") if path.is_file()]
    assert all(path.resolve().is_relative_to(out.resolve()) for path in made)
    page = (out / PAGE).read_text(encoding="utf-8")
    assert NAMES[0] not in page
    assert "&lt;script&gt;alert(1)" in page
    for path in (out / "figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    rows = [row for path in (out / "tables").glob("*.csv") for row in csv.reader(path.read_text().splitlines())]
    assert any(cell.startswith("'=cmd") for row in rows for cell in row)
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "@", "+"))]
    assert {"label-ap.png", "differences.png", "cost-accuracy.png"} <= {path.name for path in made}


def damage_record(grid):
    path = grid.folder / "records.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[-1])
    del record["scores"]
    path.write_text("\n".join([*lines[:-1], json.dumps(record)]) + "\n")
    return "records.jsonl"


def damage_metrics(grid):
    path = next(grid.folder.glob("*-erm-s1-seed0/metrics.jsonl"))
    path.write_text('{"epoch": 1}\n[[[\n' + path.read_text())
    return "metrics.jsonl"


def damage_predictions(grid):
    path = next(grid.folder.glob("*-erm-s1-seed0")) / "predictions-harbour.safetensors"
    path.write_bytes(b"\xff" * 40)
    return "predictions-harbour.safetensors"


def damage_plan(grid):
    next((grid.folder / "plans").iterdir()).write_text("[" * 5000)
    return "plans"


def damage_localization(grid):
    edit_records(grid.folder, lambda record: record.update(localization={"mean": 3}))
    return "localization"


def test_what_is_damaged_is_named_and_left_out_and_the_exit_code_tells(make_grid, tmp_path, capsys):
    grid = make_grid()
    grid.fill(["erm", "efdmix"], splits=("s1",), seeds=2)
    damages = (damage_localization, damage_record, damage_metrics, damage_predictions, damage_plan)
    named = [damage(grid) for damage in damages]
    out = tmp_path / "report"
    assert main(["report", str(grid.folder), "--out", str(out)]) == 1
    shown = capsys.readouterr()
    left = [line for line in shown.err.splitlines() if line.startswith("left out: ")]
    assert [name for name in named if not any(name in line for line in left)] == [], shown.err
    page = (out / PAGE).read_text(encoding="utf-8")
    assert "Left out because it could not be read" in page
    assert (out / "tables" / "summary-all.md").is_file()
    assert (out / "figures" / "training-curves.svg").is_file()


def test_a_folder_of_which_nothing_can_be_read_is_refused(make_grid, tmp_path, capsys):
    grid = make_grid()
    (grid.folder / "records.jsonl").write_text("no record\n")
    assert main(["report", str(grid.folder), "--out", str(tmp_path / "report")]) != 0
    assert "records.jsonl" in capsys.readouterr().err


def test_nothing_outside_the_folder_is_read_unasked(make_grid, tmp_path, capsys):
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: hunter2\n")
    (tmp_path / "data").mkdir()
    grid = make_grid(root=str(tmp_path / "data"))
    grid.fill(["erm", "efdmix"], splits=("s1",), seeds=1)
    edit_records(grid.folder, lambda record: record["place"].update(mapping=str(secret)))
    cell = next(grid.folder.glob("*-erm-s1-seed0"))
    (cell / "metrics.jsonl").unlink()
    (cell / "metrics.jsonl").symlink_to(secret)
    (cell / "predictions-harbour.safetensors").symlink_to(secret)
    out = tmp_path / "report"
    slugs = ["dataset", "class-samples", "training-curves"]
    assert main(["report", str(grid.folder), "--out", str(out), "--only", *slugs]) == 1
    browser = build_browser(Results(grid.read(), folder=grid.folder))
    assert "leads out of" in browser.reason
    shown = capsys.readouterr()
    written = "".join(path.read_text(errors="ignore") for path in out.rglob("*") if path.is_file())
    assert "hunter2" not in shown.out + shown.err + written
    assert "not made: dataset: " in shown.err
    assert "--trust-record" in shown.err
    assert "leads out of" in shown.err


def test_data_are_read_where_they_were_named_and_a_label_map_only_if_it_was(make_grid, tmp_path):
    grid = make_grid(root="/theirs")
    grid.done("erm")
    (cell,) = grid.read()
    with pytest.raises(FileNotFoundError, match=r"'/theirs'.*--data"):
        DataAccess().locate(cell, grid.folder)
    assert DataAccess(tmp_path).locate(cell, grid.folder).root == str(tmp_path)
    assert DataAccess(trust=True).locate(cell, grid.folder).root == "/theirs"
    edit_records(grid.folder, lambda record: record["place"].update(mapping="/etc/passwd"))
    (cell,) = grid.read()
    with pytest.raises(FileNotFoundError, match=r"'/etc/passwd'.*--mapping"):
        DataAccess(tmp_path).locate(cell, grid.folder)
    mine = DataAccess(tmp_path, tmp_path / "map.yaml").locate(cell, grid.folder)
    assert mine.mapping == str(tmp_path / "map.yaml")
    edit_records(grid.folder, lambda record: record["place"].update(root="data", mapping=None))
    (cell,) = grid.read()
    assert DataAccess().locate(cell, grid.folder).root == str(grid.folder / "data"), "it is in the folder"


def test_an_item_that_a_record_cannot_fill_is_absent_and_the_rest_is_made(make_grid, tmp_path):
    grid = make_grid()
    grid.fill(["erm", "efdmix"], splits=("s1",), seeds=1)
    edit_records(grid.folder, lambda record: record.update(epochs=[3], machine="here"))
    report = build_report([grid.folder], tmp_path / "report", only=["summary-all", "development", "cost"])
    assert [path.name for path in report.files] == ["summary-all.md", "summary-all.tex", "summary-all.csv"]
    assert {item.slug for item in report.absent if isinstance(item, Absent) and item.damaged} == {"development", "cost"}
    assert len(report.damaged) == 2
