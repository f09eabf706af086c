"""A read-only filesystem over a store, for DuckDB."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from fsspec.spec import AbstractFileSystem

from kartosql.errors import KartosqlError
from kartosql.store import Files

PROTOCOL = "kartosql"
# Files up to this size are fetched whole with one request; of larger ones only what is asked for.
WHOLE_FILE = 8 << 20
BLOCK = 1 << 20
KEPT_BYTES = 64 << 20  # of files that later statements may open too


class StoreFiles(AbstractFileSystem):  # type: ignore[misc]
    """A read-only filesystem over the files that one statement may open."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self, store: Files) -> None:
        super().__init__()
        self._store = store
        self._sizes: dict[str, int] = {}
        self._whole: dict[str, bytes] = {}
        self._stamps: dict[str, int] = {}
        self._kept: dict[str, None] = {}
        self.failure: KartosqlError | None = None  # of the store, of which DuckDB passes on a text only

    def keep(self, key: str) -> None:
        """Let ``key`` be opened by later statements too, with the content that it has now."""
        self._kept[key] = None
        self._whole.pop(key, None)

    def forget(self) -> int:
        """Allow no more files than those that are kept; returns how many bytes of them are in memory."""
        self.failure = None
        self._sizes = {k: size for k, size in self._sizes.items() if k in self._kept}
        whole, room = {}, KEPT_BYTES
        for key in reversed(self._kept):
            room -= len(self._whole.get(key, b""))
            if key in self._whole and room >= 0:
                whole[key] = self._whole[key]
        self._whole = whole
        return sum(map(len, whole.values()))

    def fetch(self, sizes: dict[str, int | None]) -> None:
        """Allow the files of ``sizes``, and read the small ones at once."""
        unknown = [k for k, size in sizes.items() if size is None or size <= WHOLE_FILE]
        wanted = [k for k in unknown if k not in self._whole]
        self._whole.update(zip(wanted, self._store.map(self._store.read, wanted), strict=True))
        self._sizes.update({k: len(self._whole[k]) if k in self._whole else size or 0 for k, size in sizes.items()})
        for key in sizes:
            self._stamps[key] = zlib.crc32(self._whole[key]) if key in self._whole else self._sizes[key]

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
        """Return a time in the past that tells contents apart, as footers are kept by it."""
        seconds = self._stamps.get(str(path).removeprefix(f"{PROTOCOL}://"), 0) % 2**29
        return dt.datetime(2000, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(seconds=seconds)

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Return a file to read; raises FileNotFoundError for files that are not of the statement."""
        if mode != "rb":
            raise PermissionError(path)
        key = self._key(path)
        if key in self._kept and key not in self._whole:
            with self._noting():
                self.fetch({key: self._sizes[key]})
        whole = self._whole.get(key)
        if whole is not None:
            return _OpenFile(lambda start, end: whole[start:end], len(whole))
        return _OpenFile(_Ranges(self._range, key, self._sizes[key]).read, self._sizes[key])

    def _range(self, key: str, start: int, end: int) -> bytes:
        with self._noting():
            return self._store.read(key, start=start, end=end)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except KartosqlError as e:
            self.failure = e
            raise


class _OpenFile:
    """An open file whose position is kept per thread.

    DuckDB's threads share a file: each of them seeks and then reads, and another one may
    come in between.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._here = threading.local()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        self._here.at = max(0, base + offset)
        return self.tell()

    def tell(self) -> int:
        return int(getattr(self._here, "at", 0))

    def read(self, size: int = -1) -> bytes:
        at = self.tell()
        end = self._size if size is None or size < 0 else min(at + size, self._size)
        data = self._fetch(at, end) if end > at else b""
        self._here.at = at + len(data)
        return data

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class _Ranges:
    """Ranges of a large file; short reads fetch a block, and its end, with the footer, is kept."""

    def __init__(self, read: Callable[[str, int, int], bytes], key: str, size: int) -> None:
        self._read, self._key, self._size = read, key, size
        self._tail = max(0, size - BLOCK)
        self._blocks: dict[int, bytes] = {}

    def read(self, start: int, end: int) -> bytes:
        for at, block in list(self._blocks.items()):
            if at <= start and end <= at + len(block):
                return block[start - at : end - at]
        if end - start >= BLOCK:
            return self._read(self._key, start, end)
        first = self._tail if start >= self._tail else start
        block = self._read(self._key, first, min(first + BLOCK, self._size))
        # The tail and the last block: readers go back to the footer and forward through the pages.
        self._blocks = {at: b for at, b in self._blocks.items() if at == self._tail} | {first: block}
        return block[start - first : end - first]
