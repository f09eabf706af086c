"""MCP, the Model Context Protocol, revision 2025-06-18: tools for agents, as JSON-RPC 2.0 over HTTP or stdio."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from kartosql import __version__
from kartosql.errors import KartosqlError
from kartosql.serve.service import Client, Service, json_rows, parameters_of, parsed, selected
from kartosql.text.constants import quote

PROTOCOLS = ("2025-06-18", "2025-03-26", "2024-11-05")
MAX_ROWS = 200  # of an answer, unless more are asked for
MOST_ROWS = 5_000
MAX_LINE = 4_000_000

_SQL = {"sql": {"type": "string", "description": "One statement in DuckDB's dialect of SQL."}}


class _Invalid(Exception):
    """A request that is no call of a method that there is."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def respond(service: Service, client: Client, message: Any) -> dict[str, Any] | None:
    """Return the answer to a message, None to a notification."""
    known = message if isinstance(message, dict) else {}
    number = known.get("id")
    try:
        if known.get("jsonrpc") != "2.0" or not isinstance(known.get("method"), str):
            raise _Invalid(-32600, "This is no request of JSON-RPC 2.0.")
        if "id" not in known:
            return None
        parameters = known.get("params") or {}
        if not isinstance(parameters, dict):
            raise _Invalid(-32602, "params is no object.")
        return {"jsonrpc": "2.0", "id": number, "result": _result(service, client, known["method"], parameters)}
    except _Invalid as e:
        return {"jsonrpc": "2.0", "id": number, "error": {"code": e.code, "message": str(e)}}


def _result(service: Service, client: Client, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        wanted = parameters.get("protocolVersion")
        return {
            "protocolVersion": wanted if wanted in PROTOCOLS else PROTOCOLS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "kartosql", "version": __version__},
            "instructions": "Read-only SQL. list_tables and describe come first; explain tells the cost.",
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {
            "tools": [
                {
                    "name": name,
                    "description": about,
                    "inputSchema": {"type": "object", "properties": properties, "required": [*properties][:1]},
                    "annotations": {"readOnlyHint": True},
                }
                for name, (about, properties, _) in _TOOLS.items()
            ]
        }
    if method != "tools/call":
        raise _Invalid(-32601, f"There is no method {method!r}.")
    name, arguments = parameters.get("name"), parameters.get("arguments") or {}
    if name not in _TOOLS or not isinstance(arguments, dict):
        raise _Invalid(-32602, f"There is no tool {name!r}.")
    _, properties, call = _TOOLS[name]
    for required in [*properties][:1]:
        if not isinstance(arguments.get(required), str):
            raise _Invalid(-32602, f"The tool {name!r} needs {required}, a text.")
    try:
        content = call(service, client, arguments)
    except KartosqlError as e:
        return {**_text(e.to_dict()), "isError": True}
    return _text(content)


def _text(content: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(content, ensure_ascii=False, default=str)}]}


def _query(service: Service, client: Client, arguments: Mapping[str, Any]) -> Any:
    wanted = arguments.get("max_rows", MAX_ROWS)
    most = min(wanted, MOST_ROWS) if type(wanted) is int and wanted >= 0 else MAX_ROWS
    found = service.query(client, arguments["sql"], parameters_of(arguments.get("parameters")), most=most)
    rows = found.head(most)
    answer = {"columns": found.columns, "rows": json.loads(json_rows(rows)), "row_count": len(rows)}
    if len(found) > most:
        answer["note"] = f"There are more rows than these {most:,}: aggregate, filter, or raise max_rows."
    return {**answer, "report": None if found.report is None else str(found.report)}


def _describe(service: Service, client: Client, arguments: Mapping[str, Any]) -> Any:
    found = service.query(client, "DESCRIBE " + ".".join(map(quote, arguments["table"].split("."))))
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows()]


def _advise(service: Service, client: Client, arguments: Mapping[str, Any], word: str = "ADVISE") -> str:
    found = service.query(client, f"{word} {arguments['sql']}", asked="report")
    return "\n".join(line for (line,) in found.rows())


def _explain(service: Service, client: Client, arguments: Mapping[str, Any]) -> Any:
    report = service.explain(client, arguments["sql"])
    cost = _advise(service, client, arguments, "EXPLAIN COST")
    files = {"files_selected": report.files_selected, "files_total": report.files_total}
    return {**files, "bytes_selected": selected(report)["bytes"], "cost": cost, "report": str(report)}


_TABLE: dict[str, Any] = {"table": {"type": "string"}}
_MORE = {"parameters": {"type": "array", "items": {}}, "max_rows": {"type": "integer", "maximum": MOST_ROWS}}
#: What each tool is for, its arguments, of which the first one is required, and what it calls.
_TOOLS: dict[str, tuple[str, dict[str, Any], Callable[[Service, Client, Mapping[str, Any]], Any]]] = {
    "list_tables": (
        "List the tables that can be queried, with their kinds.",
        {},
        lambda service, client, _: [{"table": t, "kind": k} for t, k in service.tables(client)],
    ),
    "describe": ("List the columns of a table with type, role and index.", _TABLE, _describe),
    "explain": (
        "Tell which files and bytes a SELECT would read, and why. Ask it before a large query.",
        _SQL,
        _explain,
    ),
    "query": (
        f"Run a SELECT and return its rows, {MAX_ROWS} at most unless max_rows says another number, with what it read.",
        {**_SQL, **_MORE},
        _query,
    ),
    "advise": ("Propose indexes and rewritings that make a SELECT read fewer files.", _SQL, _advise),
}


def serve_stdio(service: Service, source: TextIO, to: TextIO) -> None:
    """Answer the messages of a text stream, one in each line, until it ends."""
    client = service.client(None)
    while line := source.readline(MAX_LINE):
        if (answer := respond(service, client, parsed(line))) is not None:
            print(json.dumps(answer), file=to, flush=True)
