"""The property-test profile, tiny fakes of the official layouts, and the folder of real imagery."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

# The same examples on every machine and in every run; no example database is left behind.
settings.register_profile("ldstyle", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("ldstyle")

LAND_USE = [
    "airplane",
    "bare-soil",
    "buildings",
    "cars",
    "chaparral",
    "court",
    "dock",
    "field",
    "grass",
    "mobile-home",
    "pavement",
    "sand",
    "sea",
    "ship",
    "tanks",
    "trees",
    "water",
]
ZEEBRUGGE = ["impervious", "water", "clutter", "vegetation", "building", "tree", "boat", "car"]


def write_image(path: Path, *, size: tuple[int, int] = (8, 8), value: int = 120) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((size[1], size[0], 3), value, dtype=np.uint8)
    pixels[0] = (value // 2, value, value // 3)
    Image.fromarray(pixels).save(path)


class Layouts:
    """Writes fakes in the official layouts; each row names its image and its present labels."""

    UCM: Mapping[str, str] = {
        "agricultural00": "field trees",
        "beach03": "sand sea",
        "harbor03": "dock ship water",
        "parkinglot03": "cars pavement buildings",
    }
    AID: Mapping[str, str] = {
        "airport_1": "airplane buildings cars pavement trees",
        "bareland_9": "bare-soil",
        "park_101": "buildings trees water grass",
        "port_2": "ship sea dock",
    }
    DFC15: Mapping[str, str] = {
        "1": "impervious water",
        "2": "impervious boat water clutter",
        "10": "tree car building",
    }

    def table(
        self,
        path: Path,
        rows: Mapping[str, str],
        labels: Sequence[str],
        *,
        corner: str = "IMAGE\\LABEL",
        delimiter: str = ",",
        newline: str = "\n",
        encoding: str = "utf-8",
    ) -> Path:
        lines = [delimiter.join([corner, *labels])]
        lines += [
            delimiter.join([name, *("01"[label in text.split()] for label in labels)]) for name, text in rows.items()
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((newline.join(lines) + newline).encode(encoding))
        return path

    def ucm(self, root: Path, *, suffix: str = ".tif") -> Path:
        for name in self.UCM:
            write_image(root / "UCMerced_LandUse" / "Images" / name[:-2] / f"{name}{suffix}")
        self.table(root / "LandUse_Multilabeled.txt", self.UCM, LAND_USE, delimiter="\t", newline="\r\n")
        return root

    def aid(self, root: Path, *, suffix: str = ".jpg", nested: str = "") -> Path:
        for i, name in enumerate(self.AID):
            write_image(
                root / nested / ("images_tr", "images_test")[i % 2] / name.split("_")[0].title() / f"{name}{suffix}"
            )
        self.table(root / "multilabel.csv", self.AID, LAND_USE)
        return root

    def dfc15(self, root: Path, *, images: bool = True) -> Path:
        for i, name in enumerate(self.DFC15 if images else ()):
            write_image(root / ("images_tr", "images_test")[i % 2] / f"{name}.png")
        self.table(root / "multilabel.csv", self.DFC15, ZEEBRUGGE, corner="image\\label")
        return root


@pytest.fixture
def layouts() -> Layouts:
    return Layouts()


@pytest.fixture
def make_image() -> Callable[..., None]:
    return write_image


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real imagery; the test is skipped without it."""
    if not os.environ.get("LDSTYLE_DATA"):
        pytest.skip("LDSTYLE_DATA is not set to a folder of real imagery")
    return Path(os.environ["LDSTYLE_DATA"])


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of drawn scenes: 30 of 48 px in each of the three domains."""
    from ldstyle.data.synthetic import write_scenes

    return write_scenes(tmp_path_factory.mktemp("drawn") / "scenes", per_domain=30, size=48, workers=1)


@pytest.fixture(scope="session")
def trained(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Train a tiny run once: ``trained("ld-csu", optimizer=...)`` returns its folder, which tests only read."""
    from tests.training.runs import tiny

    from ldstyle.training.loop import fit

    folders: dict[str, Path] = {}

    def train(method: str = "erm", **changes: Any) -> Path:
        settings = json.dumps([method, changes], sort_keys=True)
        if settings not in folders:
            folder = tmp_path_factory.mktemp("trained") / "run"
            fit(tiny(scenes, folder, method=method, **changes))
            folders[settings] = folder
        return folders[settings]

    return train
