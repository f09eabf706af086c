from __future__ import annotations

import json

import pyarrow as pa
import pytest

from kartosql.errors import UsageError
from kartosql.formats.kartothek.metadata import read_schema
from kartosql.write.change import common_schema, schema_bytes, widen


def stored(schema: pa.Schema, partition_on=("p",)) -> pa.Schema:
    return read_schema(schema_bytes(common_schema(schema, partition_on)), "k")


OLD = stored(pa.schema({"p": pa.string(), "b": pa.int64(), "a": pa.null(), "t": pa.timestamp("us")}))


def test_the_same_columns_in_another_order_and_width_change_nothing():
    new = pa.schema({"t": pa.timestamp("us"), "a": pa.null(), "b": pa.int8(), "p": pa.large_string()})
    assert widen(OLD, new) is OLD


def test_a_column_without_values_takes_the_type_of_the_new_data_and_the_order_stays():
    new = pa.schema({"p": pa.string(), "a": pa.float32(), "b": pa.null(), "t": pa.null()})
    wide = widen(OLD, new)
    assert wide.names == OLD.names == ["p", "a", "b", "t"]
    assert wide.types == [pa.string(), pa.float64(), pa.int64(), pa.timestamp("us")]
    described = {c["name"]: c["pandas_type"] for c in json.loads(wide.metadata[b"pandas"])["columns"]}
    assert described["a"] == "float64"
    assert read_schema(schema_bytes(wide), "k").equals(wide)


def test_metadata_of_the_schema_that_are_not_ours_stay():
    old = OLD.with_metadata({**OLD.metadata, b"owner": b"me"})
    assert (
        widen(old, pa.schema({"p": pa.string(), "a": pa.int64(), "b": pa.int64(), "t": pa.null()})).metadata[b"owner"]
        == b"me"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": pa.float64()}, "'b' is BIGINT in the table, but DOUBLE"),
        ({"b": pa.uint64()}, "'b' is BIGINT in the table, but UBIGINT"),
        ({"p": pa.int64()}, "'p' is VARCHAR in the table, but BIGINT"),
        ({"t": pa.timestamp("us", "UTC")}, "'t' is TIMESTAMP in the table, but TIMESTAMP WITH TIME ZONE"),
        ({"t": pa.date32()}, "'t' is TIMESTAMP in the table, but DATE"),
        ({"b": None}, "'b' is missing in the new data"),
        ({"a": None}, "'a' is missing in the new data"),
        ({"z": pa.int64()}, "new data have a column 'z'"),
        ({"B": pa.int64()}, "new data have a column 'B'"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    fields = {f.name: f.type for f in OLD} | change
    with pytest.raises(UsageError, match=message) as e:
        widen(OLD, pa.schema({k: v for k, v in fields.items() if v is not None}))
    assert e.value.code == "incompatible-schema"
    assert e.value.hint


@pytest.mark.parametrize(
    ("left", "right", "fits"),
    [
        (pa.list_(pa.int8()), pa.list_(pa.field("element", pa.int64())), True),
        (pa.list_(pa.int64()), pa.list_(pa.string()), False),
        (pa.decimal128(5, 2), pa.decimal128(4, 2), False),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), True),
        (pa.struct({"a": pa.int64()}), pa.struct({"b": pa.int64()}), False),
    ],
    ids=str,
)
def test_nested_types_and_decimals(left, right, fits):
    old = common_schema(pa.schema({"v": left}), ())
    new = pa.schema({"v": right})
    if fits:
        assert widen(old, new) is old
    else:
        with pytest.raises(UsageError):
            widen(old, new)
