"""The leaderboard ranks methods by their gain over ERM where both were run, next to their twin and their cost."""

from __future__ import annotations

import json

from ldstyle.benchmark.results.costs import FILE, write_costs
from ldstyle.report.model import Absent, Table
from ldstyle.report.tables.attention import strength_table
from ldstyle.report.tables.differences import addition_table
from ldstyle.report.tables.leaderboard import leaderboard_table


def texts(table, name):
    (found,) = [row.values for row in table.rows if row.values[0].text == name]
    return dict(zip(table.headers, [value.text for value in found], strict=True))


def fill(grid, method, split, whole, *, seconds=10.0):
    for seed, value in enumerate(whole):
        grid.done(method, split, seed, ap=0.1, whole=value, seconds=seconds)


def uneven(make_grid):
    """ERM and LD-EFDMix on two splits, EFDMix on one of them; LD-EFDMix has one seed less on the second."""
    grid = make_grid()
    fill(grid, "erm", "s1", [0.50, 0.52, 0.54])
    fill(grid, "erm", "s2", [0.30, 0.30, 0.30])
    fill(grid, "efdmix", "s1", [0.49, 0.51, 0.53], seconds=15.0)
    fill(grid, "ld-efdmix", "s1", [0.52, 0.53, 0.57], seconds=20.0)
    fill(grid, "ld-efdmix", "s2", [0.40, 0.40], seconds=20.0)
    grid.plan(["ld-efdmix"], ["s2"], [0, 1, 2])
    return grid


def test_rows_are_ranked_by_the_gain_over_erm_and_compared_on_what_both_have(make_grid):
    table = leaderboard_table(uneven(make_grid).view())
    assert isinstance(table, Table)
    assert [row.values[0].text for row in table.rows] == ["ERM", "EFDMix", "LD-EFDMix"]
    decoupled = texts(table, "LD-EFDMix")
    assert decoupled["s1 → harbour"] == "54.0 ± 2.6"
    assert decoupled["s2 → meadow"] == "40.0 ± 0.0 (n = 2)"
    # Seeds 0 and 1 have both splits: (2 + 10) / 2 and (1 + 10) / 2 points. The twin ran on s1 alone: +3, +2, +4.
    assert decoupled["minus ERM"] == "+5.8 (+6.0, +5.5) (n = 2)"
    assert decoupled["minus twin"].startswith("+3.0 [+2.")
    assert decoupled["cost"] == "2.00 ×"
    assert decoupled["source validation"] == "80.0 ± 0.0 (n = 2)"
    assert texts(table, "EFDMix")["minus ERM"] == "−1.0 [−1.0, −1.0]"
    assert texts(table, "EFDMix")["s2 → meadow"] == "–"
    assert texts(table, "EFDMix")["cost"] == "1.50 ×"
    assert (texts(table, "ERM")["minus ERM"], texts(table, "ERM")["cost"]) == ("–", "1.00 ×")
    assert "2 of 3 seeds; seed 2 missing" in table.notes


def test_a_row_of_fewer_seeds_shows_their_number_in_every_column(make_grid):
    grid = make_grid()
    fill(grid, "erm", "s1", [0.5] * 4)
    fill(grid, "efdmix", "s1", [0.4] * 3)
    table = leaderboard_table(grid.view())
    assert isinstance(table, Table)
    found = texts(table, "EFDMix")
    assert {name for name, text in found.items() if text.endswith("(n = 3)")} == {
        *("s1 → harbour", "source validation", "minus ERM"),
    }
    assert not [text for text in texts(table, "ERM").values() if "n = " in text]
    assert not table.notes


def test_a_style_with_an_addition_is_compared_with_the_addition_alone(make_grid):
    grid = make_grid()
    for seed in range(3):
        for method, ap in {"erm": 0.5, "swad": 0.52, "ld-efdmix+swad": 0.55 + 0.01 * seed}.items():
            grid.done(method, seed=seed, ap=ap)
    table = leaderboard_table(grid.view())
    assert isinstance(table, Table)
    assert texts(table, "LD-EFDMix + SWAD")["minus SWAD"].startswith("+4.0 [+3.")
    assert texts(table, "SWAD")["minus SWAD"] == texts(table, "LD-EFDMix + SWAD")["minus twin"] == "–"


def test_the_best_of_each_target_is_bold(make_grid):
    table = leaderboard_table(uneven(make_grid).view())
    assert [row.values[0].text for row in table.rows if row.values[1].best] == ["LD-EFDMix"]


def test_without_erm_there_is_nothing_to_rank_by(make_grid):
    grid = make_grid()
    grid.done("efdmix")
    found = leaderboard_table(grid.view())
    assert isinstance(found, Absent)
    assert "erm" in found.reason


def log_strength(grid, method, seed, strength, locations):
    path = grid.folder / grid.cell(method, "s1", seed).slug / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        last = line["epoch"] == len(lines)
        line |= {"strength": {"blocks.1": strength if last else 0.9}, "locations": {"blocks.1": locations}}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_strength_is_that_of_the_last_epoch_next_to_the_twins(make_grid):
    grid = make_grid()
    for seed, (decoupled, whole) in enumerate([(0.1, 0.2), (0.2, 0.4)]):
        grid.done("efdmix", seed=seed)
        grid.done("ld-efdmix", seed=seed)
        grid.done("erm", seed=seed)
        log_strength(grid, "efdmix", seed, whole, None)
        log_strength(grid, "ld-efdmix", seed, decoupled, 0.25)
    table = strength_table(grid.view())
    assert isinstance(table, Table)
    assert [row.values[0].text for row in table.rows] == ["EFDMix", "LD-EFDMix"]
    found = texts(table, "LD-EFDMix")
    assert found["relative change"] == "15.0 ± 7.1"
    assert (found["× twin"], found["locations"], found["insertion point"]) == ("0.50", "25", "blocks.1")
    assert (texts(table, "EFDMix")["× twin"], texts(table, "EFDMix")["locations"]) == ("–", "–")


def test_runs_without_style_have_no_strength(make_grid):
    grid = make_grid()
    grid.done("erm")
    assert isinstance(strength_table(grid.view()), Absent)


def test_a_measured_cost_replaces_the_ratio_of_the_runs_times(make_grid):
    grid = uneven(make_grid)
    write_costs(grid.folder / FILE, {"erm": 1.0, "ld-efdmix": 1.07})
    table = leaderboard_table(grid.view())
    assert isinstance(table, Table)
    assert [texts(table, name)["cost"] for name in ("ERM", "LD-EFDMix", "EFDMix")] == ["1.00 ×", "1.07 ×", "–"]
    assert "steps that alternate in one process" in table.caption


def test_a_style_added_to_another_method_is_compared_with_that_method(make_grid):
    grid = make_grid()
    fill(grid, "erm", "s1", [0.5] * 4)
    absent = addition_table(grid.view(), part="all")
    assert isinstance(absent, Absent)
    assert "swad" in absent.reason
    fill(grid, "swad", "s1", [0.50, 0.51, 0.52, 0.53])
    fill(grid, "ld-efdmix+swad", "s1", [0.51, 0.53, 0.55, 0.57])
    table = addition_table(grid.view(), part="all")
    assert isinstance(table, Table)
    assert [row.values[0].text for row in table.rows] == ["LD-EFDMix + SWAD"]
    found = texts(table, "LD-EFDMix + SWAD")
    assert (found["minus"], found["p"]) == ("SWAD", "0.125")  # the signs of four seeds: 2 of 16
    assert found["s1 → harbour"] == "+2.5"


def test_rows_without_a_valley_are_noted(make_grid):
    grid = make_grid()
    for seed in range(3):
        grid.done("erm", "s1", seed, ap=0.5)
        grid.done("swad", "s1", seed, ap=0.5, edits={"valley": {"found": seed > 0}})
        grid.done("ld-efdmix+swad", "s1", seed, ap=0.5, edits={"valley": {"found": True}})
    table = leaderboard_table(grid.view())
    assert isinstance(table, Table)
    noted = {row.values[0].text: row.values[0].note for row in table.rows if row.values[0].note}
    assert noted == {"SWAD": "no valley found in 1 of 3 runs, which average the last segment alone"}


def test_several_targets_have_an_average_over_the_seeds_that_have_all_of_them(make_grid):
    table = leaderboard_table(uneven(make_grid).view())
    assert isinstance(table, Table)
    assert texts(table, "ERM")["average"] == "41.0 ± 1.0"
    assert texts(table, "LD-EFDMix")["average"] == "46.3 ± 0.4 (n = 2)"
    assert texts(table, "EFDMix")["average"] == "–"
    single = leaderboard_table(uneven(make_grid).view().on("s1"))
    assert isinstance(single, Table)
    assert "average" not in single.headers


def test_a_method_with_few_seeds_does_not_lead_those_with_enough(make_grid):
    grid = make_grid()
    fill(grid, "erm", "s1", [0.50, 0.52, 0.54])
    fill(grid, "efdmix", "s1", [0.49, 0.51, 0.53])
    fill(grid, "sagm", "s1", [0.90, 0.90])
    fill(grid, "fact", "s1", [0.95])
    table = leaderboard_table(grid.view())
    assert isinstance(table, Table)
    assert [row.values[0].text for row in table.rows] == ["ERM", "EFDMix", "FACT", "SAGM"]
    assert "methods with fewer than 3 seeds last" in table.caption
    fewer = leaderboard_table(grid.view().select(lambda cell: cell.seed < 2))
    assert isinstance(fewer, Table)
    assert [row.values[0].text for row in fewer.rows] == ["FACT", "SAGM", "ERM", "EFDMix"]
