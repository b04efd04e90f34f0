"""The exported model: a plain backbone's weights in safetensors, and its description, in JSON.

Nothing in either file can run code: the network is rebuilt by its timm name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ldstyle.data.loading.image_format import ImageFormat, described_format
from ldstyle.files import replace_file, replace_text
from ldstyle.messages import first_few
from ldstyle.runs.backbone import (
    Preprocessing,
    check_name,
    create_network,
    fit_image_size,
    pretrained_settings,
)
from ldstyle.runs.normalized_net import NormalizedNet

if TYPE_CHECKING:
    from ldstyle.runs.config import BackboneConfig

SCHEMA = 2
WITH_FORMAT = 3
READABLE = (1, SCHEMA, WITH_FORMAT)
"""Versions of the description that are read: 1 has no checksum of its own and no untrained labels, 3 states the format
of images that are not 8-bit RGB."""
WEIGHTS = "model.safetensors"
DESCRIPTION = "model.json"
_EXTRA_NUMBERS = 1 << 20
_LARGEST = 1 << 14  # pixels per side; more fit into no memory
_SEAL = "description_sha256"


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model read from disk.

    Attributes:
        backbone: Plain backbone in eval mode, on the CPU; one logit per label.
        vocabulary: Names of the L labels.
        thresholds: A label is predicted where ``sigmoid(logit) >= threshold``, (L,) float64.
        preprocessing: How images in [0, 1] become its input.
        size: Height and width of the images it was trained on.
        gsd: Ground sampling distance of those images in metres per pixel, if known.
        sources: Names of the domains it was trained on.
        extra: Small tensors by name, such as feature statistics of the sources.
        info: The whole description, as in ``model.json``.
        untrained_labels: Labels of the vocabulary without training data; their scores mean nothing.
        source_gsd: Least and largest metres per pixel of those images by source; sources of unknown scale are absent.
        image_format: Bands and range of the images; ``None`` for 8-bit RGB.
    """

    backbone: nn.Module
    vocabulary: tuple[str, ...]
    thresholds: Tensor
    preprocessing: Preprocessing
    size: int
    gsd: float | None
    sources: tuple[str, ...]
    extra: dict[str, Tensor] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    untrained_labels: tuple[str, ...] = ()
    source_gsd: dict[str, tuple[float, float]] = field(default_factory=dict)
    image_format: ImageFormat | None = None

    @property
    def shown(self) -> tuple[int, ...] | None:
        """Numbers of the bands that pictures show as red, green and blue; ``None`` for 8-bit RGB."""
        return None if self.image_format is None else self.image_format.shown

    def network_on(self, device: torch.device) -> NormalizedNet:
        """Return the network with its normalisation in the fused form, as runs evaluate it, on a device."""
        return NormalizedNet(self.backbone, self.preprocessing, fused=True).to(device)


def save_model(
    directory: Path | str,
    backbone: nn.Module,
    *,
    name: str,
    vocabulary: Sequence[str],
    thresholds: Tensor | Sequence[float],
    preprocessing: Preprocessing,
    size: int,
    sources: Sequence[str],
    backbone_config: BackboneConfig,
    gsd: float | None = None,
    extra: Mapping[str, Tensor] | None = None,
    untrained_labels: Sequence[str] = (),
    source_gsd: Mapping[str, tuple[float, float]] | None = None,
    image_format: ImageFormat | None = None,
) -> Path:
    """Write ``model.safetensors`` and ``model.json``, each replaced in one step.

    Args:
        directory: Where to write; made if missing.
        backbone: Plain backbone; its state dict is what is saved.
        name: What the model is called, e.g. its method.
        vocabulary: Names of the L labels.
        thresholds: Decision thresholds on probabilities, (L,).
        preprocessing: How images in [0, 1] become its input.
        size: Height and width of the images it was trained on.
        sources: Names of the domains it was trained on.
        backbone_config: What the backbone was built from.
        gsd: Ground sampling distance in metres per pixel, if known.
        extra: Small floating-point tensors to keep with it.
        untrained_labels: Labels without training data, which are predicted as unknown.
        source_gsd: Least and largest metres per pixel of the images at ``size``, of each source where it is known.
        image_format: Bands and range of the images; ``None`` for 8-bit RGB.

    Returns:
        The path of ``model.json``.

    Raises:
        ValueError: timm cannot rebuild this network, or the description would not load.
    """
    description = {
        "schema": SCHEMA if image_format is None else WITH_FORMAT,
        "name": name,
        "backbone": {
            "name": pretrained_settings(backbone)["architecture"],
            "output_stride": backbone_config.output_stride,
        },
        "vocabulary": list(vocabulary),
        "thresholds": torch.as_tensor(thresholds, dtype=torch.float64).tolist(),
        "preprocessing": {"mean": list(preprocessing.mean), "std": list(preprocessing.std)},
        "size": size,
        "gsd": gsd,
        "sources": list(sources),
        "source_gsd": {source: list(values) for source, values in (source_gsd or {}).items()},
        "untrained_labels": list(untrained_labels),
        "extra": {key: _listed(key, value) for key, value in (extra or {}).items()},
    }
    if image_format is not None:
        description["images"] = image_format.describe()
    _check(description, where="the description")
    state = {key: value.detach().cpu().contiguous().clone() for key, value in backbone.state_dict().items()}
    _check_state(_rebuild(description, where="the description"), state, where="the backbone")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    content = _serialise(state)
    description["sha256"] = hashlib.sha256(content).hexdigest()
    description[_SEAL] = description_digest(description)
    replace_file(directory / WEIGHTS, lambda file: file.write(content))
    text = json.dumps(description, indent=1, allow_nan=False, ensure_ascii=False)
    replace_text(directory / DESCRIPTION, f"{text}\n")
    return directory / DESCRIPTION


def load_model(path: Path | str) -> LoadedModel:
    """Read a model written by :func:`save_model`.

    Args:
        path: A run folder, or its ``model.json`` or ``model.safetensors``; the other file must be next to it.

    Raises:
        FileNotFoundError: One of the two files is missing.
        ValueError: A file is damaged, changed, foreign, or of a newer version.
    """
    if not Path(path).exists():
        raise FileNotFoundError(
            f"There is no model '{path}'. Give the folder of a finished run, or its '{DESCRIPTION}'."
        )
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    for file in (folder / DESCRIPTION, folder / WEIGHTS):
        if not file.is_file():
            raise FileNotFoundError(
                f"A model is '{DESCRIPTION}' and '{WEIGHTS}' in one folder; '{file}' is missing. Give the folder of a "
                "finished run."
            )
    where = f"'{folder / DESCRIPTION}'"
    description = _read_description(folder / DESCRIPTION)
    content = (folder / WEIGHTS).read_bytes()
    if hashlib.sha256(content).hexdigest() != description.get("sha256"):
        raise ValueError(
            f"'{folder / WEIGHTS}' must be the file that {where} was written with; its SHA-256 differs, so one of them "
            "is damaged or was changed. Copy both again."
        )
    backbone = _rebuild(description, where=where)
    state = _deserialise(content, folder / WEIGHTS)
    _check_state(backbone, state, where=f"'{folder / WEIGHTS}'")
    backbone.load_state_dict(state)
    preprocessing = {key: tuple(values) for key, values in description["preprocessing"].items()}
    return LoadedModel(
        backbone.eval(),
        tuple(description["vocabulary"]),
        torch.tensor(description["thresholds"], dtype=torch.float64),
        Preprocessing(preprocessing["mean"], preprocessing["std"]),
        description["size"],
        description["gsd"],
        tuple(description["sources"]),
        _tensors(description["extra"], where=where),
        description,
        tuple(description.get("untrained_labels", ())),
        {source: (values[0], values[1]) for source, values in description.get("source_gsd", {}).items()},
        described_format(description["images"]) if "images" in description else None,
    )


def description_digest(description: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a description, whatever its order and layout, without the checksum that it holds."""
    content = {key: value for key, value in description.items() if key != _SEAL}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"'{path}' must be the JSON text of a model; it cannot be read: {error}") from error
    if not isinstance(description, dict):
        raise ValueError(f"'{path}' must hold a JSON object; got {type(description).__name__}.")
    _check(description, where=f"'{path}'")
    if description["schema"] > 1 and description.get(_SEAL) != description_digest(description):
        raise ValueError(
            f"'{path}' must be as it was written; its {_SEAL} does not match, so it is damaged or was changed. Copy "
            "it again from the run."
        )
    return description


def _check(description: Mapping[str, Any], *, where: str) -> None:
    """Refuse a description with a field missing or out of its range, before anything is built from it."""
    schema = description.get("schema")
    if isinstance(schema, bool) or schema not in READABLE:
        raise ValueError(
            f"{where} must have schema {' or '.join(map(str, READABLE))}; got {schema!r}. Use the version of ldstyle "
            "that wrote it."
        )
    network, preprocessing = description.get("backbone"), description.get("preprocessing")
    names = description["vocabulary"] if _is_names(description.get("vocabulary")) else []
    bands = (
        len(described_format(description["images"]).bands) if "images" in description and _is_format(description) else 3
    )
    rules = {
        "name": isinstance(description.get("name"), str),
        "vocabulary": bool(names) and len(set(names)) == len(names),
        "thresholds": _is_numbers(description.get("thresholds"), length=len(names)),
        "backbone": isinstance(network, dict)
        and isinstance(network.get("name"), str)
        and (network.get("output_stride") is None or _is_count(network["output_stride"])),
        "preprocessing": isinstance(preprocessing, dict)
        and all(_is_numbers(preprocessing.get(key), length=bands) for key in ("mean", "std")),
        "images": _is_format(description),
        "size": _is_count(description.get("size")) and description["size"] <= _LARGEST,
        "gsd": description.get("gsd") is None or (_is_number(description["gsd"]) and description["gsd"] > 0),
        "sources": _is_names(description.get("sources")),
        "source_gsd": _is_ranges(description.get("source_gsd", {}), names=description.get("sources")),
        "untrained_labels": _is_names(description.get("untrained_labels", []))
        and set(description.get("untrained_labels", [])) <= set(names),
        "extra": isinstance(description.get("extra"), dict),
    }
    broken = [key for key, holds in rules.items() if not holds]
    if broken:
        shown = str(description.get(broken[0]))[:80]
        raise ValueError(f"{where} must describe a model; {first_few(broken)} cannot be used, e.g. {shown!r}.")


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_numbers(value: object, *, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(_is_number(entry) for entry in value)


def _is_ranges(value: object, *, names: object) -> bool:
    """Whether a field gives some of the names a least and a largest number above 0."""
    if not isinstance(value, dict) or not _is_names(names) or not set(value) <= set(names):  # type: ignore[call-overload]
        return False
    return all(_is_numbers(pair, length=2) and 0 < pair[0] <= pair[1] for pair in value.values())


def _is_format(description: Mapping[str, Any]) -> bool:
    """Whether the format of images is stated by the version that has it, and can be used."""
    if ("images" in description) != (description["schema"] == WITH_FORMAT):
        return False
    images = description.get("images")
    if images is None:
        return "images" not in description
    try:
        if not all(map(_is_count, (*images["bands"], images["count"]))) or not _is_names(images["names"]):
            return False
        return bool(described_format(images).describe() == images)
    except (ValueError, TypeError, KeyError):
        return False


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _rebuild(description: Mapping[str, Any], *, where: str) -> nn.Module:
    """Build the described network by its timm name alone: a name with a source would fetch settings from elsewhere."""
    name = description["backbone"]["name"]
    if ":" in name:
        raise ValueError(f"{where} must name a network of timm itself; got {name!r}.")
    check_name(name)
    backbone = create_network(
        name,
        num_labels=len(description["vocabulary"]),
        output_stride=description["backbone"]["output_stride"],
        bands=len(description["preprocessing"]["mean"]),
    )
    fit_image_size(backbone, description["size"])
    return backbone


def _check_state(backbone: nn.Module, state: Mapping[str, Tensor], *, where: str) -> None:
    expected = {key: value.shape for key, value in backbone.state_dict().items()}
    found = {key: value.shape for key, value in state.items()}
    if expected != found:
        different = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        name = pretrained_settings(backbone)["architecture"]
        raise ValueError(f"{where} must hold the weights of timm's {name!r}; {first_few(different)} differ.")


def _listed(key: str, value: Tensor) -> Any:
    if not value.is_floating_point() or value.numel() > _EXTRA_NUMBERS or not bool(value.isfinite().all()):
        raise ValueError(
            f"`extra` must hold finite floating-point tensors of at most {_EXTRA_NUMBERS} numbers; {key!r} is "
            f"{value.dtype} of shape {tuple(value.shape)}."
        )
    return value.detach().float().tolist()


def _tensors(extra: Mapping[str, Any], *, where: str) -> dict[str, Tensor]:
    try:
        return {key: torch.tensor(values, dtype=torch.float32) for key, values in extra.items()}
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{where} must hold lists of numbers as 'extra'; got others ({error}).") from error


def _serialise(state: dict[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save(state, metadata={"format": "pt"})


def _deserialise(content: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except SafetensorError as error:
        raise ValueError(f"'{path}' must be a safetensors file; it cannot be read: {error}") from error
