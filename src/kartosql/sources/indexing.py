"""Skipping indexes of what is attached: made, brought up to date, and dropped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, UsageError
from kartosql.formats.folder import spark_values
from kartosql.formats.xskipper.kinds import IndexSpec
from kartosql.formats.xskipper.layout import IndexLayout, Secrets, layout_for
from kartosql.formats.xskipper.naming import parts_of, spelled
from kartosql.formats.xskipper.refreshing import Sources, drop, refresh
from kartosql.formats.xskipper.scans import DataFile, Place, Values, parquet_scan, renamed
from kartosql.formats.xskipper.segment import checked_keys
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.memo import memoized
from kartosql.sources.file_indexes import FileIndexes, identities, object_names
from kartosql.sources.folder_metadata import FolderMetadata, MetadataPlace
from kartosql.store import Store
from kartosql.store.listing import ListedFile, is_hidden, settle
from kartosql.store.urls import is_local_url
from kartosql.tables.table import FileTable
from kartosql.write.skipping import SkippingIndexWriter, members, not_indexed, report, sources_for

if TYPE_CHECKING:
    from kartosql.sources.folder_table import FolderTable


@dataclass(frozen=True)
class FolderIndexes(SkippingIndexWriter[MetadataPlace]):
    """The skipping indexes of a folder as of now."""

    name: str
    table: FileTable
    files: Sequence[ListedFile]
    metadata: FolderMetadata
    sources: Sources
    spark: Any = None

    @memoized
    def _columns(self) -> Mapping[str, pa.DataType]:
        return dict(members({c: t for c, t in self.table.types.items() if c not in self.table.partitions.keys}))

    def drop(self) -> dict[str, Any]:
        """Remove the metadata; of a folder that somebody named, nothing else."""
        place, existing = self._existing()
        if existing is None:
            raise not_indexed(self.name)
        store, folder = self._store(place)
        if not place.is_of_table:
            self._check_own(place, existing)
        self.metadata.forget()
        return {"files": drop(store, folder) if place.is_of_table else _drop_parts(store, folder, existing)}

    # -- where -------------------------------------------------------------------------------

    def _existing(self) -> tuple[MetadataPlace, MetadataStore | None]:
        if self.metadata.is_elsewhere:
            raise UsageError(
                f"The metadata of {self.name!r} would lie in another bucket than its files.",
                hint="Names of files in metadata do not tell the bucket; give a folder of the same one.",
            )
        places = self.metadata.places()
        for place in places:
            self._check_apart(place)
            store, folder = self._store(place)
            if store is None:
                continue
            found = MetadataStore.below(store, folder, self.metadata.keys)
            parts = [*found.segments, *found.locked, *found.newer, *(found.unreadable if place.is_of_table else ())]
            if parts or (not place.is_of_table and found.unreadable and len(places) == 1):
                return place, found
        return places[0], None

    def _store(self, place: MetadataPlace, *, create: bool = False) -> tuple[Any, str]:
        """Return the store around a folder of metadata, or None, and the name of the folder in it."""
        url = os.path.realpath(place.url) if is_local_url(place.url) else place.url
        around, _, name = url.rpartition("/")
        if not name or around.endswith(("/", ":")):
            raise UsageError(f"{place.url!r} is no place for metadata.", hint="Give a folder below the root.")
        try:
            return Store(around or "/", self.metadata.options, create=create), name
        except KartosqlError:
            if create:
                raise
            return None, name

    def _check_apart(self, place: MetadataPlace) -> None:
        """Refuse metadata that would be among the files of the table, or beside the one that it is."""
        folder, url = self.metadata.url.rstrip("/"), place.url
        if is_local_url(folder):
            folder, url = os.path.realpath(self.metadata.identifiers[0]), os.path.realpath(url)
        if self.metadata.is_file:
            folder = folder.rpartition("/")[0]
        rest = (url + "/").removeprefix(folder.rstrip("/") + "/")
        if rest != url + "/" and not any(map(is_hidden, filter(None, rest.split("/")))):
            raise UsageError(
                f"The metadata of {self.name!r} would lie among its files, in {place.url!r}.",
                hint="Give METADATA a folder outside of it, or one whose name begins with . or _",
            )

    def _check_own(self, place: MetadataPlace, existing: MetadataStore) -> None:
        """Refuse to change a folder, named by somebody, that holds anything else than metadata of the table."""
        others = [t for t in existing.table_identifiers if not self.metadata.is_about(t)]
        if others:
            raise UsageError(
                f"The metadata in {place.url!r} are about {others[0]!r}, not about {self.metadata.url!r}.",
                hint="Keep the metadata of each table in a folder of its own.",
            )
        if existing.locked:
            raise _locked(self.name)
        foreign = [*existing.unreadable, *existing.newer]
        if foreign:
            raise FormatError(
                f"{place.url}: {foreign[0].rpartition('/')[2]!r} is no metadata that can be read; nothing is changed.",
                code="invalid-metadata",
                hint="Give METADATA a folder that holds nothing else, and METADATA_KEYS where they are encrypted.",
            )

    # -- what --------------------------------------------------------------------------------

    def _make(self, place: MetadataPlace, existing: MetadataStore | None, specs: Sequence[IndexSpec]) -> dict[str, Any]:
        if existing is not None and not place.is_of_table:
            self._check_own(place, existing)
        identifiers = existing.table_identifiers if existing is not None else []
        own = [i for i in identifiers if self.metadata.is_about(i)]
        layout, columns = self._layout(own[0] if own else place.identifier, existing, specs)
        settle(self.files)
        store, folder = self._store(place, create=True)
        paths = self.metadata.paths(self.files, existing.objects if existing is not None else ())
        files = [
            DataFile(path, file.time, file.name, {k: values[row] for k, values in columns.items()}, file.size)
            for file, path, row in zip(self.files, paths, self.table.partitions.part_of_file, strict=True)
            if file.time is not None
        ]
        if self.spark is not None and layout.secrets is not None:
            message = f"The metadata of {self.name!r} are encrypted: executors would write them in plain."
            raise UsageError(message, hint="Leave out spark=.")
        sources = sources_for(self.spark, specs, store, folder, self.sources, partial(_within, self.table))
        done = refresh(store, folder, files, layout, sources, existing)
        # Files of which no time is known cannot be indexed.
        unknown = (f.name for f in self.files if f.time is None)
        return report(replace(done, unindexed=(*done.unindexed, *unknown)), len(specs))

    def _layout(
        self, identifier: str, existing: MetadataStore | None, specs: Sequence[IndexSpec]
    ) -> tuple[IndexLayout, dict[str, list[Any]]]:
        """Return the columns of the metadata, and the values of partition columns in folders as Spark has them."""
        given = self.table.partitions
        kinds = {k: spark_values(t, c) for k, t, c in zip(given.keys, given.types, given.columns, strict=True)}
        specs, secrets = _encrypted(self.name, specs, existing, checked_keys(self.metadata.keys))
        partitions = {k: t for k, (t, _) in kinds.items()}
        known = existing.indexes if existing is not None else ()
        layout = layout_for(identifier, specs, self._columns, partitions, secrets, existing=known)
        return replace(layout, reading=self.metadata.reading), {k: values for k, (_, values) in kinds.items()}


@dataclass(frozen=True)
class TableIndexes(SkippingIndexWriter[FileIndexes]):
    """The skipping indexes of a table beside its inverted ones: which files they know is told by names and stamps.

    ``sources`` read the files of a folder by their names in it; those of other tables never change.
    """

    name: str
    table: FolderTable
    place: FileIndexes
    sources: Sources | None = None
    spark: Any = None

    @memoized
    def _columns(self) -> Mapping[str, pa.DataType]:
        types = {c: t for c, t in self.table.types.items() if c not in self.table.partition_keys}
        return {c: t for c, t in members(types) if self.sources is not None or len(parts_of(c)) == 1}

    def _existing(self) -> tuple[FileIndexes, MetadataStore | None]:
        is_there = self.place.now().skipping is not None
        return self.place, self.place.skipping(None) if is_there else None

    def _make(self, place: FileIndexes, existing: MetadataStore | None, specs: Sequence[IndexSpec]) -> dict[str, Any]:
        store = place.store(create=True)
        layout = layout_for(place.key, specs, self._columns, existing=existing.indexes if existing is not None else ())
        known, roots = identities(self.table), {spec.path[0] for spec, _ in layout.indexes}
        layout = replace(layout, reading=json.dumps({name: known[name] for name in sorted(roots)}))
        place.settle()
        names = zip(self.table.labels, object_names(self.table), strict=True)
        files = [DataFile(name or label, 0 if name else -1, label) for label, name in names]
        stamped = [file for file in files if not file.modified_ms]
        here = self.sources or Sources(self._scan)
        places = self._places if self.sources is None else partial(_within, self.table)
        sources = sources_for(self.spark, specs, store, place.skipping_folder, here, places)
        done = refresh(store, place.skipping_folder, stamped, layout, sources, existing)
        place.note_skipping()
        unknown = tuple(f.path for f in files if f.modified_ms)
        return report(replace(done, unindexed=(*done.unindexed, *unknown)), len(specs))

    def _scan(self, keys: Sequence[str], columns: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, Values]]:
        """Yield columns of files, where they may have other names."""
        for store, files, there in self._places(keys, columns):
            for at, values in renamed(parquet_scan(store), there)([key for _, key in files], columns):
                yield files[at][0], values

    def _places(self, keys: Sequence[str], columns: Iterable[str]) -> Iterator[Place]:
        """Yield files and columns by the names that they have there; files with a constant for one are left out."""
        table, numbers = self.table, {label: number for number, label in enumerate(keys)}
        exact = {spelled([c]).lower(): c for c in table.types}
        wanted = {c: exact[c.lower()] for c in columns}
        some = [n for n, label in enumerate(table.labels) if label in numbers]
        for variant, store, files in self.place.places(table, some):
            if not any(c in variant.constants for c in wanted.values()):
                known = {c: variant.stored(name) for c, name in wanted.items()}
                there = {spelled([name]): c for c, name in known.items() if name is not None}
                yield store, [(numbers[table.labels[file]], key) for file, key in files], there

    def drop(self) -> dict[str, Any]:
        """Remove the metadata once nothing names them; raises ``not-indexed``."""
        place, existing = self._existing()
        if existing is None:
            raise not_indexed(self.name)
        place.note_skipping(is_there=False)
        return {"files": drop(place.store(), place.skipping_folder)}


def _within(table: Any, keys: Sequence[str], columns: Iterable[str]) -> list[Place]:
    """Return the files of a folder, which call columns as the folder does."""
    return [(table.keeper, list(enumerate(keys)), None)]


def _locked(name: str, label: str | None = None) -> UsageError:
    key = "their key" if label is None else f"the key {label!r}"
    return UsageError(
        f"The metadata of {name!r} are encrypted, and {key} is not given.",
        code="encrypted-metadata",
        hint="Hand over the keys with METADATA_KEYS when you attach.",
    )


def _drop_parts(store: Store, folder: str, existing: MetadataStore) -> int:
    parts = [s.source for s in existing.segments]
    names = {part.rpartition("/")[2] for part in parts}
    beside = {f"{folder}/.{name}.crc" for name in (*names, "_SUCCESS")} | {f"{folder}/_SUCCESS"}
    store.delete([*parts, *beside.intersection(store.list_below(folder))])
    return len(parts)


def _encrypted(
    name: str, specs: Sequence[IndexSpec], existing: MetadataStore | None, keys: Mapping[str, bytes]
) -> tuple[list[IndexSpec], Secrets | None]:
    """Return indexes with the labels of their keys: as metadata are encrypted, or all with the one key of new ones."""
    if existing is None:
        if not keys:
            return list(specs), None
        if len(keys) > 1:
            raise UsageError(
                f"{name!r} has several keys, and new metadata are encrypted with one.",
                hint="Give METADATA_KEYS the one key that encrypts all of it.",
            )
        (label,) = keys
        return [replace(s, key=label) for s in specs], Secrets(keys, label)
    found = next((s.schema.encryption for s in existing.segments if s.schema.encryption), None)
    if found is None:
        return list(specs), None
    footer = found.get("encryption.footer.key", "")
    labels = {}
    for group in found.get("encryption.column.keys", "").split(";"):
        label, _, columns = group.partition(":")
        labels.update({column.split(".")[0]: label for column in columns.split(",")})
    listed = [replace(s, key=s.key or labels.get(s.metadata_column)) for s in specs]
    known = {i.column for i in existing.indexes}
    listed = [s if s.key or s.metadata_column in known else replace(s, key=footer) for s in listed]
    missing = {footer, *(s.key for s in listed if s.key)} - keys.keys()
    if missing:
        raise _locked(name, min(missing))
    return listed, Secrets(keys, footer, found.get("encryption.plaintext.footer") == "true")
