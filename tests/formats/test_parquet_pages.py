"""Values by pages and dictionaries are those that Arrow reads from the rows."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.formats.parquet_pages import distinct_values
from kartosql.parquet import DAMAGE, FooterLayout, footer_of, schema_bytes

MOST = {pa.int64(): (-(2**63), 2**63 - 1), pa.int32(): (-(2**31), 2**31 - 1), pa.int8(): (-128, 127)}
CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")


def found(data: bytes, column: str = "x") -> pa.Array | None:
    footer = footer_of(data)
    assert footer is not None
    try:
        return distinct_values(data, footer, FooterLayout(schema_bytes(footer) or b""), column)
    except (*DAMAGE, pa.ArrowException):
        return None


def written(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def values_of(rng: random.Random, type_: pa.DataType, count: int) -> list[Any]:
    if type_ in MOST:
        low, high = MOST[type_]
        pool: list[Any] = [low, high, 0, -1] + [rng.randint(low, high) for _ in range(rng.choice([1, 20, 5000]))]
    elif type_ == pa.date32():
        pool = [dt.date.min, dt.date.max] + [dt.date(1970, 1, 1) + dt.timedelta(n) for n in range(rng.choice([1, 300]))]
    else:
        pool = ["", "\0", "é", "\U0001f600", "x" * 70] + [f"v{n}" for n in range(rng.choice([1, 50, 400]))]
    nulls = rng.choice([0, 0, 0.1, 0.9, 1])
    drawn = [rng.choice(pool) for _ in range(count)]
    if rng.random() < 0.3:
        drawn.sort()
    return [None if rng.random() < nulls else value for value in drawn]


@pytest.mark.parametrize("type_", [pa.int64(), pa.int32(), pa.int8(), pa.date32(), pa.string()], ids=str)
def test_values_by_pages_are_those_of_the_rows(type_):
    rng, told = random.Random(str(type_)), 0
    for codec in CODECS * 6:
        values = pa.array(values_of(rng, type_, rng.choice([0, 1, 7, 3000])), type_)
        is_null = values.null_count > 0 or rng.random() < 0.5
        table = pa.table(
            {"y": values.is_null(), "x": values}, pa.schema([("y", pa.bool_()), pa.field("x", type_, is_null)])
        )
        data = written(
            table,
            compression=codec,
            use_dictionary=rng.random() < 0.7,
            data_page_size=rng.choice([100, 1 << 20]),
            dictionary_pagesize_limit=rng.choice([300, 1 << 20]),
            row_group_size=rng.choice([500, 10_000]),
            store_schema=rng.random() < 0.5,
        )
        by_pages = found(data)
        if by_pages is not None:
            told += 1
            assert set(by_pages.to_pylist()) == set(values.drop_null().to_pylist())
    assert told > 5


def test_texts_of_a_dictionary_that_no_row_has_are_left_to_arrow():
    months = pa.DictionaryArray.from_arrays(pa.array([0, 2, 0], pa.int32()), pa.array(["a", "b", "c"]))
    assert found(written(pa.table({"x": months}))) is None
    used = pa.DictionaryArray.from_arrays(pa.array([0, 2, 1], pa.int32()), pa.array(["a", "b", "c"]))
    assert found(written(pa.table({"x": used}))).to_pylist() == ["a", "b", "c"]


def test_columns_of_other_types_are_left_to_arrow():
    values: dict[str, Any] = {
        "u": pa.array([1], pa.uint32()),
        "d": pa.array([1.5]),
        "t": pa.array([1], pa.timestamp("us")),
        "n": pa.array([1]).cast(pa.decimal128(19)),
        "l": pa.array([[1]]),
        "b": pa.array([b"x"]),
        "s": pa.array([{"a": 1}]),
        "I": pa.array([1]),
        "i": pa.array([1]),
    }
    data = written(pa.table(values), store_decimal_as_integer=True)
    assert [name for name in [*values, "s.a", "none"] if found(data, name) is not None] == []
    assert found(written(pa.table({"x": [1, 2]}), use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")) is None


def test_pages_of_the_second_version_are_left_to_arrow():
    assert found(written(pa.table({"x": [1, 2]}), data_page_version="2.0")) is None


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"compression": "none"}], ids=str)
def test_damaged_pages_are_no_foreign_error(options):
    rng = random.Random(str(options))
    good = written(pa.table({"x": [f"v{n % 9}" for n in range(300)], "i": [n % 9 for n in range(300)]}), **options)
    footer = good[-8 - int.from_bytes(good[-8:-4], "little") : -8]
    for _ in range(500):
        data = bytearray(good)
        for _ in range(rng.choice([1, 3, 20])):
            data[rng.randrange(len(good) - len(footer) - 8)] = rng.randrange(256)
        for column in ("x", "i"):
            try:
                distinct_values(bytes(data), footer, FooterLayout(schema_bytes(footer) or b""), column)
            except (*DAMAGE, pa.ArrowException, OSError):
                continue
