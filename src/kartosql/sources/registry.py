"""What is attached to a connection, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kartosql.engines.duckdb.runtime import Runtime
from kartosql.errors import SqlError, UsageError, quoted, text_of
from kartosql.sources.csv import csv_folder
from kartosql.sources.folder import parquet_folder
from kartosql.sources.kartothek import AttachedStore
from kartosql.sources.odf import OdfDataset
from kartosql.sources.source import Access, AttachLocation, Attachment, AttachOptions, Source
from kartosql.store import Mounts
from kartosql.tables.names import Attached, Name


@dataclass(frozen=True)
class AttachedEntry:
    """An attachment with what was asked for."""

    name: str
    type: str
    url: str = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    attachment: Attachment


# By the TYPE of ATTACH.
SOURCES: Mapping[str, Source] = {
    "parquet": parquet_folder,
    "csv": csv_folder,
    "odf": OdfDataset,
    "kartothek": AttachedStore,
}


class Attachments:
    """Attaches and detaches, and tells statements what is there."""

    def __init__(self, mounts: Mounts, runtime: Runtime, access: Access) -> None:
        self._mounts = mounts
        self._runtime = runtime
        self._access = access
        self.entries: dict[str, AttachedEntry] = {}

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

        Raises ``not-allowed``, ``name-taken``, ``unknown-type``, ``invalid-option`` and what is wrong with it.
        """
        if isinstance(url, os.PathLike):
            url = os.fspath(url)
        if not isinstance(url, str):
            raise UsageError(f"{quoted(url)} is no path or URL.")
        self._access.check(url)
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
        make = SOURCES.get(str(type_).lower())
        if make is None:
            raise UsageError(
                f"There is no type {str(type_)!r} to attach.", code="unknown-type", hint=f"Types: {', '.join(SOURCES)}."
            )
        given = AttachOptions(name, str(type_).lower(), options)
        location = AttachLocation(name, url, storage_options, self._mounts, self._runtime, self._access)
        attachment = make(location, given)
        given.check_all_taken()
        if known is not None:
            self.detach(known)
        self.entries[name] = AttachedEntry(name, str(type_).lower(), url, dict(options), attachment)
        if not self._mounts.is_local:
            self._runtime.forget()  # what was made before cannot reach remote files
        return True

    def find(self, name: Name) -> Attachment | None:
        """Return the attachment to which a table belongs."""
        for entry in list(self.entries.values()):
            if any(n.lower() == name[0].lower() for n in entry.attachment.now()):
                return entry.attachment
        return None

    def detach(self, name: str, *, if_exists: bool = False) -> bool:
        """Detach what has a name and return whether there was something; raises ``not-attached``."""
        text_of(name, "The name of what is attached")
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
