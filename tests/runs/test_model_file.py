"""The exported model: what comes back, what is refused, and that nothing runs."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from ldstyle.runs.backbone import Preprocessing, build_backbone
from ldstyle.runs.config import BackboneConfig
from ldstyle.runs.model_file import description_digest, load_model, save_model

VOCABULARY = ("building", "car", "Bäume")
SETTINGS = {
    "name": "ld-efdmix",
    "vocabulary": VOCABULARY,
    "thresholds": torch.tensor([0.1, 1 / 3, 0.7], dtype=torch.float64),
    "preprocessing": Preprocessing((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    "size": 64,
    "sources": ("ucm", "aid"),
}


def save(folder: Path, *, config: BackboneConfig | None = None, **settings):
    config = config or BackboneConfig("resnet10t", "none")
    backbone = build_backbone(config, num_labels=3, image_size=64, seed=5).train()
    save_model(folder, backbone, **{**SETTINGS, "backbone_config": config, **settings})
    return backbone


@pytest.fixture
def saved(tmp_path) -> Path:
    save(tmp_path)
    return tmp_path


def edit(folder: Path, change, *, seal: bool = True) -> None:
    """Change the description; sealed anew, only what it says is left to refuse it."""
    path = folder / "model.json"
    description = json.loads(path.read_text())
    change(description)
    if seal:
        description["description_sha256"] = description_digest(description)
    path.write_text(json.dumps(description))


def rehash(folder: Path) -> None:
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    edit(folder, lambda description: description.update(sha256=digest))


@pytest.mark.parametrize(
    "config",
    [
        BackboneConfig("resnet10t", "none"),
        BackboneConfig("resnet10t", "none", output_stride=8),
        BackboneConfig("vit_tiny_patch16_224", "none"),
    ],
    ids=["plain", "stride", "position embeddings"],
)
def test_a_model_comes_back_as_it_was_saved(tmp_path, config):
    extra = {"layer1/mean": torch.randn(2, 5), "layer1/std": torch.rand(2, 5)}
    backbone = save(tmp_path, config=config, gsd=0.3, extra=extra)
    assert backbone.training
    loaded = load_model(tmp_path)
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(loaded.backbone(images), backbone.eval()(images))
    assert not loaded.backbone.training
    assert (loaded.vocabulary, loaded.sources, loaded.size, loaded.gsd) == (VOCABULARY, ("ucm", "aid"), 64, 0.3)
    assert torch.equal(loaded.thresholds, SETTINGS["thresholds"])
    assert loaded.preprocessing == SETTINGS["preprocessing"]
    assert loaded.info["name"] == "ld-efdmix"
    assert loaded.extra.keys() == extra.keys()
    assert all(torch.equal(loaded.extra[key], extra[key]) for key in extra)


def test_the_weights_are_exactly_the_plain_backbones(saved):
    stored = load_file(saved / "model.safetensors")
    plain = timm.create_model("resnet10t", num_classes=3)
    assert stored.keys() == plain.state_dict().keys()
    plain.load_state_dict(stored)


@pytest.mark.parametrize("name", ["", "model.json", "model.safetensors"])
def test_the_folder_and_either_file_name_the_model(saved, name):
    assert load_model(str(saved / name)).vocabulary == VOCABULARY


def test_saving_and_loading_leave_the_global_random_stream_alone(tmp_path):
    before = torch.get_rng_state()
    save(tmp_path)
    load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_saving_again_replaces_and_leaves_nothing_behind(saved):
    save(saved, name="second")
    assert load_model(saved).info["name"] == "second"
    assert sorted(path.name for path in saved.iterdir()) == ["model.json", "model.safetensors"]


def test_a_full_disk_leaves_the_good_model_in_place(saved, monkeypatch):
    before = load_model(saved).info

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"the disk is full. What was saved before is untouched"):
        save(saved, name="second")
    assert load_model(saved).info == before
    assert sorted(path.name for path in saved.iterdir()) == ["model.json", "model.safetensors"]


@pytest.mark.parametrize("missing", ["model.json", "model.safetensors"])
def test_a_missing_file_is_named(saved, missing):
    (saved / missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"{missing}' is missing. Give the folder of a finished run"):
        load_model(saved)


def test_a_folder_that_is_not_there_is_named_as_it_was_given(saved):
    with pytest.raises(FileNotFoundError, match=r"There is no model '.*/typo'\. Give the folder of a finished run"):
        load_model(saved / "typo")  # although a model lies in the folder above


@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_changed_weights_are_refused(saved, damage):
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content if damage == "flipped" else content[:-1000])
    with pytest.raises(ValueError, match="its SHA-256 differs, so one of them is damaged or was changed"):
        load_model(saved)


def test_truncated_weights_with_a_matching_hash_are_still_refused(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    rehash(saved)
    with pytest.raises(ValueError, match=r"model.safetensors' must be a safetensors file; it cannot be read"):
        load_model(saved)


class Bomb:
    def __reduce__(self):
        return Path.write_text, (Path("exploded"), "code ran")


def test_a_pickle_in_place_of_the_weights_does_not_run(saved, monkeypatch):
    monkeypatch.chdir(saved)
    (saved / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    rehash(saved)
    with pytest.raises(ValueError, match="must be a safetensors file"):
        load_model(saved)
    assert not (saved / "exploded").exists()


def test_weights_of_another_network_are_refused(saved):
    state = load_file(saved / "model.safetensors")
    save_file({**state, "fc.weight": torch.zeros(4, 512)}, saved / "model.safetensors")
    rehash(saved)
    with pytest.raises(ValueError, match=r"must hold the weights of timm's 'resnet10t'; 'fc.weight' differ"):
        load_model(saved)


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 100_000], ids=["empty", "torn", "binary", "deep"])
def test_text_that_is_not_json_is_refused(saved, text):
    (saved / "model.json").write_text(text)
    with pytest.raises(ValueError, match=r"model.json' must be the JSON text of a model; it cannot be read"):
        load_model(saved)


def test_json_that_is_no_object_is_refused(saved):
    (saved / "model.json").write_text("[1]")
    with pytest.raises(ValueError, match="must hold a JSON object; got list"):
        load_model(saved)


def test_a_newer_schema_is_refused(saved):
    edit(saved, lambda description: description.update(schema=4))
    with pytest.raises(
        ValueError, match=r"must have schema 1 or 2 or 3; got 4. Use the version of ldstyle that wrote it"
    ):
        load_model(saved)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", 3),
        ("vocabulary", []),
        ("vocabulary", ["tree", "tree", "car"]),
        ("vocabulary", 7),
        ("thresholds", [0.5]),
        ("thresholds", [0.5, True, 0.5]),
        ("thresholds", [0.5, float("inf"), 0.5]),
        ("backbone", "resnet10t"),
        ("backbone", {"name": "resnet10t", "output_stride": -8}),
        ("preprocessing", {"mean": [0, 0, 0]}),
        ("size", 0),
        ("size", 64.5),
        ("size", 1_000_000),
        ("gsd", -1),
        ("source_gsd", {"ucm": [0.3]}),
        ("source_gsd", {"ucm": [0.5, 0.3]}),
        ("source_gsd", {"drone": [0.3, 0.3]}),
        ("source_gsd", [0.3]),
        ("sources", None),
        ("extra", []),
    ],
)
def test_a_field_that_cannot_be_used_is_named(saved, key, value):
    edit(saved, lambda description: description.update({key: value}))
    with pytest.raises(ValueError, match=f"must describe a model; '{key}'"):
        load_model(saved)


@pytest.mark.parametrize("values", ["text", [[1], [2, 3]], {"a": 1}, [None]])
def test_extra_values_that_are_no_tensors_are_refused(saved, values):
    edit(saved, lambda description: description.update(extra={"mean": values}))
    with pytest.raises(ValueError, match="must hold lists of numbers as 'extra'"):
        load_model(saved)


def test_a_network_that_timm_does_not_have_is_refused(saved):
    edit(saved, lambda description: description["backbone"].update(name="resnet11t"))
    with pytest.raises(ValueError, match=r"must be a timm network; got 'resnet11t'. Did you mean"):
        load_model(saved)


@pytest.mark.parametrize("name", ["hf-hub:someone/else", "local-dir:/tmp"])
def test_a_name_that_leads_elsewhere_is_refused(saved, name):
    edit(saved, lambda description: description["backbone"].update(name=name))
    with pytest.raises(ValueError, match=f"must name a network of timm itself; got '{name}'"):
        load_model(saved)


def test_settings_beyond_the_known_ones_never_reach_timm(saved, monkeypatch):
    """``checkpoint_path`` would make timm load a file of the description's choice."""
    edit(saved, lambda description: description["backbone"].update(checkpoint_path="/etc/passwd", pretrained=True))
    seen = {}
    create = timm.create_model

    def watched(name, **settings):
        seen.update(settings)
        return create(name, **settings)

    monkeypatch.setattr(timm, "create_model", watched)
    load_model(saved)
    assert seen == {"pretrained": False, "num_classes": 3}


def test_a_network_that_cannot_be_rebuilt_is_not_saved(tmp_path):
    backbone = build_backbone(BackboneConfig("resnet10t", "none"), num_labels=3)
    backbone.neck = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"the backbone must hold the weights of timm's 'resnet10t'; 'neck.bias'"):
        save_model(tmp_path, backbone, **SETTINGS, backbone_config=BackboneConfig("resnet10t", "none"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [torch.tensor([1]), torch.tensor([float("nan")])], ids=["integers", "nan"])
def test_extra_tensors_that_json_cannot_keep_are_not_saved(tmp_path, value):
    with pytest.raises(ValueError, match=r"`extra` must hold finite floating-point tensors .* 'mean' is"):
        save(tmp_path, extra={"mean": value})


def test_thresholds_must_match_the_vocabulary(tmp_path):
    with pytest.raises(ValueError, match="the description must describe a model; 'thresholds' cannot be used"):
        save(tmp_path, thresholds=[0.5])


@pytest.mark.parametrize(
    "change",
    [
        lambda description: description["vocabulary"].reverse(),
        lambda description: description["thresholds"].__setitem__(0, 0.9),
        lambda description: description["preprocessing"]["mean"].reverse(),
        lambda description: description.update(note="by hand"),
        lambda description: description.pop("description_sha256"),
    ],
    ids=["labels reversed", "threshold", "colours", "a new field", "no checksum"],
)
def test_a_changed_description_is_refused(saved, change):
    edit(saved, change, seal=False)
    with pytest.raises(ValueError, match=r"model\.json' .*description_sha256"):
        load_model(saved)


def test_a_description_may_be_laid_out_anew(saved):
    edit(saved, lambda description: description.update(sorted(description.items())), seal=False)
    assert load_model(saved).vocabulary == VOCABULARY


def test_a_description_from_before_checksums_still_loads(saved):
    def age(description):
        description["schema"] = 1
        for key in ("description_sha256", "untrained_labels"):
            del description[key]

    edit(saved, age, seal=False)
    loaded = load_model(saved)
    assert (loaded.vocabulary, loaded.untrained_labels) == (VOCABULARY, ())


def test_labels_without_training_data_are_kept(tmp_path):
    save(tmp_path, untrained_labels=["car"])
    assert load_model(tmp_path).untrained_labels == ("car",)


def test_untrained_labels_must_be_of_the_vocabulary(tmp_path):
    with pytest.raises(ValueError, match=r"untrained_labels.*ship"):
        save(tmp_path, untrained_labels=["ship"])
