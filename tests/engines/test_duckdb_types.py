"""Arrow types as DuckDB types, and which types of files fit them."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.engines.duckdb.types import fits, literal, sql_of, sql_type
from kartosql.errors import FormatError
from kartosql.predicate.from_sql import predicate_of
from kartosql.predicate.tree import Comparison
from kartosql.store import Store
from kartosql.text.constants import quote

TYPES = [
    (pa.bool_(), "BOOLEAN"),
    (pa.int8(), "TINYINT"),
    (pa.int16(), "SMALLINT"),
    (pa.int32(), "INTEGER"),
    (pa.int64(), "BIGINT"),
    (pa.uint8(), "UTINYINT"),
    (pa.uint16(), "USMALLINT"),
    (pa.uint32(), "UINTEGER"),
    (pa.uint64(), "UBIGINT"),
    (pa.float32(), "FLOAT"),
    (pa.float64(), "DOUBLE"),
    (pa.string(), "VARCHAR"),
    (pa.large_string(), "VARCHAR"),
    (pa.binary(), "BLOB"),
    (pa.date32(), "DATE"),
    (pa.time64("us"), "TIME"),
    (pa.timestamp("s"), "TIMESTAMP_S"),
    (pa.timestamp("ms"), "TIMESTAMP_MS"),
    (pa.timestamp("us"), "TIMESTAMP"),
    (pa.timestamp("ns"), "TIMESTAMP_NS"),
    (pa.timestamp("us", "Europe/Berlin"), "TIMESTAMP WITH TIME ZONE"),
    (pa.decimal128(12, 2), "DECIMAL(12,2)"),
    (pa.list_(pa.int64()), "BIGINT[]"),
    (pa.list_(pa.list_(pa.string())), "VARCHAR[][]"),
    (pa.duration("us"), "INTERVAL"),
    (pa.month_day_nano_interval(), "INTERVAL"),
    (pa.time64("ns"), "TIME_NS"),
    (pa.uuid(), "UUID"),
    (pa.json_(), "JSON"),
    (pa.opaque(pa.time64("us"), "TIME WITH TIME ZONE", "Parquet"), "TIME WITH TIME ZONE"),
    (pa.map_(pa.string(), pa.int64()), "MAP(VARCHAR, BIGINT)"),
    (pa.struct([('a "b"', pa.int64()), ("c d", pa.list_(pa.date32()))]), 'STRUCT("a ""b""" BIGINT, "c d" DATE[])'),
]


@pytest.mark.parametrize(("arrow", "name"), TYPES, ids=[name for _, name in TYPES])
def test_a_type_has_a_name_that_duckdb_gives_back(arrow, name):
    assert sql_type(arrow) == name
    connection = duckdb.connect(":memory:")
    assert str(connection.sql(f"SELECT CAST(NULL AS {name})").types[0]) == name
    connection.close()


def test_lists_of_fixed_size_are_read_as_lists():
    # Parquet does not know the size.
    assert sql_type(pa.list_(pa.float64(), 3)) == "DOUBLE[]"


@pytest.mark.parametrize(
    "arrow", [pa.list_(pa.duration("us")), pa.decimal256(60, 2), pa.opaque(pa.binary(), "GEOMETRY", "Parquet")], ids=str
)
def test_a_type_without_a_name_is_an_error(arrow):
    with pytest.raises(FormatError) as e:
        sql_type(arrow)
    assert e.value.code == "unsupported-type"


@pytest.mark.parametrize(
    ("file", "declared", "ok"),
    [
        ("TINYINT", "BIGINT", True),
        ("BIGINT", "BIGINT", True),
        ("UINTEGER", "UBIGINT", True),
        ("FLOAT", "DOUBLE", True),
        ("TIMESTAMP_NS", "TIMESTAMP", True),
        ('"NULL"', "VARCHAR", True),
        ("DECIMAL(5,2)", "DECIMAL(12,2)", True),
        ("INTEGER[]", "BIGINT[]", True),
        ('"NULL"[]', "BIGINT[]", True),
        ("STRUCT(a INTEGER)", "STRUCT(a BIGINT)", True),
        ("UINTEGER", "BIGINT", False),
        ("BIGINT", "UBIGINT", False),
        ("DOUBLE", "BIGINT", False),
        ("BIGINT", "DOUBLE", False),
        ("VARCHAR", "BIGINT", False),
        ("BIGINT", "VARCHAR", False),
        ("BLOB", "VARCHAR", False),
        ("DATE", "TIMESTAMP", False),
        ("DECIMAL(12,4)", "DECIMAL(12,2)", False),
        ("DECIMAL(12,2)", "DECIMAL(5,2)", False),
        ("DOUBLE[]", "BIGINT[]", False),
        ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP", False),
        ("BOOLEAN", "BIGINT", False),
        ("STRUCT(a INTEGER)", "BIGINT", False),
        ("BIGINT", "BIGINT[]", False),
    ],
)
def test_which_types_of_files_fit(file, declared, ok):
    assert fits(file, declared) is ok


def test_names_and_texts_are_quoted():
    assert quote('a"b') == '"a""b"'
    assert literal("it's") == "'it''s'"


VALUES: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    # declared type, type in the file, values
    (pa.int64(), pa.int8(), [-128, None, 127]),
    (pa.uint64(), pa.uint64(), [0, 2**64 - 1]),
    (pa.float64(), pa.float32(), [0.5, None]),
    (pa.float64(), pa.float64(), [float("inf"), -0.0, 1e308]),
    (pa.string(), pa.large_string(), ["", "日本", None]),
    (pa.string(), pa.dictionary(pa.int32(), pa.string()), ["a", "a", None]),
    (pa.string(), pa.null(), [None, None]),
    (pa.binary(), pa.binary(), [b"", b"\0\xff", None]),
    (pa.bool_(), pa.bool_(), [True, False, None]),
    (pa.date32(), pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    (pa.timestamp("us"), pa.timestamp("ns"), [dt.datetime(1969, 12, 31, 23, 59, 59, 1), None]),
    (pa.timestamp("us"), pa.timestamp("ms"), [dt.datetime(2020, 1, 1)]),
    (pa.decimal128(20, 3), pa.decimal128(20, 3), [Decimal("-1.005"), None]),
    (pa.time64("us"), pa.time64("us"), [dt.time(23, 59, 59, 999999), None]),
    (pa.list_(pa.int64()), pa.list_(pa.int32()), [[1, None], [], None]),
    (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": None}],
    ),
    (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64()), [[("k", 1)]]),
]


@pytest.mark.parametrize(
    ("declared", "stored", "values"), VALUES, ids=lambda v: str(v) if isinstance(v, pa.DataType) else ""
)
def test_values_come_back_in_the_declared_type(declared, stored, values):
    store = Store(f"memory://{uuid.uuid4().hex}")
    builders.write_dataset(store, "d", {"v": declared}, [""])
    store.put(f"d/table/{builders.WRITE_ID}.parquet", builders.parquet(pa.table({"v": pa.array(values, stored)})))
    query = kartosql.connect(store.url).sql("SELECT v FROM d")
    assert query.schema.field("v").type == query.arrow().schema.field("v").type
    assert pa.types.is_large_string(query.schema.field("v").type) is False
    assert query.rows() == [(v,) for v in values]


def test_a_column_of_no_type_is_null():
    store = Store(f"memory://{uuid.uuid4().hex}")
    builders.write_dataset(store, "d", {"v": pa.null(), "x": pa.int64()}, [""])
    store.put(f"d/table/{builders.WRITE_ID}.parquet", builders.parquet({"v": pa.nulls(2), "x": [1, 2]}))
    connection = kartosql.connect(store.url)
    assert connection.sql("SELECT v, x FROM d WHERE v IS NULL ORDER BY x").rows() == [(None, 1), (None, 2)]
    assert connection.sql("SELECT x FROM d WHERE v = 1").rows() == []


def test_a_column_that_cannot_be_queried_disturbs_only_those_who_ask_for_it():
    store = Store(f"memory://{uuid.uuid4().hex}")
    type_ = pa.list_(pa.duration("us"))
    builders.write_dataset(store, "d", {"v": type_, "x": pa.int64()}, [""])
    store.put(f"d/table/{builders.WRITE_ID}.parquet", builders.parquet({"v": pa.array([[1]], type_), "x": [1]}))
    connection = kartosql.connect(store.url)
    assert connection.sql("SELECT x FROM d").rows() == [(1,)]
    with pytest.raises(FormatError) as e:
        connection.sql("SELECT * FROM d").rows()
    assert (e.value.code, "d.v" in e.value.message) == ("unsupported-type", True)


@pytest.mark.parametrize(
    "expression",
    [
        "DATE '30000-01-01'",
        "'infinity'::TIMESTAMP",
        "'-infinity'::DATE",
        "DATE '0044-01-01 (BC)'",
        "'infinity'::TIMESTAMPTZ",
        "[DATE '30000-01-01']",
        "{'a': 'infinity'::TIMESTAMP}",
        "INTERVAL 999999999 DAYS * 2",
        "'1500-01-01'::TIMESTAMP_S",
        "1::HUGEINT",
        "'24:00:00'::TIME",
        "uuid '00000000-0000-0000-0000-000000000001'",
        "'101'::BIT",
        "'2020-01-01 00:00:00.000000001'::TIMESTAMP_NS",
    ],
)
def test_every_value_of_the_engine_becomes_a_python_value(tmp_path, expression):
    ((value,),) = kartosql.connect(str(tmp_path)).sql(f"SELECT {expression}").rows()
    assert value is not None


@pytest.mark.parametrize(
    "constant",
    [
        *("7", "-7", "99999999999999999999", "7.", "-0.50", "12345678901234567890.", "1e300", "'-inf'::DOUBLE"),
        *("0.3::FLOAT", "'nan'::FLOAT", "7::DECIMAL(9,0)", "7::DECIMAL(9,3)", "true", "'it''s'", "'it''s'::VARCHAR"),
        *("DATE '0044-03-15'", "DATE '2024-02-29'", "TIMESTAMP '1969-12-31 23:59:59.999999'"),
        *("TIMESTAMP '2024-03-31 02:30:00'", "TIMESTAMPTZ '2024-03-31 02:30:00'", "TIMESTAMPTZ '2024-10-27 02:30:00'"),
        *(
            "TIMESTAMPTZ '2024-10-27 02:30:00+02'",
            "CAST(DATE '2018-11-04' AS TIMESTAMPTZ)",
            "CAST(DATE '2018-11-04' AS TIMESTAMP)",
        ),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo"])
def test_constants_are_written_as_the_same_value_of_the_same_type(constant, zone):
    said = predicate_of(f"x = {constant}", dialects=("duckdb",))
    assert isinstance(said, Comparison)
    with duckdb.connect() as con:
        con.execute(f"SET TimeZone = '{zone}'")
        written = sql_of(said.value)
        ((same, type_, wanted),) = con.sql(
            f"SELECT {written} IS NOT DISTINCT FROM {constant}, typeof({written}), typeof({constant})"
        ).fetchall()
    assert same
    # Digits beyond those of a decimal change no comparison, nor does the size of an integer.
    assert type_ == wanted or {type_, wanted} <= {"INTEGER", "BIGINT"} or _scale(type_) == _scale(wanted) is not None


def _scale(type_: str) -> str | None:
    return type_.split(",")[1] if type_.startswith("DECIMAL") else None
