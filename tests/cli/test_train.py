"""``ldstyle train``: layers of settings, exact errors, and a Ctrl-C that tells how to resume."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

import ldstyle
from ldstyle.cli import main
from ldstyle.cli.train import parse
from ldstyle.runs.algorithms import CoralConfig
from ldstyle.runs.model_file import load_model
from ldstyle.runs.settings import config_from, method_settings

NEEDED = ["--data.root", "r", "--data.sources", "a,b", "--out", "o"]


def test_options_lie_over_the_file_and_the_file_over_the_method(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("method: ld-efdmix-gc\nstyle: {gate_prob: 0.3, operator: {alpha: 2.0}}\noptimizer: {epochs: 7}\n")
    settings, printing = parse(
        ["--config", str(file), *NEEDED, "--optimizer.epochs=9", "--style.operator.top_ratio", "1"]
    )
    config = config_from(settings)
    assert not printing
    assert config.method == "ld-efdmix-gc"
    assert config.style == ldstyle.LabelDecoupledConfig(
        ldstyle.EFDMixConfig(alpha=2.0, top_ratio=1.0), ldstyle.GradCamConfig(map_scale=2.0), gate_prob=0.3
    )
    assert config.optimizer.epochs == 9
    assert config.data.sources == ("a", "b")


def test_lists_may_be_separated_by_spaces_too() -> None:
    argv = ["--method", "ld-efdmix", "--data.sources", "a", "b", "c", "--data.root", "r", "--out", "o"]
    config = config_from(parse([*argv, "--stages", "1", "layer3"])[0])
    assert (config.data.sources, config.stages) == (("a", "b", "c"), (1, "layer3"))


def test_a_choice_on_the_command_line_brings_its_own_options() -> None:
    argv = ["--method", "ld-efdmix", *NEEDED, "--style.operator.name", "csu-lite", "--style.operator.strength", "0.9"]
    style = config_from(parse([*argv, "--stages", "1,layer3", "--style.background", "confined"])[0])
    attention = ldstyle.LLAMConfig(blend_gradient=False, grounding="cam", grounding_weight=4.0)  # the method's own
    assert style.style == ldstyle.LabelDecoupledConfig(ldstyle.CSULiteConfig(0.9), attention, background="confined")
    assert style.stages == (1, "layer3")


def test_swad_is_one_flag_of_any_method() -> None:
    config = config_from(parse(["--method", "ld-csu", *NEEDED, "--swad"])[0])
    assert config.swad is not None
    assert config.swad.n_converge == 3
    assert config_from(parse(["--method", "swad", *NEEDED, "--no-swad"])[0]).swad is None
    changed = config_from(parse([*NEEDED, "--swad.n_converge", "5"])[0]).swad
    assert changed is not None
    assert changed.n_converge == 5


def test_a_method_of_ones_own_is_a_file_that_says_all_about_its_style(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("method: mine\nstyle: {name: global, operator: {name: dsu}}\n")
    config = config_from(parse(["--config", str(file), *NEEDED])[0])
    assert (config.method, config.style) == ("mine", ldstyle.GlobalConfig(ldstyle.DSUConfig()))


def test_an_addition_to_a_method_holds_with_a_file_of_its_style(tmp_path: Path) -> None:
    file = tmp_path / "ld-efdmix.yaml"  # as a search writes it
    file.write_text(f"method: ld-efdmix\n{yaml.safe_dump({'style': method_settings('ld-efdmix')['style']})}")
    config = config_from(parse(["--config", str(file), "--method", "ld-efdmix+coral+swad", *NEEDED])[0])
    assert (config.method, config.algorithm) == ("ld-efdmix+coral+swad", CoralConfig())
    assert config.swad is not None
    file.write_text("method: mine+swad\nstyle: {name: global, operator: {name: dsu}}\n")
    assert config_from(parse(["--config", str(file), *NEEDED])[0]).swad is not None


def test_printed_settings_are_complete_and_load_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = ["--method", "ld-mixstyle", *NEEDED, "--seed", "5", "--quiet"]
    assert main(["train", *argv, "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert config_from(yaml.safe_load(printed)) == config_from(parse(argv)[0])
    (tmp_path / "printed.yaml").write_text(printed)
    assert config_from(parse(["--config", str(tmp_path / "printed.yaml")])[0]) == config_from(parse(argv)[0])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--method", "ld-efdmix", "--style.operator.topratio", "1"],
            "operator.topratio is not a setting of EFDMixConfig",
        ),
        (["--method", "erm", "--optimizer.epoch", "1"], "Did you mean 'epochs'?"),
        (["--epochs", "1"], "epochs is not a setting of RunConfig. Did you mean 'optimizer.epochs'?"),
        (["--batch-size", "1"], "Did you mean 'optimizer.batch_size'?"),
        (["--optimizer.seed", "1"], "optimizer.seed is not a setting of OptimizerConfig. Did you mean 'seed'?"),
        (["--method", "ld-efdmx"], "There is no method 'ld-efdmx'. Did you mean 'ld-efdmix'?"),
        (["--optimizer", "adam"], "--optimizer is a section of settings. Choose from: --optimizer.backbone-lr, "),
        (["mine"], "options only; got 'mine'"),
        ([*NEEDED, "--optimizer.epochs", "many"], "optimizer.epochs must be int; got 'many'"),
        (["--nonsense", "1"], "nonsense is not a setting of RunConfig"),
        (["--config", "nothing.yaml"], "There is no settings file 'nothing.yaml'"),
        (["--out", "o"], "data.root must be given"),
        ([*NEEDED, "--optimizer.clip_norm", "0"], "optimizer.clip_norm must be positive; got 0.0"),
    ],
)
def test_mistakes_end_with_one_sentence(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *argv]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_value_of_the_wrong_type_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *NEEDED, "--optimizer.epochs", "many"]) == 2
    assert "optimizer.epochs must be int; got 'many'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["train", *NEEDED, "--logger", "paper"])
    assert "argument --logger: invalid choice: 'paper'" in capsys.readouterr().err


def test_the_options_of_other_commands_are_short_names_of_settings() -> None:
    short = ["--data", "r", "--sources", "a", "b", "--size", "64", "--cache", "c", "--sea", "water+sea"]
    short += ["--mapping", "m.yaml", "--labels", "tree", "--ignore", "lat", "lon", "--out", "o"]
    full = ["--data.root", "r", "--data.sources", "a,b", "--data.size=64", "--data.cache_dir", "c"]
    full += ["--data.sea=water+sea", "--data.mapping", "m.yaml", "--data.labels", "tree", "--data.ignore", "lat,lon"]
    assert config_from(parse(short)[0]) == config_from(parse([*full, "--out", "o"])[0])
    assert config_from(parse(short)[0]).data.ignore == ("lat", "lon")


def test_hyphens_and_the_files_underscores_name_the_same_setting() -> None:
    hyphens = parse([*NEEDED, "--optimizer.batch-size", "8", "--data.cache-dir=a_b"])[0]
    assert hyphens == parse([*NEEDED, "--optimizer.batch_size", "8", "--data.cache_dir=a_b"])[0]
    assert (hyphens["optimizer"]["batch_size"], hyphens["data"]["cache_dir"]) == ("8", "a_b")


def test_a_switch_is_bare_and_one_with_a_value_is_an_old_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--method", "ld-efdmix", *NEEDED]
    bare = config_from(parse([*argv, "--keep-epochs", "--no-style.per-label", "--swad"])[0])
    assert (bare.keep_epochs, bare.style.per_label) == (True, False)  # type: ignore[union-attr]
    assert capsys.readouterr().err == ""
    old = parse([*argv, "--keep_epochs", "true", "--style.per_label=false", "--swad", "true"])[0]
    assert config_from(old) == bare
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 3
    assert notes[1].startswith("note: --style.per-label false is deprecated")
    assert notes[1].endswith("Use --no-style.per-label.")
    assert config_from(parse([*argv, "--swad", "false"])[0]).swad is None


def test_help_lists_the_settings_of_the_chosen_method(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--method", "ld-efdmix", "--help"])
    shown = capsys.readouterr().out
    assert "--style.operator.top-ratio" in shown
    assert "--style.operator.strength" not in shown
    shown = " ".join(shown.split())
    assert "Samples per step over all domains and processes. (default: 32)" in shown


def test_help_shows_every_option_with_its_default_and_no_class_of_python(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("optimizer: {epochs: 7}\n")
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--method", "swad", "--config", str(tmp_path / "mine.yaml"), "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--swad, --no-swad" in shown
    assert "--config FILE" in shown
    assert "--swad.n-converge VALUE" in shown
    assert "Most epochs to train for. (default: 7)" in shown
    assert "Data folder. (required)" in shown
    assert "--data VALUE, --data.root VALUE" in shown
    assert "<class" not in shown
    assert "``" not in shown


def test_a_broken_settings_file_is_named_with_the_line_and_the_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("seed: 3\noptimizer: {epochs: 7\nout: runs\n")
    assert main(["train", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert f"'{file}' must be a YAML file of settings; line 3, column 4: " in error
    assert error.count("\n") == 1
    file.write_text("[" * 5000)
    assert main(["train", "--config", str(file)]) == 2
    assert f"'{file}' must be a YAML file" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["train", "--method", "erm", "--data.root", "r", "--data.sources", "a,b", "--out", str(tmp_path / "run")]
    for accelerator in ("cuda", "nonsense"):
        assert main([*argv, "--accelerator", accelerator]) == 2
        error = capsys.readouterr().err
        assert f"accelerator = '{accelerator}', devices = 1" in error
        assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_says_what_it_did_and_a_finished_one_that_it_did_nothing(
    scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["train", "--data.root", str(scenes), "--data.sources", "suburb,harbour", "--out", str(tmp_path / "run")]
    argv += ["--data.size", "48", "--data.cache_dir", str(scenes.parent / "cache"), "--accelerator", "cpu"]
    argv += ["--backbone.name", "test_resnet", "--backbone.weights", "none", "--logger", "none"]
    argv += ["--optimizer.batch_size", "8", "--optimizer.epochs", "1", "--optimizer.steps_per_epoch", "1"]
    assert main(argv) == 0
    first = capsys.readouterr()
    assert "No --method given: plain training (erm)" in first.err
    assert "erm: source-validation mAP" in first.out
    # Three validation images of each of two sources are too few to fit a threshold to.
    assert "The threshold stays 0.5 for labels with fewer than 10 positive or 10 negative" in first.out
    counts = json.loads((tmp_path / "run" / "record.json").read_text())["threshold_samples"]
    assert all(set(count) == {"positives", "negatives"} and sum(count.values()) == 6 for count in counts.values())
    for name, count in counts.items():
        assert f"{name} {count['positives']}/{count['negatives']}" in first.out
    assert set(load_model(tmp_path / "run").thresholds.tolist()) == {0.5}
    assert main([*argv, "--method", "erm"]) == 0
    again = capsys.readouterr()
    assert again.out == f"This run was finished before; nothing was trained.\n{first.out}"
    assert "No --method" not in again.err


def test_ctrl_c_tells_how_to_resume_and_the_same_command_does(scenes: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ldstyle", "train", "--data.root", str(scenes), "--data.sources", "suburb,harbour"]
    argv += ["--data.size", "48", "--data.cache_dir", str(scenes.parent / "cache"), "--out", str(tmp_path / "run")]
    argv += ["--backbone.name", "test_resnet", "--backbone.weights", "none", "--accelerator", "cpu"]
    argv += ["--optimizer.batch_size", "8", "--optimizer.epochs", "1000", "--optimizer.patience", "1000"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "last.ckpt").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    assert "epoch 1/1000  loss " in error
    assert "all of it is saved. Resume with the same command:\n  ldstyle train --data.root" in error
    assert (tmp_path / "run" / "tensorboard").is_dir()
    assert not (tmp_path / "run" / "done").exists()
