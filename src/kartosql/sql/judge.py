"""The second judge: the same rules over the engine's own parse of a query."""

from __future__ import annotations

import json
from typing import Any

from kartosql.errors import SqlError
from kartosql.sql.functions import is_refused, is_table_function
from kartosql.sql.guard import refused_function, too_deep
from kartosql.sql.statements import Name

_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})


def judge(document: str, text: str) -> set[Name]:
    """Return the tables of a query, common table expressions left out.

    ``document`` is what DuckDB's ``json_serialize_sql`` says of ``text``. Raises ``syntax-error``,
    ``several-statements``, ``not-allowed``, ``function-not-allowed`` and ``statement-too-deep``.
    """
    try:
        parsed = json.loads(document)
    except RecursionError:
        raise too_deep("expressions that are nested too deeply", None, text) from None
    if parsed.get("error"):
        raise SqlError(str(parsed.get("error_message")), code="syntax-error", sql=text)
    if len(parsed["statements"]) != 1:
        raise SqlError("One statement at a time, please.", code="several-statements", sql=text)
    tables: set[Name] = set()
    # Not recursive, as what strangers write may be deep. Each item has the expressions that it can name.
    pending: list[tuple[Any, frozenset[str]]] = [(parsed["statements"][0], frozenset())]
    while pending:
        value, known = pending.pop()
        if isinstance(value, list):
            pending += [(item, known) for item in value]
        elif isinstance(value, dict):
            _check(value, text)
            if value.get("type") == "BASE_TABLE":
                name = tuple(n for n in (value["catalog_name"], value["schema_name"], value["table_name"]) if n)
                if len(name) > 1 or name[0].lower() not in known:
                    tables.add(name)
            known = _expressions(value, known, pending)
            pending += [(item, known) for key, item in value.items() if key != "cte_map"]
    return tables


def _expressions(
    node: dict[str, Any], known: frozenset[str], pending: list[tuple[Any, frozenset[str]]]
) -> frozenset[str]:
    """Queue the common table expressions of a node, and return the names known below it."""
    for entry in (node.get("cte_map") or {}).get("map", ()):
        name = frozenset({str(entry["key"]).lower()})
        query = entry["value"].get("query_node") or entry["value"].get("query") or {}
        inside = query.get("node", query).get("type") == "RECURSIVE_CTE_NODE"
        pending.append((entry["value"], known | name if inside else known))
        known |= name
    return known


def _check(node: dict[str, Any], text: str) -> None:
    kind = str(node.get("type", ""))
    if kind.endswith("_NODE") and kind not in _QUERIES:
        raise SqlError("A query must not change anything.", code="not-allowed", sql=text)
    if kind == "SHOW_REF" and not node.get("query"):
        raise SqlError("SHOW cannot stand inside of a query.", code="not-allowed", sql=text)
    if kind == "TABLE_FUNCTION":
        name = str(node["function"]["function_name"])
        if not is_table_function(name.lower()):
            raise refused_function(name, None, text)
    elif node.get("class") == "FUNCTION" and not node.get("is_operator"):
        name = str(node["function_name"])
        if is_refused(name.lower()):
            raise refused_function(name, None, text)
