"""Cubes: the specification, discovery from the members' metadata, and what must hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from kartosql.errors import FormatError, UsageError, quoted, text_of
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.formats.kartothek.metadata import DatasetDocument, merge_types
from kartosql.memo import memoized
from kartosql.text.types import type_names


def invalid_cube(problem: str, hint: str | None = None) -> UsageError:
    """Return the error about what cannot be, or become, a part of a cube."""
    return UsageError(problem, code="invalid-cube", hint=hint)


@dataclass(frozen=True, init=False)
class Cube:
    """The specification of a cube: datasets ``<uuid_prefix>++<dataset>`` that share dimensions.

    ``dimension_columns`` and ``partition_columns`` are ordered and not empty, ``index_columns``
    and ``suppress_index_on`` are sets; a single name may be given as text. Raises
    ``invalid-cube`` for names or roles that do not fit together.

    >>> kartosql.Cube("sales", ["shop", "day"], "country", index_columns="product").partition_columns
    ('country',)
    """

    uuid_prefix: str
    dimension_columns: tuple[str, ...]
    partition_columns: tuple[str, ...]
    seed_dataset: str
    index_columns: frozenset[str]
    suppress_index_on: frozenset[str]
    # Whether the specification was read from a store: its index columns may have been indexed later, and hold NULL.
    is_discovered: ClassVar[bool] = False

    def __init__(
        self,
        uuid_prefix: str,
        dimension_columns: str | Iterable[str],
        partition_columns: str | Iterable[str],
        seed_dataset: str = "seed",
        index_columns: str | Iterable[str] = (),
        suppress_index_on: str | Iterable[str] = (),
    ) -> None:
        object.__setattr__(self, "uuid_prefix", _dataset_id(uuid_prefix, "uuid_prefix"))
        object.__setattr__(self, "dimension_columns", _columns(dimension_columns, "dimension_columns", ordered=True))
        object.__setattr__(self, "partition_columns", _columns(partition_columns, "partition_columns", ordered=True))
        object.__setattr__(self, "seed_dataset", _dataset_id(seed_dataset, "seed_dataset"))
        object.__setattr__(self, "index_columns", frozenset(_columns(index_columns, "index_columns")))
        object.__setattr__(self, "suppress_index_on", frozenset(_columns(suppress_index_on, "suppress_index_on")))
        dimensions, partitions = set(self.dimension_columns), set(self.partition_columns)
        for what, clash in (
            ("both dimension and partition column", dimensions & partitions),
            ("both dimension and index column", dimensions & self.index_columns),
            ("both partition and index column", partitions & self.index_columns),
            ("in suppress_index_on, but no dimension column", self.suppress_index_on - dimensions),
        ):
            if clash:
                raise invalid_cube(f"Cube {self.uuid_prefix!r}: {sorted(clash)[0]!r} is {what}.")

    def _repr_html_(self) -> str:
        """Return the specification as a piece of HTML, for notebooks; names are escaped."""
        from kartosql.text import markup

        rows = [
            ("dimension columns", self.dimension_columns),
            ("partition columns", self.partition_columns),
            ("index columns", sorted(self.index_columns)),
            ("no index on", sorted(self.suppress_index_on)),
            ("seed dataset", (self.seed_dataset,)),
        ]
        cells = [(what, ", ".join(map(markup.code, names))) for what, names in rows if names]
        return markup.fragment(f"<p><b>{markup.text(self.uuid_prefix)}</b>, a cube</p>", markup.table(("", ""), cells))

    def uuid(self, dataset: str) -> str:
        """Return the uuid of the member ``dataset``."""
        return f"{self.uuid_prefix}{naming.CUBE_SEPARATOR}{text_of(dataset, 'The name of a dataset')}"


def _dataset_id(given: Any, what: str) -> str:
    value = _text(given, what)
    if not naming.is_dataset_uuid(value) or naming.CUBE_SEPARATOR in value:
        raise invalid_cube(
            f"{what}: {quoted(value)} is no legal name.", "Letters, digits, +, - and _ are allowed, but not '++'."
        )
    return value


def _text(given: Any, what: str) -> str:
    # What is no UTF-8 ends up with a character that no name may hold.
    value: object = given.decode("utf-8", "replace").replace("\ufffd", "\0") if isinstance(given, bytes) else given
    if not isinstance(value, str) or not value or "\0" in value:
        raise invalid_cube(f"{what}: {quoted(given)} is no name.")
    return value


def _columns(value: Any, what: str, *, ordered: bool = False) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)):
        value = (value,)
    if not isinstance(value, Iterable) or (ordered and isinstance(value, (set, frozenset, dict))):
        raise invalid_cube(f"{what}: expected {'an ordered list' if ordered else 'a list'} of names.")
    names = tuple(_text(v, what) for v in value)
    if len(set(names)) != len(names):
        raise invalid_cube(f"{what}: a name occurs twice in {quoted(names)}.")
    if ordered and not names:
        raise invalid_cube(f"{what}: at least one name is needed.")
    return names


def is_visible(column: str) -> bool:
    """Return whether a column of a member dataset is part of the cube."""
    return not column.startswith("__") and column != "KLEE_TS"


def is_seed(metadata: Mapping[str, Any]) -> bool:
    """Return whether a member's metadata carries the seed flag, in its current or legacy name."""
    return metadata.get("ktk_cube_is_seed", metadata.get("klee_is_seed", False)) is True


def has_cube_flags(metadata: Mapping[str, Any]) -> bool:
    """Return whether the dataset's last write was checked as a write to a cube."""
    return "ktk_cube_is_seed" in metadata or "klee_is_seed" in metadata


def cube_from_documents(prefix: str, documents: Mapping[str, DatasetDocument]) -> Cube | None:
    """Return the cube that the members' metadata describe, or None if no member is a seed.

    ``documents`` maps dataset ids to their documents. Raises ``invalid-cube`` for several
    seeds or flags of a wrong type.
    """
    seeds = [name for name, document in documents.items() if is_seed(document.metadata)]
    if not seeds:
        return None
    if len(seeds) > 1:
        raise FormatError(f"Cube {prefix!r} has several seed datasets: {', '.join(sorted(seeds))}", code="invalid-cube")
    metadata = documents[seeds[0]].metadata

    def flag(name: str, default: Any = None) -> Any:
        value = metadata.get(f"ktk_cube_{name}", metadata.get(f"klee_{name}", default))
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise FormatError(f"{documents[seeds[0]].key}: ktk_cube_{name} is no list of names", code="invalid-cube")
        return value

    dimensions, partitions = flag("dimension_columns"), flag("partition_columns")
    indexed = {column for document in documents.values() for column in document.indices}
    indexed -= {*dimensions, *partitions}
    try:
        cube = Cube(prefix, dimensions, partitions, seeds[0], indexed, flag("suppress_index_on", []))
        object.__setattr__(cube, "is_discovered", True)
        return cube
    except UsageError as e:
        raise FormatError(f"{documents[seeds[0]].key}: {e.message}", code="invalid-cube") from None


@dataclass(frozen=True, eq=False)
class CubeMember:
    """One dataset of a cube, with the columns by which it joins the seed."""

    name: str
    table: DatasetTable
    join_key: tuple[str, ...]
    shared: frozenset[str]  # dimension and partition columns of the cube

    @memoized
    def payload(self) -> tuple[str, ...]:
        """Visible columns that are neither dimension nor partition column of the cube."""
        return tuple(n for n in self.table.schema.names if n not in self.shared and is_visible(n))


@dataclass(frozen=True, eq=False)
class CubeState:
    """A cube in one snapshot: specification and members; checked."""

    cube: Cube
    members: Mapping[str, CubeMember]

    @property
    def seed(self) -> CubeMember:
        """The dataset that says which cells exist."""
        return self.members[self.cube.seed_dataset]

    @memoized
    def types(self) -> dict[str, pa.DataType]:
        """Type of each visible column of the cube, in alphabetical order."""
        types: dict[str, pa.DataType] = {}
        for name in sorted(self.members, key=lambda n: n != self.cube.seed_dataset):
            for column, type_ in self.members[name].table.types.items():
                if is_visible(column):
                    known = types.get(column)
                    types[column] = type_ if known is None else (merge_types(known, type_) or known)
        return dict(sorted(types.items()))

    @memoized
    def owner(self) -> dict[str, str]:
        """Name of the one dataset that holds each payload column."""
        return {column: m.name for m in self.members.values() for column in m.payload}


def cube_state(cube: Cube, datasets: Mapping[str, Dataset]) -> CubeState:
    """Check the member ``datasets`` (by id) against ``cube`` and return the state to plan with.

    Raises ``invalid-cube`` where the meaning of the cube as a table would not be defined.
    """
    if cube.seed_dataset not in datasets:
        raise FormatError(f"Cube {cube.uuid_prefix!r}: the seed {cube.seed_dataset!r} is missing", code="invalid-cube")
    shared = frozenset(cube.dimension_columns + cube.partition_columns)
    members = {}
    for name in sorted(datasets):
        tables = datasets[name].tables
        if tuple(tables) != (naming.DEFAULT_TABLE,):
            raise _broken(cube, name, f"it has the tables {sorted(tables)}, expected one called 'table'")
        table = tables[naming.DEFAULT_TABLE]
        columns = table.schema.names
        for column in cube.partition_columns:
            if column in columns and column not in table.partition_keys:
                raise _broken(cube, name, f"{column!r} is a partition column of the cube, but no partition key here")
        dimensions = tuple(c for c in cube.dimension_columns if c in columns)
        if name == cube.seed_dataset:
            lost = [c for c in cube.dimension_columns + cube.partition_columns if c not in columns]
            if lost:
                raise _broken(cube, name, f"the seed lacks the column {lost[0]!r}")
        elif not dimensions:
            raise _broken(cube, name, "it has no dimension column")
        join_key = dimensions + tuple(c for c in cube.partition_columns if c in columns)
        members[name] = CubeMember(name, table, join_key, shared)
    _check_columns(cube, members)
    return CubeState(cube, members)


def _check_columns(cube: Cube, members: Mapping[str, CubeMember]) -> None:
    owner: dict[str, str] = {}
    types: dict[str, tuple[str, pa.DataType]] = {}
    for name, member in members.items():
        for column in member.payload:
            if column in owner:
                raise _broken(cube, name, f"the payload column {column!r} is also in {owner[column]!r}")
            owner[column] = name
        for column in member.join_key:
            type_ = member.table.types[column]
            other, known = types.setdefault(column, (name, type_))
            merged = merge_types(known, type_)
            if merged is None:
                given, wanted = type_names(type_, known)
                raise _broken(cube, name, f"{column!r} is {given}, but {wanted} in {other!r}")
            types[column] = (other, merged)


def _broken(cube: Cube, dataset: str, reason: str) -> FormatError:
    return FormatError(f"Cube {cube.uuid_prefix!r}, dataset {dataset!r}: {reason}", code="invalid-cube")
