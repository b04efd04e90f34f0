"""HTML that is escaped unless it was built here: names of labels, domains and methods come from users' files."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_VOID = frozenset({"br", "img", "input", "meta", "source"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | bool | None) -> Markup:
    """Return an element; children and attributes are escaped, except for children that are :class:`Markup`.

    Args:
        tag: Name of the element.
        children: Its content in order.
        attributes: ``class_`` is ``class`` and ``data_n`` is ``data-n``. ``True`` is an attribute without a value;
            ``False`` and ``None`` leave it out.
    """
    opening = [tag]
    for name, value in attributes.items():
        if value is True:
            opening.append(_attribute(name))
        elif value is not None and value is not False:
            opening.append(f'{_attribute(name)}="{escape(value)}"')
    start = f"<{' '.join(opening)}>"
    return Markup(start) if tag in _VOID else Markup(f"{start}{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """Put children one after the other; those that are not :class:`Markup` are escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def with_code(text: str) -> Markup:
    """Return text in which what stands between backticks is code; a backtick without another stays."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    return join(*(element("code", part) if n % 2 else part for n, part in enumerate(parts)))


def data_uri(content: bytes | str, kind: str) -> str:
    """Return content as an address that holds it.

    Args:
        content: Bytes, or text, which becomes UTF-8.
        kind: Its media type, e.g. ``image/png``.
    """
    raw = content.encode() if isinstance(content, str) else content
    return f"data:{kind};base64,{b64encode(raw).decode()}"


def plain_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON; numbers that JSON does not have, such as NaN, become ``null``."""
    separators = (",", ":") if indent is None else None
    return json.dumps(_finite(value), indent=indent, separators=separators, ensure_ascii=False, allow_nan=False)


def script_json(value: Any) -> Markup:
    """Return a value as JSON that may stand in a script element: nothing in it can end the element."""
    text = plain_json(value)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(inner) for inner in value]
    return value
