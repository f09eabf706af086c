"""What a predicate tells about files of which the bounds of a column are known.

A file with values from ``low`` to ``high`` may hold a row for which ``x < e`` is TRUE if
``low < e`` is, and so on. The comparison stays DuckDB's: the bounds take the column's place,
under the column's type. That is sound where DuckDB compares values of that type, or casts them
in a way that keeps their order; everything else is not answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kartosql.engines.duckdb.types import literal, sql_of
from kartosql.predicate.tree import Comparison, Group, In, IsNull, LongList, Predicate, Prefix

MAX_LISTED = 32  # longer lists are compared as a whole
_MAX_LIST = 1_000
_MAX_TEXT = 5_000  # of a list

_INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
_NUMBERS = _INTEGERS | {"HUGEINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL"}
_MOMENTS = {"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"}


@dataclass(frozen=True)
class Bounded:
    """A predicate as a condition over what is known of a file: ``low``, ``high``, ``has_values`` and ``nulls``.

    ``condition`` returns it for a column of some type. ``typed`` are constants whose types decide
    whether it holds good, None for string literals, which take the column's type.
    """

    condition: Callable[[str], str]
    typed: tuple[str | None, ...] = ()

    def over(self, type_: str, types: Sequence[str]) -> str | None:
        """Return the condition for a column of ``type_``, ``typed`` being of ``types``; None if it proves nothing."""
        if not all(_keeps_order(type_, t) for t in types):
            return None
        # DuckDB compares with several constants in one type that they have in common.
        if types and None in self.typed:
            return None
        if len(set(types)) > 1 and not _INTEGERS.issuperset([type_, *types]):
            return None
        return self.condition(type_)


def _keeps_order(type_: str, other: str) -> bool:
    """Return whether comparing values of ``type_`` with one of ``other`` goes by the order of ``type_``.

    Casting TIMESTAMP to TIMESTAMP WITH TIME ZONE does not keep the order where clocks change.
    """
    type_, other = type_.split("(")[0], other.split("(")[0]
    if other == type_:
        return True
    return {type_, other} <= _NUMBERS or {type_, other} <= _MOMENTS


def bounded(predicate: Predicate) -> Bounded | None:
    """Return what a predicate over one column says about what is known of files, None if it says nothing."""
    if isinstance(predicate, Group):
        parts = [bounded(item) for item in predicate.items]
        known = [p for p in parts if p is not None]
        if not known or (predicate.op == "OR" and len(known) < len(parts)):
            return None
        word = f" {predicate.op} "
        return Bounded(
            lambda t: f"({word.join(p.condition(t) for p in known)})", tuple(c for p in known for c in p.typed)
        )
    if not isinstance(predicate, Comparison | In | IsNull | Prefix) or len(predicate.path) > 1:
        return None
    if isinstance(predicate, IsNull):
        found = "has_values" if predicate.negated else "nulls <> 0"
        return Bounded(lambda _: found)
    if isinstance(predicate, Prefix):
        text, size = literal(predicate.prefix), len(predicate.prefix)
        return _of_values(f"left(low, {size}) <= {text} AND left(high, {size}) >= {text}", f"CAST({text} AS VARCHAR)")
    return _compared(predicate) if isinstance(predicate, Comparison) else _listed(predicate)


def _of_values(condition: str, typed: str | None) -> Bounded:
    found = f"(has_values AND coalesce({condition}, true))"
    return Bounded(lambda _: found, (typed,))


def _compared(comparison: Comparison) -> Bounded:
    constant, op = sql_of(comparison.value), comparison.op
    typed = None if comparison.value.kind == "string" else constant
    if op == "=":
        return _of_values(f"low <= {constant} AND {constant} <= high", typed)
    if op == "<>":
        return _of_values(f"low <> {constant} OR high <> {constant}", typed)
    return _of_values(f"{'low' if op.startswith('<') else 'high'} {op} {constant}", typed)


def _listed(listed: In) -> Bounded | None:
    is_long = isinstance(listed.listed, LongList) and len(listed.listed.text) > _MAX_TEXT
    values = None if is_long or listed.negated else listed.values
    if values is None or len(values) > _MAX_LIST or len({v.kind for v in values}) > 1:
        return None
    constants, is_text = f"list_value({', '.join(map(sql_of, values))})", values[0].kind == "string"

    def condition(type_: str) -> str:
        items = f"CAST({constants} AS {type_}[])" if is_text else constants
        if len(values) <= MAX_LISTED:
            found = f"len(list_filter({items}, lambda e: low <= e AND e <= high)) > 0"
        else:
            found = f"low <= list_max({items}) AND high >= list_min({items})"
        return f"(has_values AND coalesce({found}, true))"

    return Bounded(condition, (None if is_text else f"{constants}[1]",))
