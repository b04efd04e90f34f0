import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.report import pages
from tests.report.chromium import EXECUTABLE, Chromium
from tests.report.conftest import Grid

from ldstyle.benchmark.results.view import Results
from ldstyle.report.figures.style import DARK
from ldstyle.report.html.page import render_page
from ldstyle.report.model import Absent, Section

needs_chromium = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium is installed")
SCORES = "#item-scores table"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    path = folder / "index.html"
    path.write_text(pages.page(folder / "grid"), encoding="utf-8")
    return path


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def test_nothing_that_users_wrote_becomes_markup(page):
    elements = Elements(page.read_text())
    assert [attributes.get("type") for tag, attributes in elements.found if tag == "script"] == [
        "application/json",
        None,
    ]
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert all(attributes.get("src", "data:").startswith("data:") for _, attributes in elements.found)
    # Title, heading, table, picture, absent item, failed run, note: all of them show the text as it was written.
    assert elements.text.count(pages.HARM) >= 10


def test_the_page_carries_its_data(page):
    text = page.read_text()
    (data,) = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', text, re.DOTALL)
    browser = json.loads(data)["browser"]
    assert browser["targets"][1]["domain"] == pages.HARM
    assert browser["targets"][0]["views"][1]["run"] == "smoke-ld-efdmix-gc-s1-seed0"
    links = {a["download"]: a["href"] for tag, a in Elements(text).found if tag == "a" and "download" in a}
    tables = {f"{name}.{ending}" for name in ("scores", "labels") for ending in ("md", "tex", "csv")}
    assert set(links) == {*tables, "lines.json", "photo.json"}
    lines = json.loads(base64.b64decode(links["lines.json"].partition("base64,")[2]))
    assert lines == {"y": [1.0, None], "name": pages.HARM}
    assert base64.b64decode(links["scores.csv"].partition("base64,")[2]).decode().splitlines()[1] == "ERM,50,0.7,2,9.5,"


def test_a_note_stands_once_below_its_table(page):
    elements = Elements(page.read_text())
    assert elements.text.count("seed 0 failed") == 1
    marks = [attributes.get("title") for tag, attributes in elements.found if tag == "sup"]
    assert marks.count("seed 0 failed") == 2


def test_the_same_input_gives_the_same_bytes(page, tmp_path):
    assert pages.page(tmp_path / "grid") == page.read_text()


def test_a_page_of_several_grids_sums_up_each_and_tells_their_runs_apart(tmp_path):
    grids = [pages.results(tmp_path / "grid", name) for name in ("one", "other")]
    text = render_page(
        [],
        title="Two",
        grids=grids,
        browser=Absent("images", "Images", "There are no images."),
        command=str,
        pictures={},
    )
    elements = Elements(text)
    runs = [attributes["data-run"] for tag, attributes in elements.found if "data-run" in attributes]
    assert len(runs) == len(set(runs)) == 2 * len(grids[0].cells)
    assert elements.text.count("LD-EFDMix-GC is the best of the 2 methods that are complete") == 2
    assert "There are no images." in elements.text


def test_what_cannot_be_on_one_page_is_refused():
    rest = {"title": "t", "grids": [], "browser": Absent("images", "Images", "none"), "command": str}
    twice = [Section("A", [pages.scores()]), Section("B", [pages.scores()])]
    with pytest.raises(ValueError, match="must be unique among the items of a page; got 'scores' twice"):
        render_page(twice, pictures={}, **rest)
    with pytest.raises(ValueError, match="must contain every picture of the sections; 'lines' is missing"):
        render_page([Section("A", [pages.line_art()[0]])], pictures={}, **rest)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def tab(chromium, page):
    """The page, just opened in a window of a desk's size; what it remembers is forgotten afterwards."""
    chromium.prefer("light")
    chromium.open(page)
    chromium.leave()
    yield chromium
    chromium.run("localStorage.clear()")


def column(tab, table, number):
    return tab.run(
        f"[...document.querySelectorAll('{table} tbody tr')].filter(row => !row.hidden)"
        f".map(row => row.cells[{number}].firstChild.textContent)"
    )


def film(tab):
    return tab.run("[...document.querySelectorAll('#film li')].map(option => Number(option.dataset.image))")


def heat(tab):
    """The label whose heat lies over the image, or nothing."""
    return tab.run(
        "document.querySelector('#stage-heat').classList.contains('on') ? "
        "document.querySelector('#stage-note').textContent : null"
    )


def choose(tab, name, value):
    tab.run(
        f"(() => {{ const select = document.querySelector('#choose-{name}'); select.value = '{value}';"
        "select.dispatchEvent(new Event('change')); })()"
    )


@needs_chromium
def test_the_page_loads_in_silence_and_asks_for_nothing(tab, page):
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    tab.wait("[...document.images].every(image => image.complete)")
    assert tab.complaints == []
    assert {url for url in tab.requests if not url.startswith("data:")} == {page.as_uri()}
    assert tab.run("window.harmed") is None
    widths = tab.run(
        "[...document.querySelectorAll('figure img, #film img, #stage-image')].map(one => one.naturalWidth)"
    )
    assert len(widths) == 2 + 6 + 1
    assert min(widths) > 0
    assert tab.run("[...document.querySelectorAll('figure img')].map(one => one.alt)") == ["A red line.", pages.HARM]


@needs_chromium
def test_the_style_of_drawings_survives_the_policy(tab):
    colours = tab.run(
        "(() => { const image = document.querySelector('#item-lines img');"
        "const canvas = document.createElement('canvas'); canvas.width = 100;"
        "canvas.height = 50; const context = canvas.getContext('2d');"
        "context.drawImage(image, 0, 0, 100, 50); return [...context.getImageData(0, 0, 100, 50).data]; })()"
    )
    red = tuple(bytes.fromhex(pages.RED[1:]))
    assert sum(tuple(colours[i : i + 3]) == red for i in range(0, len(colours), 4)) > 20


@needs_chromium
def test_tables_are_sorted_by_click_and_by_key(tab):
    first = ["ERM", "EFDMix", "LD-EFDMix-GC", "Oracle"]
    header = f"{SCORES} th:nth-child(2)"
    states = []
    for _ in range(3):
        tab.click(f"{header} button")
        states.append((tab.run(f"document.querySelector('{header}').ariaSort"), column(tab, SCORES, 0)))
    # An entry without a value is last either way; the third press brings back the first order.
    assert states == [
        ("descending", ["Oracle", "LD-EFDMix-GC", "ERM", "EFDMix"]),
        ("ascending", ["ERM", "LD-EFDMix-GC", "Oracle", "EFDMix"]),
        ("none", first),
    ]
    assert tab.run(f"document.querySelectorAll('{SCORES} tr.rule').length") == 1
    tab.run(f"document.querySelector('{SCORES} th:nth-child(3) button').focus()")
    tab.press("Enter")
    assert column(tab, SCORES, 2) == ["100.0", "10.5", "9.5", "−3.0"]  # as numbers, not as words
    assert tab.run(f"document.querySelectorAll('{SCORES} tr.rule').length") == 0
    tab.click(f"{SCORES} th:nth-child(1) button")
    assert column(tab, SCORES, 0) == sorted(first)
    assert tab.run(f"[...document.querySelectorAll('{SCORES} th[aria-sort]')].map(one => one.ariaSort)") == [
        "ascending",
        "none",
        "none",
    ]


@needs_chromium
def test_the_run_filter_reaches_the_whole_page(tab):
    runs = len(column(tab, "#run-table", 0))
    assert runs == 16
    tab.click("#run-filter .chip[value='ld-efdmix-gc']")
    assert column(tab, "#run-table", 0) == ["LD-EFDMix-GC"] * 4
    assert column(tab, SCORES, 0) == ["LD-EFDMix-GC"]
    headers = "[...document.querySelectorAll('#item-labels th[scope=col]')].filter(one => !one.hidden).length"
    assert tab.run(headers) == 2
    models = "[...document.querySelectorAll('#choose-view label')].map(one => one.textContent)"
    assert tab.run(models) == ["LD-EFDMix-GC"]
    assert tab.run("document.querySelector('#filter-state').innerText").startswith("4 of 16 runs shown")
    tab.click("#run-filter .chip[value^='s2, ']")
    assert column(tab, "#run-table", 1) == ["s2", "s2"]
    assert tab.run("document.querySelectorAll('#choose-target option').length") == 1
    tab.click("#filter-state button")
    assert len(column(tab, "#run-table", 0)) == runs
    assert column(tab, SCORES, 0) == ["ERM", "EFDMix", "LD-EFDMix-GC", "Oracle"]
    assert tab.run(headers) == 3
    assert tab.run("document.querySelector('#filter-state').hidden")


@pytest.fixture
def two_grids(tmp_path):
    """A page of two grids whose split s1 has another target, and a table of s1 of each."""
    grids, made = [], []
    for name, domains in (("one", ("city", "meadow")), ("other", ("harbour", "city"))):
        grid = Grid(tmp_path / name, domains=domains)
        grid.fill(["erm", "efdmix"], splits=["s1", "s2"], seeds=1)
        grids.append(Results(grid.read(), folder=grid.folder, name=name))
        made.append(Section(name, [replace(pages.scores(), slug=f"{name}-s1", split="s1")], name))
    rest = {"browser": Absent("images", "Images", "none"), "command": str, "pictures": {}}
    path = tmp_path / "index.html"
    path.write_text(render_page(made, title="Two", grids=grids, **rest), encoding="utf-8")
    return path


def test_each_target_of_a_split_has_its_own_filter(two_grids):
    chips = [a["value"] for tag, a in Elements(two_grids.read_text()).found if a.get("data-group") == "split"]
    assert chips == ["s1, city", "s1, harbour", "s2, meadow", "s2, city"]


@needs_chromium
def test_a_split_is_filtered_in_the_grid_that_has_its_target(chromium, two_grids):
    chromium.open(two_grids)
    shown = "[...document.querySelectorAll('.item')].filter(one => !one.hidden).map(one => one.id)"
    assert chromium.run(shown) == ["item-one-s1", "item-other-s1"]
    for split, target, kept in (("s1", "city", "one"), ("s1", "harbour", "other")):
        chromium.click(f"#run-filter .chip[value='{split}, {target}']")
        assert set(column(chromium, "#run-table", 1)) == {split}
        assert set(column(chromium, "#run-table", 2)) == {target}
        assert chromium.run(shown) == [f"item-{kept}-s1"]
        chromium.click(f"#run-filter .chip[value='{split}, {target}']")
    assert chromium.complaints == []


@needs_chromium
def test_the_filter_is_typed_into_without_a_mouse(tab):
    for key in ("/", "f", "a", "i", "l"):
        tab.press(key)
    assert tab.run("document.activeElement.id") == "run-search"
    assert column(tab, "#run-table", 0) == ["EFDMix"]
    assert tab.run("document.querySelector('#browser').hidden")
    tab.press("x")
    assert column(tab, "#run-table", 0) == []
    assert not tab.run("document.querySelector('#runs .nothing').hidden")


@needs_chromium
def test_failures_come_first_and_can_be_singled_out(tab):
    assert film(tab) == [3, 5, 2, 1, 4, 0]  # 3 wrong; 2, the worse first; 1; none
    choose(tab, "kind", "false")
    assert film(tab) == [3, 5, 2]
    choose(tab, "label", "tree")
    assert film(tab) == [3, 2]
    choose(tab, "kind", "right")
    assert film(tab) == []
    choose(tab, "label", "")
    assert film(tab) == [4, 0]
    choose(tab, "kind", "any")
    choose(tab, "order", "best")
    assert film(tab) == [0, 4, 1, 2, 5, 3]
    # The same image by the other model.
    tab.click("#film li[data-image='3']")
    assert tab.run("document.querySelector('#picture-others').textContent") == (
        "Shown: ERM: 3 wrong labels; the other model, LD-EFDMix-GC: 1 wrong label"
    )
    tab.click("#choose-view label:nth-child(2) input")
    assert tab.run("document.querySelector('#film [aria-selected=true]').dataset.image") == "3"
    assert tab.run("[...document.querySelectorAll('.verdict')].map(one => one.textContent)") == [
        "found",
        "false alarm",
        "absent",
    ]


@needs_chromium
def test_heat_shows_on_hover_on_focus_and_on_a_tap(tab):
    assert heat(tab) is None
    tab.hover("#labels li:nth-child(2) .label")
    assert heat(tab) == "tree"
    tab.wait("document.querySelector('#stage-heat').naturalWidth === 4")
    tab.leave()
    assert heat(tab) is None
    tab.run("document.querySelector('#labels .label').focus()")
    assert heat(tab) == "building"
    tab.press("Tab")
    assert heat(tab) == "tree"
    tab.run("document.activeElement.blur()")
    assert heat(tab) is None
    tab.click("#labels li:nth-child(1) .label")
    tab.leave()
    tab.run("document.activeElement.blur()")
    assert heat(tab) == "building"  # stays, also on the next image
    tab.click("#film li:nth-child(2)")
    assert heat(tab) == "building"
    # The second target has no weights, which is said and not an error.
    choose(tab, "target", "1")
    assert heat(tab) is None
    assert tab.run("document.querySelector('#stage-note').textContent") == "building: no heatmap"
    assert tab.complaints == []


@needs_chromium
def test_the_keyboard_reaches_everything(tab):
    tab.press("Tab")
    assert tab.run("document.activeElement.className") == "skip"
    outline = tab.run("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    tab.press("Enter")
    tab.wait("location.hash === '#main'")
    tab.run("document.querySelector('#film [aria-selected=true]').focus()")
    order = film(tab)
    selected = "Number(document.activeElement.dataset.image)"
    tab.press("ArrowRight")
    assert tab.run(selected) == order[1]
    tab.press("End")
    assert tab.run(selected) == order[-1]
    tab.press("ArrowRight")
    assert tab.run(selected) == order[-1]
    tab.press("Home")
    assert tab.run(selected) == order[0]
    assert tab.run("document.querySelector('#picture-name').textContent") == "images/3.png"
    tab.press("Tab")
    tab.press("Tab")
    assert heat(tab) == "tree"
    # Boxes that scroll can be scrolled by keys, so they can be reached by keys.
    assert tab.run("[...document.querySelectorAll('.scroll, pre, .command code')].every(one => one.tabIndex === 0)")


@needs_chromium
def test_light_and_dark_follow_the_system_until_the_reader_chooses(tab, page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(ground)
    tab.prefer("dark")
    tab.wait(f"{ground} !== '{light}'")
    dark = tab.run(ground)
    tab.click("#theme")
    assert tab.run(ground) == light
    tab.open(page)
    assert tab.run(ground) == light  # remembered although the system is dark
    tab.click("#theme")
    assert tab.run(ground) == dark


def addresses(tab, selector, name):
    return tab.run(f"[...document.querySelectorAll('{selector}')].map(one => one.getAttribute('{name}'))")


@needs_chromium
def test_figures_are_dark_on_a_dark_page_and_the_button_names_the_other_theme(tab):
    assert tab.run("document.querySelector('#theme').textContent") == "Dark"
    light = addresses(tab, "img.drawing, img.photograph", "src")
    tab.click("#theme")
    assert tab.run("document.querySelector('#theme').textContent") == "Light"
    dark = addresses(tab, "img.drawing, img.photograph", "src")
    drawing = base64.b64decode(dark[0].partition("base64,")[2]).decode()
    assert DARK["#ffffff"] in drawing
    assert "#ffffff" not in drawing
    assert pages.RED in drawing, "colours that mean something stay"
    assert dark[1] == addresses(tab, "img.photograph", "data-dark")[0] != light[1]
    assert tab.run("[...document.querySelectorAll('figure img')].every(one => one.complete && one.naturalWidth > 0)")
    tab.click("#theme")
    assert addresses(tab, "img.drawing, img.photograph", "src") == light


@needs_chromium
@pytest.mark.parametrize(("width", "small"), [(390, True), (1440, False)])
def test_a_small_screen_gets_a_drawing_of_its_own(tab, page, width, small):
    tab.open(page, width=width, height=844)
    shown = tab.run("document.querySelector('img.drawing').currentSrc")
    assert ('id="small"' in base64.b64decode(shown.partition("base64,")[2]).decode()) is small


def test_commands_in_reasons_are_code_and_not_in_backticks(page):
    text = page.read_text()
    assert text.count("Run <code>ldstyle bench</code>.") == 2  # in the summary and in its place
    assert "`ldstyle bench`" not in text


@needs_chromium
def test_a_command_is_copied_or_left_selected(tab):
    tab.run("document.querySelector('#item-scores .tools details').open = true")
    tab.click("#item-scores .copy")
    tab.wait("document.querySelector('#item-scores .copy').textContent !== 'Copy'")
    said = tab.run("document.querySelector('#item-scores .copy').textContent")
    selected = tab.run("getSelection().toString()")
    assert said == "Copied" or (said == "Selected" and "--only scores" in selected)


@needs_chromium
@pytest.mark.parametrize("width", [390, 820])
def test_nothing_overflows_a_narrow_window(tab, page, width):
    tab.open(page, width=width, height=844)
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    tab.run("document.querySelector('#runs .scroll').scrollLeft = 500")
    assert tab.run("document.scrollingElement.scrollWidth") <= width
    assert tab.run("innerWidth") == width
    if width == 390:
        assert tab.run("document.querySelector('#runs .scroll').scrollLeft") > 0  # in its own box
        tab.open(page, width=width, height=844)
        assert not tab.run("document.querySelector('.contents').open")
        tab.click(".contents summary")
        tab.click(".contents a[href='#runs']")
        assert not tab.run("document.querySelector('.contents').open")
        tab.wait("Math.abs(document.querySelector('#runs').getBoundingClientRect().top) < 200")
