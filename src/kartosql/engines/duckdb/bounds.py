"""What a comparison tells about files of which the bounds of a column are known.

A file with values from ``low`` to ``high`` may hold a row for which ``x < e`` is TRUE if
``low < e`` is, and so on. The comparison stays DuckDB's: the bounds take the column's place,
under the column's type. That is sound where DuckDB compares values of that type, or casts them
in a way that keeps their order; everything else is not answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kartosql.engines.duckdb.types import literal

COLUMN = "v"  # what predicates call the column
MAX_LISTED = 32  # longer lists are compared as a whole
_MAX_LIST = 1_000

_OPERATORS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOT_DISTINCT_FROM": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_DISTINCT_FROM": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_CONSTANT = frozenset({"CAST", "CONSTANT", "FUNCTION", "PARAMETER", "TYPE"})
_PREFIX = re.compile(r"([^%_\\]+)%")

_INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
_NUMBERS = _INTEGERS | {"HUGEINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL"}
_MOMENTS = {"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"}


@dataclass(frozen=True)
class Bounded:
    """A comparison of the column with constants, as a condition over ``low`` and ``high``.

    ``template`` has a place ``{i}`` for each of the ``constants``, and ``{type}`` for the type
    of the column. ``typed`` are expressions whose types decide whether the condition holds good,
    None for string literals, which take the column's type.
    """

    template: str
    constants: tuple[str, ...] = ()
    typed: tuple[str | None, ...] = ()
    only: str | None = None  # the one type of the column for which it holds good

    def over(self, type_: str, types: Sequence[str]) -> str | None:
        """Return the condition for a column of ``type_``, ``typed`` being of ``types``; None if it proves nothing."""
        if self.only not in (None, type_) or not all(_keeps_order(type_, t) for t in types):
            return None
        # DuckDB compares with several constants in one type that they have in common.
        if types and None in self.typed:
            return None
        if len(set(types)) > 1 and not _INTEGERS.issuperset([type_, *types]):
            return None
        return self.template.format(*(f"({c})" for c in self.constants), type=type_)


def _keeps_order(type_: str, other: str) -> bool:
    """Return whether comparing values of ``type_`` with one of ``other`` goes by the order of ``type_``.

    Casting TIMESTAMP to TIMESTAMP WITH TIME ZONE does not keep the order where clocks change.
    """
    type_, other = type_.split("(")[0], other.split("(")[0]
    if other == type_:
        return True
    return {type_, other} <= _NUMBERS or {type_, other} <= _MOMENTS


def bounded(tree: Any, text: Callable[[list[Any]], str]) -> Bounded | None:
    """Return what DuckDB's parse of a predicate over ``v`` says about bounds, or None.

    ``text`` returns expressions as SQL, with commas between them.
    """
    negated = False
    while tree["type"] == "OPERATOR_NOT":
        tree, negated = tree["children"][0], not negated
    kind = tree["class"]
    if _is_column(tree):
        return Bounded("NOT low" if negated else "high", only="BOOLEAN")
    if kind == "COMPARISON":
        return _comparison(tree, negated, text)
    if kind == "BETWEEN" and _is_column(tree["input"]):
        template = "(low < {0} OR high > {1})" if negated else "(high >= {0} AND low <= {1})"
        return _made(template, [tree["lower"], tree["upper"]], text)
    if kind == "OPERATOR" and _is_column(tree["children"][0]):
        if tree["type"] == "COMPARE_IN" and not negated:
            return _in_list(tree["children"][1:], text)
        if tree["type"] in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            return Bounded(str((tree["type"] == "OPERATOR_IS_NOT_NULL") != negated))
    if kind == "FUNCTION" and not negated:
        return _prefix(tree)
    return None


def _is_column(node: Any) -> bool:
    return bool(node.get("class") == "COLUMN_REF" and node["column_names"] == [COLUMN])


def _is_constant(node: Any) -> bool:
    """Return whether an expression refers to no column; that it is pure is known."""
    if isinstance(node, list):
        return all(map(_is_constant, node))
    if not isinstance(node, dict):
        return True
    if node.get("class", "CONSTANT") not in _CONSTANT:
        return False
    return all(map(_is_constant, node.values()))


def _is_text(node: Any) -> bool:
    return bool(node["class"] == "CONSTANT" and node["literal"]["kind"] == "STRING")


def _made(template: str, constants: list[Any], text: Callable[[list[Any]], str]) -> Bounded | None:
    if not _is_constant(constants):
        return None
    texts = tuple(text([c]) for c in constants)
    return Bounded(template, texts, tuple(None if _is_text(c) else t for c, t in zip(constants, texts, strict=True)))


def _comparison(tree: Any, negated: bool, text: Callable[[list[Any]], str]) -> Bounded | None:
    operator = _OPERATORS.get(tree["type"])
    column, constant = tree["left"], tree["right"]
    if operator is None:
        return None
    if not _is_column(column):
        column, constant, operator = constant, column, _FLIPPED.get(operator, operator)
    if not _is_column(column):
        return None
    if negated:
        operator = _NEGATED[operator]
    if operator == "=":
        template = "(low <= {0} AND {0} <= high)"
    elif operator == "<>":
        template = "(low <> {0} OR high <> {0})"
    else:
        template = f"({'low' if operator.startswith('<') else 'high'} {operator} {{0}})"
    return _made(template, [constant], text)


def _in_list(items: list[Any], text: Callable[[list[Any]], str]) -> Bounded | None:
    if not 0 < len(items) <= _MAX_LIST or any(i["class"] != "CONSTANT" for i in items):
        return None
    if len({i["literal"]["kind"] for i in items}) > 1:
        return None
    values = f"list_value({text(items)})"
    listed = "CAST({0} AS {type}[])" if _is_text(items[0]) else "{0}"
    if len(items) <= MAX_LISTED:
        template = f"(len(list_filter({listed}, lambda e: low <= e AND e <= high)) > 0)"
    else:
        template = f"(low <= list_max({listed}) AND high >= list_min({listed}))"
    return Bounded(template, (values,), (None if _is_text(items[0]) else f"{values}[1]",))


def _prefix(tree: Any) -> Bounded | None:
    """Return what LIKE 'prefix%' and starts_with(v, 'prefix') say."""
    name, values = tree["function_name"].lower(), [a["expression"] for a in tree["arguments"]]
    if name not in ("~~", "starts_with", "prefix", "^@") or len(values) != 2:
        return None
    if not (_is_column(values[0]) and _is_text(values[1])):
        return None
    prefix = values[1]["literal"]["text"]
    if name == "~~":
        match = _PREFIX.fullmatch(prefix)
        if match is None:
            return None
        prefix = match[1]
    template = f"(left(low, {len(prefix)}) <= {{0}} AND left(high, {len(prefix)}) >= {{0}})"
    return Bounded(template, (literal(prefix),), only="VARCHAR")
