"""``ldstyle train``: train a model on source domains, or go on with a run that was stopped."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from jsonargparse import ArgumentParser

from ldstyle.runs.config import RunConfig
from ldstyle.runs.interruption import Interrupted
from ldstyle.runs.settings import (
    CHOICES,
    OPTIONAL,
    Settings,
    complete,
    config_from,
    dump_settings,
    field_types,
    flatten,
    merge,
    method_settings,
    methods,
    read_settings,
    setting_classes,
    unknown_setting,
)

if TYPE_CHECKING:
    from ldstyle.runs.record import RunRecord

USAGE = "ldstyle train --method NAME --data.root DIR --data.sources NAME,NAME --out DIR [--SETTING VALUE ...]"
DESCRIPTION = """Train a model on source domains. The same command resumes a run that was stopped.

Settings come from the method, then from --config, then from the options, each over the ones before.
The defaults shown are those of the method and the file given with --help."""
INTERRUPTED = 130
CHOSEN = ("method", "quiet")
REQUIRED = ("data.root", "data.sources", "out")


def main(argv: Sequence[str]) -> int:
    """Run ``ldstyle train`` and return its exit code: 0, or 130 if it was stopped on request."""
    settings, print_config = parse(argv)
    if print_config:
        sys.stdout.write(dump_settings(complete(settings)))
        return 0
    config = config_from(settings)
    if "method" not in settings and config.style is None and not config.quiet:
        sys.stderr.write(f"No --method given: plain training (erm). The others are {', '.join(methods())}.\n")
    return run(config, argv)


def run(config: RunConfig, argv: Sequence[str]) -> int:
    """Train, and say where the result is or how to go on."""
    from ldstyle.runs.folder import is_done, run_folder
    from ldstyle.training.loop import fit

    before = is_done(run_folder(config))
    try:
        record = fit(config)
    except Interrupted as interrupted:
        sys.stderr.write(f"{interrupted} Resume with the same command:\n  ldstyle train {shlex.join(argv)}\n")
        return INTERRUPTED
    except KeyboardInterrupt:
        sys.stderr.write("Stopped at once. The same command resumes from the last checkpoint.\n")
        return INTERRUPTED
    if not config.quiet and os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        sys.stdout.write(_summary(record, config.out, before=before))
    return 0


def _summary(record: RunRecord, out: str, *, before: bool) -> str:
    """Return what a run scored, and what a reader should know about it."""
    from ldstyle.evaluation.predict import MIN_SAMPLES

    validation = record.scores["validation"]["map"]
    text = "This run was finished before; nothing was trained.\n" if before else ""
    text += (
        f"{record.method}: source-validation mAP {100 * validation:.1f} in epoch {record.selected_epoch} of "
        f"{record.epochs_run}; see {out}\n"
    )
    few = {name: counts for name, counts in record.threshold_samples.items() if min(counts.values()) < MIN_SAMPLES}
    if few:
        shown = ", ".join(f"{name} {counts['positives']}/{counts['negatives']}" for name, counts in few.items())
        text += (
            f"The threshold stays 0.5 for labels with fewer than {MIN_SAMPLES} positive or {MIN_SAMPLES} negative "
            f"validation images: {shown}.\n"
        )
    return text


def parse(argv: Sequence[str]) -> tuple[Settings, bool]:
    """Lay the settings of method, file and options over each other.

    Returns:
        The settings, and whether they are only to be printed.
    """
    chooser = argparse.ArgumentParser(prog="ldstyle train", add_help=False, allow_abbrev=False)
    _add_choices(chooser)
    chosen, rest = chooser.parse_known_args(list(argv))
    settings = _chosen_settings(chosen.method, read_settings(chosen.config) if chosen.config else {})
    for path in CHOICES:
        name = getattr(chosen, f"{path}.name")
        settings = merge(settings, _nested(path, {"name": name}) if name else {})
    if chosen.swad == "false":
        settings["swad"] = None
    elif chosen.swad == "true" or any(token.startswith("--swad.") for token in rest):
        settings["swad"] = settings.get("swad") or {}
    if chosen.quiet:
        settings["quiet"] = True
    if not {"-h", "--help"}.isdisjoint(rest):
        _help(settings).print_help()
        raise SystemExit(0)
    return merge(settings, _options(settings, rest)), chosen.print_config


def _chosen_settings(method: str | None, file: Settings) -> Settings:
    """Lay a file over its method's settings; a file that says all about its style may name a method of its own."""
    method = method or file.get("method")
    if method is None:  # left open, so that it can be said
        return merge({key: value for key, value in method_settings("erm").items() if key != "method"}, file)
    own = method not in methods() and "style" in file
    return merge({} if own else method_settings(str(method)), file | {"method": method})


def _add_choices(parser: Any) -> None:
    """Add the options that decide which others there are."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, a YAML file")
    parser.add_argument("--method", metavar="NAME", help=f"one of: {', '.join(methods())} (default: erm)")
    parser.add_argument("--print_config", action="store_true", help="print all settings as YAML, and do nothing else")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    for path, members in CHOICES.items():
        names = tuple(members)
        parser.add_argument(f"--{path}.name", choices=names, metavar="NAME", help=f"one of: {', '.join(names)}")
    parser.add_argument(
        "--swad",
        nargs="?",
        const="true",
        choices=("true", "false"),
        metavar="true|false",
        help="average the weights densely over the flat part of the validation loss, with any method (default: false)",
    )


def _help(settings: Settings) -> argparse.ArgumentParser:
    """Return a parser that lists every option of the chosen classes with its default, section by section."""
    parser = argparse.ArgumentParser(
        usage=USAGE, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_choices(parser)
    defaults = dict(flatten(complete(settings)))
    groups: dict[str, Any] = {}
    for name, _kind, text in _arguments(setting_classes(settings)):
        section = name.rpartition(".")[0]
        if section not in groups:
            groups[section] = parser.add_argument_group(section or "run")
        text = f"{text.replace('``', '')} ({_default(name, defaults.get(name))})"
        groups[section].add_argument(f"--{name}", metavar="VALUE", help=text.replace("%", "%%"))
    return parser


def _default(name: str, value: Any) -> str:
    if value is None and name in REQUIRED:
        return "required"
    if isinstance(value, list):
        return f"default: {','.join(map(str, value))}"
    return f"default: {json.dumps(value) if value is None or isinstance(value, bool) else value}"


def _options(settings: Settings, tokens: Sequence[str]) -> Settings:
    """Parse the options that the chosen classes have; an unknown one is an error with a suggestion."""
    classes = setting_classes(settings)
    parser = ArgumentParser(prog="ldstyle train")
    known: set[str] = set()
    lists: set[str] = set()
    for name, kind, _text in _arguments(classes):
        known.add(name)
        # Names and numbers of a tuple are separated by commas; they are converted with the rest of the settings.
        lists |= {name} if get_origin(kind) is tuple else set()
        read = str if name in lists else kind
        parser.add_argument(f"--{name}", type=read, default=argparse.SUPPRESS)
    for token in tokens:
        name = token[2:].partition("=")[0]
        if token.startswith("--") and name not in known:
            raise ValueError(_unknown(name, classes))
    parsed = parser.parse_args(_joined(tokens, lists)).as_dict()
    return {key: value for key, value in parsed.items() if key in field_types(RunConfig) and key not in CHOSEN}


def _joined(tokens: Sequence[str], lists: set[str]) -> list[str]:
    """Put commas between values of a list that are separated by spaces, as other commands have them."""
    joined: list[str] = []
    name = ""
    for token in tokens:
        follows = name in lists and not joined[-1].startswith("--")
        if follows and not token.startswith("--"):
            joined[-1] += f",{token}"
            continue
        name = token[2:] if token.startswith("--") else name
        joined.append(token)
    return joined


def _unknown(name: str, classes: dict[str, type]) -> str:
    if name in classes:
        keys = (f"--{name}.{key}" for key in field_types(classes[name]))
        return f"--{name} is a section of settings. Choose from: {', '.join(keys)}."
    section, _, key = name.rpartition(".")
    while section not in classes:
        section, _, outer = section.rpartition(".")
        key = f"{outer}.{key}"
    return unknown_setting(f"{section}.{key}" if section else key, classes[section])


def _arguments(classes: dict[str, type]) -> Iterator[tuple[str, Any, str]]:
    """Yield name, type and description of each setting that is not a section of settings."""
    for path, cls in classes.items():
        texts = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(cls) or "", flags=re.MULTILINE))
        for key, kind in field_types(cls).items():
            name = f"{path}.{key}" if path else key
            if name not in (*classes, *CHOSEN, *OPTIONAL):
                yield name, kind, " ".join(texts.get(key, "").split())


def _nested(path: str, value: Settings) -> Settings:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value
