import itertools
import multiprocessing
import os

import numpy as np
import pytest
import torch
from tests.tolerance import bound
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms.v2 import functional as tv

from ldstyle.data.loading import augmentation as augment
from ldstyle.data.loading.augmentation import Augmentation, Draws, draw_photometric, flip_images, photometric
from ldstyle.seeding import Streams

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def make_images(count=7, height=10, width=14, seed=0):
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.integers(0, 256, (count, 3, height, width), dtype=np.uint8))


def oracle(image, flips, factors, order):
    """torchvision on one image: flips, then the jitter in the order drawn, then normalisation."""
    values = image / 255
    if flips[0]:
        values = tv.horizontal_flip(values)
    if flips[1]:
        values = tv.vertical_flip(values)
    operations = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
    for step in order:
        values = operations[step](values, float(factors[step]))
    return tv.normalize(values, MEAN, STD)


def select(draws, i):
    return Draws(draws.flips[i : i + 1], draws.factors[:, i : i + 1], draws.order)


@pytest.fixture
def thread_count():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def expected(images, draws):
    return torch.stack(
        [oracle(images[i], draws.flips[i], draws.factors[:, i], draws.order) for i in range(len(images))]
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_the_augmentation_is_torchvisions_in_every_order(order):
    augmentation = Augmentation(mean=MEAN, std=STD, brightness=0.5, contrast=0.5, saturation=0.5, hue=0.1)
    images = make_images()
    draws = augmentation.draw(7, np.random.default_rng(3))
    draws = Draws(draws.flips, draws.factors, order)
    # Four steps of up to 25 operations on values up to 2, divided by a deviation of about 0.2.
    tolerance = bound(4 * 25, scale=10, dtype=torch.float32)
    torch.testing.assert_close(augmentation.apply(images, draws), expected(images, draws), atol=tolerance, rtol=0)


def test_the_jitter_is_kornias_too():
    enhance = pytest.importorskip("kornia.enhance")
    images = make_images()
    augmentation = Augmentation(mean=(0, 0, 0), std=(1, 1, 1), flip_prob=0)
    draws = augmentation.draw(7, np.random.default_rng(3))
    draws = Draws(draws.flips, draws.factors, (0, 2, 3))
    brightness, _, saturation, hue = draws.factors
    values = enhance.adjust_brightness_accumulative(images.double() / 255, brightness)
    values = enhance.adjust_saturation_with_gray_subtraction(values, saturation)
    values = enhance.adjust_hue(values, hue * 2 * torch.pi)
    # kornia's luma has the weights 0.299, 0.587, 0.114, torchvision's the first rounded to 0.2989: with factors within
    # 0.2 of 1 they differ by 2e-5, and the hue enlarges that by at most 5. kornia's hue divides by M + 1e-8 for M of at
    # least 1/255. The rest is the rounding of 25 operations in float32 on values up to 3, enlarged as well.
    tolerance = 5 * 0.2 * 1e-4 + 255e-8 + bound(25, scale=3 * 5, dtype=torch.float32)
    torch.testing.assert_close(augmentation.apply(images, draws).double(), values, atol=tolerance, rtol=0)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0), ()], ids=str)
@pytest.mark.parametrize("size", [(1, 1), (37, 53), (128, 128)], ids=str)
def test_other_devices_get_what_the_cpu_gets(order, size):
    augmentation = Augmentation(mean=MEAN, std=STD, brightness=1, contrast=1, saturation=1, hue=1 / 6)
    images = make_images(7, *size)
    draws = augmentation.draw(7, np.random.default_rng(3))
    parameters = draws.flips, draws.factors, order, torch.ones(3), torch.zeros(3)
    found, expected_too = augment._augment_on_cpu(images, *parameters), augment._augment_on_device(images, *parameters)
    # The same formulas on [0, 255]: up to four steps of 10 operations.
    torch.testing.assert_close(found, expected_too, atol=bound(4 * 10, scale=255, dtype=torch.float32), rtol=0)


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_threads_change_nothing_at_all(threads, thread_count):
    augmentation, images = Augmentation(mean=MEAN, std=STD), make_images(count=11)
    draws, factors = augmentation.draw(11, np.random.default_rng(0)), draw_photometric(11, np.random.default_rng(0))
    thread_count(1)
    alone = [augmentation.apply(images[i : i + 1], select(draws, i)) for i in range(11)]
    copies = photometric(images, factors)
    thread_count(threads)
    assert torch.equal(augmentation.apply(images, draws), torch.cat(alone))
    assert torch.equal(photometric(images, factors), copies)
    assert torch.get_num_threads() == threads


def test_views_are_read_as_they_are():
    augmentation, images = Augmentation(mean=MEAN, std=STD), make_images()
    factors = draw_photometric(7, np.random.default_rng(0))
    draws = augmentation.draw(7, np.random.default_rng(0))
    view = images.to(memory_format=torch.channels_last)
    assert torch.equal(augmentation.apply(view, draws), augmentation.apply(images, draws))
    assert torch.equal(photometric(view, factors), photometric(images, factors))
    turned = augmentation.normalise(images.transpose(2, 3))
    assert turned.is_contiguous()
    assert torch.equal(turned, augmentation.normalise(images).transpose(2, 3))


def test_the_input_and_the_global_streams_are_untouched():
    images = make_images()
    before, state = images.clone(), torch.random.get_rng_state()
    Augmentation(mean=MEAN, std=STD)(images, np.random.default_rng(0))
    assert torch.equal(images, before)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_without_strength_only_normalisation_is_left():
    augmentation = Augmentation(mean=MEAN, std=STD, flip_prob=0, brightness=0, contrast=0, saturation=0, hue=0)
    images = make_images()
    found, flips = augmentation(images, np.random.default_rng(0))
    assert not flips.any()
    tolerance = bound(4, scale=5, dtype=torch.float32)  # values up to 5 after the division by the deviation
    torch.testing.assert_close(found, tv.normalize(images / 255, MEAN, STD), atol=tolerance, rtol=0)
    torch.testing.assert_close(augmentation.normalise(images), found, atol=0, rtol=0)


def test_flips_are_recorded_as_applied():
    augmentation = Augmentation(mean=MEAN, std=STD, brightness=0, contrast=0, saturation=0, hue=0)
    images = make_images(count=40)
    found, flips = augmentation(images, np.random.default_rng(0))
    assert len(torch.unique(flips, dim=0)) == 4
    assert torch.equal(found, augmentation.normalise(flip_images(images, flips)))


def test_flipping_twice_is_the_identity():
    images = make_images(count=9)
    flips = torch.from_numpy(np.random.default_rng(0).random((9, 2)) < 0.5)
    flipped = flip_images(images, flips)
    assert torch.equal(flip_images(flipped, flips), images)
    for image, original, (horizontal, vertical) in zip(flipped, images, flips.tolist(), strict=True):
        dims = [2] * horizontal + [1] * vertical
        assert torch.equal(image, original.flip(dims))


class _Counted(TorchDispatchMode):
    """Counts the operations inside."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **kwargs or {})


def test_flips_take_as_many_operations_for_any_batch():
    counts = []
    for count in (2, 32):
        flips = torch.from_numpy(np.random.default_rng(0).random((count, 2)) < 0.5)
        with _Counted() as counted:
            flip_images(make_images(count=count), flips)
        counts.append(counted.count)
    assert counts[0] == counts[1]


def test_draws_lie_in_their_ranges_and_fill_them():
    draws = Augmentation(mean=MEAN, std=STD).draw(4000, np.random.default_rng(0))
    for row, (centre, spread) in zip(draws.factors, ((1, 0.2), (1, 0.2), (1, 0.2), (0, 0.05)), strict=True):
        assert (row - centre).abs().max() <= spread * (1 + 1e-6)
        assert (row - centre).min() < -0.98 * spread
        assert (row - centre).max() > 0.98 * spread
        assert abs(row.mean().item() - centre) < 0.05 * spread
    assert (draws.flips.double().mean(0) - 0.5).abs().max() < 0.03
    orders = {Augmentation(mean=MEAN, std=STD).draw(1, np.random.default_rng(seed)).order for seed in range(400)}
    assert len(orders) == 24


def test_draws_are_resumed_with_the_streams():
    augmentation, images, streams = Augmentation(mean=MEAN, std=STD), make_images(), Streams(1)
    augmentation(images, streams["augment"])
    state = streams.state_dict()
    expected_next = augmentation(images, streams["augment"])[0]
    restored = Streams(0)
    restored.load_state_dict(state)
    assert torch.equal(augmentation(images, restored["augment"])[0], expected_next)


def test_as_many_numbers_are_drawn_whatever_the_strengths():
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    Augmentation(mean=MEAN, std=STD).draw(5, one)
    Augmentation(mean=MEAN, std=STD, flip_prob=0, brightness=0, contrast=0, saturation=0, hue=0).draw(5, other)
    assert one.random() == other.random()


@pytest.mark.parametrize("count", [0, 1])
def test_small_batches_are_allowed(count):
    found, flips = Augmentation(mean=MEAN, std=STD)(make_images(count=count), np.random.default_rng(0))
    assert found.shape == (count, 3, 10, 14)
    assert flips.shape == (count, 2)


def test_autocast_does_not_reach_the_colours():
    augmentation, images = Augmentation(mean=MEAN, std=STD), make_images()
    draws = augmentation.draw(7, np.random.default_rng(0))
    plain = augmentation.apply(images, draws)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(augmentation.apply(images, draws), plain)


def _augment_in_child(results):
    results.put(float(Augmentation(mean=MEAN, std=STD)(make_images(), np.random.default_rng(0))[0].sum()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own(thread_count):
    thread_count(2)
    found = Augmentation(mean=MEAN, std=STD)(make_images(), np.random.default_rng(0))[0].sum()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_augment_in_child, args=(results,))
    child.start()
    assert results.get(timeout=30) == float(found)
    child.join(timeout=30)


def test_photometric_copies_keep_the_places_and_change_the_colours():
    images = make_images(count=12, height=24, width=24)
    images[:, :, :, 12:] = images[:, :, :, :1]  # right half: constant along each row
    factors = draw_photometric(12, np.random.default_rng(0))
    copies = photometric(images, factors)
    assert copies.dtype == torch.uint8
    assert (copies[:, :, :, 12:] == copies[:, :, :, 12:13]).all()
    assert ((copies.double() - images.double()).abs().mean((1, 2, 3)) > 5).all()
    flips = torch.tensor([[True, False]] * 12)
    assert torch.equal(photometric(flip_images(images, flips), factors), flip_images(copies, flips))


def test_neutral_photometric_parameters_change_nothing():
    images = make_images()
    neutral = torch.tensor([1.0, 1, 1, 0, 1, 1, 1, 1])[:, None].expand(8, 7)
    assert torch.equal(photometric(images, neutral), images)


def test_other_devices_get_the_same_copies_but_for_rounding():
    images, factors = make_images(count=7, height=37, width=53), draw_photometric(7, np.random.default_rng(1))
    found, other = augment._retouch_on_cpu(images, factors), augment._retouch_on_device(images, factors)
    assert (found.int() - other.int()).abs().max() <= 1
    assert (found != other).double().mean() < 1e-4


def test_photometric_is_gain_and_gamma_and_then_the_jitter():
    images, factors = make_images(), draw_photometric(7, np.random.default_rng(1))
    for image, copy, row in zip(images, photometric(images, factors), factors.T, strict=True):
        toned = ((image / 255) * row[5:, None, None]).clamp(max=1) ** row[4]
        for step, operation in enumerate(
            (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
        ):
            toned = operation(toned, float(row[step]))
        assert (copy.double() - toned.double() * 255).abs().max() <= 0.51


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flip_prob": 1.5}, r"`flip_prob` must be in \[0, 1\]; got 1.5"),
        ({"contrast": -0.1}, r"`contrast` must be in \[0, 1\]; got -0.1"),
        ({"hue": 0.3}, r"`hue` must be in \[0, 1/6\] of the colour circle; got 0.3"),
        ({"std": (1, 0, 1)}, r"`mean` and `std` must have an entry per band, std above 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**{"mean": MEAN, "std": STD, **settings})


@pytest.mark.parametrize(
    ("flips", "factors", "order"), [((7, 3), (4, 7), (0,)), ((7, 2), (4, 5), (0,)), ((7, 2), (4, 7), (0, 4))]
)
def test_parameters_that_do_not_fit_are_refused(flips, factors, order):
    with pytest.raises(ValueError, match=r"`flips` must have shape \(B, 2\), `factors` \(4, B\), and `order` entries"):
        Draws(torch.zeros(flips, dtype=torch.bool), torch.ones(factors), order)


def test_images_of_another_kind_are_refused():
    augmentation, generator = Augmentation(mean=MEAN, std=STD), np.random.default_rng(0)
    with pytest.raises(
        TypeError, match=r"`images` must be uint8 or uint16, as Pool.gather\(\) gives them; got torch.float32"
    ):
        augmentation(make_images().float(), generator)
    with pytest.raises(ValueError, match=r"shape \(B, 3, H, W\) with B = 7; got \(7, 1, 10, 14\)"):
        augmentation(make_images()[:, :1], generator)
    with pytest.raises(ValueError, match=r"with B = 5; got \(7, 3, 10, 14\)"):
        augmentation.apply(make_images(), augmentation.draw(5, generator))


def oracle_bands(images, draws):
    """Flip, then brightness and contrast of each band in the drawn order, on [0, 1] in float64."""
    white = np.iinfo(images.numpy().dtype).max
    results = []
    for n, image in enumerate(images.numpy().astype(np.float64) / white):
        horizontal, vertical = draws.flips[n].tolist()
        values = image[:, :: -1 if vertical else 1, :: -1 if horizontal else 1].copy()
        for step in draws.order:
            factor = float(draws.factors[step, n])
            if step == 0:
                values = np.clip(values * factor, 0, 1)
            elif step == 1:
                means = values.mean(axis=(1, 2), keepdims=True)
                values = np.clip(factor * values + (1 - factor) * means, 0, 1)
        results.append(values)
    return np.stack(results)


def make_bands(bands, dtype, count=4):
    most = np.iinfo(dtype).max
    return torch.from_numpy(np.random.default_rng(bands).integers(0, most, (count, bands, 9, 13)).astype(dtype))


@pytest.mark.parametrize("device_form", [False, True])
@pytest.mark.parametrize(("bands", "dtype"), [(12, "uint16"), (4, "uint8"), (1, "uint16")])
def test_other_bands_change_in_brightness_and_contrast_only(bands, dtype, device_form):
    images, mean, std = make_bands(bands, dtype), (0.3,) * bands, (0.2,) * bands
    augmentation = Augmentation(mean=mean, std=std, brightness=0.4, contrast=0.4)
    draws = augmentation.draw(len(images), np.random.default_rng(5))
    if device_form:
        order = [step for step in draws.order if step < 2]
        found = augment._augment_on_device(images, draws.flips, draws.factors, order, *augmentation._normaliser())
    else:
        found = augmentation.apply(images, draws)
    # The mean of 9 · 13 pixels and ten operations on values up to 1.4, divided by a deviation of 0.2.
    tolerance = bound(9 * 13 + 10, scale=1.4 / 0.2, dtype=torch.float32)
    np.testing.assert_allclose(found.numpy(), (oracle_bands(images, draws) - 0.3) / 0.2, rtol=0, atol=tolerance)


def test_deep_rgb_is_jittered_as_8_bit_rgb_is():
    images = make_images()
    deep = torch.from_numpy(images.numpy().astype(np.uint16) * 257)
    augmentation = Augmentation(mean=MEAN, std=STD)
    draws = augmentation.draw(len(images), np.random.default_rng(3))
    # Four steps of up to 25 operations on values up to 2, divided by a deviation of about 0.2, on either side.
    tolerance = 2 * bound(4 * 25, scale=10, dtype=torch.float32)
    torch.testing.assert_close(
        augmentation.apply(deep, draws), augmentation.apply(images, draws), atol=tolerance, rtol=0
    )


@pytest.mark.parametrize(("bands", "dtype"), [(12, "uint16"), (4, "uint8")])
def test_the_pseudo_domain_of_other_bands_has_gains_gamma_brightness_and_contrast(bands, dtype):
    images = make_bands(bands, dtype)
    white = np.iinfo(dtype).max
    factors = draw_photometric(len(images), np.random.default_rng(1), channels=bands)
    assert factors.shape == (5 + bands, len(images))
    found = photometric(images, factors)
    assert found.dtype == images.dtype
    for n, image in enumerate(images.numpy().astype(np.float64) / white):
        gains, gamma = factors[5:, n].double().numpy()[:, None, None], float(factors[4, n])
        values = np.minimum(image * gains, 1) ** gamma
        values = np.clip(values * float(factors[0, n]), 0, 1)
        means, contrast = values.mean(axis=(1, 2), keepdims=True), float(factors[1, n])
        values = np.clip(contrast * values + (1 - contrast) * means, 0, 1)
        assert np.abs(found[n].numpy() - values * white).max() < 0.5 + 1e-4 * white
