"""What DuckDB's parse of a predicate tells: what it depends on, and how it compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OPERATORS = frozenset("+ - * / // % || ~~ !~~ ~~* !~~* << >> & | ^ ** @ ~".split())  # noqa: SIM905
_COMPARING = frozenset(
    {"BETWEEN", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "OPERATOR", "PARAMETER", "TYPE"}
)
_COMPARING_OPERATORS = frozenset(
    {"OPERATOR_NOT", "COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}
)
_CLASSES = _COMPARING | {"CASE", "COLLATE", "FUNCTION"}


def without_places(node: Any) -> Any:
    """Return a parse tree without the places in the text."""
    if isinstance(node, dict):
        return {k: without_places(v) for k, v in node.items() if k not in ("query_location", "query_location_length")}
    if isinstance(node, list):
        return [without_places(v) for v in node]
    return node


def is_comparison(node: Any, below_cast: bool = False) -> bool:
    """Return whether a predicate only compares columns with constants that hold no NUL byte."""
    if isinstance(node, list):
        return all(is_comparison(v, below_cast) for v in node)
    if not isinstance(node, dict):
        return not (isinstance(node, str) and ("\\x00" in node or "\0" in node))
    kind = node.get("class")
    if kind is not None and kind not in _COMPARING:
        return False
    if kind == "OPERATOR" and node["type"] not in _COMPARING_OPERATORS:
        return False
    if kind == "COLUMN_REF" and below_cast:
        return False
    return all(is_comparison(v, below_cast or kind == "CAST") for v in node.values())


def is_pure(node: Any, functions: Callable[[], frozenset[str]]) -> bool:
    """Return whether a predicate depends on nothing but its columns and parameters.

    ``functions`` gives the names of the functions whose result follows from their arguments.
    """
    if isinstance(node, list):
        return all(is_pure(v, functions) for v in node)
    if not isinstance(node, dict):
        return True
    if "class" in node:
        if node["class"] not in _CLASSES:
            return False
        if node["class"] == "FUNCTION":
            name = node["function_name"].lower()
            if node.get("schema") or node.get("catalog"):
                return False
            if name not in _OPERATORS and name not in functions():
                return False
    return all(is_pure(v, functions) for v in node.values())


def base_tables(node: Any) -> set[tuple[str, ...]]:
    """Return the names of the tables in a parsed query, without its common table expressions."""
    tables: set[tuple[str, ...]] = set()
    expressions: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, dict):
            if value.get("type") == "BASE_TABLE" and "table_name" in value:
                names = (value.get("catalog_name"), value.get("schema_name"), value["table_name"])
                tables.add(tuple(n for n in names if n))
            for entry in (value.get("cte_map") or {}).get("map", ()):
                expressions.add(str(entry.get("key")).lower())
            for item in value.values():
                walk(item)

    walk(node)
    return {name for name in tables if len(name) > 1 or name[0].lower() not in expressions}
