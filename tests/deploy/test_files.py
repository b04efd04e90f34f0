from __future__ import annotations

import numpy as np
import pytest
from tests.deploy.models import ROUNDED, SIZE, direct_probabilities, pixels, write_images, write_model

from ldstyle.deploy.classifier import load
from ldstyle.deploy.files import predict_files
from ldstyle.evaluation.style_statistics import style_points


@pytest.fixture
def setting(tmp_path):
    backbone = write_model(tmp_path / "run")
    return load(tmp_path / "run").double(), backbone, write_images(tmp_path / "images", 7)


def expected(backbone, numbers):
    return direct_probabilities(backbone, [pixels(number) for number in numbers])


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 1), (3, 2), (7, 3), (50, 1)])
def test_files_are_predicted_in_order(setting, batch_size, workers):
    classifier, backbone, paths = setting
    told = []
    found = predict_files(
        classifier, paths, batch_size=batch_size, workers=workers, progress=lambda *work: told.append(work)
    )
    assert found.paths == tuple(paths)
    assert found.problems == ()
    assert found.style is None
    np.testing.assert_allclose(found.prediction.probabilities, expected(backbone, range(7)), rtol=0, atol=ROUNDED)
    assert told[-1] == (7, 7, "images")
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_unreadable_images_are_all_named_and_nothing_is_returned(setting):
    classifier, _, paths = setting
    paths[1].write_bytes(b"not an image")
    paths[5].unlink()
    with pytest.raises(ValueError, match=r"(?s)2 images cannot be read:.*01\.png.*05\.png.*--skip-bad"):
        predict_files(classifier, paths, batch_size=2)


def test_unreadable_images_can_be_left_out(setting):
    classifier, backbone, paths = setting
    paths[0].write_bytes(b"")
    paths[6].write_bytes(paths[6].read_bytes()[:60])
    found = predict_files(classifier, paths, batch_size=2, skip_bad=True)
    assert found.paths == tuple(paths[1:6])
    assert [name in problem for name, problem in zip(("00.png", "06.png"), found.problems, strict=True)] == [True] * 2
    np.testing.assert_allclose(found.prediction.probabilities, expected(backbone, range(1, 6)), rtol=0, atol=ROUNDED)


def test_without_any_readable_image_there_is_nothing_to_return(setting):
    classifier, _, paths = setting
    for path in paths[:2]:
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"(?s)At least one image must be readable; none is.*00\.png"):
        predict_files(classifier, paths[:2], skip_bad=True)


def test_style_is_read_in_the_same_pass(setting):
    classifier, backbone, paths = setting
    points = style_points(classifier.backbone, image_size=SIZE)
    found = predict_files(classifier, paths, batch_size=3, style_points=points)
    assert found.style.shape == (7, 2 * sum(point.channels for point in points))
    np.testing.assert_allclose(found.prediction.probabilities, expected(backbone, range(7)), rtol=0, atol=ROUNDED)
