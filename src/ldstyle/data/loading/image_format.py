"""Bands, depth and value range of images that are not plain 8-bit RGB.

Settings give them as two lists of text and numbers, ``data.bands`` and ``data.range``; images and the splits of a run
make an :class:`ImageFormat` of them, which is stored with the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

DTYPES = ("uint8", "uint16", "int16", "float32")
"""Types of values that images may have."""

Bands: TypeAlias = tuple[int | str, ...]
"""Band numbers from 1, or ``NAME=NUMBER``; empty for all bands of a file."""

Range: TypeAlias = tuple[float | str, ...]
"""Least and largest value of all bands, or of each in turn; or two percentiles, such as ``1%`` and ``99%``."""

RED_GREEN_BLUE = ("red", "green", "blue")
LARGEST_COUNT = 4096
"""Most bands of a file; more are the sides of an image in the wrong order."""

_NAMED = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<number>\d+)")
_INTEGERS = frozenset({"uint16", "int16"})


@dataclass(frozen=True)
class ImageFormat:
    """Bands that a model takes, and how their values are scaled.

    Attributes:
        bands: Their numbers in an image file, from 1.
        names: Their names.
        count: Number of bands of an image file.
        dtype: Type of its values: ``uint8``, ``uint16``, ``int16`` or ``float32``.
        limits: Values of each band that become 0 and 1; values outside are clipped.
    """

    bands: tuple[int, ...]
    names: tuple[str, ...]
    count: int
    dtype: str
    limits: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not 1 <= self.count <= LARGEST_COUNT or len(self.bands) > LARGEST_COUNT:
            raise ValueError(f"Images must have 1 to {LARGEST_COUNT} bands; got {max(self.count, len(self.bands))}.")
        if not self.bands or not all(1 <= band <= self.count for band in self.bands):
            raise ValueError(f"data.bands must be numbers in 1 .. {self.count}; got {list(self.bands)}.")
        if not len(self.bands) == len(self.names) == len(self.limits):
            raise ValueError(
                f"Each of {len(self.bands)} bands needs a name and a range; got {len(self.names)} names and "
                f"{len(self.limits)} ranges."
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"Values must be one of {', '.join(DTYPES)}; got {self.dtype}.")
        for name, (low, high) in zip(self.names, self.limits, strict=True):
            if not -math.inf < low < high < math.inf:
                raise ValueError(f"data.range of {name} must be two rising numbers; got {low:g} and {high:g}.")

    @property
    def stored(self) -> str:
        """Type of decoded values: ``uint8`` where 8-bit values stay unchanged, else ``uint16`` over the range."""
        return "uint8" if self.dtype == "uint8" and set(self.limits) == {(0.0, 255.0)} else "uint16"

    @property
    def shown(self) -> tuple[int, int, int]:
        """Numbers of the bands that pictures show as red, green and blue."""
        return shown_bands(self.bands, self.names)

    def takes(self, dtype: str) -> bool:
        """Return whether values of a type have the meaning of this format's: 16-bit integers with or without sign."""
        return dtype == self.dtype or {dtype, self.dtype} <= _INTEGERS

    def describe(self) -> dict[str, Any]:
        """Return it for JSON; :func:`described_format` gives the same format back."""
        return {
            "bands": list(self.bands),
            "names": list(self.names),
            "count": self.count,
            "dtype": self.dtype,
            "range": [list(pair) for pair in self.limits],
        }


def described_format(description: Mapping[str, Any]) -> ImageFormat:
    """Return the format that :meth:`ImageFormat.describe` described."""
    return ImageFormat(
        tuple(description["bands"]),
        tuple(description["names"]),
        description["count"],
        description["dtype"],
        tuple((float(low), float(high)) for low, high in description["range"]),
    )


def parse_bands(bands: Bands) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return numbers and names of the bands that a setting chooses.

    Raises:
        ValueError: An entry is neither a number from 1 nor ``NAME=NUMBER``, or a name occurs twice.
    """
    found = [_NAMED.fullmatch(str(entry)) for entry in bands]
    numbers = tuple(int(match["number"]) if match else 0 for match in found)
    if 0 in numbers:
        wrong = bands[numbers.index(0)]
        raise ValueError(f"data.bands must be numbers from 1, or NAME=NUMBER such as red=4; got {wrong!r}.")
    names = tuple(
        (match["name"] or f"band {number}").strip() for match, number in zip(found, numbers, strict=True) if match
    )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"data.bands must name each band once; {twice!r} occurs twice. Name bands by NAME=NUMBER.")
    return numbers, names


def parse_range(values: Range) -> tuple[tuple[float, ...], bool]:
    """Return the numbers of a range, and whether they are percentiles.

    Raises:
        ValueError: It is not pairs of rising numbers, nor one pair of percentiles in [0, 100].
    """
    percent = any(isinstance(value, str) and value.strip().endswith("%") for value in values)
    try:
        numbers = tuple(float(str(value).strip().removesuffix("%")) for value in values)
        signs = {str(value).strip().endswith("%") for value in values}
    except ValueError:
        raise ValueError(_range_rule(values)) from None
    pairs = list(zip(numbers[::2], numbers[1::2], strict=False))
    rising = len(numbers) % 2 == 0 and all(-math.inf < low < high < math.inf for low, high in pairs)
    if not rising or len(signs) > 1 or (percent and (len(pairs) != 1 or not 0 <= numbers[0] < numbers[1] <= 100)):
        raise ValueError(_range_rule(values))
    return numbers, percent


def _range_rule(values: Range) -> str:
    return (
        f"data.range must be two rising numbers, two per band, or two percentiles such as 1%,99%; got {list(values)}."
    )


def limits_of(numbers: Sequence[float], names: Sequence[str]) -> tuple[tuple[float, float], ...]:
    """Return a pair of values per band from one pair for all, or from one per band."""
    if len(numbers) not in (2, 2 * len(names)):
        raise ValueError(
            f"data.range must be two numbers, or two for each of {len(names)} bands ({', '.join(names)}); got "
            f"{len(numbers)} numbers."
        )
    pairs = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    return pairs * len(names) if len(pairs) == 1 else pairs


def shown_bands(bands: Sequence[int], names: Sequence[str]) -> tuple[int, int, int]:
    """Return which bands pictures show: those named red, green and blue, else the first three, else one as grey."""
    lower = [name.lower() for name in names]
    if all(name in lower for name in RED_GREEN_BLUE):
        red, green, blue = (bands[lower.index(name)] for name in RED_GREEN_BLUE)
        return red, green, blue
    first = bands[0]
    return (first, bands[1], bands[2]) if len(bands) > 2 else (first, first, first)


def settings_shown(bands: Bands, value_range: Range) -> tuple[int, ...] | None:
    """Return the bands that pictures show by the settings ``data.bands`` and ``data.range``; empty are the first three.

    ``None`` is 8-bit RGB.
    """
    if not bands and not value_range:
        return None
    return shown_bands(*parse_bands(bands)) if bands else ()
