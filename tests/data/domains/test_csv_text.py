import numpy as np
import pytest

from ldstyle.data.domains.csv_text import drop_duplicates, parse_labels, read_header, read_sheet


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("delimiter", ["\t", ",", ";"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_every_spelling_of_a_table_reads_the_same(tmp_path, delimiter, newline, encoding):
    lines = ["name,tree,car", "a ,1, 0", "", "b,,1"]
    text = newline.join(line.replace(",", delimiter) for line in lines)
    sheet = read_sheet(write(tmp_path / "t.csv", text, encoding))
    assert sheet.header == ("name", "tree", "car") == read_header(tmp_path / "t.csv")
    assert sheet.rows == (("a", "1", "0"), ("b", "", "1"))
    assert sheet.lines == (2, 4)
    assert sheet.column("car") == ("0", "1")


def test_a_quoted_cell_may_hold_the_delimiter(tmp_path):
    sheet = read_sheet(write(tmp_path / "t.csv", 'path,tree\n"a, b.png",1\n'))
    assert sheet.rows == (("a, b.png", "1"),)


def test_empty_columns_at_the_end_are_passed_over(tmp_path):
    sheet = read_sheet(write(tmp_path / "t.csv", "path,tree,,\na,1,,\n"))
    assert (sheet.header, sheet.rows) == (("path", "tree"), (("a", "1"),))


def test_blank_cells_are_unknown_and_floats_of_a_data_frame_are_labels(tmp_path):
    sheet = read_sheet(write(tmp_path / "t.csv", "p,tree,car\na,1.0,\nb,0.0,1\nc,,0\n"))
    labels = parse_labels(sheet, ["car", "tree"])
    assert labels.dtype == np.int8
    assert labels.tolist() == [[-1, 1], [1, 0], [0, -1]]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("p,tree\n", "needs a header and at least one row; .* has 1 lines"),
        ("p,tree,tree\na,1,1\n", "unique; .* repeats 'tree'"),
        ("p,tree\na\nb,1\nc,1,1\n", "2 cells of the header; 2 lines of .* do not: '2', '4'"),
    ],
)
def test_a_table_of_the_wrong_form_is_refused(tmp_path, text, match):
    with pytest.raises(ValueError, match=match):
        read_sheet(write(tmp_path / "t.csv", text))


def test_a_table_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"p,tree\n\xff\xfe,1\n")
    with pytest.raises(ValueError, match="must be UTF-8 text"):
        read_sheet(tmp_path / "t.csv")


def test_labels_other_than_0_1_and_blank_are_named_and_counted(tmp_path):
    text = "p,tree,car\n" + "".join(f"{i},yes,{i}\n" for i in range(5))
    with pytest.raises(ValueError, match=r"0, 1 or blank.*; 8 cells of .* 'yes \(line 2, column tree\)'.* and 5 more"):
        parse_labels(read_sheet(write(tmp_path / "t.csv", text)), ["tree", "car"])


def test_repeated_rows_are_reported_and_the_first_is_kept(tmp_path):
    sheet = read_sheet(write(tmp_path / "t.csv", "tree,p\n1,a\n0,b\n1,A\n"))
    keys = [cell.lower() for cell in sheet.column("p")]
    with pytest.raises(ValueError, match=r"one row; 1 in .* have several: 'a \(lines 2, 4\)'. Remove the repeats"):
        drop_duplicates(sheet, "p", keys)
    problems = []
    assert drop_duplicates(sheet, "p", keys, report=problems.append).column("p") == ("a", "b")
    assert len(problems) == 1


def test_rows_that_contradict_each_other_cannot_be_skipped(tmp_path):
    sheet = read_sheet(write(tmp_path / "t.csv", "p,tree\na,1\na,0\n"))
    with pytest.raises(ValueError, match="Their labels differ: keep the right row"):
        drop_duplicates(sheet, "p", sheet.column("p"), report=lambda problem: None)
