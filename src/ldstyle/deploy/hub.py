"""A trained model as a folder of a model hub: timm's files and a model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCardData

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
        license_id: Identifier of the licence as the hub knows it, e.g. ``apache-2.0``; ``None`` marks it as open.

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


def push_folder(folder: Path, repo: str, *, private: bool = True) -> str:
    """Upload a folder by the hub's own client, which asks the user's login for the right to do so.

    Args:
        folder: Folder written by :func:`ldstyle.deploy.export.export_model` with the target ``hub``.
        repo: ``OWNER/NAME`` of the repository; made if missing.
        private: Whether a new repository is private.

    Returns:
        The address of the commit.
    """
    api = HfApi(library_name="ldstyle")
    api.create_repo(repo, private=private, exist_ok=True)
    return str(api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Add model"))


def _usage(model: LoadedModel) -> str:
    return f"""## Use

```python
import timm, torch

net = timm.create_model("hf-hub:OWNER/NAME", pretrained=True).eval()  # or "local-dir:FOLDER"
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net), is_training=False)
probabilities = net(transform(image)[None]).sigmoid()  # image: a PIL image in RGB; {model.size} px inside
```

A label is present where its probability reaches its threshold. `config.json` holds labels, thresholds and
preprocessing."""


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
