"""Predicates with a function on the column, and the same said of the column itself.

An engine compares a column with the extremes that Parquet files note of it, but not always what a
function makes of the column. Only what holds for exactly the same rows is suggested.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from kartosql.errors import Span
from kartosql.sql.tree import span_of

TEXTS = (exp.DataType.Type.TEXT, exp.DataType.Type.VARCHAR)
Found = tuple[int | dt.date, int | dt.date, tuple[str, ...]] | None


@dataclass(frozen=True)
class Rewrite:
    """A predicate at a place of the text, and what to write instead if the column is of one of ``types``.

    It holds from ``low`` up to below ``high``.
    """

    span: Span
    old: str
    new: str
    types: tuple[str, ...]
    low: int | dt.date
    high: int | dt.date


def rewrites(tree: exp.Expression | None, text: str) -> Iterator[Rewrite]:
    """Yield the predicates of a query that DuckDB reads all row groups for, and that can be said of the bare column.

    Those that it understands by itself, such as ``year(t) = 2020``, are left alone.
    """
    nodes: Iterator[Any] = tree.find_all(exp.EQ, exp.Between) if tree is not None else iter(())
    for node in nodes:
        span = span_of(node)
        pairs = [(node.this, node.args.get("low") or node.expression)]
        pairs += [(node.expression, node.this)] if isinstance(node, exp.EQ) else []
        for side, value in pairs:
            # Of an expression that is more than its only column.
            columns = [] if isinstance(side, exp.Column) else list(side.find_all(exp.Column))
            place = span_of(columns[0]) if len(columns) == 1 else None
            if span is None or place is None:
                continue
            name = text[place[0] : place[1]]
            found = _range(side, value, node) or _number(side, value)
            if found is not None:
                low, high, types = found
                days = f"({name} >= DATE '{low}' AND {name} < DATE '{high}')"
                new = days if isinstance(low, dt.date) else f"{name} = {low}"
                yield Rewrite(span, text[span[0] : span[1]], new, types, low, high)
                break


def _range(side: exp.Expression, value: exp.Expression, node: exp.Expression) -> Found:
    """Return the days from which and below which a column has to be."""
    if isinstance(node, exp.Between):
        high = _date(node.args["high"])
        low = _date(value) if _is_cast(side, exp.DataType.Type.DATE) and not node.args.get("symmetric") else None
        return None if low is None or high is None else _days(low, high)
    if _is_cast(side, *TEXTS):
        # The text of a date, but not of a timestamp.
        day = _canonical(value, "%Y-%m-%d")
        return None if day is None else _days(day, day, "date")
    if isinstance(side, exp.TimeToStr) and isinstance(side.this, exp.Column):
        return _formatted(side.text("format"), value)
    year = int(value.this) if _is_year(side) and isinstance(value, exp.Literal) and value.is_int else None
    return None if year is None or not 1 <= year < 9999 else _days(dt.date(year, 1, 1), dt.date(year, 12, 31))


def _formatted(format_: str, value: exp.Expression) -> Found:
    first = _canonical(value, format_) if format_ in ("%Y-%m-%d", "%Y-%m", "%Y") else None
    if first is None:
        return None
    if format_ == "%Y-%m-%d":
        return _days(first, first)
    months = 1 if format_ == "%Y-%m" else 12
    behind = dt.date(first.year + (first.month + months > 12), (first.month + months - 1) % 12 + 1, 1)
    return _days(first, behind - dt.timedelta(days=1))


def _days(first: dt.date, last: dt.date, *types: str) -> Found:
    behind = min(last, dt.date.max - dt.timedelta(days=1)) + dt.timedelta(days=1)
    return first, behind, types or ("date", "timestamp")


def _number(side: exp.Expression, value: exp.Expression) -> Found:
    if not (_is_cast(side, *TEXTS) and isinstance(value, exp.Literal) and value.is_string):
        return None
    try:
        number = int(value.this)
    except ValueError:
        return None
    # Another way to write the number is the text of no integer.
    return (number, number + 1, ("integer",)) if str(number) == value.this else None


def _is_cast(side: Any, *types: Any) -> bool:
    return type(side) is exp.Cast and isinstance(side.this, exp.Column) and side.to.this in types


def _is_year(side: exp.Expression) -> bool:
    if isinstance(side, exp.Extract):
        return side.this.name.upper() == "YEAR" and isinstance(side.expression, exp.Column)
    if not (isinstance(side, exp.Anonymous) and side.name.lower() in ("date_part", "datepart")):
        return False
    part, *others = side.expressions
    return part.is_string and part.name.lower() == "year" and [type(o) for o in others] == [exp.Column]


def _date(value: exp.Expression) -> dt.date | None:
    inner = value.this if isinstance(value, exp.Cast) and value.to.this == exp.DataType.Type.DATE else value
    return _canonical(inner, "%Y-%m-%d")


def _canonical(value: exp.Expression, format_: str) -> dt.date | None:
    """Return the day that a text is written for in a format, None if it is not what the format writes."""
    if not (isinstance(value, exp.Literal) and value.is_string):
        return None
    try:
        day = dt.datetime.strptime(value.this, format_).date()
    except ValueError:
        return None
    written = {"%Y": f"{day.year:04}", "%Y-%m": f"{day.year:04}-{day.month:02}", "%Y-%m-%d": day.isoformat()}
    return day if written[format_] == value.this and 1000 <= day.year < 9999 else None
