"""Aggregates on Spark that look at values in an order: lists, the first and the greatest, quantiles, the mode.

Where several rows could be the answer, and DuckDB takes the one that it meets first, the value is refused when it is
met, unless all of these rows give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from kartosql.engines.spark.types import COMPARABLE, SparkExpression, refuses

Order = tuple[SparkExpression, bool, bool]  # the key, whether the greatest comes first, and whether NULL does

_LISTS, _ENDS = ("list", "array_agg"), ("first", "last", "any_value", "arbitrary")
_CONTINUOUS, _DISCRETE = ("median", "quantile_cont"), ("quantile_disc", "quantile")
_SEVERAL = "several rows with the greatest or least value"
_DIGITS, _REVERSED = "'0123456789ABCDEF'", "'FEDCBA9876543210'"


def ordered(
    name: str, args: Sequence[SparkExpression], orders: Sequence[Order], where: Sequence[str], *, distinct: bool
) -> str | None:
    """Return an aggregate over the rows that satisfy ``where``, or None if it is none of these for such arguments."""
    if not args or any(a.type.kind not in COMPARABLE or a.type.kind == "0" for a in args[:1]):
        return None
    if name in _LISTS and orders:
        return _list(args[0], orders, where, distinct=distinct)
    if name in _ENDS and len(args) == 1 and not (orders and distinct):
        return _end(name, args[0], orders, where) if orders else _any(name, args[0], where)
    if name == "mode" and args[0].type.kind not in "fd" and not distinct:
        ends = (f"mode() WITHIN GROUP (ORDER BY {args[0].sql}{word}){_filter(*where)}" for word in ("", " DESC"))
        return _alike("", "several values that are there most often", *ends)
    if orders or distinct:
        return None
    if name in ("arg_max", "max_by", "arg_min", "min_by") and len(args) > 1 and args[1].type.kind in COMPARABLE:
        if len(args) == 3:
            return _extremes(args[0], args[1], args[2].value, where, greatest="max" in name)
        return _extreme(args[0], args[1], where, greatest="max" in name)
    if name in ("max", "min") and len(args) == 2:
        return _first_of(f"sort_array(collect_list({args[0].sql}){_filter(*where)}, {name == 'min'})", args[1].value)
    if name == "histogram" and len(args) == 1 and args[0].type.kind not in "fd":
        return _HISTOGRAM.format(f"array_sort(collect_list({args[0].sql}){_filter(*where)})")
    if name == "product":
        return _PRODUCT.format(f"collect_list({args[0].sql}){_filter(*where)}", refused=refuses(_OVER))
    if name in _CONTINUOUS + _DISCRETE:
        return _quantiles(name, args, where)
    return None


def _filter(*conditions: str) -> str:
    return f" FILTER (WHERE {' AND '.join(f'({c})' for c in conditions)})" if conditions else ""


def _descending(sql: str, kind: str) -> str:
    """Return an expression whose values are in the opposite order."""
    if kind in "fd":
        return f"struct(NOT isnan({sql}), -{sql})"
    if kind in "sx":
        return f"concat(translate(hex({sql}), {_DIGITS}, {_REVERSED}), 'G')"
    if kind in "TN":
        return f"(TIMESTAMP_NTZ '1970-01-01 00:00:00' - {sql})"
    known = {"b": "NOT {}", "i": "~{}", "D": "-unix_date({})", "Z": "-unix_micros({})"}
    return known.get(kind, "(0 - {})").format(sql)


def _sortable(orders: Sequence[Order], value: str) -> str:
    """Return a struct of the keys of a row and its value, in the order of the rows."""
    fields = []
    for at, (key, descending, nulls_first) in enumerate(orders):
        sql = _descending(key.sql, key.type.kind) if descending else key.sql
        fields += [f"{key.sql} IS {'NOT ' if nulls_first else ''}NULL AS n{at}", f"{sql} AS k{at}"]
    return f"struct({', '.join(fields)}, {value} AS v)"


def _list(value: SparkExpression, orders: Sequence[Order], where: Sequence[str], *, distinct: bool) -> str | None:
    if distinct and value.type.kind in "fd":
        return None
    rows = f"array_sort(collect_list({_sortable(orders, value.sql)}){_filter(*where)})"
    found = f"transform({rows}, e -> e.v)"
    if distinct:
        found = f"array_distinct({found})"
    return f"CASE WHEN count(*){_filter(*where)} > 0 THEN {found} END"


def _end(name: str, value: SparkExpression, orders: Sequence[Order], where: Sequence[str]) -> str:
    if name == "any_value":
        where = [*where, f"{value.sql} IS NOT NULL"]
    return f"({'max' if name == 'last' else 'min'}({_sortable(orders, value.sql)}){_filter(*where)}).v"


def _any(name: str, value: SparkExpression, where: Sequence[str]) -> str:
    """Return the value of all rows, where there is one only."""
    of, shown = _filter(*where), f"CAST({value.sql} AS STRING)" if value.type.kind in "fd" else value.sql
    several = f"min({shown}){of} <> max({shown}){of}"
    if name != "any_value":
        several += f" OR count({value.sql}){of} BETWEEN 1 AND count(*){of} - 1"
    refused = refuses("several values of which any could be it")
    return f"CASE WHEN {several} THEN {refused} ELSE min({value.sql}){of} END"


def _extreme(value: SparkExpression, key: SparkExpression, where: Sequence[str], *, greatest: bool) -> str:
    """Return the value of the row with the greatest or least key, where all such rows have the same."""
    of = _filter(*where, f"{value.sql} IS NOT NULL", f"{key.sql} IS NOT NULL")
    up, down = (f"struct({k} AS k, {value.sql} AS v)" for k in (key.sql, _descending(key.sql, key.type.kind)))
    first, last = (up, down) if greatest else (down, up)
    text = "STRING" if value.type.kind in "fd" else ""
    return _alike(text, _SEVERAL, f"(max({first}){of}).v", f"(min({last}){of}).v")


def _alike(text: str, reason: str, one: str, other: str) -> str:
    """Return a value, refused where another one that could be it differs, compared as a type ``text`` unless empty."""
    a, b = (f"CAST({v} AS {text})" if text else v for v in (one, other))
    return f"CASE WHEN {a} <> {b} THEN {refuses(reason)} ELSE {one} END"


def _first_of(rows: str, count: Any) -> str | None:
    known = isinstance(count, int) and 0 < count < 1_000_000
    return f"CASE WHEN size({rows}) > 0 THEN slice({rows}, 1, {count}) END" if known else None


def _extremes(
    value: SparkExpression, key: SparkExpression, count: Any, where: Sequence[str], *, greatest: bool
) -> str | None:
    """Return the values of some rows with the greatest or least keys, where it does not matter which come first."""
    descending = _descending(key.sql, key.type.kind)
    of = [(key.sql, not greatest), (descending, greatest)]
    rows = _filter(*where, f"{value.sql} IS NOT NULL", f"{key.sql} IS NOT NULL")
    sorted_ = [f"sort_array(collect_list(struct({k} AS k, {value.sql} AS v)){rows}, {up})" for k, up in of]
    found = [_first_of(f"transform({s}, e -> e.v)", count) for s in sorted_]
    if found[0] is None:
        return None
    return _alike("ARRAY<STRING>" if value.type.kind in "fd" else "", _SEVERAL, found[0], str(found[1]))


# Of a sorted list, once written: where each value begins, and how far it is to the next one.
_HISTOGRAM = (
    "transform(array({}), l -> CASE WHEN size(l) > 0 THEN transform(array(filter(sequence(0, size(l) - 1), "
    "i -> i = 0 OR l[i] <> l[greatest(i - 1, 0)])), s -> map_from_entries(transform(s, (b, i) -> "
    "struct(l[b], coalesce(get(s, i + 1), size(l)) - b))))[0] END)[0]"
)
# In any order, unless what is left out of range on the way hangs on it.
_OVER = "a product of numbers that are so large or small"
_PRODUCT = (
    "transform(array({}), l -> CASE WHEN size(l) = 0 THEN NULL "
    "WHEN aggregate(l, 1D, (a, e) -> a * greatest(abs(e), 1D)) > 1e300D "
    "OR aggregate(l, 1D, (a, e) -> a * CASE WHEN e = 0 THEN 1D ELSE least(abs(e), 1D) END) < 1e-300D "
    "THEN {refused} ELSE aggregate(l, 1D, (a, e) -> a * e) END)[0]"
)


def _quantiles(name: str, args: Sequence[SparkExpression], where: Sequence[str]) -> str | None:
    asked = Decimal("0.5") if name == "median" else args[1].value if len(args) == 2 else None
    given = asked if isinstance(asked, list) else [asked]
    fractions = [float(f) for f in given if isinstance(f, (int, float, Decimal)) and 0 <= f <= 1]
    if len(fractions) < len(given) or not _is_exact(name, args[0], fractions):
        return None
    rows = f"array_sort(collect_list({args[0].sql}){_filter(*where)})"
    found = [_quantile(rows, f, args[0], continuous=name in _CONTINUOUS) for f in fractions]
    shown = f"array({', '.join(found)})" if isinstance(asked, list) else found[0]
    return f"CASE WHEN size({rows}) > 0 THEN {shown} END"


def _is_exact(name: str, value: SparkExpression, fractions: Sequence[float]) -> bool:
    """Return whether it does not hang on the processor what DuckDB makes of two values on either side."""
    type_ = value.type
    if name in _DISCRETE or type_.kind in "iud":
        return True
    quarters = all(f * 4 == int(f * 4) for f in fractions)
    return type_.kind == "m" and quarters and (type_.width <= 15 or (type_.width <= 18 and set(fractions) <= {0.5}))


def _quantile(rows: str, fraction: float, value: SparkExpression, *, continuous: bool) -> str:
    n, q = f"size({rows})", f"{fraction!r}D"
    if not continuous:
        return f"get({rows}, CAST(greatest(1, {n} - floor({n} - {q} * {n})) - 1 AS INT))"
    at = f"(({n} - 1) * {q})"
    low, high = (f"get({rows}, CAST({function}({at}) AS INT))" for function in ("floor", "ceil"))
    if value.type.kind == "m":
        # DuckDB reckons in doubles with what it stores, integers, and cuts off.
        scale = value.type.scale
        a, b = (f"CAST({x} * 1{'0' * scale} AS DOUBLE)" for x in (low, high))
        found = f"CAST(CAST({_between(a, b, at)} AS BIGINT) AS DECIMAL(19,0)) / 1{'0' * scale}"
        return f"CASE WHEN floor({at}) = ceil({at}) THEN {low} ELSE CAST({found} AS {value.type.spark()}) END"
    a, b = (f"CAST({x} AS DOUBLE)" for x in (low, high))
    return f"CASE WHEN floor({at}) = ceil({at}) THEN {a} ELSE {_between(a, b, at)} END"


def _between(low: str, high: str, at: str) -> str:
    part = f"({at} - floor({at}))"
    return f"({low} * (1D - {part}) + {high} * {part})"
