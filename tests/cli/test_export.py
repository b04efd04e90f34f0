import pytest
import safetensors.torch
import torch
from tests.deploy.models import write_model

from ldstyle.cli import main


@pytest.fixture
def setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "run")


def test_an_export_is_written_where_it_is_wanted(setting, tmp_path, capsys):
    assert main(["export", "run", "--format", "safetensors", "--out", "sub/weights.safetensors"]) == 0
    assert capsys.readouterr().out == "safetensors: sub/weights.safetensors\n"
    stored = safetensors.torch.load_file("sub/weights.safetensors")
    assert all(torch.equal(stored[key], value) for key, value in setting.state_dict().items())


def test_an_export_has_a_name_of_its_own_by_default(setting, tmp_path, capsys):
    assert main(["export", "run", "--format", "timm"]) == 0
    assert sorted(path.name for path in (tmp_path / "ldstyle-model").iterdir()) == ["config.json", "model.safetensors"]
    assert main(["export", "run", "--format", "timm"]) == 2
    assert "must not exist" in capsys.readouterr().err


def test_an_unknown_format_is_refused(setting, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["export", "run", "--format", "caffe"])
    assert "invalid choice: 'caffe'" in capsys.readouterr().err
