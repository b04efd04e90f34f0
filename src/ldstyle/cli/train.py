"""``ldstyle train``: train a model on source domains, or resume a run that was stopped.

Its options are the settings of :class:`ldstyle.runs.config.RunConfig` and of the chosen classes. An option is the
setting's dotted name with hyphens; the underscores of the settings file are taken as well.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from ldstyle.cli import INTERRUPTED, note_renamed
from ldstyle.runs.config import RunConfig
from ldstyle.runs.interruption import Interrupted
from ldstyle.runs.settings import (
    Entry,
    Settings,
    all_sections,
    choices,
    complete,
    config_from,
    dump_settings,
    flatten,
    join,
    merge,
    method_settings,
    methods,
    nested,
    read_settings,
    schema,
    setting_classes,
    split_endings,
    unknown_setting,
    with_ending,
)

if TYPE_CHECKING:
    from ldstyle.runs.record import RunRecord

USAGE = "ldstyle train --method NAME --data DIR --sources NAME [NAME ...] --out DIR [--SETTING VALUE ...]"
DESCRIPTION = """Train a model on source domains. The same command resumes a run that was stopped.

Settings come from the method, then from --config, then from the options, each over the ones before.
The defaults shown are those of the method and the file given with --help."""
SHORT = {
    "data.root": "data",
    "data.sources": "sources",
    "data.size": "size",
    "data.cache_dir": "cache",
    "data.sea": "sea",
    "data.mapping": "mapping",
    "data.labels": "labels",
    "data.ignore": "ignore",
}
"""Settings that other commands have as options, by the names they have there."""

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
    """Train, and print the result or the command that resumes."""
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
    """Return a run's score and the labels whose threshold is not fitted."""
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
    words = _spelled(argv)
    chooser = argparse.ArgumentParser(prog="ldstyle train", add_help=False, allow_abbrev=False)
    _add_choices(chooser)
    chosen, rest = chooser.parse_known_args(words)
    settings = _layers(chosen.method, read_settings(chosen.config) if chosen.config else {})
    for path in choices():
        name = getattr(chosen, f"{path}.name")
        settings = merge(settings, nested({f"{path}.name": name}) if name else {})
    if chosen.swad is not None or any(word.startswith("--swad.") for word in rest):
        settings["swad"] = (settings.get("swad") or {}) if chosen.swad is not False else None
    classes = setting_classes(settings)
    parser = argparse.ArgumentParser(
        usage=USAGE,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_choices(parser)
    _add_settings(parser, classes.items(), dict(flatten(complete(settings))))
    given, unknown = parser.parse_known_args(words)
    if unknown:
        raise ValueError(_unknown(unknown[0], classes))
    values = {name: value for name, value in vars(given).items() if name not in vars(chosen)}
    values = {name: ",".join(value) if isinstance(value, list) else value for name, value in values.items()}
    return merge(settings, nested(values)), chosen.print_config


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options there are, whatever is chosen, for completion."""
    _add_choices(parser)
    _add_settings(parser, all_sections(), {})


def _layers(method: str | None, file: Settings) -> Settings:
    """Lay a file over its method's settings; a file with a complete style may name a custom method."""
    method = method or file.get("method")
    if method is None:  # left open, so that it can be noted
        return merge({key: value for key, value in method_settings("erm").items() if key != "method"}, file)
    plain, endings = split_endings(str(method))
    own = plain not in methods() and "style" in file
    below = reduce(with_ending, endings, Settings()) if own else method_settings(str(method))
    return merge(below, file | {"method": method})


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide which others there are."""
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="settings, a YAML file (default: none)")
    add("--method", metavar="NAME", help=f"one of: {', '.join(methods())} (default: erm)")
    add("--print-config", action="store_true", help="print all settings as YAML, and do nothing else")
    for path, members in choices().items():
        names = tuple(members)
        add(f"--{path}.name", choices=names, metavar="NAME", help=f"one of: {', '.join(names)} (default: the method's)")
    add(
        "--swad",
        action=argparse.BooleanOptionalAction,
        help="average the weights densely over the flat part of the validation loss (default: the method's)",
    )


def _add_settings(
    parser: argparse.ArgumentParser, classes: Iterable[tuple[str, type]], defaults: Mapping[str, Any]
) -> None:
    """Add an option for each setting of some classes, section by section."""
    groups: dict[str, Any] = {}
    known: set[str] = set()
    for section, name, entry, text in _arguments(classes):
        if name in known:
            continue
        known.add(name)
        if section not in groups:
            groups[section] = parser.add_argument_group(section or "run")
        flags = [f"--{SHORT[name]}"] if name in SHORT else []
        flags.append(f"--{name.replace('_', '-')}")
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
        if entry.kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(entry.kind) is Literal:
            options["choices"] = get_args(entry.kind)
        else:
            options |= {"metavar": "VALUE", "nargs": "+" if get_origin(entry.kind) is tuple else None}
        default = _default(name, defaults.get(name))
        groups[section].add_argument(*flags, help=f"{text} ({default})".replace("%", "%%"), **options)


def _arguments(classes: Iterable[tuple[str, type]]) -> Iterator[tuple[str, str, Entry, str]]:
    """Yield section, name, entry and description of each setting that is neither a section nor a choice."""
    for section, cls in classes:
        texts = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(cls) or "", flags=re.MULTILINE))
        for key, entry in schema(cls).items():
            name = join(section, key)
            if not entry.members and name != "method":
                yield section, name, entry, " ".join(texts.get(key, "").replace("``", "").split())


def _default(name: str, value: Any) -> str:
    if value is None and name in REQUIRED:
        return "required"
    if isinstance(value, list):
        return f"default: {' '.join(map(str, value)) or 'none'}"
    return f"default: {json.dumps(value) if value is None or isinstance(value, bool) else value}"


def _spelled(argv: Sequence[str]) -> list[str]:
    """Return the arguments with hyphens in the names of options, and with switches that take no value."""
    switches = {f"--{name.replace('_', '-')}" for _, name, entry, _ in _arguments(all_sections()) if entry.kind is bool}
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if name:
            words.append(name.replace("_", "-"))
        if words and words[-1] in {*switches, "--swad"} and value in ("true", "false"):
            old = words.pop()
            words.append(old if value == "true" else f"--no-{old[2:]}")
            note_renamed(f"{old} {value}", words[-1])
        elif name:
            words[-1] += f"{equals}{value}"
        else:
            words.append(word)
    return words


def _unknown(word: str, classes: dict[str, type]) -> str:
    """Return why an argument is not understood, and the probable one."""
    if not word.startswith("--"):
        return f"ldstyle train takes options only; got {word!r}. See `ldstyle train --help`."
    name = word[2:].partition("=")[0]
    if name in classes:
        keys = (f"--{name}.{key.replace('_', '-')}" for key in schema(classes[name]))
        return f"--{name} is a section of settings. Choose from: {', '.join(keys)}."
    section, _, key = name.rpartition(".")
    while section not in classes:
        section, _, outer = section.rpartition(".")
        key = f"{outer}.{key}"
    return unknown_setting(join(section, key.replace("-", "_")), classes[section])
