"""The valley on hand-made loss curves, the average over it, resuming, and BatchNorm's statistics."""

from __future__ import annotations

import io

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerance import bound
from torch import nn

from ldstyle.training.swad import LossValley, Swad, reestimate_batchnorm

CURVES = st.lists(st.floats(0.01, 5.0), min_size=1, max_size=40)


def valley(losses, **settings) -> list[int]:
    detector = LossValley(**settings)
    found = [segment for loss in losses for segment in detector.update(loss)]
    return [*found, *detector.finish()]


def algorithm(losses, n_converge: int, n_tolerance: int, ratio: float) -> list[int]:
    """The publication's Algorithm 1, on the whole curve at once."""
    start = next((i for i in range(len(losses) - n_converge + 1) if losses[i] == min(losses[i : i + n_converge])), None)
    if start is None:
        return [len(losses) - 1]
    limit = (1 + ratio) * sum(losses[start : start + n_converge]) / n_converge
    end = start
    while end < len(losses) and min(losses[end : end + n_tolerance]) <= limit:
        end += 1
    return list(range(start, end))


def test_a_clear_valley_is_averaged_from_its_minimum_to_its_rim():
    """Minimum 1.0 at 3, threshold 1.3 · mean(1, 1.1, 1.05) = 1.365, first six losses above it from 8 on."""
    losses = [4, 3, 2, 1, 1.1, 1.05, 1.2, 1.3, 2, 3, 4, 5, 6, 7, 8]
    assert valley(losses) == [3, 4, 5, 6, 7]


def test_a_bump_shorter_than_the_tolerance_does_not_end_the_valley():
    losses = [2, 1, 1.1, 1.1, *[9] * 5, 1.2, *[9] * 6, 1.0, 1.0]
    assert valley(losses) == list(range(1, 10))


def test_what_comes_after_the_end_is_never_averaged():
    assert valley([1, 1, 1, *[9] * 6, *[0.1] * 20]) == [0, 1, 2]


def test_a_curve_that_only_falls_gives_its_last_segment():
    assert valley([5, 4, 3, 2, 1]) == [4]
    assert valley([1.0]) == [0]


def test_the_last_segment_is_no_valley():
    for losses, found in (([5, 4, 3, 2, 1], False), ([5, 4, 1, 2, 3], True), ([1], False)):
        detector = LossValley()
        for loss in losses:
            detector.update(loss)
        detector.finish()
        resumed = LossValley()
        resumed.load_state_dict(detector.state_dict())
        assert detector.found == resumed.found == found


def test_an_immediate_rise_gives_the_segments_below_the_threshold():
    """Threshold 1.3 · mean(1, 2, 3) = 2.6."""
    assert valley([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == [0, 1]


def test_a_plateau_is_averaged_whole():
    assert valley([2, 1, *[1] * 20]) == list(range(1, 22))


def test_the_last_segments_are_judged_by_what_is_left_of_the_window():
    """Threshold 1.3: the fives at the end are no longer followed by a low loss."""
    assert valley([1, 1, 1, 5, 1, 5, 5]) == [0, 1, 2, 3, 4]


def test_a_tolerance_shorter_than_the_start_window_finds_the_same_start():
    assert valley([3, 1, 2, 2, 2, 9, 9], n_converge=4, n_tolerance=1, tolerance_ratio=0.2) == [1, 2, 3, 4]


@given(CURVES, st.integers(1, 5), st.integers(1, 8), st.floats(0, 1))
def test_the_detector_agrees_with_the_published_algorithm(losses, n_converge, n_tolerance, ratio):
    settings = {"n_converge": n_converge, "n_tolerance": n_tolerance, "tolerance_ratio": ratio}
    assert valley(losses, **settings) == algorithm(losses, n_converge, n_tolerance, ratio)


@given(CURVES)
def test_the_valley_is_contiguous_and_holds_every_segment_once(losses):
    found = valley(losses)
    assert found == list(range(found[0], found[-1] + 1))


def test_values_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"swad.n_converge must be at least 1; got 0"):
        LossValley(n_converge=0)
    with pytest.raises(ValueError, match=r"swad.tolerance_ratio must not be negative; got -1"):
        LossValley(tolerance_ratio=-1)
    with pytest.raises(ValueError, match="must be finite; got nan for segment 0"):
        LossValley().update(float("nan"))
    with pytest.raises(ValueError, match="at least one validation loss; got none"):
        LossValley().finish()
    with pytest.raises(ValueError, match="at least one step; got none"):
        Swad().close(1.0)


LOSSES = [4.0, 3.0, 1.0, 1.1, 1.2, 1.3, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0]


def weights_at(step: int) -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3) * step - step**2 / 7


def train(swad: Swad, net: nn.Linear, steps: range, *, per_segment: int = 3, losses=LOSSES) -> None:
    """Move the weights along a known path."""
    with torch.no_grad():
        for step in steps:
            net.weight.copy_(weights_at(step))
            net.bias.fill_(float(step))
            swad.step(net)
            if (step + 1) % per_segment == 0:
                swad.close(losses[step // per_segment])


def test_the_average_is_the_mean_of_all_steps_in_the_valley():
    """Threshold 1.3 · 1.1 = 1.43: segments 2 to 5, which are steps 6 to 17."""
    swad, net = Swad(), nn.Linear(3, 2)
    train(swad, net, range(39))
    assert swad.ended
    assert not swad.pending
    assert swad.write(net) == 4
    expected = torch.stack([weights_at(step).double() for step in range(6, 18)]).mean(dim=0)
    # Values up to 100, averaged over 12 steps in 4 segments.
    tolerance = bound(2 * 12, scale=100, dtype=torch.float32)
    torch.testing.assert_close(net.weight.double(), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(net.bias, torch.full((2,), 11.5), rtol=0, atol=tolerance)


def test_training_that_ends_inside_the_valley_flushes_the_waiting_segments():
    swad, net = Swad(), nn.Linear(3, 2)
    train(swad, net, range(15))
    assert swad.write(net) == 3
    torch.testing.assert_close(net.bias, torch.full((2,), 10.0))


def test_training_that_never_converges_gives_the_mean_of_the_last_segment():
    swad, net = Swad(), nn.Linear(3, 2)
    train(swad, net, range(14), losses=[5.0, 4.0, 3.0, 2.0])
    assert swad.write(net) == 1
    torch.testing.assert_close(net.bias, torch.full((2,), 10.0))  # steps 9, 10, 11; 12 and 13 were not closed


def test_writing_twice_gives_the_same_average():
    swad, net = Swad(), nn.Linear(3, 2)
    train(swad, net, range(15))
    swad.write(net)
    again = nn.Linear(3, 2)
    swad.write(again)
    assert torch.equal(net.weight, again.weight)


def test_steps_after_the_end_change_nothing():
    swad, net = Swad(), nn.Linear(3, 2)
    train(swad, net, range(36))
    before = {name: value.clone() for name, value in swad.average.items()}
    assert swad.ended
    swad.step(net)
    swad.close(0.001)
    assert swad.steps == 0
    assert all(torch.equal(before[name], value) for name, value in swad.average.items())


def test_no_more_segments_wait_than_the_windows_need():
    swad, net = Swad(), nn.Linear(3, 2)
    waiting = []
    for segment in range(30):
        train(swad, net, range(segment * 3, segment * 3 + 3), losses=[5.0, 4.0, 3.0, 2.0, *[1.0] * 26])
        waiting.append(len(swad.pending))
    assert max(waiting) == 5
    assert max(waiting[:4]) == 2


@pytest.mark.parametrize("cut", [1, 4, 9, 13, 20, 30, 39])
def test_a_resumed_average_is_bit_identical(cut):
    whole, net = Swad(), nn.Linear(3, 2)
    train(whole, net, range(39))
    whole.write(net)
    before, other = Swad(), nn.Linear(3, 2)
    train(before, other, range(cut))
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    after = Swad()
    after.load_state_dict(torch.load(file, weights_only=True))
    train(after, other, range(cut, 39))
    after.write(other)
    assert torch.equal(net.weight, other.weight)
    assert torch.equal(net.bias, other.bias)
    assert after.valley.state_dict() == whole.valley.state_dict()


def test_a_state_taken_is_not_changed_by_loading_it():
    swad, net = Swad(), nn.Linear(3, 2)
    train(swad, net, range(10))
    state = swad.state_dict()
    kept = {name: value.clone() for name, value in state["segment"].items()}
    other = Swad()
    other.load_state_dict(state)
    train(other, net, range(10, 12))
    assert all(torch.equal(kept[name], value) for name, value in state["segment"].items())


def images(batches: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, 16, 16, generator=generator) * (1 + i) + i for i in range(batches)]


def test_batchnorm_statistics_become_the_mean_over_batches():
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.9), nn.BatchNorm2d(3, momentum=0.01)).double().train()
    net[0].running_mean.fill_(100.0)
    batches = [batch.double() for batch in images(3)]
    before = torch.get_rng_state()
    reestimate_batchnorm(net, batches)
    assert torch.equal(torch.get_rng_state(), before)
    mean = torch.stack([batch.mean(dim=(0, 2, 3)) for batch in batches]).mean(dim=0)
    variance = torch.stack([batch.var(dim=(0, 2, 3)) for batch in batches]).mean(dim=0)
    rounding = bound(2 * 1024 + 3, scale=100)  # 4 · 16 · 16 values up to 10 and their squares, in three batches
    torch.testing.assert_close(net[0].running_mean, mean, rtol=0, atol=rounding)
    torch.testing.assert_close(net[0].running_var, variance, rtol=0, atol=rounding)
    # Dropout is off, so the second layer sees the first one's normalised output. Its variance is 1 up to the first
    # layer's ε of 1e-5 in variances above 0.5, and to the correction of 1024 values.
    torch.testing.assert_close(net[2].running_mean, torch.zeros(3).double(), atol=rounding, rtol=0)
    torch.testing.assert_close(net[2].running_var, torch.ones(3).double(), atol=1 / 1023 + 2e-5, rtol=0)


def test_modes_and_momenta_are_restored():
    net = timm.create_model("resnet10t", num_classes=2, drop_rate=0.5).train()
    net.layer1.eval()
    net.bn1.momentum = 0.37
    modes = [module.training for module in net.modules()]
    reestimate_batchnorm(net, images(1))
    assert [module.training for module in net.modules()] == modes
    assert net.bn1.momentum == 0.37
    assert net.layer2[0].bn1.momentum == 0.1
    assert all(parameter.grad is None for parameter in net.parameters())


def test_statistics_and_modes_survive_an_empty_pass():
    net = nn.Sequential(nn.BatchNorm2d(3)).eval()
    net[0].running_mean.fill_(7.0)
    with pytest.raises(ValueError, match="at least one batch of images; got none"):
        reestimate_batchnorm(net, [])
    assert net[0].running_mean.tolist() == [7.0] * 3
    assert not net[0].training
    assert net[0].momentum == 0.1


def test_a_network_without_batchnorm_reads_no_batch():
    unread = iter(images(1))
    reestimate_batchnorm(nn.Linear(3, 2), unread)
    assert len(list(unread)) == 1
