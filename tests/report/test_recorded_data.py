import pytest

from ldstyle.report.recorded_data import read_recorded


@pytest.fixture
def place(tmp_path, make_image):
    make_image(tmp_path / "mine" / "a.png")
    (tmp_path / "mine" / "labels.csv").write_text("path,roof,lat\na.png,1,51.3\n")
    return {"root": str(tmp_path), "sea": "drop", "ignore": ["lat"]}


def test_a_label_map_that_a_record_names_is_not_read(place, tmp_path):
    (tmp_path / "secret.txt").write_text("pass: [phrase")
    with pytest.raises(ValueError, match=r"label map '.*secret.txt'.* --mapping FILE") as caught:
        read_recorded({**place, "mapping": str(tmp_path / "secret.txt")}, ["mine"], vocabulary=["building"])
    assert "phrase" not in str(caught.value)


def test_a_label_map_that_the_caller_gives_is_read(place, tmp_path):
    (tmp_path / "map.yaml").write_text("vocabulary: [building]\ndomains: {mine: {roof: building}}\n")
    (table,) = read_recorded({**place, "mapping": tmp_path / "map.yaml"}, ["mine"], vocabulary=["other"])
    assert (table.vocabulary, table.labels.tolist()) == (("building",), [[1]])


def test_columns_are_chosen_as_in_the_runs(place):
    (table,) = read_recorded(place, ["mine"], vocabulary=["roof"])
    assert table.labels.tolist() == [[1]]
