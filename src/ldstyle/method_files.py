"""The methods that ship with the package: their names, and their styles as configs."""

from __future__ import annotations

from importlib import resources
from typing import Any, get_args

import yaml

from ldstyle import config as styles
from ldstyle.messages import choose_from

CHOICES: dict[str, dict[str, type]] = {
    path: {member.choice: member for member in get_args(union)}
    for path, union in {
        "style": styles.StyleConfig,
        "style.operator": styles.GlobalOperator,
        "style.attention": styles.Attention,
    }.items()
}
"""The class behind each ``name`` in a settings file, by the dotted name of its section."""


def methods() -> tuple[str, ...]:
    """Return the names of the methods, for `attach` and for ``ldstyle train --method``.

    Example:
        >>> "ld-efdmix" in methods()
        True
    """
    folder = resources.files("ldstyle") / "configs" / "methods"
    return tuple(sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml")))


def method_settings(name: str) -> dict[str, Any]:
    """Read the settings of a method: its style, stages and weight averaging."""
    names = methods()
    if name not in names:
        raise ValueError(f"There is no method {name!r}.{choose_from(name, names, cutoff=0.5)}")
    text = (resources.files("ldstyle") / "configs" / "methods" / f"{name}.yaml").read_text(encoding="utf-8")
    settings: dict[str, Any] = yaml.safe_load(text)
    return settings


def method_style(name: str) -> styles.StyleConfig:
    """Build the style of a method.

    Example:
        >>> method_style("ld-efdmix-gc").attention.refresh
        'sweep'
    """
    given = method_settings(name).get("style")
    if given is None:
        raise ValueError(
            f"`style` must be a method with style augmentation; {name!r} trains the plain backbone. Call the backbone "
            "itself."
        )
    style: styles.StyleConfig = _build(given, "style")
    return style


def _build(given: dict[str, Any], path: str) -> Any:
    values = {
        key: _build(value, f"{path}.{key}") if f"{path}.{key}" in CHOICES else value
        for key, value in given.items()
        if key != "name"
    }
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return CHOICES[path][given["name"]](**values)
