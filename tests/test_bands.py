"""Images of many bands and of 16 bits through every command: check, train, evaluate, predict, explain, export, map."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.deploy.models import float32_error

from ldstyle.cli import main
from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.loading.bands import load_image, read_bands
from ldstyle.data.loading.decode import decode
from ldstyle.deploy.classifier import load

rasterio = pytest.importorskip("rasterio")
onnxruntime = pytest.importorskip("onnxruntime")

SIZE = 32
DOMAINS = ("suburb", "harbour", "region")
PLACE = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_000_000)


def deepen(pixels: np.ndarray, bands: int) -> np.ndarray:
    """Add bands to RGB, (3, H, W): mixtures of the colours with other gains, in uint16 up to about 10,000."""
    generator = np.random.default_rng(bands)
    mixture = np.concatenate([np.eye(3), generator.dirichlet(np.ones(3), max(0, bands - 3))])[:bands]
    mixed = np.einsum("bc,chw->bhw", mixture, pixels.astype(np.float64))
    return np.round(mixed * np.linspace(20, 38, bands)[:, None, None] + 200).astype(np.uint16)


def twelve_bands(path: Path, pixels: np.ndarray) -> Path:
    return write_tiff(path.with_suffix(".tif"), deepen(pixels, 12))


def four_bands(path: Path, pixels: np.ndarray) -> Path:
    infrared = (0.3 * pixels[0] + 0.7 * pixels[1]).astype(np.uint8)
    return write_tiff(path.with_suffix(".tif"), np.concatenate([pixels, infrared[None]]))


def deep_grey(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(deepen(pixels, 1)[0]).save(path.with_suffix(".png"))
    return path.with_suffix(".png")


def write_tiff(path: Path, pixels: np.ndarray) -> Path:
    count, height, width = pixels.shape
    profile = {"driver": "GTiff", "count": count, "height": height, "width": width, "dtype": pixels.dtype}
    with rasterio.open(path, "w", **profile, crs="EPSG:32633", transform=PLACE, compress="deflate") as file:
        file.write(pixels)
    return path


CASES = {
    "12 bands of uint16": (twelve_bands, ["--data.bands", "red=1,green=2,blue=3,4,5,6,7,8,9,10,11,12",
                                          "--data.range", "1%,99%"],
                           ["--bands", *map(str, range(1, 13)), "--range", "0", "10000"]),
    "4 bands of uint8": (four_bands, ["--data.bands", "1,2,3,nir=4"], ["--bands", "1", "2", "3", "4"]),
    "16-bit grey PNG": (deep_grey, ["--data.range", "200,5300"], ["--range", "200", "5300"]),
}  # fmt: skip


def convert(root: Path, out: Path, write, *, per_domain: int = 16) -> Path:
    """Write a data folder with a table and converted images for each domain."""
    for table in read_domains(root, DOMAINS):
        folder = out / table.domain
        folder.mkdir(parents=True)
        with (folder / "labels.csv").open("w", newline="") as file:
            sheet = csv.writer(file)
            sheet.writerow(["path", *table.vocabulary])
            for row in range(min(per_domain, len(table))):
                path = write(folder / f"{row:03d}", decode(table.path(row), SIZE))
                sheet.writerow([path.name, *("" if value < 0 else int(value) for value in table.labels[row])])
    return out


def go_through(root: Path, tmp_path: Path, case: str, capsys, *, per_domain: int = 16) -> Path:
    """Run every command on converted images and return the folder of the run."""
    write, settings, options = CASES[case]
    data, run = convert(root, tmp_path / "data", write, per_domain=per_domain), tmp_path / "run"
    assert main(["data", "check", "--data", str(data), *options]) == 0, capsys.readouterr().out
    train = ["train", "--method", "ld-mixstyle", "--data", str(data), "--sources", *DOMAINS[:2], "--out", str(run)]
    tiny = ["--backbone.name", "test_resnet", "--backbone.weights", "none", "--optimizer.batch-size", "8"]
    short = ["--optimizer.epochs", "2", "--optimizer.steps-per-epoch", "1", "--style.warmup-epochs", "1"]
    rest = ["--size", str(SIZE), "--cache", str(tmp_path / "cache"), "--accelerator", "cpu", "--logger", "none"]
    assert main([*train, *tiny, *short, *rest, *settings, "--quiet"]) == 0
    assert main(["evaluate", str(run), "--domain", DOMAINS[2], "--quiet"]) == 0
    images = sorted(path for path in (data / DOMAINS[2]).iterdir() if path.name != "labels.csv")[:3]
    table = tmp_path / "table.csv"
    assert main(["predict", str(run), *map(str, images), "--out", str(table), "--device", "cpu", "--quiet"]) == 0
    assert main(["explain", str(run), str(images[0]), "--out", str(tmp_path / "sheets"), "--size", "48"]) == 0
    model = tmp_path / "model.onnx"
    assert main(["export", str(run), "--format", "onnx", "--out", str(model)]) == 0
    map_ = tmp_path / "map.tif"
    assert main(["map", str(run), str(images[0]), "--out", str(map_), "--overlap", "1", "--preview"]) == 0
    check_outputs(run, images, table, model, map_)
    return run


def check_outputs(run: Path, images: list[Path], table: Path, model: Path, map_: Path) -> None:
    """All commands see the same numbers: of files, of ONNX, of a scene that is one tile."""
    classifier = load(run)
    expected = classifier.predict(images).probabilities.numpy()
    with table.open() as file:
        rows = list(csv.DictReader(file))
    named = [[float(row[f"probability_{name}"]) for name in classifier.vocabulary] for row in rows]
    np.testing.assert_allclose(named, expected, rtol=5e-6)  # the same batch, printed to six digits
    error = float32_error(classifier.backbone)
    inputs = classifier.normalise(torch.stack([torch.from_numpy(pixels) for pixels in _pixels(classifier, images)]))
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {"images": inputs.numpy()})[0]
    with torch.no_grad():
        np.testing.assert_allclose(logits, classifier.backbone(inputs).numpy(), rtol=0, atol=2 * 8 * error)
    with rasterio.open(map_) as raster:
        values = raster.read()
        np.testing.assert_allclose(values[:, 0, 0], expected[0], rtol=0, atol=2 * error)
    item = json.loads(map_.with_suffix(".stac.json").read_text())
    names = list(classifier.model.image_format.names)
    assert item["properties"]["mlm:input"][0]["bands"] == names
    assert [band["name"] for band in item["properties"]["bands"]] == names
    check_scaling(item["properties"]["mlm:input"][0]["value_scaling"], classifier, images)
    assert "data:image/jpeg;base64," in map_.with_suffix(".html").read_text()


def check_scaling(scaling, classifier, images) -> None:
    """The item states how the values of the files become the model's inputs, where they are inside the range."""
    values = read_bands(images[0]).astype(np.float64)
    inputs = classifier.normalise(torch.from_numpy(_pixels(classifier, images[:1])[0])[None])[0].numpy()
    for band, (number, (low, high)) in enumerate(
        zip(classifier.model.image_format.bands, classifier.model.image_format.limits, strict=True)
    ):
        inside = (values[number - 1] >= low) & (values[number - 1] <= high)
        expected = (values[number - 1] - scaling[band]["mean"]) / scaling[band]["stddev"]
        np.testing.assert_allclose(inputs[band][inside], expected[inside], atol=1e-3)


def _pixels(classifier, images):
    return [load_image(path, classifier.size, classifier.model.image_format) for path in images]


@pytest.mark.parametrize("case", CASES)
def test_images_go_through_every_command(scenes, tmp_path, case, capsys):
    run = go_through(scenes, tmp_path, case, capsys)
    images = json.loads((run / "model.json").read_text())["images"]
    count, dtype = {"1": (12, "uint16"), "4": (4, "uint8")}[case[0]] if case[2] != "-" else (1, "uint16")
    assert (images["count"], images["dtype"], len(images["bands"])) == (count, dtype, count)
    if count == 12:
        assert images["names"][:4] == ["red", "green", "blue", "band 4"]
        assert all(200 <= low < high <= 10_000 for low, high in images["range"])


@pytest.mark.data
@pytest.mark.parametrize("case", CASES)
def test_bands_of_real_imagery_go_through_every_command(real_data, tmp_path, case, capsys, monkeypatch):
    """Real images of three domains with synthetic extra bands; the same path as for synthetic scenes."""
    monkeypatch.setattr("tests.test_bands.DOMAINS", ("ucm", "drone", "dubai"))
    go_through(real_data, tmp_path, case, capsys)


def make_set(folder: Path, arrays: list[np.ndarray]) -> Path:
    (folder / "city").mkdir(parents=True)
    for number, values in enumerate(arrays):
        np.save(folder / "city" / f"{number}.npy", values)
    rows = "".join(f"{number}.npy,{number % 2}\n" for number in range(len(arrays)))
    (folder / "city" / "labels.csv").write_text(f"path,tree\n{rows}")
    return folder


def grey(value: float, dtype: str = "uint16", *, bands: int = 2) -> np.ndarray:
    return np.full((bands, 6, 6), value).astype(dtype)


@pytest.mark.parametrize(
    ("odd", "options", "message"),
    [
        (grey(9, bands=3), ["--range", "0", "10"], r"3 bands where the other images have 2"),
        (grey(9, "uint8"), ["--range", "0", "10"], r"its values are uint8 where the other images have uint16"),
        (grey(9), ["--bands", "1"], r"data\.range must be given for images of uint16"),
        (grey(9), [], r"--data\.bands"),
        (grey(9), ["--bands", "3", "--range", "0", "10"], r"numbers in 1 \.\. 2.*got 3"),
        (grey(9, "float64"), ["--range", "0", "10"], r"its values are float64"),
    ],
)
def test_the_check_names_bad_mixtures(tmp_path, capsys, odd, options, message):
    data = make_set(tmp_path / "data", [grey(5), grey(7), odd])
    assert main(["data", "check", "--data", str(data), *options]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(message, printed), printed


def test_the_check_names_pixels_that_are_no_numbers(tmp_path, capsys):
    holes = grey(0.5, "float32")
    holes[0, :2] = np.inf
    data = make_set(tmp_path / "data", [grey(0.1, "float32"), holes])
    assert main(["data", "check", "--data", str(data), "--range", "0", "1"]) == 1
    assert "12 of its 72 values are infinite" in " ".join(capsys.readouterr().out.split())
