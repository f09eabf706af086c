"""The condition of a DELETE: over partition columns of one table, and nothing else."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from sqlglot import exp

from kartosql.errors import Span, SqlError
from kartosql.plan.bind import Parameters, bind
from kartosql.sql.statements import Select
from kartosql.sql.tree import span_of
from kartosql.tables.names import Name, Tables, quote_if_needed
from kartosql.tables.table import Table, arrow_table


class OnlyTable(Tables):
    """Knows one table, whatever the name."""

    def __init__(self, table: pa.Table) -> None:
        self._source = arrow_table("partitions", table)

    def find(self, name: Name, span: Span | None = None, sql: str | None = None, *, as_of: str | None = None) -> Table:
        """Return the one table."""
        return self._source


def condition_columns(
    query: Select, partition_columns: pa.Schema, others: Collection[str], parameters: Parameters
) -> frozenset[str]:
    """Return the partition columns that the WHERE of a DELETE names.

    ``others`` are the columns of the table that no partition is told by. Raises
    ``invalid-condition`` for these, ``unknown-column``, ``invalid-parameters`` and
    ``not-supported`` for what only the engine can read.
    """
    if query.tree is None:
        raise SqlError("This form of condition is not supported in DELETE.", code="not-supported", sql=query.text)
    bound = bind(query, OnlyTable(partition_columns.empty_table()), parameters)
    listed = ", ".join(quote_if_needed(name) for name in partition_columns.names) or "none"
    for suspect in bound.suspects:
        if suspect.name in others or suspect.name.lower() in {n.lower() for n in others}:
            raise SqlError(
                f"{suspect.name!r} is no partition column, so DELETE cannot tell its rows apart by files.",
                code="invalid-condition",
                hint=f"Whole partitions are deleted; partition columns: {listed}.",
                span=span_of(suspect.node),
                sql=query.text,
            )
    if bound.suspects:
        raise bound.unknown_names()
    where = query.tree.args["where"]
    names = set()
    for node in where.find_all(exp.Column, exp.Star, exp.Columns):
        found = bound.walked.bound.get(id(node))
        if found is None or found.source is None:
            raise SqlError(
                "The condition of DELETE names its columns one by one.",
                code="invalid-condition",
                hint=f"Partition columns: {listed}.",
                span=span_of(node),
                sql=query.text,
            )
        names.add(found.source.real(found.column))
    return frozenset(names)
