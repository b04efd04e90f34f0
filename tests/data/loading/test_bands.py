import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.bands import find_format, image_extent, load_image, read_bands, read_picture, scale_values
from ldstyle.data.loading.cache import open_cache
from ldstyle.data.loading.image_format import ImageFormat, described_format, parse_bands, parse_range
from ldstyle.data.loading.pool import Pool


def values(bands=5, height=12, width=14, dtype="uint16", seed=0):
    return np.random.default_rng(seed).integers(0, 4000, (bands, height, width)).astype(dtype)


def format_of(bands=(1, 2, 3), count=5, dtype="uint16", limits=(0.0, 4000.0)):
    names = tuple(f"band {band}" for band in bands)
    return ImageFormat(tuple(bands), names, count, dtype, (limits,) * len(bands))


def write_tiff(path, pixels, **profile):
    rasterio = pytest.importorskip("rasterio")
    count, height, width = pixels.shape
    settings = {"driver": "GTiff", "count": count, "height": height, "width": width, "dtype": pixels.dtype}
    with rasterio.open(path, "w", **settings, transform=rasterio.Affine.scale(2), **profile) as file:
        file.write(pixels)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_geotiff_and_numpy_give_the_values_that_were_written(tmp_path, dtype):
    expected = (values(12) % 200 - (0 if dtype.startswith("u") else 90)).astype(dtype)
    write_tiff(tmp_path / "a.tif", expected, compress="deflate")
    np.save(tmp_path / "a.npy", expected)
    np.save(tmp_path / "swapped.npy", expected.astype(expected.dtype.newbyteorder(">")))
    for name in ("a.tif", "a.npy", "swapped.npy"):
        found = read_bands(tmp_path / name)
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found, expected)
        assert image_extent(tmp_path / name) == (14, 12)


def test_a_raster_without_a_place_is_read_without_a_warning(tmp_path):
    rasterio = pytest.importorskip("rasterio")
    profile = {"driver": "GTiff", "count": 5, "height": 12, "width": 14, "dtype": "uint16"}
    with rasterio.MemoryFile() as memory:
        with pytest.warns(rasterio.errors.NotGeoreferencedWarning), memory.open(**profile) as file:
            file.write(values())
        (tmp_path / "a.tif").write_bytes(bytes(memory.getbuffer()))
    np.testing.assert_array_equal(read_bands(tmp_path / "a.tif"), values())


def test_grey_png_of_16_bits_keeps_its_low_byte(tmp_path):
    Image.fromarray(values(1)[0]).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_bands(tmp_path / "a.png"), values(1))


def test_colour_png_of_16_bits_keeps_its_low_byte(tmp_path):
    pytest.importorskip("rasterio")
    pixels = values(3)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels.transpose(1, 2, 0))
    header = struct.pack(">IIBBBBB", 14, 12, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    np.testing.assert_array_equal(read_bands(tmp_path / "a.png"), pixels)


def test_alpha_is_a_band_where_bands_are_stated(tmp_path):
    pixels = values(4, dtype="uint8")
    Image.fromarray(pixels.transpose(1, 2, 0)).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_bands(tmp_path / "a.png"), pixels)


def test_bands_are_chosen_and_brought_from_their_range_to_16_bits(tmp_path):
    pixels = values(5, 9, 9)
    np.save(tmp_path / "a.npy", pixels)
    limits = ((100.0, 3100.0), (0.0, 2000.0))
    found = load_image(tmp_path / "a.npy", 9, ImageFormat((4, 2), ("a", "b"), 5, "uint16", limits))
    assert found.dtype == np.uint16
    for band, number, (low, high) in zip(found, (3, 1), limits, strict=True):
        exact = (np.clip(pixels[number].astype(np.float64), low, high) - low) / (high - low) * 65535
        assert np.abs(band - exact).max() <= 0.51


def test_8_bit_bands_keep_their_values(tmp_path):
    pixels = values(5, 9, 9, dtype="uint8")
    np.save(tmp_path / "a.npy", pixels)
    stated = ImageFormat((5, 1), ("a", "b"), 5, "uint8", ((0.0, 255.0),) * 2)
    found = load_image(tmp_path / "a.npy", 9, stated)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, pixels[[4, 0]])


def test_deep_images_are_reduced_with_antialiasing(tmp_path):
    stripes = np.zeros((1, 64, 64), dtype=np.uint16)
    stripes[:, :, ::2] = 4000
    np.save(tmp_path / "a.npy", stripes)
    found = load_image(tmp_path / "a.npy", 8, format_of((1,), 1)) / 65535
    assert np.abs(found - 0.5).max() < 0.04


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (values(4), r"4 bands where the other images have 5"),
        (values(5, dtype="uint8"), r"values are uint8 where the other images have uint16"),
        (values(5, dtype="float64"), r"values are float64\. Store them as one of uint8, uint16, int16, float32"),
        (values(5).transpose(1, 2, 0), r"must be \(bands, height, width\).*got \(12, 14, 5\)"),
        (values(5)[None], r"must be \(bands, height, width\)"),
        (np.array([{"code": 1}], dtype=object), r"allow_pickle=False"),
    ],
)
def test_images_of_another_layout_are_refused(tmp_path, content, message):
    np.save(tmp_path / "a.npy", content, allow_pickle=True)
    with pytest.raises(ValueError, match=rf"a\.npy' cannot be used: .*{message}"):
        load_image(tmp_path / "a.npy", 8, format_of())


def test_infinite_values_are_refused_in_chosen_bands(tmp_path):
    pixels = values(dtype="float32")
    pixels[4, 0, :3] = np.inf
    np.save(tmp_path / "a.npy", pixels)
    with pytest.raises(ValueError, match=r"a\.npy' cannot be used: 3 of its 168 values are infinite\. .*NaN"):
        load_image(tmp_path / "a.npy", 8, format_of((5,), dtype="float32"))
    assert load_image(tmp_path / "a.npy", 8, format_of((1,), dtype="float32")).shape == (1, 8, 8)


def test_nan_in_a_chosen_band_is_no_data(tmp_path):
    pixels = values(height=8, width=8, dtype="float32")
    pixels[4, 0, :3] = np.nan
    np.save(tmp_path / "a.npy", pixels)
    image_format = format_of((5, 1), dtype="float32")
    found = load_image(tmp_path / "a.npy", 8, image_format)
    for band, filled in zip((5, 1), found, strict=True):
        others = scale_values(np.delete(pixels[band - 1].ravel(), [0, 1, 2])[None], format_of((band,), dtype="float32"))
        assert filled[0, :3].tolist() == [np.round(others.mean(dtype=np.float64))] * 3
        np.testing.assert_array_equal(filled.ravel()[3:], others[0])
    np.testing.assert_array_equal(found[1], load_image(tmp_path / "a.npy", 8, image_format)[1])
    whole = load_image(tmp_path / "a.npy", 8, format_of((1,), dtype="float32"))
    np.testing.assert_array_equal(whole, scale_values(pixels[:1], format_of((1,), dtype="float32")))


@pytest.mark.parametrize("how", ["nodata", "nan"])
def test_an_image_without_any_data_is_refused(tmp_path, how):
    image = np.full((5, 12, 14), -9999 if how == "nodata" else np.nan, "float32")
    write_tiff(tmp_path / "a.tif", image, nodata=-9999)
    with pytest.raises(ValueError, match=r"a\.tif' cannot be used: none of its pixels has data"):
        load_image(tmp_path / "a.tif", 8, format_of(dtype="float32"))


def test_the_mask_of_a_geotiff_is_no_data_unless_it_is_a_chosen_band(tmp_path):
    image = values(4, dtype="uint8", height=8, width=8)
    image[3] = 255
    image[3, :2] = 0
    write_tiff(tmp_path / "a.tif", image, photometric="rgb", alpha="yes")
    stated = ImageFormat((1, 2, 3), ("r", "g", "b"), 4, "uint8", ((0.0, 255.0),) * 3)
    found = load_image(tmp_path / "a.tif", 8, stated)
    np.testing.assert_array_equal(found[:, 2:], image[:3, 2:])
    mean = np.round(image[:3, 2:].mean(axis=(1, 2), dtype=np.float64))
    np.testing.assert_array_equal(found[:, :2], np.broadcast_to(mean[:, None, None], (3, 2, 8)))
    all_bands = ImageFormat((1, 2, 3, 4), ("r", "g", "b", "a"), 4, "uint8", ((0.0, 255.0),) * 4)
    np.testing.assert_array_equal(load_image(tmp_path / "a.tif", 8, all_bands), image)


def test_16_bit_integers_with_and_without_sign_are_alike(tmp_path):
    np.save(tmp_path / "a.npy", values(dtype="int16"))
    np.save(tmp_path / "b.npy", values(dtype="uint16"))
    signed, plain = (load_image(tmp_path / name, 8, format_of()) for name in ("a.npy", "b.npy"))
    np.testing.assert_array_equal(signed, plain)


def test_a_truncated_geotiff_is_named_with_the_reason(tmp_path):
    write_tiff(tmp_path / "a.tif", values(5, 200, 200), compress="deflate")
    (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:-20_000])
    with pytest.raises(ValueError, match=r"a\.tif' cannot be used: .*TIFFReadEncodedStrip"):
        load_image(tmp_path / "a.tif", 8, format_of())


@pytest.mark.parametrize("content", [b"\x93NUMPY\x01\x00", b"II*\0" + b"\0" * 20, b"MM\0*junk", b""])
def test_damaged_files_are_named(tmp_path, content):
    (tmp_path / "a.tif").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.tif' cannot be used: "):
        load_image(tmp_path / "a.tif", 8, format_of())


def table_of(folder, images):
    for number, image in enumerate(images):
        np.save(folder / f"{number}.npy", image)
    labels = np.ones((len(images), 1), dtype=np.int8)
    return SceneTable("city", folder, ("tree",), tuple(f"{n}.npy" for n in range(len(images))), labels)


def test_percentiles_are_those_of_the_given_rows(tmp_path):
    images = [values(seed=seed) for seed in range(4)]
    table = table_of(tmp_path, [*images[:3], images[3] * 9])
    found = find_format(("nir=4", 1), ("5%", "95%"), [table], [[0, 1, 2]])
    assert found.names == ("nir", "band 1")
    for band, limits in zip((3, 0), found.limits, strict=True):
        exact = np.percentile(np.stack([image[band] for image in images[:3]]), [5, 95])
        np.testing.assert_allclose(limits, exact)


def test_percentiles_leave_out_pixels_without_data(tmp_path):
    images = [values(2, seed=seed).astype("float32") for seed in range(3)]
    for number, image in enumerate(images):
        image[:, :4] = -9999  # a third of the pixels
        write_tiff(tmp_path / f"{number}.tif", image, nodata=-9999)
    table = SceneTable("city", tmp_path, ("tree",), ("0.tif", "1.tif", "2.tif"), np.ones((3, 1), dtype=np.int8))
    image_format = find_format((), ("1%", "99%"), [table], [[0, 1, 2]])
    measured = np.concatenate([image[:, 4:].reshape(2, -1) for image in images], axis=1)
    np.testing.assert_allclose(image_format.limits, np.percentile(measured, (1, 99), axis=1).T)
    write_tiff(tmp_path / "0.tif", np.full((2, 12, 14), -9999, "float32"), nodata=-9999)
    with pytest.raises(ValueError, match=r"0\.tif' cannot be used: none of its pixels has data"):
        find_format((), ("1%", "99%"), [table], [[0]])


def test_a_picture_of_one_value_is_black(tmp_path):
    np.save(tmp_path / "a.npy", np.full((3, 6, 6), 900, "uint16"))
    assert not read_picture(tmp_path / "a.npy", 6, ()).any()


def test_neither_bands_nor_range_is_8_bit_rgb(tmp_path):
    assert find_format((), (), [table_of(tmp_path, [values()])], [[0]]) is None


@pytest.mark.parametrize(
    ("bands", "limits", "message"),
    [
        ((1,), (), r"data\.range must be given for images of uint16.*e\.g\. 0,10000"),
        ((6,), (0, 9), r"data\.bands must be numbers in 1 \.\. 5.*got 6"),
        ((1, 2), (0, 9, 0, 9, 0, 9), r"two for each of 2 bands \(band 1, band 2\); got 6 numbers"),
    ],
)
def test_settings_that_do_not_fit_the_images_are_refused(tmp_path, bands, limits, message):
    with pytest.raises(ValueError, match=message):
        find_format(bands, limits, [table_of(tmp_path, [values()])], [[0]])


def test_percentiles_of_a_constant_band_are_refused(tmp_path):
    image = values()
    image[2] = 7
    with pytest.raises(ValueError, match=r"in band 3 both are 7\. Leave the band out of data\.bands"):
        find_format((), ("1%", "99%"), [table_of(tmp_path, [image])], [[0]])


@pytest.mark.parametrize("bands", [("red",), (0,), ("red=x",), (-1,)])
def test_bands_are_numbers_or_named_numbers(bands):
    with pytest.raises(ValueError, match=r"data\.bands must be numbers from 1, or NAME=NUMBER"):
        parse_bands(bands)


def test_a_band_name_stands_once():
    with pytest.raises(ValueError, match=r"data\.bands .*'a' occurs twice"):
        parse_bands(("a=1", "a=2"))


@pytest.mark.parametrize("limits", [(1,), (5, 5), ("1%", 99), ("-1%", "99%"), ("a", "b"), ("1%", "9%", "1%", "9%")])
def test_ranges_are_rising_pairs_or_two_percentiles(limits):
    with pytest.raises(ValueError, match=r"data\.range must be two rising numbers, two per band, or two percentiles"):
        parse_range(limits)


def test_a_format_round_trips_through_its_description():
    stated = format_of((4, 1), limits=(0.5, 2.5))
    assert described_format(stated.describe()) == stated


def test_pictures_show_the_bands_named_red_green_and_blue(tmp_path):
    pixels = np.tile(np.arange(16, dtype=np.uint16).reshape(1, 4, 4), (5, 1, 1)) * np.arange(1, 6)[:, None, None]
    pixels[1] = pixels[1].max() - pixels[1]
    np.save(tmp_path / "a.npy", pixels.astype(np.uint16))
    stated = ImageFormat((4, 2, 1), ("red", "blue", "green"), 5, "uint16", ((0.0, 99.0),) * 3)
    assert stated.shown == (4, 1, 2)
    picture = read_picture(tmp_path / "a.npy", 4, stated.shown)
    assert picture.dtype == np.uint8
    assert (picture.min(axis=(1, 2)), picture.max(axis=(1, 2))) == (pytest.approx(0), pytest.approx(255))
    assert np.array_equal(picture[0], picture[1])
    assert np.array_equal(picture[2], picture[0][::-1, ::-1])
    assert read_picture(tmp_path / "a.npy", 4, ()).shape == (3, 4, 4)


def test_the_cache_of_deep_images_holds_them_and_depends_on_the_range(tmp_path):
    (tmp_path / "images").mkdir()
    table = table_of(tmp_path / "images", [values(seed=seed) for seed in range(3)])
    caches = [
        open_cache(table, size=8, cache_dir=tmp_path / "cache", image_format=format_of(limits=limits))
        for limits in ((0.0, 4000.0), (0.0, 2000.0), (0.0, 4000.0))
    ]
    assert caches[0].digest == caches[2].digest != caches[1].digest
    expected = np.stack([load_image(table.path(row), 8, format_of()) for row in range(3)])
    assert caches[2].images.dtype == np.uint16
    np.testing.assert_array_equal(caches[2].images, expected)


def test_a_photometric_copy_of_deep_images_keeps_their_type(tmp_path):
    (tmp_path / "images").mkdir()
    table = table_of(tmp_path / "images", [values(seed=seed) for seed in range(3)])
    pool = Pool([table], size=8, cache_dir=tmp_path / "cache", pseudo_seed=0, image_format=format_of(range(1, 6)))
    images = pool.gather(range(6)).images.numpy()
    assert images.dtype == np.uint16
    assert images.shape == (6, 5, 8, 8)
    own, copy = images[:3].astype(np.float64), images[3:].astype(np.float64)
    assert np.abs(own - copy).mean() > 1000
    # A gain, gamma and contrast of each band keep the order of its values.
    order = np.argsort(own[0, 2].ravel())
    assert (np.diff(copy[0, 2].ravel()[order]) >= -1).all()
