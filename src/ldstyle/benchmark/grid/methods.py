"""The methods of the benchmark as data: names, titles, order and settings; a file is a method too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ldstyle.messages import did_you_mean
from ldstyle.runs.settings import (
    ENDINGS,
    Settings,
    complete,
    method_settings,
    read_settings,
    split_ending,
    split_endings,
    with_ending,
)

TITLES = {
    "erm": "ERM",
    "mixstyle": "MixStyle",
    "efdmix": "EFDMix",
    "csu": "CSU",
    "swad": "SWAD",
    "ld-mixstyle": "LD-MixStyle",
    "ld-efdmix": "LD-EFDMix",
    "ld-csu": "LD-CSU",
    "ld-mixstyle-gc": "LD-MixStyle-GC",
    "ld-efdmix-gc": "LD-EFDMix-GC",
    "ld-csu-gc": "LD-CSU-GC",
    "oracle": "Oracle",
    "csu-published": "CSU (published)",
    "dsu": "DSU",
    "ld-mixstyle-probe": "LD-MixStyle-Probe",
    "ld-efdmix-probe": "LD-EFDMix-Probe",
    "ld-csu-probe": "LD-CSU-Probe",
    "ld-mixstyle-masks": "LD-MixStyle-Masks",
    "ld-efdmix-masks": "LD-EFDMix-Masks",
    "ld-csu-masks": "LD-CSU-Masks",
    "ld-mixstyle-paper": "LD-MixStyle (bare)",
    "ld-efdmix-paper": "LD-EFDMix (bare)",
    "ld-csu-paper": "LD-CSU (bare)",
    "ld-mixstyle-gc-paper": "LD-MixStyle-GC (bare)",
    "ld-efdmix-gc-paper": "LD-EFDMix-GC (bare)",
    "ld-csu-gc-paper": "LD-CSU-GC (bare)",
    "fact": "FACT",
    "mixup": "Mixup",
    "coral": "CORAL",
    "miro": "MIRO",
    "groupdro": "GroupDRO",
    "sagm": "SAGM",
    "erm++": "ERM++",
}
BASELINE = "erm"
ORACLE = "oracle"
METHODS = tuple(TITLES)
"""All built-in methods: the paper's rows in its order, then what goes beyond them."""

PAPER_METHODS = METHODS[: METHODS.index(ORACLE) + 1]
WITH_SWAD = "+swad"
"""Ending that adds dense weight averaging to any method, e.g. ``ld-efdmix+swad``."""

BASELINES = METHODS[METHODS.index("fact") :]
"""Algorithms of other publications, which may be added to any method as well: ``ld-efdmix+coral``."""

_GLOBAL = tuple(name for name in METHODS if f"ld-{name}" in METHODS)
_LABEL_DECOUPLED = tuple(name for name in PAPER_METHODS if name.startswith("ld-"))
GROUPS = {
    "all": PAPER_METHODS,
    "ld": _LABEL_DECOUPLED,
    "baselines": BASELINES,
    "beyond": ("csu-published", "dsu", *(name + WITH_SWAD for name in _LABEL_DECOUPLED)),
}
"""Names of groups of methods."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~=_-]*")
"""Names that a method may have; folders are named after it."""

_NOT_A_METHODS = ("data", "out", "seed", "devices", "quiet", "checkpoint_minutes", "keep_epochs", "logger")


@dataclass(frozen=True)
class Method:
    """A row of the benchmark.

    Attributes:
        name: Short name; folders and records bear it.
        title: Name in tables.
        settings: Settings of a run that make the method: style, stages, weight averaging.
        oracle: Trained on the target's own training part instead of the sources: the within-domain ceiling.
        base: Name of the method it is a variant of, whose selected settings it shares.
        edits: Settings that make it one, above the preset's schedule and the selected ones.
    """

    name: str
    title: str
    settings: Settings
    oracle: bool = False
    base: str | None = None
    edits: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"A method's name must be made of letters, digits and . + ~ = _ -; got {self.name!r}.")


def load_method(name_or_path: str) -> Method:
    """Return a built-in method by name, or a method of the user's own by its YAML file.

    ``+NAME`` after either adds an algorithm, a loss or dense weight averaging
    (:data:`ldstyle.runs.settings.ENDINGS`). A file holds settings of a run, at least ``style``, and may have a
    ``title``; its ``method``, or else the file's name, is the method's name.

    Raises:
        ValueError: There is no such method, or the file holds settings that do not belong to a method.
        FileNotFoundError: There is no such file.
    """
    base, ending = split_ending(name_or_path)
    if ending is not None:
        plain = load_method(base)
        name = f"{plain.name}+{ending}"
        settings = {**with_ending(plain.settings, ending), "method": name}
        return replace(plain, name=name, title=f"{plain.title} + {ENDINGS[ending]}", settings=settings)
    if Path(name_or_path).suffix in (".yaml", ".yml"):
        return _own_method(Path(name_or_path))
    if name_or_path not in TITLES:
        raise ValueError(
            f"There is no method {name_or_path!r}.{did_you_mean(name_or_path, TITLES)} Choose from: "
            f"{', '.join(METHODS)}, the groups {', '.join(GROUPS)}, or a YAML file."
        )
    oracle = name_or_path == ORACLE
    settings = {**method_settings(BASELINE if oracle else name_or_path), "method": name_or_path}
    return Method(name_or_path, TITLES[name_or_path], settings, oracle)


def plain_name(name: str) -> str:
    """Return a method's name without its additions: ``ld-efdmix`` of ``ld-efdmix+coral+swad``."""
    try:
        return split_endings(name)[0]
    except ValueError:  # no name that load_method takes, but a record may hold any
        return name


def method_title(name: str) -> str | None:
    """Return a method's name in tables; ``None`` for one that is not built in."""
    if plain_name(name) not in TITLES:
        return None
    plain, endings = split_endings(name)
    return " + ".join([TITLES[plain], *(ENDINGS[ending] for ending in endings)])


def load_methods(names: Iterable[str]) -> tuple[Method, ...]:
    """Return methods by names, groups and files, each once, in the order given."""
    found: dict[str, Method] = {}
    for name in names:
        for member in GROUPS.get(name, (name,)):
            method = load_method(member)
            if method != found.setdefault(method.name, method):
                raise ValueError(f"Two different methods are called {method.name!r}. Rename one by its `method`.")
    return tuple(found.values())


def _own_method(path: Path) -> Method:
    settings = read_settings(path)
    title = settings.pop("title", None)
    name = str(settings.get("method", path.stem))
    foreign = [key for key in _NOT_A_METHODS if key in settings]
    if foreign:
        raise ValueError(f"'{path}' describes a method, for any data and seed; remove `{foreign[0]}` from it.")
    settings["method"] = name
    try:
        complete(settings)
        return Method(name, str(title or name), settings)
    except ValueError as error:
        raise ValueError(f"'{path}' is not a method: {error}") from None


def method_rank(method: str) -> tuple[int, int, str]:
    """Return where a method stands: as in the paper, ``+swad`` and its like after the plain rows, the oracle last."""
    plain = plain_name(method)
    known = METHODS.index(plain) if plain in METHODS else len(METHODS)
    return group(method), known + len(METHODS) * (plain != method), method


def group(method: str) -> int:
    """Return 0 for plain and global methods, 1 for label-decoupled ones, 2 for the user's own, 3 for the oracle."""
    plain = plain_name(method)
    if plain == ORACLE:
        return 3
    return 2 if plain not in METHODS else int(plain.startswith("ld-"))


def global_twin(method: str) -> str | None:
    """Return the global method that a label-decoupled one is compared with; ``None`` for other methods.

    A method of the user's own counts by its name: ``ld-efdmix-mine`` is compared with ``efdmix``.
    """
    plain = plain_name(method)
    for name in _GLOBAL:
        if plain == f"ld-{name}" or plain.startswith(f"ld-{name}-"):
            return name + method.removeprefix(plain)
    return None


def without_style(method: str) -> str | None:
    """Return what is left of a method without its style: ``swad`` of ``ld-efdmix+swad``; ``None`` if that is ERM."""
    plain = plain_name(method)
    rest = method.removeprefix(plain).removeprefix("+")
    return rest if plain != BASELINE and rest in METHODS else None


def leading_pair(methods: Iterable[str]) -> tuple[str, str] | None:
    """Return the first label-decoupled method that mixes with a partner and its global twin, if both are there."""
    there = list(methods)
    pairs = [(method, twin) for method in there if (twin := global_twin(method)) in there and twin is not None]
    return next((pair for pair in pairs if plain_name(pair[1]) in ("mixstyle", "efdmix")), None)
