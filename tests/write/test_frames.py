from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from kartosql.errors import SqlError, UsageError
from kartosql.write.inputs import arrow_table, storage_schema, storage_type, to_storage


def to_table(data, name):
    """Take data the way that writers do."""
    table = arrow_table(data, name)
    return to_storage(table, storage_schema(table.schema, name), name)


class Stream:
    """Something that is not pyarrow's and carries Arrow data."""

    def __init__(self, table: pa.Table | None = None, error: Exception | None = None) -> None:
        self.table, self.error = table, error

    def __arrow_c_stream__(self, requested_schema=None):
        if self.error:
            raise self.error
        return self.table.__arrow_c_stream__(requested_schema)


TABLE = pa.table({"x": [1, 2], "v": ["a", None]})


@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        TABLE.to_batches()[0],
        Stream(TABLE),
        pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches()),
        TABLE.to_struct_array().combine_chunks(),
    ],
    ids=["table", "batch", "stream", "reader", "struct array"],
)
def test_everything_that_carries_arrow_data_is_taken(data):
    assert to_table(data, "seed").equals(TABLE)


@pytest.mark.parametrize("data", [None, 3, "text", [TABLE], {"x": [1]}])
def test_other_objects_are_refused(data):
    with pytest.raises(UsageError, match="carries no Arrow data") as e:
        to_table(data, "seed")
    assert e.value.code == "invalid-data"


def test_an_error_of_a_foreign_producer_is_reported_as_ours():
    with pytest.raises(UsageError, match="'seed': its Arrow data cannot be read: boom"):
        to_table(Stream(error=RuntimeError("boom")), "seed")


def test_an_error_of_our_own_passes():
    with pytest.raises(SqlError):
        to_table(Stream(error=SqlError("no such table")), "seed")


def test_torn_arrow_data_is_refused():
    torn = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xff"))
    with pytest.raises(UsageError) as e:
        to_table(pa.table({"x": torn}), "seed")
    assert e.value.code == "invalid-data"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.int8(), pa.int8()),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.binary(3), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("us", "Europe/Berlin")),
        (pa.time32("s"), pa.time64("us")),
        (pa.decimal256(5, 2), pa.decimal128(5, 2)),
        (pa.decimal256(50, 2), pa.decimal256(50, 2)),
        (pa.large_list(pa.field("element", pa.large_string())), pa.list_(pa.string())),
        (pa.list_(pa.int64(), 2), pa.list_(pa.int64())),
        (pa.struct({"a": pa.string_view()}), pa.struct({"a": pa.string()})),
        (pa.null(), pa.null()),
        (pa.duration("s"), None),
        (pa.month_day_nano_interval(), None),
        (pa.map_(pa.string(), pa.int64()), None),
        (pa.list_(pa.duration("s")), None),
        (pa.struct([]), None),
    ],
    ids=str,
)
def test_storage_types(given, stored):
    assert storage_type(given) == stored


def test_values_survive_the_change_of_layout():
    words = pa.array(["b", None, "a"])
    views = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), pa.array(["a", "b"]).cast(pa.string_view()))
    table = to_table(pa.table({"d": words.dictionary_encode(), "l": words.cast(pa.large_string()), "w": views}), "seed")
    assert table.to_pydict() == {"d": ["b", None, "a"], "l": ["b", None, "a"], "w": ["b", None, "a"]}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1], pa.duration("s")), "which cannot be stored"),
        (pa.array([100], pa.decimal128(5, -2)), "which cannot be stored"),
        (pa.array([1], pa.timestamp("ns")), "does not fit into TIMESTAMP"),
        (pa.array([2**60], pa.timestamp("s")), "does not fit into TIMESTAMP"),
    ],
    ids=["duration", "decimal", "nanoseconds", "far away"],
)
def test_a_column_that_cannot_be_stored_is_named(column, message):
    with pytest.raises(UsageError, match=f"'weather': the column 't' .*{message}") as e:
        to_table(pa.table({"t": column}), "weather")
    assert e.value.code == "invalid-data"
    assert e.value.hint


@pytest.mark.parametrize(
    ("names", "message"),
    [(["x", "x"], "occurs twice"), ([""], "no usable"), (["a\0b"], "no usable"), (["a" * 1025], "no usable")],
)
def test_column_names_that_no_reader_takes_are_refused(names, message):
    with pytest.raises(UsageError, match=message):
        to_table(pa.table([[1]] * len(names), names=names), "seed")


def test_a_table_without_columns_is_refused():
    with pytest.raises(UsageError, match="no columns"):
        to_table(pa.table({}), "seed")


def test_pandas_labels_must_be_text():
    pd = pytest.importorskip("pandas")
    with pytest.raises(UsageError, match="label is not text"):
        to_table(pd.DataFrame({1: [1]}), "seed")


def test_sparse_pandas_frames_are_refused():
    pd = pytest.importorskip("pandas")
    with pytest.raises(UsageError, match="Sparse"):
        to_table(pd.DataFrame({"x": pd.arrays.SparseArray([0, 1])}), "seed")


def test_polars_categories_become_text():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"c": pl.Series(["m", "n"], dtype=pl.Categorical), "d": [dt.date(2026, 1, 2)] * 2})
    assert to_table(frame, "seed").schema == pa.schema({"c": pa.string(), "d": pa.date32()})
