"""Existing data-skipping metadata of a folder, as Xskipper keeps it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from kartosql.attach.options import Options
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.xskipper import Index, MetadataStore, Skipped
from kartosql.formats.xskipper import conditions as xs
from kartosql.formats.xskipper.clauses import INDEX_KINDS, Session
from kartosql.formats.xskipper.domain import ColumnType
from kartosql.formats.xskipper.naming import folder_name, table_identifier
from kartosql.store import Store
from kartosql.store.listing import ListedFile, list_files

BASE, EXPLICIT = "EXPLICIT_BASE_PATH_LOCATION", "EXPLICIT_LOCATION"
# Texts that other readers of CSV may take for something else, by their escapes, quotes and spaces.
_PLAIN_TEXT = re.compile(r"[^\s\"'\\](?:[^\"'\\\r\n]*[^\s\"'\\])?")


class FolderMetadata:
    """Where metadata of a folder lie, and what was read of them; all that is wrong with them only warns."""

    def __init__(
        self, url: str, location: str, type_: str | None, keys: Any, options: Mapping[str, Any] | None
    ) -> None:
        self._url = url
        self._location = location
        self._type = type_
        self._keys = keys
        self._options = options
        self._state: object = None
        self._store: MetadataStore | None = None
        self._told: set[str] = set()

    @property
    def identifiers(self) -> list[str]:
        """The paths under which files of the folder may be known."""
        if "://" in self._url and not self._url.startswith("file://"):
            return [table_identifier(self._url)]
        path = os.path.abspath(os.path.expanduser(self._url.removeprefix("file://")))
        return list(dict.fromkeys([path, os.path.realpath(path)]))

    def now(self) -> MetadataStore | None:
        """Return the metadata as they stand now, the same object as long as they do not change."""
        try:
            store = self._folder()
            state = (store.url, list_files(store)) if store is not None else None
            if state != self._state:
                self._store = self._opened(store) if store is not None else None
                self._state = state
        except Exception as e:  # noqa: BLE001 - whatever strangers' metadata make of the reader
            self._state = self._store = None
            self.tell(f"{self._location}: {e.message if isinstance(e, KartosqlError) else e}")
        return self._store

    def _folder(self) -> Store | None:
        """Return the folder that holds the metadata of this table."""
        if _bucket(self._location) != _bucket(self._url):
            # Names of files in them do not tell the bucket, so those of another one look the same.
            self.tell(f"{self._location}: the metadata lie in another bucket than the files, and are not used.")
            return None
        location = self._location.rstrip("/")
        if self._type != EXPLICIT:
            for name in map(folder_name, self.identifiers):
                store = self._store_at(f"{location}/{name}")
                if store is not None:
                    return store
        store = self._store_at(location) if self._type != BASE else None
        if store is None:
            self.tell(f"{self._location}: there are no metadata of {self._url}.")
        return store

    def _store_at(self, url: str) -> Store | None:
        try:
            store = Store(url, self._options)
        except KartosqlError:
            return None
        return store if any(not e.is_dir and e.name[:1] not in "._" for e in store.list_root()) else None

    def _opened(self, store: Store) -> MetadataStore:
        found = MetadataStore.open(store, self._keys)
        known = {*self.identifiers, *(i.lstrip("/") for i in self.identifiers)}
        for segment in list(found.segments):
            if not all(i in known or "/" not in i for i in segment.schema.table_identifiers):
                found.segments.remove(segment)
                named = ", ".join(segment.schema.table_identifiers)
                self.tell(f"{segment.source}: the metadata are about {named}, not {self._url}, and are not used.")
        self.tell(*found.problems)
        return found

    def tell(self, *problems: str) -> None:
        """Warn of what is odd, once each."""
        for problem in problems:
            if problem not in self._told:
                self._told.add(problem)
                warnings.warn(f"Data skipping: {problem}", KartosqlWarning, stacklevel=2)


class FolderSkipping:
    """What the metadata tell about the files of one listing."""

    def __init__(
        self, metadata: FolderMetadata, store: MetadataStore, files: Sequence[ListedFile], *, is_text: bool
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._is_text = is_text
        begins = metadata.identifiers
        objects = store.objects
        # The path under which most of the indexed files are known; others are just not found.
        begin = max(begins, key=lambda b: sum(o.startswith(f"{b}/") for o in objects))
        self._files = [(f"{begin}/{f.name}", -1 if f.time is None else f.time) for f in files]

    def indexed(self) -> tuple[list[Index], int]:
        """Return the indexes, and how many files they know."""
        return self._store.indexes, self._store.known(self._files)

    def skipped(self, condition: xs.Condition, types: Mapping[xs.Path, ColumnType], zone: str) -> list[Skipped]:
        """Return the files that hold no row for which a condition is TRUE, by the kind of index that proves it."""
        if self._is_text:
            condition = _certain_in_text(condition)
        if isinstance(condition, xs.Unknown):
            return []
        try:
            session = Session(zone, types, INDEX_KINDS)
            found = self._store.select_files([condition], self._files, session)
        except Exception as e:  # noqa: BLE001 - whatever strangers' metadata make of the reader
            self._metadata.tell(f"{self._store!r}: {e.message if isinstance(e, KartosqlError) else e}")
            return []
        self._metadata.tell(*self._store.problems)
        return found.skipped


def _certain_in_text(condition: xs.Condition) -> xs.Condition:
    """Return what of a condition holds whoever read the texts of a file: nothing about texts that are not plain."""
    if isinstance(condition, xs.Group):
        return xs.group(condition.op, [_certain_in_text(i) for i in condition.items])
    if isinstance(condition, xs.StartsWith):
        return condition if _PLAIN_TEXT.fullmatch(condition.prefix) else xs.UNKNOWN
    if isinstance(condition, xs.Compare | xs.OneOf):
        values = (condition.value,) if isinstance(condition, xs.Compare) else condition.values
        texts = [str(v.value) for v in values if v.kind in ("string", "text")]
        if not all(map(_PLAIN_TEXT.fullmatch, texts)):
            return xs.UNKNOWN
    return condition


def _bucket(url: str) -> str:
    return urlsplit(url).netloc if "://" in url and not url.startswith("file://") else ""


def metadata_of(url: str, options: Options, storage_options: Mapping[str, Any] | None) -> FolderMetadata | None:
    """Return the metadata that the options of ATTACH name; raises ``invalid-option``."""
    location, type_ = options.text("metadata"), options.text("metadata_type")
    keys = options.take("metadata_keys")
    if keys is not None and not isinstance(keys, Mapping):
        raise options.invalid("metadata_keys", keys, "a map of labels to keys in base64")
    if type_ is not None and type_.upper() not in (BASE, EXPLICIT):
        raise options.invalid("metadata_type", type_, f"{BASE} or {EXPLICIT}; catalogs of Hive are not read")
    if location is None:
        if type_ is not None or keys is not None:
            raise options.invalid("metadata", None, "the folder of the metadata")
        return None
    return FolderMetadata(url, location, None if type_ is None else type_.upper(), keys, storage_options)
