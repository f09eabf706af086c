"""What is attached to a connection, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kartosql.attach.folder import csv_folder, parquet_folder
from kartosql.attach.odf import OdfDataset
from kartosql.attach.options import Options
from kartosql.attach.stores import AttachedStore
from kartosql.engines.duckdb import Runtime
from kartosql.errors import SqlError, UsageError
from kartosql.plan.tables import Attached, Name
from kartosql.store import Mounts, Store


class Attachment(Protocol):
    """One thing that was attached."""

    def now(self) -> Mapping[str, Attached]:
        """Return the names that it gives, for one statement."""

    def tables(self) -> Sequence[tuple[Name, str]]:
        """Return names and kinds of its tables, for listings."""

    def close(self) -> None:
        """Forget its files."""


@dataclass(frozen=True)
class Entry:
    """An attachment with what was asked for."""

    name: str
    type: str
    url: str
    options: Mapping[str, Any]
    attachment: Attachment


@dataclass(frozen=True)
class Place:
    """What an attachment is made of: its name, the URL, and how files of it are reached."""

    name: str
    url: str
    storage_options: Mapping[str, Any] | None
    mounts: Mounts
    runtime: Runtime


_TYPES: Mapping[str, Callable[[Place, Options], Attachment]] = {
    "parquet": parquet_folder,
    "csv": csv_folder,
    "odf": OdfDataset,
    "kartothek": AttachedStore,
}


class Attachments:
    """Attaches and detaches, and tells statements what is there."""

    def __init__(self, mounts: Mounts, runtime: Runtime, storage_options: Mapping[str, Any] | None) -> None:
        self._mounts = mounts
        self._runtime = runtime
        self._storage_options = storage_options
        self.entries: dict[str, Entry] = {}

    def now(self) -> dict[str, Attached]:
        """Return what is attached by name, for one statement."""
        return {name: found for e in list(self.entries.values()) for name, found in e.attachment.now().items()}

    def tables(self) -> list[tuple[Name, str]]:
        """Return names and kinds of all tables that are attached."""
        return [found for e in list(self.entries.values()) for found in e.attachment.tables()]

    def attach(
        self,
        url: str | os.PathLike[str],
        name: str,
        type_: str,
        options: Mapping[str, Any],
        *,
        is_taken: Callable[[str], bool],
        storage_options: Mapping[str, Any] | None = None,
        replace: bool = False,
        if_not_exists: bool = False,
    ) -> bool:
        """Attach what is at ``url`` and return whether that was done.

        Raises ``name-taken``, ``unknown-type``, ``invalid-option`` and what is wrong with it.
        """
        url = os.fspath(url)
        if not isinstance(name, str) or not name or "\0" in name or "." in name:
            raise UsageError(f"{name!r} is no name for what is attached.", hint="A name has one part and no dot.")
        known = next((n for n in self.entries if n.lower() == name.lower()), None)
        if known is not None and if_not_exists:
            return False
        if not (known is not None and replace) and is_taken(name):
            raise UsageError(
                f"There is a table {name!r} already.",
                code="name-taken",
                hint="Choose another name, or DETACH what has it; ATTACH OR REPLACE replaces what is attached.",
            )
        make = _TYPES.get(str(type_).lower())
        if make is None:
            raise UsageError(
                f"There is no type {str(type_)!r} to attach.", code="unknown-type", hint=f"Types: {', '.join(_TYPES)}."
            )
        given = Options(name, str(type_).lower(), options)
        options_of_store = self._storage_options_for(url) if storage_options is None else storage_options
        attachment = make(Place(name, url, options_of_store, self._mounts, self._runtime), given)
        given.check_all_taken()
        if known is not None:
            self.detach(known)
        self.entries[name] = Entry(name, str(type_).lower(), url, dict(options), attachment)
        if not self._mounts.is_local:
            self._runtime.forget()  # what was made before cannot reach remote files
        return True

    def _storage_options_for(self, url: str) -> Mapping[str, Any] | None:
        """Return the options of the connection's store where the other one is of the same kind."""
        same = "://" in url and url.partition("://")[0] == self._mounts.main.url.partition("://")[0]
        return self._storage_options if same else None

    def find(self, name: Name) -> Attachment | None:
        """Return the attachment to which a table belongs."""
        for entry in list(self.entries.values()):
            if any(n.lower() == name[0].lower() for n in entry.attachment.now()):
                return entry.attachment
        return None

    def detach(self, name: str, *, if_exists: bool = False) -> bool:
        """Detach what has a name and return whether there was something; raises ``not-attached``."""
        known = next((n for n in (name, *self.entries) if n in self.entries and n.lower() == name.lower()), None)
        if known is None:
            if if_exists:
                return False
            listed = f"Attached: {', '.join(sorted(self.entries))}." if self.entries else "Nothing is attached."
            raise SqlError(f"Nothing is attached as {name!r}.", code="not-attached", hint=listed)
        self.entries.pop(known).attachment.close()
        return True

    def close(self) -> None:
        """Detach everything."""
        for name in list(self.entries):
            self.detach(name)


def open_store(place: Place) -> Store:
    """Return the store at the URL of a place."""
    return Store(place.url, place.storage_options)
