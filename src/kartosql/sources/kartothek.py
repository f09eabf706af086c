"""Another store of cubes and datasets, with a name before those of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kartosql.errors import SqlError
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.snapshot import MetadataCache, Snapshot
from kartosql.formats.partition_table import PartitionTable
from kartosql.memo import memoized
from kartosql.sources.attachments import AttachLocation, Attachment, AttachOptions
from kartosql.store import Store
from kartosql.tables.names import Attached, Name, Tables, listed
from kartosql.tables.table import Part, Table


class AttachedStore(Attachment):
    """A store that statements may read as ``name.table`` and ``name.cube.dataset``."""

    def __init__(self, location: AttachLocation, options: AttachOptions) -> None:
        self._location = location
        self._store = Store(location.url, location.storage_options)
        self._metadata = MetadataCache()
        self._prefix = location.mounts.mount(self._store)

    def now(self) -> Mapping[str, Attached]:
        """Return the store as one statement sees it."""
        name = self._location.name
        return {name: _StoreView(name, self._prefix, Snapshot(self._store, self._metadata))}

    def tables(self) -> Sequence[tuple[Name, str]]:
        """Return names and kinds of the cubes and datasets of the store."""
        return [((self._location.name, *name), kind) for name, kind in listed(Snapshot(self._store, self._metadata))]


class _StoreView:
    """An attached store in one statement."""

    def __init__(self, name: str, prefix: str, snapshot: Snapshot) -> None:
        self._name = name
        self._prefix = prefix
        self._tables = Tables(snapshot, {})

    def find(self, rest: Name, as_of: str | int | None = None) -> Table | None:
        if not rest:
            known = self._tables.names()
            raise SqlError(
                f"{self._name!r} is an attached store, no table.",
                code="unknown-table",
                hint=f"Write {self._name}.{known[0]}, for instance." if known else "The store holds no datasets.",
            )
        return moved(self._tables.find(rest, as_of=as_of), self._name, self._prefix, self._tables.snapshot.store)


@dataclass(frozen=True, eq=False)
class MovedTable(DatasetTable):
    """A table of an attached store, whose keys begin with where that is mounted."""

    origin: DatasetTable
    keeper: Store

    @memoized
    def partitions(self) -> PartitionTable:
        """The partition values of all files."""
        return self.origin.partitions

    @property
    def skipping(self) -> Any:
        """Data-skipping metadata of the files."""
        return self.origin.skipping

    def display_name(self, file: int) -> str:
        """Return the key of a file in its own store."""
        return self.origin.files[file]


def moved(source: Table, name: str, prefix: str, store: Store) -> Table:
    """Return a table of another store, the same one for the same table."""
    kept: dict[str, Any] = vars(source)
    found = kept.get(f"_moved_{prefix}_{name}")
    if not isinstance(found, Table):
        parts = tuple(replace(p, table=_moved(p, prefix, store)) for p in source.parts)
        found = replace(source, name=f"{name}.{source.name}", parts=parts, is_attached=True)
        kept[f"_moved_{prefix}_{name}"] = found
    return found


def _moved(part: Part, prefix: str, store: Store) -> MovedTable:
    table = part.table
    assert isinstance(table, DatasetTable)
    indices = {
        column: index if index.key is None else replace(index, key=prefix + index.key)
        for column, index in table.indices.items()
    }
    files = tuple(prefix + key for key in table.files)
    same = table.table, table.schema, table.partition_keys, table.labels
    return MovedTable(f"{prefix}{table.uuid}", *same, files, indices, table.metadata, origin=table, keeper=store)
