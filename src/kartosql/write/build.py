"""Building cubes and single datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kartosql.errors import UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.store.keys import key_problem
from kartosql.write import files, indexing
from kartosql.write.commit import publish
from kartosql.write.frames import invalid_data, to_table
from kartosql.write.layout import Layout, checked_metadata, columns_of, cube_layouts
from kartosql.write.split import split

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
    """Write the datasets of a new cube and return files, rows and bytes of each.

    ``data`` maps dataset ids to Arrow-like objects; one such object alone is the seed. All
    checks come before the first write: ``dataset-exists`` (without ``overwrite``, or when
    other datasets of the cube would stay beside the new ones), ``invalid-cube``,
    ``invalid-data``, ``null-in-key``, ``duplicate-cells``. ``partition_on`` gives other
    datasets than the seed their own partition columns.
    """
    _check_row_group_rows(row_group_rows)
    given = data if isinstance(data, Mapping) else {cube.seed_dataset: data}
    given = {name: frame for name, frame in given.items() if frame is not None}
    for name in given:
        if not isinstance(name, str) or not naming.is_dataset_uuid(name) or naming.CUBE_SEPARATOR in name:
            raise UsageError(f"{name!r} is no legal dataset name.", hint="Use letters, digits, +, - and _.")
    if cube.seed_dataset not in given:
        raise UsageError(
            f"Cube {cube.uuid_prefix!r}: the data lack the seed dataset {cube.seed_dataset!r}.",
            code="invalid-cube",
            hint=f"Datasets given: {', '.join(given) or 'none'}.",
        )
    _check_existing(store, cube, set(given), overwrite)
    # The seed comes last: without its document the others are no cube.
    order = sorted(given, key=lambda name: (name == cube.seed_dataset, name))
    tables = {name: to_table(given[name], name) for name in order}
    layouts = cube_layouts(cube, tables, partition_on, metadata)
    splits = []
    for name in order:
        _check_index_keys(layouts[name])
        splits.append(split(tables.pop(name), layouts[name]))
    written = dict(zip(order, publish(store, splits, row_group_rows=row_group_rows), strict=True))
    return {name: written[name] for name in given}


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
    """Write a plain dataset with the one table ``table`` and return its files, rows and bytes.

    Rows keep their order inside of a partition and may repeat; NULLs are allowed in index
    columns, which leave them out. Raises ``dataset-exists`` without ``overwrite``,
    ``invalid-argument``, ``invalid-data`` and ``null-in-key``, all before the first write.
    """
    _check_row_group_rows(row_group_rows)
    if not isinstance(uuid, str) or not naming.is_dataset_uuid(uuid):
        raise UsageError(f"{uuid!r} is no legal dataset name.", hint="Use letters, digits, +, - and _.")
    if uuid in Snapshot(store).keys and not overwrite:
        raise _exists(f"The dataset {uuid!r} already exists.", "Pass overwrite=True to replace it.")
    keys = columns_of(partition_on, "partition_on")
    layout = Layout(
        uuid=uuid,
        name=uuid,
        partition_on=keys,
        index_columns=tuple(c for c in columns_of(index_columns, "index_columns") if c not in keys),
        not_null=keys,
        metadata=checked_metadata({} if metadata is None else metadata, uuid),
    )
    _check_index_keys(layout)
    return publish(store, [split(to_table(data, uuid), layout)], row_group_rows=row_group_rows)[0]


def _check_existing(store: Store, cube: Cube, names: set[str], overwrite: bool) -> None:
    existing = set(Snapshot(store).members.get(cube.uuid_prefix, ()))
    clash = sorted(existing & names)
    if clash and not overwrite:
        raise _exists(
            f"Cube {cube.uuid_prefix!r}: the dataset {clash[0]!r} already exists.",
            "Pass overwrite=True to replace the cube, or choose another prefix.",
        )
    others = sorted(existing - names)
    if others:
        raise _exists(
            f"Cube {cube.uuid_prefix!r}: the existing dataset {others[0]!r} would stay beside the new ones.",
            "A cube is built as a whole: give all of its datasets, or choose another prefix.",
        )


def _exists(message: str, hint: str) -> UsageError:
    return UsageError(message, code="dataset-exists", hint=hint)


def _check_row_group_rows(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"row_group_rows: {value!r} is no positive whole number.")


def _check_index_keys(layout: Layout) -> None:
    for column in layout.index_columns:
        problem = key_problem(indexing.index_key(layout.uuid, column, "0000-00-00T00:00:00.000000"))
        if problem:
            raise invalid_data(layout.name, f"the index of {column[:40]!r} gets no usable file name: {problem}")
