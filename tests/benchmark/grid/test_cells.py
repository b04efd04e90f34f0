from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldstyle.benchmark.grid.cells import Cell, digest_of, make_cells, make_splits, order_domains, take_shard
from ldstyle.benchmark.grid.methods import load_method, load_methods
from ldstyle.benchmark.grid.presets import PRESETS, Preset, apply_preset, load_preset
from ldstyle.runs.settings import config_from

DOMAINS = ("ucm", "aid", "dfc15")
DATA = {"root": "/data", "sea": "drop", "mapping": None}


def grid(names, *, seeds=(0,), preset="smoke", splits=("all",), **more):
    return make_cells(
        load_methods(names), make_splits(DOMAINS, splits), seeds, preset=load_preset(preset), data=DATA, **more
    )


def test_splits_are_the_papers():
    assert [(split.name, split.sources, split.target) for split in make_splits(DOMAINS)] == [
        ("s1", ("aid", "dfc15"), "ucm"),
        ("s2", ("ucm", "dfc15"), "aid"),
        ("s3", ("ucm", "aid"), "dfc15"),
    ]


def test_splits_are_chosen_by_name_or_by_target_and_stay_in_order():
    assert [split.name for split in make_splits(DOMAINS, ["dfc15", "s1"])] == ["s1", "s3"]
    with pytest.raises(ValueError, match=r"no split 's4'.* Choose from: all, s1 \(target ucm\), s2"):
        make_splits(DOMAINS, ["s4"])


def test_a_split_gives_the_domains_in_their_order_whatever_its_name():
    domains = ("ucm", "aid", "dfc15")
    for split in make_splits(domains):
        assert order_domains(split.name, split.sources, split.target) == domains
    assert order_domains("north", ("aid", "dfc15"), "ucm") == domains


def test_the_grid_has_one_cell_per_method_split_and_seed_seed_by_seed():
    cells = grid(["all"], seeds=(0, 1))
    assert len({cell.slug for cell in cells}) == len(cells) == 12 * 3 * 2
    assert [cell.seed for cell in cells] == [0] * 36 + [1] * 36


def test_a_cell_without_algorithm_and_loss_is_that_of_earlier_plans():
    erm, coral, focal = grid(["erm", "coral", "erm+focal"], splits=["s1"])
    assert {"algorithm", "loss"}.isdisjoint(erm.settings)
    assert coral.settings["algorithm"] == {"name": "coral", "weight": 1.0}
    assert "loss" not in coral.settings
    assert focal.slug == "smoke-erm+focal-s1-seed0"
    assert config_from({**focal.settings, "out": "run"}).loss.gamma == 2.0


def test_training_names_the_sources_only_and_the_oracle_the_target_only():
    erm, oracle = grid(["erm", "oracle"], splits=["s2"])
    assert erm.settings["data"]["sources"] == ["ucm", "dfc15"]
    assert oracle.settings["data"]["sources"] == ["aid"]
    assert oracle.split == erm.split


def test_of_two_domains_each_source_is_paired_with_a_copy_of_itself():
    names = ["erm", "ld-efdmix", "oracle"]
    cells = make_cells(
        load_methods(names), make_splits(["summer", "winter"]), [0], preset=load_preset("smoke"), data=DATA
    )
    found = {(cell.method, cell.split.target): cell.settings["data"] for cell in cells}
    for method in ("erm", "ld-efdmix"):
        assert found[method, "winter"]["sources"] == ["summer"]
        assert found[method, "winter"]["pseudo_domain"]
    assert not found["oracle", "winter"]["pseudo_domain"]
    assert not grid(["erm"])[0].settings["data"]["pseudo_domain"]


def test_settings_are_complete_but_for_where_and_how():
    (cell,) = grid(["ld-efdmix-gc"], splits=["s1"], preset="paper")
    runtime = {"out": "/tmp/x", "data": {**cell.settings["data"], "cache_dir": "/tmp/c"}}
    config = config_from({**cell.settings, **runtime})
    assert (config.backbone.name, config.data.size, config.optimizer.epochs) == ("resnet50", 224, 100)
    assert config.style.warmup_epochs == 5
    assert not {"out", "logger", "quiet", "checkpoint_minutes"} & cell.settings.keys()
    assert "cache_dir" not in cell.settings["data"]


def test_a_schedule_reaches_only_what_a_method_has():
    cells = {cell.method: cell.settings for cell in grid(["erm", "swad", "ld-csu", "ld-csu-gc"], splits=["s1"])}
    assert cells["erm"]["style"] is None
    assert cells["erm"]["swad"] is None
    assert cells["swad"]["swad"]["evaluate_every"] == 2
    for preset in ("small", "study", "demo", "smoke"):  # short trainings: enough validations for SWAD's windows
        methods = ["swad", "ld-efdmix+swad"][: 1 if preset == "smoke" else 2]  # two epochs leave one after the warm-up
        for cell in grid(methods, splits=["s1"], preset=preset):
            config = config_from({**cell.settings, "out": "x"})
            begun = 1 if config.style is None else 2 * config.style.warmup_epochs  # the first epoch that is averaged
            epochs = config.optimizer.epochs + 1 - begun
            steps = epochs * (config.optimizer.steps_per_epoch or 127)  # two archives of UCM's and AID's size
            assert steps / config.swad.evaluate_every >= 2 * config.swad.n_tolerance
    assert cells["ld-csu"]["style"]["warmup_epochs"] == 1
    assert "refresh_every" not in cells["ld-csu"]["style"]["attention"]
    assert cells["ld-csu-gc"]["style"]["attention"]["refresh_every"] == 1


def test_layers_lie_in_order_preset_method_schedule_selected_edits():
    preset = Preset("p", settings={"optimizer": {"epochs": 9, "patience": 8}}, schedule={"style": {"warmup_epochs": 2}})
    method = load_method("ld-csu")
    assert apply_preset(preset, {**method.settings, "optimizer": {"epochs": 7}})["optimizer"] == {
        "epochs": 7,
        "patience": 8,
    }
    selected = {("ld-csu", "s2"): {"style": {"warmup_epochs": 6, "gate_prob": 0.3}}}
    one, two, three = make_cells(
        [method],
        make_splits(DOMAINS),
        [4],
        preset=preset,
        data=DATA,
        selected=selected,
        edits={"style": {"gate_prob": 0.9}},
    )
    assert [cell.settings["style"]["warmup_epochs"] for cell in (one, two, three)] == [2, 6, 2]
    assert {cell.settings["style"]["gate_prob"] for cell in (one, two, three)} == {0.9}
    assert (one.seed, one.settings["seed"]) == (4, 4)


def test_a_cell_survives_json():
    (cell,) = grid(["ld-mixstyle+swad"], splits=["s3"])
    again = Cell.from_description(json.loads(json.dumps(cell.describe())))
    assert again.slug == cell.slug == "smoke-ld-mixstyle+swad-s3-seed0"
    assert again.differences(cell) == {}
    assert hash(again) == hash(cell)


def test_differences_are_what_could_change_a_result():
    (cell,) = grid(["erm"], splits=["s1"])
    (other,) = grid(["erm"], splits=["s1"], edits={"optimizer": {"epochs": 3}})
    (moved,) = make_cells(
        load_methods(["erm"]), make_splits(DOMAINS, ["s1"]), [0], preset=load_preset("smoke"), data={"root": "/moved"}
    )
    assert cell.differences(other) == {"optimizer.epochs": (2, 3)}
    assert cell.differences(moved) == {}


@given(st.integers(0, 40), st.integers(1, 12))
def test_shards_are_disjoint_and_complete(count, shards):
    parts = [take_shard(range(count), shard, shards) for shard in range(1, shards + 1)]
    assert sorted(item for part in parts for item in part) == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_shard_counts_from_one():
    with pytest.raises(ValueError, match=r"1 <= I <= N; got 0/4"):
        take_shard([1, 2], 0, 4)


def test_the_digest_of_a_plan_follows_from_its_cells():
    cells = grid(["erm", "csu"])
    assert digest_of(cells) == digest_of(cells[::-1]) != digest_of(cells[1:])


def test_unknown_presets_are_answered_with_the_nearest():
    assert list(PRESETS) == ["paper", "small", "study", "bigearthnet", "demo", "smoke"]
    with pytest.raises(ValueError, match=r"no preset 'smok'\. Did you mean 'smoke'\?"):
        load_preset("smok")
