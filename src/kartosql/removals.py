"""Conditions over partition columns -> the partitions that a write removes, as the engine evaluates them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kartosql.conditions import Condition, check_types, parse_conditions, to_sql
from kartosql.engines.duckdb import FileAccess, Runtime
from kartosql.errors import UsageError
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.settings import Settings
from kartosql.write.remove import Removal

_PARTS = "kartosql_partitions"


def removal_of(
    runtime: Runtime,
    settings: Settings,
    conditions: Any,
    types: Mapping[str, pa.DataType],
    partition_columns: Collection[str],
) -> Removal:
    """Return what ``conditions``, in any form that ``query_cube`` takes, remove; no condition removes everything.

    ``types`` are those of all columns that could be meant. Raises ``unknown-column`` and
    ``invalid-condition``, the latter also for columns that are no partition columns.
    """
    if isinstance(conditions, Removal):
        return conditions
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
    own = settings.copy()
    own.set("default_collation", None)

    def select(table: DatasetTable) -> Sequence[str]:
        usable = [c for c in checked if c.column in table.partition_keys]
        return labels_where(runtime, own, table, *_predicate(usable, table))

    return Removal(frozenset(c.column for c in checked), select)


def _predicate(conditions: list[Condition], table: DatasetTable) -> tuple[str, Mapping[str, Any]]:
    return to_sql(conditions, key_names(table).__getitem__)


def key_names(table: DatasetTable) -> dict[str, str]:
    """Return the name of each partition key in predicates for ``labels_where``."""
    return {key: f"k{i}" for i, key in enumerate(table.partition_keys)}


def labels_where(
    runtime: Runtime,
    settings: Settings,
    table: DatasetTable,
    predicate: str,
    parameters: Mapping[str, Any],
) -> list[str]:
    """Return the labels of the partitions for whose values a predicate is TRUE, in the order of the table.

    The predicate names the i-th partition key ``k<i>``. A predicate that fails for some value
    is an error, and nothing is selected.
    """
    partitions = table.partitions
    values = partitions.arrow.rename_columns(list(key_names(table).values()))
    values = values.append_column("part", pa.array(range(partitions.count), pa.int64()))
    with runtime.planner(settings, FileAccess(runtime.store)) as planner, planner.errors(predicate):
        planner.register(_PARTS, values)
        try:
            rows = planner.rows(f"SELECT part FROM {_PARTS} WHERE {predicate}", parameters)
        finally:
            planner.unregister(_PARTS)
    files = partitions.files_of({part for (part,) in rows})
    return [table.labels[file] for file in sorted(files)]
