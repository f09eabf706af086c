"""Constants as values of a column's type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

from kartosql.predicate.tree import Value, as_type, value_of

UTC = dt.timezone.utc
DAY = dt.date(2020, 1, 2)


@pytest.mark.parametrize(
    ("kind", "raw", "type_", "expected"),
    [
        ("integer", 127, pa.int8(), 127),
        ("integer", 128, pa.int8(), None),
        ("integer", -129, pa.int8(), None),
        ("integer", 255, pa.uint8(), 255),
        ("integer", -1, pa.uint8(), None),
        ("decimal", Decimal("2.0"), pa.int64(), 2),
        ("decimal", Decimal("2.5"), pa.int64(), None),
        ("double", 2.0, pa.int64(), None),
        ("decimal", Decimal("0.1"), pa.float64(), 0.1),
        ("decimal", Decimal("0.1"), pa.float32(), None),
        ("decimal", Decimal("0.5"), pa.float32(), 0.5),
        ("decimal", Decimal("1234567890.1234567"), pa.float64(), None),
        ("integer", 10**15, pa.float64(), None),
        ("boolean", True, pa.int64(), None),
        ("boolean", True, pa.bool_(), True),
        ("text", "a", pa.string(), "a"),
        ("string", "a", pa.binary(), None),
        ("binary", b"a", pa.binary(), b"a"),
        ("string", "2020-01-02", pa.date32(), DAY),
        ("string", "2020-02-30", pa.date32(), None),
        ("text", "2020-01-02", pa.date32(), None),
        ("timestamp", 0, pa.date32(), None),
        ("date", 10**9, pa.date32(), None),
        ("string", "2020-01-02 03:04:05", pa.timestamp("us"), dt.datetime(2020, 1, 2, 3, 4, 5)),
        ("string", "2020-01-02 03:04:05+00", pa.timestamp("us"), None),
        ("string", "2020-01-02 03:04:05+01", pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 2, 2, 4, 5, tzinfo=UTC)),
        ("string", "2020-01-02 03:04:05", pa.timestamp("us", "UTC"), None),
        ("zoned", 0, pa.timestamp("us"), None),
        ("zoned", 0, pa.timestamp("us", "UTC"), None),
        ("integer", 1, pa.decimal128(5, 2), None),
        ("integer", 1, pa.list_(pa.int64()), None),
    ],
)
def test_a_constant_has_the_type_of_the_column_or_none(kind, raw, type_, expected):
    found = as_type(Value(kind, raw), type_)
    assert found == expected
    assert type(found) is type(expected)


def test_parameters_are_constants_of_their_types():
    assert value_of(dt.datetime(1970, 1, 1, 0, 0, 1)) == Value("timestamp", 1_000_000)
    assert value_of(dt.datetime(1970, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))) == Value(
        "instant", -3_600_000_000
    )
    assert value_of(dt.date(1970, 1, 2)) == Value("date", 1)
    assert value_of(True) == Value("boolean", True)
    assert value_of("a") == Value("text", "a")
    assert value_of([1]) is None
    assert value_of("\ud800") is None
    assert value_of(pd.Timestamp("2020-01-01")) is None
    assert value_of(pd.NaT) is None
    assert value_of(Decimal("NaN")) is None
    assert value_of(Decimal("-Infinity")) is None
