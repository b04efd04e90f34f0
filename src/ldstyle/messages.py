"""Parts of error messages: the rule with the value given, the nearest choice, and lists of names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def require(holds: bool, rule: str, value: object) -> None:
    """Raise ``ValueError`` with the rule and the value given, unless the rule holds."""
    if not holds:
        raise ValueError(f"{rule}; got {value!r}.")


def did_you_mean(name: object, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `` Did you mean 'tree'?`` for the choice closest to ``name``, or nothing if none is close.

    Args:
        name: The name given; its case does not matter.
        choices: The names to choose from.
        cutoff: Least similarity of a choice, from 0 to 1.
    """
    spelled = {choice.casefold(): choice for choice in choices}
    close = difflib.get_close_matches(str(name).casefold(), list(spelled), n=1, cutoff=cutoff)
    return f" Did you mean {spelled[close[0]]!r}?" if close else ""


def choose_from(name: object, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the way out of a wrong choice: the nearest one, and all of them."""
    known = list(choices)
    return f"{did_you_mean(name, known, cutoff=cutoff)} Choose from: {', '.join(known)}."


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def first_few(offenders: Iterable[str]) -> str:
    """Name the first three offenders and count the rest, e.g. ``'a', 'b', 'c' and 9 more``."""
    names = [repr(name) for name in offenders]
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")


def kinds_of(sentences: Sequence[str], most: int = 3) -> str:
    """Return the first sentence of each kind, with the number of the others.

    Args:
        sentences: Sentences on files; those that differ in their first quoted name only are of one kind.
        most: Most kinds.
    """
    kinds: dict[str, list[str]] = {}
    for sentence in sentences:
        kinds.setdefault(sentence.partition("' ")[2] or sentence, []).append(sentence)
    shown = [
        alike[0] + (f" The same applies to {len(alike) - 1} more." if len(alike) > 1 else "")
        for alike in list(kinds.values())[:most]
    ]
    left = sum(map(len, list(kinds.values())[most:]))
    return " ".join([*shown, *([f"And {left} more."] if left else [])])
