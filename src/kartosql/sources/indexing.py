"""Skipping indexes of folders that are attached: made, brought up to date, and dropped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, UsageError
from kartosql.formats.folder import spark_values
from kartosql.formats.xskipper.kinds import IndexSpec
from kartosql.formats.xskipper.layout import IndexLayout, Secrets, layout_for
from kartosql.formats.xskipper.refreshing import Sources, drop, refresh
from kartosql.formats.xskipper.scans import DataFile
from kartosql.formats.xskipper.segment import checked_keys
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.memo import memoized
from kartosql.sources.folder_metadata import FolderMetadata, MetadataPlace
from kartosql.store import Store
from kartosql.store.listing import ListedFile, is_hidden, settle
from kartosql.store.urls import is_local_url
from kartosql.tables.table import FileTable
from kartosql.write.skipping import SkippingIndexWriter, members, not_indexed, report


@dataclass(frozen=True)
class FolderIndexes(SkippingIndexWriter[MetadataPlace]):
    """The skipping indexes of a folder as of now."""

    name: str
    table: FileTable
    files: Sequence[ListedFile]
    metadata: FolderMetadata
    sources: Sources

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
        done = refresh(store, folder, files, layout, self.sources, existing)
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
