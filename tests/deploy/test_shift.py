from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.deploy.models import VOCABULARY, write_model

from ldstyle.deploy.classifier import Prediction, load
from ldstyle.deploy.shift import FEW, LONE_GAP, check_shift, check_statistics, expected_prevalence

FEATURES = 16


@pytest.fixture
def model(tmp_path):
    """Two sources that are 0.5 spreads apart in every feature; their images are standard normal around them."""
    extra = {
        "style/center": torch.stack([torch.zeros(FEATURES), torch.full((FEATURES,), 0.5)]),
        "style/count": torch.tensor([1000.0, 1000.0]),
        "style/spread": torch.ones(FEATURES),
        "style/quantiles": torch.from_numpy(distances(draw(5000))).quantile(torch.linspace(0, 1, 101).double()).float(),
        "label/prevalence": torch.tensor([0.5, 0.3, -1.0]),
        "label/mean_probability": torch.tensor([0.5, 0.3, 0.5]),
    }
    write_model(tmp_path, extra=extra)
    return load(tmp_path).model


def draw(count, *, offset=0.0, scale=1.0):
    return offset + scale * np.random.default_rng(7).standard_normal((count, FEATURES))


def distances(style):
    return np.minimum(np.sqrt((style**2).mean(axis=1)), np.sqrt(((style - 0.5) ** 2).mean(axis=1)))


def predicted(probabilities):
    scores = torch.as_tensor(probabilities, dtype=torch.float64)
    return Prediction(scores, scores >= torch.tensor([0.5, 0.4, 0.6]), VOCABULARY)


def usual(count):
    """Confident probabilities with the frequencies of the sources."""
    ranks = (np.arange(count)[:, None] + 0.5) / count
    return np.where(ranks < np.array([0.5, 0.3, 0.5]), 0.99, 0.01)


def report(model, style, probabilities=None):
    given = usual(len(style)) if probabilities is None else probabilities
    return check_shift(model, torch.from_numpy(style), predicted(given))


def test_images_of_a_source_are_trusted(model):
    found = report(model, draw(400, offset=0.5))
    assert found.trusted
    assert found.gap < 0.05
    assert min(found.distances, key=found.distances.get) == "dfc15"
    assert found.far == pytest.approx(0.05, abs=0.03)
    assert "nothing in their style speaks against" in found.sentences[2]
    assert len(found.sentences) == 3


def test_images_between_source_and_stranger_are_trusted_with_care(model):
    found = report(model, draw(2000, offset=0.85))
    assert found.trusted
    assert 0.25 < found.gap < 0.5
    assert "expect scores below those on the sources" in found.sentences[2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"offset": 1.5}, "most of the images look unlike"),
        ({"offset": -0.8}, "farther from every source than sources are from each other"),
        ({"scale": 3.0}, "most of the images look unlike"),
    ],
)
def test_images_unlike_the_sources_are_not_trusted_and_it_says_why(model, change, reason):
    found = report(model, draw(400, **change))
    assert found.trusted is False
    assert found.sentences[2].startswith("DO NOT TRUST")
    assert reason in found.sentences[2]


def test_few_images_give_no_verdict(model):
    found = report(model, draw(FEW - 1, offset=3))
    assert found.trusted is None
    assert "too few images for a verdict" in found.sentences[2]
    assert f"give at least {found.needed}" in found.sentences[2]


def small(model, count, *, apart=0.0, concentration=0.3):
    """Return the model as if its statistics came from a few images per source, drawn ``apart`` from each other."""
    generator = np.random.default_rng(3)
    center = np.stack([generator.standard_normal((count, FEATURES)).mean(axis=0) + shift for shift in (0, apart)])
    extra = model.extra | {
        "style/center": torch.from_numpy(center).float(),
        "style/count": torch.tensor([float(count)] * 2),
        "style/concentration": torch.tensor([concentration]),
    }
    return dataclasses.replace(model, extra=extra)


def test_the_distance_between_sources_is_corrected_for_chance(model):
    for count in (15, 60, 400):
        assert report(small(model, count), draw(100)).limit == pytest.approx(LONE_GAP, abs=0.1)
        assert report(small(model, count, apart=0.6), draw(100)).limit == pytest.approx(0.6, abs=0.3 / count**0.5 + 0.1)


def test_a_shift_is_noticed_at_the_size_of_a_small_data_set(model):
    assert report(small(model, 70), draw(100, offset=0.6)).trusted is False
    assert report(small(model, 70), draw(100)).trusted is True


def test_no_verdict_is_given_where_a_shift_might_go_unnoticed(model):
    found = report(small(model, 12), draw(60))
    assert found.trusted is None
    assert found.detectable > 2 * found.limit
    assert found.needed is None
    assert "trained on too few images" in found.sentences[2]
    found = report(small(model, 100), draw(FEW))
    assert found.trusted is None
    assert report(small(model, 100), draw(found.needed)).trusted is True


@pytest.mark.parametrize(("shift", "least", "most"), [(0.0, 0.0, 0.05), (1.0, 0.95, 1.0)])
def test_the_stated_power_and_the_false_alarms_hold_for_features_that_move_together(model, shift, least, most):
    """All features equal is the worst case: the mean differs along one axis alone."""
    generator = np.random.default_rng(0)
    images, trials = 80, 400
    base = small(model, 80, concentration=1.0)
    detectable = report(base, draw(images)).detectable
    warned = 0
    for _ in range(trials):
        center = generator.standard_normal((2, 1)) / 80**0.5 * np.ones(FEATURES)
        extra = base.extra | {"style/center": torch.from_numpy(center).float()}
        style = generator.standard_normal((images, 1)) + shift * detectable * np.ones(FEATURES)
        found = report(dataclasses.replace(base, extra=extra), style)
        warned += found.trusted is False and found.gap > found.limit
    # Three standard deviations of a count.
    error = 3 * (0.95 * 0.05 / trials) ** 0.5
    assert least - error <= warned / trials <= most + error


def test_percentiles_tell_the_share_of_source_images_that_are_nearer(model):
    reference, style = np.sort(distances(draw(5000))), draw(300, scale=1.2)
    found = report(model, style).percentiles.numpy()
    oracle = np.searchsorted(reference, distances(style)) / len(reference)
    np.testing.assert_allclose(found, oracle, atol=0.012)
    assert found.min() >= 0
    assert found.max() <= 1


def test_a_threshold_that_does_not_suit_is_named(model):
    scores = usual(100)
    scores[:, 1] = 0.39  # below its threshold of 0.4, yet above the 0.3 that are usual
    found = report(model, draw(100), scores)
    assert found.labels[1].predicted == 0
    assert found.labels[1].expected > 0.95
    assert any("DO NOT TRUST the decisions on 'tree'" in sentence for sentence in found.sentences)
    assert not any("'building'" in sentence for sentence in found.sentences)


def test_another_frequency_than_in_the_sources_is_named(model):
    scores = usual(100)
    scores[:, 1] = 0.99
    scores[:, 2] = 0.99
    found = report(model, draw(100), scores)
    assert found.labels[1].sources == pytest.approx(0.3)
    assert found.labels[1].expected > 0.95
    assert any("'tree' is expected in 100% of the images and was in 30%" in sentence for sentence in found.sentences)
    assert found.labels[2].sources is None
    assert not any("'water'" in sentence for sentence in found.sentences)


def test_one_source_is_compared_with_typical_archives(model):
    one = {key: value[:1] if key in ("style/center", "style/count") else value for key, value in model.extra.items()}
    lone = dataclasses.replace(model, extra=one, sources=("ucm",))
    assert report(lone, draw(400, offset=0.4)).trusted is False
    assert "typical archives are 0.25 apart" in report(lone, draw(400)).sentences[0]


def test_expected_prevalence_finds_the_true_one_where_only_frequencies_differ():
    generator = np.random.default_rng(0)
    prior, truth, count = 0.5, 0.15, 20000
    present = generator.random(count) < truth
    evidence = generator.normal(np.where(present, 1.0, -1.0), 1.0)  # log odds are 2·evidence at equal frequencies
    scores = torch.from_numpy(1 / (1 + np.exp(-2 * evidence)))[:, None]
    found = expected_prevalence(scores, torch.tensor([prior])).item()
    assert found == pytest.approx(truth, abs=0.01)
    assert abs(scores.mean().item() - truth) > 0.05


def test_a_model_without_statistics_says_what_is_missing(model):
    bare = dataclasses.replace(model, extra={})
    with pytest.raises(
        ValueError, match=r"this model lacks 'style/center'. Train it .* or predict without --check-shift"
    ):
        check_statistics(bare)


def test_statistics_of_another_network_are_refused(model):
    with pytest.raises(ValueError, match=r"must be of 4 entries; got \(2, 16\)"):
        check_shift(model, torch.zeros(40, 4), predicted(usual(40)))


def test_labels_without_training_data_are_left_out(model):
    untrained = dataclasses.replace(model, untrained_labels=("tree",))
    scores = usual(400)
    scores[:, 1] = np.nan
    found = report(untrained, draw(400), scores)
    assert [label.name for label in found.labels] == ["building", "water"]
    assert all(np.isfinite(label.expected) for label in found.labels)
