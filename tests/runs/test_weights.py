"""Learned attention beside the model: that of the selected epoch, and usable again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.training.runs import tiny

from ldstyle.evaluation.attention.maps import localize_attention
from ldstyle.runs.model_file import load_model
from ldstyle.runs.normalized_net import Normalize
from ldstyle.runs.record import read_record
from ldstyle.runs.settings import load_config
from ldstyle.runs.sources import open_sources
from ldstyle.runs.weights import ATTENTION, load_attention
from ldstyle.training.loop import fit


def test_a_run_keeps_the_attention_of_its_selected_epoch(trained: Callable[..., Path]) -> None:
    folder = trained("ld-efdmix", optimizer={"epochs": 3, "head_lr": 0.05})
    record = read_record(folder)
    config, model = load_config(folder / "config.yaml"), load_model(folder)
    net = load_attention(folder, model.backbone, config, num_labels=len(model.vocabulary))
    data = open_sources(config.data, seed=config.seed)
    again = localize_attention(net, data, Normalize(model.preprocessing, fused=True), batch_size=8)
    assert record.localization is not None
    assert again == record.localization


@pytest.mark.parametrize("method", ["erm", "ld-efdmix-gc"])
def test_methods_without_learned_attention_keep_none(method: str, trained: Callable[..., Path]) -> None:
    folder = trained(method) if method == "erm" else trained(method, optimizer={"epochs": 3, "head_lr": 0.05})
    config, model = load_config(folder / "config.yaml"), load_model(folder)
    with pytest.raises(FileNotFoundError, match=r"no learned attention .*only finished runs that learn it"):
        load_attention(folder, model.backbone, config, num_labels=len(model.vocabulary))


def test_averaged_weights_have_no_attention_of_their_own(scenes: Path, tmp_path: Path) -> None:
    optimizer = {"epochs": 2, "steps_per_epoch": 1}
    fit(tiny(scenes, tmp_path / "run", method="ld-csu", optimizer=optimizer, swad={"n_converge": 1}))
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert not (tmp_path / "run" / ATTENTION).exists()


def test_a_file_that_is_not_this_runs_is_refused(trained: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained("ld-csu"), tmp_path / "run"))
    config = load_config(folder / "config.yaml")
    with pytest.raises(ValueError, match="must hold the attention of this run"):
        load_attention(folder, load_model(folder).backbone, config, num_labels=2)
    (folder / ATTENTION).write_bytes(b"x")
    with pytest.raises(ValueError, match="must hold the attention of this run"):
        load_attention(folder, load_model(folder).backbone, config, num_labels=6)
