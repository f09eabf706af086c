"""Read-only filesystems for DuckDB: over a store, and over the few local files of a statement in a locked instance."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

from fsspec.spec import AbstractFileSystem

from kartosql.errors import KartosqlError
from kartosql.parquet import END, MAGIC
from kartosql.store import Fetched, Files
from kartosql.store.streams import RangedFile
from kartosql.tables.table import FileTable

PROTOCOL = "kartosql"
# Files up to this size are fetched whole; of larger ones the footer, and what is asked for.
WHOLE_FILE = 8 << 20
WHOLE_INDEX = 256 << 10  # of the indices that conditions look few values up in, and that are fetched when used again
# Bytes at the end that are asked for at first, and where many files of which nothing is known may be small.
FIRST, FIRST_OF_MANY, MANY = 64 << 10, 256 << 10, 8
BLOCK = 1 << 20
EXACT_READS = 8  # of a large file, before blocks are read ahead
KEPT_BYTES = 64 << 20  # of files that later statements may open too
_LONG_AGO = dt.datetime(2000, 1, 1, tzinfo=dt.timezone.utc)
_parts = itertools.count(1)
large_ends: WeakKeyDictionary[FileTable, dict[str, Fetched]] = WeakKeyDictionary()  # of files of tables, by key
_learned: WeakKeyDictionary[Files, dict[str, tuple[bool, int]]] = WeakKeyDictionary()


def keep_ends(table: FileTable, ends: Mapping[str, Fetched]) -> dict[str, Fetched]:
    """Keep the ends of large files, of stores with ETags; return those of a table.

    Nobody writes a file anew before the metadata of its table. What is read besides has to have the ETag of the end.
    """
    known = large_ends.setdefault(table, {})
    known.update((key, end) for key, end in ends.items() if end.start and end.etag and key not in known)
    if sum(len(end.data) for files in list(large_ends.values()) for end in list(files.values())) > KEPT_BYTES:
        large_ends.clear()
    return known


def footer_length(end: Fetched) -> int | None:
    """Return how many bytes the footer of a Parquet file takes, with what follows it; None if it has none."""
    data = end.data[-END:]
    length = int.from_bytes(data[: -len(MAGIC)], "little") + END
    return length if len(data) == END and data.endswith(MAGIC) and length <= end.size - len(MAGIC) else None


class Ends:
    """The last bytes of a statement's remote files, with the footers; of small files all bytes.

    How many are asked for follows from what other files in the same folder were like.
    """

    def __init__(self, store: Files) -> None:
        self._store = store
        self._readings: dict[str, Future[Fetched]] = {}
        self._versions: dict[str, str] = {}  # of the documents that name what may be kept

    def take(self, key: str, end: Fetched) -> None:
        """Take the end of a file that was read before."""
        if key not in self._readings:
            self._readings[key] = Future()
            self._readings[key].set_result(end)

    def start(self, keys: Sequence[str], whole: int, version: str = "") -> None:
        """Start to read files, all of those up to the size ``whole``; indices that a ``version`` names may be kept."""
        new = [key for key in dict.fromkeys(keys) if key not in self._readings]
        if version and self._store.kept is not None:
            for key in new:
                if (end := self._store.kept.end(key, version)) is not None:
                    self.take(key, end)
            new = [key for key in new if key not in self._readings]
            self._versions.update(dict.fromkeys(new, version))
        first = FIRST if len(new) <= MANY else FIRST_OF_MANY
        known = _learned.setdefault(self._store, {})
        lengths = {key: known.get(_folder(key), (False, min(first, max(whole, END))))[1] for key in new}

        def wanted(end: Fetched) -> int:
            return end.size if end.size <= whole else footer_length(end) or 0

        self._readings.update(self._store.start_reading(lengths, wanted))

    def get(self, key: str) -> Fetched:
        """Return what was read of a file; raises KeyError if it is missing, and what the store raises."""
        end = self._store.result_of(key, self._readings[key])
        known, is_large = _learned.setdefault(self._store, {}), end.start > 0
        needed = (footer_length(end) or END) if is_large else end.size
        before = known.get(_folder(key), (False, 0))
        # Large files decide, as of them more than the footer would be read in vain.
        if is_large >= before[0] and (is_large > before[0] or needed > before[1]):
            known[_folder(key)] = (is_large, needed + needed // 4 + END)
        if (version := self._versions.pop(key, "")) and self._store.kept is not None:
            self._store.kept.keep_end(key, version, end)
        return end


def _folder(key: str) -> str:
    """Return what the keys of files that are probably alike begin with: dataset and table, or index."""
    parts = key.split("/", 3)
    return "/".join(parts[: 3 if "indices" in parts else 2])


class _NamedFiles(AbstractFileSystem):  # type: ignore[misc]
    """Files by names that are no patterns, in no folders."""

    protocol = PROTOCOL
    cachable = False

    def glob(self, path: str, **kwargs: Any) -> list[str]:
        """Return the path itself: names are never patterns."""
        return [path] if self.exists(path) else []

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Return nothing: there are no folders."""
        return []


class StoreFiles(_NamedFiles):
    """A read-only filesystem over the files that one statement may open."""

    def __init__(self, store: Files) -> None:
        super().__init__()
        self._store = store
        self._ends: dict[str, Fetched] = {}
        self._stamps: dict[str, int] = {}
        self._kept: dict[str, int] = {}  # in how many statements each was opened
        self._opened: set[str] = set()
        self.failure: KartosqlError | None = None  # of the store, of which DuckDB passes on a text only

    def keep(self, key: str) -> None:
        """Let ``key`` be opened by later statements too, with the content that it has now."""
        self._kept[key] = 0
        self._ends.pop(key, None)

    def forget(self) -> int:
        """Allow no more files than those that are kept; returns how many bytes of them are in memory."""
        self.failure = None
        self._opened.clear()
        kept, room = {}, KEPT_BYTES
        for key in reversed(self._kept):
            if (end := self._ends.get(key)) is not None:
                room -= len(end.data)
                whole = room >= 0 or end.start > 0
                kept[key] = end if whole else end._replace(data=end.data[-FIRST:], start=max(0, end.size - FIRST))
        self._ends = kept
        return sum(len(end.data) for end in kept.values())

    def allow(self, key: str, end: Fetched, part: Fetched | None = None) -> None:
        """Allow a file to be opened, of which the end was read, or in its place a ``part`` of it."""
        self._ends[key] = part or end
        # No two parts have one stamp: for footers that are kept they are as many files.
        self._stamps[key] = zlib.crc32(end.data, end.size) % 2**29 if part is None else -next(_parts)

    def ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> Iterable[bytes]:
        """Return ranges of a file, which are read concurrently."""
        return self._store.map(lambda span: self._range(key, *span), spans)

    def _key(self, path: str) -> str:
        key = str(path).removeprefix(f"{PROTOCOL}://")
        if key not in self._ends:
            raise FileNotFoundError(path)
        return key

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size and type of a file."""
        key = self._key(path)
        return {"name": path, "size": self._ends[key].size, "type": "file"}

    def modified(self, path: str) -> dt.datetime:
        """Return a time in the past that differs between contents, as footers are kept by it."""
        seconds = self._stamps.get(str(path).removeprefix(f"{PROTOCOL}://"), 0)
        return _LONG_AGO + dt.timedelta(seconds=seconds)

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Return a file to read; raises FileNotFoundError for files that are not of the statement."""
        if mode != "rb":
            raise PermissionError(path)
        key = self._key(path)
        end = self._ends[key]
        if key in self._kept and key not in self._opened:
            self._opened.add(key)
            self._kept[key] += 1
        if end.start and self._kept.get(key, 0) > 1 and end.size <= KEPT_BYTES:
            end = self._ends[key] = end._replace(data=self._range(key, 0, end.size), start=0)
        return RangedFile(_Ranges(self._range, key, end).read, end.size)

    def _range(self, key: str, start: int, end: int) -> bytes:
        try:
            return self._store.read(key, start=start, end=end, only=self._ends[key].etag)
        except KartosqlError as e:
            self.failure = e
            large_ends.clear()  # as one of them may be that of another file
            if self._store.kept is not None:
                self._store.kept.forget_ends()
            raise


class SlotFiles(_NamedFiles):
    """A read-only filesystem of a few names, each of which stands for a local file while a statement runs over it.

    An instance that may open these names alone, for ever, runs statements over any files: to register each of many
    files takes long, and to start another one for the files of each statement takes longer than that statement.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.names = [f"{PROTOCOL}://{number}" for number in range(count)]
        self._paths: dict[str, str] = {}  # of the statement that runs, by name
        self._contents: dict[str, tuple[object, int]] = {}  # what was opened last under a name, and its number
        self._numbers = itertools.count()

    def forget(self) -> None:
        """Let no name stand for a file."""
        self._paths.clear()

    def names_of(self, paths: Sequence[str]) -> list[str]:
        """Return the names of files of the statement that runs, the first ones for those that are named first."""
        known = dict(zip(self._paths.values(), self._paths, strict=True))
        for path in paths:
            if path not in known:
                known[path] = name = self.names[len(known)]
                self._paths[name] = path
        return [known[path] for path in paths]

    def with_paths(self, message: str) -> str:
        """Return a message with the paths of files in place of their names."""
        return re.sub(rf"{PROTOCOL}://\d+", lambda match: self._paths.get(match[0], match[0]), message)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size and type of a file."""
        return {"name": path, "size": os.stat(self._path(path)).st_size, "type": "file"}

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Return whether a name stands for a file."""
        return path in self._paths

    def modified(self, path: str) -> dt.datetime:
        """Return a time in the past that differs between all contents that a name had, as footers are kept by it."""
        return _LONG_AGO + dt.timedelta(seconds=self._contents.get(path, (None, 0))[1])

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Return a file to read; raises FileNotFoundError for a name that stands for none, OSError for links."""
        if mode != "rb":
            raise PermissionError(path)
        file = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        found = os.fstat(file)
        content = self._paths[path], found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        if self._contents.get(path, (None, 0))[0] != content:
            self._contents[path] = content, next(self._numbers)
        return RangedFile(lambda start, end: os.pread(file, end - start, start), found.st_size, file)

    def _path(self, name: str) -> str:
        if name not in self._paths:
            raise FileNotFoundError(name)
        return self._paths[name]


class _Ranges:
    """Ranges of a file of which the end is there; the first reads are exact, later ones fetch a block."""

    def __init__(self, read: Callable[[str, int, int], bytes], key: str, end: Fetched) -> None:
        self._read, self._key, self._end = read, key, end
        self._count = 0
        self._block = (0, b"")

    def read(self, start: int, end: int) -> bytes:
        for at, block in ((self._end.start, self._end.data), self._block):
            if at <= start and end <= at + len(block):
                return block[start - at : end - at]
        self._count += 1
        stop = end if self._count <= EXACT_READS else max(end, min(start + BLOCK, self._end.size))
        block = self._read(self._key, start, stop)
        if len(block) < BLOCK or stop > end:
            self._block = (start, block)  # readers go forward through the pages
        return block[: end - start]
