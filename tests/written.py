"""Writing into a store without a connection: new cubes and plain datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from kartosql.write import cubes, datasets, files
from kartosql.write.files import WriteOptions, Written
from kartosql.write.files import write_rows as write_files
from kartosql.write.inputs import Rows
from kartosql.write.layout import Layout
from kartosql.write.operation import Operation

Summary = dict[str, int]


def build_cube(
    store: Store,
    cube: Cube,
    data: Any,
    *,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, str | Iterable[str]] | None = None,
    row_group_rows: int = files.ROW_GROUP_ROWS,
) -> dict[str, Summary]:
    """Write the datasets of a new cube and return files, rows and bytes of each; see Connection.build_cube.

    Rows are sorted in memory, whatever their number.
    """
    operation = Operation(store, "build_cube", options=WriteOptions(row_group_rows=row_group_rows))
    done = cubes.build_cube(operation, cube, data, metadata=metadata, overwrite=overwrite, partition_on=partition_on)
    return {name: _summary(written) for name, written in done.items()}


def write_dataset(
    store: Store,
    uuid: str,
    data: Any,
    *,
    partition_on: str | Iterable[str] = (),
    index_columns: str | Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    row_group_rows: int = files.ROW_GROUP_ROWS,
) -> Summary:
    """Write a plain dataset and return its files, rows and bytes; see Connection.create_dataset.

    Rows are sorted in memory, whatever their number.
    """
    operation = Operation(store, "create_dataset", options=WriteOptions(row_group_rows=row_group_rows))
    done = datasets.create_dataset(
        operation,
        uuid,
        data,
        partition_on=partition_on,
        index_columns=index_columns,
        metadata=metadata,
        overwrite=overwrite,
    )
    return _summary(done)


def write_rows(
    store: Store, rows: Rows, layout: Layout, *, write_id: str | None = None, presorted: bool = False, **options: Any
) -> Written:
    """Write the data files of one table; ``options`` are fields of WriteOptions."""
    return write_files(store, rows, layout, WriteOptions(**options), write_id=write_id, presorted=presorted)


def _summary(done: Mapping[str, Any]) -> Summary:
    return {name: done[name] for name in ("files", "rows", "bytes")}
