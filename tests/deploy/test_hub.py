"""A model as a folder of a model hub."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from huggingface_hub import HfApi, ModelCard
from tests.deploy.models import SIZE, VOCABULARY, write_model

from ldstyle.cli import main


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    backbone = write_model(folder / "run", untrained_labels=("tree",))
    (folder / "run" / "evaluations").mkdir()
    scores = {"scores": {"all": {"map": 0.4567}, "test": None}, "domain": "drone"}
    (folder / "run" / "evaluations" / "drone.json").write_text(json.dumps(scores))
    arguments = ["export", str(folder / "run"), "--format", "hub", "--license", "mit", "--out", str(folder / "out")]
    assert main(arguments) == 0
    return backbone, folder / "out"


def test_the_folder_loads_in_timm_with_labels_and_preprocessing(hub):
    backbone, folder = hub
    net = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(net(images), backbone(images), rtol=0, atol=0)
    described = json.loads((folder / "config.json").read_text())
    assert described["label_names"] == list(VOCABULARY)
    assert described["ldstyle"]["thresholds"] == [0.5, 2.0, 0.6]


def test_the_card_is_valid_and_names_labels_scores_and_licence(hub):
    card = ModelCard.load(hub[1] / "README.md")
    assert card.data.license == "mit"
    assert card.data.library_name == "timm"
    assert "| tree | untrained" in card.text
    assert "| water | 0.600 |" in card.text
    assert "| drone (never seen in training) | 45.7 |" in card.text
    assert "to be filled in" in card.text  # what only the owner knows


def test_push_calls_the_client_of_the_hub(hub, tmp_path, monkeypatch, capsys):
    calls = []

    def upload(_self, **options):
        options["files"] = {path.name for path in options["folder_path"].iterdir()}  # there when the client reads them
        calls.append(options)
        return "commit"

    monkeypatch.setattr(HfApi, "create_repo", lambda _self, repo, **options: calls.append((repo, options)))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    run = hub[1].parent / "run"
    assert main(["export", str(run), "--format", "hub", "--push", "me/model", "--out", str(tmp_path / "a")]) == 0
    assert calls[0] == ("me/model", {"private": True, "exist_ok": True})
    assert (calls[1]["repo_id"], calls[1]["folder_path"]) == ("me/model", tmp_path / "a")
    assert calls[1]["files"] == {"README.md", "config.json", "model.safetensors"}
    assert "uploaded: commit" in capsys.readouterr().out


def test_push_needs_the_hub_format(hub, tmp_path, capsys):
    run = hub[1].parent / "run"
    assert main(["export", str(run), "--format", "onnx", "--push", "me/model", "--out", str(tmp_path / "a")]) == 2
    assert "--push uploads a folder of --format hub; got --format onnx" in capsys.readouterr().err
