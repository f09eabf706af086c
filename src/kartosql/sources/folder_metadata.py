"""Existing data-skipping metadata of a folder, as Xskipper keeps it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kartosql.errors import KartosqlError
from kartosql.formats.xskipper.naming import OWN, folder_name, is_part, table_identifier
from kartosql.formats.xskipper.store import MetadataSkipping, MetadataStore, Warned
from kartosql.predicate.tree import (
    UNKNOWN,
    Comparison,
    Contains,
    ContainsFolded,
    Extracted,
    In,
    Leaf,
    Predicate,
    mapped,
)
from kartosql.sources.attachments import AttachLocation, AttachOptions
from kartosql.store import Store
from kartosql.store.listing import ListedFile, list_files
from kartosql.store.urls import is_local_url, path_of

BASE, EXPLICIT = "EXPLICIT_BASE_PATH_LOCATION", "EXPLICIT_LOCATION"
# Texts that other readers of CSV may take for something else, by their escapes, quotes and spaces.
_QUOTING = re.compile(r"""["']|\\[^a-zA-Z]""")  # in patterns
_PLAIN_TEXT = re.compile(r"[^\s\"'\\](?:[^\"'\\\r\n]*[^\s\"'\\])?")


@dataclass(frozen=True)
class MetadataPlace:
    """A folder of metadata and the identifier of their table; ``is_of_table`` says that its name is made of that."""

    url: str
    identifier: str
    is_of_table: bool


class FolderMetadata:
    """Where metadata of a folder lie, and what was read of them; all that is wrong with them only warns.

    ``url`` is that of the folder, or of the one file that is the table. ``reading`` says how the texts
    of its files are read.
    """

    def __init__(
        self, url: str, location: str, type_: str | None, keys: Any, options: Mapping[str, Any] | None
    ) -> None:
        self.url = url
        self.place = location
        self._type = type_
        self.keys = keys
        self.options = options
        self.is_file = False
        self.reading: str | None = None
        self._state: object = None
        self._store: MetadataStore | None = None
        self.tell = Warned()

    @property
    def identifiers(self) -> list[str]:
        """The paths under which files of the folder may be known."""
        if not is_local_url(self.url):
            return [table_identifier(self.url)]
        path = path_of(self.url)
        return list(dict.fromkeys([path, os.path.realpath(path)]))

    def paths(self, files: Sequence[ListedFile], objects: Sequence[str]) -> list[str]:
        """Return the paths of files as indexed ``objects`` name them."""
        if self.is_file:
            return [max(self.identifiers, key=lambda i: sum(o.startswith(f"{i}#") for o in objects))] * len(files)
        # The path under which most of the indexed files are known; others are just not found.
        begins = [i.rstrip("/") for i in self.identifiers]
        begin = max(begins, key=lambda b: sum(o.startswith(f"{b}/") for o in objects))
        return [f"{begin}/{f.name}" for f in files]

    def now(self) -> MetadataStore | None:
        """Return the metadata as of now, the same object as long as they do not change."""
        try:
            store = self._folder()
            if store is None and self._store is not None:
                store = self._folder()  # a folder that somebody refreshes may look empty while it is listed
            state = (store.url, *_parts(store)) if store is not None else None
            if state != self._state or (self._store is not None and self._store.has_gaps):
                self._store = self._opened(store) if store is not None else None
                self._state = state
        except Exception as e:  # noqa: BLE001 - whatever strangers' metadata make of the reader
            self._state = self._store = None
            self.tell(f"{self.place}: {e.message if isinstance(e, KartosqlError) else e}")
            return None
        if store is None and not self.is_elsewhere:
            self.tell(self._missing)
        return self._store

    def _folder(self) -> Store | None:
        """Return the folder that holds the metadata of this table."""
        if self.is_elsewhere:
            self.tell(f"{self.place}: the metadata lie in another bucket than the files, and are not used.")
            return None
        stores = (self._store_at(place.url) for place in self.places())
        return next((store for store in stores if store is not None), None)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the metadata lie in another bucket: names of files in them do not include it, and look the same."""
        return _bucket(self.place) != _bucket(self.url)

    def places(self) -> list[MetadataPlace]:
        """Return where metadata may lie, those that are looked at first in front."""
        location = path_of(self.place) if is_local_url(self.place) else self.place.rstrip("/")
        found = []
        if self._type != EXPLICIT:
            found = [MetadataPlace(f"{location}/{folder_name(i)}", i, True) for i in self.identifiers]
        if self._type != BASE:
            found.append(MetadataPlace(location, self.identifiers[0], False))
        return found

    @property
    def _missing(self) -> str:
        return f"{self.place}: there are no metadata of {self.url}."

    def forget(self) -> None:
        """Take note that the metadata were dropped, so that their absence is not warned of."""
        self.tell.warned.add(self._missing)

    def _store_at(self, url: str) -> Store | None:
        try:
            store = Store(url, self.options)
        except KartosqlError:
            return None
        return store if any(not e.is_dir and is_part(e.name) for e in store.list_root()) else None

    def _opened(self, store: Store) -> MetadataStore:
        found = MetadataStore.open(store, self.keys)
        for segment in list(found.segments):
            if not all(map(self.is_about, segment.schema.table_identifiers)):
                found.segments.remove(segment)
                named = ", ".join(segment.schema.table_identifiers)
                self.tell(f"{segment.source}: the metadata are about {named}, not {self.url}, and are not used.")
            elif segment.schema.reading not in (None, self.reading):
                found.segments.remove(segment)
                self.tell(
                    f"{segment.source}: the files were read with other options of ATTACH, or by another version of "
                    "DuckDB, and the metadata are not used. REFRESH SKIPPING INDEX makes them anew."
                )
        self.tell(*found.problems)
        return found

    def is_about(self, identifier: str) -> bool:
        """Return whether metadata of a table may be about this folder; names of catalogs are not known here."""
        known = {*self.identifiers, *(i.lstrip("/") for i in self.identifiers)}
        return identifier in known or "/" not in identifier


class FolderSkipping(MetadataSkipping):
    """What the metadata say about the files of one listing."""

    def __init__(
        self, metadata: FolderMetadata, store: MetadataStore, files: Sequence[ListedFile], *, is_text: bool
    ) -> None:
        self._of_folder = metadata
        self._tell = metadata.tell
        self._is_text = is_text
        self._listed = files
        self._use(store)

    def _use(self, store: MetadataStore) -> None:
        self._metadata, self._shown = store, repr(store)
        # What we read ourselves, we read in the same way again.
        self._is_certain = not self._is_text or all(s.schema.reading is not None for s in store.segments)
        paths = self._of_folder.paths(self._listed, store.objects)
        self._files = [
            (path, -1 if f.time is None else f.time, f.size) for path, f in zip(paths, self._listed, strict=True)
        ]

    def _look_again(self) -> bool:
        newer = self._of_folder.now()
        if newer is not None:
            self._use(newer)
        return newer is not None

    def _certain(self, condition: Predicate) -> Predicate | None:
        known = condition if self._is_certain else mapped(condition, _certain_in_text)
        return None if known == UNKNOWN else known


def _certain_in_text(leaf: Leaf) -> Predicate:
    """Return what of a predicate holds whoever read the texts of a file: nothing about texts that are not plain."""
    if isinstance(leaf, Extracted):
        is_plain = all(map(_PLAIN_TEXT.fullmatch, leaf.values)) and not _QUOTING.search(leaf.pattern)
        return leaf if is_plain else UNKNOWN
    if isinstance(leaf, ContainsFolded):
        return UNKNOWN
    if isinstance(leaf, Contains):  # within a text, a character that is left out joins what stands around it
        return leaf if leaf.begins and _PLAIN_TEXT.fullmatch(leaf.text) else UNKNOWN
    if isinstance(leaf, Comparison | In):
        values = (leaf.value,) if isinstance(leaf, Comparison) else leaf.values
        texts = [str(v.value) for v in values or () if v.kind in ("string", "text")]
        return leaf if values is not None and all(map(_PLAIN_TEXT.fullmatch, texts)) else UNKNOWN
    return leaf


def _parts(store: Store) -> tuple[list[ListedFile], set[str]]:
    """Return the files of metadata as they stand now; those of our own kinds are never written again."""
    hidden: set[str] = set()
    return list_files(store, left_out=hidden), {name for name in hidden if name.startswith(OWN)}


def _bucket(url: str) -> str:
    return "" if is_local_url(url) else urlsplit(url).netloc


def metadata_of(place: AttachLocation, options: AttachOptions) -> FolderMetadata | None:
    """Return the metadata that the options of ATTACH name; raises ``invalid-option`` and ``not-allowed``."""
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
    found = place.options_for(location)
    return FolderMetadata(place.url, location, None if type_ is None else type_.upper(), keys, found)
