import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from ldstyle.data.domains.scene_table import IMAGE_SUFFIXES
from ldstyle.data.loading.decode import decode, decode_mask, image_size


def scene(height=12, width=12, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def sixteen_bit_png(pixels):
    """Write 16-bit colour by hand; Pillow reads such files and cannot write them."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in [*chunks, (b"IEND", b"")]
    )
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_an_image_of_the_right_size_keeps_its_pixels(tmp_path, suffix):
    Image.fromarray(scene()).save(tmp_path / f"a.{suffix}")
    decoded = decode(tmp_path / f"a.{suffix}", 12)
    assert decoded.dtype == np.uint8
    assert decoded.flags.c_contiguous
    assert np.array_equal(decoded, scene().transpose(2, 0, 1))


def test_odd_sizes_are_resized_to_the_square_with_antialiasing(tmp_path):
    stripes = np.zeros((90, 64, 3), dtype=np.uint8)
    stripes[:, ::2] = 200
    Image.fromarray(stripes).save(tmp_path / "a.png")
    decoded = decode(tmp_path / "a.png", 8)
    assert decoded.shape == (3, 8, 8)
    # Without antialiasing, a reduction by eight would hit stripes or gaps only.
    assert np.abs(decoded.astype(int) - 100).max() <= 7


def test_jpeg_is_reduced_from_its_full_size(tmp_path):
    Image.fromarray(scene(64, 64)).save(tmp_path / "a.jpg", quality=90)
    with Image.open(tmp_path / "a.jpg") as image:
        expected = np.asarray(image.convert("RGB").resize((8, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(decode(tmp_path / "a.jpg", 8), expected.transpose(2, 0, 1))


def test_content_that_was_read_already_is_not_read_again(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(scene()).save(buffer, "PNG")
    decoded = decode(tmp_path / "absent.png", 12, content=buffer.getvalue())
    assert np.array_equal(decoded, scene().transpose(2, 0, 1))


def test_one_channel_becomes_three(tmp_path):
    grey = scene()[..., 0]
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey > 127).save(tmp_path / "bit.png")
    assert np.array_equal(decode(tmp_path / "grey.png", 12), np.stack([grey] * 3))
    assert np.array_equal(decode(tmp_path / "bit.png", 12), np.stack([(grey > 127) * np.uint8(255)] * 3))


def test_alpha_is_dropped_and_colours_stay(tmp_path):
    alpha = np.zeros((12, 12, 1), dtype=np.uint8)
    Image.fromarray(np.concatenate([scene(), alpha], axis=2)).save(tmp_path / "rgba.png")
    assert np.array_equal(decode(tmp_path / "rgba.png", 12), scene().transpose(2, 0, 1))


def test_palettes_give_their_colours_with_and_without_transparency(tmp_path):
    palette = Image.new("P", (12, 12), 1)
    palette.putpalette([0, 0, 0, 10, 120, 230])
    palette.save(tmp_path / "plain.png")
    palette.save(tmp_path / "clear.png", transparency=bytes([0, 128]))
    for name in ("plain.png", "clear.png"):
        assert (decode(tmp_path / name, 12) == np.array([10, 120, 230])[:, None, None]).all()


def test_cmyk_is_converted(tmp_path):
    Image.new("CMYK", (12, 12), (255, 0, 0, 0)).save(tmp_path / "a.tif")
    assert (decode(tmp_path / "a.tif", 12) == np.array([0, 255, 255])[:, None, None]).all()
    Image.new("CMYK", (12, 12), (0, 0, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    found = decode(tmp_path / "a.jpg", 12).astype(int)
    assert np.abs(found - np.array([255, 255, 0])[:, None, None]).max() <= 3


DEEP = np.linspace(0, 65535, 144).reshape(12, 12).astype(np.uint16)


@pytest.mark.parametrize(("name", "dtype"), [("a.png", "<u2"), ("a.tif", "<u2"), ("a.tif", ">u2"), ("a.tif", "<i2")])
def test_deep_grey_is_refused_with_the_way_out(tmp_path, name, dtype):
    Image.fromarray(DEEP.astype(dtype)).save(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name}' cannot be used: .*8 bits per channel.*--range LOW HIGH"):
        decode(tmp_path / name, 12)


def test_deep_colour_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "a.png").write_bytes(sixteen_bit_png(np.stack([DEEP, DEEP // 2, DEEP // 3], axis=2)))
    with pytest.raises(ValueError, match=r"a\.png' cannot be used: .*8 bits per channel.*--range LOW HIGH"):
        decode(tmp_path / "a.png", 12)


@pytest.mark.parametrize("compression", ["none", "deflate"])
def test_deep_colour_in_tiff_is_refused(tmp_path, compression):
    rasterio = pytest.importorskip("rasterio")
    profile = {"driver": "GTiff", "width": 12, "height": 12, "count": 3, "dtype": "uint16", "photometric": "RGB"}
    with rasterio.open(
        tmp_path / "a.tif", "w", **profile, interleave="pixel", compress=compression, transform=rasterio.Affine.scale(2)
    ) as file:
        file.write(np.stack([DEEP] * 3))
    with pytest.raises(ValueError, match=r"a\.tif' cannot be used: .*8 bits per channel.*--range LOW HIGH"):
        decode(tmp_path / "a.tif", 12)


@pytest.mark.parametrize(("mode", "value"), [("F", 0.5), ("I", 70000)])
def test_values_without_a_known_range_are_refused(tmp_path, mode, value):
    Image.new(mode, (12, 12), value).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=rf"a\.tif' cannot be used: mode {mode} has no known range"):
        decode(tmp_path / "a.tif", 12)


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_each_listed_suffix_is_read(tmp_path, suffix):
    Image.new("RGB", (12, 12), (200, 100, 50)).save(tmp_path / f"a{suffix}")
    found = decode(tmp_path / f"a{suffix}", 12).astype(int)
    assert np.abs(found - np.array([200, 100, 50])[:, None, None]).max() <= 3


def test_postscript_under_the_name_of_an_image_starts_no_program(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *arguments: started.append(arguments))
    Image.new("RGB", (12, 12)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    for read in (decode, decode_mask):
        with pytest.raises(ValueError, match=r"a\.png' cannot be used: its format is none of BMP"):
            read(tmp_path / "a.png", 12)
    assert not started


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, suffix, orientation):
    pixels = np.zeros((16, 32, 3), dtype=np.uint8)
    pixels[:8, :16] = 255
    exif = Image.Exif()
    exif[274] = orientation
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(pixels).save(path, exif=exif, **({"lossless": True} if suffix == "webp" else {}))
    # Which corner of the upright image the first stored corner is, by the EXIF standard.
    row, column = {1: (0, 0), 2: (0, 1), 3: (1, 1), 4: (1, 0), 5: (0, 0), 6: (0, 1), 7: (1, 1), 8: (1, 0)}[orientation]
    corners = decode(path, 2)[0] > 127
    expected = np.zeros((2, 2), dtype=bool)
    expected[row, column] = True
    assert np.array_equal(corners, expected)
    assert image_size(path) == ((32, 16) if orientation < 5 else (16, 32))


def test_masks_are_turned_as_images_are(tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    bits = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    Image.fromarray(bits).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(decode_mask(tmp_path / "a.png", 2), np.rot90(bits, -1))


def declared_png(width, height):
    """Return a PNG file that declares a size and holds hardly any pixels."""
    content = bytearray(sixteen_bit_png(np.zeros((1, 1, 3), dtype=np.uint16)))
    content[16:29] = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.parametrize("size", [(10**6, 10**6), (10**6, 1), (0, 5), (2**31 - 1, 2**31 - 1)])
def test_sizes_that_are_only_declared_are_refused(tmp_path, size):
    (tmp_path / "a.png").write_bytes(declared_png(*size))
    with pytest.raises(ValueError, match=r"a\.png' cannot be used: \w"):
        decode(tmp_path / "a.png", 8)


def test_a_pipe_is_refused_instead_of_waited_on(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png' cannot be used: it is not a regular file"):
        decode(tmp_path / "a.png", 8)


@pytest.mark.parametrize("suffix", ["gif", "png", "tif"])
def test_several_frames_are_refused(tmp_path, suffix):
    frames = [Image.fromarray(scene(seed=i)) for i in range(3)]
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match=rf"a\.{suffix}' cannot be used: it has 3 frames"):
        decode(tmp_path / f"a.{suffix}", 12)


def test_overviews_and_masks_of_a_cloud_optimized_geotiff_are_no_frames(tmp_path):
    rasterio, copying = pytest.importorskip("rasterio"), pytest.importorskip("rasterio.shutil")
    pixels = scene(256, 256)
    place = rasterio.Affine(1, 0, 5, 0, -1, 5)
    profile = {"driver": "GTiff", "height": 256, "width": 256, "count": 3, "dtype": "uint8", "transform": place}
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        with rasterio.open(tmp_path / "plain.tif", "w", **profile) as file:
            file.write(pixels.transpose(2, 0, 1))
            file.write_mask(pixels[..., 0] > 9)
        copying.copy(tmp_path / "plain.tif", tmp_path / "a.tif", driver="COG", blocksize=128, compress="lzw")
    with rasterio.open(tmp_path / "a.tif") as file:
        assert file.overviews(1) == [2]
    assert np.array_equal(decode(tmp_path / "a.tif", 256), pixels.transpose(2, 0, 1))
    assert image_size(tmp_path / "a.tif") == (256, 256)


def test_the_first_picture_of_a_camera_pair_is_taken(tmp_path):
    frames = [Image.fromarray(np.full((16, 16, 3), value, dtype=np.uint8)) for value in (60, 200)]
    frames[0].save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=frames[1:])
    assert np.abs(decode(tmp_path / "a.jpg", 16).astype(int) - 60).max() <= 2


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
@pytest.mark.parametrize("share", [0.5, 0.98])
def test_truncated_files_are_named(tmp_path, suffix, share):
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(scene(64, 64)).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=rf"a\.{suffix}' cannot be used: "):
        decode(path, 8)


def test_many_bands_name_the_setting_and_pillow_is_silent(tmp_path, capfd):
    rasterio = pytest.importorskip("rasterio")
    path, place = tmp_path / "a.tif", rasterio.Affine(1, 0, 5, 0, -1, 5)
    with rasterio.open(
        path, "w", driver="GTiff", height=8, width=8, count=12, dtype="uint16", crs="EPSG:32633", transform=place
    ) as raster:
        raster.write(np.ones((12, 8, 8), np.uint16))
    np.save(tmp_path / "a.npy", np.ones((12, 8, 8), np.uint16))
    for name in ("a.tif", "a.npy"):
        with pytest.raises(ValueError, match=rf"{name}' cannot be used: it is not 8-bit RGB.* --data.range LOW,HIGH"):
            decode(tmp_path / name, 8)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "it is empty"), (b"not an image", "its format is none of BMP, GIF, JPEG")],
)
def test_other_files_are_named_with_the_reason(tmp_path, content, reason):
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.jpg' cannot be used: {reason}"):
        decode(tmp_path / "a.jpg", 8)
    with pytest.raises(ValueError, match=rf"a\.jpg' cannot be used: {reason}"):
        decode_mask(tmp_path / "a.jpg", 8)


def test_a_broken_chunk_is_named(tmp_path):
    content = bytearray(sixteen_bit_png(np.zeros((8, 8, 3), dtype=np.uint16)))
    content[45] ^= 255
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.png' cannot be used: "):
        decode(tmp_path / "a.png", 8)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.png"):
        decode(tmp_path / "a.png", 8)


def test_masks_keep_their_bits_at_every_size(tmp_path):
    bits = np.random.default_rng(0).integers(0, 64, (20, 20), dtype=np.uint8)
    Image.fromarray(bits).save(tmp_path / "grey.png")
    palette = Image.fromarray(bits).convert("P")
    palette.putdata(bits.ravel().tolist())
    palette.save(tmp_path / "palette.png")
    for name in ("grey.png", "palette.png"):
        assert np.array_equal(decode_mask(tmp_path / name, 20), bits)
        assert np.array_equal(decode_mask(tmp_path / name, 10), bits[1::2, 1::2])
    assert set(np.unique(decode_mask(tmp_path / "grey.png", 33))) <= set(np.unique(bits))


def test_masks_of_several_channels_are_refused(tmp_path):
    Image.fromarray(scene()).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a mask has one 8-bit channel, .* this has mode RGB"):
        decode_mask(tmp_path / "a.png", 12)


@pytest.mark.data
def test_the_official_tiffs_of_odd_size_are_read(real_data):
    sizes = set()
    for path in sorted((real_data / "ucm_original_sample").rglob("*.tif")):
        with Image.open(path) as image:
            sizes.add(image.size)
            expected = np.asarray(image.convert("RGB").resize((128, 128), Image.Resampling.BILINEAR))
        assert np.array_equal(decode(path, 128), expected.transpose(2, 0, 1))
    assert len(sizes) > 1
