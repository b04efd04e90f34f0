"""Tiny trained runs that tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training.runs import tiny

from ldstyle.training.loop import fit


@pytest.fixture(scope="session")
def trained(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Train a tiny run once: ``trained("ld-csu", optimizer=...)`` returns its folder, which tests only read."""
    folders: dict[str, Path] = {}

    def train(method: str = "erm", **changes: Any) -> Path:
        settings = json.dumps([method, changes], sort_keys=True)
        if settings not in folders:
            folder = tmp_path_factory.mktemp("trained") / "run"
            fit(tiny(scenes, folder, method=method, **changes))
            folders[settings] = folder
        return folders[settings]

    return train
