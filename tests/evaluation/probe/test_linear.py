"""The linear probe: its fit against a plain solver, its maps against loops, and its place in the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.evaluation.probe.test_features import SIZE, TINY, Counting
from tests.tolerance import bound
from tests.training.runs import SOURCES

from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.loading.pool import Pool
from ldstyle.evaluation.probe import linear as module
from ldstyle.evaluation.probe.features import FrozenBackbone, PoolFeatures
from ldstyle.evaluation.probe.linear import LinearProbe, ProbeMaps, fit_probe, probe_maps

ROWS = np.arange(0, 30, 3)


def open_pool(scenes: Path, rows: NDArray[np.int64] = ROWS, *, labels: NDArray[np.int8] | None = None) -> Pool:
    tables = read_domains(scenes, SOURCES)
    if labels is not None:
        tables = (replace(tables[0], labels=labels), *tables[1:])
    return Pool(tables, [rows, rows], size=SIZE, cache_dir=scenes.parent / "cache")


@pytest.fixture(scope="module")
def backbone() -> FrozenBackbone:
    return FrozenBackbone(TINY, num_labels=6, size=SIZE, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probe")


@pytest.fixture(scope="module")
def fitted(scenes: Path, backbone: FrozenBackbone, folder: Path) -> ProbeMaps:
    return probe_maps(open_pool(scenes), backbone, folder)


def separable(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of which the first three tell the three labels, the fourth is constant, and the rest are noise."""
    generator = torch.Generator().manual_seed(5)
    feats = 3 + 2 * torch.randn(count, 8, generator=generator, dtype=torch.float64)
    feats[:, 3] = 7.0
    return feats, (feats[:, :3] > 3).to(torch.int8)


def test_a_probe_minimises_its_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the minimum the gradient, written out sample by sample, vanishes."""
    monkeypatch.setattr(module, "STRENGTHS", (0.1,))
    feats, labels = separable()
    labels[::7] = -1
    mean, std = feats.mean(dim=0), feats.std(dim=0, correction=0)
    weight, bias = module._fit((feats - mean) / torch.where(std > 0, std, torch.inf), labels, 0.1)
    for label in range(3):
        slope, offset, known = 0.1 * weight[label], torch.zeros((), dtype=torch.float64), 0
        for sample in range(len(feats)):
            if labels[sample, label] >= 0:
                known += 1
        for sample in range(len(feats)):
            if labels[sample, label] >= 0:
                inputs = torch.where(std > 0, (feats[sample] - mean) / std, 0.0)
                error = (weight[label] @ inputs + bias[label]).sigmoid() - labels[sample, label]
                slope, offset = slope + error * inputs / known, offset + error / known
        assert slope.abs().max() < 1e-6
        assert offset.abs() < 1e-6


def test_standardisation_is_folded_into_the_weights() -> None:
    feats, labels = separable()
    probe, scaled = fit_probe(feats, labels), fit_probe(feats * 1000 - 5, labels)
    expected = feats @ probe.weight.double().T + probe.bias
    found = (feats * 1000 - 5) @ scaled.weight.double().T + scaled.bias
    # The solver stops at a gradient of 1e-7, with a curvature of at least the penalty; weights are rounded to float32
    # and multiply features of up to 10 deviations.
    solved = 2 * 1e-7 / min(module.STRENGTHS) * 10
    terms = (feats.abs() @ probe.weight.double().abs().T + probe.bias.abs()).max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=solved + bound(4, scale=terms, dtype=torch.float32))
    assert ((expected > 0) == (labels == 1)).float().mean() > 0.95
    assert not probe.weight[:, 3].any()


def test_unknown_labels_have_no_say() -> None:
    feats, labels = separable()
    labels[:20, 1] = -1
    first = fit_probe(feats, labels)
    known = labels[:, 1] >= 0
    inputs = (feats - feats.mean(dim=0)) / feats.std(dim=0, correction=0).clamp(min=1e-9)
    alone = module._fit(inputs[known], labels[known][:, 1:2], 0.01)
    masked = module._fit(inputs, labels[:, 1:2], 0.01)
    # Two runs to the tolerance of the solver, 1e-7 in each entry of the gradient of an objective of curvature at least
    # 0.01: eight weights and a bias.
    torch.testing.assert_close(masked[0], alone[0], rtol=0, atol=2 * 3 * 1e-7 / 0.01)
    assert first.weight.isfinite().all()


def test_a_label_of_one_kind_has_no_map() -> None:
    feats, labels = separable()
    labels[:, 0], labels[:, 2] = 1, -1
    probe = fit_probe(feats, labels)
    assert not probe.weight[[0, 2]].any()
    assert probe.bias.isfinite().all()
    assert probe.bias[0] > 0


def magnitude(weight: torch.Tensor, feats: torch.Tensor) -> float:
    """Return the largest sum of magnitudes that a map's value is made of."""
    return torch.einsum("c,chw->hw", weight.double().abs(), feats.abs()).max().item()


def test_maps_are_weighted_sums_of_the_features(
    scenes: Path, backbone: FrozenBackbone, folder: Path, fitted: ProbeMaps
) -> None:
    pool = open_pool(scenes)
    feats = PoolFeatures(pool, backbone, folder).read(np.arange(len(pool))).double()
    for sample in (0, 7, 19):
        for label in range(6):
            expected = torch.zeros(feats.shape[2:], dtype=torch.float64)
            for channel in range(feats.shape[1]):
                expected += fitted.probe.weight[label, channel].double() * feats[sample, channel]
            found = fitted.maps[fitted.entry[sample], label].double()
            # Half precision relative to the largest of the map, and single precision in the sum.
            error = bound(
                feats.shape[1], scale=magnitude(fitted.probe.weight[label], feats[sample]), dtype=torch.float32
            )
            torch.testing.assert_close(found, expected, rtol=2**-11, atol=2 * error + 2**-25)
            logit = expected.mean() + fitted.probe.bias[label]
            if abs(logit) > 1e-4:
                assert fitted.keep[sample, label] == (bool(pool.present[sample, label]) and bool(logit >= 0))


def test_the_gate_keeps_present_labels_only(scenes: Path, fitted: ProbeMaps) -> None:
    present = torch.from_numpy(open_pool(scenes).present)
    assert fitted.keep.any()
    assert not (fitted.keep & ~present).any()


def test_the_second_run_loads_and_passes_no_image(
    scenes: Path, backbone: FrozenBackbone, folder: Path, fitted: ProbeMaps
) -> None:
    counting = Counting(backbone)
    again = probe_maps(open_pool(scenes), counting, folder)  # type: ignore[arg-type]
    assert counting.images == 0
    assert torch.equal(again.maps, fitted.maps)
    assert torch.equal(again.keep, fitted.keep)


def test_another_split_is_another_probe_on_shared_features(
    scenes: Path, backbone: FrozenBackbone, folder: Path, fitted: ProbeMaps
) -> None:
    counting = Counting(backbone)
    other = probe_maps(open_pool(scenes, np.sort(np.append(ROWS[1:], 1))), counting, folder)  # type: ignore[arg-type]
    assert counting.images == 2  # row 1 of each domain
    assert not torch.equal(other.probe.weight, fitted.probe.weight)


def test_a_changed_label_is_another_probe(
    scenes: Path, backbone: FrozenBackbone, folder: Path, fitted: ProbeMaps
) -> None:
    labels = np.array(read_domains(scenes, SOURCES)[0].labels)
    labels[ROWS[0], 0] = -1
    counting = Counting(backbone)
    other = probe_maps(open_pool(scenes, labels=labels), counting, folder)  # type: ignore[arg-type]
    assert counting.images == 0
    assert not other.keep[0, 0]
    assert not torch.equal(other.probe.weight[0], fitted.probe.weight[0])


def test_a_damaged_probe_is_fitted_again(
    scenes: Path, backbone: FrozenBackbone, folder: Path, fitted: ProbeMaps, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (folder / "probes").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-9])
    again = probe_maps(open_pool(scenes), backbone, folder)
    assert torch.equal(again.maps, fitted.maps)
    assert "damaged" in caplog.text


def test_a_photometric_copy_has_the_maps_of_its_original(scenes: Path, backbone: FrozenBackbone, folder: Path) -> None:
    table = read_domains(scenes, SOURCES[:1])
    pool = Pool(table, [ROWS], size=SIZE, cache_dir=scenes.parent / "cache", pseudo_seed=3)
    found = probe_maps(pool, backbone, folder)
    assert len(found.maps) == len(ROWS)
    assert found.entry.tolist() == [*range(len(ROWS)), *range(len(ROWS))]


def test_maps_of_separable_features_find_their_label() -> None:
    """Each label lights up its own channel in its own region; a probe sees only the means, and maps the regions."""
    from ldstyle.evaluation.localization import Localization

    generator = torch.Generator().manual_seed(9)
    present = torch.rand(80, 3, generator=generator) < 0.5
    regions = torch.zeros(80, 3, 8, 8, dtype=torch.bool)
    for sample in range(80):
        for label in range(3):
            row, column = torch.randint(0, 6, (2,), generator=generator).tolist()
            regions[sample, label, row : row + 3, column : column + 3] = present[sample, label]
    feats = 0.3 * torch.rand(80, 12, 8, 8, generator=generator)
    feats[:, :3] += regions
    probe = fit_probe(feats.mean(dim=(2, 3)), present.to(torch.int8))
    table = Localization(("a", "b", "c"))
    table.update(probe.maps(feats).relu(), regions)
    for row in table.compute().values():
        assert row["n"] == 0 or row["iou"] > 3 * row["iou_chance"]  # type: ignore[operator]
        assert row["pointing"] == pytest.approx(1.0, abs=0.1)


def test_the_mean_of_a_map_and_the_bias_are_the_logit() -> None:
    feats = torch.rand(2, 4, 3, 5)
    probe = LinearProbe(torch.randn(3, 4), torch.randn(3))
    expected = feats.mean(dim=(2, 3)) @ probe.weight.T + probe.bias
    tolerance = bound(4 * 15 + 4, scale=10, dtype=torch.float32)  # 4 channels, 15 locations
    torch.testing.assert_close(probe.logits(feats), expected, rtol=0, atol=tolerance)
