from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from kartosql.write.indexing import index_key, index_table
from kartosql.write.layout import Layout
from kartosql.write.split import split


def index_of(values, partitions, **changes):
    table = pa.table({"i": values, "p": partitions, "x": range(len(partitions))})
    made = split(table, Layout("u", "u", ("p",), index_columns=("i",), not_null=("p",), **changes))
    names = {label: label.split("/")[0] for label in made.labels}
    index = index_table(made, "i")
    return index, [(v, [names[n] for n in labels]) for v, labels in zip(*index.to_pydict().values(), strict=True)]


def test_values_are_sorted_and_labels_follow_the_files():
    _, rows = index_of(["b", "a", "b", "a", "a"], [2, 2, 1, 1, 1])
    assert rows == [("a", ["p=1", "p=2"]), ("b", ["p=1", "p=2"])]


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        (pa.array([1, 2], pa.int8()), pa.int64()),
        (pa.array([1, 2], pa.uint16()), pa.uint64()),
        (pa.array([1, 2], pa.float32()), pa.float64()),
        (pa.array([True, False]), pa.bool_()),
        (pa.array(["a", "b"]), pa.string()),
        (pa.array([b"a", b"b"]), pa.binary()),
        (pa.array([dt.date(1960, 1, 1), dt.date(2020, 1, 1)]), pa.date32()),
        (pa.array([dt.datetime(1960, 1, 1), dt.datetime(2020, 1, 1)]), pa.timestamp("us")),
    ],
    ids=lambda v: str(getattr(v, "type", v)),
)
def test_types_are_normalised(values, stored):
    index, rows = index_of(values, [1, 2])
    assert index.schema == pa.schema({"i": stored, "partition": pa.list_(pa.string())})
    assert dict(rows) == dict(zip(values.to_pylist(), [["p=1"], ["p=2"]], strict=True))


def test_nulls_of_a_plain_dataset_are_left_out():
    assert index_of([None, "a", None], [1, 2, 3])[1] == [("a", ["p=2"])]


def test_zero_and_minus_zero_are_one_value():
    assert index_of([0.0, -0.0, -0.0], [1, 1, 2])[1] == [(0.0, ["p=1", "p=2"])]


@pytest.mark.parametrize("values", [[], [None]])
def test_an_index_without_values_has_no_rows(values):
    assert index_of(pa.array(values, pa.int64()), pa.array([1] * len(values), pa.int64()))[0].num_rows == 0


def test_key():
    assert index_key("u", "a/b", "2026-11-20T08:38:09.108658") == (
        "u/indices/a%2Fb/2026-11-20T08%3A38%3A09.108658.by-dataset-index.parquet"
    )
