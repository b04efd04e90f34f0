"""Settings as text: YAML files, overrides, and the saved config that loads back equal.

In a mapping, each choice among classes carries the member's ``name``: ``operator: {name: efdmix, top_ratio: 0.34}``.
jsonargparse checks and converts the values; which keys there are follows from the chosen members.
"""

from __future__ import annotations

import difflib
from argparse import ArgumentError
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser

from ldstyle.method_files import CHOICES as CHOICES
from ldstyle.method_files import method_settings as method_settings
from ldstyle.method_files import methods as methods
from ldstyle.runs.config import BackboneConfig, DataConfig, OptimizerConfig, RunConfig, SwadConfig
from ldstyle.safe_yaml import load_yaml

Settings: TypeAlias = dict[str, Any]
"""Nested settings by name, as they stand in a YAML file."""

SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "backbone": BackboneConfig,
    "optimizer": OptimizerConfig,
    "swad": SwadConfig,
}
GLOBAL_ONLY = ("csu", "dsu")
_SURE = 0.75
"""Similarity to a setting of another section from which on that one is suggested."""


def read_settings(path: Path) -> Settings:
    """Read a YAML file of settings."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no settings file '{path}'.")
    try:
        settings = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"'{path}' must be a YAML file of settings; {_problem(error)}.") from None
    if not isinstance(settings, dict):
        raise ValueError(f"'{path}' must hold settings by name; got {type(settings).__name__}.")
    return settings


def _problem(error: Exception) -> str:
    """Say where and why a YAML text cannot be read, in one line."""
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return where + " ".join(str(getattr(error, "problem", None) or error).split())


def merge(below: Settings, above: Settings, path: str = "") -> Settings:
    """Lay settings over others. Where ``above`` chooses another class, nothing of the class below it remains.

    Args:
        below: Settings.
        above: Those that win.
        path: Dotted name of the section both are of; '' is the whole.
    """
    merged = dict(below)
    for key, value in above.items():
        old, inner = merged.get(key), _join(path, key)
        if isinstance(old, dict) and isinstance(value, dict):
            other = inner in CHOICES and value.get("name", old.get("name")) != old.get("name")
            merged[key] = value if other else merge(old, value, inner)
        else:
            merged[key] = value
    return merged


def settings_of(config: RunConfig) -> Settings:
    """Return a config as settings; :func:`config_from` gives the same config back."""
    return _describe(config, "")


def complete(settings: Mapping[str, Any]) -> Settings:
    """Check settings and fill in the defaults.

    Returns:
        All settings in the order of the classes. One that must be given and is not is ``None``.

    Raises:
        ValueError: A key is unknown, a choice is, or a value does not fit.
    """
    return _complete(RunConfig, _with_switches(settings), "")


def config_from(settings: Mapping[str, Any]) -> RunConfig:
    """Build the config of a run from settings."""
    config: RunConfig = _build(RunConfig, complete(settings), "")
    return config


def load_config(path: Path) -> RunConfig:
    """Load the config saved with a run."""
    return config_from(read_settings(path))


def dump_settings(settings: Settings) -> str:
    """Return settings as YAML."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its dotted name."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def setting_classes(settings: Mapping[str, Any]) -> dict[str, type]:
    """Return the class of each section by its dotted name, as ``settings`` choose them; '' is the run's own."""
    classes: dict[str, type] = {"": RunConfig}
    for path, section in SECTIONS.items():
        if path != "swad" or settings.get("swad") not in (None, False):
            classes[path] = section
    if settings.get("style"):
        classes["style"] = _chosen("style", settings["style"])
        for key in ("operator", "attention"):
            if key in field_types(classes["style"]):
                classes[f"style.{key}"] = _chosen(f"style.{key}", settings["style"].get(key, {}))
    return classes


def _with_switches(settings: Mapping[str, Any]) -> Settings:
    """Let ``swad: true`` stand for its defaults and ``false`` for none."""
    switched = dict(settings)
    if isinstance(switched.get("swad"), bool):
        switched["swad"] = {} if switched["swad"] else None
    return switched


def _describe(config: Any, path: str) -> Settings:
    described: Settings = {}
    if path in CHOICES:
        described["name"] = next(name for name, member in CHOICES[path].items() if member is type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            described[field.name] = _describe(value, _join(path, field.name))
        else:
            described[field.name] = list(value) if isinstance(value, tuple) else value
    return described


def _complete(cls: type, given: Any, path: str) -> Settings:
    if not isinstance(given, Mapping):
        raise ValueError(f"{path} must hold settings of {cls.__name__} by name; got {given!r}.")
    types = field_types(cls)
    named = {"name"} if path in CHOICES else set()
    for key in given:
        if key not in types and key not in named:
            raise ValueError(unknown_setting(_join(path, str(key)), cls))
    completed: Settings = {}
    if named:
        completed["name"] = next(name for name, member in CHOICES[path].items() if member is cls)
    defaults = _defaults(cls)
    for key in types:
        inner = _join(path, key)
        if inner in SECTIONS or inner in CHOICES:
            completed[key] = _complete_section(inner, given.get(key, defaults[key]))
        elif given.get(key) is None and defaults[key] is MISSING:
            completed[key] = None
        else:
            completed[key] = _checked(cls, key, given.get(key, defaults[key]), inner)
    return completed


def _complete_section(path: str, given: Any) -> Settings | None:
    if given is MISSING:
        given = {}
    if is_dataclass(given):
        given = _describe(given, path)
    if given is None and path in ("style", "swad"):
        return None
    completed = _complete(SECTIONS.get(path) or _chosen(path, given), given, path)
    if path == "style" and completed["name"] != "global" and completed["operator"]["name"] in GLOBAL_ONLY:
        name = completed["operator"]["name"]
        raise ValueError(
            f"style.operator {name!r} is global only; got style {completed['name']!r}. Use style 'global'."
        )
    return completed


def _checked(cls: type, key: str, value: Any, path: str) -> Any:
    """Check and convert a value by the type of its field."""
    kind = field_types(cls)[key]
    if isinstance(value, str) and get_origin(kind) is tuple and not value.startswith("["):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        result = _parser(kind).parse_object({"value": value})["value"]
    except (ArgumentError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"{path} does not take {value!r}: {reason}") from None
    return list(result) if isinstance(result, tuple) else result


@cache
def _parser(kind: Any) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    return parser


def _build(cls: type, settings: Settings, path: str) -> Any:
    values: dict[str, Any] = {}
    defaults = _defaults(cls)
    for key in field_types(cls):
        inner, value = _join(path, key), settings[key]
        if (inner in SECTIONS or inner in CHOICES) and value is not None:
            values[key] = _build(SECTIONS.get(inner) or _chosen(inner, value), value, inner)
        elif value is None and defaults[key] is MISSING:
            raise ValueError(f"{inner} must be given. Set it in the settings file or by --{inner} VALUE.")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def _chosen(path: str, given: Any) -> type:
    choices = CHOICES[path]
    if not isinstance(given, Mapping) or "name" not in given:
        raise ValueError(f"{path} must have a `name`, one of: {_list(choices)}; got {given!r}.")
    name = given["name"]
    if name not in choices:
        raise ValueError(f"{path}.name must be one of: {_list(choices)}; got {name!r}.{_did_you_mean(name, choices)}")
    return choices[name]


def unknown_setting(path: str, cls: type) -> str:
    """Say that a key is none of a class's settings, and which was probably meant."""
    key, known = path.rpartition(".")[2].replace("-", "_"), list(field_types(cls))
    # By the last part of the name, so that `epochs` finds `optimizer.epochs` before `keep_epochs`.
    elsewhere = {name.rpartition(".")[2]: name for name in _all_settings()}
    (best,) = difflib.get_close_matches(key, [*known, *elsewhere], n=1, cutoff=0.5) or [""]
    if best not in known and difflib.SequenceMatcher(None, best, key).ratio() >= _SURE:
        hint = f" Did you mean {elsewhere[best]!r}?"
    else:
        hint = _did_you_mean(key, known) or f" Choose from: {_list(known)}."
    return f"{path} is not a setting of {cls.__name__}.{hint}"


@cache
def _all_settings() -> tuple[str, ...]:
    """Return the dotted names of all settings, of whatever choice."""
    members = [(path, member) for path, choices in CHOICES.items() for member in choices.values()]
    classes = [*members, *SECTIONS.items(), ("", RunConfig)]
    return tuple(_join(path, key) for path, member in classes for key in field_types(member))


def field_types(cls: type) -> dict[str, Any]:
    """Return the types of a class's settings by name."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _defaults(cls: type) -> dict[str, Any]:
    return {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(cls)
    }


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _list(names: Collection[str]) -> str:
    return ", ".join(names)


def _did_you_mean(name: object, names: Collection[str]) -> str:
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
