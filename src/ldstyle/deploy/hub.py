"""A trained model as a folder of a model hub: timm's files and a model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCardData

from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.evaluation.evaluate import EVALUATIONS
from ldstyle.files import replace_text
from ldstyle.runs.model_file import LoadedModel
from ldstyle.runs.record import RECORD, read_record

CARD = "README.md"
_OPEN = "*to be filled in by the owner*"


def write_card(model: LoadedModel, folder: Path, *, run: Path, license_id: str | None) -> Path:
    """Write the model card into a folder that holds the model for timm.

    Args:
        model: The model.
        folder: Folder of ``config.json`` and ``model.safetensors``.
        run: Folder the model was read from; its record and evaluations supply the scores, where it has them.
        license_id: Identifier of the licence on the hub, e.g. ``apache-2.0``; ``None`` marks it as open.

    Returns:
        The path of the card.
    """
    data = ModelCardData(
        license=license_id or "other",
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["timm", "multi-label", "remote-sensing", "domain-generalization", "ldstyle"],
    )
    name = model.info["name"]
    sections = [
        f"---\n{data.to_yaml()}\n---",
        f"# {name}: multi-label classifier of {_list(model.vocabulary)}",
        f"A plain `{model.info['backbone']['name']}` trained with `ldstyle` (method `{name}`) on "
        f"{_list(model.sources)}. Style augmentation acts in training only; the network is the backbone.",
        _usage(model),
        _labels(model),
        _scores(run),
        f"## Licence and data\n\n- Licence of the weights: {license_id or _OPEN}\n- Licence of the training images: "
        f"{_OPEN}\n- Intended use and limits: {_OPEN}",
    ]
    path = folder / CARD
    replace_text(path, "\n\n".join(section for section in sections if section) + "\n")
    return path


def push_folder(folder: Path, repo: str) -> str:
    """Upload a folder by the hub's own client, which asks the user's login for the right to do so.

    Args:
        folder: Folder written by :func:`ldstyle.deploy.export.export_model` with the target ``hub``.
        repo: ``OWNER/NAME`` of the repository; made, and private, if missing.

    Returns:
        The address of the commit.
    """
    api = HfApi(library_name="ldstyle")
    api.create_repo(repo, private=True, exist_ok=True)
    return str(api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Add model"))


def _usage(model: LoadedModel) -> str:
    if model.image_format is not None:
        return _bands_usage(model, model.image_format)
    return f"""## Use

```python
import timm, torch

net = timm.create_model("hf-hub:OWNER/NAME", pretrained=True).eval()  # or "local-dir:FOLDER"
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net), is_training=False)
probabilities = net(transform(image)[None]).sigmoid()  # image: a PIL image in RGB; {model.size} px inside
```

A label is present where its probability reaches its threshold. `config.json` holds labels, thresholds and
preprocessing."""


def _bands_usage(model: LoadedModel, image_format: ImageFormat) -> str:
    bands = "\n".join(
        f"| {number} | {name} | {low:g} to {high:g} | {mean:.4f} | {std:.4f} |"
        for number, name, (low, high), mean, std in zip(
            image_format.bands,
            image_format.names,
            image_format.limits,
            model.preprocessing.mean,
            model.preprocessing.std,
            strict=True,
        )
    )
    return f"""## Use

```python
import timm, torch

net = timm.create_model("hf-hub:OWNER/NAME", pretrained=True).eval()  # or "local-dir:FOLDER"
probabilities = net(images).sigmoid()  # images: (B, {len(image_format.bands)}, {model.size}, {model.size})
```

Images are of {image_format.count} bands of {image_format.dtype}. Each band below is clipped to its range, brought from
it to [0, 1], resized to {model.size} x {model.size} (antialiased bilinear), and normalised by mean and deviation.

| band of the file | name | range | mean | deviation |
|---|---|---|---|---|
{bands}

A label is present where its probability reaches its threshold. `config.json` holds all of it."""


def _labels(model: LoadedModel) -> str:
    rows = [
        f"| {name} | {'untrained: never predicted' if name in model.untrained_labels else f'{threshold:.3f}'} |"
        for name, threshold in zip(model.vocabulary, model.thresholds.tolist(), strict=True)
    ]
    return "\n".join(["## Labels", "", "| label | threshold |", "|---|---|", *rows])


def _scores(run: Path) -> str:
    """Return the section of scores: held-out source images, and every domain the run was evaluated on."""
    rows = []
    if (run / RECORD).is_file():
        record = read_record(run)
        test = record.scores.get("source_test", {})
        rows += [
            f"| {domain} (held-out images of a source) | {_percent(value)} |"
            for domain, value in (test.get("per_domain") or {}).items()
        ]
    for path in sorted((run / EVALUATIONS).glob("*.json")):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if (whole := content["scores"].get("all")) is not None:
            rows.append(f"| {content['domain']} (never seen in training) | {_percent(whole['map'])} |")
    if not rows:
        return f"## Scores\n\n{_OPEN}"
    return "\n".join(["## Scores", "", "| domain | mAP in % |", "|---|---|", *rows])


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
