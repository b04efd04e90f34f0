from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.deploy.models import SIZE, VOCABULARY, pixels, write_images, write_model

from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.data.loading.pool import Pool
from ldstyle.deploy.classifier import load
from ldstyle.evaluation.style_statistics import (
    labelled_images,
    logits_and_style,
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
    hooks = [
        backbone.get_submodule(point.name).register_forward_hook(lambda _m, _i, output: maps.append(output.clone()))
        for point in points
    ]
    expected = backbone(images)
    for hook in hooks:
        hook.remove()
    oracle = np.concatenate(
        [
            part.reshape(len(images), -1)
            for feats in maps
            for part in (feats.detach().numpy().mean(axis=(2, 3)), feats.detach().numpy().std(axis=(2, 3)))
        ],
        axis=1,
    )
    logits, style = logits_and_style(backbone, points, images)
    np.testing.assert_allclose(style, oracle, rtol=1e-4, atol=1e-5)
    assert torch.equal(logits, expected.detach())
    assert not any(module._forward_hooks for module in backbone.modules())


def test_without_points_there_are_logits_alone(backbone):
    images, _, _ = batches()
    logits, style = logits_and_style(backbone, (), images)
    assert torch.equal(logits, backbone(images).detach())
    assert style.shape == (len(images), 0)


def test_sources_are_summarised_as_by_loops(backbone):
    images, labels, domain = batches()
    points = style_points(backbone, image_size=SIZE)
    style = logits_and_style(backbone, points, images)[1].double().numpy()
    parts = zip(images.split(4), labels.split(4), domain.split(4), strict=True)
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
    np.testing.assert_allclose(found["style/concentration"], [axes[-1] / axes.sum()], rtol=1e-4)
    np.testing.assert_allclose(found["style/center"], centers, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["style/spread"], spread, rtol=1e-3)
    np.testing.assert_allclose(found["style/quantiles"], np.percentile(distances, range(101)), rtol=1e-3)
    np.testing.assert_array_equal(found["style/count"], [5, 4])
    for label in (0, 1):
        known = [row[label] for row in labels.tolist() if row[label] >= 0]
        assert found["label/prevalence"][label].item() == pytest.approx(sum(known) / len(known))
    assert found["label/prevalence"][2] == -1
    scores = torch.sigmoid(backbone(images)).mean(dim=0)
    torch.testing.assert_close(found["label/mean_probability"], scores.detach(), rtol=0, atol=1e-5)
    assert all(value.isfinite().all() for value in found.values())


def test_the_backbone_keeps_its_modes_and_weights(backbone):
    backbone.train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    source_style_statistics(backbone, [batches()], image_size=SIZE)
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
    augmentation = Augmentation(mean=(0.5,) * 3, std=(0.25,) * 3)
    found = list(labelled_images(pool, augmentation, torch.device("cpu"), batch_size=4))
    images, labels, domain = (torch.cat(part) for part in zip(*found, strict=True))
    expected = np.stack([pixels(number) for number in (0, 1, 2, 0, 1, 2)]).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(images, (expected / 255 - 0.5) / 0.25, atol=1e-5)
    np.testing.assert_array_equal(labels, np.concatenate([table.labels for table in tables]))
    assert domain.tolist() == [0, 0, 0, 1, 1, 1]


def test_no_images_are_refused(backbone):
    with pytest.raises(ValueError, match="`batches` must hold at least one batch of images; got none"):
        source_style_statistics(backbone, [])
