"""How DuckDB reaches the files of a store: by path where they are local, else through memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kartosql.errors import FormatError
from kartosql.store import Store

if TYPE_CHECKING:
    from kartosql.engines.duckdb.remote import StoreFiles

PROTOCOL = "kartosql"


class FileAccess:
    """The files of one statement: their sizes, and the names under which DuckDB opens them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sizes: dict[str, int | None] = {}
        self._prefix = store.local_path("") if store.is_local else f"{PROTOCOL}://"

    def stat(self, keys: Sequence[str]) -> None:
        """Note the sizes of files; raises ``missing-file`` for those that do not exist."""
        wanted = [k for k in dict.fromkeys(keys) if k not in self.sizes]
        try:
            self.sizes.update(self.store.sizes(wanted))
        except KeyError as e:
            raise FormatError(
                f"The file {e.args[0]!r} is missing.",
                code="missing-file",
                hint="It was deleted after the metadata were read, or the dataset is damaged. Run the statement again.",
            ) from None

    def names(self, keys: Sequence[str]) -> list[str]:
        """Return the names under which DuckDB opens ``keys``, whether they exist or not."""
        return [self._prefix + k for k in keys]

    def paths(self, keys: Sequence[str], filesystem: StoreFiles | None) -> list[str]:
        """Return the names under which DuckDB opens ``keys``; remote ones are fetched concurrently.

        Raises ``missing-file``, and ``unsafe-key`` for links.
        """
        self.stat(keys)
        if filesystem is not None:
            filesystem.fetch({k: self.sizes[k] for k in keys})
        return self.names(keys)

    def key_in(self, message: str) -> str | None:
        """Return the key of the file that an engine's message names, if it names one."""
        match = re.search(r"[\"']((?:/|[A-Za-z]:|kartosql://)[^\"']+)[\"']", message)
        if match and match[1].startswith(self._prefix):
            return match[1][len(self._prefix) :]
        return None
