"""Settings as text: YAML files, overrides, and the saved config that loads back equal.

:class:`RunConfig` is the schema of files, of the command line and of saved runs: a field whose type is a dataclass is a
section, a union of dataclasses is a choice and written with the chosen member's ``name``, as in
``operator: {name: efdmix, top_ratio: 0.34}``. jsonargparse checks and converts the values.
"""

from __future__ import annotations

import dataclasses
import difflib
from argparse import ArgumentError
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser

from ldstyle import method_files
from ldstyle.files import load_yaml
from ldstyle.messages import did_you_mean
from ldstyle.method_files import methods as methods
from ldstyle.runs.config import RunConfig

Settings: TypeAlias = dict[str, Any]
"""Nested settings by name, as in a YAML file."""

UNIONS = (Union, UnionType)
CUTOFF = 0.5
"""Least similarity of a name that is suggested."""

ENDINGS = {
    "fact": "FACT",
    "mixup": "mixup",
    "coral": "CORAL",
    "miro": "MIRO",
    "groupdro": "GroupDRO",
    "sagm": "SAGM",
    "erm++": "ERM++",
    "focal": "focal loss",
    "asymmetric": "asymmetric loss",
    "balanced": "class balance",
    "swad": "SWAD",
}
"""Titles of what may be added to a method by ``+NAME`` after its name: an algorithm, a loss, weight averaging."""

_SURE = 0.75
"""Least similarity of a setting of another section that is suggested."""


@dataclass(frozen=True)
class Entry:
    """A setting or a section of settings, as a config class declares it.

    Attributes:
        declared: The field of the class.
        kind: Its type.
        members: Classes of a section by their ``name``, '' if there is no choice; empty for a value.
        optional: Whether it may be ``None``.
    """

    declared: dataclasses.Field[Any]
    kind: Any
    members: dict[str, type]
    optional: bool

    @property
    def default(self) -> Any:
        """Its default, ``MISSING`` if it must be given; some depend on the environment."""
        factory = self.declared.default_factory
        return self.declared.default if factory is MISSING else factory()


@cache
def schema(cls: type) -> dict[str, Entry]:
    """Return the fields of a config class by name."""
    hints = get_type_hints(cls)
    found: dict[str, Entry] = {}
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        parts = get_args(kind) if get_origin(kind) in UNIONS else (kind,)
        members = {getattr(part, "choice", ""): part for part in parts if isinstance(part, type) and is_dataclass(part)}
        found[field.name] = Entry(field, kind, members, NoneType in parts)
    return found


@cache
def all_sections() -> tuple[tuple[str, type], ...]:
    """Return every config class with the dotted name of its section, the members of all choices included."""

    def walk(cls: type, path: str) -> Iterator[tuple[str, type]]:
        yield path, cls
        for key, entry in schema(cls).items():
            for member in entry.members.values():
                yield from walk(member, join(path, key))

    return tuple(dict.fromkeys(walk(RunConfig, "")))


@cache
def choices() -> dict[str, dict[str, type]]:
    """Return the members of each choice among classes by ``name``, by the dotted name of its section."""
    found: dict[str, dict[str, type]] = {}
    for path, cls in all_sections():
        if hasattr(cls, "choice"):
            found.setdefault(path, {})[cls.choice] = cls
    return found


def method_settings(name: str) -> Settings:
    """Read the settings of a method: style, stages, algorithm, loss and weight averaging.

    Args:
        name: Name of a method, with any of ``ENDINGS``: ``ld-efdmix+coral+swad``.
    """
    base, ending = split_ending(name)
    if ending is not None:
        return {**with_ending(method_settings(base), ending), "method": name}
    return method_files.method_settings(name)


def split_ending(name: str) -> tuple[str, str | None]:
    """Split the last addition off a method's name: ``ld-efdmix+coral`` is ``ld-efdmix`` with ``coral``.

    Raises:
        ValueError: Something was added after weight averaging, which stands last so that a method has one name.
    """
    ending = next((ending for ending in ENDINGS if name.endswith(f"+{ending}")), None)
    if ending is None:
        return name, None
    base = name.removesuffix(f"+{ending}")
    if base.endswith("+swad") and ending != "swad":
        raise ValueError(f"+swad must stand last in a method's name; got {name!r}. Put +{ending} before it.")
    return base, ending


def split_endings(name: str) -> tuple[str, tuple[str, ...]]:
    """Split all additions off a method's name: ``ld-csu+coral+swad`` is ``ld-csu`` with ``coral`` and ``swad``."""
    base, ending = split_ending(name)
    if ending is None:
        return base, ()
    plain, endings = split_endings(base)
    return plain, (*endings, ending)


def with_ending(settings: Settings, ending: str) -> Settings:
    """Add an algorithm, a loss or weight averaging to the settings of a method.

    Raises:
        ValueError: The method has an algorithm or a loss already.
    """
    match ending:
        case "swad":
            swad = settings.get("swad") or {}
            return {**settings, "swad": {} if swad is True else swad}
        case "balanced":
            return {**settings, "loss": {**(settings.get("loss") or {"name": "bce"}), "class_balanced": True}}
        case _:
            section = "loss" if ending in choices()["loss"] else "algorithm"
            if settings.get(section):
                raise ValueError(
                    f"A run has one {section}; got {settings[section]['name']!r} and {ending!r}. Leave +{ending} out."
                )
            added = {"name": ending} if section == "loss" else method_settings(ending)[section]
            return {**settings, section: added}


def read_settings(path: Path) -> Settings:
    """Read a YAML file of settings."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no settings file '{path}'.")
    try:
        settings = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ValueError(f"'{path}' must be a YAML file of settings; {where}{problem}.") from None
    if not isinstance(settings, dict):
        raise ValueError(f"'{path}' must hold settings by name; got {type(settings).__name__}.")
    return settings


def merge(below: Settings, above: Settings, path: str = "") -> Settings:
    """Lay settings over others. Where ``above`` chooses another class, nothing of the class below it remains.

    Args:
        below: Settings.
        above: Those that win.
        path: Dotted name of the section both are of; '' is the whole.
    """
    merged = dict(below)
    for key, value in above.items():
        old, inner = merged.get(key), join(path, key)
        if isinstance(old, dict) and isinstance(value, dict):
            other = inner in choices() and value.get("name", old.get("name")) != old.get("name")
            merged[key] = value if other else merge(old, value, inner)
        else:
            merged[key] = value
    return merged


def nested(values: Mapping[str, Any]) -> Settings:
    """Return settings by dotted name as nested settings."""
    settings: Settings = {}
    for name, value in values.items():
        *path, last = name.split(".")
        section = settings
        for key in path:
            section = section.setdefault(key, {})
        section[last] = value
    return settings


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its dotted name."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], *, ignored: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, by dotted name, except the ``ignored`` ones."""
    first, second = dict(flatten(one)), dict(flatten(other))
    names = [name for name in dict.fromkeys([*first, *second]) if name not in ignored]
    return {name: (first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)}


def list_differences(found: Mapping[str, tuple[Any, Any]]) -> str:
    """Return differences of stored settings from present ones, a line each."""
    return "\n".join(f"  {name}: {old!r} there, {new!r} now" for name, (old, new) in found.items())


def settings_of(config: Any) -> Settings:
    """Return a config as settings; :func:`config_from` gives the same config back."""
    settings = {"name": config.choice} if hasattr(config, "choice") else {}
    cls: type = type(config)
    for key in schema(cls):
        value = getattr(config, key)
        settings[key] = settings_of(value) if is_dataclass(value) else list(value) if type(value) is tuple else value
    return settings


def complete(settings: Mapping[str, Any]) -> Settings:
    """Check settings and fill in the defaults.

    Returns:
        All settings in the order of the classes. One that must be given and is not is ``None``.

    Raises:
        ValueError: A key is unknown, a choice is, or a value does not fit.
    """
    return _complete(RunConfig, settings, "")


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


def setting_classes(settings: Mapping[str, Any]) -> dict[str, type]:
    """Return the class of each section by its dotted name, as ``settings`` choose them; '' is the run's own."""
    classes: dict[str, type] = {}

    def walk(cls: type, chosen: Settings, path: str) -> None:
        classes[path] = cls
        for key, entry in schema(cls).items():
            if entry.members and chosen[key] is not None:
                walk(_member(entry, chosen[key], join(path, key)), chosen[key], join(path, key))

    walk(RunConfig, complete(settings), "")
    return classes


def unknown_setting(path: str, cls: type) -> str:
    """Raise for a key that is no setting of a class, with the closest name."""
    key, known = path.rpartition(".")[2].replace("-", "_"), list(schema(cls))
    # By the last part of the name, so that `epochs` finds `optimizer.epochs` before `keep_epochs`.
    elsewhere = {name: join(section, name) for section, member in all_sections() for name in schema(member)}
    (best,) = difflib.get_close_matches(key, [*known, *elsewhere], n=1, cutoff=CUTOFF) or [""]
    if best not in known and difflib.SequenceMatcher(None, best, key).ratio() >= _SURE:
        hint = f" Did you mean {elsewhere[best]!r}?"
    else:
        hint = did_you_mean(key, known, cutoff=CUTOFF) or f" Choose from: {', '.join(known)}."
    return f"{path} is not a setting of {cls.__name__}.{hint}"


def join(path: str, key: str) -> str:
    """Return the dotted name of a setting of a section; '' is the whole."""
    return f"{path}.{key}" if path else key


def _complete(cls: type, given: Any, path: str) -> Settings:
    if not isinstance(given, Mapping):
        raise ValueError(f"{path} must hold settings of {cls.__name__} by name; got {given!r}.")
    completed = {"name": cls.choice} if hasattr(cls, "choice") else {}
    for key in given:
        if key not in schema(cls) and key not in completed:
            raise ValueError(unknown_setting(join(path, str(key)), cls))
    for key, entry in schema(cls).items():
        value, inner = given.get(key, entry.default), join(path, key)
        if entry.members:
            completed[key] = _complete_section(entry, value, inner)
        elif value is MISSING or (value is None and entry.default is MISSING):
            completed[key] = None
        else:
            completed[key] = _checked(entry.kind, value, inner)
    return completed


def _complete_section(entry: Entry, given: Any, path: str) -> Settings | None:
    if entry.optional and (given is None or given is False):
        return None
    if given is MISSING or (entry.optional and given is True):
        given = {}
    elif is_dataclass(given):
        given = settings_of(given)
    return _complete(_member(entry, given, path), given, path)


def _checked(kind: Any, value: Any, path: str) -> Any:
    """Check and convert a value by its type; a text may list values between commas."""
    parsed = value
    if isinstance(value, str) and get_origin(kind) is tuple and not value.startswith("["):
        parsed = [part.strip() for part in value.split(",") if part.strip()]
    try:
        result = _parser(kind).parse_object({"value": parsed})["value"]
    except (ArgumentError, TypeError, ValueError):
        raise ValueError(f"{path} must be {_rule(kind)}; got {value!r}.") from None
    return list(result) if isinstance(result, tuple) else result


def _rule(kind: Any) -> str:
    """Return a type in words: ``int or null``, ``'csv' or 'none'``, ``a list of str``."""
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        return f"a list of {_rule(parts[0])}"
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, parts))
    return " or ".join(map(_rule, parts)) if parts else "null" if kind is NoneType else str(kind.__name__)


@cache
def _parser(kind: Any) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    return parser


def _build(cls: type, settings: Settings, path: str) -> Any:
    values: dict[str, Any] = {}
    for key, entry in schema(cls).items():
        inner, value = join(path, key), settings[key]
        if entry.members and value is not None:
            values[key] = _build(_member(entry, value, inner), value, inner)
        elif value is None and entry.default is MISSING:
            raise ValueError(f"{inner} must be given. Set it in the settings file or by --{inner} VALUE.")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def _member(entry: Entry, given: Any, path: str) -> type:
    """Return the class of a section: the only one, or the one that its ``name`` chooses."""
    if "" in entry.members:
        return entry.members[""]
    names = ", ".join(entry.members)
    if not isinstance(given, Mapping) or "name" not in given:
        raise ValueError(f"{path} must have a `name`, one of: {names}; got {given!r}.")
    name = given["name"]
    if name in entry.members:
        return entry.members[name]
    parent, _, key = path.rpartition(".")
    owners = [repr(owner) for owner, cls in choices().get(parent, {}).items() if name in _members_of(cls, key)]
    hint = f" It needs {parent}.name {' or '.join(owners)}." if owners else did_you_mean(name, entry.members)
    raise ValueError(f"{path}.name must be one of: {names}; got {name!r}.{hint}")


def _members_of(cls: type, key: str) -> dict[str, type]:
    return schema(cls)[key].members if key in schema(cls) else {}
