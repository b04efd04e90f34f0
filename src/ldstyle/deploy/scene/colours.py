"""Colours of labels, the same on the page and in the styles for QGIS."""

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#42d4f4", "#f032e6", "#bfa100", "#469990", "#9a6324")
"""Colours of the labels, in turn."""


def colour_of(number: int) -> str:
    """Return the colour of a label."""
    return COLOURS[number % len(COLOURS)]
