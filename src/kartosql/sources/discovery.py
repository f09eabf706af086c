"""What needs no ATTACH: files and folders that lie in a store beside its datasets, and what a config file names."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.naming import METADATA_JSON, METADATA_MSGPACK
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.sources.attachments import ICEBERG_METADATA, MARKS, Attachments
from kartosql.store import Store
from kartosql.store.listing import is_hidden
from kartosql.tables.names import Attached, Name

MAX_DEPTH = 6  # folders below each other that are looked into for a first file
MAX_SINGLE_FILES = 100  # of a store; where more lie side by side, all of them are one table
_DATA = re.compile(r"(?P<name>.+?)\.(?:(?P<parquet>parquet|parq)|(?P<csv>[ct]sv(?:\.(?:gz|zst))?))", re.IGNORECASE)
_PART = re.compile(r"part-\d|_SUCCESS$|[0-9a-f]{8}-[0-9a-f-]{27}")  # names that writers of many files give them
_KEY = re.compile(r"[^=]+=")
# Files of a dataset, which may stay when it is dropped.
_LEFT = re.compile(r"[^/]+/table/(?:.*/)?[0-9a-f]{32}\.parquet")


_KINDS = {"parquet": "parquet files", "csv": "csv files", "odf": "ODF dataset"}


class Offer(NamedTuple):
    """The arguments of ATTACH for something that can be a table."""

    name: str
    type: str
    url: str
    options: Mapping[str, Any] = MappingProxyType({})


class Discovery:
    """Finds such tables for one statement, as far as the connection may attach them; those ``named`` come first."""

    def __init__(self, snapshot: Snapshot, attachments: Attachments, named: Iterable[Offer]) -> None:
        self._snapshot = snapshot
        self._attachments = attachments
        self._named = named

    def find(self, name: str) -> tuple[str, Attached] | None:
        """Return what has a name, by case or not, with its own name; raises what is wrong with it."""
        for offer in self._offers(name):
            known = self._attachments.discovered.get(offer.name)
            if known is None or (known.type, known.url, known.options) != offer[1:]:
                known = self._attachments.open(offer.url, offer.name, offer.type, offer.options)
                self._attachments.discovered[offer.name] = known
            return offer.name, known.attachment.now()[offer.name]
        return None

    def tables(self) -> list[tuple[Name, str]]:
        """Return names and kinds of all of them, none of which is opened."""
        return [((offer.name,), _KINDS.get(offer.type, f"{offer.type} table")) for offer in self._offers()]

    def _offers(self, only: str | None = None) -> Iterator[Offer]:
        named = [o for o in self._named if only is None or only.lower() == o.name.lower()]
        taken = {o.name for o in named}
        found = (o for o in offers(self._snapshot.store, self._snapshot.keys, only) if o.name not in taken)
        return (o for o in itertools.chain(named, found) if self._attachments.access.allows(o.url))


def offers(store: Store, datasets: Collection[str], only: str | None = None) -> Iterator[Offer]:
    """Yield what is no dataset of a store, or ``only`` what has a name, by case or not.

    Folders of ``datasets`` are theirs. The store as a whole is one table if it is that of a table format, or one folder
    of many files.
    """
    entries = {entry.name: entry.is_dir for entry in store.list_root()}
    whole = _type(store, "", entries, MAX_DEPTH) if _is_one_table(entries) else _format(store, "", entries)
    if whole is not None:
        name = os.path.basename(os.path.realpath(store.root) if store.is_local else store.root.rstrip("/"))
        if only is None or only.lower() == _named(name).lower():
            yield Offer(_named(name), whole, store.address[0])
        return
    depth = 0 if _holds_datasets(entries) else MAX_DEPTH
    seen: set[str] = set()  # of a name that occurs twice the first one counts
    for entry, is_dir in entries.items():
        match = None if is_dir else _DATA.fullmatch(entry)
        name = _named(entry if match is None else match["name"])
        if is_hidden(entry) or name in seen or entry in datasets:
            continue
        if only is not None and only.lower() != name.lower():
            continue
        if store.is_local and os.path.islink(store.path(entry)):
            continue  # it may lead anywhere
        type_ = (
            (match and match.lastgroup) if not is_dir else _type(store, f"{entry}/", _listed(store, f"{entry}/"), depth)
        )
        if type_:
            seen.add(name)
            yield Offer(name, type_, f"{store.address[0].rstrip('/')}/{entry}")


def _is_one_table(entries: dict[str, bool]) -> bool:
    if _holds_datasets(entries):
        return False
    files = [name for name, is_dir in entries.items() if not is_dir]
    is_partitioned = any(is_dir and _KEY.match(name) and not is_hidden(name) for name, is_dir in entries.items())
    return is_partitioned or any(map(_PART.match, files)) or len(list(filter(_DATA.match, files))) > MAX_SINGLE_FILES


def _holds_datasets(entries: dict[str, bool]) -> bool:
    return ".kartosql" in entries or any(name.endswith((METADATA_JSON, METADATA_MSGPACK)) for name in entries)


def _named(name: str) -> str:
    return name.replace(".", "_")


def _type(store: Store, folder: str, entries: dict[str, bool], depth: int, above: str = "") -> str | None:
    """Return the type of what lies in a folder, by the marks of a format or the first file; None for neither.

    Folders in it are looked into up to a ``depth``, those that partition it in any case.
    """
    if found := _format(store, folder, entries):
        return found if found in ("delta", "iceberg", "odf") else None
    if above and "_common_metadata" in entries:
        return None
    folders = []
    for name, is_dir in entries.items():
        if is_hidden(name):
            continue
        if is_dir:
            folders.append(name)
        elif match := _DATA.fullmatch(name):
            return None if _LEFT.fullmatch(folder + name) else match.lastgroup
    if folders and (depth > 0 or _KEY.match(folders[0])) and depth > -MAX_DEPTH:
        below = f"{folder}{folders[0]}/"
        return _type(store, below, _listed(store, below), depth - 1, folder)
    return None


def _format(store: Store, folder: str, entries: dict[str, bool]) -> str | None:
    """Return the table format that a folder belongs to."""
    for kind, mark in MARKS.items():
        first, _, rest = mark.partition("/")
        if first in entries and (not rest or rest in _listed(store, f"{folder}{first}/")):
            return kind
    if entries.get("metadata") and any(
        map(re.compile(ICEBERG_METADATA).fullmatch, _listed(store, f"{folder}metadata/"))
    ):
        return "iceberg"
    return None


def _listed(store: Store, folder: str) -> dict[str, bool]:
    """Return names directly below a folder, and whether they are folders; none of what cannot be listed."""
    try:
        return {entry.name: entry.is_dir for entry in store.list_root(folder)}
    except KartosqlError:
        return {}
