"""What DuckDB's parse of a predicate tells: what it depends on, and how it compares."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kartosql.plan.evaluate import Outline

_OPERATORS = frozenset("+ - * / // % || ~~ !~~ ~~* !~~* << >> & | ^ ** @ ~".split())  # noqa: SIM905
_COMPARING = frozenset(
    {"BETWEEN", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "OPERATOR", "PARAMETER", "TYPE"}
)
_COMPARING_OPERATORS = frozenset(
    {"OPERATOR_NOT", "COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}
)
_PARTS = ("modifiers", "cte_map", "where_clause", "group_expressions", "group_sets", "having", "sample", "qualify")
_STAR_PARTS = (
    *("relation_name", "exclude_list", "replace_list", "columns", "expr", "qualified_exclude_list", "rename_list"),
)
_CLASSES = _COMPARING | {"CASE", "COLLATE", "FUNCTION"}


# A long list of literals after IN; all that stands in quotes is passed over as a whole.
_ITEM = r"(?:'(?:[^']++|'')*+'|[+-]?\d++)"
_TOKENS = re.compile(
    r"'(?:[^']++|'')*+'|\"(?:[^\"]++|\"\")*+\"|"
    rf"(?P<before>\bIN\s*+\(\s*+)(?P<items>{_ITEM}(?:\s*+,\s*+{_ITEM}){{50,}}+)(?=\s*+\))",
    re.IGNORECASE,
)
_OTHER_QUOTES = re.compile(r"--|/\*|\\|\$\w*\$")
_LONG = 2_000
_HELD = re.compile("kartosql_values_[0-9a-f]{32}")


def shortened(predicate: str) -> tuple[str, tuple[str, ...]]:
    """Return a predicate with but the first literal of each long list after IN, and the lists.

    Parsing a list takes much longer than comparing its text.
    """
    lists: list[str] = []

    def cut(match: re.Match[str]) -> str:
        if match["items"] is None:
            return match[0]
        lists.append(match["items"])
        first = re.match(_ITEM, match["items"])
        assert first is not None
        return match["before"] + first[0]

    if len(predicate) < _LONG or _OTHER_QUOTES.search(predicate):
        return predicate, ()
    return _TOKENS.sub(cut, predicate), tuple(lists)


# Literals that are one token each, by whatever precedes them; what may hide one is passed over, or odd.
_LITERALS = re.compile(
    r"""\"(?:[^\"]++|\"\")*+\"|(?<![\w.#$'])(?P<text>'[^'\\]*+'(?!'))|"""
    r"""(?<![\w.#$])(?P<number>[0-9]++(?:\.[0-9]++)?)(?![\w.])|(?P<odd>'|\"|--|/\*|\\|\$\w*\$)"""
)


def masked(predicate: str) -> tuple[str, tuple[str, ...]] | None:
    """Return a predicate with other literals in place of its texts and numbers, and those; None where they may hide.

    The literals are distinct and of the same kinds, so that two predicates with the same own
    literals are parsed to the same tree if their masked forms are.
    """
    found: list[str] = []

    def mask(match: re.Match[str]) -> str:
        if match["odd"]:
            raise ValueError
        literal = match["text"] or match["number"]
        if literal is None:
            return match[0]
        found.append(literal)
        if match["text"]:
            return f"'{len(found)}'"
        return f"{len(found)}.5" if "." in literal else str(len(found))

    try:
        return _LITERALS.sub(mask, predicate), tuple(found)
    except ValueError:
        return None


def atoms_of(node: Any, outline: Outline) -> list[Any] | None:
    """Return the atoms of a predicate in their order, None unless they are joined as an outline says."""
    if outline is None:
        return [node]
    word, parts = outline
    kind, name = ("OPERATOR", "OPERATOR_NOT") if word == "NOT" else ("CONJUNCTION", f"CONJUNCTION_{word}")
    if node["class"] != kind or node["type"] != name or len(node["children"]) != len(parts):
        return None
    found: list[Any] = []
    for child, part in zip(node["children"], parts, strict=True):
        below = atoms_of(child, part)
        if below is None:
            return None
        found += below
    return found


def operator_of(node: Any) -> str:
    """Return the name of the outermost operator or function of an expression."""
    if node["type"] == "OPERATOR_NOT":
        return f"NOT {operator_of(node['children'][0])}"
    return str(node["function_name"].lower() if node["class"] == "FUNCTION" else node["type"])


def with_lists(predicate: str, operand: str, replace: Callable[[list[str]], str | None]) -> str:
    """Return a predicate with its long lists of literals after ``(operand IN`` replaced.

    ``operand`` is a pattern. ``replace`` gets the literals and returns what stands in their
    place, None to leave them.
    """
    tested = re.compile(rf"\(\s*(?:{operand})\s+(?:NOT\s+)?$", re.IGNORECASE)

    def taken(match: re.Match[str]) -> str:
        if match["items"] is None or not tested.search(predicate[max(0, match.start() - 100) : match.start()]):
            return match[0]
        replaced = replace(re.findall(_ITEM, match["items"]))
        return match[0] if replaced is None else match["before"] + replaced

    if len(predicate) < _LONG or _OTHER_QUOTES.search(predicate):
        return predicate
    return _TOKENS.sub(taken, predicate)


def literals(items: list[str], *, texts: bool, integers: bool) -> list[str] | list[int] | None:
    """Return the values of literals if all are texts or all are integers, and these are asked for."""
    if texts and all(i.startswith("'") for i in items):
        return [i[1:-1].replace("''", "'") for i in items]
    if integers and all(len(i) < 19 and not i.startswith("'") for i in items):
        return list(map(int, items))
    return None


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

    ``functions`` gives the names of the functions whose result follows from their arguments. A
    subquery may list values, as ``SELECT unnest($1)`` and ``VALUES`` do, but read no table except those in which
    the planner holds values.
    """
    if isinstance(node, list):
        return all(is_pure(v, functions) for v in node)
    if not isinstance(node, dict):
        return True
    if node.get("class") == "SUBQUERY":
        return is_pure(node["child"], functions) and _lists_values(node["subquery"]["node"], functions)
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


def _lists_values(node: Any, functions: Callable[[], frozenset[str]]) -> bool:
    """Return whether a query without tables does no more than list pure values."""
    if node["type"] != "SELECT_NODE" or any(_is_present(node.get(part)) for part in _PARTS):
        return False
    source, items = node["from_table"], node["select_list"]
    if source["type"] == "EMPTY":
        return len(items) == 1 and _is_value(items[0], functions)
    if len(items) != 1 or items[0]["class"] != "STAR" or any(_is_present(items[0].get(part)) for part in _STAR_PARTS):
        return False
    if source["type"] == "BASE_TABLE":
        return bool(_HELD.fullmatch(source["table_name"]) and not source["schema_name"])
    if source["type"] == "EXPRESSION_LIST":
        return is_pure(source["values"], functions)
    return bool(source["type"] == "TABLE_FUNCTION" and _is_unnest(source["function"], functions))


def _is_value(node: Any, functions: Callable[[], frozenset[str]]) -> bool:
    return _is_unnest(node, functions) or is_pure(node, functions)


def _is_unnest(node: Any, functions: Callable[[], frozenset[str]]) -> bool:
    if node["class"] != "FUNCTION" or node["function_name"].lower() != "unnest" or node.get("schema"):
        return False
    return len(node["arguments"]) == 1 and is_pure(node["arguments"], functions)


def _is_present(part: Any) -> bool:
    return bool(part["map"] if isinstance(part, dict) and "map" in part else part)
