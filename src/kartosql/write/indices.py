"""Building and dropping inverted indices of datasets that exist."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import KartosqlWarning, SqlError, UsageError
from kartosql.formats.kartothek.cube import is_seed
from kartosql.formats.kartothek.dataset import Dataset
from kartosql.parquet.metadata import file_metadata, may_hold_null
from kartosql.write.change import Change
from kartosql.write.datasets import cube_of, find_dataset
from kartosql.write.indexing import pairs_of_files
from kartosql.write.inputs import invalid_data
from kartosql.write.layout import Layout, columns_of
from kartosql.write.operation import Operation, check_index_keys
from kartosql.write.split import is_index_type

ORIGINALS_REFUSE = "kartothek and plateau refuse to add rows with NULL in an indexed column to a cube."
_FOOTERS = 64


def create_index(operation: Operation, name: str, columns: str | Iterable[str]) -> dict[str, Any]:
    """Build indices of a dataset; see Connection.create_index."""
    dataset = find_dataset(operation, name)
    names = _some(columns)
    for column in names:
        _check_column(dataset, column)
    check_index_keys(Layout(dataset.uuid, dataset.uuid, index_columns=names))
    _warn_of_nulls(operation, dataset, names)
    pairs = _pairs(operation, dataset, names)
    change = Change(dataset.uuid, operation.name, indices=pairs)
    done = operation.commit([change])[dataset.uuid]
    values = {column: pc.count_distinct(found["value"]).as_py() for column, found in pairs.items()}
    return {"columns": list(names), "values": values, "sequence": done.sequence, "id": done.id}


def drop_index(operation: Operation, name: str, columns: str | Iterable[str]) -> dict[str, Any]:
    """Drop indices of a dataset; see Connection.drop_index."""
    dataset = find_dataset(operation, name)
    names = _some(columns)
    metadata = dataset.document.metadata
    for column in names:
        if column not in dataset.document.indices:
            raise UsageError(
                f"Dataset {dataset.uuid!r}: {column!r} has no index.",
                code="not-indexed",
                hint=f"Indices: {', '.join(dataset.document.indices) or 'none'}.",
            )
        needed = set(metadata.get("ktk_cube_dimension_columns", ())) - set(
            metadata.get("ktk_cube_suppress_index_on", ())
        )
        if is_seed(metadata) and column in needed and cube_of(operation.snapshot, dataset.uuid):
            raise UsageError(
                f"Dataset {dataset.uuid!r}: {column!r} is a dimension column, whose index a seed needs.",
                code="invalid-cube",
                hint="Build the cube with suppress_index_on to do without.",
            )
    done = operation.commit([Change(dataset.uuid, operation.name, indices=dict.fromkeys(names))])[dataset.uuid]
    return {"columns": list(names), "sequence": done.sequence, "id": done.id}


def _some(columns: str | Iterable[str]) -> tuple[str, ...]:
    names = columns_of(columns, "columns")
    if not names:
        raise UsageError("columns: at least one name is needed.")
    return names


def _check_column(dataset: Dataset, column: str) -> None:
    found = [t for t in dataset.tables.values() if column in t.schema.names]
    if not found:
        known = dict.fromkeys(name for t in dataset.tables.values() for name in t.schema.names)
        raise SqlError(
            f"Dataset {dataset.uuid!r} has no column {column!r}.",
            code="unknown-column",
            hint=f"Columns: {', '.join(known)}.",
        )
    if column in found[0].partition_keys:
        raise invalid_data(dataset.uuid, f"{column!r} is a partition column, which needs no index")
    if column == "partition":
        raise invalid_data(dataset.uuid, "a column named 'partition' cannot be indexed", "Rename it.")
    for table in found:
        type_ = table.schema.field(column).type
        if not is_index_type(type_):
            raise invalid_data(dataset.uuid, f"{column!r} is {type_}, which cannot be indexed")


def _warn_of_nulls(operation: Operation, dataset: Dataset, columns: Sequence[str]) -> None:
    """Warn of NULLs in columns of a cube's dataset, which the originals refuse once the columns are indexed."""
    if cube_of(operation.snapshot, dataset.uuid) is None:
        return
    (table,) = dataset.tables.values()
    read = partial(file_metadata, operation.store, with_columns=True)
    left = list(columns)
    for at in range(0, len(table.files), _FOOTERS):
        footers = [found for found, _ in operation.store.map(read, table.files[at : at + _FOOTERS])]
        for column in [c for c in left if any(may_hold_null(found, c) for found in footers)]:
            left.remove(column)
            warnings.warn(
                f"Dataset {dataset.uuid!r}: {column!r} holds NULL, which its index leaves out. {ORIGINALS_REFUSE}",
                KartosqlWarning,
                stacklevel=4,
            )
        if not left:
            return


def _pairs(operation: Operation, dataset: Dataset, columns: Sequence[str]) -> dict[str, pa.Table]:
    """Return the values of columns with the labels of the partitions that hold them."""
    found: dict[str, list[pa.Table]] = {column: [] for column in columns}
    for table in dataset.tables.values():
        here = [column for column in columns if column in table.schema.names]
        if operation.spark is None:
            pairs = {column: pairs_of_files(operation.store, table, table.labels, column) for column in here}
        else:
            from kartosql.write.spark.upkeep import pairs_of_columns

            pairs = pairs_of_columns(operation, table, here)
        for column in here:
            found[column].append(pairs[column])
    return {column: pa.concat_tables(tables) for column, tables in found.items()}
