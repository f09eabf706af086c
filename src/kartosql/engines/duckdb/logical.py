"""A statement's bound plan, as DuckDB sees it before it optimizes: what another engine can write out again."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from kartosql.engines.duckdb.statement import DuckStatement
from kartosql.errors import NotPortable, Span
from kartosql.plan.bind import BoundQuery
from kartosql.plan.scan import Scan
from kartosql.sql.tree import edited, original_span
from kartosql.text.constants import literal

_ROWS = "__kartosql_rows"
_NAN = re.compile(r'"value":-?NAN\b')  # as DuckDB writes it, and Python does not read it
MAX_PIVOTED = 1_000  # values of a PIVOT that are aggregates with filters each, and so no operator that only DuckDB has
MAX_CONSTANT = 1 << 20  # bytes; the text that stands for it takes more


@dataclass(frozen=True)
class LogicalPlan:
    """The plan of a statement over tables that are named by ``occurrences``: schema and name to occurrence.

    ``schema`` is that of the result; ``volatile`` are the functions that give another value at each call.
    """

    tree: dict[str, Any]
    schema: pa.Schema
    occurrences: dict[tuple[str, str], int]
    volatile: frozenset[str]
    query: BoundQuery
    edits: tuple[tuple[Span, str], ...]

    def span_of(self, node: dict[str, Any]) -> Span | None:
        """Return the place of a node in the user's text."""
        start = node.get("query_location")
        if start is None:
            return None
        written = edited(self.query.select.text, self.edits).encode()
        end = start + max(1, node.get("query_location_length", 1))
        first, behind = (len(written[:at].decode(errors="replace")) for at in (start, end))
        spans = [original_span(self.query.select.text, self.edits, at) for at in (first, behind - 1)]
        return spans[0][0], max(spans[0][0] + 1, spans[1][1])


_volatile: list[frozenset[str]] = []  # the names of functions that give another value at each call, once asked for


class Logical:
    """Binds one statement in a session over empty tables, and evaluates its constants."""

    def __init__(self, statement: DuckStatement) -> None:
        self._statement = statement
        self._occurrences: dict[tuple[str, str], int] = {}

    def plan(self, query: BoundQuery, scan: Scan) -> LogicalPlan:
        """Return the plan of a query over the types of a scan; raises what DuckDB says of it, and ``not-portable``."""
        statement, occurrences = self._statement, self._occurrences
        scans = {o.occurrence.id: o for o in scan.occurrences}
        with statement.errors(query.select.text):
            for occurrence in query.occurrences if not occurrences else ():
                name = f"{_ROWS}{occurrence.id}"
                statement.relations.create_table(occurrence, name, scans.get(occurrence.id))
                occurrences[occurrence.view[0], name] = occurrence.id
            shown = statement.described(query)
            edits = self._without_parameters(query)
            statement.instance.change("pivot_filter_threshold", MAX_PIVOTED)
            text = edited(query.select.text, edits)
            ((document,),) = statement.rows(
                "SELECT json_serialize_plan(?, skip_default := true, optimize := false)", [text]
            )
        try:
            found = json.loads(_NAN.sub('"value":NaN', document))
        except RecursionError:
            raise NotPortable("The statement is nested too deeply for Spark.") from None
        except ValueError:  # DuckDB writes some constants, such as BIGNUM, as what is no JSON
            raise NotPortable("DuckDB has no plan of the statement that Spark could follow.") from None
        if found.get("error") or len(found.get("plans", ())) != 1:
            message = str(found.get("error_message") or "it is not one query").split("\n")[0]
            raise NotPortable(f"DuckDB has no plan of the statement that Spark could follow: {message}")
        if not _volatile:
            rows = statement.rows("SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability = 'VOLATILE'")
            _volatile.append(frozenset(name for (name,) in rows))
        return LogicalPlan(found["plans"][0], shown, occurrences, _volatile[0], query, tuple(edits))

    def _without_parameters(self, query: BoundQuery) -> list[tuple[Span, str]]:
        if query.parameters and not query.parameter_places:
            raise NotPortable("Spark takes no parameters in a statement of this form.")
        edits = []
        for span, new in query.edits:
            name = query.parameter_places.get(span)
            edits.append((span, new if name is None else self._value(query.parameters[name])))
        return edits

    def _value(self, value: Any) -> str:
        """Return a parameter's value as an expression of its type."""
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._value, value))}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{literal(str(k))}: {self._value(v)}" for k, v in value.items()) + "}"
        if value is None:
            return "NULL"
        ((type_, text),) = self._statement.rows("SELECT typeof($1), CAST($1 AS VARCHAR)", [value])
        return f"CAST({literal(text)} AS {type_})"

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        """Evaluate constant expressions; what fails, or is too large, has its exception in place of a value."""
        try:
            # An error would end the transaction, and with it the statement's clock.
            values = list(map(_value, self._statement.values([f"TRY({e})" for e in expressions]).columns))
        except (duckdb.Error, pa.ArrowException, ValueError, OverflowError):
            return [self._evaluate(e) for e in expressions]
        return [self._evaluate(e) if v is None else v for e, v in zip(expressions, values, strict=True)]

    def _evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or the exception that it ends with."""
        with self._statement.instance.cursor() as connection:
            try:
                return _value(connection.sql(f"SELECT {expression}").to_arrow_table().column(0))
            except (duckdb.Error, pa.ArrowException, ValueError, OverflowError) as e:
                return e


def _value(column: pa.ChunkedArray) -> Any:
    """Return the only value of a column, or the exception that says why it cannot be written in Spark SQL."""
    if column.nbytes > MAX_CONSTANT:
        return NotPortable(f"Spark takes no constant as large as this one, {column.nbytes:,} bytes.")
    return column[0].as_py()
