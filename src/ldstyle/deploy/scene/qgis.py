"""Styles for QGIS: one of the raster, which QGIS finds by its file name, and one of the footprints."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#42d4f4", "#f032e6", "#bfa100", "#469990", "#9a6324")
"""Colours of the labels in turn, the same on the page and in the styles for QGIS."""


def colour_of(number: int) -> str:
    """Return the colour of a label."""
    return COLOURS[number % len(COLOURS)]


_VERSION = "3.28"
_HEAD = "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"


def raster_style(band: int, name: str, threshold: float) -> str:
    """Return the style of the raster: one label, clear where it is improbable and full at probability 1.

    Args:
        band: Band of the label, from 1.
        name: The label.
        threshold: Its threshold, at which half of the opacity is reached.
    """
    root = ElementTree.Element("qgis", version=_VERSION, styleCategories="Symbology")
    pipe = ElementTree.SubElement(root, "pipe")
    ElementTree.SubElement(
        ElementTree.SubElement(pipe, "provider"),
        "resampling",
        enabled="false",
        zoomedInResamplingMethod="nearestNeighbour",
        zoomedOutResamplingMethod="nearestNeighbour",
        maxOversampling="2",
    )
    limits = {"classificationMin": "0", "classificationMax": "1", "nodataColor": ""}
    renderer = ElementTree.SubElement(
        pipe,
        "rasterrenderer",
        {"type": "singlebandpseudocolor", "band": str(band), "opacity": "0.8", "alphaBand": "-1", **limits},
    )
    ElementTree.SubElement(renderer, "rasterTransparency")
    # Without it, QGIS may stretch the colours to the values of the raster.
    origin = ElementTree.SubElement(renderer, "minMaxOrigin")
    for tag, text in (("limits", "None"), ("extent", "WholeRaster"), ("statAccuracy", "Estimated")):
        ElementTree.SubElement(origin, tag).text = text
    shader = ElementTree.SubElement(
        ElementTree.SubElement(renderer, "rastershader"),
        "colorrampshader",
        colorRampType="INTERPOLATED",
        classificationMode="1",
        clip="0",
        minimumValue="0",
        maximumValue="1",
        labelPrecision="2",
    )
    middle = min(max(threshold, 0.01), 0.99)
    _add_ramp(shader, _channels(band - 1), middle)
    for value, alpha, text in ((0.0, 0, "0"), (middle, 128, f"{middle:.2f} (threshold)"), (1.0, 255, "1")):
        ElementTree.SubElement(
            shader,
            "item",
            value=f"{value:g}",
            alpha=str(alpha),
            color=colour_of(band - 1),
            label=f"{name} {text}",
        )
    ElementTree.SubElement(pipe, "brightnesscontrast", brightness="0", contrast="0", gamma="1")
    ElementTree.SubElement(pipe, "huesaturation", saturation="0", grayscaleMode="0", colorizeOn="0")
    ElementTree.SubElement(pipe, "rasterresampler", maxOversampling="2")
    ElementTree.SubElement(root, "blendMode").text = "0"
    return _HEAD + ElementTree.tostring(root, encoding="unicode")


def _add_ramp(shader: ElementTree.Element, colour: str, middle: float) -> None:
    """Add the ramp from which QGIS makes the colours again if a user changes their number or their limits."""
    ramp = ElementTree.SubElement(shader, "colorramp", type="gradient", name="[source]")
    options = ElementTree.SubElement(ramp, "Option", type="Map")
    values = {
        "color1": f"{colour},0",
        "color2": f"{colour},255",
        "discrete": "0",
        "rampType": "gradient",
        "stops": f"{middle:g};{colour},128",
    }
    for name, value in values.items():
        ElementTree.SubElement(options, "Option", name=name, type="QString", value=value)


def _channels(number: int) -> str:
    """Return red, green and blue of a label's colour, as QGIS lists them."""
    return ",".join(str(int(colour_of(number)[i : i + 2], 16)) for i in (1, 3, 5))


def footprint_style(vocabulary: Sequence[str]) -> str:
    """Return the style of the footprints: a colour per label."""
    root = ElementTree.Element("qgis", version=_VERSION, styleCategories="Symbology")
    renderer = ElementTree.SubElement(root, "renderer-v2", type="categorizedSymbol", attr="label")
    categories = ElementTree.SubElement(renderer, "categories")
    symbols = ElementTree.SubElement(renderer, "symbols")
    for number, name in enumerate(vocabulary):
        key = {"symbol": str(number), "value": name, "label": name, "type": "string", "render": "true"}
        ElementTree.SubElement(categories, "category", key)
        symbol = ElementTree.SubElement(symbols, "symbol", name=str(number), type="fill", alpha="0.5")
        layer = ElementTree.SubElement(symbol, "layer", {"class": "SimpleFill", "enabled": "1", "pass": "0"})
        options = ElementTree.SubElement(layer, "Option", type="Map")
        for option in ("color", "outline_color"):
            ElementTree.SubElement(options, "Option", name=option, type="QString", value=f"{_channels(number)},255")
    ElementTree.SubElement(root, "layerGeometryType").text = "2"
    return _HEAD + ElementTree.tostring(root, encoding="unicode")
