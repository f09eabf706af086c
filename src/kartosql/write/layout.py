"""How datasets are laid out: roles of columns, and what the datasets of a cube must agree on."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from kartosql.errors import UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube, is_visible
from kartosql.formats.kartothek.schema import merge_types, normalise
from kartosql.write.inputs import invalid_data


@dataclass(frozen=True)
class Layout:
    """How the rows of one table of a dataset are checked, sorted, split and indexed.

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
    table: str = naming.DEFAULT_TABLE

    def file_key(self, label: str) -> str:
        """Return the storage key of the data file of a partition."""
        return f"{self.uuid}/{self.table}/{label}.parquet"

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


def check_name(name: Any) -> str:
    """Return the name of a dataset; raises ``invalid-argument`` if it is none."""
    if not isinstance(name, str) or not naming.is_dataset_uuid(name):
        raise UsageError(f"{name!r} is no legal dataset name.", hint="Use letters, digits, +, - and _.")
    return name


def check_member_name(name: Any) -> str:
    """Return the name of a dataset of a cube; raises ``invalid-argument`` if it is none."""
    if naming.CUBE_SEPARATOR in check_name(name):
        raise UsageError(f"{name!r} is no legal dataset name.", hint="Use letters, digits, +, - and _, but not '++'.")
    return str(name)


def options_of(options: Any, what: str, names: Collection[str]) -> Mapping[str, Any]:
    """Return an argument that is given by dataset; raises ``invalid-argument`` for datasets not among ``names``."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UsageError(f"{what}: expected a dictionary by dataset, got {type(options).__name__}.")
    for name in options:
        if name not in names:
            raise UsageError(
                f"{what}: {name!r} is none of the datasets written.", hint=f"Datasets: {', '.join(names)}."
            )
    return options


def flags(cube: Cube, name: str) -> dict[str, Any]:
    """Return the metadata by which the original finds the dataset ``name`` as a member of ``cube``."""
    return {
        "ktk_cube_dimension_columns": list(cube.dimension_columns),
        "ktk_cube_is_seed": name == cube.seed_dataset,
        "ktk_cube_partition_columns": list(cube.partition_columns),
        "ktk_cube_suppress_index_on": sorted(cube.suppress_index_on),
    }


def member_layout(
    cube: Cube, name: str, schema: pa.Schema, keys: tuple[str, ...], metadata: Mapping[str, Any]
) -> Layout:
    """Return how rows of ``schema`` are laid out as the new dataset ``name``, partitioned by ``keys``.

    Raises ``invalid-cube``, ``invalid-data`` and ``invalid-argument``.
    """
    is_seed, columns = name == cube.seed_dataset, schema.names
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
    unlisted = [c for c in cube.partition_columns if c in columns and c not in keys]
    if unlisted:
        raise invalid_data(
            name,
            f"{unlisted[0]!r} is a partition column of the cube, but not in partition_on of this dataset",
            "List it there, or drop the column.",
        )
    indexed = wanted_indices(cube, name, columns, keys)
    return appended_layout(cube, name, columns, keys, indexed, metadata)


def wanted_indices(cube: Cube, name: str, columns: Iterable[str], keys: Collection[str]) -> tuple[str, ...]:
    """Return the columns that have an index in the dataset ``name`` by the rules of the cube."""
    wanted = cube.index_columns
    if name == cube.seed_dataset:
        wanted |= set(cube.dimension_columns) - cube.suppress_index_on
    return tuple(c for c in columns if c in wanted and c not in keys)


def appended_layout(
    cube: Cube,
    name: str,
    columns: Collection[str],
    keys: tuple[str, ...],
    indexed: Iterable[str],
    metadata: Mapping[str, Any],
) -> Layout:
    """Return how rows with ``columns`` are laid out in a dataset that is partitioned and indexed like this."""
    dimensions = tuple(c for c in cube.dimension_columns if c in columns)
    shared = tuple(c for c in cube.partition_columns if c in columns)
    indexed = tuple(indexed)
    # As the original has it for what a cube asks for; columns that were indexed later may hold NULL.
    asked = [] if cube.is_discovered else [c for c in indexed if c in cube.index_columns]
    return Layout(
        uuid=cube.uuid(name),
        name=name,
        partition_on=keys,
        cell=shared + dimensions,
        index_columns=indexed,
        not_null=tuple(dict.fromkeys([*keys, *dimensions, *asked])),
        metadata=checked_metadata(metadata, name) | flags(cube, name),
    )


def check_together(cube: Cube, schemas: Mapping[str, pa.Schema]) -> None:
    """Check that datasets make up a cube; an error names that of two datasets which comes later.

    Raises ``invalid-data`` for a payload column in two datasets and for types that differ.
    """
    shared = {*cube.dimension_columns, *cube.partition_columns}
    seen: dict[str, tuple[str, pa.DataType]] = {}
    for name, schema in schemas.items():
        for column in schema:
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
