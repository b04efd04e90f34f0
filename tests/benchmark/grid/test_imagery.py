from __future__ import annotations

from pathlib import Path

import pytest

from ldstyle.benchmark.execution.local import worker_context
from ldstyle.benchmark.grid.imagery import DataLocation, Domains, choose_grid_domains, find_location, prepare_location
from ldstyle.benchmark.grid.presets import load_preset
from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.synthetic import DOMAINS

SMOKE = load_preset("smoke")


def own_table(folder, domains):
    folder.mkdir(parents=True)
    rows = [f"{name}{i}.png,{name},1" for name in domains for i in range(2)]
    path = folder / "mine.csv"
    path.write_text("\n".join(["path,domain,tree", *rows]) + "\n")
    return path


def test_a_folder_means_the_official_domains_if_they_are_there(tmp_path, layouts):
    for name, folder in (("dfc15", "one"), ("ucm", "two"), ("aid", "three")):
        getattr(layouts, name)(tmp_path / folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "labels.csv").write_text("path,tree\na.png,1\n")
    location = find_location(str(tmp_path), preset=SMOKE, cache_dir=tmp_path)
    assert choose_grid_domains(str(tmp_path), location) == Domains(("ucm", "aid", "dfc15"), left_out=("mine",))
    assert choose_grid_domains(str(tmp_path), location, ["mine", "aid"]) == Domains(("mine", "aid"))
    with pytest.raises(ValueError, match=r"no domain 'mien'\. Did you mean 'mine'\?"):
        choose_grid_domains(str(tmp_path), location, ["mien"])


def test_a_folder_without_them_means_all_and_a_table_its_own(tmp_path, monkeypatch):
    table = own_table(tmp_path / "data", ["x", "y"])
    (tmp_path / "data" / "z").mkdir()
    (tmp_path / "data" / "z" / "labels.csv").write_text("path,tree\na.png,1\n")
    location = find_location(str(table), preset=SMOKE, cache_dir=tmp_path)
    assert Path(location.root) == tmp_path / "data"
    assert choose_grid_domains(str(table), location) == Domains(("x", "y"))
    monkeypatch.setenv("LDSTYLE_DATA", str(table.parent))
    location = find_location(None, preset=SMOKE, cache_dir=tmp_path)
    found = choose_grid_domains(None, location)
    assert set(found.names) == {"x", "y", "z"}
    assert found.left_out == ()


def test_a_table_means_its_own_domains_by_any_way_of_naming_it(tmp_path, monkeypatch):
    table = own_table(tmp_path / "data", ["x", "y"])
    (tmp_path / "data" / "other.csv").write_text("path,domain,tree\na.png,z,1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LDSTYLE_DATA", str(table))
    for data in (None, "~/data/mine.csv"):
        location = find_location(data, preset=SMOKE, cache_dir=tmp_path)
        assert choose_grid_domains(data, location) == Domains(("x", "y"))


@pytest.mark.parametrize("papers", [("UCM", "aid", "DFC15"), ("ucm", "aid", "dfc15")])
def test_custom_domains_named_as_the_papers_are_not_taken_for_them(tmp_path, papers):
    ucm, aid, dfc15 = papers
    for name in (ucm, aid, "village"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "labels.csv").write_text("path,tree\na.png,1\n")
    (tmp_path / "more.csv").write_text(f"path,domain,tree\nvillage/a.png,{dfc15},1\n")
    location = find_location(str(tmp_path), preset=SMOKE, cache_dir=tmp_path)
    found = choose_grid_domains(str(tmp_path), location)
    assert set(found.names) == {*papers, "village"}
    assert found.left_out == ()


def test_scenes_are_drawn_once_though_two_processes_ask(tmp_path):
    location = find_location("synthetic", preset=SMOKE, cache_dir=tmp_path)
    location = DataLocation(location.root, location.cache_dir, scenes=3, pixels=location.pixels)
    assert choose_grid_domains("synthetic", location).names == DOMAINS
    processes = [worker_context().Process(target=prepare_location, args=(location,)) for _ in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    drawn = Path(location.root, DOMAINS[0], "images", "00000.png").stat().st_mtime_ns
    prepare_location(location)
    assert Path(location.root, DOMAINS[0], "images", "00000.png").stat().st_mtime_ns == drawn
    assert [len(table) for table in read_domains(Path(location.root))] == [3, 3, 3]


def test_a_place_that_is_read_is_left_alone(tmp_path):
    prepare_location(DataLocation(str(tmp_path / "data"), str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_label_columns_are_settings_of_the_runs_where_they_are_given(tmp_path):
    plain = find_location(str(tmp_path), preset=load_preset("smoke"), cache_dir=tmp_path)
    assert plain.settings().keys() == {"root", "sea", "mapping"}
    chosen = find_location(
        str(tmp_path), preset=load_preset("smoke"), cache_dir=tmp_path, labels=["tree"], ignore=["lat"]
    )
    assert {name: chosen.settings()[name] for name in ("labels", "ignore")} == {"labels": ["tree"], "ignore": ["lat"]}
