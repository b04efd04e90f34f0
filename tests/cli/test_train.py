"""``ldstyle train``: layers of settings, exact errors, and a Ctrl-C that says how to go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import ldstyle
from ldstyle.cli import main
from ldstyle.cli.train import parse
from ldstyle.training.settings import config_from

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
        ldstyle.EFDMixConfig(alpha=2.0, top_ratio=1.0), ldstyle.GradCamConfig(), gate_prob=0.3
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
    assert style.style == ldstyle.LabelDecoupledConfig(ldstyle.CSULiteConfig(0.9), background="confined")
    assert style.stages == (1, "layer3")


def test_swad_is_one_flag_of_any_method() -> None:
    config = config_from(parse(["--method", "ld-csu", *NEEDED, "--swad"])[0])
    assert config.swad is not None
    assert config.swad.n_converge == 3
    assert config_from(parse(["--method", "swad", *NEEDED, "--swad", "false"])[0]).swad is None
    changed = config_from(parse([*NEEDED, "--swad.n_converge", "5"])[0]).swad
    assert changed is not None
    assert changed.n_converge == 5


def test_a_method_of_ones_own_is_a_file_that_says_all_about_its_style(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("method: mine\nstyle: {name: global, operator: {name: dsu}}\n")
    config = config_from(parse(["--config", str(file), *NEEDED])[0])
    assert (config.method, config.style) == ("mine", ldstyle.GlobalConfig(ldstyle.DSUConfig()))


def test_printed_settings_are_complete_and_load_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = ["--method", "ld-mixstyle", *NEEDED, "--seed", "5", "--quiet"]
    assert main(["train", *argv, "--print_config"]) == 0
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
        (["--method", "ld-efdmx"], "There is no method 'ld-efdmx'. Did you mean 'ld-efdmix'?"),
        (["--data", "mine"], "--data is a section of settings. Choose from: --data.root, --data.sources, "),
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
    with pytest.raises(SystemExit, match="2"):
        main(["train", *NEEDED, "--optimizer.epochs", "many"])
    assert "optimizer.epochs" in capsys.readouterr().err


def test_help_lists_the_settings_of_the_chosen_method(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--method", "ld-efdmix", "--help"])
    shown = capsys.readouterr().out
    assert "--style.operator.top_ratio" in shown
    assert "--style.operator.strength" not in shown
    assert "Samples per step over all domains and processes." in " ".join(shown.split())


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(scenes: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ldstyle", "train", "--data.root", str(scenes), "--data.sources", "suburb,harbour"]
    argv += ["--data.size", "48", "--data.cache_dir", str(scenes.parent / "cache"), "--out", str(tmp_path / "run")]
    argv += ["--backbone.name", "test_resnet", "--backbone.weights", "none", "--accelerator", "cpu"]
    argv += ["--optimizer.batch_size", "8", "--optimizer.epochs", "1000", "--optimizer.patience", "1000"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "last.ckpt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "epoch 1/1000  loss " in error
    assert "all of it is saved. Go on with the same command:\n  ldstyle train --data.root" in error
    assert (tmp_path / "run" / "tensorboard").is_dir()
    assert not (tmp_path / "run" / "done").exists()
