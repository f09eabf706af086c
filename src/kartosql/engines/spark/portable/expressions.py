"""Bound expressions of DuckDB as expressions of Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kartosql.engines.spark.portable.casts import cast, raises
from kartosql.engines.spark.portable.constants import Constants, Node
from kartosql.engines.spark.portable.duckdb_types import BOOLEAN, Type, read_type
from kartosql.engines.spark.portable.functions import render
from kartosql.engines.spark.portable.literals import literal
from kartosql.engines.spark.portable.rules import Arg
from kartosql.errors import NotPortable, Span

_COMPARISONS = {
    "COMPARE_EQUAL": "{} = {}",
    "COMPARE_NOTEQUAL": "{} <> {}",
    "COMPARE_LESSTHAN": "{} < {}",
    "COMPARE_GREATERTHAN": "{} > {}",
    "COMPARE_LESSTHANOREQUALTO": "{} <= {}",
    "COMPARE_GREATERTHANOREQUALTO": "{} >= {}",
    "COMPARE_DISTINCT_FROM": "NOT ({} <=> {})",
    "COMPARE_NOT_DISTINCT_FROM": "{} <=> {}",
}
_BY_NAME = {
    "=": "COMPARE_EQUAL",
    "<>": "COMPARE_NOTEQUAL",
    "!=": "COMPARE_NOTEQUAL",
    "<": "COMPARE_LESSTHAN",
    ">": "COMPARE_GREATERTHAN",
    "<=": "COMPARE_LESSTHANOREQUALTO",
    ">=": "COMPARE_GREATERTHANOREQUALTO",
    "IS DISTINCT FROM": "COMPARE_DISTINCT_FROM",
    "IS NOT DISTINCT FROM": "COMPARE_NOT_DISTINCT_FROM",
}
# Kinds that both engines order alike, and find equal alike.
COMPARABLE = "iuhfdmsbDTZNx0"


@dataclass(frozen=True)
class SparkColumn:
    """A column of a relation: the Spark expression that stands for it where it is in scope, and its type."""

    sql: str
    type: Type


class Expressions:
    """Writes the expressions of one plan; ``span_of`` finds the place of a node in the user's text."""

    def __init__(self, constants: Constants, zone: str, span_of: Callable[[Node], Span | None]) -> None:
        self._constants = constants
        self._zone = zone
        self._span_of = span_of

    def render(self, node: Node, columns: Sequence[SparkColumn]) -> Arg:
        """Return an expression over the columns of its input; raises ``not-portable``."""
        try:
            return self._render(node, columns)
        except NotPortable as e:
            if e.span is None:
                e.span = self._span_of(node)
            raise

    def sql(self, node: Node, columns: Sequence[SparkColumn]) -> str:
        """Return the text of an expression."""
        return self.render(node, columns).sql

    def _render(self, node: Node, columns: Sequence[SparkColumn]) -> Arg:
        kind = node["expression_class"]
        if self._constants.has(node):
            type_ = read_type(node["value"]["type"] if kind == "BOUND_CONSTANT" else node.get("return_type"))
            value = self._constants.value(node)
            # Intervals are no values to Spark; the functions that move times take them apart.
            return Arg("" if type_.kind == "y" else literal(value, type_), type_, value)
        if kind == "BOUND_REF":
            column = columns[node.get("index", 0)]
            return Arg(column.sql, column.type)
        if kind == "BOUND_CONJUNCTION":
            word = " AND " if node["type"] == "CONJUNCTION_AND" else " OR "
            return Arg("(" + word.join(self.sql(c, columns) for c in node["children"]) + ")", BOOLEAN)
        if kind == "BOUND_CASE":
            return self._case(node, columns)
        if kind == "BOUND_OPERATOR":
            return self._operator(node, columns)
        if kind == "BOUND_FUNCTION":
            return self._function(node, columns)
        raise NotPortable(f"Spark has nothing like {_shown(kind)} as DuckDB has it.")

    def _case(self, node: Node, columns: Sequence[SparkColumn]) -> Arg:
        type_ = read_type(node["return_type"])
        checks = " ".join(
            f"WHEN {self.sql(c['when_expr'], columns)} THEN {self._of_type(c['then_expr'], type_, columns)}"
            for c in node["case_checks"]
        )
        return Arg(f"(CASE {checks} ELSE {self._of_type(node['else_expr'], type_, columns)} END)", type_)

    def _of_type(self, node: Node, type_: Type, columns: Sequence[SparkColumn]) -> str:
        found = self.render(node, columns)
        return found.sql if found.type == type_ else cast(found.sql, found.type, type_, zone=self._zone)

    def _operator(self, node: Node, columns: Sequence[SparkColumn]) -> Arg:
        type_, args = node["type"], [self.render(c, columns) for c in node["children"]]
        if type_ == "OPERATOR_NOT":
            return Arg(f"(NOT {args[0].sql})", BOOLEAN)
        if type_ == "OPERATOR_IS_NULL":
            return Arg(f"({args[0].sql} IS NULL)", BOOLEAN)
        if type_ == "OPERATOR_IS_NOT_NULL":
            return Arg(f"({args[0].sql} IS NOT NULL)", BOOLEAN)
        if type_ == "OPERATOR_COALESCE":
            result = read_type(node["return_type"])
            return Arg(f"coalesce({', '.join(self._of_type(c, result, columns) for c in node['children'])})", result)
        if type_ in ("COMPARE_IN", "COMPARE_NOT_IN"):
            word = "IN" if type_ == "COMPARE_IN" else "NOT IN"
            if len({a.type for a in args}) != 1 or args[0].type.kind not in COMPARABLE:
                raise NotPortable(f"Spark does not compare values of the type {args[0].type.sql()} as DuckDB does.")
            return Arg(f"({args[0].sql} {word} ({', '.join(a.sql for a in args[1:])}))", BOOLEAN)
        raise NotPortable(f"Spark has nothing like {_shown(type_)} as DuckDB has it.")

    def compare(self, comparison: str, left: Arg, right: Arg) -> str:
        """Return a comparison of two values of one type; raises ``not-portable``."""
        template = _COMPARISONS.get(comparison)
        if template is None:
            raise NotPortable(f"Spark has nothing like {_shown(comparison)} as DuckDB has it.")
        if left.type != right.type or left.type.kind not in COMPARABLE:
            raise NotPortable(f"Spark does not compare values of the type {left.type.sql()} as DuckDB does.")
        return "(" + template.format(left.sql, right.sql) + ")"

    def _function(self, node: Node, columns: Sequence[SparkColumn]) -> Arg:
        name = node["qname"]["path"][-1]
        type_ = read_type(node["return_type"])
        if name == "error":
            message = self.render(node["children"][0], columns)
            return Arg(raises(str(message.value).split("\n")[0]), type_)
        args = [self.render(c, columns) for c in node["children"]]
        if node["type"] == "OPERATOR_CAST":
            tries = bool((node.get("function_data") or {}).get("try_cast"))
            return Arg("(" + cast(args[0].sql, args[0].type, type_, tries=tries, zone=self._zone) + ")", type_)
        if name in _BY_NAME and len(args) == 2:
            return Arg(self.compare(_BY_NAME[name], args[0], args[1]), BOOLEAN)
        for given, declared in zip(args, node.get("arguments", ()), strict=False):
            # What DuckDB binds without a cast that it writes down has to be of the declared type already.
            if declared.get("id") not in (None, "ANY", given.type.name) and given.type.name != "NULL":
                raise NotPortable(
                    f"Spark does not answer {name} over values of the type {given.type.sql()} as DuckDB does."
                )
        return Arg("(" + render(name, args, type_, self._zone) + ")", type_)


def _shown(name: Any) -> str:
    return str(name).removeprefix("BOUND_").removeprefix("OPERATOR_").removeprefix("COMPARE_").replace("_", " ")
