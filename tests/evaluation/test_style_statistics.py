from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from tests.deploy.models import SIZE, VOCABULARY, pixels, write_images, write_model
from tests.tolerance import bound

from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.pool import Batch, Pool
from ldstyle.deploy.classifier import load
from ldstyle.evaluation.predict import predict
from ldstyle.evaluation.style_statistics import (
    labelled_batches,
    neighbour_accuracy,
    source_style_statistics,
    style_distances,
    style_points,
)


@pytest.fixture
def backbone(tmp_path):
    write_model(tmp_path)
    return load(tmp_path).backbone


def batches(count=9):
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    labels = torch.randint(-1, 2, (count, 3), generator=generator)
    labels[:, 2] = -1
    domain = torch.arange(count) % 2
    images[domain == 1] *= 2
    return images, labels, domain


def test_style_is_the_mean_and_deviation_of_each_channel_of_the_stages(backbone):
    images, _, _ = batches()
    points = style_points(backbone, image_size=SIZE)
    assert [point.stage for point in points] == [1, 2]
    maps = []

    def keep(_module, _args, output):
        maps.append(output.detach().double())

    hooks = [backbone.get_submodule(point.name).register_forward_hook(keep) for point in points]
    expected = backbone(images)
    for hook in hooks:
        hook.remove()
    oracle = np.concatenate(
        [
            part.reshape(len(images), -1)
            for feats in maps
            for part in (feats.mean(dim=(2, 3)), feats.std(dim=(2, 3), correction=0))
        ],
        axis=1,
    )
    outputs = predict(backbone, [images], style_points=points)
    # Mean and variance are sums over the locations; the root enlarges an error by the inverse of the deviation.
    locations, largest = maps[0][0, 0].numel(), max(feats.abs().max().item() for feats in maps)
    scale = largest * max(1.0, largest / oracle[oracle > 0].min())
    np.testing.assert_allclose(
        outputs.style, oracle, rtol=0, atol=bound(2 * locations, scale=scale, dtype=torch.float32)
    )
    assert torch.equal(outputs.logits, expected.detach())
    assert not any(module._forward_hooks for module in backbone.modules())


def test_without_points_there_are_logits_alone(backbone):
    images, _, _ = batches()
    outputs = predict(backbone, [images])
    assert torch.equal(outputs.logits, backbone(images).detach())
    assert outputs.style.shape == (len(images), 0)


def test_sources_are_summarised_as_by_loops(backbone):
    images, labels, domain = batches()
    points = style_points(backbone, image_size=SIZE)
    computed = predict(backbone, images.split(4), style_points=points)  # in the same batches
    style = computed.style.double().numpy()
    index = torch.arange(len(images))
    parts = [
        Batch(*part) for part in zip(*(values.split(4) for values in (images, labels, domain, index)), strict=True)
    ]
    found = source_style_statistics(backbone, parts, image_size=SIZE)

    centers = np.stack([style[domain.numpy() == d].mean(axis=0) for d in (0, 1)])
    spread = np.sqrt(np.mean([style[domain.numpy() == d].var(axis=0) for d in (0, 1)], axis=0))
    spread = np.maximum(spread, 0.05 * torch.from_numpy(spread).median().item())
    distances = []
    for i, row in enumerate(style):
        others = [np.delete(style, i, axis=0)[np.delete(domain.numpy(), i) == d].mean(axis=0) for d in (0, 1)]
        distances.append(min(np.sqrt(np.mean(((row - center) / spread) ** 2)) for center in others))
    within = (style - centers[domain.numpy()]) / spread
    axes = np.linalg.eigvalsh(within.T @ within)
    rounded = bound(2, dtype=torch.float32)  # computed in double precision, stored in single precision
    np.testing.assert_allclose(found["style/concentration"], [axes[-1] / axes.sum()], rtol=rounded)
    np.testing.assert_allclose(found["style/center"], centers, rtol=rounded)
    np.testing.assert_allclose(found["style/spread"], spread, rtol=rounded)
    np.testing.assert_allclose(found["style/quantiles"], np.percentile(distances, range(101)), rtol=rounded)
    np.testing.assert_array_equal(found["style/count"], [5, 4])
    for label in (0, 1):
        known = [row[label] for row in labels.tolist() if row[label] >= 0]
        assert found["label/prevalence"][label].item() == pytest.approx(sum(known) / len(known))
    assert found["label/prevalence"][2] == -1
    scores = computed.logits.sigmoid().mean(dim=0)
    tolerance = bound(len(images) + 4, dtype=torch.float32)  # sigmoid and mean of values below 1
    torch.testing.assert_close(found["label/mean_probability"], scores, rtol=0, atol=tolerance)
    assert all(value.isfinite().all() for value in found.values())


def test_the_backbone_keeps_its_modes_and_weights(backbone):
    backbone.train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    source_style_statistics(backbone, [Batch(*batches(), torch.arange(9))], image_size=SIZE)
    assert all(module.training for module in backbone.modules())
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


def test_distances_are_in_units_of_the_spread():
    center, spread = torch.tensor([[0.0, 0.0], [10.0, 0.0]]), torch.tensor([2.0, 0.5])
    found = style_distances(torch.tensor([[2.0, 0.5], [10.0, 1.0]]), center, spread)
    torch.testing.assert_close(found, torch.tensor([[1.0, 17**0.5 / 2**0.5], [(29 / 2) ** 0.5, 2**0.5]]))


def test_a_pool_gives_its_images_unaugmented_with_labels_and_domains(tmp_path):
    tables = []
    for name in ("ucm", "mine"):
        paths = write_images(tmp_path / name, 3)
        labels = np.random.default_rng(0).integers(-1, 2, (3, len(VOCABULARY)), dtype=np.int8)
        keys = tuple(path.name for path in paths)
        tables.append(SceneTable(domain=name, root=tmp_path / name, vocabulary=VOCABULARY, keys=keys, labels=labels))
    pool = Pool(tables, size=SIZE, cache_dir=tmp_path / "cache")
    found = list(labelled_batches(pool, batch_size=4))
    assert [len(batch.images) for batch in found] == [4, 2]
    expected = np.stack([pixels(number) for number in (0, 1, 2, 0, 1, 2)]).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(torch.cat([batch.images for batch in found]), expected)
    np.testing.assert_array_equal(
        torch.cat([batch.labels for batch in found]), np.concatenate([table.labels for table in tables])
    )
    assert torch.cat([batch.domain for batch in found]).tolist() == [0, 0, 0, 1, 1, 1]


def test_no_images_are_refused(backbone):
    with pytest.raises(ValueError, match="`batches` must hold at least one batch of images; got none"):
        source_style_statistics(backbone, [])


def test_neighbours_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 3, 90)
    features = rng.normal(size=(90, 4)) * [1, 50, 0.1, 1] + classes[:, None] * [1.0, 0, 0.2, 0]
    found = neighbour_accuracy(features, classes, np.eye(90, dtype=bool), neighbours=1)
    scaled = (features - features.mean(0)) / features.std(0)
    told = cross_val_predict(KNeighborsClassifier(1), scaled, classes, cv=LeaveOneOut())
    assert found is not None
    assert found.score == pytest.approx(balanced_accuracy_score(classes, told))
    assert found.chance == 1 / 3
    assert found.score > 0.5
    shuffled = neighbour_accuracy(features, rng.permutation(classes), np.eye(90, dtype=bool))
    assert shuffled is not None
    assert abs(shuffled.score - 1 / 3) < 4 * shuffled.error


def test_neighbours_that_are_forbidden_do_not_vote():
    features = np.array([[0.0], [0.1], [5.0], [5.1]])
    classes, images = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
    alone = neighbour_accuracy(features, classes, np.eye(4, dtype=bool), neighbours=1)
    across = neighbour_accuracy(features, classes, images[:, None] == images[None], neighbours=1)
    assert alone is not None
    assert across is not None
    assert (alone.score, across.score) == (1.0, 0.0)
    assert neighbour_accuracy(features, classes, np.ones((4, 4), dtype=bool)) is None
