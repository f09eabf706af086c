"""How DuckDB reaches the files of a store: by path where they are local, else through memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kartosql.errors import FormatError
from kartosql.store import Store

if TYPE_CHECKING:
    from kartosql.engines.duckdb.remote import StoreFiles

PROTOCOL = "kartosql"
_GLOB = re.compile(r"[*?\[]")


class FileAccess:
    """Gives the files of one statement names that DuckDB can open, and only those."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sizes: dict[str, int | None] = {}
        self._filesystem: StoreFiles | None = None

    def register(self, connection: Any) -> None:
        """Make the store's files known to a connection, if they are not local."""
        if not self.store.is_local:
            from kartosql.engines.duckdb.remote import StoreFiles

            self._filesystem = StoreFiles(self.store)
            connection.register_filesystem(self._filesystem)

    def stat(self, keys: Sequence[str]) -> None:
        """Note the sizes of files; raises ``missing-file`` for those that do not exist."""
        wanted = [k for k in dict.fromkeys(keys) if k not in self.sizes]
        sizes = [self._size(k) for k in wanted] if self.store.is_local else self.store.map(self._size, wanted)
        self.sizes.update(zip(wanted, sizes, strict=True))

    def _size(self, key: str) -> int | None:
        try:
            return self.store.size(key)
        except KeyError:
            raise FormatError(
                f"The file {key!r} is missing.",
                code="missing-file",
                hint="It was deleted after the metadata were read, or the dataset is damaged. Run the statement again.",
            ) from None

    def paths(self, keys: Sequence[str]) -> list[str]:
        """Return the names under which DuckDB opens ``keys``; remote ones are fetched concurrently."""
        if self.store.is_local:
            self.stat(keys)  # which also refuses links
            root = self.store.local_path("")
            return [_GLOB.sub(r"[\g<0>]", root + k) for k in keys]
        assert self._filesystem is not None
        self.stat(keys)
        self._filesystem.fetch({k: self.sizes[k] for k in keys})
        return [f"{PROTOCOL}://{k}" for k in keys]

    def key_in(self, message: str) -> str | None:
        """Return the key of the file that an engine's message names, if it names one."""
        match = re.search(r"[\"']((?:/|[A-Za-z]:|kartosql://)[^\"']+)[\"']", message)
        if not match:
            return None
        path = match[1]
        for prefix in (f"{PROTOCOL}://", self.store.local_path("") if self.store.is_local else None):
            if prefix and path.startswith(prefix):
                return path[len(prefix) :]
        return None
