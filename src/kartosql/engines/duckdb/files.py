"""How DuckDB reaches the files of a store: by path where they are local, else through memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kartosql.errors import missing_file
from kartosql.store import Files
from kartosql.store.store import MARK

if TYPE_CHECKING:
    from kartosql.engines.duckdb.remote import StoreFiles

PROTOCOL = "kartosql"


class FileAccess:
    """The files of one statement: their sizes, and the names under which DuckDB opens them."""

    def __init__(self, store: Files) -> None:
        self.store = store
        self.sizes: dict[str, int | None] = {}
        self._prefix = self._beginning("")
        self._mounted: dict[str, str] = {}  # beginnings of other stores' names, by those of their keys

    def stat(self, keys: Sequence[str]) -> None:
        """Note the sizes of files; raises ``missing-file`` for those that do not exist."""
        wanted = [k for k in dict.fromkeys(keys) if k not in self.sizes]
        try:
            self.sizes.update(self.store.sizes(wanted))
        except KeyError as e:
            hint = "It was deleted after the metadata were read, or the dataset is damaged. Run the statement again."
            raise missing_file(self.store.display_name(e.args[0]), hint) from None

    def names(self, keys: Sequence[str]) -> list[str]:
        """Return the names under which DuckDB opens ``keys``, whether they exist or not."""
        return [self._name(k) if k.startswith(MARK) else self._prefix + k for k in keys]

    def _beginning(self, key: str) -> str:
        """Return the prefix that makes file names of the keys of a store."""
        return self.store.local_path(key) if self.store.is_on_disk(key) else f"{PROTOCOL}://{key}"

    def _name(self, key: str) -> str:
        prefix, _, rest = key.partition("/")
        known = self._mounted.get(prefix)
        if known is None:
            known = self._mounted[prefix] = self._beginning(f"{prefix}/")
        return known + rest

    def paths(self, keys: Sequence[str], filesystem: StoreFiles | None) -> list[str]:
        """Return the names under which DuckDB opens ``keys``; remote ones are fetched concurrently.

        Raises ``missing-file``, ``unsafe-key`` for links, and what attached stores object to.
        """
        self.stat(keys)
        self.store.admit(keys)
        if filesystem is not None:
            filesystem.fetch({k: self.sizes[k] for k in keys if not self.store.is_on_disk(k)})
        return self.names(keys)

    def key_in(self, message: str) -> str | None:
        """Return the key of the file that an engine's message names, if it names one."""
        match = re.search(r"[\"']((?:/|[A-Za-z]:|kartosql://)[^\"']+)[\"']", message)
        if match is None:
            return None
        for prefix, beginning in [*self._mounted.items(), ("", self._prefix)]:
            if match[1].startswith(beginning):
                return self.store.display_name(f"{prefix}/"[not prefix :] + match[1][len(beginning) :])
        return None

    def shown_in(self, message: str) -> str:
        """Return a message with display names in place of keys."""
        for prefix in self._mounted:
            message = message.replace(f"{prefix}/", self.store.display_name(f"{prefix}/"))
        return message
