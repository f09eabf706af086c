"""The comparison that the golden tests rely on tells different rows apart."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pytest

import golden


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ({"$ts": "2026-01-02T03:04:05.000006"}, dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
        ({"$ts": "2026-01-02T03:04:05.000006000"}, dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
        ({"$tstz": "2026-01-02T03:04:05.000000"}, dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)),
        ({"$date": "1955-11-05"}, dt.date(1955, 11, 5)),
        ({"$dec": "1.50"}, Decimal("1.50")),
        ({"$bytes": "00ff"}, b"\x00\xff"),
        ({"$float": "-inf"}, -math.inf),
        ({"$list": [1, {"$float": "inf"}, None]}, [1, math.inf, None]),
        ({"$struct": {"a": {"$date": "2026-01-01"}}}, {"a": dt.date(2026, 1, 1)}),
        ([{"$dec": "1"}], [Decimal(1)]),
        (None, None),
        ("text", "text"),
        (2**60, 2**60),
    ],
)
def test_decoding(written, value):
    assert golden.same(value, golden.decode(written))


def test_nanoseconds_are_not_dropped_silently():
    with pytest.raises(ValueError, match="nanoseconds"):
        golden.decode({"$ts": "2026-01-02T03:04:05.000006001"})


@pytest.mark.parametrize(
    ("expected", "actual"),
    [(0.1 + 0.2, 0.3), (math.nan, math.nan), (-0.0, -0.0), ([1.0], [1.0]), (1e300, 1e300 * (1 + 1e-12))],
)
def test_same_values(expected, actual):
    assert golden.same(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        (1.0, Decimal(1)),
        (None, 0),
        (None, math.nan),
        (math.nan, 0.0),
        (0.0, -0.0),
        (0.0, 5e-324),
        (1.0, 1.0001),
        ("1", 1),
        (dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)),
        (b"a", "a"),
        ([1], [1, 2]),
        ([True], [1]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 2}),
    ],
)
def test_different_values(expected, actual):
    assert not golden.same(expected, actual)


def test_order_matters_only_where_it_is_asked_for():
    assert golden.difference([[1], [2]], [(2,), (1,)], ordered=False) is None
    assert "row 0" in golden.difference([[1], [2]], [(2,), (1,)], ordered=True)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("expected", "actual"), [([[1]], []), ([], [(1,)]), ([[1], [1]], [(1,)]), ([[1]], [(2,)])])
def test_missing_extra_and_changed_rows_are_told(expected, actual, ordered):
    assert golden.difference(expected, actual, ordered=ordered)


def test_rows_with_nulls_and_mixed_types_can_be_compared_unordered():
    rows = [[None, "a"], [1.5, None], [b"x", [1, None]], [None, dt.date(2026, 1, 1)]]
    assert golden.difference(rows, [tuple(r) for r in reversed(rows)], ordered=False) is None
