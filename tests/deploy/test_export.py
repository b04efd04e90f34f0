from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from tests.deploy.models import SIZE, VOCABULARY, direct_probabilities, float32_error, pixels, write_images, write_model

from ldstyle.deploy import export
from ldstyle.deploy.export import DESCRIPTION, NEVER, check_equal, describe, export_model
from ldstyle.runs.model_file import load_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_model(folder, gsd=0.3)
    return load_model(folder)


@pytest.fixture
def images():
    return torch.randn(5, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def logits_of(model, images):
    with torch.no_grad():
        return model.backbone(images).numpy()


def logit_error(model):
    """Bound the difference of two forward passes in float32; logits are below 8."""
    return 2 * 8 * float32_error(model.backbone)


def check_description(entries):
    assert entries["vocabulary"] == list(VOCABULARY)
    assert entries["thresholds"] == [0.5, 0.4, 0.6]
    assert (entries["mean"], entries["std"]) == ([0.375, 0.5, 0.625], [0.25, 0.5, 0.5])
    assert (entries["size"], entries["gsd"], entries["sources"]) == (SIZE, 0.3, ["ucm", "dfc15"])


def test_onnx_runs_in_onnx_runtime_at_any_batch_size_and_describes_itself(model, images, tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    out = export_model(model, "onnx", tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    for count in (1, 5):
        (found,) = session.run(None, {"images": images[:count].numpy()})
        np.testing.assert_allclose(found, logits_of(model, images[:count]), rtol=0, atol=logit_error(model))
    check_description({key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()})
    stored = onnx.load(str(out))
    onnx.checker.check_model(stored)
    assert stored.opset_import[0].version == export.OPSET
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.load.*:FutureWarning")
def test_torchscript_runs_at_any_batch_size_and_describes_itself(model, images, tmp_path):
    out = export_model(model, "torchscript", tmp_path / "model.pt")
    extra = {DESCRIPTION: ""}
    loaded = torch.jit.load(out, _extra_files=extra)
    for count in (1, 5):
        expected = logits_of(model, images[:count])
        np.testing.assert_allclose(loaded(images[:count]), expected, rtol=0, atol=logit_error(model))
    check_description(json.loads(extra[DESCRIPTION]))


def test_safetensors_hold_the_plain_weights_and_describe_themselves(model, tmp_path):
    out = export_model(model, "safetensors", tmp_path / "new" / "model.safetensors")
    with safetensors.safe_open(out, "pt") as file:
        state = model.backbone.state_dict()
        assert set(file.keys()) == set(state)
        assert all(torch.equal(file.get_tensor(key), value) for key, value in state.items())
        entries = {key: json.loads(value) for key, value in file.metadata().items() if key != "format"}
    check_description(entries)
    assert entries["architecture"] == "test_resnet"


ALONE = """
import importlib.util, json, sys
assert importlib.util.find_spec("ldstyle") is None
import timm, torch
from PIL import Image
folder, *paths = sys.argv[1:]
network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_data_config(network.pretrained_cfg), is_training=False)
with torch.no_grad():
    logits = network(torch.stack([transform(Image.open(path).convert("RGB")) for path in paths]))
print(json.dumps({"scores": logits.sigmoid().tolist(), "labels": network.pretrained_cfg["label_names"]}))
"""


def test_the_timm_folder_predicts_alike_where_this_project_is_not_installed(model, tmp_path):
    out = export_model(model, "timm", tmp_path / "folder")
    paths = write_images(tmp_path / "images", 3)
    # Without the module site no .pth file is read, so a development install is not found either.
    packages = Path(importlib.util.find_spec("timm").origin).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-S", "-c", ALONE, out, *paths]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = direct_probabilities(model.backbone, [pixels(number) for number in range(3)])
    np.testing.assert_allclose(found["scores"], expected, rtol=0, atol=float32_error(model.backbone))
    assert found["labels"] == list(VOCABULARY)
    check_description(json.loads((out / "config.json").read_text())["ldstyle"])


@pytest.mark.parametrize(("network", "stride"), [("test_vit", None), ("resnet10t", 16)])
def test_timm_folders_keep_strides_and_position_embeddings(tmp_path, images, network, stride):
    write_model(tmp_path / "run", network=network, output_stride=stride)
    model = load_model(tmp_path / "run")
    timm = pytest.importorskip("timm")
    out = export_model(model, "timm", tmp_path / "folder")
    loaded = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(loaded(images), torch.from_numpy(logits_of(model, images)))  # one network, one batch


def test_a_timm_folder_is_not_overwritten(model, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"must not exist; '.*folder' does\. Remove it, or set --out"):
        export_model(model, "timm", tmp_path / "folder")


@pytest.mark.parametrize("target", ["torchscript", "timm"])
def test_what_does_not_compute_the_same_never_appears(model, tmp_path, monkeypatch, target):
    drift = itertools.count()
    monkeypatch.setattr(export, "logits_of", lambda logits: logits + next(drift))
    with pytest.raises(ValueError, match=r"must give the logits of the model.*Nothing was written"):
        export_model(model, target, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_differences_and_other_shapes_are_told(model):
    with pytest.raises(
        ValueError, match=r"ONNX must give the logits of the model to 0.0001; for 1 images they differ by 0.01"
    ):
        check_equal(model, lambda images: model.backbone(images) + 0.01, what="ONNX")
    with pytest.raises(ValueError, match="for 1 images their shapes differ"):
        check_equal(model, lambda images: model.backbone(images)[:, :2], what="ONNX")
    assert check_equal(model, lambda images: model.backbone(images) + 1e-5, what="x") == pytest.approx(1e-5, rel=0.1)


def test_without_the_libraries_of_onnx_it_says_how_to_get_them(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"needs the extra `onnx`.*pip install ldstyle\[onnx\]"):
        export_model(model, "onnx", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_label_without_training_data_is_named_and_never_reached(tmp_path):
    write_model(tmp_path, untrained_labels=["tree"])
    entries = describe(load_model(tmp_path))
    assert json.loads(entries["untrained_labels"]) == ["tree"]
    assert json.loads(entries["thresholds"]) == [0.5, NEVER, 0.6]


@pytest.mark.parametrize("target", ["safetensors", "timm"])
def test_exported_files_have_the_mode_of_any_new_file(tmp_path, target):
    write_model(tmp_path / "run")
    (tmp_path / "plain").write_text("")
    out = export_model(load_model(tmp_path / "run"), target, tmp_path / "out")
    files = [out] if out.is_file() else sorted(out.iterdir())
    modes = {path.name: path.stat().st_mode for path in files}
    assert set(modes.values()) == {(tmp_path / "plain").stat().st_mode}, modes
