import itertools

import numpy as np
import pytest

from ldstyle.data.domains.vocabulary import LabelMap, load_label_map, merge_labels


def write(tmp_path, text):
    path = tmp_path / "map.yaml"
    path.write_text(text)
    return path


def test_merged_labels_follow_the_truth_table():
    values = (-1, 0, 1)
    cells = np.array(list(itertools.product(values, repeat=3)), dtype=np.int8)
    merged = merge_labels(cells, [(0,), (2, 0), (), (0, 1, 2)])
    for row, got in zip(cells.tolist(), merged.tolist(), strict=True):
        for columns, value in zip([(0,), (2, 0), (), (0, 1, 2)], got, strict=True):
            chosen = [row[column] for column in columns]
            if 1 in chosen:
                assert value == 1
            elif -1 in chosen or not chosen:
                assert value == -1
            else:
                assert value == 0


def test_names_left_out_stand_for_themselves_and_null_drops_a_name():
    label_map = LabelMap(("car", "tree", "ship"), {"drone": {"oak": "tree", "fir": "tree", "person": None}})
    assert label_map.sources("drone", ["oak", "car", "person", "fir"]) == ((1,), (0, 3), ())
    assert label_map.sources("other", ["tree"]) == ((), (0,), ())


def test_a_name_that_the_domain_leaves_blank_needs_no_place():
    assert LabelMap(("car",)).sources("a", ["car", "roof"], blank=["roof"]) == ((0,),)


def test_a_label_outside_the_vocabulary_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r"Label 'tre' of domain 'a' is not in .* Did you mean 'tree'\? Map it"):
        LabelMap(("car", "tree")).sources("a", ["car", "tre"])


def test_a_mapped_name_that_the_table_lacks_is_refused_with_a_suggestion():
    label_map = LabelMap(("tree",), {"a": {"Okas": "tree"}})
    with pytest.raises(ValueError, match=r"Domain 'a' has no label 'Okas'; .* Did you mean 'oaks'\?"):
        label_map.sources("a", ["oaks"])


def test_a_target_outside_the_vocabulary_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r"maps 'oak' to 'treee', which is not in .* Did you mean 'tree'\?"):
        LabelMap(("tree",), {"a": {"oak": "treee"}})


def test_labels_that_differ_in_case_only_are_refused():
    with pytest.raises(ValueError, match="differ in more than case; got 'Tree', 'tree'"):
        LabelMap(("Tree", "car", "tree"))


def test_a_label_map_reads_from_yaml(tmp_path):
    path = write(tmp_path, "vocabulary: [tree, car]\ndomains:\n  a: {oak: tree, person: null}\n  b:\n    auto: car\n")
    assert load_label_map(path) == LabelMap(
        ("tree", "car"), {"a": {"oak": "tree", "person": None}, "b": {"auto": "car"}}
    )
    assert load_label_map(write(tmp_path, "vocabulary: [tree]\n")).domains == {}


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("vocabulary: [tree", ValueError, "is not YAML"),
        ("[tree]", ValueError, "must hold `vocabulary`"),
        ("vocabulary: []", ValueError, "at least one label"),
        ("vocabulary: [tree]\ndomain: {}", ValueError, "got 'domain'. Did you mean 'domains'"),
        ("vocabulary: tree", TypeError, "`vocabulary` must be a list"),
        ("vocabulary: [tree]\ndomains: {a: tree}", TypeError, "domain 'a' must map names to labels; got 'tree'"),
        ("vocabulary: [no, tree]", TypeError, "must be text; got False. Put them in quotes"),
        ("vocabulary: !!python/object/apply:os.getcwd []", ValueError, "is not YAML"),
    ],
)
def test_a_label_map_of_the_wrong_form_is_refused(tmp_path, text, error, match):
    with pytest.raises(error, match=match):
        load_label_map(write(tmp_path, text))


def test_a_missing_label_map_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no label map '.*map.yaml'"):
        load_label_map(tmp_path / "map.yaml")


def test_the_error_about_a_file_that_is_no_label_map_does_not_quote_it(tmp_path):
    (tmp_path / "shadow").write_text("root: [secret: phrase\nmore: ]words")
    with pytest.raises(ValueError, match=r"shadow' is not YAML in line \d") as caught:
        load_label_map(tmp_path / "shadow")
    assert "secret" not in str(caught.value)
    assert "words" not in str(caught.value)
