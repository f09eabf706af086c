"""Parts of a plan that hang on no row: DuckDB evaluates them, so that Spark only sees their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kartosql.engines.duckdb.types import literal, quote
from kartosql.engines.spark.portable.duckdb_types import INTEGERS, UNSIGNED, Type, read_type
from kartosql.errors import NotPortable
from kartosql.formats.arrays import decimal_of

Node = dict[str, Any]
# Evaluates DuckDB expressions; what fails has an exception in place of its value.
Fold = Callable[[Sequence[str]], list[Any]]

_CONSTANT_CLASSES = frozenset(
    {"BOUND_CONSTANT", "BOUND_FUNCTION", "BOUND_OPERATOR", "BOUND_CONJUNCTION", "BOUND_CASE", "BOUND_BETWEEN"}
)
_INFIX = frozenset({"=", "<>", "!=", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"})
_PREFIX_OPERATORS = {
    "OPERATOR_NOT": "NOT {}",
    "OPERATOR_IS_NULL": "{} IS NULL",
    "OPERATOR_IS_NOT_NULL": "{} IS NOT NULL",
}


class Constants:
    """The values of the constant parts of one plan.

    ``volatile`` says whether a function gives another value each time that it is called.
    """

    def __init__(self, fold: Fold, is_volatile: Callable[[str], bool]) -> None:
        self._fold = fold
        self._is_volatile = is_volatile
        self._values: dict[int, Any] = {}

    def find(self, plan: Node) -> None:
        """Evaluate all constant parts of a plan, in one go if none fails."""
        pending: list[tuple[Node, str]] = []
        for node in _maximal(plan, self._is_constant):
            simple = _simple(node)
            if simple is not None:
                self._values[id(node)] = simple[0]
                continue
            try:
                pending.append((node, sql_of(node)))
            except NotPortable as e:
                self._values[id(node)] = e
        for (node, _), value in zip(pending, self._fold([text for _, text in pending]) if pending else (), strict=True):
            self._values[id(node)] = value

    def has(self, node: Node) -> bool:
        """Return whether a part of the plan is constant as a whole."""
        return id(node) in self._values

    def value(self, node: Node) -> Any:
        """Return the value of a constant part; raises ``not-portable`` if it has none."""
        value = self._values[id(node)]
        if isinstance(value, NotPortable):
            raise value
        if isinstance(value, Exception):
            raise NotPortable(f"Spark fails elsewhere than DuckDB on a constant that has no value: {value}")
        return value

    def _is_constant(self, node: Node) -> bool:
        if node["expression_class"] not in _CONSTANT_CLASSES:
            return False
        if node["expression_class"] == "BOUND_FUNCTION":
            name = node["qname"]["path"][-1]
            if name == "error" or self._is_volatile(name):
                return False
        return all(self._is_constant(c) for c in _children(node))


def _maximal(value: Any, is_constant: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield the largest constant expressions of a plan."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            if "expression_class" in value and is_constant(value):
                yield value
            else:
                pending += value.values()


def _children(node: Node) -> list[Node]:
    children = [c for c in node.get("children", ()) if isinstance(c, dict)]
    for check in node.get("case_checks", ()):
        children += [check["when_expr"], check["then_expr"]]
    children += [node[k] for k in ("else_expr", "input", "lower", "upper") if isinstance(node.get(k), dict)]
    return children


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
        return _constant(node["value"])
    if kind == "BOUND_CASE":
        checks = " ".join(f"WHEN {sql_of(c['when_expr'])} THEN {sql_of(c['then_expr'])}" for c in node["case_checks"])
        return f"(CASE {checks} ELSE {sql_of(node['else_expr'])} END)"
    children = [sql_of(c) for c in _children(node)]
    if kind == "BOUND_CONJUNCTION":
        return "(" + (" AND " if node["type"] == "CONJUNCTION_AND" else " OR ").join(children) + ")"
    if kind == "BOUND_OPERATOR":
        return _operator(node["type"], children)
    if kind == "BOUND_FUNCTION":
        return _function(node, children)
    raise NotPortable("Spark cannot be given a constant of an unknown form.")


def _function(node: Node, children: list[str]) -> str:
    name = node["qname"]["path"][-1]
    if node.get("type") == "OPERATOR_CAST":
        word = "TRY_CAST" if (node.get("function_data") or {}).get("try_cast") else "CAST"
        return f"{word}({children[0]} AS {read_type(node['return_type']).sql()})"
    if name in _INFIX and len(children) == 2:
        return f"({children[0]} {name} {children[1]})"
    if name in ("struct_pack", "row"):
        parts = read_type(node["return_type"]).parts
        children = [f"{quote(n)} := {c}" for (n, _), c in zip(parts, children, strict=True)]
        name = "struct_pack"
    return f"{quote(name)}({', '.join(children)})"


def _operator(type_: str, children: list[str]) -> str:
    if type_ in _PREFIX_OPERATORS:
        return "(" + _PREFIX_OPERATORS[type_].format(children[0]) + ")"
    if type_ == "OPERATOR_COALESCE":
        return f"coalesce({', '.join(children)})"
    if type_ in ("COMPARE_IN", "COMPARE_NOT_IN"):
        word = "IN" if type_ == "COMPARE_IN" else "NOT IN"
        return f"({children[0]} {word} ({', '.join(children[1:])}))"
    raise NotPortable(f"Spark cannot be given a constant made by {type_}.")


def _constant(value: Node) -> str:
    type_ = read_type(value["type"])
    if value.get("is_null"):
        return "NULL" if type_.name == "NULL" else f"CAST(NULL AS {type_.sql()})"
    raw = value.get("value")
    if type_.name == "DATE" and isinstance(raw, int):
        return f"(DATE '1970-01-01' + CAST({raw} AS INTEGER))"
    if type_.name == "TIMESTAMP" and isinstance(raw, int):
        return f"make_timestamp(CAST({raw} AS BIGINT))"
    if type_.name == "LIST" and isinstance(raw, dict):
        items = [_constant({"type": value["type"]["type_info"]["child_type"], **c}) for c in raw.get("children", ())]
        return f"CAST([{', '.join(items)}] AS {type_.sql()})"
    return f"CAST({literal(_text(raw, type_))} AS {type_.sql()})"


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
