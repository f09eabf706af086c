from __future__ import annotations

import json

import pyarrow as pa
import pytest

from kartosql.formats.kartothek.metadata import read_schema
from kartosql.write.change import common_schema, schema_bytes


def test_partition_keys_come_first_and_the_rest_by_code_point():
    schema = pa.schema({n: pa.int64() for n in ("x", "B", "q", "a", "p", "ä")})
    assert common_schema(schema, ("q", "p")).names == ["q", "p", "B", "a", "x", "ä"]


def test_types_are_normalised_and_survive_the_file():
    given = {
        "a": pa.int8(),
        "b": pa.list_(pa.field("element", pa.uint8())),
        "c": pa.float32(),
        "d": pa.timestamp("us"),
        "e": pa.string(),
        "f": pa.null(),
        "g": pa.struct({"a": pa.string()}),
    }
    wanted = {**given, "a": pa.int64(), "b": pa.list_(pa.uint64()), "c": pa.float64()}
    read = read_schema(schema_bytes(common_schema(pa.schema(given), ())), "k")
    assert read == pa.schema(wanted)
    assert read.field("b").type.value_field.name == "item"


@pytest.mark.parametrize(
    ("type_", "pandas_type", "numpy_type", "details"),
    [
        (pa.string(), "unicode", "object", None),
        (pa.binary(), "bytes", "object", None),
        (pa.bool_(), "bool", "bool", None),
        (pa.int16(), "int64", "int64", None),
        (pa.uint8(), "uint64", "uint64", None),
        (pa.float32(), "float64", "float64", None),
        (pa.date32(), "date", "object", None),
        (pa.timestamp("us"), "datetime", "datetime64[ns]", None),
        (pa.timestamp("us", "UTC"), "datetimetz", "datetime64[ns]", {"timezone": "UTC"}),
        (pa.decimal128(5, 2), "decimal", "object", {"precision": 5, "scale": 2}),
        (pa.list_(pa.string()), "list[unicode]", "object", None),
        (pa.struct({"a": pa.int64()}), "object", "object", None),
        (pa.null(), "empty", "object", None),
    ],
    ids=str,
)
def test_the_pandas_block_describes_columns_as_the_original_does(type_, pandas_type, numpy_type, details):
    block = json.loads(common_schema(pa.schema({"c": type_}), ()).metadata[b"pandas"])
    assert block["index_columns"] == []
    assert block["columns"] == [
        {"name": "c", "field_name": "c", "pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": details}
    ]
