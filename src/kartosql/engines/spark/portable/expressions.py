"""Bound expressions of DuckDB as expressions of Spark.

DuckDB evaluates those that hang on no row, so that Spark only sees their values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kartosql.engines.spark.portable import texts, times  # noqa: F401 - what their rules are about is answered
from kartosql.engines.spark.portable.functions import render
from kartosql.engines.spark.portable.lists import FILTERS, LAMBDAS, REDUCES, lambda_call, parameters
from kartosql.engines.spark.types import (
    BOOLEAN,
    COMPARABLE,
    INTEGERS,
    UNSIGNED,
    SparkExpression,
    Type,
    cast,
    literal,
    raises,
    read_type,
)
from kartosql.errors import NotPortable, Span
from kartosql.formats.arrays import decimal_of
from kartosql.text.constants import literal as duckdb_literal
from kartosql.text.constants import quote

Node = dict[str, Any]
# Evaluates DuckDB expressions; what fails has an exception in place of its value.
Fold = Callable[[Sequence[str]], list[Any]]

_CONSTANT_CLASSES = frozenset({"BOUND_CONSTANT", "BOUND_FUNCTION", "BOUND_OPERATOR", "BOUND_CONJUNCTION", "BOUND_CASE"})
# What joins call comparisons, and functions.
_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}
_EQUAL = ("=", "IS NOT DISTINCT FROM")
_RANDOM = "rand()"
_BETWEEN = "__between"  # what DuckDB 2.0.1 makes of most of them, and 2.0.0 of few
_BY_NAME = frozenset({*_COMPARISONS.values(), "!="})
_ORDERLESS = frozenset({"list_sort", "array_sort", "list_reverse_sort", "len", "length", "list_contains", "list_aggr"})
_LISTS = {"COMPARE_IN": "IN", "COMPARE_NOT_IN": "NOT IN"}
_OPERATORS = {
    "OPERATOR_NOT": "(NOT {})",
    "OPERATOR_IS_NULL": "({} IS NULL)",
    "OPERATOR_IS_NOT_NULL": "({} IS NOT NULL)",
}


class Expressions:
    """Writes the expressions of one plan with its ``constants``; ``span_of`` finds a node in the user's text."""

    def __init__(
        self, constants: dict[int, Any], zone: str, span_of: Callable[[Node], Span | None], fold: Fold
    ) -> None:
        self.fold = fold
        self._constants = constants
        self._zone = zone
        self._span_of = span_of
        self._lambdas = 0

    def render(self, node: Node, columns: Sequence[SparkExpression]) -> SparkExpression:
        """Return an expression over the columns of its input; raises ``not-portable``."""
        try:
            return self._render(node, columns)
        except NotPortable as e:
            if e.span is None:
                e.span = self._span_of(node)
            raise

    def sql(self, node: Node, columns: Sequence[SparkExpression]) -> str:
        """Return the text of an expression."""
        return self.render(node, columns).sql

    def _render(self, node: Node, columns: Sequence[SparkExpression]) -> SparkExpression:
        kind = node["expression_class"]
        if id(node) in self._constants:
            type_ = read_type(node["value"]["type"] if kind == "BOUND_CONSTANT" else node.get("return_type"))
            value = self._constants[id(node)]
            if isinstance(value, NotPortable):
                raise value
            if isinstance(value, Exception):
                raise NotPortable(f"Spark fails elsewhere than DuckDB on a constant that has no value: {value}")
            return SparkExpression(literal(value, type_), type_, value)
        if kind in ("BOUND_REF", "BOUND_COLUMN_REF"):
            column = columns[node.get("index", 0) if kind == "BOUND_REF" else node["binding"].get("column_index", 0)]
            return SparkExpression(column.sql, column.type)
        if kind == "BOUND_CONJUNCTION":
            word = " AND " if node["type"] == "CONJUNCTION_AND" else " OR "
            return SparkExpression("(" + word.join(self.sql(c, columns) for c in node["children"]) + ")", BOOLEAN)
        if kind == "BOUND_CASE":
            return self._case(node, columns)
        if kind == "BOUND_OPERATOR":
            return self._operator(node, columns)
        if kind == "BOUND_FUNCTION":
            found = self._function(node, columns)
            if found.sql.count(_RANDOM) > _volatile(node):  # written twice they are two numbers
                raise NotPortable("Spark does not answer random() in such an expression as DuckDB does.")
            return found
        raise NotPortable(f"Spark has nothing like {_readable(kind)} as DuckDB has it.")

    def _case(self, node: Node, columns: Sequence[SparkExpression]) -> SparkExpression:
        type_ = read_type(node["return_type"])
        checks = " ".join(
            f"WHEN {self.sql(c['when_expr'], columns)} THEN {self._of_type(c['then_expr'], type_, columns)}"
            for c in node["case_checks"]
        )
        return SparkExpression(f"(CASE {checks} ELSE {self._of_type(node['else_expr'], type_, columns)} END)", type_)

    def _of_type(self, node: Node, type_: Type, columns: Sequence[SparkExpression]) -> str:
        found = self.render(node, columns)
        return found.sql if found.type == type_ else cast(found.sql, found.type, type_, zone=self._zone)

    def _operator(self, node: Node, columns: Sequence[SparkExpression]) -> SparkExpression:
        type_, args = node["type"], [self.render(c, columns) for c in node["children"]]
        if type_ in _OPERATORS:
            return SparkExpression(_OPERATORS[type_].format(args[0].sql), BOOLEAN)
        if type_ == "OPERATOR_COALESCE":
            result = read_type(node["return_type"])
            values = ", ".join(self._of_type(c, result, columns) for c in node["children"])
            return SparkExpression(f"coalesce({values})", result)
        if type_ in _LISTS:
            if len({a.type for a in args}) != 1 or args[0].type.kind not in COMPARABLE:
                raise NotPortable(f"Spark does not compare values of the type {args[0].type.sql()} as DuckDB does.")
            return SparkExpression(f"({args[0].sql} {_LISTS[type_]} ({', '.join(a.sql for a in args[1:])}))", BOOLEAN)
        raise NotPortable(f"Spark has nothing like {_readable(type_)} as DuckDB has it.")

    def compare(self, comparison: str, left: SparkExpression, right: SparkExpression) -> str:
        """Return a comparison of two values of one type; raises ``not-portable``."""
        operator = _COMPARISONS.get(comparison, comparison)
        if operator not in _BY_NAME:
            raise NotPortable(f"Spark has nothing like {_readable(comparison)} as DuckDB has it.")
        if left.type != right.type or left.type.kind not in COMPARABLE + "y":
            raise NotPortable(f"Spark does not compare values of the type {left.type.sql()} as DuckDB does.")
        a, b = (times.length(v.sql) if v.type.kind == "y" else v.sql for v in (left, right))
        if (
            operator in _EQUAL
            and left.type.kind in "fd"
            and all(not v.is_constant or not v.value for v in (left, right))
        ):
            # Else Spark takes each for the other one in further conditions, though 1 / 0.0 is not 1 / -0.0.
            a, b = f"({a} + 0D)", f"({b} + 0D)"
        return f"({a} {operator} {b})"

    def _function(self, node: Node, columns: Sequence[SparkExpression]) -> SparkExpression:
        name = node["qname"]["path"][-1]
        type_ = read_type(node["return_type"])
        if name == _BETWEEN:
            return self._render(_comparisons(node), columns)
        if name == "error":
            message = self.render(node["children"][0], columns)
            return SparkExpression(raises(str(message.value).split("\n")[0]), type_)
        if name in LAMBDAS and len(node["children"]) > 1:
            return self._lambda(node, name, type_, columns)
        if name in _ORDERLESS and node["children"][0].get("qname", {}).get("path", [""])[-1] == "list_distinct":
            inner = self.render(node["children"][0]["children"][0], columns)
            args = [SparkExpression(render("in_any_order", [inner], inner.type, self._zone), inner.type)]
            args += [self.render(c, columns) for c in node["children"][1:]]
        else:
            args = [self.render(c, columns) for c in node["children"]]
        if node["type"] == "OPERATOR_CAST":
            tries = bool((node.get("function_data") or {}).get("try_cast"))
            return SparkExpression(f"({cast(args[0].sql, args[0].type, type_, tries=tries, zone=self._zone)})", type_)
        if name in _BY_NAME and len(args) == 2:
            return SparkExpression(self.compare(name, *args), BOOLEAN)
        for given, declared in zip(args, node.get("arguments", ()), strict=False):
            # What DuckDB binds without a cast that it writes down has to be of the declared type already.
            if declared.get("id") not in (None, "ANY", given.type.name) and given.type.name != "NULL":
                raise NotPortable(
                    f"Spark does not answer {name} over values of the type {given.type.sql()} as DuckDB does."
                )
        return SparkExpression(f"({render(name, args, type_, self._zone, node.get('function_data'))})", type_)

    def _lambda(self, node: Node, name: str, type_: Type, columns: Sequence[SparkExpression]) -> SparkExpression:
        given, function, *others = node["children"]
        list_, initial, result = self.render(given, columns), None, type_
        if name in REDUCES and (node.get("function_data") or {}).get("has_initial"):
            initial = f"CAST({self._of_type(others.pop(0), type_, columns)} AS {type_.spark()})"
        self._lambdas += 1
        known = parameters(name, list_.type, function["parameter_count"], self._lambdas)
        names = [f"{letter}{self._lambdas}" for letter, _ in zip("yz", known, strict=False)]
        # Behind the parameters are the values that the lambda takes from around it.
        scope = [*known, *(self.render(c, columns) for c in others)]
        if name not in REDUCES:
            result = BOOLEAN if name in FILTERS else type_.element
        body = f"CAST({self._of_type(function['lambda_expr'], result, scope)} AS {result.spark()})"
        shown = f"{names[0] if len(names) == 1 else f'({names[0]}, {names[1]})'} -> {body}"
        return SparkExpression(f"({lambda_call(name, list_.sql, shown, type_, initial)})", type_)


def _volatile(node: Node) -> int:
    """Return how often a random number is asked for in an expression."""
    own = node.get("expression_class") == "BOUND_FUNCTION" and node["qname"]["path"][-1] == "random"
    return own + sum(map(_volatile, _children(node)))


def _comparisons(between: Node) -> Node:
    """Return a BETWEEN as the two comparisons that it stands for."""
    data, (value, *bounds) = between.get("function_data") or {}, between["children"]
    if not (data.get("lower_inclusive") and data.get("upper_inclusive")):
        raise NotPortable("Spark has nothing like such a BETWEEN as DuckDB has it.")
    shared = {"expression_class": "BOUND_FUNCTION", "type": "", "return_type": between["return_type"]}
    signs = [{"path": [sign]} for sign in (">=", "<=")]
    children = [{**shared, "qname": s, "children": [value, b]} for s, b in zip(signs, bounds, strict=True)]
    return {"expression_class": "BOUND_CONJUNCTION", "type": "CONJUNCTION_AND", "children": children}


def _readable(name: Any) -> str:
    return str(name).removeprefix("BOUND_").removeprefix("OPERATOR_").removeprefix("COMPARE_").replace("_", " ")


# -- constants -----------------------------------------------------------------------------------


def constants_of(plan: Node, fold: Fold, is_volatile: Callable[[str], bool]) -> dict[int, Any]:
    """Return the values of all constant parts of a plan by the id of their nodes, or an exception.

    They are evaluated in one go if none fails. ``is_volatile`` says whether a function gives another value each time
    that it is called.
    """
    found: dict[int, Any] = {}
    pending: list[tuple[Node, str]] = []
    for node in _maximal(plan, is_volatile):
        simple = _simple(node)
        if simple is not None:
            found[id(node)] = simple[0]
            continue
        try:
            pending.append((node, sql_of(node)))
        except NotPortable as e:
            found[id(node)] = e
    for (node, _), value in zip(pending, fold([text for _, text in pending]) if pending else (), strict=True):
        found[id(node)] = value
    return found


def _is_constant(node: Node, is_volatile: Callable[[str], bool]) -> bool:
    if node["expression_class"] not in _CONSTANT_CLASSES:
        return False
    if node["expression_class"] == "BOUND_FUNCTION":
        name = node["qname"]["path"][-1]
        if name == "error" or is_volatile(name):
            return False
    return all(_is_constant(c, is_volatile) for c in _children(node))


def _maximal(plan: Any, is_volatile: Callable[[str], bool]) -> Iterator[Node]:
    """Yield the largest constant expressions of a plan."""
    pending = [plan]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            if "expression_class" in value and _is_constant(value, is_volatile):
                yield value
            else:
                pending += value.values()


def _children(node: Node) -> list[Node]:
    children = [c for c in node.get("children", ()) if isinstance(c, dict)]
    for check in node.get("case_checks", ()):
        children += [check["when_expr"], check["then_expr"]]
    return [*children, node["else_expr"]] if isinstance(node.get("else_expr"), dict) else children


def _simple(node: Node) -> tuple[Any] | None:
    """Return the value of what needs no engine, alone in a tuple."""
    if node["expression_class"] == "BOUND_CONSTANT":
        value = node["value"]
        if value.get("is_null"):
            return (None,)
        name, raw = value["type"]["id"], value.get("value")
        if name in INTEGERS or name in UNSIGNED:
            return (int(raw or 0),)
        if name in ("VARCHAR", "BOOLEAN", "DOUBLE"):
            return None if raw is None else (raw,)
        return None
    if node.get("type") == "OPERATOR_CAST" and len(node["children"]) == 1:
        child = node["children"][0]
        inner = _simple(child) if child["expression_class"] == "BOUND_CONSTANT" else None
        if inner is None:
            return None
        target, source = node["return_type"]["id"], child["value"]["type"]["id"]
        if inner[0] is None or source == target:
            return inner
        if source in INTEGERS and target in INTEGERS and abs(inner[0]) < 2 ** (INTEGERS[target] - 1):
            return inner
        if source in INTEGERS and (target == "HUGEINT" or (target == "DOUBLE" and abs(inner[0]) < 2**53)):
            return inner
    return None


def sql_of(node: Node) -> str:
    """Return a constant expression as DuckDB's text; raises ``not-portable``."""
    kind = node["expression_class"]
    if kind == "BOUND_CONSTANT":
        return constant(node["value"])
    if kind == "BOUND_CASE":
        checks = " ".join(f"WHEN {sql_of(c['when_expr'])} THEN {sql_of(c['then_expr'])}" for c in node["case_checks"])
        return f"(CASE {checks} ELSE {sql_of(node['else_expr'])} END)"
    children = [sql_of(c) for c in _children(node)]
    if kind == "BOUND_CONJUNCTION":
        return "(" + (" AND " if node["type"] == "CONJUNCTION_AND" else " OR ").join(children) + ")"
    if kind == "BOUND_OPERATOR":
        type_ = node["type"]
        if type_ in _OPERATORS:
            return _OPERATORS[type_].format(children[0])
        if type_ == "OPERATOR_COALESCE":
            return f"coalesce({', '.join(children)})"
        if type_ in _LISTS:
            return f"({children[0]} {_LISTS[type_]} ({', '.join(children[1:])}))"
        raise NotPortable(f"Spark cannot be given a constant made by {type_}.")
    if kind == "BOUND_FUNCTION":
        return sql_of(_comparisons(node)) if node["qname"]["path"][-1] == _BETWEEN else _function(node, children)
    raise NotPortable("Spark cannot be given a constant of an unknown form.")


def _function(node: Node, children: list[str]) -> str:
    name = node["qname"]["path"][-1]
    if node.get("type") == "OPERATOR_CAST":
        word = "TRY_CAST" if (node.get("function_data") or {}).get("try_cast") else "CAST"
        return f"{word}({children[0]} AS {read_type(node['return_type']).sql()})"
    if name in _BY_NAME and len(children) == 2:
        return f"({children[0]} {name} {children[1]})"
    if name in ("struct_pack", "row"):
        parts = read_type(node["return_type"]).parts
        children = [f"{quote(n)} := {c}" for (n, _), c in zip(parts, children, strict=True)]
        name = "struct_pack"
    return f"{quote(name)}({', '.join(children)})"


def constant(value: Node) -> str:
    """Return a value of a plan as DuckDB's text; raises ``not-portable``."""
    type_ = read_type(value["type"])
    if value.get("is_null"):
        return "NULL" if type_.name == "NULL" else f"CAST(NULL AS {type_.sql()})"
    raw = value.get("value")
    if type_.name == "DATE" and isinstance(raw, int):
        return f"(DATE '1970-01-01' + CAST({raw} AS INTEGER))"
    if type_.name == "TIMESTAMP" and isinstance(raw, int):
        return f"make_timestamp(CAST({raw} AS BIGINT))"
    if type_.name == "LIST" and isinstance(raw, dict):
        items = [constant({"type": value["type"]["type_info"]["child_type"], **c}) for c in raw.get("children", ())]
        return f"CAST([{', '.join(items)}] AS {type_.sql()})"
    return f"CAST({duckdb_literal(_text(raw, type_))} AS {type_.sql()})"


def _text(raw: Any, type_: Type) -> str:
    """Return a constant of a plan as text that DuckDB can cast to its type."""
    if type_.name == "HUGEINT" or type_.name == "DECIMAL":
        number = (raw["upper"] << 64) + raw["lower"] if isinstance(raw, dict) else int(raw or 0)
        return f"{decimal_of(number, type_.scale):f}" if type_.name == "DECIMAL" else str(number)
    if type_.name == "INTERVAL":
        units = ((raw or {}).get(unit, 0) for unit in ("months", "days", "micros"))
        return " ".join(f"{n} {u}" for n, u in zip(units, ("months", "days", "microseconds"), strict=True))
    if type_.name in ("VARCHAR", "BLOB") and isinstance(raw, str):
        return raw
    if type_.name in ("DOUBLE", "FLOAT", *INTEGERS, *UNSIGNED) and isinstance(raw, (int, float)):
        return repr(raw)
    if type_.name == "BOOLEAN":
        return json.dumps(bool(raw))
    raise NotPortable(f"Spark cannot be given a constant of the type {type_.sql()}.")
