"""A map as a STAC item, with a description of its model by the machine-learning-model extension (MLM)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ldstyle.data.loading.image_format import RED_GREEN_BLUE
from ldstyle.data.scenes.raster import is_on_earth, rasterio
from ldstyle.deploy.scene.qgis import colour_of
from ldstyle.files import replace_text
from ldstyle.runs.model_file import LoadedModel

MLM = "https://stac-extensions.github.io/mlm/v1.4.0/schema.json"
PROJECTION = "https://stac-extensions.github.io/projection/v2.0.0/schema.json"
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_TYPES = {
    ".tif": "image/tiff; application=geotiff; profile=cloud-optimized",
    ".tiff": "image/tiff; application=geotiff; profile=cloud-optimized",
    ".geojson": "application/geo+json",
    ".gpkg": "application/geopackage+sqlite3",
    ".qml": "application/xml",
    ".html": "text/html",
}


def write_stac_item(
    out: Path, *, raster: Path, files: Mapping[str, Path], model: LoadedModel, gsd: float | None, scene: str
) -> None:
    """Write the item.

    Args:
        out: JSON file to write.
        raster: Map of probabilities.
        files: Files next to it that become assets, by role.
        model: The model.
        gsd: Metres per pixel of the scene, if known.
        scene: Name of the scene.
    """
    library = rasterio()
    with library.open(raster) as dataset:
        footprint = _footprint(library, dataset)
        projection = {
            **_system(dataset.crs),
            "proj:shape": [dataset.height, dataset.width],
            "proj:transform": list(dataset.transform[:6]),
        }
        taken = _acquired(dataset.tags().get("scene_datetime"))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": [MLM, PROJECTION],
        "id": raster.stem,
        **footprint,
        "properties": {
            "title": f"Labels of {scene}",
            # An item must have a time: that of the map if the scene has no acquisition time.
            "datetime": taken or now,
            "created": now,
            **({} if gsd is None else {"gsd": gsd}),
            **projection,
            **describe_model(model),
        },
        "links": [],
        "assets": {
            "probabilities": {
                **_asset("probabilities", raster),
                "bands": [{"name": name, "data_type": "float32"} for name in model.vocabulary],
            },
            **{role: _asset(role, path) for role, path in files.items()},
            "model": _model_asset(model),
        },
    }
    replace_text(out, json.dumps(item, indent=1, ensure_ascii=False) + "\n")


def describe_model(model: LoadedModel) -> dict[str, Any]:
    """Return a model's properties in the words of the MLM extension.

    Scaling is stated for the values of image files: the range of a band, and mean and standard deviation in [0, 1],
    become one mean and one standard deviation.
    """
    bands = RED_GREEN_BLUE if model.image_format is None else model.image_format.names
    limits = ((0.0, 255.0),) * len(bands) if model.image_format is None else model.image_format.limits
    scaling = [
        {"type": "z-score", "mean": low + mean * (high - low), "stddev": std * (high - low)}
        for (low, high), mean, std in zip(limits, model.preprocessing.mean, model.preprocessing.std, strict=True)
    ]
    return {
        # The names of an input's bands refer to the field `bands` of STAC itself.
        "bands": [{"name": name} for name in bands],
        "mlm:name": _model_name(str(model.info["name"])),
        "mlm:architecture": model.info["backbone"]["name"],
        "mlm:tasks": ["scene-classification"],
        "mlm:framework": "PyTorch",
        **({"mlm:framework_version": version[0]} if (version := _RELEASE.match(torch.__version__)) else {}),
        "mlm:total_parameters": sum(parameter.numel() for parameter in model.backbone.parameters()),
        "mlm:input": [
            {
                "name": "image",
                "bands": list(bands),
                "input": {
                    "shape": [-1, len(scaling), model.size, model.size],
                    "dim_order": ["batch", "bands", "height", "width"],
                    "data_type": "float32",
                },
                "description": f"Values outside {_ranges(limits)} are clipped before scaling.",
                "value_scaling": scaling,
                "resize_type": "interpolation-linear",
            }
        ],
        "mlm:output": [
            {
                "name": "logits",
                "tasks": ["scene-classification"],
                "result": {
                    "shape": [-1, len(model.vocabulary)],
                    "dim_order": ["batch", "class"],
                    "data_type": "float32",
                },
                "classification:classes": [
                    {
                        "value": number,
                        "name": re.sub(r"[^0-9A-Za-z_-]+", "-", name).strip("-") or f"label-{number}",
                        "description": f"{name}: present where its probability is at least {threshold:.4g}.",
                        "color_hint": colour_of(number).removeprefix("#").upper(),
                    }
                    for number, (name, threshold) in enumerate(
                        zip(model.vocabulary, model.thresholds.tolist(), strict=True)
                    )
                ],
            }
        ],
    }


def _model_name(name: str) -> str:
    """Return a model's name in the letters that the MLM extension allows: ``erm++`` is ``erm-plus-plus``."""
    spelled = re.sub(r"[^a-zA-Z0-9_.-]+", "-", name.replace("++", "-plus-plus")).strip("-_.")
    return spelled if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_.-]+[a-zA-Z0-9]", spelled) else f"ldstyle-{spelled or 'model'}"


def _ranges(limits: Sequence[tuple[float, float]]) -> str:
    """Return the ranges of the bands, once if they are all the same."""
    return ", ".join(f"{low:g} to {high:g}" for low, high in dict.fromkeys(limits))


def _system(crs: Any) -> dict[str, Any]:
    """Return a reference system by its code, or in full if it has none."""
    if crs is None:
        return {"proj:code": None}
    named = crs.to_authority()
    return (
        {"proj:code": ":".join(named)} if named else {"proj:code": None, "proj:wkt2": crs.to_wkt(version="WKT2_2019")}
    )


def _asset(role: str, path: Path) -> dict[str, Any]:
    kind = "visual" if role == "preview" else "metadata" if role == "style" else "data"
    return {"href": f"./{path.name}", "type": _TYPES[path.suffix.lower()], "title": role, "roles": [kind]}


def _model_asset(model: LoadedModel) -> dict[str, Any]:
    return {
        "href": "./model.safetensors",
        "title": f"Weights, SHA-256 {model.info['sha256']}; a copy must be put next to this file",
        "type": "application/octet-stream",
        "roles": ["mlm:model"],
        "mlm:artifact_type": "safetensors.torch.save_file",
    }


def _footprint(library: Any, dataset: Any) -> dict[str, Any]:
    """Return footprint and extent in longitude and latitude; both are missing without a reference system."""
    if not is_on_earth(dataset.crs):
        return {"geometry": None}
    a, b, c, d, e, f = dataset.transform[:6]
    corners = [(0, 0), (0, dataset.height), (dataset.width, dataset.height), (dataset.width, 0), (0, 0)]
    ring = [[a * x + b * y + c, d * x + e * y + f] for x, y in corners]
    shape = {"type": "Polygon", "coordinates": [ring]}
    moved = library.warp.transform_geom(dataset.crs, "EPSG:4326", shape, precision=7)
    xs, ys = zip(*(point[:2] for point in moved["coordinates"][0]), strict=True)
    return {"geometry": moved, "bbox": [min(xs), min(ys), max(xs), max(ys)]}


def _acquired(text: str | None) -> str | None:
    """Read the time tag of a TIFF file, e.g. ``2024:06:01 10:20:30``."""
    found = re.fullmatch(r"(\d{4}):(\d\d):(\d\d) (\d\d:\d\d:\d\d)", text or "")
    return f"{found[1]}-{found[2]}-{found[3]}T{found[4]}Z" if found else None
