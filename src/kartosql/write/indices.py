"""Building and dropping inverted indices of datasets that exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import SqlError, UsageError
from kartosql.formats.kartothek.cube import is_seed
from kartosql.formats.kartothek.dataset import Dataset
from kartosql.write.change import Change
from kartosql.write.datasets import cube_of, find_dataset
from kartosql.write.frames import invalid_data
from kartosql.write.indexing import pairs_of_files
from kartosql.write.layout import Layout, columns_of
from kartosql.write.operation import Operation, check_index_keys
from kartosql.write.split import is_index_type


def create_index(operation: Operation, name: str, columns: str | Iterable[str]) -> dict[str, Any]:
    """Build indices of a dataset; see Connection.create_index."""
    dataset = find_dataset(operation, name)
    names = _some(columns)
    for column in names:
        _check_column(dataset, column)
    check_index_keys(Layout(dataset.uuid, dataset.uuid, index_columns=names))
    pairs = {column: _pairs(operation, dataset, column) for column in names}
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


def _pairs(operation: Operation, dataset: Dataset, column: str) -> pa.Table:
    """Return the values of a column with the labels of the partitions that hold them."""
    tables = [t for t in dataset.tables.values() if column in t.schema.names]
    return pa.concat_tables([pairs_of_files(operation.store, t, t.labels, column) for t in tables])
