"""A trained model in the formats of others; each file is compared with the network before it appears."""

from __future__ import annotations

import io
import json
import shutil
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ldstyle.files import give_default_mode, replace_file
from ldstyle.nn.backbones.layout import logits_of
from ldstyle.nn.backbones.probe import evaluating
from ldstyle.runs.backbone import pretrained_settings
from ldstyle.runs.model_file import LoadedModel
from ldstyle.seeding import derive_seed

Target: TypeAlias = Literal["onnx", "torchscript", "safetensors", "timm", "hub"]
TARGETS: tuple[Target, ...] = get_args(Target)
NAMES: dict[Target, str] = {
    "onnx": "ldstyle-model.onnx",
    "torchscript": "ldstyle-model.pt",
    "safetensors": "ldstyle-model.safetensors",
    "timm": "ldstyle-model",
    "hub": "ldstyle-model",
}
"""What an export is called unless it is named."""

OPSET = 23
"""The newest operator set that both torch's exporter and ONNX Runtime know."""
TOLERANCE = 1e-4
"""An export's logits may differ by this, and by this fraction of their size."""
NEVER = 2.0
"""Threshold of a label without training data, which no probability reaches."""
DESCRIPTION = "ldstyle.json"
"""Name of the description inside a TorchScript file."""

_BATCHES = (1, 3)  # neither is what the network is traced with
_TRACED = 2


def export_model(
    model: LoadedModel, target: Target, out: Path, *, run: Path | None = None, license_id: str | None = None
) -> Path:
    """Write a model for use without this project.

    All take normalised images (B, C, S, S) float32 of any batch size and return logits (B, L). Preprocessing,
    vocabulary and thresholds come with them: as metadata in ONNX and safetensors, as the extra file ``ldstyle.json`` in
    TorchScript, and as ``config.json`` for timm.

    Args:
        model: The model; its backbone must be on the CPU.
        target: Format.
        out: File to write, or for ``timm`` and ``hub`` a folder, which must not exist. ``hub`` adds a model card.
        run: Folder the model was read from, whose scores the card of ``hub`` shows.
        license_id: Licence of the weights for that card.

    Returns:
        ``out``.

    Raises:
        ValueError: The written network does not compute what the model does, or a library is missing.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with evaluating(model.backbone):
        match target:
            case "onnx":
                _write(out, _onnx(model, out))
            case "torchscript":
                _write(out, _torchscript(model, out))
            case "safetensors":
                _write(out, _safetensors(model))
            case "timm":
                _timm_folder(model, out)
            case "hub":
                from ldstyle.deploy.hub import write_card

                _timm_folder(
                    model, out, lambda folder: write_card(model, folder, run=run or out, license_id=license_id)
                )
    return out


def describe(model: LoadedModel) -> dict[str, str]:
    """Return what a user of the network needs, each entry as JSON text."""
    entries = {
        "name": model.info["name"],
        "architecture": model.info["backbone"]["name"],
        "vocabulary": model.vocabulary,
        "thresholds": [
            NEVER if name in model.untrained_labels else threshold
            for name, threshold in zip(model.vocabulary, model.thresholds.tolist(), strict=True)
        ],
        "untrained_labels": model.untrained_labels,
        "mean": model.preprocessing.mean,
        "std": model.preprocessing.std,
        "size": model.size,
        "gsd": model.gsd,
        "sources": model.sources,
        **({} if model.image_format is None else {"images": model.image_format.describe()}),
        "preprocessing": _preprocessing(model),
        "output": "logits; a label is present where 1 / (1 + exp(-logit)) >= its threshold; the logits of "
        f"untrained labels mean nothing, and their threshold is {NEVER:g}",
    }
    return {key: json.dumps(value, ensure_ascii=False) for key, value in entries.items()}


def _preprocessing(model: LoadedModel) -> str:
    rest = "resized to size x size (antialiased bilinear), minus mean, divided by std"
    if model.image_format is None:
        return f"RGB in [0, 1], {rest}"
    return f"the bands of images, each clipped to its range and brought from it to [0, 1], {rest}"


def check_equal(model: LoadedModel, compute: Callable[[Tensor], Tensor], *, what: str) -> float:
    """Compare an exported network with the model on random images of several batch sizes.

    Args:
        model: The model, in eval mode on the CPU.
        compute: Logits of normalised images by the exported network.
        what: What was exported, for the message.

    Returns:
        The largest difference of logits.

    Raises:
        ValueError: They differ by more than the tolerance.
    """
    generator = torch.Generator().manual_seed(derive_seed("export", "images"))
    worst = 0.0
    for count in _BATCHES:
        images = torch.randn(count, _channels(model), model.size, model.size, generator=generator)
        with torch.no_grad():
            expected, found = logits_of(model.backbone(images)), compute(images)
        if found.shape != expected.shape or not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
            apart = "their shapes differ" if found.shape != expected.shape else _apart(found, expected)
            raise ValueError(
                f"{what} must give the logits of the model to {TOLERANCE:g}; for {count} images {apart}. Nothing was "
                "written; choose another format."
            )
        worst = max(worst, (found - expected).abs().max().item())
    return worst


def _apart(found: Tensor, expected: Tensor) -> str:
    return f"they differ by {(found - expected).abs().max().item():g}"


def _write(out: Path, content: bytes) -> None:
    replace_file(out, lambda file: file.write(content))


def _example(model: LoadedModel) -> Tensor:
    return torch.zeros(_TRACED, _channels(model), model.size, model.size)


def _channels(model: LoadedModel) -> int:
    return len(model.preprocessing.mean)


def _onnx(model: LoadedModel, out: Path) -> bytes:
    runtime = _onnx_libraries()
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself; the outcome is checked below
        program = torch.onnx.export(
            _Logits(model.backbone),
            (_example(model),),
            dynamo=True,
            dynamic_shapes=({0: batch},),
            input_names=["images"],
            output_names=["logits"],
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props.update(describe(model))
    content: bytes = program.model_proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def compute(images: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(session.run(["logits"], {"images": images.numpy()})[0]))

    check_equal(model, compute, what=f"'{out}' in ONNX Runtime")
    return content


def _onnx_libraries() -> Any:
    try:
        import_module("onnxscript")
        return import_module("onnxruntime")
    except ImportError as error:
        raise ValueError(
            f"ONNX needs the extra `onnx`, which is not installed ({error}). Run `pip install ldstyle[onnx]`."
        ) from error


def _torchscript(model: LoadedModel, out: Path) -> bytes:
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but was requested
        traced = torch.jit.freeze(torch.jit.trace(_Logits(model.backbone).eval(), _example(model), check_trace=False))
        description = {key: json.loads(value) for key, value in describe(model).items()}
        torch.jit.save(traced, content, _extra_files={DESCRIPTION: json.dumps(description, ensure_ascii=False)})
        content.seek(0)
        loaded = torch.jit.load(content)
        check_equal(model, loaded, what=f"'{out}' in TorchScript")
    return content.getvalue()


def _safetensors(model: LoadedModel) -> bytes:
    from safetensors.torch import load, save

    state = {key: value.detach().cpu().contiguous() for key, value in model.backbone.state_dict().items()}
    content = save(state, metadata={"format": "pt", **describe(model)})
    read = load(content)
    if any(not torch.equal(read[key], value) for key, value in state.items()):
        raise ValueError("The written weights must be those of the model; they are not. Nothing was written.")
    return content


def _timm_folder(model: LoadedModel, out: Path, add: Callable[[Path], object] = lambda _folder: None) -> None:
    import timm
    from timm.models import save_for_hf

    if out.exists():
        raise ValueError(f"The folder of a timm model must not exist; '{out}' does. Remove it, or set --out.")
    partial = out.with_name(f"{out.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        settings = timm_settings(model)
        save_for_hf(
            model.backbone,
            str(partial),
            model_config=settings | {"ldstyle": {key: json.loads(value) for key, value in describe(model).items()}},
            model_args=_model_arguments(model),
            safe_serialization=True,
        )
        network = timm.create_model(f"local-dir:{partial}", pretrained=True).eval()
        check_equal(model, network, what=f"'{out}' in timm")
        add(partial)
        give_default_mode(file for file in partial.rglob("*") if file.is_file())
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def timm_settings(model: LoadedModel) -> dict[str, Any]:
    """Return labels and preprocessing for timm's ``config.json``; timm's transform then equals ours."""
    noted = pretrained_settings(model.backbone)
    channels = _channels(model)
    # With a first convolution, timm would take weights of other than three bands for those of three and adapt them.
    names = ("pool_size", "classifier", *(("first_conv",) if channels == 3 else ()))
    kept = {key: noted[key] for key in names if noted.get(key) is not None}
    return {
        "label_names": list(model.vocabulary),
        "pretrained_cfg": {
            **kept,
            "num_classes": len(model.vocabulary),
            "input_size": [channels, model.size, model.size],
            "fixed_input_size": bool(noted.get("fixed_input_size")),
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
            "mean": list(model.preprocessing.mean),
            "std": list(model.preprocessing.std),
        },
    }


def _model_arguments(model: LoadedModel) -> dict[str, Any] | None:
    arguments: dict[str, Any] = {} if _channels(model) == 3 else {"in_chans": _channels(model)}
    stride = model.info["backbone"]["output_stride"]
    if stride is not None:
        arguments["output_stride"] = stride
    noted = pretrained_settings(model.backbone)
    if noted.get("fixed_input_size") and tuple(noted["input_size"][1:]) != (model.size, model.size):
        arguments["img_size"] = model.size
    return arguments or None


class _Logits(nn.Module):
    """The network's logits alone, where it returns more."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        return logits_of(self.backbone(images))
