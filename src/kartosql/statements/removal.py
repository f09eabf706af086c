"""The partitions that a removal takes: by conditions, or by the WHERE of a DELETE, as the engine evaluates them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kartosql.conditions import check_types, parse_conditions, to_sql
from kartosql.engines.duckdb.files import FileAccess
from kartosql.engines.duckdb.statement import table_names
from kartosql.errors import UsageError
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.plan.bind import OnlyTable, condition_columns
from kartosql.query import SelectQuery
from kartosql.session import Request, Session
from kartosql.sql.statements import Select
from kartosql.write.removal import Removal

_PART = "kartosql part"
_PARTS = "kartosql_partitions"


def removal_of(
    session: Session, conditions: Any, types: Mapping[str, pa.DataType], partition_columns: Collection[str]
) -> Removal:
    """Return what ``conditions``, in any form that ``query_cube`` takes, remove; no condition removes everything.

    ``types`` are those of all columns that could be meant. Raises ``unknown-column`` and
    ``invalid-condition``, the latter also for columns that are no partition columns.
    """
    parsed = parse_conditions(conditions, types)
    other = sorted({c.column for c in parsed if c.column in types and c.column not in partition_columns})
    if other:
        raise UsageError(
            f"{other[0]!r} is no partition column; only whole partitions can be removed.",
            code="invalid-condition",
            hint=f"Partition columns: {', '.join(partition_columns) or 'none'}.",
        )
    checked = check_types(parsed, types)
    if parsed and not checked:
        raise UsageError(
            "The conditions restrict nothing: an interval needs a bound.",
            code="invalid-condition",
            hint="Without any condition all partitions are removed.",
        )
    # Partition values compare by code point, whatever collation the session has.
    own = session.settings.copy()
    own.set("default_collation", None)

    def select(table: DatasetTable) -> Sequence[str]:
        keys = {key: f"k{i}" for i, key in enumerate(table.partition_keys)}
        predicate, parameters = to_sql([c for c in checked if c.column in keys], keys.__getitem__)
        values = table.partitions.arrow.rename_columns(list(keys.values()))
        values = values.append_column("part", pa.array(range(table.partitions.count), pa.int64()))
        runtime = session.runtime
        # A predicate that fails for some value is an error, and nothing is selected.
        with runtime.planner(own, FileAccess(runtime.store)) as planner, planner.errors(predicate):
            planner.register(_PARTS, values)
            try:
                rows = planner.rows(f"SELECT part FROM {_PARTS} WHERE {predicate}", parameters)
            finally:
                planner.unregister(_PARTS)
        return _labels(table, [part for (part,) in rows])

    return Removal(frozenset(c.column for c in checked), select)


def _labels(table: DatasetTable, partitions: Collection[int]) -> list[str]:
    return [table.labels[file] for file in sorted(table.partitions.files_of(set(partitions)))]


def removal_where(
    request: Request,
    query: Select,
    partition_columns: pa.Schema,
    others: Collection[str],
) -> Removal | None:
    """Return what ``query``, ``FROM t WHERE condition``, removes; None if it holds for no partition at all.

    The condition is evaluated once per combination of partition values, and NULL keeps rows. A dataset that is not
    partitioned by all of the columns named keeps its rows. Raises what ``condition_columns`` raises.
    """
    if query.tree is None:
        table_names(query.text)  # the engine says what is wrong with the text
    columns = condition_columns(query, partition_columns, others, request.parameters)

    def matching(values: pa.Table) -> list[int]:
        numbered = values.append_column(_PART, pa.array(range(values.num_rows), pa.int64()))
        runtime = request.session.runtime
        found = SelectQuery(query, OnlyTable(numbered), runtime, request.settings, request.parameters).arrow()
        return list(found.column(_PART).to_pylist())

    def select(table: DatasetTable) -> Sequence[str]:
        if not columns <= set(table.partition_keys) or not table.files:
            return ()
        return _labels(table, matching(table.partitions.arrow))

    if columns:
        return Removal(columns, select, needs_all=True)
    always = matching(pa.table({"": pa.array([None], pa.null())}))
    return Removal() if always else None
