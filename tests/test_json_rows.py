import json
import re

import pytest

from lightning_rlvr.json_rows import read_json_rows


def rows_of(folder, content, name="rows.jsonl"):
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [(place.removesuffix(f" of {str(file)!r}"), row) for place, row in read_json_rows(file)]


def test_rows_come_with_their_lines(tmp_path):
    assert rows_of(tmp_path, '{"x": 1}\n\n  \r\n{"x": 2}') == [("line 1", {"x": 1}), ("line 4", {"x": 2})]
    assert rows_of(tmp_path, '[{"x": 1}, {"x": 2}]\n[]\n') == [("line 1", {"x": 1}), ("line 1", {"x": 2})]


def test_a_json_file_is_a_list_or_one_row(tmp_path):
    assert rows_of(tmp_path, '[\n{"x": 1},\n{"x": 2}]', "a.JSON") == [("row 1", {"x": 1}), ("row 2", {"x": 2})]
    assert rows_of(tmp_path, '{\n"x": 1}', "a.json") == [("row 1", {"x": 1})]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_an_empty_file_has_no_rows(tmp_path, name):
    assert rows_of(tmp_path, "", name) == rows_of(tmp_path, " \n", name) == []


def test_numbers_that_are_no_json_are_null_and_all_others_stay(tmp_path):
    [(_, row)] = rows_of(tmp_path, '{"a": NaN, "b": [-Infinity, 1e999], "c": 0.1, "d": 1e3, "e": -7, "f": "NaN"}')
    assert row == {"a": None, "b": [None, None], "c": 0.1, "d": 1000.0, "e": -7, "f": "NaN"}
    assert type(row["e"]) is int
    json.dumps(row, allow_nan=False)


def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_is_none(tmp_path):
    assert rows_of(tmp_path, '\ufeff{"x": "a\u2028b\x85c"}') == [("line 1", {"x": "a\u2028b\x85c"})]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ('{"x": 1}\n{', "a.jsonl", "line 2 of '{file}' is not JSON: "),
        ('{"x": 1}\n{"x": 2}', "a.json", "'{file}' is not JSON: Extra data: line 2"),
        ("[" * 100_000, "a.jsonl", "line 1 of '{file}' is not JSON: "),
        ('{"x": ' + "9" * 5000 + "}", "a.jsonl", "line 1 of '{file}' is not JSON: "),
        ('{"x": 1}\n7', "a.jsonl", "line 2 of '{file}' must be an object, got int"),
        ('[{"x": 1}, null]', "a.json", "row 2 of '{file}' must be an object, got NoneType"),
        (b'{"x": 1}\n\xff', "a.jsonl", "line 2 of '{file}' must be UTF-8: "),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, content, name, message):
    with pytest.raises(ValueError, match="^" + re.escape(message.format(file=tmp_path / name))):
        rows_of(tmp_path, content, name)


def test_rows_before_the_bad_one_are_read(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"x": 1}\noops')
    rows = read_json_rows(file)
    assert next(rows)[1] == {"x": 1}
    with pytest.raises(ValueError, match="line 2"):
        next(rows)
