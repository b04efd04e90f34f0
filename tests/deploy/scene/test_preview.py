from __future__ import annotations

import base64
import json
import re
from html import unescape
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from tests.deploy.models import SIZE, VOCABULARY, pixels, write_model
from tests.report.chromium import EXECUTABLE, Chromium

from ldstyle.deploy.classifier import load
from ldstyle.deploy.scene.mapping import MapOptions, map_scene

rasterio = pytest.importorskip("rasterio")
pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

ROWS, COLUMNS = 5, 7
HOSTILE = "</script><b>tree"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A map of a scene whose last cells reach past it, with a hole, and a label with markup in its name."""
    folder = tmp_path_factory.mktemp("preview")
    write_model(folder / "run", vocabulary=("building", HOSTILE, "water"))
    image = np.maximum(pixels(0, height=ROWS * 16 - 5, width=COLUMNS * 16 - 3), 1)
    image[:16, :16] = 0
    profile = {
        "driver": "GTiff",
        "height": image.shape[0],
        "width": image.shape[1],
        "count": 3,
        "dtype": "uint8",
        "crs": "EPSG:32633",
        "transform": rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_000_000),
        "nodata": 0,
    }
    with rasterio.open(folder / "scene.tif", "w", **profile) as raster:
        raster.write(image.transpose(2, 0, 1))
    options = MapOptions(preview=True, min_valid=0.1)
    return map_scene(load(folder / "run"), folder / "scene.tif", folder / "map.tif", options=options), image


def data_of(page):
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_holds_the_probabilities_of_the_raster(made):
    scene_map, image = made
    data = data_of(scene_map.others["preview"])
    with rasterio.open(scene_map.raster) as raster:
        values = raster.read()
    assert data["shape"] == [ROWS, COLUMNS] == list(values.shape[1:])
    assert np.isnan(values[0, 0, 0])
    for label, expected in zip(data["labels"], values, strict=True):
        cells = np.frombuffer(base64.b64decode(label["cells"]), np.uint8).reshape(ROWS, COLUMNS)
        np.testing.assert_array_equal(cells == 255, np.isnan(expected))
        np.testing.assert_allclose(cells[cells != 255] / 250, expected[~np.isnan(expected)], atol=0.5 / 250 + 1e-6)
    assert data["extent"] == [ROWS * 16 / image.shape[0], COLUMNS * 16 / image.shape[1]]
    west, north = data["corners"][0]
    assert (west, north) == pytest.approx((15.0, 45.1534), abs=1e-3)


def test_the_page_asks_for_nothing_and_shows_names_as_they_are(made):
    page = made[0].others["preview"].read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=[\"']?(?!data:)[a-z/.]", page)
    assert HOSTILE not in page
    assert HOSTILE in unescape(page)
    picture = Image.open(BytesIO(base64.b64decode(re.search(r"base64,([^\"]+)", page)[1])))
    assert picture.size == made[1].shape[1::-1]
    expected = made[1].copy()
    expected[:16, :16] = 255  # no data is white
    content = BytesIO()
    Image.fromarray(expected).save(content, "JPEG", quality=82)
    np.testing.assert_array_equal(np.asarray(picture), np.asarray(Image.open(content)))


def test_a_scene_without_position_is_shown_in_pixels(tmp_path):
    write_model(tmp_path / "run")
    Image.fromarray(pixels(1, height=2 * SIZE, width=SIZE)).save(tmp_path / "s.png")
    made = map_scene(
        load(tmp_path / "run"), tmp_path / "s.png", tmp_path / "m.tif", options=MapOptions(preview=True, overlap=1)
    )
    assert data_of(made.others["preview"])["corners"] is None


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if EXECUTABLE is None:
        pytest.skip("Chromium is not installed")
    with Chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def click(browser, x, y):
    """Click at fractions of the scene."""
    left, top, width, height = browser.run(
        "(() => { const e = document.getElementById('scene'); e.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"
    )
    place = {"x": left + x * width, "y": top + y * height, "button": "left", "clickCount": 1}
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, **place)


@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_works_in_a_browser(made, browser, width, tmp_path):
    scene_map, image = made
    browser.open(scene_map.others["preview"], width=width)
    assert browser.complaints == []
    assert all(address.startswith(("file:", "data:")) for address in browser.requests)
    assert browser.run("document.documentElement.scrollWidth") <= width  # nothing is cut off at the right
    beside = browser.run(
        "document.querySelector('aside').getBoundingClientRect().left >= "
        "document.getElementById('stage').getBoundingClientRect().right"
    )
    assert beside == (width > 760)
    assert browser.run("document.querySelectorAll('#stage canvas').length") == len(VOCABULARY)

    with rasterio.open(scene_map.raster) as raster:
        values = raster.read()
    row, column = 3, 5
    click(browser, (column + 0.5) * 16 / image.shape[1], (row + 0.5) * 16 / image.shape[0])
    for label in range(len(VOCABULARY)):
        shown = browser.run(f"document.getElementById('value-{label}').textContent")
        assert float(shown) == pytest.approx(values[label, row, column], abs=0.0075)
    assert "longitude 15.000" in browser.run("document.getElementById('where').textContent")
    browser.press("ArrowUp")
    shown = browser.run("document.getElementById('value-0').textContent")
    assert float(shown) == pytest.approx(values[0, row - 1, column], abs=0.0075)
    click(browser, 0.01, 0.01)
    assert browser.run("document.getElementById('value-0').textContent") == "no data"

    browser.run("document.getElementById('opacity-2').focus()")
    browser.press("End")
    assert browser.run("document.querySelectorAll('#stage canvas')[2].style.opacity") == "1"
    assert browser.run("document.getElementById('shown-2').textContent") == "100 %"
    browser.press("Home")
    assert browser.run("document.querySelectorAll('#stage canvas')[2].style.opacity") == "0"
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 5_000
