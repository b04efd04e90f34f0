"""Pixels without data get the mean of the others; images without such pixels stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from ldstyle.data.loading.decode import decode
from ldstyle.data.loading.nodata import fill, stated_data


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_each_band_is_filled_with_the_mean_of_its_pixels_with_data(dtype):
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 250, (3, 5, 7)).astype(dtype)
    valid = generator.random((5, 7)) < 0.6
    before = pixels.copy()
    found = fill(pixels, valid)
    assert found.dtype == dtype
    for band in range(3):
        known = [float(pixels[band, y, x]) for y in range(5) for x in range(7) if valid[y, x]]
        mean = sum(known) / len(known)
        for y in range(5):
            for x in range(7):
                expected = pixels[band, y, x] if valid[y, x] else mean if dtype == "float32" else round(mean)
                assert found[band, y, x] == np.dtype(dtype).type(expected)
    np.testing.assert_array_equal(pixels, before)


def test_an_image_with_data_everywhere_is_returned_itself_and_one_without_any_is_zero():
    pixels = np.full((2, 3, 4), 9, dtype=np.uint8)
    assert fill(pixels, np.ones((3, 4), dtype=bool)) is pixels
    assert not fill(pixels, np.zeros((3, 4), dtype=bool)).any()


def test_a_pixel_has_data_if_any_band_differs_from_the_nodata_value():
    pixels = np.array([[[0, 0, 5]], [[0, 7, 5]]], dtype=np.uint8)
    assert stated_data(pixels, 0.0).tolist() == [[False, True, True]]
    for nothing in (None, -9999.0, float("nan")):
        assert stated_data(pixels, nothing).all()


@pytest.mark.parametrize("text", [None, "7", "-9999", "nan", "black"])
def test_8_bit_images_without_pixels_of_a_nodata_value_stay_as_they_are(tmp_path, text):
    pixels = np.random.default_rng(0).integers(8, 255, (9, 11, 3)).astype(np.uint8)
    pixels[:4] = 0
    tags = {} if text is None else {42113: text}
    Image.fromarray(pixels).save(tmp_path / "a.tif", tiffinfo=tags)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode(tmp_path / "a.tif", 6), decode(tmp_path / "a.png", 6))


def test_8_bit_images_are_filled_before_they_are_resized(tmp_path):
    pixels = np.random.default_rng(0).integers(8, 255, (9, 11, 3)).astype(np.uint8)
    pixels[:4] = 0
    Image.fromarray(pixels).save(tmp_path / "a.tif", tiffinfo={42113: "0"})
    pixels[:4] = np.round(pixels[4:].mean(axis=(0, 1), dtype=np.float64))
    Image.fromarray(pixels).save(tmp_path / "b.png")
    np.testing.assert_array_equal(decode(tmp_path / "a.tif", 6), decode(tmp_path / "b.png", 6))
