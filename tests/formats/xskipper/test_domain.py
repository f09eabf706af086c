"""Constants among the keys of columns."""

from __future__ import annotations

import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartosql.formats.xskipper.domain import (
    ANY,
    NEVER,
    Among,
    ColumnType,
    Outside,
    Range,
    as_tests,
    keys_of,
    neighbour,
    order_key,
    spark_type,
)
from kartosql.predicate.tree import Comparison, In, Value, date_of, moment_of, to_float32

INT, DOUBLE, FLOAT = ColumnType("integer"), ColumnType("double"), ColumnType("float")
DECIMAL = ColumnType("decimal", 5, 2)
DATE, TIME = ColumnType("date"), ColumnType("timestamp")


def _tests(op, kind, value, type_, zone="UTC"):
    return as_tests(Comparison(("x",), op, Value(kind, value)), type_, zone)


@pytest.mark.parametrize(
    ("op", "kind", "value", "expected"),
    [
        ("<", "decimal", Decimal("1.5"), Range("<=", 1)),
        (">", "decimal", Decimal("-1.5"), Range(">", -2)),
        ("=", "decimal", Decimal("1.0"), Among(frozenset({1}))),
        ("=", "decimal", Decimal("1.5"), NEVER),
        ("<>", "decimal", Decimal("1.5"), ANY),
        ("<>", "integer", 3, Outside(frozenset({3}))),
        ("<", "integer", 1 << 70, ANY),
        (">", "integer", 1 << 70, NEVER),
        (">=", "integer", -(1 << 70), ANY),
        ("<", "double", math.nan, ANY),
        (">", "double", math.inf, NEVER),
        (">=", "double", 2.5, Range(">", 2)),
    ],
)
def test_integers_compare_exactly(op, kind, value, expected):
    assert _tests(op, kind, value, INT) == (expected,)


@pytest.mark.parametrize(
    ("kind", "value", "type_"),
    [
        ("double", float(1 << 53), INT),
        ("float", float(1 << 24), INT),
        ("string", "1", INT),
        ("integer", 1, ColumnType("string")),
        ("double", 1.0, DECIMAL),
        ("decimal", Decimal("1." + "1" * 37), DECIMAL),
        ("decimal", Decimal("1." + "1" * 30), INT),
        ("integer", 1, ColumnType("boolean")),
        ("boolean", True, INT),
        ("string", "x", DATE),
        ("string", "2020-01-01 ", DATE),
        ("instant", 0, DATE),
        ("string", "\ud800", ColumnType("string")),
        ("text", "2020-01-01", DATE),
    ],
)
def test_what_engines_may_compare_otherwise_proves_nothing(kind, value, type_):
    assert _tests("=", kind, value, type_) is None
    assert _tests("<>", kind, value, type_) == (ANY,)


def test_decimals_compare_at_the_scale_of_the_column():
    assert _tests("<", "decimal", Decimal("1.005"), DECIMAL) == (Range("<=", Decimal("1.00")),)
    assert _tests("=", "integer", 7, DECIMAL) == (Among(frozenset({Decimal("7.00")})),)
    assert _tests("<", "integer", 1000, DECIMAL) == (ANY,)
    assert _tests(">", "integer", 1000, DECIMAL) == (NEVER,)


def test_a_column_of_32_bits_is_compared_as_both_engines_do():
    found = _tests("=", "decimal", Decimal("0.1"), FLOAT)
    assert Among(frozenset({order_key(0.1)})) in found
    assert Among(frozenset({order_key(to_float32(0.1))})) in found
    assert _tests("<>", "decimal", Decimal("0.1"), FLOAT) == (ANY,)
    assert _tests("=", "decimal", Decimal("0.5"), FLOAT) == (Among(frozenset({order_key(0.5)})),)
    assert _tests("<>", "decimal", Decimal("0.5"), FLOAT) == (Outside(frozenset({order_key(0.5)})),)


def test_lists_keep_what_is_certain():
    values = (Value("integer", 1), Value("decimal", Decimal("1.5")))
    assert as_tests(In(("x",), values), INT) == (Among(frozenset({1})),)
    assert as_tests(In(("x",), values, True), INT) == (Outside(frozenset({1})),)
    assert as_tests(In(("x",), (*values, Value("string", "a"))), INT) is None
    assert as_tests(In(("x",), (*values, Value("string", "a")), True), INT) == (Outside(frozenset({1})),)


def test_dates_and_times_compare_on_the_clock():
    day = 86_400_000_000
    assert _tests("<", "timestamp", day + 1, DATE) == (Range("<=", 1),)
    assert _tests("<", "timestamp", day, DATE) == (Range("<", 1),)
    assert _tests("=", "date", 1, TIME) == (Among(frozenset({day})),)
    assert _tests("=", "string", "1970-01-02", TIME) == (Among(frozenset({day})),)


def test_clocks_of_other_zones_are_known_where_they_are_certain():
    berlin = "Europe/Berlin"
    summer = moment_of("2020-07-01 12:00:00")[0]
    assert _tests("=", "timestamp", summer, TIME, berlin) == (Among(frozenset({summer - 7_200_000_000})),)
    twice = moment_of("2020-10-25 02:30:00")[0]
    assert len(_tests("=", "timestamp", twice, TIME, berlin)) == 2
    assert _tests("=", "timestamp", moment_of("1900-01-01 00:00:00")[0], TIME, berlin) is None
    assert _tests("=", "timestamp", 0, TIME, "Nowhere/None") is None
    assert _tests("=", "instant", 5, TIME, berlin) == (Among(frozenset({5})),)
    clock = ColumnType("timestamp", clock=True)
    assert _tests("=", "timestamp", 5, clock, berlin) == (Among(frozenset({5})),)
    assert _tests("=", "instant", 5, clock, berlin) is None
    for zone in ("UTC", berlin):
        assert _tests("=", "string", "1970-01-01 00:00:01+01", TIME, zone) == (Among(frozenset({-3_599_000_000})),)
        assert _tests("=", "string", "1970-01-01 00:00:01+01", clock, zone) is None


def test_an_instant_without_an_offset_is_no_time_of_a_clock_that_changes():
    berlin, clock, twice = "Europe/Berlin", ColumnType("timestamp", clock=True), moment_of("2020-10-25 02:30:00")[0]
    assert len(_tests("=", "zoned", twice, TIME, berlin)) == 2
    for type_ in (clock, DATE):
        assert _tests("=", "zoned", twice, type_, berlin) is None
        assert _tests("<", "zoned", twice, type_) == _tests("<", "timestamp", twice, type_)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00", (0, False)),
        ("1970-01-01 00:00:00.000001Z", (1, True)),
        ("1970-01-01 01:00:00+01:00", (0, True)),
        ("1969-12-31 23:59:59.5", (-500_000, False)),
        ("1970-01-01 24:00:00", None),
        ("1970-01-01 00:00:60", None),
        ("1970-1-1", None),
        ("0000-01-01", None),
        ("now", None),
    ],
)
def test_times_are_read_in_one_form_only(text, expected):
    assert moment_of(text) == expected
    assert date_of("1970-01-02") == 1


@settings(deadline=None)
@given(st.lists(st.floats(width=64), min_size=2, max_size=20))
def test_keys_order_numbers_as_engines_do(numbers):
    keys = keys_of(pa.array(numbers, pa.float64()), DOUBLE).to_pylist()
    assert keys == [order_key(n) for n in numbers]
    for a, left in zip(numbers, keys, strict=True):
        for b, right in zip(numbers, keys, strict=True):
            if math.isnan(a) or math.isnan(b):
                assert (left < right) == (math.isnan(b) and not math.isnan(a))
            else:
                assert (left < right, left == right) == (a < b, a == b)


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_neighbours_have_nothing_between(number):
    above = neighbour(number, 1)
    assert above > number or math.isinf(above)
    if math.isfinite(above):
        assert to_float32((above + number) / 2) in (above, number)
        assert neighbour(above, -1) == number


def test_types_of_spark_are_read():
    assert spark_type("decimal(5,2)") == DECIMAL
    assert spark_type("short") == INT
    for odd in ("decimal(0,0)", "decimal(2,3)", "decimal(39,1)", "timestamp_ntz", "string collate X", {}, None):
        assert spark_type(odd) is None
