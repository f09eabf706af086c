"""What is attached to a connection, by name; what a source is given, a location and options, and what it gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kartosql.engines.duckdb.runtime import Runtime
from kartosql.errors import SqlError, UsageError, did_you_mean, quoted, text_of
from kartosql.formats.odf import times
from kartosql.settings import Settings
from kartosql.sql.attach_parse import TYPES, type_of
from kartosql.store import Mounts, Store
from kartosql.store.urls import is_below, is_local_url
from kartosql.tables.names import Attached, Name
from kartosql.text.secrets import HIDDEN

# What lies in tables of others, by which they are known from folders of files.
MARKS = {"delta": "_delta_log", "hudi": ".hoodie", "stream": "_spark_metadata", "odf": "refs/head"}
ICEBERG_METADATA = r"(?:[^/]+\.metadata\.json(?:\.gz)?|version-hint\.text)"


class AttachOptions:
    """The options of an ATTACH by lower-case name; those that nothing takes are errors."""

    def __init__(self, name: str, type_: str, given: Mapping[str, Any]) -> None:
        self._name = name
        self._type = type_
        self._given = {str(k).lower(): v for k, v in given.items() if str(k).lower() != "type"}

    def take(self, option: str, default: Any = None) -> Any:
        """Return the value of an option."""
        return self._given.pop(option, default)

    def truth(self, option: str) -> bool:
        """Return the value of an option that is true, unless it is given as false; raises ``invalid-option``."""
        value = self.take(option, True)
        found = {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
        if found is None:
            raise self.invalid(option, value, "true or false")
        return found

    def text(self, option: str) -> str | None:
        """Return the value of an option that is a text; raises ``invalid-option``."""
        value = self.take(option)
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if value is not None and (not isinstance(value, str) or not value or "\0" in value):
            raise self.invalid(option, value, "a text")
        return value

    def moment(self, option: str) -> int | None:
        """Return the nanoseconds since 1970 of an option that is a time; raises ``invalid-option``."""
        text = self.text(option)
        try:
            return None if text is None else times.of_user(text)
        except (ValueError, OverflowError):
            raise self.invalid(option, text, "a date or time such as '2026-01-31 12:00:00Z'") from None

    def version(self, option: str, expected: str) -> tuple[int | None, int | None]:
        """Return the number of a version and the time that AS_OF asks for, at most one of them."""
        number, moment = self.take(option), self.moment("as_of")
        if number is not None and (type(number) is not int or number < 0 or moment is not None):
            raise self.invalid(option, number, f"{expected}, and no AS_OF with it")
        return number, moment

    def invalid(self, option: str, value: Any, expected: str) -> UsageError:
        """Return the error about the value of an option."""
        shown = HIDDEN if option == "metadata_keys" else quoted(value)
        return UsageError(
            f"{self._name}: {shown} is no value for the option {option.upper()}",
            code="invalid-option",
            hint=f"Expected {expected}.",
        )

    def check_all_taken(self) -> None:
        """Raise ``invalid-option`` for options that the type does not have."""
        for option in self._given:
            known = sorted(map(str.upper, TYPES[self._type]))
            hint = did_you_mean(option, known, f"Options: {', '.join(known) or 'none'}.")
            raise UsageError(f"There is no option {option!r} for TYPE {self._type}.", code="invalid-option", hint=hint)


class Attachment(Protocol):
    """One thing that was attached."""

    def now(self) -> Mapping[str, Attached]:
        """Return the names that it gives, for one statement."""

    def tables(self) -> Sequence[tuple[Name, str]]:
        """Return names and kinds of its tables, for listings."""

    def close(self) -> None:
        """Forget its files, if it keeps them open; statements that were made may still read them."""
        return


class Access:
    """What may be attached to a connection, and by which options of a filesystem it is reached."""

    def __init__(self, store: Store, storage_options: Mapping[str, Any] | None, settings: Settings) -> None:
        self.store = store
        self._storage_options = storage_options
        self._settings = settings

    def allows(self, url: str) -> bool:
        """Return whether the connection may attach something."""
        allowed = self._settings["attach"]
        return allowed is True or bool(allowed and any(is_below(url, prefix) for prefix in allowed))

    def check(self, url: str) -> None:
        """Raise ``not-allowed`` for what the connection may not attach."""
        if self.allows(url):
            return
        allowed = self._settings["attach"]
        what = f"{url!r} may not be" if allowed else "Nothing may be"
        raise UsageError(
            f"{what} attached to this connection.",
            code="not-allowed",
            hint="connect(..., attach=True) allows all, attach=[url, ...] what lies below some URLs; "
            "with read_only=True nothing is allowed unless it is said.",
        )

    def options_for(self, url: str) -> Mapping[str, Any] | None:
        """Return those of the connection's store for what lies below it; its credentials are for nothing else."""
        own = not is_local_url(url) and is_below(url, self.store.address[0])
        return self._storage_options if own else None


@dataclass(frozen=True)
class AttachLocation:
    """What an attachment is made of: its name, the URL, and how files of it are reached.

    ``given`` are the options of the filesystem that came with it, for its metadata, too.
    """

    name: str
    url: str = field(repr=False)
    given: Mapping[str, Any] | None = field(repr=False)
    mounts: Mounts
    runtime: Runtime
    access: Access

    @property
    def storage_options(self) -> Mapping[str, Any] | None:
        """The options of the filesystem."""
        return self.options_for(self.url)

    def options_for(self, url: str) -> Mapping[str, Any] | None:
        """Return the options for something that belongs to it; raises ``not-allowed``."""
        self.access.check(url)
        return self.given if self.given is not None else self.access.options_for(url)


Source = Callable[[AttachLocation, AttachOptions], Attachment]


@dataclass(frozen=True)
class AttachedEntry:
    """An attachment with what was asked for."""

    name: str
    type: str
    url: str = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    attachment: Attachment


class Attachments:
    """Attaches what there is a source for, by the TYPE of ATTACH, and detaches; lists for statements what is there."""

    def __init__(self, sources: Mapping[str, Source], mounts: Mounts, runtime: Runtime, access: Access) -> None:
        self._sources = sources
        self._mounts = mounts
        self._runtime = runtime
        self.access = access
        self.entries: dict[str, AttachedEntry] = {}
        self.discovered: dict[str, AttachedEntry] = {}  # what needs no ATTACH, since it was first asked for

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
        type_: str | None,
        options: Mapping[str, Any],
        *,
        is_taken: Callable[[str], bool],
        storage_options: Mapping[str, Any] | None = None,
        replace: bool = False,
        if_not_exists: bool = False,
    ) -> bool:
        """Attach what is at ``url`` and return whether that was done; without a type the suffix says it, or Parquet is.

        Raises ``not-allowed``, ``name-taken``, ``unknown-type``, ``invalid-option`` and what is wrong with it.
        """
        if isinstance(url, os.PathLike):
            url = os.fspath(url)
        if not isinstance(url, str):
            raise UsageError(f"{quoted(url)} is no path or URL.")
        self.access.check(url)
        if not isinstance(name, str) or not name or "\0" in name or "." in name:
            raise UsageError(f"{name!r} is no name for what is attached.", hint="A name has one part and no dot.")
        known = next((n for n in self.entries if n.lower() == name.lower()), None)
        if known is not None and if_not_exists:
            return False
        if not (known is not None and replace) and is_taken(name):
            hint = "Choose another name, or DETACH what has it; ATTACH OR REPLACE replaces what is attached."
            raise UsageError(f"There is a table {name!r} already.", code="name-taken", hint=hint)
        type_ = (type_of(url) or "parquet") if type_ is None else str(type_).lower()
        made = self.open(url, name, type_, options, storage_options)
        if known is not None:
            self.detach(known)
        self.entries[name] = made
        return True

    def open(
        self,
        url: str,
        name: str,
        type_: str,
        options: Mapping[str, Any],
        storage_options: Mapping[str, Any] | None = None,
    ) -> AttachedEntry:
        """Return what is at ``url``, not yet under its name; raises what is wrong with it."""
        make = self._sources.get(type_)
        if make is None:
            hint = f"Types: {', '.join(self._sources)}."
            raise UsageError(f"There is no type {type_!r} to attach.", code="unknown-type", hint=hint)
        given = AttachOptions(name, type_, options)
        location = AttachLocation(name, url, storage_options, self._mounts, self._runtime, self.access)
        attachment = make(location, given)
        given.check_all_taken()
        if not self._mounts.is_local:
            self._runtime.forget()  # what was made before cannot reach remote files
        return AttachedEntry(name, type_, url, dict(options), attachment)

    def find(self, name: Name) -> Attachment | None:
        """Return the attachment to which a table belongs."""
        for entry in (*self.entries.values(), *self.discovered.values()):
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
        for entry in (*self.entries.values(), *self.discovered.values()):
            entry.attachment.close()
        self.entries.clear()
        self.discovered.clear()
