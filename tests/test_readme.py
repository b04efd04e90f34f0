"""The texts are true: their Python blocks run as written, and their command lines are ones that ldstyle takes."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
import torch
from tests.benchmark.grids import cell, record
from tests.conftest import write_image
from tests.deploy.models import write_model

from ldstyle.benchmark.results.records import append_record
from ldstyle.cli import COMMANDS, main

ROOT = Path(__file__).parent.parent
TEXTS = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "bash")
INLINE = re.compile(rf"`ldstyle ((?:{'|'.join(COMMANDS)})\b[^`\n]*)`")
VARIABLES = {"SCRATCH": "scratch", "SLURM_ARRAY_TASK_ID": "1"}


def blocks(text, *languages):
    """Return the blocks of a text in these languages, each with as many empty lines before it as the text has lines."""
    source = (ROOT / text).read_text(encoding="utf-8")
    found = [match for match in BLOCK.finditer(source) if match[1] in languages]
    return ["\n" * source[: match.start(2)].count("\n") + match[2] for match in found]


def write_data(folder, layouts):
    layouts.ucm(folder / "data" / "ucm")
    write_image(folder / "data" / "drone" / "a.png")
    (folder / "data" / "drone" / "labels.csv").write_text("path,building\na.png,1\n", encoding="utf-8")


def write_run(folder, _layouts):
    write_model(folder / "runs" / "ld-efdmix")
    write_image(folder / "a.jpg")
    write_image(folder / "b.tif", size=(50, 40))


def write_results(folder, _layouts):
    for method in ("erm", "ld-efdmix-gc"):
        for seed in range(2):
            append_record(folder / "results", record(cell(method, seed=seed), score=0.5 + 0.1 * seed))


PREPARE = {  # what a text takes for granted
    "docs/data.md": write_data,
    "docs/deploy.md": write_run,
    "docs/benchmark.md": write_results,
    "docs/search.md": write_results,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")
@pytest.mark.parametrize("text", [text for text in TEXTS if blocks(text, "python")])
def test_its_python_blocks_run_as_written(text, layouts, monkeypatch, tmp_path):
    PREPARE.get(text, lambda *_: None)(tmp_path, layouts)
    monkeypatch.chdir(tmp_path)  # what a block saves stays out of the repository
    namespace = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]):
        for block in blocks(text, "python"):
            exec(compile(block, str(ROOT / text), "exec"), namespace)  # errors point at the text's own lines


class ParsedError(Exception):
    """A command has understood its arguments."""


def command_lines(text):
    """Return the words after `ldstyle` of each command line in a text's shell blocks."""
    lines = [line for block in blocks(text, *SHELL) for line in block.replace("\\\n", " ").splitlines()]
    commands = [re.sub(r"^srun ", "", line) for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in commands if line.startswith("ldstyle ")]


@pytest.mark.parametrize("text", [text for text in TEXTS if command_lines(text)])
def test_its_command_lines_are_understood(text, capsys, monkeypatch, tmp_path):
    parse_args = argparse.ArgumentParser.parse_args

    def parse_only(*arguments, **options):
        parse_args(*arguments, **options)
        raise ParsedError

    (tmp_path / "studies").symlink_to(ROOT / "studies")  # commands are given from the project's root
    monkeypatch.chdir(tmp_path)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    for words in command_lines(text):
        command, *arguments = map(os.path.expandvars, words)
        if command != "train":
            with monkeypatch.context() as patch:
                patch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
                with pytest.raises(ParsedError):
                    main([command, *arguments])
            continue
        arguments, target = (arguments[:-2], arguments[-1]) if ">" in arguments else (arguments, "printed.yaml")
        assert main(["train", *arguments, "--print-config"]) == 0, (words, capsys.readouterr().err)
        Path(target).write_text(capsys.readouterr().out, encoding="utf-8")  # a later line may read it


@cache
def options_of(*command):
    """Return the options of a command, such as `bench run`, as its help has them."""
    choices = ["--method", "ld-efdmix-gc", "--swad"] if command == ("train",) else []
    with redirect_stdout(StringIO()) as shown, pytest.raises(SystemExit, match=r"^0$"):
        main([*command, *choices, "--help"])
    return set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", shown.getvalue()))


@pytest.mark.parametrize("text", TEXTS)
def test_commands_it_mentions_have_these_options(text):
    for mention in INLINE.findall((ROOT / text).read_text(encoding="utf-8")):
        words = re.match(r"(?:data|bench) [a-z]+|[a-z]+", mention)[0].split()
        assert set(re.findall(r"--[a-z][\w.-]*", mention)) <= options_of(*words), mention


@pytest.mark.parametrize("text", TEXTS)
def test_no_prediction_is_written_over_a_table_of_labels(text):
    """Who follows the text has a `labels.csv` of the truth."""
    source = (ROOT / text).read_text(encoding="utf-8").replace("\\\n", " ")
    written = re.findall(r"ldstyle predict\b[^`\n]*--out[ =](\S+)", source)
    assert [name for name in written if Path(name).name == "labels.csv"] == []
