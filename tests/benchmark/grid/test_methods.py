from __future__ import annotations

import pytest

from ldstyle.benchmark.grid.methods import (
    BASELINES,
    GROUPS,
    METHODS,
    PAPER_METHODS,
    Method,
    load_method,
    load_methods,
    method_title,
    plain_name,
)
from ldstyle.config import EFDMixConfig, GradCamConfig, LabelDecoupledConfig
from ldstyle.runs.algorithms import (
    CoralConfig,
    ErmPlusPlusConfig,
    FactConfig,
    FocalConfig,
    GroupDroConfig,
    MiroConfig,
    MixupConfig,
    SagmConfig,
)
from ldstyle.runs.settings import config_from, method_settings, methods

RUN = {"data": {"root": "data", "sources": ["ucm", "aid"]}, "out": "out"}


def test_methods_stand_in_the_papers_order():
    titles = [load_method(name).title for name in PAPER_METHODS]
    assert titles == [
        *("ERM", "MixStyle", "EFDMix", "CSU", "SWAD", "LD-MixStyle", "LD-EFDMix", "LD-CSU"),
        *("LD-MixStyle-GC", "LD-EFDMix-GC", "LD-CSU-GC", "Oracle"),
    ]


def test_every_settings_file_is_a_method_and_every_method_builds_a_run():
    assert set(methods()) == set(METHODS) - {"oracle"}
    for name in [*METHODS, *GROUPS["beyond"]]:
        method = load_method(name)
        config = config_from({**method.settings, **RUN})
        assert config.method == method.name == name
        assert (config.swad is not None) == name.endswith("swad")


def test_a_variant_is_an_operator_and_an_attention_source():
    style = config_from({**load_method("ld-efdmix-gc").settings, **RUN}).style
    assert isinstance(style, LabelDecoupledConfig)
    assert isinstance(style.operator, EFDMixConfig)
    assert isinstance(style.attention, GradCamConfig)


def test_the_oracle_is_plain_training_elsewhere():
    oracle, erm = load_method("oracle"), load_method("erm")
    assert oracle.oracle
    assert not erm.oracle
    assert {**oracle.settings, "method": "erm"} == erm.settings


def test_swad_is_added_to_any_method_and_keeps_its_own_settings():
    added = load_method("ld-csu+swad")
    assert added.title == "LD-CSU + SWAD"
    assert added.settings["style"] == load_method("ld-csu").settings["style"]
    assert added.settings["swad"] == {}
    again = load_method("swad+swad")
    assert again.settings["swad"] == load_method("swad").settings["swad"]


def test_algorithms_and_losses_are_added_to_any_method():
    added = load_method("ld-efdmix+coral+focal+balanced+swad")
    assert added.name == "ld-efdmix+coral+focal+balanced+swad"
    assert added.title == method_title(added.name) == "LD-EFDMix + CORAL + focal loss + class balance + SWAD"
    config = config_from({**added.settings, **RUN})
    assert config.style == config_from({**load_method("ld-efdmix").settings, **RUN}).style
    assert config.algorithm == CoralConfig()
    assert config.loss == FocalConfig(class_balanced=True)
    assert config.swad is not None
    assert method_settings(added.name) == added.settings
    assert plain_name(added.name) == "ld-efdmix"
    assert method_title("erm++") == "ERM++"
    assert method_title("efdmix+erm++") == "EFDMix + ERM++"
    assert method_title("mine+swad") is None


def test_each_baseline_has_its_publications_settings():
    found = {name: config_from({**load_method(name).settings, **RUN}).algorithm for name in BASELINES}
    defaults = (FactConfig(), MixupConfig(), CoralConfig(), MiroConfig(), GroupDroConfig(), SagmConfig())
    assert tuple(found.values())[:6] == defaults
    assert isinstance(found["erm++"], ErmPlusPlusConfig)
    assert found["erm++"].head_ratio == pytest.approx(ErmPlusPlusConfig().head_ratio, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coral+miro", r"one algorithm; got 'coral' and 'miro'\. Leave \+miro out"),
        ("erm+focal+asymmetric", r"one loss; got 'focal' and 'asymmetric'"),
        ("erm+swad+coral", r"\+swad must stand last in a method's name; got 'erm\+swad\+coral'"),
    ],
)
def test_what_cannot_be_added_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        load_method(name)


def test_one_file_is_a_method(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("title: Mine\nstyle: {name: global, operator: {name: dsu}}\nstages: [3]\noptimizer: {epochs: 7}\n")
    mine = load_method(str(path))
    assert (mine.name, mine.title) == ("mine", "Mine")
    config = config_from({**mine.settings, **RUN})
    assert (config.method, config.stages, config.optimizer.epochs) == ("mine", (3,), 7)
    assert load_method(f"{path}+swad").name == "mine+swad"


def test_groups_and_names_give_each_method_once():
    found = [method.name for method in load_methods(["swad", "all", "erm"])]
    assert found == ["swad", *(name for name in PAPER_METHODS if name != "swad")]


def test_two_methods_may_not_share_a_name(tmp_path):
    path = tmp_path / "erm.yaml"
    path.write_text("style: {name: global, operator: {name: dsu}}\n")
    with pytest.raises(ValueError, match=r"Two different methods are called 'erm'\. Rename one"):
        load_methods(["erm", str(path)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 3\n", r"for any data and seed; remove `seed` from it\."),
        ("style: {name: global, operator: {name: efdmx}}\n", r"is not a method: .*Did you mean 'efdmix'\?"),
        ("method: a b\nstyle: null\n", r"letters, digits and .*; got 'a b'"),
    ],
)
def test_a_file_that_is_no_method_is_refused_by_its_name(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"mine.yaml.*{message}"):
        load_method(str(path))


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"no method 'ld-efdmx'\. Did you mean 'ld-efdmix'\? Choose from: erm, "):
        load_method("ld-efdmx")
    with pytest.raises(FileNotFoundError, match=r"no settings file 'gone\.yaml'"):
        load_method("gone.yaml")
    with pytest.raises(ValueError, match=r"got '\.\./x'"):
        Method("../x", "x", {})
