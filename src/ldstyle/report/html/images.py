"""The image browser as HTML: an empty light table, which the page's script fills from its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ldstyle.report.html.browser import BrowserData
from ldstyle.report.html.items import render_absent
from ldstyle.report.html.markup import Markup, element, join, with_code
from ldstyle.report.html.runs import run_key
from ldstyle.report.model import Absent

_KINDS = {"any": "any", "wrong": "wrong", "missed": "missed", "false": "false alarm", "right": "right"}
_ORDERS = {"worst": "worst first", "best": "best first"}
_HOW = (
    "What the models say about images of targets they never saw, most wrong labels first. A bar is a probability, the "
    "mark on it the threshold. Point at a label, focus it or tap it to see where the model finds it: the brighter, the "
    "more evidence, on one scale for all labels of an image. Arrow keys move among the images."
)


def browser_data(browser: BrowserData | Absent, *, several: bool) -> dict[str, Any] | None:
    """Return the data of the browser for the page's script; each view names its run as the run table does.

    Args:
        browser: The data, if there are any.
        several: Whether the page has runs of several grids.
    """
    if isinstance(browser, Absent):
        return None
    described = browser.describe()
    for target in described["targets"]:
        for view in target["views"]:
            view["run"] = run_key(target["group"], view["cell"], several=several)
    return described


def render_browser(browser: BrowserData | Absent) -> Markup:
    """Return the image browser, or why there is none."""
    if isinstance(browser, Absent):
        return render_absent(browser)
    notes = [element("li", with_code(note)) for note in browser.notes]
    empty = "The filter leaves none of the models shown here."
    return join(
        element("p", _HOW, class_="caption"),
        element("ul", *notes, class_="remarks caption") if notes else Markup(),
        element("p", empty, class_="absent", id="browser-empty", hidden=True),
        element("div", _choices(), _light_table(), id="browser"),
    )


def _choices() -> Markup:
    models = element("fieldset", element("legend", "Model"), element("div", class_="segments", id="choose-view"))
    return element(
        "div",
        models,
        _select("Target", "choose-target", {}),
        _select("Label", "choose-label", {}),
        _select("Verdict", "choose-kind", _KINDS),
        _select("Order", "choose-order", _ORDERS),
        class_="choices",
    )


def _select(text: str, id_: str, options: Mapping[str, str]) -> Markup:
    listed = [element("option", shown, value=value) for value, shown in options.items()]
    return element("label", text, element("select", *listed, id=id_, autocomplete="off"))


def _light_table() -> Markup:
    # The pictures come with the data; an empty source would be a request for the page itself.
    stage = element(
        "div",
        element("img", id="stage-image", alt=""),
        element("img", id="stage-heat", class_="heat", alt=""),
        element("p", id="stage-note", hidden=True),
        class_="stage",
    )
    name = element("p", element("span", id="picture-name"), element("span", id="picture-others"), class_="picture-name")
    detail = element("div", stage, name, element("ul", id="labels", class_="labels"), class_="detail", id="detail")
    film = element("ul", class_="film", id="film", role="listbox", aria_label="Images")
    empty = element("p", "No image passes these choices.", class_="nothing", id="film-empty", hidden=True)
    count = element("p", class_="legend", id="browser-count", role="status")
    return element("div", element("div", film, empty, count), detail, class_="browser")
