"""What a source is given, and what it gives: one thing that was attached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kartosql.engines.duckdb import Runtime
from kartosql.errors import UsageError
from kartosql.settings import Settings
from kartosql.sources.options import Options
from kartosql.store import Mounts, Store
from kartosql.store.scope import is_below, is_local_url
from kartosql.tables.names import Attached, Name


class Attachment(Protocol):
    """One thing that was attached."""

    def now(self) -> Mapping[str, Attached]:
        """Return the names that it gives, for one statement."""

    def tables(self) -> Sequence[tuple[Name, str]]:
        """Return names and kinds of its tables, for listings."""

    def close(self) -> None:
        """Forget its files."""


class Access:
    """What may be attached to a connection, and by which options of a filesystem it is reached."""

    def __init__(self, store: Store, storage_options: Mapping[str, Any] | None, settings: Settings) -> None:
        self._store = store
        self._storage_options = storage_options
        self._settings = settings

    def check(self, url: str) -> None:
        """Raise ``not-allowed`` for what the connection may not attach."""
        allowed = self._settings["attach"]
        if allowed is True or (allowed and any(is_below(url, prefix) for prefix in allowed)):
            return
        what = f"{url!r} may not be" if allowed else "Nothing may be"
        raise UsageError(
            f"{what} attached to this connection.",
            code="not-allowed",
            hint="connect(..., attach=True) allows all, attach=[url, ...] what lies below some URLs; "
            "with read_only=True nothing is allowed unless it is said.",
        )

    def options_for(self, url: str) -> Mapping[str, Any] | None:
        """Return those of the connection's store for what lies below it; its credentials are for nothing else."""
        own = not is_local_url(url) and is_below(url, self._store.address[0])
        return self._storage_options if own else None


@dataclass(frozen=True)
class Place:
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


Source = Callable[[Place, Options], Attachment]
