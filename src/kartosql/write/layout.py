"""How a dataset is laid out, and what the datasets of a cube must agree on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from kartosql.errors import UsageError
from kartosql.formats.kartothek.cube import Cube, is_visible
from kartosql.formats.kartothek.schema import merge_types, normalise
from kartosql.write.frames import invalid_data


@dataclass(frozen=True)
class Layout:
    """How the rows of one dataset are checked, sorted, split and indexed.

    ``cell`` names the columns whose combination occurs once (empty: rows may repeat), and
    ``not_null`` the columns without NULLs.
    """

    uuid: str
    name: str
    partition_on: tuple[str, ...] = ()
    cell: tuple[str, ...] = ()
    index_columns: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that rows are sorted by: partition columns, then the others of the cell."""
        return tuple(dict.fromkeys(self.partition_on + self.cell))

    @property
    def cells_stay_together(self) -> bool:
        """Whether rows of the same cell always have the same partition."""
        return set(self.partition_on) <= set(self.cell)

    def role(self, column: str) -> str:
        """Return what ``column`` is in this dataset, for messages."""
        if column in self.partition_on:
            return "partition column"
        return "dimension column" if column in self.cell else "index column"


def cube_layouts(
    cube: Cube,
    tables: Mapping[str, pa.Table],
    partition_on: Mapping[str, str | Iterable[str]] | None,
    metadata: Mapping[str, Mapping[str, Any]] | None,
) -> dict[str, Layout]:
    """Return the layout of each dataset of a cube, by dataset id.

    Raises ``invalid-cube`` and ``invalid-data`` where a table lacks columns or the datasets
    do not fit together, ``invalid-argument`` for options of datasets that are not written.
    """
    keys_of = _by_dataset(partition_on, "partition_on", tables)
    metadata_of = _by_dataset(metadata, "metadata", tables)
    layouts = {}
    for name, table in tables.items():
        if not table.num_rows:
            raise invalid_data(name, "it has no rows", "Leave the dataset out.")
        keys = columns_of(keys_of.get(name, cube.partition_columns), f"partition_on of {name!r}")
        layouts[name] = _member_layout(cube, name, table.column_names, keys, metadata_of.get(name, {}))
    _check_together(cube, tables)
    return layouts


def _by_dataset(options: Any, what: str, tables: Mapping[str, pa.Table]) -> Mapping[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UsageError(f"{what}: expected a dictionary by dataset, got {type(options).__name__}.")
    for name in options:
        if name not in tables:
            raise UsageError(
                f"{what}: {name!r} is none of the datasets written.", hint=f"Datasets: {', '.join(tables)}."
            )
    return options


def _member_layout(
    cube: Cube, name: str, columns: list[str], keys: tuple[str, ...], metadata: Mapping[str, Any]
) -> Layout:
    is_seed = name == cube.seed_dataset
    if is_seed and keys != cube.partition_columns:
        raise UsageError(
            f"partition_on: the seed {name!r} is always partitioned by {', '.join(cube.partition_columns)}.",
            code="invalid-cube",
        )
    missing = [c for c in keys if c not in columns]
    if missing:
        raise invalid_data(
            name,
            f"the partition column {missing[0]!r} is missing",
            None if is_seed else f"Add it, or say how the dataset is split: partition_on={{{name!r}: []}}.",
        )
    dimensions = tuple(c for c in cube.dimension_columns if c in columns)
    if is_seed and dimensions != cube.dimension_columns:
        lost = next(c for c in cube.dimension_columns if c not in columns)
        raise invalid_data(name, f"the dimension column {lost!r} is missing", "The seed has all dimensions.")
    if not dimensions:
        raise invalid_data(name, f"it has none of the dimension columns {', '.join(cube.dimension_columns)}")
    shared = tuple(c for c in cube.partition_columns if c in columns)
    unlisted = [c for c in shared if c not in keys]
    if unlisted:
        raise invalid_data(
            name,
            f"{unlisted[0]!r} is a partition column of the cube, but not in partition_on of this dataset",
            "List it there, or drop the column.",
        )
    wanted = cube.index_columns | (set(dimensions) - cube.suppress_index_on if is_seed else set())
    indexed = tuple(c for c in columns if c in wanted and c not in keys)
    flags = {
        "ktk_cube_dimension_columns": list(cube.dimension_columns),
        "ktk_cube_is_seed": is_seed,
        "ktk_cube_partition_columns": list(cube.partition_columns),
        "ktk_cube_suppress_index_on": sorted(cube.suppress_index_on),
    }
    return Layout(
        uuid=cube.uuid(name),
        name=name,
        partition_on=keys,
        cell=shared + dimensions,
        index_columns=indexed,
        not_null=tuple(dict.fromkeys(keys + dimensions + indexed)),
        metadata=checked_metadata(metadata, name) | flags,
    )


def _check_together(cube: Cube, tables: Mapping[str, pa.Table]) -> None:
    shared = set(cube.dimension_columns + cube.partition_columns)
    seen: dict[str, tuple[str, pa.DataType]] = {}
    for name in sorted(tables, key=lambda n: n != cube.seed_dataset):
        for column in tables[name].schema:
            type_ = normalise(column.type)
            if column.name not in seen:
                seen[column.name] = (name, type_)
                continue
            other, known = seen[column.name]
            if is_visible(column.name) and column.name not in shared:
                raise invalid_data(
                    name, f"the payload column {column.name!r} is also in {other!r}", "Rename one of the two."
                )
            merged = merge_types(known, type_)
            if merged is None:
                raise invalid_data(
                    name, f"{column.name!r} is {type_}, but {known} in {other!r}", "Cast one of the two."
                )
            seen[column.name] = (other, merged)


def columns_of(value: str | Iterable[str], what: str) -> tuple[str, ...]:
    """Return column names given as one text or a list; raises ``invalid-argument``."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
        raise UsageError(f"{what}: {value!r} is no list of different column names.")
    return tuple(str(n) for n in names)


def checked_metadata(metadata: Any, name: str) -> dict[str, Any]:
    """Return user metadata as a new dictionary; raises ``invalid-argument`` if JSON cannot hold it."""
    try:
        if isinstance(metadata, Mapping) and all(isinstance(k, str) for k in metadata):
            json.dumps(dict(metadata), allow_nan=False)
            return dict(metadata)
    except (TypeError, ValueError, RecursionError) as e:
        raise UsageError(f"The metadata of {name!r} cannot be written as JSON: {e}") from None
    raise UsageError(f"The metadata of {name!r} is no dictionary with text keys.")
