"""Hand-made records give hand-computed tables; what is not whole says why; the paper's figures stand beside ours."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from ldstyle.benchmark.complexity import Measured, count_macs
from ldstyle.benchmark.paper import TABLE_2, TABLE_5
from ldstyle.benchmark.results.records import RECORDS, read_results
from ldstyle.benchmark.results.view import Results
from ldstyle.cli import main
from ldstyle.report.figures import make_figure
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.tables import make_tables
from ldstyle.report.tables.cost import FILE, Conditions, complexity_table, read_complexity, write_complexity
from ldstyle.report.tables.differences import ablation_tables
from ldstyle.report.tables.entries import joined, why_incomplete
from ldstyle.report.tables.formats import FORMATS
from ldstyle.report.tables.setup import dataset_table, search_space_table, selected_tables
from ldstyle.runs.backbone import create_network

PAPER = {"domains": ("ucm", "aid", "dfc15"), "preset": "paper"}
LABELS = ("building", "car", "tree", "water", "pavement", "ship")


def by_slug(made: list[Table | Absent]) -> dict[str, Table | Absent]:
    found = {item.slug: item for item in made}
    assert len(found) == len(made), "a slug names one item"
    return found


def row(table: Table | Absent, name: str) -> dict[str, Value]:
    assert isinstance(table, Table), table
    (found,) = [row.values for row in table.rows if row.values[0].text == name]
    return dict(zip(table.headers, found, strict=True))


def texts(table: Table | Absent, name: str) -> list[str]:
    return [value.text for value in list(row(table, name).values())[1:]]


def bold(table: Table | Absent, column: str) -> list[str]:
    assert isinstance(table, Table), table
    where = table.headers.index(column)
    return [row.values[0].text for row in table.rows if row.values[where].best]


@pytest.fixture
def small(make_grid):
    """Two splits and two seeds; on s1 LD-EFDMix ties with ERM on one label and wins on the others."""
    grid = make_grid()
    grid.plan(["erm", "efdmix", "ld-efdmix", "oracle"], ["s1", "s2"], [0, 1])
    for seed, shift in enumerate((0.0, 0.2)):
        grid.done("erm", "s1", seed, ap=[0.5 + shift, 0.4 + shift, 0.3 + shift], cf1=0.4, of1=0.3)
        grid.done("ld-efdmix", "s1", seed, ap=[0.5 + shift] * 3, whole=0.9, cf1=0.6, of1=0.3)
        grid.done("efdmix", "s1", seed, ap=[0.4 + shift] * 3, cf1=0.5, of1=0.2)
        grid.done("oracle", "s1", seed, ap=0.95, cf1=0.9, of1=0.9)
        grid.done("erm", "s2", seed, ap=[0.2, 0.2, None], seconds=30.0, epochs=3)
        grid.done("efdmix", "s2", seed, ap=[0.3, 0.3, None], seconds=40.0, epochs=2)
        grid.done("ld-efdmix", "s2", seed, ap=[0.2 + shift, 0.2 + shift, None], seconds=60.0, epochs=3)
        grid.done("oracle", "s2", seed, ap=[0.8, 0.8, None])
    return grid


def test_a_split_has_labels_means_and_deviations(small):
    table = by_slug(make_tables(small.view()))["split-s1-test"]
    assert table.headers == ("method (2 seeds)", "building", "tree", "ship", "mAP", "CF1", "OF1")
    assert texts(table, "ERM") == ["60.0", "50.0", "40.0", "50.0 ± 14.1", "40.0 ± 0.0", "30.0 ± 0.0"]
    assert texts(table, "LD-EFDMix") == ["60.0", "60.0", "60.0", "60.0 ± 14.1", "60.0 ± 0.0", "30.0 ± 0.0"]
    assert [row.values[0].text for row in table.rows] == ["ERM", "EFDMix", "LD-EFDMix", "Oracle"]
    assert table.rules == (2, 3)
    assert row(table, "ERM")["mAP"].number == pytest.approx(50.0)
    assert "trained on meadow and city" in table.caption
    assert "over 2 seeds (0, 1)" in table.caption


def test_bold_are_the_best_with_their_ties_and_never_the_oracle(small):
    table = by_slug(make_tables(small.view()))["split-s1-test"]
    assert bold(table, "building") == ["ERM", "LD-EFDMix"]
    assert bold(table, "mAP") == ["LD-EFDMix"]
    assert bold(table, "OF1") == ["ERM", "LD-EFDMix"]


def test_the_whole_target_is_a_table_of_its_own_without_the_oracle(small):
    table = by_slug(make_tables(small.view()))["split-s1-all"]
    assert [row.values[0].text for row in table.rows] == ["ERM", "EFDMix", "LD-EFDMix"]
    assert row(table, "LD-EFDMix")["mAP"].text == "90.0 ± 0.0"
    assert "oracle is left out" in table.caption


def test_a_label_that_no_image_has_is_named(small):
    value = row(by_slug(make_tables(small.view()))["split-s2-test"], "ERM")["ship"]
    assert (value.text, value.note) == ("–", "no image is known to have the label (seeds 0, 1)")


def test_the_summary_averages_seed_by_seed_and_judges_gains(small):
    table = by_slug(make_tables(small.view()))["summary-test"]
    assert table.headers == (
        *("method (2 seeds)", "s1 → harbour", "s2 → meadow", "average"),
        *("gain over ERM", "by seed", "p (Holm)"),
    )
    # Seeds of ERM: (0.4 + 0.2) / 2 and (0.6 + 0.2) / 2; of LD-EFDMix: (0.5 + 0.2) / 2 and (0.7 + 0.4) / 2.
    assert texts(table, "ERM") == ["50.0 ± 14.1", "20.0 ± 0.0", "35.0 ± 7.1", "–", "–", "–"]
    # Gains 0.05 and 0.15. Both signs agree, so 2 of 4 flips are as extreme; EFDMix gains 0.05 twice: the same.
    assert texts(table, "LD-EFDMix")[2:] == ["45.0 ± 14.1", "+10.0", "+5.0, +15.0; p ≥ 0.5", "1.000"]
    assert texts(table, "EFDMix")[2:] == ["40.0 ± 7.1", "+5.0", "+5.0, +5.0; p ≥ 0.5", "1.000"]
    assert row(table, "Oracle")["gain over ERM"].text == "–"
    assert bold(table, "average") == ["LD-EFDMix"]
    assert "at least 0.5 before correction" in table.caption


def test_three_seeds_have_an_interval_where_two_are_listed(make_grid):
    grid = make_grid()
    for seed in range(3):
        for split in ("s1", "s2") if seed < 2 else ("s1",):
            grid.done("erm", split, seed, ap=0.5)
            grid.done("csu", split, seed, ap=0.5 + 0.01 * seed)
    table = by_slug(make_tables(grid.view()))["differences-all"]
    assert table.headers[2:6] == ("s1 → harbour", "s2 → meadow", "all splits", "by seed")
    assert texts(table, "CSU")[1:4] == ["+1.0 [0.0, +2.0]", "+0.5 (0.0, +1.0)", "+0.5 (n = 2)"]
    assert "Below 3 seeds there is no interval" in table.caption
    for text in (write(table) for write in FORMATS.values()):
        assert "0.0, +1.0]" not in text


def test_captions_say_how_many_images_scores_are_of(small):
    made = by_slug(make_tables(small.view()))
    assert "the whole target (10 images of harbour, 10 of meadow)" in made["summary-all"].caption
    assert made["split-s1-all"].caption.startswith("All 10 images of harbour")
    assert made["split-s1-test"].caption.startswith("Test part of harbour (10 images)")
    figure = make_figure("label-ap", small.view())
    assert "the whole target (10 images of harbour, 10 of meadow)" in figure.caption
    assert "oracle" not in figure.data["titles"], "it was trained on most of the whole target"


def test_differences_are_paired_with_erm_and_with_the_global_twin(small):
    made = by_slug(make_tables(small.view()))
    assert texts(made["differences-test"], "LD-EFDMix") == [
        *("ERM", "+10.0 (+10.0, +10.0)", "+10.0 (0.0, +20.0)"),
        *("+10.0", "+5.0, +15.0; p ≥ 0.5", "0.500", "1.000", "1"),
    ]
    twins = made["twins-test"]
    assert [row.values[0].text for row in twins.rows] == ["LD-EFDMix"]
    # 0.1 and 0.1 on s1, -0.1 and 0.1 on s2: 0.0 and 0.1 by seed.
    assert texts(twins, "LD-EFDMix") == [
        *("EFDMix", "+10.0 (+10.0, +10.0)", "0.0 (−10.0, +10.0)"),
        *("+5.0", "0.0, +10.0; p ≥ 0.5", "1.000", "1.000", "0"),
    ]
    assert row(twins, "LD-EFDMix")["all splits"].number == pytest.approx(5.0)


def test_the_gap_to_the_oracle_is_smallest_in_bold(small):
    table = by_slug(make_tables(small.view()))["oracle-gap"]
    assert table.headers[1:] == ("s1 → harbour", "s2 → meadow", "average", "by seed")
    assert texts(table, "ERM") == ["+45.0", "+60.0", "+52.5", "+57.5, +47.5; p ≥ 0.5"]
    assert bold(table, "average") == ["LD-EFDMix"]


def test_cost_is_given_per_run_and_per_epoch_beside_erm(small):
    table = by_slug(make_tables(small.view()))["cost"]
    # s1: 10 s in 2 epochs for all; s2: 30 s in 3 epochs for ERM, 40 s in 2 for EFDMix.
    assert table.headers[1:4] == ("training (s)", "training / ERM", "epochs")
    assert texts(table, "ERM") == ["20.0 ± 0.0", "1.00 ×", "2.5 ± 0.0", "7.5 ± 0.0", "1.00 ×", "500"]
    assert texts(table, "EFDMix")[:5] == ["25.0 ± 0.0", "1.17 ×", "2.0 ± 0.0", "12.5 ± 0.0", "1.50 ×"]
    # Ratios of 10 / 10 and 40 / 30 seconds, of 5 / 5 and 20 / 10 per epoch.
    assert "one machine, 1 thread per run" in table.caption


def test_the_table_and_the_figure_of_cost_have_one_ratio(small):
    table = by_slug(make_tables(small.view()))["cost"]
    points = make_figure("cost-accuracy", small.view()).data["points"]
    ratio = fmean(points["efdmix"]["time"].values())
    assert row(table, "EFDMix")["training / ERM"].number == pytest.approx(ratio, rel=1e-12)


def test_seeds_that_failed_or_are_missing_are_named_and_never_averaged_over_silently(make_grid):
    grid = make_grid()
    grid.plan(["erm", "csu"], ["s1"], [0, 1, 2])
    for seed in range(3):
        grid.done("erm", seed=seed, ap=0.5)
    grid.done("csu", seed=0, ap=0.9)
    grid.fail("csu", seed=1)
    made = by_slug(make_tables(grid.view()))
    value = row(made["split-s1-test"], "CSU")["mAP"]
    assert (value.text, value.note) == ("90.0 (n = 1)", "1 of 3 seeds; seed 1 failed; seed 2 missing")
    assert not value.best, "an entry that lacks seeds is not the best"
    assert bold(made["split-s1-test"], "mAP") == ["ERM"]
    gain = row(made["summary-test"], "CSU")["gain over ERM"]
    assert (gain.text, gain.note) == ("+40.0 (n = 1)", "1 of 3 seeds; seed 1 failed; seed 2 missing")
    paired = row(made["differences-test"], "CSU")
    assert paired["s1 → harbour"].note == gain.note
    for text in (write(made["split-s1-test"]) for write in FORMATS.values()):
        assert "seed 1 failed; seed 2 missing" in text


def test_seeds_that_were_never_requested_are_counted_but_no_gap(make_grid):
    grid = make_grid()
    for seed in range(3):
        grid.done("erm", seed=seed, ap=0.5)
        grid.done("erm", "s2", seed=seed, ap=0.5)
    grid.done("csu", seed=0, ap=0.9)
    grid.plan(["mixstyle"], ["s1"], [0, 1])
    grid.fail("mixstyle", seed=0)
    made = by_slug(make_tables(grid.view()))
    value = row(made["split-s1-test"], "CSU")["mAP"]
    assert (value.text, value.note, value.best) == ("90.0 (n = 1)", "", False)
    assert row(made["split-s1-test"], "MixStyle")["mAP"].note == "seed 0 failed; seed 1 missing"


def test_a_split_that_was_run_with_fewer_seeds_lacks_them_in_the_average_only(make_grid):
    grid = make_grid()
    for seed in range(3):
        grid.done("erm", "s1", seed)
        grid.done("csu", "s1", seed)
    for method in ("erm", "csu"):
        grid.done(method, "s2", 0)
    made = by_slug(make_tables(grid.view()))
    summary = row(made["summary-test"], "CSU")
    assert "over 3 seeds (0–2)" in made["summary-test"].caption
    assert summary["s2 → meadow"].text == "50.0"
    assert (summary["average"].text, summary["average"].note) == ("50.0 (n = 1)", "")
    assert made["split-s2-test"].headers[0] == "method (1 seed)"


def test_ablations_and_sweeps_are_no_rows_of_the_main_tables(make_grid):
    grid = make_grid()
    grid.fill(["erm", "ld-efdmix-gc"], splits=["s1"], seeds=2)
    grid.fill(["ld-efdmix-gc.uniform"], splits=["s1"], seeds=2)
    grid.done("ld-efdmix-gc~top-ratio=0.2", "s1", 1000)
    table = by_slug(make_tables(grid.view()))["split-s1-test"]
    assert [row.values[0].text for row in table.rows] == ["ERM", "LD-EFDMix-GC"]
    assert table.headers[0] == "method (2 seeds)"


def test_the_papers_figures_stand_beside_ours_where_the_benchmark_is_the_papers(make_grid):
    grid = make_grid(**PAPER, labels=LABELS)
    grid.fill(["erm", "ld-efdmix"])
    made = by_slug(make_tables(grid.view()))
    on_aid = row(made["split-s2-test"], "LD-EFDMix")
    assert (on_aid["mAP (paper)"].text, on_aid["OF1 (paper)"].text) == ("79.1 ± 1.6", "69.1 ± 1.5")
    labels = row(made["split-s2-labels"], "LD-EFDMix")
    assert [labels[f"{label} (paper)"].number for label in LABELS] == list(TABLE_5["ld-efdmix"].ap.values())
    assert labels["ship"].text == "53.5"  # 0.5 + 0.03 - 0.1 + 0.1 for the sixth label; half a seed's 0.01
    summary = row(made["summary-test"], "LD-EFDMix")
    assert (summary["average (paper)"].text, summary["gain (paper)"].text) == ("71.4", "+4.9")
    assert not any("paper" in column for column in made["split-s2-all"].headers)


@pytest.mark.parametrize("settings", [{**PAPER, "preset": "small"}, {**PAPER, "domains": ("ucm", "aid", "city")}])
def test_nothing_stands_beside_another_benchmark(make_grid, settings):
    grid = make_grid(**settings)
    grid.fill(["erm", "ld-efdmix-gc"])
    made = make_tables(grid.view())
    assert not [item.slug for item in made if isinstance(item, Table) for name in item.headers if "paper" in name]


def test_maps_are_compared_with_uniform_ones_where_there_are_masks(make_grid):
    grid = make_grid()
    for seed in range(2):
        grid.done("erm", "s1", seed, pointing=0.3 + 0.1 * seed, iou=0.2)
        grid.done("ld-efdmix", "s1", seed, pointing=0.6, iou=0.2)
        grid.done("erm", "s2", seed)
    table = by_slug(make_tables(grid.view()))["localization"]
    assert [value.text for value in table.rows[0].values] == [
        *("ERM", "harbour", "35.0 ± 7.1", "20.0"),
        *("20.0 ± 0.0", "10.0", "80.0"),
    ]
    assert "No masks: meadow" in table.caption


def test_learned_attention_has_a_row_per_insertion_point(make_grid):
    def maps(pointing):
        chance = {"iou": 0.2, "pointing_chance": 0.1, "iou_chance": 0.05}
        return {point: {"mean": {"pointing": pointing, **chance}} for point in ("layer1", "layer2")}

    grid = make_grid()
    grid.done("erm", "s1", 0, edits={"attention": None})
    for seed in range(2):
        grid.done("ld-efdmix", "s1", seed, edits={"attention": maps(0.5 + 0.1 * seed)})
    table = by_slug(make_tables(grid.view()))["learned-attention"]
    assert [[value.text for value in row.values] for row in table.rows] == [
        ["LD-EFDMix", "harbour", point, "55.0 ± 7.1", "10.0", "20.0 ± 0.0", "5.0"] for point in ("layer1", "layer2")
    ]


def test_attention_is_compared_on_training_held_out_and_unseen_images(make_grid):
    def means(iou):
        return {source: {"iou": iou, "iou_chance": 0.1} for source in ("cam", "llam/layer2")}

    grid = make_grid()
    grid.done("erm", "s1", 0)
    for seed in range(2):
        parts = {"training": means(0.3 + 0.1 * seed), "held-out": means(0.2)}
        grid.done("ld-efdmix", "s1", seed, edits={"attention_parts": parts})
    table = by_slug(make_tables(grid.view()))["attention-parts"]
    measured = ["35.0 ± 7.1", "3.50 ± 0.71", "20.0 ± 0.0", "2.00 ± 0.00", "–", "–"]
    assert [[value.text for value in row.values] for row in table.rows] == [
        ["LD-EFDMix", "harbour", source, *measured] for source in ("class activation", "LLAM, layer2")
    ]


def test_runs_that_kept_their_epochs_show_how_they_developed(make_grid):
    def epoch(number, value):
        mean = {"pointing": value, "pointing_chance": 0.2, "iou": value / 2, "iou_chance": 0.1}
        tables = {"localization": {"mean": mean}, "attention": {"layer1": {"mean": mean}}}
        return {"epoch": number, "scores": {"test": {"map": 0.9}, "all": {"map": value}}, **tables}

    grid = make_grid()
    grid.done("erm", "s1", 0)
    assert "development" not in by_slug(make_tables(grid.view()))
    for seed in range(2):
        grid.done("ld-efdmix", "s1", seed, edits={"epochs": [epoch(1, 0.3 + 0.2 * seed), epoch(2, 0.6)]})
    table = by_slug(make_tables(grid.view()))["development"]
    assert table.headers == ("method", "target", "maps", "measure", "epoch 1", "epoch 2")
    shown = [[value.text for value in row.values[2:]] for row in table.rows]
    assert shown[0] == ["–", "mAP", "40.0", "60.0"]
    hits = [
        ["pointing", "40.0", "60.0"],
        ["pointing (uniform)", "20.0", "20.0"],
        ["IoU", "20.0", "30.0"],
        ["IoU (uniform)", "10.0", "10.0"],
    ]
    assert shown[1:] == [[maps, *row] for maps in ("class activation", "layer1") for row in hits]


def test_what_cannot_be_made_says_why(make_grid):
    grid = make_grid()
    grid.done("ld-csu", "s1", 0)
    made = by_slug([*make_tables(grid.view()), dataset_table(grid.view())])
    reasons = {slug: item.reason for slug, item in made.items() if isinstance(item, Absent)}
    assert "no ERM" in reasons["differences-test"]
    assert "--methods csu" in reasons["twins-test"]
    assert "--methods oracle" in reasons["oracle-gap"]
    assert "No domain has masks" in reasons["attention-parts"]
    assert "No target has masks" in reasons["localization"]
    assert "No target has masks" in reasons["learned-attention"]
    assert "ldstyle bench ablations" in reasons["ablation"]
    assert "no data folder '/nowhere'" in reasons["dataset"]
    assert bold(made["split-s1-test"], "mAP") == [], "one alone is not the best"


def test_one_seed_has_no_deviation_no_interval_and_no_test(make_grid):
    grid = make_grid()
    grid.fill(["erm", "csu"], splits=["s2"], seeds=1)
    table = by_slug(make_tables(grid.view()))["summary-test"]
    assert table.headers == ("method (1 seed)", "mAP, s2 → meadow", "gain over ERM")
    assert texts(table, "CSU") == ["55.0", "+3.0"]
    assert "in percent, 1 seed (0)." in table.caption
    assert "One seed does not show" in table.caption


def test_a_grid_that_has_not_begun_gives_reasons_only(make_grid):
    grid = make_grid()
    grid.plan(["erm", "ld-efdmix", "ld-efdmix-gc.uniform", "efdmix", "oracle"], ["s1", "s2"], [0])
    grid.fail("erm")
    cells = grid.view()
    made = [*make_tables(cells), dataset_table(cells), complexity_table(cells)]
    made = [item for item in made if item.slug not in ("selected", "search-space")]
    assert [type(item) for item in made] == [Absent] * len(made)
    assert "None of 8 cells is done (1 failed)" in by_slug(made)["summary-test"].reason
    assert row(selected_tables(cells)[0], "ERM")["splits"].text == "all"


def test_presets_are_not_mixed(small):
    (first, *rest) = small.read()
    with pytest.raises(ValueError, match=r"of one preset; got \['paper', 'smoke'\]. Make a view of each"):
        Results([replace(first, preset="paper"), *rest])


def test_ablations_are_judged_against_their_full_method_beside_table_8(make_grid):
    grid = make_grid(**PAPER, labels=LABELS)
    for seed in range(2):
        grid.done("ld-efdmix-gc", "s1", seed, ap=0.8)
        grid.done("ld-efdmix-gc.uniform", "s1", seed, ap=0.7 + 0.02 * seed)
    grid.done("ld-efdmix-gc.no-warmup", "s1", 0, ap=0.9)
    (table,) = ablation_tables(grid.view())
    assert table.slug == "ablation-s1"
    assert table.headers[0] == "variant (2 seeds)"
    uniform = row(table, "w/o attention (uniform map)")
    assert (uniform["mAP"].text, uniform["ΔmAP"].text) == ("71.0 ± 1.4", "−9.0")
    assert (uniform["by seed"].text, uniform["p (Holm)"].text) == ("−10.0, −8.0; p ≥ 0.5", "1.000")
    assert (uniform["mAP (paper)"].text, uniform["ΔmAP (paper)"].text) == ("76.8 ± 3.0", "−2.6")
    assert row(table, "w/o warm-up")["ΔmAP"].text == "+10.0 (n = 1)"
    assert row(table, "w/o map refresh")["mAP"].text == "–"
    assert bold(table, "mAP") == ["LD-EFDMix-GC (full)"], "a better one that lacks a seed does not count"
    assert table.rules == (7,)
    elsewhere = make_grid("elsewhere")
    elsewhere.fill(["ld-efdmix-gc", "ld-efdmix-gc.uniform"], splits=["s2"])
    (table,) = ablation_tables(elsewhere.view())
    assert "ΔmAP (paper)" not in table.headers
    assert "the whole target (10 images of meadow)" in table.caption


def test_the_search_space_is_table_2():
    table = search_space_table()
    assert [row.values[1].text for row in table.rows] == [parameter.setting for parameter in TABLE_2]
    assert texts(table, "α") == ["style.operator.alpha", "0.1 to 5", "(LD-)MixStyle, (LD-)EFDMix"]
    searched = {row.values[0].text: row.values[3].text for row in table.rows}
    assert [searched[name] for name in ("weight decay", "p", "K", "τ", "R", "β", "M")] == [
        *("all methods", "all augmentations", "all LD variants", "LLAM variants", "GC variants"),
        *("(LD-)CSU", "LD-MixStyle"),
    ]
    assert texts(table, "K")[1] == "subsets of 1, 2, 3, 4"
    assert table.rules == (3,)


def test_selected_values_are_those_of_the_runs_beside_table_3(make_grid):
    grid = make_grid(**PAPER, labels=LABELS)
    grid.fill(["erm", "ld-efdmix-gc"], splits=["s1"], seeds=2)
    other = grid.cell("ld-efdmix-gc", "s2").settings
    style = {**other["style"], "gate_prob": 0.8}
    for seed, top in enumerate((0.6, 0.7)):
        operator = {**style["operator"], "top_ratio": top}
        grid.done("ld-efdmix-gc", "s2", seed, edits={"config": {**other, "style": {**style, "operator": operator}}})
    values, beside = selected_tables(grid.view())
    assert [(v.values[0].text, v.values[1].text) for v in values.rows] == [
        ("ERM", "s1"),
        ("LD-EFDMix-GC", "s1"),
        ("LD-EFDMix-GC", "s2"),
    ]
    assert "M" not in values.headers, "no method of the set has a style bank"
    rows = [dict(zip(values.headers, one.values, strict=True)) for one in values.rows]
    assert (rows[0]["lr backbone"].text, rows[0]["p"].text) == ("0.000116", "–")
    assert (rows[1]["p"].text, rows[2]["p"].text) == ("0.5", "0.8")
    assert (rows[2]["ρ"].text, rows[2]["ρ"].note) == ("varies", "not the same for all seeds")
    assert beside.headers == ("parameter", "s1 → ucm", "s1 (paper)", "s2 → aid", "s2 (paper)")
    assert texts(beside, "p") == ["0.5", "0.2", "0.8", "0.8"]
    assert texts(beside, "K") == ["1 + 2", "2", "1 + 2", "1"]


def test_the_data_are_counted_where_they_can_be_read_beside_table_1(tmp_path, layouts, make_grid):
    root = tmp_path / "data"
    layouts.ucm(root / "ucm")
    layouts.aid(root / "aid")
    grid = make_grid(domains=("ucm", "aid"), labels=LABELS, root=str(root))
    grid.done("erm", "s2", 0)
    table = dataset_table(grid.view())
    assert table.headers == ("", "ucm", "ucm (paper)", "aid", "aid (paper)")
    # Of the four images of UCM one has a tree, one none, one a ship and water, and one a car, pavement and a building.
    assert texts(table, "images") == ["4", "2100", "4", "3000"]
    assert texts(table, "labels per image")[:2] == ["1.50", "2.00"]
    assert texts(table, "ship") == ["1", "102", "1", "284"]


def test_complexity_is_counted_for_the_network_of_the_runs(make_grid):
    grid = make_grid(preset="small", labels=LABELS)
    grid.fill(["erm", "ld-efdmix"], splits=["s1"], seeds=1)
    table = complexity_table(grid.view())
    network = create_network("tf_efficientnet_lite0", num_labels=6, output_stride=16)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    macs = count_macs(network, size=128)
    plain = row(table, "ERM / global")
    assert (plain["parameters (M)"].number, plain["MACs (G)"].number) == (parameters / 1e6, macs / 1e9)
    assert plain["added (%)"].text == "–"
    learned = row(table, "LD (LLAM)")
    assert learned["parameters (M)"].number > parameters / 1e6
    command = learned["images/s"].note.removeprefix("not measured; run ldstyle ")
    assert main([*shlex.split(command), "--repeats", "0", "--device", "cpu"]) == 0
    assert read_complexity(grid.folder / FILE)[1]["global"].macs == macs
    assert "output stride 16 with 6 labels at 128 px" in table.caption
    assert "parameters (M) (paper)" not in table.headers


def test_throughput_comes_from_a_measurement_and_not_from_the_report(make_grid):
    grid = make_grid()
    grid.fill(["erm"], splits=["s1"], seeds=1)
    row_of = Measured(2_000_000, 1_000_000, 500_000_000, (9.0, 10.4, 12.0))
    conditions = Conditions("resnet50", batch_size=8, device="cpu")
    write_complexity(grid.folder / FILE, conditions, dict.fromkeys(("global", "llam", "gradcam"), row_of))
    table = complexity_table(grid.view())
    ours, papers = ["2.00", "+100.00", "0.500", "10 (9–12)"], ["23.60", "+0.35", "4.087", "1501–1505"]
    assert texts(table, "LD (LLAM)") == ours + papers
    assert "batches of 8 on cpu" in table.caption
    (grid.folder / FILE).write_text('{"schema": 1, "rows": {"global": {}}}')
    absent = complexity_table(grid.view())
    assert isinstance(absent, Absent)
    assert "is not a measurement of complexity" in absent.reason


def test_tables_do_not_depend_on_when_cells_ran(make_grid):
    def everything(grid) -> list[str]:
        cells = grid.view()
        made = make_tables(cells)
        return [write(item) for item in made if isinstance(item, Table) for write in FORMATS.values()]

    grid = make_grid()
    grid.plan(["oracle", "ld-csu-gc", "csu", "csu+swad"], ["s2", "s1"], [1, 0])
    grid.fill(["ld-csu", "erm", "csu"], splits=["s1", "s2"], seeds=2, pointing=0.4)
    grid.done("oracle", "s1", 1)
    first = everything(grid)
    assert len(first) > 30
    assert everything(grid) == first
    path = grid.folder / RECORDS
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    for age, plan in enumerate(sorted((grid.folder / "plans").iterdir(), key=lambda path: -path.stat().st_mtime_ns)):
        os.utime(plan, (age, age))
    assert everything(grid) == first


def test_a_repository_copy_without_folders_gives_the_same_tables(tmp_path: Path, small):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / RECORDS).write_bytes((small.folder / RECORDS).read_bytes())
    texts_of = [
        [FORMATS["csv"](item) for item in make_tables(Results(read_results(folder))) if isinstance(item, Table)]
        for folder in (small.folder, copy)
    ]
    assert texts_of[0] == texts_of[1]


def test_calibration_is_shown_as_predicted_and_scaled(make_grid):
    grid = make_grid(domains=("harbour", "meadow"))
    grid.plan(["erm", "erm+focal"], ["s1"], [0, 1])
    for seed in range(2):
        errors = {"before": {"building": 0.1 + 0.1 * seed, "tree": 0.2, "ship": None}}
        errors["after"] = dict.fromkeys(("building", "tree"), 0.05) | {"ship": None}
        judged = {"temperature": 1.5 + seed, "test": errors, "all": errors}
        grid.done("erm", "s1", seed, edits={"calibration": judged})
        grid.done("erm+focal", "s1", seed)
    table = by_slug(make_tables(grid.view()))["calibration"]
    columns = ("target", "probabilities", "temperature", "mean", "building", "tree", "ship")
    assert table.headers == ("method (2 seeds)", *columns)
    shown = [[value.text for value in row.values] for row in table.rows]
    assert shown[0][:6] == ["ERM", "harbour", "as predicted", "–", "17.5 ± 3.5", "15.0"]
    assert shown[1][:6] == ["ERM", "harbour", "scaled", "2.00 ± 0.71", "5.0 ± 0.0", "5.0"]
    assert [values[6:] for values in shown] == [["20.0", "–"], ["5.0", "–"]]
    assert len(shown) == 2


def test_records_of_earlier_versions_have_no_calibration(small):
    item = by_slug(make_tables(small.view()))["calibration"]
    assert isinstance(item, Absent)
    assert item.optional


def test_methods_with_something_added_stand_with_their_kind(make_grid):
    grid = make_grid()
    names = ["ld-efdmix+coral", "erm+balanced", "coral", "erm", "efdmix+coral+swad", "ld-efdmix"]
    grid.fill(names, splits=["s1"])
    table = by_slug(make_tables(grid.view()))["split-s1-all"]
    assert isinstance(table, Table)
    assert [row.values[0].text for row in table.rows] == [
        *("ERM", "CORAL", "ERM + class balance", "EFDMix + CORAL + SWAD", "LD-EFDMix", "LD-EFDMix + CORAL")
    ]


def test_names_are_joined_as_in_a_sentence():
    assert [joined(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]


def test_a_value_that_a_method_cannot_have_has_no_note():
    assert why_incomplete({}, {0: "undefined", 1: "undefined"}) == ""
    assert why_incomplete({0: 0.5}, {1: "undefined"}) == "1 of 2 seeds; seed 1 without a value"
    assert why_incomplete({}, {0: "undefined", 1: "failed"}) == "seed 0 without a value; seed 1 failed"
    assert why_incomplete({}, {0: "undefined"}, undefined="no masks") == "no masks (seed 0)"
