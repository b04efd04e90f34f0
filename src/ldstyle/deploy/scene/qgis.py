"""How QGIS shows a map: a style of the raster, which it loads by its name, and one of the footprints."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from ldstyle.deploy.scene.colours import colour_of

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
    limits = {"classificationMin": "0", "classificationMax": "1"}
    renderer = ElementTree.SubElement(
        pipe,
        "rasterrenderer",
        {"type": "singlebandpseudocolor", "band": str(band), "opacity": "0.8", "alphaBand": "-1", **limits},
    )
    shader = ElementTree.SubElement(
        ElementTree.SubElement(renderer, "rastershader"),
        "colorrampshader",
        colorRampType="INTERPOLATED",
        classificationMode="1",
        clip="0",
        minimumValue="0",
        maximumValue="1",
    )
    middle = min(max(threshold, 0.01), 0.99)
    for value, alpha, text in ((0.0, 0, "0"), (middle, 128, f"{middle:.2f} (threshold)"), (1.0, 255, "1")):
        ElementTree.SubElement(
            shader,
            "item",
            value=f"{value:g}",
            alpha=str(alpha),
            color=colour_of(band - 1),
            label=f"{name} {text}",
        )
    return _HEAD + ElementTree.tostring(root, encoding="unicode")


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
        colour = ",".join(str(int(colour_of(number)[i : i + 2], 16)) for i in (1, 3, 5))
        for option in ("color", "outline_color"):
            ElementTree.SubElement(options, "Option", name=option, type="QString", value=f"{colour},255")
    ElementTree.SubElement(root, "layerGeometryType").text = "2"
    return _HEAD + ElementTree.tostring(root, encoding="unicode")
