from __future__ import annotations

import pyarrow as pa
import pytest

from kartosql.write.indexing import Postings, unique_values
from kartosql.write.layout import SpillingSorter


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.chunked_array([pa.array([3, None, 1], pa.int8()), pa.array([3], pa.int8())]), pa.array([1, 3])),
        (pa.chunked_array([pa.array([1, 1, None, 2], pa.uint8())]), pa.array([1, 2], pa.uint64())),
        (pa.chunked_array([[5, 5], [5, 7]]), pa.array([5, 7])),
        (pa.chunked_array([[2], [1]]), pa.array([1, 2])),
        (pa.chunked_array([[0.0, -0.0, None]]), pa.array([0.0])),
        (pa.chunked_array([["b", "a", "b"]]), pa.array(["b", "a"])),
        (pa.chunked_array([pa.nulls(2)]), pa.nulls(0)),
        (pa.chunked_array([], pa.int8()), pa.array([], pa.int64())),
    ],
    ids=lambda a: str(a.type),
)
def test_unique_values(column, expected):
    assert unique_values(column).equals(expected)


def test_the_type_of_the_index_is_taken_where_it_is_given():
    assert unique_values(pa.chunked_array([[2, 1, 2]]), pa.float64()).equals(pa.array([2.0, 1.0]))


@pytest.mark.parametrize("limit", [1, 100, 10**6], ids=["each alone", "some", "in memory"])
def test_parts_of_a_file_may_share_values(tmp_path, limit):
    pairs = Postings(pa.int64(), SpillingSorter(str(tmp_path)), limit)
    parts = [(1, [1, 2]), (0, [2, 5]), (1, [2, 3]), (0, list(range(2, 50))), (2, [])]
    for file, values in parts:
        pairs.add(file, pa.array(values, pa.int64()))
    table = pairs.finish(["a", "b", "c"])
    pairs.close()
    expected = {(v, "ab"[file]) for file, values in parts for v in values}
    found = list(zip(*table.to_pydict().values(), strict=True))
    assert len(found) == len(expected)
    assert set(found) == expected
    assert list(tmp_path.iterdir()) == []


def test_without_a_sorter_pairs_stay_in_memory():
    pairs = Postings(pa.string(), None, 0)
    pairs.add(0, pa.array(["x"]))
    assert pairs.finish(["a", "b"]).to_pydict() == {"value": ["x"], "label": ["a"]}


def test_a_column_without_values_has_no_pairs(tmp_path):
    pairs = Postings(pa.null(), SpillingSorter(str(tmp_path)), 0)
    pairs.add(0, pa.nulls(0))
    assert pairs.finish(["a"]).num_rows == 0
