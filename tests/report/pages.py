"""A page to test with: a grid with gaps, tables, figures and images, all made by hand, and names that mean harm."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image, ImageOps
from tests.report.conftest import Grid

from ldstyle.benchmark.results.view import Results
from ldstyle.report.html.browser import BrowserData, Target, View
from ldstyle.report.html.page import Drawn, render_page
from ldstyle.report.model import Absent, Column, Mean, Number, Picture, Row, Section, Table, Value, Word

HARM = "</script><script>window.harmed=1</script><img src=x onerror=harmed=1>\"'&"
LABELS = ("building", "tree", HARM)
RED = "#d62728"


def results(folder: Path, name: str = "") -> Results:
    """ERM, EFDMix, LD-EFDMix-GC and the oracle on two splits with two seeds; one run failed and one is missing."""
    grid = Grid(folder, domains=("city", HARM, "meadow"), labels=LABELS)
    methods, splits = ["erm", "efdmix", "ld-efdmix-gc", "oracle"], ["s1", "s2"]
    grid.plan(methods, splits, [0, 1])
    for m, method in enumerate(methods):
        for seed in (0, 1):
            for s, split in enumerate(splits):
                if (method, split) == ("efdmix", "s2"):
                    continue
                level = 0.5 + 0.04 * m + 0.01 * seed - 0.1 * s
                grid.done(method, split, seed, ap=[level, level + 0.02, level - 0.02], seconds=60.0 + 10 * m)
    grid.fail("efdmix", "s2", 0, error=f"ValueError: {HARM}")
    return Results(grid.read(), folder=folder, name=name)


def scores() -> Table:
    """Scores by method, out of order, one without a value."""
    failed = "seed 0 failed"
    rows = (
        Row((Word("ERM"), Mean(number=50.0, sd=0.7, n=2), Number(number=9.5, digits=1)), method="erm"),
        Row((Word("EFDMix"), Value(note=failed), Number(number=10.5, digits=1)), method="efdmix"),
        Row(
            (Word("LD-EFDMix-GC"), Mean(number=58.0, sd=0.7, n=2, best=True), Number(number=100.0, digits=1)),
            method="ld-efdmix-gc",
        ),
        Row(
            (Word("Oracle"), Mean(number=62.0, sd=0.7, n=2), Number(number=-3.0, digits=1, note=failed)),
            method="oracle",
        ),
    )
    columns = (Column("method"), Column("mAP"), Column("other"))
    return Table("scores", "Scores", "By method, over 2 seeds.", columns, rows, rules=(2,))


def labels() -> Table:
    """Methods as columns, and a row that would do harm."""
    rows = (
        Row((Word("building"), Number(number=51.0, digits=1), Number(number=59.0, digits=1))),
        Row((Word(HARM, note=HARM), Number(number=49.0, digits=1), Number(number=57.0, digits=1))),
    )
    columns = (
        Column("label"),
        Column("ERM (2 seeds)", method="erm"),
        Column("LD-EFDMix-GC (2 seeds)", method="ld-efdmix-gc"),
    )
    return Table("labels", f"Labels {HARM}", HARM, columns, rows)


def line_art() -> tuple[Picture, Drawn]:
    picture = Picture("lines", "Lines", "A red line.", lambda: Figure(), {"y": [1.0, float("nan")], "name": HARM})
    figure = Figure(figsize=(4, 2))
    figure.add_subplot().plot([0, 1], [0, 1], color=RED, linewidth=8)
    return picture, _drawn(figure)


def photograph() -> tuple[Picture, Drawn]:
    picture = Picture("photo", "Photograph", HARM, lambda: Figure(), {}, photographic=True)
    figure = Figure(figsize=(4, 2))
    figure.add_subplot().imshow(np.arange(12).reshape(3, 4))
    return picture, _drawn(figure)


def _drawn(figure: Figure) -> Drawn:
    png, svg = BytesIO(), BytesIO()
    figure.savefig(png, format="png")
    with rc_context({"svg.hashsalt": "same"}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    drawing = svg.getvalue().decode()
    return Drawn(png.getvalue(), drawing, small=drawing.replace("<svg ", '<svg id="small" '), dark=_inverted(png))


def _inverted(png: BytesIO) -> bytes:
    content = BytesIO()
    ImageOps.invert(Image.open(png).convert("RGB")).save(content, "PNG")
    return content.getvalue()


def browser() -> BrowserData:
    """Two targets with two models each; of the first target's images, number n has ``n % 4`` wrong labels by ERM."""
    erm = ["haa", "maa", "mfa", "mff", "haa", "muf"]
    best = ["haa", "haa", "hfa", "hfa", "haa", "huf"]
    targets = []
    for split, domain in (("s1", "city"), ("s2", HARM)):
        views = tuple(
            View(
                f"smoke-{method}-{split}-seed0",
                method,
                title,
                0,
                (0.5, 0.4, 0.6),
                tuple((0.9 - 0.1 * n, 0.3, 0.05 * n) for n in range(6)),
                tuple(verdicts),
                tuple(sum(one in "mf" for one in word) + 0.01 * n for n, word in enumerate(verdicts)),
                tuple(tuple(_png(n + label) for label in range(3)) for n in range(6)) if split == "s1" else None,
            )
            for method, title, verdicts in (("erm", "ERM", erm), ("ld-efdmix-gc", "LD-EFDMix-GC", best))
        )
        keys = tuple(f"images/{n}{HARM if n == 1 else ''}.png" for n in range(6))
        drawn = (False, False, False, False, True, True)
        pictures = tuple(_jpeg(n) for n in range(6))
        targets.append(Target("", split, domain, LABELS, 40, keys, pictures, drawn, views))
    return BrowserData(tuple(targets), (f"There are no heatmaps on {HARM}",))


def _jpeg(seed: int) -> str:
    blocks = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    content = BytesIO()
    Image.fromarray(np.kron(blocks, np.ones((16, 16, 1), np.uint8))).save(content, "JPEG")
    return b64encode(content.getvalue()).decode()


def _png(seed: int) -> str:
    content = BytesIO()
    heat = np.random.default_rng(seed).integers(0, 256, (4, 4, 4), dtype=np.uint8)
    Image.fromarray(heat).save(content, "PNG")
    return b64encode(content.getvalue()).decode()


def sections() -> tuple[list[Section], dict[str, Drawn]]:
    (lines, lines_drawn), (photo, photo_drawn) = line_art(), photograph()
    missing = Absent("style", "Style statistics", f"Weights are missing: {HARM} Run `ldstyle bench`.")
    made = [Section("Results", [scores(), labels()]), Section(f"Figures {HARM}", [lines, photo, missing])]
    return made, {"lines": lines_drawn, "photo": photo_drawn}


def page(folder: Path) -> str:
    """Render the page of a results folder that is made for it."""
    made, pictures = sections()
    return render_page(
        made,
        title=f"Report {HARM}",
        subtitle="Made by hand",
        grids=[results(folder)],
        browser=browser(),
        command=lambda slug: f"ldstyle report grid --out report --only {slug} # {HARM}",
        pictures=pictures,
    )
