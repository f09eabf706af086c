"""Values by pages and dictionaries are those that Arrow reads from the rows."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.formats.arrays import integers_as
from kartosql.formats.parquet_pages import distinct_values, rows_with
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


ROWS = {
    "k": pa.int64(),
    "n": pa.int32(),
    "i": pa.int8(),
    "d": pa.date32(),
    "m": pa.timestamp("us"),
    "f": pa.float64(),
    "a": pa.decimal128(15, 2),
}


def rows_of(rng: random.Random, count: int) -> pa.Table:
    def some(*values: Any) -> list[Any]:
        pool = rng.sample(values, rng.randint(1, len(values)))
        return [rng.choice(pool) for _ in range(count)]

    keys = [rng.randrange(rng.choice([1, 3, 400, 2**62])) - rng.choice([0, 3]) for _ in range(count)]
    columns: dict[str, list[Any]] = {
        "k": sorted(keys) if rng.random() < 0.5 else keys,
        "n": some(0, -1, 2**31 - 1, -(2**31), 7),
        "i": some(*range(-128, 128)),
        "d": some(dt.date.min, dt.date.max, dt.date(1970, 1, 1)),
        "m": [dt.datetime(2020, 1, 1) + dt.timedelta(microseconds=n) for n in some(*range(90))],
        "f": some(0.0, -0.0, 1e300, 5e-324, float("inf")),
        "a": [Decimal(f"{n}E-2") for n in some(0, 1, -1, 10**15 - 1, -(10**15) + 1)],
    }
    return pa.table([pa.array(columns[name], type_) for name, type_ in ROWS.items()], names=[*ROWS])


def by_pages(data: bytes, wanted: dict[str, int], types: dict[str, pa.DataType]) -> pa.Table | None:
    """Return rows by pages, None where Arrow has to read them."""
    footer = footer_of(data) or b""
    try:
        found, _ = rows_with(data, footer, FooterLayout(schema_bytes(footer) or b""), types, wanted)
        return pa.table({name: integers_as(found[name], type_) for name, type_ in types.items()})
    except (*DAMAGE, pa.ArrowException, OSError):
        return None


@pytest.mark.parametrize("codec", CODECS)
def test_rows_by_pages_are_those_of_arrow(codec):
    rng, told = random.Random(codec), 0
    for turn in range(30):
        table = rows_of(rng, rng.choice([1, 9, 300, 2000]))
        if turn % 3 == 0:
            table = table.cast(pa.schema([f.with_nullable(False) for f in table.schema]))
        data = written(
            table,
            compression=codec,
            use_dictionary=rng.choice([True, False, ["k", "n", "i"], ["d", "f", "a"]]),
            data_page_size=rng.choice([100, 3000, 1 << 20]),
            write_batch_size=rng.choice([64, 1024]),
            dictionary_pagesize_limit=rng.choice([300, 1 << 20]),
            row_group_size=rng.choice([500, 10_000]),
            store_decimal_as_integer=rng.random() < 0.3,
            store_schema=rng.random() < 0.5,
        )
        row = table.slice(rng.randrange(len(table)), 1).to_pylist()[0]
        for columns in (["k"], ["n", "i"], ["k", "n"], ["i"], ["n"]):
            wanted = {c: rng.choice([row[c], row[c], 5, 2**62]) for c in columns}
            expected = [r for r in table.to_pylist() if all(r[c] == v for c, v in wanted.items())]
            found = by_pages(data, wanted, ROWS)
            if found is not None:
                told += 1
                assert repr(found.to_pylist()) == repr(expected)
    assert told > 75  # not where many rows have the first value


def test_rows_with_null_and_columns_of_other_kinds_are_left_to_arrow():
    values = pa.table({"k": [1, 2, 1], "n": [None, 5, 6], "s": ["a", "b", "c"], "b": [True, False, True]})
    for options in ({}, {"use_dictionary": False}):
        data = written(values, **options)
        assert by_pages(data, {"k": 2}, {"k": pa.int64()}).to_pylist() == [{"k": 2}]
        for name, type_ in (("n", pa.int64()), ("s", pa.string()), ("b", pa.bool_()), ("none", pa.int64())):
            assert by_pages(data, {"k": 2}, {"k": pa.int64(), name: type_}) is None
        assert by_pages(data, {"n": 5}, {"n": pa.int64(), "k": pa.int64()}) is None
    numbers = values.select(["k"])
    assert by_pages(written(numbers, data_page_version="2.0"), {"k": 2}, {"k": pa.int64()}) is None
    packed = written(numbers, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")
    assert by_pages(packed, {"k": 2}, {"k": pa.int64()}) is None
    assert by_pages(written(numbers), {"k": 2}, {"k": pa.int8()}).to_pylist() == [{"k": 2}]
    assert by_pages(written(numbers), {"k": 300}, {"k": pa.int8()}).to_pylist() == []


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"compression": "none"}], ids=str)
def test_rows_of_damaged_pages_are_no_foreign_error(options):
    rng = random.Random(str(options))
    good = written(rows_of(rng, 300), **options)
    end = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    for _ in range(500):
        data = bytearray(good)
        for _ in range(rng.choice([1, 3, 20])):
            data[rng.randrange(end)] = rng.randrange(256)
        by_pages(bytes(data), {rng.choice("kni"): rng.choice([0, -1, 7])}, ROWS)
