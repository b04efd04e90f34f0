"""YAML of users: plain values only, and none that grows when it is read."""

from __future__ import annotations

from typing import Any

import yaml

MOST_VALUES = 100_000
"""Values in a file, each alias counted as all that it stands for."""


def load_yaml(text: str) -> Any:
    """Load YAML text.

    Raises:
        yaml.YAMLError: It is no YAML, holds objects, refers to itself, is nested too deeply, or its aliases stand for
            more than `MOST_VALUES` values.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {MOST_VALUES} values; write them out")
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    finally:
        loader.dispose()


def _count(node: yaml.Node, counted: dict[int, int | None]) -> int:
    """Count the values below a node; a node that several aliases name is counted once and added for each."""
    if id(node) in counted:
        found = counted[id(node)]
        if found is None:
            raise yaml.YAMLError("a value refers to itself")
        return found
    counted[id(node)] = None
    children: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
    below = (part for child in children for part in (child if isinstance(child, tuple) else (child,)))
    counted[id(node)] = total = 1 + sum(_count(part, counted) for part in below)
    return total
