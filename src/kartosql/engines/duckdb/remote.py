"""A read-only filesystem over a store, for DuckDB."""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

from fsspec.spec import AbstractFileSystem

from kartosql.store import Store

PROTOCOL = "kartosql"
# Files up to this size are fetched whole with one request; of larger ones only what is asked for.
WHOLE_FILE = 8 << 20
BLOCK = 1 << 20


class StoreFiles(AbstractFileSystem):  # type: ignore[misc]
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
        """Return name, size and type of a file."""
        key = self._key(path)
        return {"name": path, "size": self._sizes[key], "type": "file"}

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Return whether the statement may open a path."""
        return str(path).removeprefix(f"{PROTOCOL}://") in self._sizes

    def glob(self, path: str, **kwargs: Any) -> list[str]:
        """Return the path itself: names are never patterns."""
        return [path] if self.exists(path) else []

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Return nothing: there are no folders."""
        return []

    def modified(self, path: str) -> dt.datetime:
        """Return a fixed time."""
        # Kartothek's files never change under one key, so any fixed time is right.
        return dt.datetime(2000, 1, 1, tzinfo=dt.timezone.utc)

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Return a file to read; raises FileNotFoundError for files that are not of the statement."""
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
