"""Table 2: its ranges, which methods have which parameters, and how draws become settings."""

from __future__ import annotations

import optuna
import pytest

from ldstyle.benchmark.grid.methods import load_method
from ldstyle.benchmark.search.spaces import (
    SHARED_SPACE,
    TABLE_2,
    Choice,
    Integers,
    LogUniform,
    Subsets,
    Uniform,
    method_space,
    suggest,
)
from ldstyle.runs.settings import config_from, merge, nested

BASE = {"data": {"root": "data", "sources": ["a", "b"]}, "out": "run"}

OWN = {
    "erm": "",
    "swad": "",
    "dsu": "p",
    "mixstyle": "α p",
    "efdmix": "α p",
    "csu": "p β",
    "ld-mixstyle": "α p K W w_div τ M",
    "ld-efdmix": "α p K W w_div τ ρ",
    "ld-csu": "p K W w_div τ β",
    "ld-mixstyle-gc": "α p K W M R",
    "ld-efdmix-gc": "α p K W ρ R",
    "ld-csu-gc": "p K W β R",
    "fact": "η (FACT), p (FACT)",
    "mixup": "α (mixup)",
    "coral": "γ (CORAL)",
    "miro": "λ (MIRO)",
    "groupdro": "η (GroupDRO)",
    "sagm": "ρ (SAGM), α (SAGM)",
    "erm++": "head first (ERM++), mean after (ERM++)",
    "efdmix+coral": "α, p, γ (CORAL)",
    "erm+focal": "γ (focal), α (focal)",
    "erm+asymmetric+balanced": "γ₋ (asymmetric), m (asymmetric)",
}


def config_of(method: str):
    return config_from(merge(BASE, load_method(method).settings))


def space_of(config):
    return method_space(config.style, algorithm=config.algorithm, loss=config.loss)


@pytest.mark.parametrize("method", OWN)
def test_each_method_has_the_parameters_that_table_2_gives_it(method):
    symbols = [parameter.symbol for parameter in space_of(config_of(method))]
    assert symbols == (OWN[method].split(", ") if "(" in OWN[method] else OWN[method].split())


def test_the_selected_values_of_the_headline_variant_are_its_space():
    searched = {parameter.setting.rpartition(".")[2] for parameter in method_space(config_of("ld-efdmix-gc").style)}
    assert searched == {"stages", "alpha", "gate_prob", "top_ratio", "refresh_every", "warmup_epochs"}


def test_the_shared_space_is_the_optimizers():
    assert [parameter.setting for parameter in SHARED_SPACE] == [
        "optimizer.backbone_lr",
        "optimizer.head_lr",
        "optimizer.weight_decay",
    ]


def test_the_ranges_are_those_of_table_2():
    assert {parameter.symbol: parameter.range for parameter in TABLE_2} == {
        "backbone learning rate": LogUniform(1e-6, 5e-4),
        "head learning rate": LogUniform(1e-5, 5e-2),
        "weight decay": LogUniform(1e-6, 5e-1),
        "α": Uniform(0.1, 5.0),
        "p": Uniform(0.2, 0.8),
        "K": Subsets((1, 2, 3, 4)),
        "W": Integers(0, 10),
        "w_div": LogUniform(0.01, 10.0),
        "τ": LogUniform(0.1, 100.0),
        "M": Choice((64, 128, 256, 512)),
        "ρ": Uniform(0.01, 1.0),
        "β": Uniform(0.1, 1.0),
        "R": Integers(1, 15),
    }


def test_there_are_fifteen_subsets_of_four_stages():
    names = Subsets((1, 2, 3, 4)).names
    assert len(names) == len(set(names)) == 15
    assert names[:5] == ("1", "2", "3", "4", "1+2")
    assert names[-1] == "1+2+3+4"


@pytest.mark.parametrize("method", OWN)
def test_every_draw_is_a_valid_setting_of_its_method(method):
    settings = merge(BASE, load_method(method).settings)
    space = (*SHARED_SPACE, *space_of(config_of(method)))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    for _ in range(5):
        trial = study.ask()
        drawn = {parameter.setting: suggest(trial, parameter) for parameter in space}
        config = config_from(merge(settings, nested(drawn)))
        assert config.optimizer.head_lr == drawn["optimizer.head_lr"]
        if "stages" in drawn:
            assert list(config.stages) == drawn["stages"]
        if "style.operator.alpha" in drawn:
            assert config.style.operator.alpha == drawn["style.operator.alpha"]


def test_a_stored_name_of_stages_gives_them_back():
    stages = next(parameter for parameter in TABLE_2 if parameter.setting == "stages")
    assert suggest(optuna.trial.FixedTrial({"stages": "1+3+4"}), stages) == [1, 3, 4]


def test_dotted_names_nest():
    assert nested({"a.b.c": 1, "a.b.d": 2, "e": 3}) == {"a": {"b": {"c": 1, "d": 2}}, "e": 3}
