"""One vocabulary of options: the same words everywhere, old spellings for one release, and completion in bash."""

from __future__ import annotations

import argparse
import importlib
import subprocess

import pytest

from ldstyle.cli import COMMANDS, RENAMED, main, rename_options
from ldstyle.runs.settings import all_sections, schema


def actions(parser, command):
    """Yield each option with its command, such as `data check`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from actions(below, f"{command} {name}")
        elif action.option_strings:
            yield command, action


@pytest.fixture(scope="module")
def options():
    found = []
    for command in COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"ldstyle.cli.{command}").add_options(parser)
        found += actions(parser, command)
    return found


def test_options_are_spelled_with_hyphens_and_explained(options):
    assert len(options) > 150
    for command, action in options:
        assert not any("_" in flag for flag in action.option_strings), (command, action.option_strings)
        assert action.help, (command, action.option_strings)


def test_an_option_with_a_value_names_its_default_unless_it_must_be_given(options):
    for command, action in options:
        if action.nargs != 0 and command != "train":
            told = action.required or any(word in action.help for word in ("default", "e.g.", "required"))
            assert told, (command, action.option_strings, action.help)


def test_the_data_folder_the_cache_and_the_output_have_one_name_each(options):
    flags = {flag for _, action in options for flag in action.option_strings}
    assert flags.isdisjoint({"--root", "--data-root", "--cache-dir", "--csv", "--output", "--print_config"})
    named = {command for command, action in options if "--data" in action.option_strings}
    assert {"attention", "bench run", "data check", "evaluate", "report", "search", "train"} <= named


def test_switches_are_bare(options):
    for command, action in options:
        assert action.choices is None or {"true", "false"}.isdisjoint(action.choices), (command, action.option_strings)


def test_every_setting_is_an_option_of_train(options):
    flags = {flag for command, action in options if command == "train" for flag in action.option_strings}
    for path, cls in all_sections():
        for name in schema(cls):
            flag = f"--{path}.{name}".replace("--.", "--").replace("_", "-")
            assert flag in flags or any(other.startswith(f"{flag}.") for other in flags), flag


def test_old_spellings_become_the_new_ones_with_a_note(capsys):
    assert rename_options("data", ["stats", "--root=mine", "--csv", "-"]) == ["stats", "--data=mine", "--out", "-"]
    assert rename_options("data", ["unpack", "a.zip", "--root", "x"]) == ["unpack", "a.zip", "--out", "x"]
    notes = capsys.readouterr().err.splitlines()
    assert notes[0] == "note: --root is deprecated and will be removed in the next release. Use --data."
    assert len(notes) == 3
    assert rename_options("bench", ["run", "--labels", "a"]) == ["run", "--labels", "a"]
    assert capsys.readouterr().err == ""


def test_every_old_spelling_leads_to_an_option_that_exists(options):
    for command, renamed in RENAMED.items():
        known = {
            flag for name, action in options if f"{name} ".startswith(f"{command} ") for flag in action.option_strings
        }
        assert set(renamed.values()) <= known, command
        assert known.isdisjoint(renamed) or command == "data", command


def test_an_old_spelling_works_end_to_end(capsys):
    assert main(["train", "--method", "erm", "--print_config"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("data:\n")
    assert "Use --print-config." in shown.err


def test_an_unknown_command_is_named_with_its_neighbour(capsys):
    assert main(["evalute"]) == 2
    assert "'evalute' is not a command of ldstyle. Did you mean 'evaluate'?" in capsys.readouterr().err


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "ldstyle.bash"
    with path.open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert main(["completion", "bash"]) == 0
    return path


@pytest.mark.parametrize(
    ("words", "expected", "others"),
    [
        (["ex"], {"explain", "export"}, {"predict"}),
        (["data", "un"], {"unpack"}, {"check"}),
        (["train", "--style.operator.top"], {"--style.operator.top-ratio"}, {"--style.gate-prob"}),
        (["bench", "run", "--preset", "s"], {"small", "study", "smoke"}, {"paper"}),
        (["evaluate", "--da"], {"--data"}, {"--root"}),
    ],
)
def test_bash_completes_commands_options_and_choices(script, words, expected, others):
    quoted = " ".join(f"'{word}'" for word in ["ldstyle", *words])
    call = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _shtab_ldstyle"
    code = f'. {script}; {call}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=False)
    found = {line.strip() for line in done.stdout.splitlines()}
    assert expected <= found, done
    assert found.isdisjoint(others)
