"""From each domain's label names to the shared vocabulary."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ldstyle.files import load_yaml
from ldstyle.messages import did_you_mean, first_few


@dataclass(frozen=True)
class LabelMap:
    """Which of a domain's label names mean which label of the shared vocabulary.

    A name that a domain's section leaves out stands for itself. Several names may mean one label: it is present if
    any of them is, and unknown if none is present and any is unknown. A label that no name means is unknown.

    Attributes:
        vocabulary: The L shared label names.
        domains: For each domain, label names of its table to labels of the vocabulary; ``None`` drops a name.
    """

    vocabulary: tuple[str, ...]
    domains: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.vocabulary:
            raise ValueError("`vocabulary` must name at least one label; got none.")
        spelled = [name.casefold() for name in self.vocabulary]
        twins = [name for name in self.vocabulary if spelled.count(name.casefold()) > 1]
        if twins:
            raise ValueError(f"Labels of the vocabulary must differ in more than case; got {first_few(twins)}.")
        for domain, names in self.domains.items():
            for name, label in names.items():
                if label is not None and label not in self.vocabulary:
                    raise ValueError(
                        f"Domain {domain!r} maps {name!r} to {label!r}, which is not in the vocabulary "
                        f"{list(self.vocabulary)}.{did_you_mean(label, self.vocabulary)}"
                    )

    def sources(
        self, domain: str, columns: Sequence[str], *, blank: Collection[str] = ()
    ) -> tuple[tuple[int, ...], ...]:
        """Return for each label of the vocabulary the positions among ``columns`` that mean it in ``domain``.

        Args:
            domain: Name of the domain.
            columns: Label names of its table.
            blank: Names that the domain leaves blank throughout; they need no entry in the vocabulary.
        """
        section = self.domains.get(domain, {})
        for name in section:
            if name not in columns:
                raise ValueError(
                    f"Domain {domain!r} has no label {name!r}; its table has {list(columns)}."
                    f"{did_you_mean(name, columns)}"
                )
        meanings = [section.get(name, name) for name in columns]
        for name, label in zip(columns, meanings, strict=True):
            if label is not None and label not in self.vocabulary and name not in blank:
                raise ValueError(
                    f"Label {name!r} of domain {domain!r} is not in the vocabulary {list(self.vocabulary)}."
                    f"{did_you_mean(name, self.vocabulary)} Map it in the label map; `{name}: null` drops it. "
                    f"A column that is no label is named by --ignore {name} (setting data.ignore)."
                )
        return tuple(tuple(i for i, label in enumerate(meanings) if label == word) for word in self.vocabulary)


def merge_labels(cells: NDArray[np.int8], sources: Sequence[Sequence[int]]) -> NDArray[np.int8]:
    """Merge the columns that mean one label: present if any is, else unknown if any is, else absent.

    Args:
        cells: Labels as the table has them, (N, columns) int8.
        sources: For each of L labels the columns that mean it; a label without any is unknown.

    Returns:
        Labels of the vocabulary, (N, L) int8.
    """
    merged = np.full((len(cells), len(sources)), -1, dtype=np.int8)
    for label, columns in enumerate(sources):
        if columns:
            block = cells[:, list(columns)]
            merged[:, label] = np.where((block == 1).any(axis=1), 1, block.min(axis=1))
    return merged


def load_label_map(path: Path) -> LabelMap:
    """Read a label map from YAML: ``vocabulary`` (a list) and ``domains`` (domain to name to label or null)."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no label map '{path}'.")
    try:
        content: Any = load_yaml(path.read_text(encoding="utf-8-sig"))
    except yaml.YAMLError as error:
        # The parser's own message quotes the file, which need not be a label map.
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"The label map '{path}' is not YAML{where}.") from None
    if not isinstance(content, dict) or "vocabulary" not in content:
        raise ValueError(f"The label map '{path}' must hold `vocabulary` (a list) and `domains`.")
    unknown = [str(key) for key in content if key not in ("vocabulary", "domains")]
    if unknown:
        hint = did_you_mean(unknown[0], ("vocabulary", "domains"))
        raise ValueError(
            f"The label map '{path}' must hold `vocabulary` and `domains`; got {first_few(unknown)}.{hint}"
        )
    vocabulary, domains = content["vocabulary"], content.get("domains") or {}
    if not isinstance(vocabulary, list) or not isinstance(domains, dict):
        raise TypeError(f"In the label map '{path}', `vocabulary` must be a list and `domains` a mapping.")
    for domain, names in domains.items():
        if not isinstance(names, dict):
            raise TypeError(f"In the label map '{path}', domain {domain!r} must map names to labels; got {names!r}.")
    words = [*vocabulary, *domains, *(word for names in domains.values() for item in names.items() for word in item)]
    # YAML reads a bare `no` as false and `7` as a number.
    odd = [repr(word) for word in words if word is not None and not isinstance(word, str)]
    if odd:
        raise TypeError(f"Names in the label map '{path}' must be text; got {', '.join(odd[:3])}. Put them in quotes.")
    return LabelMap(tuple(vocabulary), domains)
