"""Settings: checked, complete, and equal after a round trip through YAML."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import ldstyle
import ldstyle.config
from ldstyle.runs import algorithms
from ldstyle.runs.config import RUNTIME, BackboneConfig, DataConfig, OptimizerConfig, RunConfig, SwadConfig
from ldstyle.runs.folder import open_run, sole_writer
from ldstyle.runs.settings import (
    choices,
    complete,
    config_from,
    differences,
    dump_settings,
    load_config,
    merge,
    method_settings,
    methods,
    read_settings,
    settings_of,
)

NEEDED = {"data": {"root": "r", "sources": ["a", "b"]}, "out": "o"}

operators = st.one_of(
    st.builds(ldstyle.MixStyleConfig, alpha=st.floats(1e-3, 5)),
    st.builds(ldstyle.EFDMixConfig, alpha=st.floats(1e-3, 5), top_ratio=st.floats(0.01, 1)),
    st.builds(ldstyle.CSULiteConfig, strength=st.floats(0, 1)),
)
attentions = st.one_of(
    st.builds(ldstyle.LLAMConfig, temperature=st.floats(0.1, 100)),
    st.builds(ldstyle.GradCamConfig, refresh=st.sampled_from(["sweep", "online", "never"])),
    st.just(ldstyle.UniformConfig()),
)
styles = st.one_of(
    st.none(),
    st.builds(ldstyle.LabelDecoupledConfig, operators, attentions, background=st.sampled_from(["confined", 0.0, 2.5])),
    st.builds(ldstyle.GlobalConfig, st.one_of(operators, st.builds(ldstyle.CSUConfig), st.just(ldstyle.DSUConfig()))),
)


algorithm_settings = st.one_of(
    st.none(),
    st.builds(algorithms.FactConfig, strength=st.floats(0, 1)),
    st.builds(algorithms.MiroConfig, stages=st.lists(st.integers(1, 4) | st.just("blocks.2"), min_size=1).map(tuple)),
    st.builds(algorithms.ErmPlusPlusConfig, head_ratio=st.floats(0, 0.9)),
)
losses = st.one_of(
    st.none(),
    st.builds(algorithms.CrossEntropyConfig, class_balanced=st.booleans()),
    st.builds(algorithms.AsymmetricConfig, margin=st.floats(0, 0.9)),
)


@given(
    style=styles,
    algorithm=algorithm_settings,
    loss=losses,
    swad=st.none() | st.builds(SwadConfig, evaluate_every=st.none() | st.integers(1, 9)),
    stages=st.lists(st.integers(1, 4) | st.sampled_from(["layer1", "blocks.2"]), min_size=1).map(tuple),
    rate=st.floats(1e-12, 1.0),
    mapping=st.none() | st.text("abc/.", min_size=1),
)
def test_a_config_equals_itself_after_a_round_trip_through_yaml(
    style: ldstyle.GlobalConfig | ldstyle.LabelDecoupledConfig | None,
    algorithm: algorithms.AlgorithmConfig | None,
    loss: algorithms.LossConfig | None,
    swad: SwadConfig | None,
    stages: tuple[int | str, ...],
    rate: float,
    mapping: str | None,
) -> None:
    config = RunConfig(
        DataConfig("r", ("a", "b"), mapping=mapping),
        "o",
        style=style,
        algorithm=algorithm,
        loss=loss,
        swad=swad,
        stages=stages,
        optimizer=OptimizerConfig(backbone_lr=rate),
    )
    assert config_from(yaml.safe_load(dump_settings(settings_of(config)))) == config


def test_the_defaults_are_the_papers() -> None:
    config = config_from(NEEDED)
    optimizer = config.optimizer
    assert (optimizer.backbone_lr, optimizer.head_lr, optimizer.weight_decay) == (1.16e-4, 9.39e-4, 1.59e-5)
    assert (optimizer.min_lr, optimizer.clip_norm, optimizer.batch_size) == (1e-6, 1.0, 32)
    assert (optimizer.epochs, optimizer.patience, config.data.size) == (100, 15, 224)
    assert config.backbone == BackboneConfig("resnet50", "hub")


def test_table_3_stands_in_the_selected_files() -> None:
    folder = Path(ldstyle.__file__).parent / "configs" / "selected"
    found = {}
    for split in ("s1", "s2", "s3"):
        config = config_from(NEEDED | read_settings(folder / f"ld-efdmix-gc-{split}.yaml"))
        style = config.style
        assert isinstance(style, ldstyle.LabelDecoupledConfig)
        assert isinstance(style.operator, ldstyle.EFDMixConfig)
        assert isinstance(style.attention, ldstyle.GradCamConfig)
        operator, attention = style.operator, style.attention
        found[split] = (config.stages, operator.alpha, style.gate_prob, operator.top_ratio)
        found[split] += (attention.refresh_every, style.warmup_epochs)
    assert found == {
        "s1": ((2,), 0.45, 0.20, 0.34, 9, 9),
        "s2": ((1,), 5.0, 0.80, 0.60, 13, 5),
        "s3": ((1,), 5.0, 0.80, 0.60, 13, 5),
    }


def test_the_variants_are_three_operators_times_four_attention_sources() -> None:
    found = {}
    for name in methods():
        style = config_from(NEEDED | method_settings(name)).style
        if isinstance(style, ldstyle.LabelDecoupledConfig):
            found[name] = (type(style.operator).__name__, type(style.attention).__name__)
    operators = {"mixstyle": "MixStyleConfig", "efdmix": "EFDMixConfig", "csu": "CSULiteConfig"}
    sources = {"": "LLAMConfig", "-gc": "GradCamConfig", "-probe": "ProbeConfig", "-masks": "MasksConfig"}
    sources |= {f"{suffix}-paper": sources[suffix] for suffix in ("", "-gc")}
    assert found == {
        f"ld-{operator}{suffix}": (operators[operator], sources[suffix]) for operator in operators for suffix in sources
    }


def test_global_twins_share_the_operator_of_their_variant() -> None:
    for name in ("mixstyle", "efdmix", "csu"):
        twin = config_from(NEEDED | method_settings(name)).style
        variant = config_from(NEEDED | method_settings(f"ld-{name}")).style
        assert isinstance(twin, ldstyle.GlobalConfig)
        assert isinstance(variant, ldstyle.LabelDecoupledConfig)
        assert type(twin.operator) is type(variant.operator)


def test_another_choice_leaves_nothing_of_the_one_below_it() -> None:
    below = {"style": {"name": "global", "operator": {"name": "efdmix", "top_ratio": 0.5}, "gate_prob": 0.2}}
    merged = merge(below, {"style": {"operator": {"name": "csu"}}})
    assert merged == {"style": {"name": "global", "operator": {"name": "csu"}, "gate_prob": 0.2}}
    assert below["style"]["operator"] == {"name": "efdmix", "top_ratio": 0.5}
    assert merge(below, {"style": None}) == {"style": None}
    backbone = {"backbone": {"name": "resnet18", "weights": "none"}}  # a network's name is no choice of a class
    assert merge(backbone, {"backbone": {"name": "resnet50"}}) == {"backbone": {"name": "resnet50", "weights": "none"}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"siz": 3}}, r"data\.siz is not a setting of DataConfig\. Did you mean 'size'\?"),
        (
            {"style": {"name": "global", "operator": {"name": "efdmix", "topratio": 0.5}}},
            r"operator\.topratio is not a setting of EFDMixConfig\. Did you mean 'top_ratio'\?",
        ),
        ({"optimiser": {}}, r"optimiser is not a setting of RunConfig\. Did you mean 'optimizer'\?"),
        ({"xyz": 1}, r"xyz is not a setting of RunConfig\. Choose from: data, out, method"),
        ({"style": {"name": "globl"}}, r"style\.name must be one of: global, label-decoupled; got 'globl'\. Did you"),
        ({"style": {"gate_prob": 0.5}}, r"style must have a `name`, one of: global, label-decoupled"),
        (
            {"style": {"name": "label-decoupled", "operator": {"name": "csu"}}},
            r"style\.operator\.name .*'csu'\. It needs style\.name 'global'",
        ),
        ({"optimizer": {"epochs": 2.5}}, r"optimizer\.epochs must be int; got 2\.5\."),
        ({"optimizer": {"epochs": 0}}, r"optimizer\.epochs must be at least 1; got 0\."),
        ({"optimizer": {"head_lr": -1.0}}, r"optimizer\.head_lr must be positive; got -1\.0\."),
        ({"optimizer": 3}, r"optimizer must hold settings of OptimizerConfig by name; got 3\."),
        ({"precision": "half"}, r"precision must be '32-true' or 'bf16-mixed'; got 'half'\."),
        ({"stages": [1.5]}, r"stages must be a list of int or str; got \[1\.5\]\."),
        ({"optimizer": {"steps_per_epoch": "x"}}, r"optimizer\.steps_per_epoch must be int or null; got 'x'\."),
        ({"devices": 3}, r"devices must divide optimizer\.batch_size 32; got 3\."),
        ({"data": {"root": "r"}}, r"data\.sources must be given\. Set it in the settings file or by --data\.sources"),
        ({"data": {"root": "r", "sources": ["a", "a"]}}, r"data\.sources must name at least one domain, each once"),
        ({"data": NEEDED["data"] | {"pseudo_domain": True}}, r"data\.pseudo_domain makes a second domain of a single"),
        (
            {**method_settings("ld-efdmix"), "data": {"root": "r", "sources": ["a"]}},
            r"data\.sources must name at least two domains .*; got \('a',\)\. .* set data\.pseudo_domain to true",
        ),
        (
            {"algorithm": {"name": "corl"}},
            r"algorithm\.name must be one of: fact, .*; got 'corl'\. Did you mean 'coral'\?",
        ),
        ({"algorithm": {"name": "coral", "weigt": 1}}, r"algorithm\.weigt is not a setting of CoralConfig\. Did you"),
        ({"algorithm": {"name": "fact", "strength": 2}}, r"algorithm\.strength must be in \[0, 1\]; got 2"),
        ({"loss": {"name": "focal", "alpha": 1.0}}, r"loss\.alpha must be in \(0, 1\); got 1\.0"),
        ({"loss": {"class_balanced": True}}, r"loss must have a `name`, one of: bce, focal, asymmetric"),
        (
            {**method_settings("ld-efdmix"), "algorithm": {"name": "mixup"}},
            r"algorithm Mixup mixes images and labels, .*; got LabelDecoupledConfig\. Set style to null",
        ),
        (
            {**method_settings("coral"), "data": {"root": "r", "sources": ["a"]}},
            r"at least two domains for algorithm Coral; got \('a',\)\. .* data\.pseudo_domain",
        ),
        (
            merge(
                method_settings("ld-efdmix-gc+sagm"), {"style": {"attention": {"refresh": "online", "map_scale": 1.0}}}
            ),
            r"algorithm Sagm passes each batch twice.*style\.attention\.refresh = 'online'.*Use 'sweep'",
        ),
        ({"swad": {"n_converge": 0}}, r"swad\.n_converge must be at least 1; got 0\."),
    ],
)
def test_mistakes_are_named_with_the_way_out(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from(NEEDED | settings)


@pytest.mark.parametrize("method", ["erm", "mixstyle", "csu", "ld-csu", "ld-csu-gc"])
def test_one_source_will_do_where_no_partner_in_another_domain_is_needed(method: str) -> None:
    assert config_from(NEEDED | method_settings(method) | {"data": {"root": "r", "sources": ["a"]}}).method == method


def test_numbers_in_exponent_form_are_numbers() -> None:
    assert config_from(NEEDED | yaml.safe_load("optimizer: {backbone_lr: 1e-4}")).optimizer.backbone_lr == 1e-4


def test_swad_is_one_switch() -> None:
    assert config_from(NEEDED | {"swad": True}).swad == SwadConfig()
    assert config_from(NEEDED | {"swad": False}).swad is None


def test_every_member_of_a_union_is_a_choice_under_its_name() -> None:
    found = {path: {name: cls.__name__ for name, cls in members.items()} for path, members in choices().items()}
    assert list(found) == ["style", "style.operator", "style.attention", "algorithm", "loss"]
    assert found["style"] == {"global": "GlobalConfig", "label-decoupled": "LabelDecoupledConfig"}
    members = {*get_args(ldstyle.config.GlobalOperator), *get_args(ldstyle.config.Attention)}
    assert {*found["style.operator"].values(), *found["style.attention"].values()} == {cls.__name__ for cls in members}
    assert set(found["algorithm"].values()) == {cls.__name__ for cls in get_args(algorithms.AlgorithmConfig)}
    assert set(found["loss"].values()) == {cls.__name__ for cls in get_args(algorithms.LossConfig)}


def test_a_default_that_depends_on_the_environment_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        monkeypatch.setenv("LDSTYLE_CACHE", folder)
        assert config_from(NEEDED).data.cache_dir == folder


def test_incomplete_settings_can_be_completed_for_printing() -> None:
    printed = complete({"method": "mine"})
    assert printed["data"]["root"] is None
    assert printed["optimizer"]["epochs"] == 100


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no settings file '.*nothing\.yaml'"):
        read_settings(tmp_path / "nothing.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="must hold settings by name; got list"):
        read_settings(tmp_path / "list.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    with pytest.raises(ValueError, match="must be a YAML file of settings"):
        read_settings(tmp_path / "bad.yaml")


def test_an_unknown_method_is_named_with_its_neighbour() -> None:
    with pytest.raises(ValueError, match=r"There is no method 'ld-efdmx'\. Did you mean 'ld-efdmix'\?"):
        method_settings("ld-efdmx")


def test_a_folder_of_another_run_is_refused_with_the_differences(tmp_path: Path) -> None:
    config = config_from(NEEDED | {"out": str(tmp_path / "run")})
    assert open_run(config) is None
    assert load_config(tmp_path / "run" / "config.yaml") == config
    assert open_run(config_from(NEEDED | {"out": str(tmp_path / "run"), "quiet": True, "logger": "csv"})) is None
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    other = NEEDED | {"out": str(tmp_path / "run"), "seed": 3, "optimizer": {"epochs": 7}}
    with pytest.raises(ValueError, match=r"other settings(.|\n)*optimizer\.epochs: 100 there, 7 now\n  seed: 0 there"):
        open_run(config_from(other))
    assert load_config(tmp_path / "run" / "config.yaml") == config


def test_a_folder_in_which_nothing_was_trained_takes_on_other_settings(tmp_path: Path) -> None:
    config = config_from(NEEDED | {"out": str(tmp_path)})
    mended = config_from(NEEDED | {"out": str(tmp_path), "seed": 3})
    open_run(config)
    with sole_writer(tmp_path), pytest.raises(ValueError, match="other settings"):  # another process works on it
        open_run(mended)
    assert open_run(mended) is None
    assert load_config(tmp_path / "config.yaml") == mended


def test_differences_leave_out_what_cannot_change_a_result() -> None:
    one, other = settings_of(config_from(NEEDED)), settings_of(config_from(NEEDED | {"out": "p", "seed": 1}))
    assert differences(one, other, ignored=RUNTIME) == {"seed": (0, 1)}
