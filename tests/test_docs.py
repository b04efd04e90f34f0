"""The site of the documentation builds without a warning, is whole, and asks the network for nothing."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import ldstyle
from ldstyle import functional, training
from ldstyle.runs.settings import complete, method_settings

ROOT = Path(__file__).parent.parent
FETCHING = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    # A proxy that is not there: whatever is fetched fails.
    offline = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    environment = {**os.environ, **offline, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


class Resources(HTMLParser):
    """Collects what a page loads by itself."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        address = dict(attributes).get(FETCHING.get(tag, ""))
        if address:
            self.found.append(address)


def pages(entry):
    return [entry] if isinstance(entry, str) else [page for part in entry for page in pages(*part.values())]


def test_every_page_is_in_the_navigation_and_built(site):
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = pages(yaml.safe_load(text)["nav"])
    sources = [path for kind in ("*.md", "*.ipynb") for path in (ROOT / "docs").rglob(kind)]  # notebooks become pages
    written = [path.relative_to(ROOT / "docs").with_suffix(".md").as_posix() for path in sources]
    assert sorted(named) == sorted(written)
    assert all((site / name).with_suffix(".html").is_file() for name in named)


def test_pages_load_nothing_from_elsewhere(site):
    checked = 0
    for page in site.rglob("*.html"):
        for address in Resources(page).found:
            assert not re.match(r"[a-z]+:|//", address), (page.name, address)
            assert page.name == "404.html" or (page.parent / re.sub(r"[?#].*", "", address)).is_file(), address
            checked += 1
    assert checked > 100


@pytest.mark.parametrize(("page", "module"), [("functional", functional), ("training", training)])
def test_public_names_have_an_entry_with_their_docstring(site, page, module):
    text = (site / "api" / f"{page}.html").read_text(encoding="utf-8")
    for name in module.__all__:
        assert f'id="{module.__name__}.{name}"' in text


def test_names_of_the_package_are_on_one_of_its_pages(site):
    texts = [page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html")]
    names = {name for name in dir(ldstyle) if not name.startswith("_")}
    modules = {name for name in names if inspect.ismodule(getattr(ldstyle, name))}
    assert all((site / "api" / f"{name}.html").is_file() for name in modules)
    for name in names - modules:
        identifiers = [f'id="{prefix}.{name}"' for prefix in ("ldstyle", "ldstyle.config")]
        assert any(identifier in text for identifier in identifiers for text in texts), name
    assert not any(re.search(r":(func|class|meth|mod|data|attr):", text) for text in texts)


def test_the_defaults_of_the_attention_are_those_of_the_method_files():
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `(\w+)\.(\w+)`( \(.+?\))? \| `(.+?)` \| `(.+?)` \|", text, re.MULTILINE)
    assert len(rows) == 8
    for section, name, kind, *values in rows:
        operators = ("efdmix",) if "EFDMix" in kind else ("mixstyle", "efdmix", "csu")
        for ending, value in zip(("", "-paper"), values, strict=True):
            for operator in operators:
                method = f"ld-{operator}{'-gc' if '-gc' in kind else ''}{ending}"
                style = complete(method_settings(method))["style"]
                assert style[section][name] == yaml.safe_load(value), (method, name)
