from __future__ import annotations

import decimal
import json
import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartosql.render.values import json_names, jsons, texts

D = decimal.Decimal
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("array", "text", "in_json"),
    [
        (pa.array([True, False]), ["true", "false"], ["true", "false"]),
        (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"], ["18446744073709551615"]),
        (pa.array([D(2**120)], pa.decimal128(38, 0)), [str(2**120)], [str(2**120)]),
        (pa.array([D("0"), D("1.50")], pa.decimal128(20, 10)), ["0.0000000000", "1.5000000000"], None),
        (pa.array([1.0, 1e20, 0.1]), ["1.0", "1e+20", "0.1"], ["1.0", "1e+20", "0.1"]),
        (pa.array([0.1, 1.0, 16777216], pa.float32()), ["0.1", "1.0", "16777216.0"], ["0.1", "1.0", "16777216.0"]),
        (pa.array([NAN, INF, -INF]), ["nan", "inf", "-inf"], ['"NaN"', '"Infinity"', '"-Infinity"']),
        (pa.array([NAN, -INF], pa.float32()), ["nan", "-inf"], ['"NaN"', '"-Infinity"']),
        (pa.array(["a", "", None, "NULL"]), ["a", "", None, "NULL"], ['"a"', '""', "null", '"NULL"']),
        (pa.array(['ü"\n']), ['ü"\n'], ['"ü\\"\\n"']),
        (pa.array([b"\x01\xfe", b"", None]), ["\\x01\\xFE", "", None], ['"01fe"', '""', "null"]),
        (pa.nulls(2), [None, None], ["null", "null"]),
        (pa.array(["x", None, "x"]).dictionary_encode(), ["x", None, "x"], ['"x"', "null", '"x"']),
        (pa.array([0], pa.timestamp("us", "UTC")), ["1970-01-01 00:00:00+00:00"], ['"1970-01-01T00:00:00+00:00"']),
        (pa.array([0], pa.date32()), ["1970-01-01"], ['"1970-01-01"']),
        (pa.array([[1, None], None, []]), ["[1,null]", None, "[]"], ["[1,null]", "null", "[]"]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), ["[1,2]", None], ["[1,2]", "null"]),
        (pa.array([{"a": 1, "b": None}, None]), ['{"a":1,"b":null}', None], ['{"a":1,"b":null}', "null"]),
        (
            pa.array([[("k", 1)], None, [], [("l", None), ("m", 2)]], pa.map_(pa.string(), pa.int8())),
            ['{"k":1}', None, "{}", '{"l":null,"m":2}'],
            None,
        ),
    ],
)
def test_text_and_json_of_each_type(array, text, in_json):
    assert texts(array) == text
    found = jsons(array)
    if in_json is not None:
        assert found == in_json
    for one in found:
        json.loads(one)


def test_sliced_nested_arrays_keep_their_own_rows():
    lists = pa.array([[1], [2, 3], None, [4]]).slice(1, 2)
    structs = pa.array([{"a": 1}, {"a": 2}, {"a": 3}]).slice(1)
    maps = pa.array([[("a", 1)], [("b", 2), ("c", 3)], [("d", 4)]], pa.map_(pa.string(), pa.int8())).slice(1)
    fixed = pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int8(), 2)).slice(1)
    assert jsons(lists) == ["[2,3]", "null"]
    assert jsons(structs) == ['{"a":2}', '{"a":3}']
    assert jsons(maps) == ['{"b":2,"c":3}', '{"d":4}']
    assert jsons(fixed) == ["null", "[5,6]"]
    assert [jsons(a.slice(0, 0)) for a in (lists, structs, maps, fixed)] == [[], [], [], []]


def test_unions_show_their_member():
    types = pa.array([0, 1, 0], pa.int8())
    union = pa.UnionArray.from_sparse(types, [pa.array([1, None, None]), pa.array([None, "x", None])])
    assert jsons(union) == ["1", '"x"', "null"]


def test_uuids_read_as_uuids():
    value = uuid.UUID(int=5)
    assert texts(pa.array([value.bytes, None], pa.uuid())) == [str(value), None]


@given(st.lists(st.lists(st.none() | st.text(), max_size=3) | st.none(), max_size=5))
def test_lists_of_text_read_back_from_json(rows):
    array = pa.array(rows, pa.list_(pa.string()))
    assert [json.loads(text) for text in jsons(array)] == rows


@given(st.lists(st.floats() | st.none()))
def test_floats_read_back_the_same(values):
    back = [None if t is None else float(t) for t in texts(pa.array(values, pa.float64()))]
    assert repr(back) == repr(values)


@pytest.mark.parametrize(
    ("names", "unique"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a_1", "a_2"]),
        (["a", "a", "a_1"], ["a", "a_2", "a_1"]),
        ([], []),
    ],
)
def test_repeated_names_get_a_number(names, unique):
    assert json_names(names) == unique
