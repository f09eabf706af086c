"""How DuckDB reaches the files of a store: by path where they are local, else through memory."""

from __future__ import annotations

import datetime as dt
import io
import re
from collections.abc import Sequence
from typing import Any

from fsspec.spec import AbstractFileSystem

from kartosql.errors import FormatError
from kartosql.store import Store

PROTOCOL = "kartosql"
# Files up to this size are fetched whole with one request; of larger ones only what is asked for.
WHOLE_FILE = 8 << 20
BLOCK = 1 << 20
_GLOB = re.compile(r"[*?\[]")


class FileAccess:
    """Gives the files of one statement names that DuckDB can open, and only those."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sizes: dict[str, int | None] = {}
        self._filesystem: _StoreFiles | None = None

    def register(self, connection: Any) -> None:
        """Make the store's files known to a connection, if they are not local."""
        if not self.store.is_local:
            self._filesystem = _StoreFiles(self.store)
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
            return [_GLOB.sub(r"[\g<0>]", self.store.local_path(k)) for k in keys]
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
        for prefix in (f"{PROTOCOL}://", self.store.local_path("x")[:-1] if self.store.is_local else None):
            if prefix and path.startswith(prefix):
                return path[len(prefix) :]
        return None


class _StoreFiles(AbstractFileSystem):  # type: ignore[misc]
    """A read-only filesystem over the files that one statement may open."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._sizes: dict[str, int] = {}
        self._whole: dict[str, bytes] = {}

    def fetch(self, sizes: dict[str, int | None]) -> None:
        """Allow the files of ``sizes``, and read the small ones at once."""
        unknown = [k for k, size in sizes.items() if size is None or size <= WHOLE_FILE]
        wanted = [k for k in unknown if k not in self._whole]
        self._whole.update(zip(wanted, self._store.map(self._store.read, wanted), strict=True))
        self._sizes.update({k: len(self._whole[k]) if k in self._whole else size or 0 for k, size in sizes.items()})

    def _key(self, path: str) -> str:
        key = str(path).removeprefix(f"{PROTOCOL}://")
        if key not in self._sizes:
            raise FileNotFoundError(path)
        return key

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        key = self._key(path)
        return {"name": path, "size": self._sizes[key], "type": "file"}

    def exists(self, path: str, **kwargs: Any) -> bool:
        return str(path).removeprefix(f"{PROTOCOL}://") in self._sizes

    def glob(self, path: str, **kwargs: Any) -> list[str]:
        return [path] if self.exists(path) else []

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        return []

    def modified(self, path: str) -> dt.datetime:
        # Kartothek's files never change under one key, so any fixed time is right.
        return dt.datetime(2000, 1, 1, tzinfo=dt.timezone.utc)

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            raise PermissionError(path)
        key = self._key(path)
        if key in self._whole:
            return io.BytesIO(self._whole[key])
        return io.BufferedReader(_RangedFile(self._store, key, self._sizes[key]), BLOCK)


class _RangedFile(io.RawIOBase):
    """A large file that is read in ranges, the end of it (the footer) first."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size
        self._at = 0
        self._tail = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        tail_start = max(0, self._size - BLOCK)
        if self._at >= tail_start:
            self._tail = self._tail or self._store.read(self._key, start=tail_start, end=self._size)
            data = self._tail[self._at - tail_start : end - tail_start]
        else:
            data = self._store.read(self._key, start=self._at, end=end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
