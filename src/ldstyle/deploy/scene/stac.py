"""A map as a STAC item, with the model that made it described by the machine-learning-model extension (MLM)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ldstyle.data.scenes.raster import rasterio
from ldstyle.files import replace_text
from ldstyle.runs.model_file import LoadedModel

MLM = "https://stac-extensions.github.io/mlm/v1.4.0/schema.json"
PROJECTION = "https://stac-extensions.github.io/projection/v2.0.0/schema.json"
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
        files: Files next to it that become assets, by their role.
        model: The model.
        gsd: Metres per pixel of the scene, if known.
        scene: Name of the scene.
    """
    library = rasterio()
    with library.open(raster) as dataset:
        place = _place(library, dataset)
        projection = {
            "proj:code": None if dataset.crs is None else dataset.crs.to_string(),
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
        **place,
        "properties": {
            "title": f"Labels of {scene}",
            # The time of the map where the scene does not state when it was taken; an item must have one.
            "datetime": taken or now,
            "created": now,
            **({} if gsd is None else {"gsd": gsd}),
            **projection,
            **describe_model(model),
        },
        "links": [],
        "assets": {role: _asset(role, path) for role, path in {"probabilities": raster, **files}.items()}
        | {"model": _model_asset(model)},
    }
    replace_text(out, json.dumps(item, indent=1, ensure_ascii=False) + "\n")


def describe_model(model: LoadedModel) -> dict[str, Any]:
    """Return a model's properties in the words of the MLM extension."""
    channels = len(model.preprocessing.mean)
    scaling = [
        {"type": "z-score", "mean": mean, "stddev": std}
        for mean, std in zip(model.preprocessing.mean, model.preprocessing.std, strict=True)
    ]
    return {
        "mlm:name": model.info["name"],
        "mlm:architecture": model.info["backbone"]["name"],
        "mlm:tasks": ["scene-classification"],
        "mlm:framework": "pytorch",
        "mlm:framework_version": torch.__version__,
        "mlm:total_parameters": sum(parameter.numel() for parameter in model.backbone.parameters()),
        "mlm:input": [
            {
                "name": "image",
                "bands": [] if model.image_format is None else list(model.image_format.names),
                "input": {
                    "shape": [-1, channels, model.size, model.size],
                    "dim_order": ["batch", "bands", "height", "width"],
                    "data_type": "float32",
                },
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
                        "name": name,
                        "description": f"Probability of at least {threshold:.4g} is present.",
                    }
                    for number, (name, threshold) in enumerate(
                        zip(model.vocabulary, model.thresholds.tolist(), strict=True)
                    )
                ],
            }
        ],
    }


def _asset(role: str, path: Path) -> dict[str, Any]:
    kind = "visual" if role == "preview" else "metadata" if role == "style" else "data"
    return {"href": f"./{path.name}", "type": _TYPES[path.suffix.lower()], "title": role, "roles": [kind]}


def _model_asset(model: LoadedModel) -> dict[str, Any]:
    return {
        "href": "./model.safetensors",
        "title": f"Weights, SHA-256 {model.info['sha256']}; a copy must be put next to this file",
        "type": "application/octet-stream",
        "roles": ["mlm:model"],
        "mlm:artifact_type": "safetensors",
    }


def _place(library: Any, dataset: Any) -> dict[str, Any]:
    """Return footprint and extent in longitude and latitude; both are missing without a reference system."""
    if dataset.crs is None:
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
