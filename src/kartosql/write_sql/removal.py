"""The WHERE of a DELETE: which partitions of a table go, as the engine evaluates it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kartosql.engines.duckdb import Runtime, table_names
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.plan.bind import Parameters
from kartosql.plan.removal import OnlyTable, condition_columns
from kartosql.query import SelectQuery
from kartosql.settings import Settings
from kartosql.sql.statements import Select
from kartosql.write.remove import Removal
from kartosql.write.remove import Select as RemoveSelect

_PART = "kartosql part"


@dataclass(frozen=True)
class Matching(Removal):
    """Partitions for which a condition of SQL holds; a table that lacks one of its columns keeps all rows."""

    def of(self, partition_keys: Collection[str], *, named: bool) -> RemoveSelect | None:
        """Return what is removed from a dataset with these partition keys, None for nothing."""
        return self.select if self.columns <= set(partition_keys) else None


def removal_of(
    runtime: Runtime,
    settings: Settings,
    query: Select,
    parameters: Parameters,
    partition_columns: pa.Schema,
    others: Collection[str],
) -> Matching | None:
    """Return what ``query``, ``FROM t WHERE condition``, removes; None if it holds for no partition at all.

    The condition is evaluated once per combination of partition values, and NULL keeps rows.
    A dataset that is not partitioned by all of the columns named keeps its rows. Raises what
    ``condition_columns`` raises.
    """
    if query.tree is None:
        table_names(query.text)  # the engine says what is wrong with the text
    columns = condition_columns(query, partition_columns, others, parameters)

    def matching(values: pa.Table) -> list[int]:
        numbered = values.append_column(_PART, pa.array(range(values.num_rows), pa.int64()))
        return list(
            SelectQuery(query, OnlyTable(numbered), runtime, settings, parameters).arrow().column(_PART).to_pylist()
        )

    def select(table: DatasetTable) -> Sequence[str]:
        if not columns <= set(table.partition_keys) or not table.files:
            return ()
        partitions = table.partitions
        return [table.labels[file] for file in sorted(partitions.files_of(matching(partitions.arrow)))]

    if columns:
        return Matching(columns, select)
    always = matching(pa.table({"": pa.array([None], pa.null())}))
    return Matching() if always else None
