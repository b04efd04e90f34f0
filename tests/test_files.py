"""Files of users: YAML that grows or holds objects is refused."""

from __future__ import annotations

import pytest
import yaml

from ldstyle.data.domains.vocabulary import load_label_map
from ldstyle.files import MOST_VALUES, load_yaml
from ldstyle.runs.settings import read_settings

BOMB = "a0: &a0 [lol]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))


@pytest.mark.parametrize(
    "text", ["", "a: [1, x, null, 2.5]", "a: &x {b: 1}\nc: *x", "base: &x {b: 1}\nc: {<<: *x, d: 2}"]
)
def test_plain_yaml_loads_as_ever(text):
    assert load_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, f"more than {MOST_VALUES} values"),
        ("&a [*a]", "refers to itself"),
        ("[" * 5000, "nested too deeply"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_yaml_that_grows_or_holds_objects_is_refused(text, reason):
    with pytest.raises(yaml.YAMLError, match=reason):
        load_yaml(text)


def test_settings_and_label_maps_refuse_an_alias_bomb(tmp_path):
    (tmp_path / "bomb.yaml").write_text(BOMB)
    with pytest.raises(ValueError, match=r"bomb\.yaml"):
        read_settings(tmp_path / "bomb.yaml")
    with pytest.raises(ValueError, match=r"bomb\.yaml"):
        load_label_map(tmp_path / "bomb.yaml")
