from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from tests.deploy.models import ROUNDED, SIZE, VOCABULARY, direct_probabilities, pixels, write_images, write_model
from tests.tolerance import bound
from torch.nn.functional import interpolate

from ldstyle.deploy.classifier import load
from ldstyle.deploy.explain import Explainer, blend, explanation_sheet, heatmaps


@pytest.fixture
def setting(tmp_path):
    backbone = write_model(tmp_path / "run")
    return load(tmp_path / "run"), backbone


def as_tensor(*numbers):
    return torch.from_numpy(np.stack([pixels(number) for number in numbers])).permute(0, 3, 1, 2)


def test_maps_are_the_positive_evidence_of_the_classifier(setting):
    classifier, backbone = setting[0].double(), setting[1].double()
    found = Explainer(classifier)(as_tensor(0, 1, 2))
    with torch.no_grad():
        feats = backbone.forward_features(classifier.normalise(as_tensor(0, 1, 2)))
    layer = backbone.get_classifier()
    oracle = torch.zeros(3, len(VOCABULARY), *feats.shape[2:], dtype=torch.float64)
    for label in range(len(VOCABULARY)):
        for channel in range(feats.shape[1]):
            oracle[:, label] += layer.weight[label, channel].item() * feats[:, channel]
    torch.testing.assert_close(found.maps, oracle.relu())
    expected = direct_probabilities(backbone, [pixels(number) for number in range(3)])
    np.testing.assert_allclose(found.prediction.probabilities, expected, rtol=0, atol=ROUNDED)


def test_any_head_can_be_explained(tmp_path):
    write_model(tmp_path, network="test_vit")
    classifier = load(tmp_path).double()
    found = Explainer(classifier)(as_tensor(0, 1))
    assert found.maps.shape[:2] == (2, len(VOCABULARY))
    assert found.maps.amax() > 0
    whole = classifier.predict(as_tensor(0, 1)).probabilities
    torch.testing.assert_close(found.prediction.probabilities, whole, rtol=0, atol=2 * ROUNDED)


def test_explaining_changes_nothing(setting):
    classifier, _ = setting
    before = {key: value.clone() for key, value in classifier.state_dict().items()}
    explain = Explainer(classifier)
    explain(as_tensor(0))
    assert all(torch.equal(value, before[key]) for key, value in classifier.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in classifier.parameters())
    assert not any(module._forward_hooks for module in classifier.modules())


def test_heat_shares_one_scale_over_labels():
    maps = torch.zeros(3, 5, 5)
    maps[0, 1, 2], maps[1, 3, 3] = 4.0, 1.0
    heat = heatmaps(maps, size=(40, 40))
    assert heat.amax().item() == pytest.approx(1)
    row, column = divmod(heat[0].argmax().item(), 40)
    assert (row // 8, column // 8) == (1, 2)
    assert heat[1].amax().item() == pytest.approx(0.25, rel=bound(10, dtype=torch.float32))
    assert heat[2].count_nonzero() == 0
    assert heat.min() >= 0
    assert heatmaps(torch.zeros(2, 2, 2), size=(8, 8)).count_nonzero() == 0


def test_without_heat_the_image_stays_in_grey():
    image = pixels(3)
    cold = blend(image, np.zeros((SIZE, SIZE), dtype=np.float32))
    np.testing.assert_array_equal(cold, np.round(image.mean(axis=2, keepdims=True)).astype(np.uint8).repeat(3, axis=2))
    hot = blend(image, np.ones((SIZE, SIZE), dtype=np.float32)).astype(int)
    assert np.abs(hot - cold).max() > 60


def test_a_sheet_names_all_labels_or_those_asked_for_and_keeps_the_shape_of_the_image(setting, tmp_path):
    classifier, _ = setting
    (path,) = write_images(tmp_path / "images", 1, height=20, width=60)
    image = torch.from_numpy(np.array(Image.open(path).resize((SIZE, SIZE)))).permute(2, 0, 1)[None]
    explanation = Explainer(classifier)(image)
    sheet = explanation_sheet(path, explanation, 0, size=64)
    titles = [axes.get_title() for axes in sheet.axes]
    scores = explanation.prediction.probabilities[0]
    assert titles == ["00.png", *(f"{name} {score:.0%}" for name, score in zip(VOCABULARY, scores, strict=True))]
    bold = [axes.title.get_weight() == "bold" for axes in sheet.axes[1:]]
    assert bold == explanation.prediction.present[0].tolist()
    left, right, bottom, top = sheet.axes[1].images[0].get_extent()
    assert (top - bottom) / (right - left) == pytest.approx(20 / 60)
    chosen = explanation_sheet(path, explanation, 0, labels=["water"], size=64)
    assert [axes.get_title().split()[0] for axes in chosen.axes] == ["00.png", "water"]


def test_an_8_bit_tiff_is_explained_without_rasterio(setting, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rasterio", None)
    Image.fromarray(pixels(0, height=20, width=60)).save(tmp_path / "a.tif")
    sheet = explanation_sheet(tmp_path / "a.tif", Explainer(setting[0])(as_tensor(0)), 0, size=64)
    left, right, bottom, top = sheet.axes[1].images[0].get_extent()
    assert (top - bottom) / (right - left) == pytest.approx(20 / 60)


def test_the_heat_in_a_sheet_lies_where_the_map_is(setting, tmp_path):
    classifier, _ = setting
    (path,) = write_images(tmp_path / "images", 1)
    explanation = Explainer(classifier)(as_tensor(0))
    explanation.maps.zero_()
    explanation.maps[0, 1, 0, -1] = 1.0
    sheet = explanation_sheet(path, explanation, 0, size=64)
    shown = np.asarray(sheet.axes[2].images[0].get_array()).astype(int)
    grey = np.asarray(sheet.axes[1].images[0].get_array()).astype(int)
    changed = torch.from_numpy(np.abs(shown - grey).sum(axis=2)).double()
    coarse = interpolate(changed[None, None], size=explanation.maps.shape[2:], mode="area")[0, 0]
    assert coarse.argmax().item() == explanation.maps.shape[3] - 1


def test_a_label_without_training_data_has_no_evidence_and_is_called_unknown(tmp_path):
    write_model(tmp_path, untrained_labels=["tree"])
    (path,) = write_images(tmp_path / "images", 1)
    explanation = Explainer(load(tmp_path))(torch.from_numpy(pixels(0)).permute(2, 0, 1)[None])
    assert not explanation.maps[:, 1].any()
    assert explanation.maps[:, [0, 2]].any()
    titles = [axes.get_title() for axes in explanation_sheet(path, explanation, 0, size=32).axes]
    assert titles[2] == "tree unknown"


def test_names_are_not_read_as_mathematics(tmp_path):
    write_model(tmp_path, vocabulary=[r"$\frac$", "a$b$", "water"])
    (path,) = write_images(tmp_path / "images", 1)
    path = path.rename(path.with_name(r"$\frac$.png"))
    explanation = Explainer(load(tmp_path))(torch.from_numpy(pixels(0)).permute(2, 0, 1)[None])
    sheet = explanation_sheet(path, explanation, 0, size=32)
    sheet.savefig(io.BytesIO(), format="png")
    assert sheet.axes[1].get_title().startswith(r"$\frac$")
