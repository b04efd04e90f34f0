from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from tests.deploy.models import (
    ROUNDED,
    SIZE,
    VOCABULARY,
    direct_probabilities,
    float32_error,
    pixels,
    write_images,
    write_model,
)

import ldstyle
from ldstyle.deploy.classifier import Classifier, load


@pytest.fixture
def model(tmp_path):
    backbone = write_model(tmp_path / "run")
    return load(tmp_path / "run"), backbone


def test_the_package_offers_load(model, tmp_path):
    assert isinstance(ldstyle.load(tmp_path / "run"), Classifier)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = ldstyle.lod


def test_files_arrays_pillow_images_and_tensors_give_the_direct_prediction(model, tmp_path):
    classifier, backbone = model[0].double(), model[1]
    paths = write_images(tmp_path / "images", 5)
    arrays = [pixels(number) for number in range(5)]
    expected = direct_probabilities(backbone, arrays)
    tensor = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    for given in (
        paths,
        [str(path) for path in paths],
        arrays,
        [Image.fromarray(array) for array in arrays],
        tensor,
        tensor.double() / 255,
        [tensor[0], tensor[1].double() / 255, arrays[2], paths[3], tensor[4]],
    ):
        found = classifier.predict(given, batch_size=2)
        np.testing.assert_allclose(found.probabilities, expected, rtol=0, atol=ROUNDED)
        np.testing.assert_array_equal(found.present, expected >= [0.5, 0.4, 0.6])
    assert found.labels == [
        tuple(name for name, there in zip(VOCABULARY, row, strict=True) if there) for row in found.present
    ]
    assert 0 < found.present.double().mean() < 1


def test_in_float32_batches_of_any_composition_agree_within_its_rounding(model):
    classifier, backbone = model
    arrays = [pixels(number) for number in range(5)]
    expected, error = direct_probabilities(backbone, arrays), float32_error(backbone)
    assert classifier.device == torch.device("cpu")
    for batch_size in (1, 2, 5):
        found = classifier.predict(arrays, batch_size=batch_size).probabilities
        np.testing.assert_allclose(found, expected, rtol=0, atol=error)
    images = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    whole = classifier.judge(classifier(images).detach()).probabilities
    found = classifier.predict(images, batch_size=5).probabilities
    # The network as called may hold its maps in another memory order, which some CPUs sum in another order.
    np.testing.assert_allclose(found, whole, rtol=0, atol=error)
    assert torch.equal(classifier.predict(images, batch_size=5).probabilities, found)  # the same batch, the same way


def test_one_image_is_a_batch_of_one(model, tmp_path):
    classifier, _ = model
    (path,) = write_images(tmp_path / "images", 1)
    whole = classifier.predict([path]).probabilities
    for single in (path, str(path), pixels(0), Image.open(path), torch.from_numpy(pixels(0)).permute(2, 0, 1)):
        assert torch.equal(classifier.predict(single).probabilities, whole)


def test_no_image_gives_no_row(model):
    assert model[0].predict([]).probabilities.shape == (0, len(VOCABULARY))


def test_other_sizes_are_resized_as_in_training(model, tmp_path):
    classifier, backbone = model[0].double(), model[1]
    paths = write_images(tmp_path / "images", 3, height=50, width=70)
    arrays = [pixels(number, height=50, width=70) for number in range(3)]
    small = [np.asarray(Image.fromarray(array).resize((SIZE, SIZE), Image.Resampling.BILINEAR)) for array in arrays]
    expected = direct_probabilities(backbone, small)
    np.testing.assert_allclose(classifier.predict(paths).probabilities, expected, rtol=0, atol=ROUNDED)
    np.testing.assert_allclose(classifier.predict(arrays).probabilities, expected, rtol=0, atol=ROUNDED)
    tensors = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    np.testing.assert_allclose(classifier.predict(tensors).probabilities, expected, atol=0.02)


def test_predicting_changes_nothing_in_the_model(model):
    classifier, _ = model
    classifier.train()
    before = {key: value.clone() for key, value in classifier.state_dict().items()}
    random_state = torch.random.get_rng_state()
    first = classifier.predict(pixels(0)).probabilities
    assert classifier.training
    assert classifier.backbone.training
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert all(torch.equal(value, before[key]) for key, value in classifier.state_dict().items())
    assert torch.equal(classifier.eval().predict(pixels(0)).probabilities, first)


def test_the_deployed_network_is_the_plain_backbone(model):
    classifier, backbone = model
    assert type(classifier.backbone) is type(backbone)
    assert classifier.backbone.state_dict().keys() == backbone.state_dict().keys()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in classifier.backbone.modules())


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (torch.zeros(1, 8, 8), ValueError, r"\(3, H, W\) or \(B, 3, H, W\); got \(1, 8, 8\)"),
        (torch.full((3, 8, 8), 128.0), ValueError, r"floating point in \[0, 1\]; got torch.float32 in \[128, 128\]"),
        (torch.full((3, 8, 8), float("nan")), ValueError, r"floating point in \[0, 1\]"),
        (np.zeros((3, 8, 8), dtype=np.uint8), ValueError, r"\(H, W, 3\) uint8; got \(3, 8, 8\)"),
        (np.zeros((8, 8, 3)), ValueError, "float64"),
        (Image.new("L", (8, 8)), ValueError, r"must be RGB; got mode 'L'. Use image.convert\('RGB'\)"),
        (7, TypeError, "got int"),
    ],
)
def test_what_is_no_image_is_refused(model, image, error, message):
    with pytest.raises(error, match=message):
        model[0].predict([image])


def test_an_empty_batch_size_is_refused(model):
    with pytest.raises(ValueError, match="`batch_size` must be at least 1; got 0"):
        model[0].predict(pixels(0), batch_size=0)


def test_a_label_without_training_data_is_unknown_and_never_present(tmp_path):
    write_model(tmp_path, untrained_labels=["tree"], thresholds=[0.0, 0.0, 0.0])
    found = load(tmp_path).predict([pixels(0), pixels(1)])
    assert found.unknown == ("tree",)
    assert found.probabilities.isnan().tolist() == [[False, True, False]] * 2
    assert found.labels == [("building", "water")] * 2
