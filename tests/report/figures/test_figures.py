"""The figures: from records alone, from a real grid with weights and images, and where things are missing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from ldstyle.benchmark.execution.cell_run import run_cell
from ldstyle.benchmark.grid.cells import make_cells, make_splits
from ldstyle.benchmark.grid.imagery import DataLocation
from ldstyle.benchmark.grid.methods import METHODS, global_twin, load_methods, without_style
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.results.data import DataAccess
from ldstyle.benchmark.results.records import append_record, read_results, write_plan
from ldstyle.benchmark.results.view import Results
from ldstyle.functional import efdmix
from ldstyle.report.figures import FIGURES, make_figure
from ldstyle.report.figures.operators import OWN_STYLE, apply_operators
from ldstyle.report.figures.style import SMALL_WIDTH, looks, save_picture, small_svg, svg_of
from ldstyle.report.model import Absent, Picture

FROM_RECORDS = ("training-curves", "label-ap", "differences", "cost-accuracy")
FROM_IMAGES = ("method", "class-samples", "attention", "style-statistics", "operators")


def view_of(folder: Path) -> Results:
    return Results(read_results(folder), folder=folder, access=DataAccess(trust=True))


def drawn(slug: str, runs: Results) -> tuple[Picture, Figure]:
    picture = make_figure(slug, runs)
    assert isinstance(picture, Picture), picture
    return picture, picture.draw()


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def write_localization(grid: Any, method: str, tables: list[dict[str, float] | None], seed: int = 0) -> None:
    """Put pointing by insertion point into a cell's metrics, one table per epoch."""
    path = grid.folder / grid.cell(method, "s1", seed).slug / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, table in zip(rows, tables, strict=True):
        chance = {"iou": 0.2, "pointing_chance": 0.25, "iou_chance": 0.125}
        row["localization"] = table and {name: {"mean": {"pointing": p, **chance}} for name, p in table.items()}
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_an_unknown_figure_is_refused(make_grid: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"no figure 'costs'\. Choose from: method, class-samples, training-curves"):
        make_figure("costs", Results([]))


def test_a_small_folder_gives_what_records_give_and_says_why_the_rest_is_absent(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.fill(["erm", "efdmix", "ld-efdmix"])
    found = {slug: make_figure(slug, grid.view()) for slug in FIGURES}
    assert {slug for slug, item in found.items() if isinstance(item, Picture)} == set(FROM_RECORDS)
    assert all(item.slug == slug for slug, item in found.items())
    reasons = {slug: item.reason for slug, item in found.items() if isinstance(item, Absent)}
    assert "There is no data folder '/nowhere'" in reasons["class-samples"]
    assert "There is no data folder '/nowhere'" in reasons["operators"]
    assert "CELL/model.safetensors" in reasons["style-statistics"]
    assert "bench run --methods ld-efdmix ld-efdmix-gc" in reasons["attention"]
    assert "ldstyle bench sensitivity" in reasons["sensitivity"]
    assert "masks" in reasons["localization-epochs"]
    assert "metrics.jsonl" in reasons["strength-epochs"]


def test_a_grid_of_which_nothing_is_done_has_no_figures(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.plan(["erm", "efdmix"], ["s1"], [0])
    assert all(isinstance(make_figure(slug, grid.view()), Absent) for slug in FIGURES)


def test_cells_of_two_presets_are_two_sets(make_grid: Callable[..., Any]) -> None:
    small, smoke = make_grid(preset="small"), make_grid(preset="smoke")
    small.done("erm")
    smoke.done("erm")
    with pytest.raises(ValueError, match=r"one preset; got \['small', 'smoke'\]"):
        smoke.view()


def test_files_are_the_same_bytes_again_and_hold_the_data(make_grid: Callable[..., Any], tmp_path: Path) -> None:
    grid = make_grid()
    grid.fill(["erm", "ld-csu-gc"], splits=["s1", "s2"])
    for slug in FROM_RECORDS:
        first, second = (make_figure(slug, grid.view()) for _ in range(2))
        one, two = save_picture(first, tmp_path / "one"), save_picture(second, tmp_path / "two")
        for suffix in ("png", "svg", "json"):
            assert one[suffix].read_bytes() == two[suffix].read_bytes(), (slug, suffix)
        assert json.loads(one["json"].read_text()) == json.loads(json.dumps(first.data))
        with Image.open(one["png"]) as image:
            assert min(image.size) > 300
            assert len(image.convert("L").getcolors(1 << 20)) > 10
        assert "<dc:date>" not in one["svg"].read_text()


@pytest.mark.parametrize(("methods", "domains", "labels"), [(1, 2, 2), (14, 6, 3), (3, 2, 60)])
def test_the_smallest_and_the_largest_grid_are_drawn(
    methods: int, domains: int, labels: int, make_grid: Callable[..., Any]
) -> None:
    names = [f"a label with the number {n}" for n in range(labels)]
    grid = make_grid(domains=[f"domain{d}" for d in range(domains)], labels=names)
    splits = [f"s{d + 1}" for d in range(domains)] if methods > 1 else ["s1"]
    grid.fill(METHODS[:methods], splits=splits, seeds=1)
    grid.plan(METHODS[:methods], splits, [7])  # a seed of which nothing is done
    runs = grid.view()
    for slug in FROM_RECORDS:
        picture = make_figure(slug, runs)
        if slug == "differences" and methods == 1:
            assert isinstance(picture, Absent)
            continue
        figure = picture.draw()
        assert max(figure.get_size_inches()) < 16
        figure.draw_without_rendering()


def test_any_two_methods_differ_without_colour() -> None:
    known = looks([*METHODS, "mine", "yours", "ld-efdmix+swad"])
    shapes = {name: (look.marker, look.fill) for name, look in known.items()}
    for one, other in combinations(known, 2):
        assert shapes[one] != shapes[other], (one, other)
    assert to_hex(known["ld-efdmix"].colour) == to_hex(known["efdmix"].colour)
    assert looks(["mine", "erm"])["erm"] == looks(["erm"])["erm"]


def test_a_method_of_any_name_has_a_look() -> None:
    found = looks(["erm", "erm-paper", "dsu-paper", "mine-paper", "ld-mine"])
    assert len({(look.marker, str(look.line), look.fill) for look in found.values()}) == len(found)


def test_curves_are_the_metrics_and_the_mean_ends_with_the_shortest_run(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.done("erm", seed=0, ap=0.5, epochs=4)
    grid.done("erm", seed=1, ap=0.7, epochs=2)
    picture, figure = drawn("training-curves", grid.view())
    loss, score = figure.axes
    lines = {len(line.get_xdata()): line for line in score.lines if line.get_linewidth() < 1}
    np.testing.assert_allclose(lines[4].get_ydata(), [12.5, 25, 37.5, 50])
    (mean,) = [line for line in score.lines if line.get_linewidth() > 1.5]
    np.testing.assert_allclose(mean.get_xdata(), [1, 2])
    np.testing.assert_allclose(mean.get_ydata(), [(12.5 + 35) / 2, (25 + 70) / 2])
    chosen = sorted(line.get_xdata()[0] for line in loss.lines if line.get_marker() == "o")
    assert chosen == [2, 4]
    assert picture.data["curves"]["s1"]["erm"]["1"]["loss"] == [1, 0.5]
    assert legend_of(figure) == ["ERM"]


def test_of_many_labels_those_are_shown_on_which_methods_differ(make_grid: Callable[..., Any]) -> None:
    grid = make_grid(labels=[f"label{n}" for n in range(60)])
    grid.done("erm", ap=[0.5] * 60)
    grid.done("efdmix", ap=[0.5 + 0.3 * (n >= 30) for n in range(60)])
    picture, figure = drawn("label-ap", grid.view())
    assert picture.data["shown"] == [f"label{n}" for n in range(30, 60)]
    assert "Of 60 labels the 30" in picture.caption
    assert len(picture.data["values"]["s1"]["erm"]) == 61
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()][-1] == "mean (mAP)"
    assert max(max(line.get_xdata()) for line in axes.lines if line.get_marker() == "^") == pytest.approx(80)


def test_a_label_without_a_value_has_no_point(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.done("erm", ap=[0.25, None, 0.75])
    picture, figure = drawn("label-ap", grid.view())
    (dots,) = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    np.testing.assert_allclose(np.column_stack(dots.get_data()), [[25, 0], [75, 2], [50, 3]])
    assert picture.data["values"]["s1"]["erm"]["tree"] == {}


def test_differences_are_those_of_the_statistics(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.fill(["erm", "efdmix", "ld-efdmix", "oracle"], splits=["s1", "s2"], seeds=2)
    grid.plan(["ld-efdmix"], ["s1"], [5])
    picture, figure = drawn("differences", grid.view())
    found = picture.data["differences"]
    assert list(found) == ["average", "s1", "s2"]
    assert [(one["method"], one["baseline"]) for one in found["s1"]["ERM"]] == [("efdmix", "erm"), ("ld-efdmix", "erm")]
    assert [(one["method"], one["baseline"]) for one in found["s1"]["global twin"]] == [("ld-efdmix", "efdmix")]
    expected = grid.view().difference("ld-efdmix", "efdmix", split="s1")
    (twin,) = found["s1"]["global twin"]
    assert (twin["mean"], twin["low"], twin["high"]) == (expected.mean, expected.low, expected.high)
    assert twin["absent"] == {"5": "missing"}
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["EFDMix − ERM", "LD-EFDMix − ERM", "", "LD-EFDMix − EFDMix"]
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == ["+3.0", "+6.0", "+3.0"]
    figure.draw_without_rendering()
    for axes in figure.axes:
        inside = axes.get_window_extent()
        for text in axes.texts:
            box = text.get_window_extent()
            assert inside.x0 < box.x0 < box.x1 < inside.x1, "each number stands in its own panel"


def test_p_values_of_twins_are_corrected_over_their_group(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.fill(["efdmix", "ld-efdmix", "ld-efdmix-gc"], seeds=3)
    picture, _ = drawn("differences", grid.view())
    twins = picture.data["differences"]["s1"]["global twin"]
    assert [one["p"] for one in twins] == [0.25, 0.25]
    assert [one["p_holm"] for one in twins] == [0.5, 0.5]


def test_panels_stand_below_each_other_on_a_small_screen(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.fill(["erm", "efdmix"], splits=["s1", "s2"], seeds=2)
    picture = make_figure("differences", grid.view())
    wide, small = (ElementTree.fromstring(text) for text in (svg_of(picture.draw()), small_svg(picture)))
    sides = [[float(one.attrib[side].removesuffix("pt")) for side in ("width", "height")] for one in (wide, small)]
    (width, height), (small_width, small_height) = sides
    assert small_width == pytest.approx(72 * SMALL_WIDTH)
    assert small_height > 2.5 * height, "three panels, one below the other"
    assert width > small_width


@pytest.mark.parametrize("slug", ["label-ap", "differences", "cost-accuracy", "training-curves"])
def test_names_are_drawn_as_text_whatever_characters_they_have(make_grid: Callable[..., Any], slug: str) -> None:
    labels = (r"$\frac$", "a$b$_{", "_hidden\x01\n" + 90 * "long ")
    grid = make_grid(domains=(r"$\sqrt{$", "مرحبا", "two\nlines"), labels=labels)
    title = {"title": r"$\undefined{$ \u2603"}
    grid.fill(["erm", "efdmix"], splits=["s1", "s2"], seeds=2, edits=title)
    cells = [replace(cell, title="_$x^$") if cell.method == "efdmix" else cell for cell in grid.read()]
    picture = make_figure(slug, Results(cells, folder=grid.folder))
    for text in (svg_of(picture.draw()), small_svg(picture)):
        assert ElementTree.fromstring(text).tag.endswith("svg")


def test_one_seed_has_a_point_and_no_interval(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.done("erm", ap=0.5)
    grid.done("swad", ap=0.4)
    picture, figure = drawn("differences", grid.view())
    (one,) = picture.data["differences"]["s1"]["ERM"]
    assert (one["mean"], one["low"]) == (pytest.approx(-0.1), None)
    assert not [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_linewidth() > 1.7]
    assert [text.get_text() for text in figure.axes[0].texts] == ["−10.0"]


def test_twins() -> None:
    names = ("ld-efdmix", "ld-csu-gc", "ld-mixstyle-gc+swad", "ld-efdmix-probe", "ld-csu-masks", "ld-efdmix-mine")
    assert [global_twin(name) for name in names] == ["efdmix", "csu", "mixstyle+swad", "efdmix", "csu", "efdmix"]
    assert [global_twin(name) for name in ("efdmix", "ld-mine", "swad", "ld-efdmixed")] == [None] * 4
    rests = {name: without_style(name) for name in ("ld-efdmix+swad", "efdmix+coral", "ld-efdmix", "swad", "erm+swad")}
    assert list(rests.values()) == ["swad", "coral", None, None, None]


def test_cost_is_relative_to_erm_at_the_same_split_and_seed(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    for split, pace in (("s1", 1.0), ("s2", 3.0)):
        grid.done("erm", split, ap=0.5, seconds=10 * pace)
        grid.done("csu", split, ap=0.6, seconds=15 * pace)
    grid.done("swad", "s1", ap=0.6, seconds=15)
    picture, _ = drawn("cost-accuracy", grid.view())
    assert picture.data["points"] == {
        "erm": {"map": {"0": pytest.approx(0.5)}, "time": {"0": 1.0}},
        "csu": {"map": {"0": pytest.approx(0.6)}, "time": {"0": 1.5}},
    }
    assert "Not complete: SWAD" in picture.caption
    assert "kinds of machine" not in picture.caption
    grid.done("dsu", "s1", edits={"machine": {"host": "elsewhere", "threads": 8}})
    assert "2 kinds of machine" in make_figure("cost-accuracy", grid.view()).caption


def test_sweeps_have_the_papers_values_marked_and_gaps_left_open(make_grid: Callable[..., Any]) -> None:
    grid = make_grid(domains=("ucm", "aid", "dfc15"))
    for name, score in (
        ("ld-efdmix-gc~top-ratio=0.2", 0.5),
        ("ld-efdmix-gc~top-ratio=0.6", 0.75),
        ("ld-mixstyle~bank=64", 0.6),
    ):
        grid.done(name, seed=1000, ap=score)
    grid.done("ld-mixstyle", ap=0.9)
    picture, figure = drawn("sensitivity", grid.view())
    sweeps = picture.data["sweeps"]
    assert {name: sweep["selected_in_the_paper"] for name, sweep in sweeps.items()} == {
        "stages": [2], "top-ratio": 0.34, "refresh": 9, "temperature": None, "bank": None
    }  # fmt: skip
    assert sweeps["bank"]["mean_of_main_runs"] == pytest.approx(0.9)
    assert [point["map"] for point in sweeps["top-ratio"]["points"]] == [{"1000": 0.5}, {}, {"1000": 0.75}, {}, {}]
    ratio = figure.axes[1]
    (line,) = [line for line in ratio.lines if line.get_marker() == "^"]
    np.testing.assert_allclose(np.column_stack(line.get_data()), [[0.2, 50], [0.6, 75]])
    assert [line.get_xdata()[0] for line in ratio.lines if line.get_linestyle() == ":"] == [0.34]


def test_the_seeds_of_sweeps_are_those_of_the_split_shown(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.done("ld-mixstyle~bank=64", "s1", seed=1000)
    grid.done("ld-mixstyle~bank=64", "s2", seed=1001)
    assert "seed 1000, shared by all points" in drawn("sensitivity", grid.view())[0].caption


def test_localization_is_drawn_by_place_with_chance(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.done("ld-efdmix", epochs=3)
    grid.done("ld-efdmix-gc", epochs=3)
    write_localization(grid, "ld-efdmix", [{"layer1": 0.2, "layer2": 0.3}] * 3)
    write_localization(grid, "ld-efdmix-gc", [None, {"cached": 0.5}, {"cached": 0.75}])
    picture, figure = drawn("localization-epochs", grid.view())
    assert legend_of(figure) == ["LD-EFDMix, layer1", "LD-EFDMix, layer2", "LD-EFDMix-GC", "chance"]
    cached = picture.data["curves"]["s1"]["ld-efdmix-gc/cached"]["0"]
    assert (cached["epoch"], cached["pointing"]) == ([2, 3], [0.5, 0.75])
    flat = [[line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 1.2] for axes in figure.axes]
    assert [levels[-1] for levels in flat] == [25, 12.5]


def write_rows(grid: Any, method: str, rows: list[dict[str, Any]]) -> None:
    """Lay entries over a cell's metrics, one per epoch."""
    path = grid.folder / grid.cell(method, "s1", 0).slug / "metrics.jsonl"
    known = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps({**row, **more})}\n" for row, more in zip(known, rows, strict=True)))


def test_strength_and_effective_locations_are_drawn_by_insertion_point(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.done("efdmix", epochs=2)
    grid.done("ld-efdmix", epochs=2)
    write_rows(grid, "efdmix", [{"strength": {"layer1": 0.2}}, {"strength": {"layer1": 0.3}}])
    rows = [{"strength": {"layer1": None}, "locations": {"layer1": 0.5}}, {"strength": {"layer1": 0.1}}]
    write_rows(grid, "ld-efdmix", rows)
    picture, figure = drawn("strength-epochs", grid.view())
    assert legend_of(figure) == ["EFDMix, layer1", "LD-EFDMix, layer1"]
    assert picture.data["curves"]["s1"]["ld-efdmix/layer1"]["0"] == {
        "epoch": [1, 2], "strength": [None, 0.1], "locations": [0.5, None]
    }  # fmt: skip
    strength, locations = figure.axes
    lines = [line.get_ydata() for line in strength.lines if line.get_linewidth() == 1.2]
    np.testing.assert_allclose(lines, [[20, 30], [np.nan, 10]])
    (line,) = [line.get_ydata() for line in locations.lines if line.get_linewidth() == 1.2]
    np.testing.assert_allclose(line, [50, np.nan])


def test_methods_without_attention_have_strength_alone(make_grid: Callable[..., Any]) -> None:
    grid = make_grid()
    grid.done("efdmix", epochs=1)
    write_rows(grid, "efdmix", [{"strength": {"layer1": 0.2}, "locations": {}}])
    _, figure = drawn("strength-epochs", grid.view())
    assert [axes.get_ylabel() for axes in figure.axes] == ["relative feature change (%)"]


def test_operators_stay_in_the_regions_of_shared_labels() -> None:
    feats = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    attn = torch.zeros(2, 2, 8, 8)
    attn[:, 0, :4] = 1  # shared
    attn[0, 1, 4:] = 1  # the first image's own
    present = torch.tensor([[True, True], [True, False]])
    after = apply_operators(feats, attn, present)
    assert list(after) == ["MixStyle", "EFDMix", "CSU", "LD-MixStyle", "LD-EFDMix", "LD-CSU"]
    torch.testing.assert_close(after["EFDMix"], efdmix(feats, torch.tensor([1, 0]), torch.full((2,), OWN_STYLE)))
    for name in ("LD-MixStyle", "LD-EFDMix"):
        assert not torch.allclose(after[name][0, :, :4], feats[0, :, :4], atol=1e-3)
        assert torch.equal(after[name][0, :, 4:], feats[0, :, 4:])
    assert not torch.allclose(after["LD-CSU"][0, :, 4:], feats[0, :, 4:], atol=1e-3)
    moved = (after["LD-MixStyle"][0, :, :4].mean(), feats[0, :, :4].mean(), feats[1, :, :4].mean())
    assert float(moved[0]) == pytest.approx(float(OWN_STYLE * moved[1] + (1 - OWN_STYLE) * moved[2]), abs=1e-3)


@pytest.fixture(scope="module")
def trained(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real grid: three methods on one split, with weights, trained on drawn scenes."""
    results = tmp_path_factory.mktemp("trained")
    location = DataLocation(str(scenes), str(scenes.parent / "cache"))
    splits = make_splits(("suburb", "harbour", "region"), ["s1"])
    methods = load_methods(["efdmix", "ld-efdmix", "ld-efdmix-gc"])
    cells = make_cells(methods, splits, [0], preset=PRESETS["smoke"], data=location.settings())
    write_plan(results, cells)
    for cell in cells:
        append_record(results, run_cell(cell, location=location, folder=results / cell.slug))
    return results


@pytest.fixture(scope="module")
def pictures(trained: Path) -> dict[str, Any]:
    runs = view_of(trained)
    return {slug: make_figure(slug, runs) for slug in (*FROM_IMAGES, "localization-epochs")}


def test_a_grid_with_weights_and_images_has_all_its_figures(pictures: dict[str, Any], tmp_path: Path) -> None:
    for picture in pictures.values():
        assert isinstance(picture, Picture), picture
        picture.draw().savefig(tmp_path / "small.png", dpi=60)
        with Image.open(tmp_path / "small.png") as image:
            assert len(image.convert("L").getcolors(1 << 20)) > 50


def test_what_is_computed_from_weights_and_images_is_the_same_again(
    pictures: dict[str, Any], trained: Path, tmp_path: Path
) -> None:
    for slug in ("style-statistics", "operators"):
        again = make_figure(slug, view_of(trained))
        first, second = save_picture(pictures[slug], tmp_path / "one"), save_picture(again, tmp_path / "two")
        for suffix in ("png", "svg", "json"):
            assert first[suffix].read_bytes() == second[suffix].read_bytes(), (slug, suffix)


def test_class_samples_show_every_domain_in_order(pictures: dict[str, Any]) -> None:
    picture = pictures["class-samples"]
    assert list(picture.data) == ["suburb", "harbour", "region"]
    assert picture.photographic


def test_attention_names_its_sources_and_is_judged_by_masks(pictures: dict[str, Any]) -> None:
    picture, figure = pictures["attention"], pictures["attention"].draw()
    assert picture.data["cells"] == ["smoke-ld-efdmix-s1-seed0", "smoke-ld-efdmix-gc-s1-seed0"]
    assert {one["domain"] for one in picture.data["images"]} == {"harbour", "region"}
    columns = picture.data["images"][0]["iou"]
    assert list(columns) == ["LLAM, layer1", "LLAM, layer2", "GC: LD-EFDMix-GC"]
    judged = [iou for one in picture.data["images"] for iou in one["iou"].values() if iou is not None]
    assert judged
    assert all(0 <= iou <= 1 for iou in judged)
    assert all(0 < one["area"] < 1 for one in picture.data["images"])
    # The tiny network's last map is one location, so its cached map is flat: half of its mass takes half of the image.
    flat = [one["half_mass_area"]["GC: LD-EFDMix-GC"] for one in picture.data["images"]]
    assert all(share == pytest.approx(0.5, abs=1e-3) for share in flat if share is not None)
    shown = [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text().startswith("IoU")]
    assert len(shown) == len(judged)


def test_style_statistics_tell_more_than_a_picture(pictures: dict[str, Any]) -> None:
    picture = pictures["style-statistics"]
    assert picture.data["cell"] == "smoke-ld-efdmix-s1-seed0"
    scores = picture.data["scores"]
    assert list(scores) == ["domain", "label", "label, from other domains"]
    assert set(scores["domain"]) == {"global", "per label", "per label, true masks"}
    assert scores["domain"]["global"]["chance"] == pytest.approx(1 / 3)
    assert scores["domain"]["global"]["samples"] == len(picture.data["points"])
    # The target was not trained on, so all 30 images of it are candidates; of each source 3 + 3 were held out.
    assert "drawn from all 30 images of suburb and 6 held-out images of harbour" in picture.caption
    # Synthetic domains differ in light and sensor, so whole-image statistics tell them apart even to a random network.
    assert scores["domain"]["global"]["score"] > 0.6


def test_without_scikit_learn_the_embedding_is_absent(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    item = make_figure("style-statistics", view_of(trained))
    assert isinstance(item, Absent)
    assert "extra `report`" in item.reason


def test_a_model_that_cannot_be_read_is_a_reason_not_an_error(trained: Path, tmp_path: Path) -> None:
    for path in trained.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".safetensors", ".yaml"):
            copy = tmp_path / path.relative_to(trained)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(b"{}" if path.name == "model.json" else path.read_bytes())
    for slug in ("attention", "style-statistics", "operators"):
        item = make_figure(slug, view_of(tmp_path))
        assert isinstance(item, Absent)
        assert "cannot be read" in item.reason


def test_without_kept_attention_the_reader_is_told(trained: Path, tmp_path: Path) -> None:
    for path in trained.rglob("*"):
        if path.is_file() and path.name != "attention.safetensors" and path.suffix != ".lock":
            copy = tmp_path / path.relative_to(trained)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    picture = make_figure("attention", view_of(tmp_path))
    assert picture.data["cells"] == ["smoke-ld-efdmix-gc-s1-seed0"]
    assert "LD-EFDMix kept no attention.safetensors" in picture.caption


def test_attention_is_not_shown_over_images_that_its_model_was_trained_on(trained: Path, tmp_path: Path) -> None:
    """Cells of another seed have other held-out images."""
    shutil.copytree(trained, tmp_path / "grid", ignore=shutil.ignore_patterns("*.lock", "plans"))
    name = "smoke-ld-efdmix-gc-s1-seed"
    (tmp_path / "grid" / f"{name}0").rename(tmp_path / "grid" / f"{name}1")
    records = tmp_path / "grid" / "records.jsonl"
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    rows = [row | {"cell": f"{name}1", "seed": 1} if row["cell"] == f"{name}0" else row for row in rows]
    records.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert make_figure("attention", view_of(tmp_path / "grid")).data["cells"] == ["smoke-ld-efdmix-s1-seed0"]


def test_images_that_are_gone_leave_the_figures_of_records(trained: Path) -> None:
    gone = Results(read_results(trained), folder=trained, access=DataAccess(Path("/gone")))
    found = {slug: make_figure(slug, gone) for slug in (*FROM_IMAGES, "label-ap")}
    assert isinstance(found.pop("label-ap"), Picture)
    for item in found.values():
        assert isinstance(item, Absent)
        assert "There is no data folder '/gone'" in item.reason
