"""The store: listing, reading and writing bytes under keys, durably and by compare-and-swap, on any filesystem."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakMethod, WeakValueDictionary

from kartosql.errors import FULL, FormatError, KartosqlError, StoreError, UsageError, quoted, reraise
from kartosql.memo import memoized
from kartosql.stopping import check, checked, shielded
from kartosql.store.keys import (
    Content,
    Detail,
    Fetched,
    ObjectStamp,
    OutcomeUnknown,
    PreconditionFailed,
    Stamp,
    Unsupported,
    Version,
    admit_folders,
    check_key,
    link_error,
    local_files_below,
    side_folder,
    stable_listing,
)
from kartosql.store.urls import filesystem_of, is_encodable, may_begin, no_answer, protocols_of, way_out
from kartosql.text.secrets import harmless, redacted

if TYPE_CHECKING:
    import datetime as dt

    from kartosql.store.kept import KeptObjects
    from kartosql.store.local_commit import LocalWriter
    from kartosql.store.remote import RemoteWriter
    from kartosql.store.turns import OfferedWrite
    from kartosql.user_cache import UserCache

MARK = "@"  # begins the keys of what is attached; no dataset's uuid may hold it
SINGLE_WRITER_HINT = (
    "If nobody else writes to this store at the same time, set single_writer=True; "
    "two writers would then lose data of each other."
)
_BROKEN = (*FULL, errno.EIO, errno.EROFS)
MAX_WORKERS = 32
MAX_METADATA_BYTES = 1 << 30


class Entry(NamedTuple):
    """One name of a listing; ``size`` is None for folders and local files, ``stamp`` where the store gives no ETag."""

    name: str
    size: int | None
    is_dir: bool
    stamp: ObjectStamp | None = None


@dataclass
class StoreCounter:
    """How often the store was asked, and how many bytes it answered."""

    lists: int = 0
    reads: int = 0
    sizes: int = 0
    writes: int = 0
    bytes_read: int = 0
    data_bytes: int = 0  # those of bytes_read that are of data files, not of metadata, indices and schemas
    keys: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, kind: str, key: str = "", nbytes: int = 0) -> None:
        """Count one call of ``kind`` (lists, reads, sizes or writes)."""
        with self._lock:
            setattr(self, kind, getattr(self, kind) + 1)
            self.bytes_read += nbytes
            if kind == "reads":
                self.keys.append(key)
                if "/indices/" not in key and ".by-dataset-metadata." not in key and key[-16:] != "_common_metadata":
                    self.data_bytes += nbytes

    def to_dict(self) -> dict[str, int]:
        """Return the counts as a dictionary."""
        return {name: getattr(self, name) for name in ("lists", "reads", "sizes", "writes", "bytes_read")}


class LocalFiles:
    """Files of the local disk behind the method names of an fsspec filesystem, which takes longer to import."""

    protocol = ("file", "local")

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        """Return the entries of a folder, without their sizes: each of them would take a call of its own."""
        with os.scandir(path) as entries:
            return [{"name": e.name, "type": "directory" if e.is_dir() else "file"} for e in entries]

    def find(self, path: str, detail: bool = True) -> dict[str, dict[str, Any]]:
        """Return every file below a folder; links to folders are not followed, and no folder is left out silently."""
        return stable_listing(partial(local_files_below, path))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file, or of a range of it."""
        with open(path, "rb") as f:
            if start:
                f.seek(start)
            return f.read() if end is None else f.read(max(0, end - (start or 0)))

    def invalidate_cache(self) -> None:
        """Do nothing: nothing is cached."""


class Store:
    """A folder or bucket prefix that holds datasets.

    ``url`` is a local path or any fsspec URL. Raises ``store-failed`` when the filesystem cannot be made and
    ``store-not-found`` when a local folder does not exist, unless ``begin`` lets the first write make it, where the
    path looks like no slip. ``without_driver`` says that reads and plain writes will do, without fsspec's driver.
    Writing raises ``unsafe-key``, ``access-denied``, ``disk-full`` and ``store-failed``.
    """

    single_writer = False  # whether nobody else writes, so that stores without conditions are written, too
    kept: KeptObjects | None = None  # of a remote store, beside the user
    proofs: UserCache | None = None  # where writers note what they know of large documents
    _conditional: bool | None = None  # None as long as nobody asked
    _conditional_delete = True

    def __init__(
        self,
        url: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        create: bool = False,
        begin: bool = False,
        without_driver: bool = False,
    ) -> None:
        url = os.fspath(url) if isinstance(url, os.PathLike) else url
        if not isinstance(url, str) or not url or "\0" in url or not is_encodable(url):
            raise StoreError(f"{quoted(url)} is no path or URL of a store.", code="store-not-found")
        if storage_options is not None and not (
            isinstance(storage_options, Mapping) and all(isinstance(name, str) for name in storage_options)
        ):
            raise UsageError(
                f"storage_options are a dictionary from name to value, not this {type(storage_options).__name__}.",
                hint="storage_options={'key': ..., 'secret': ...}",
            )
        self.url = redacted(url)  # as it is shown; the other one may hold credentials
        self._url = url
        # They may hold secrets, so nothing prints them.
        self._options = dict(storage_options or {})
        found, root = filesystem_of(url, self._options, without_driver=without_driver)
        self.is_local = found is None
        self.fs: Any = LocalFiles() if found is None else found
        self.root: str = root.rstrip("/")
        self.counter = StoreCounter()
        self.paces: dict[str, float] = {}  # seconds for which commits give way to others, by dataset
        self._real_root = ""
        self._probe_lock = threading.Lock()
        self._safe_dirs: set[str] = set()
        if self.is_local:
            if create:
                # What is in the way is reported as no folder.
                with self.failures("", "make"), contextlib.suppress(FileExistsError, NotADirectoryError):
                    os.makedirs(self.root or "/", exist_ok=True)
            try:
                is_folder = stat.S_ISDIR(os.stat(self.root or "/").st_mode)
            except (OSError, ValueError) as e:
                reraise(self.redacted(e), f"Cannot open {self.root!r}")
                is_folder = False
            if not is_folder and not (begin and may_begin(self.root)):
                raise StoreError(f"{self.root!r} is no folder.", code="store-not-found", hint=way_out(self.root))
            self._real_root = os.path.realpath(self.root or "/")
            self._safe_dirs.add(self._real_root)

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def is_same(self, other: Store) -> bool:
        """Return whether another one means the same place, by the same name and with the same credentials."""
        names = (self._url, self.root, self._real_root, self._options)
        if type(self) is not type(other) or names != (other._url, other.root, other._real_root, other._options):
            return False
        return self.fs is other.fs or (self.is_local and other.is_local)

    def begin_as(self, other: Store) -> None:
        """Take the place of one that is the same and was just made: count calls anew, look at folders again."""
        self.counter = other.counter
        self.single_writer = other.single_writer
        self._safe_dirs = other._safe_dirs

    def redacted(self, error: Exception) -> Exception:
        """Return what a driver raised, without credentials in it."""
        return harmless(error, self._options)

    @property
    def address(self) -> tuple[str, dict[str, Any]]:
        """The URL and the options by which other processes reach the same store, if they can."""
        return (self._real_root, {}) if self.is_local else (self._url, dict(self._options))

    # -- names ---------------------------------------------------------------------------

    def path(self, key: str) -> str:
        """Return the path of ``key`` in the filesystem."""
        return f"{self.root}/{key}"

    def dataset_sizes(self, uuid: str) -> dict[str, int | None]:
        """Return the sizes of all files of a dataset by one listing."""
        return self.list_below(f"{uuid}/")

    def is_on_disk(self, key: str) -> bool:
        """Return whether a file is on a local disk."""
        return self.is_local

    def display_name(self, key: str) -> str:
        """Return the name of a file as messages and reports have it."""
        return key

    def admit(self, keys: Sequence[str]) -> None:
        """Do nothing: all files may be opened."""

    def local_path(self, key: str) -> str:
        """Return the absolute local path of ``key``; links that leave the dataset are refused."""
        path = self._local_path(key)
        if os.path.islink(path):
            raise link_error(key)
        return path

    def _local_path(self, key: str) -> str:
        """Return the local path of ``key``; folders that are links out of the dataset are refused."""
        path = f"{self._real_root}/{key}"
        folder = path[: path.rfind("/")]
        if folder not in self._safe_dirs:
            self._check_folder(key)
        return path

    def _check_folder(self, key: str) -> None:
        """Refuse folders that are links out of the dataset; those that were looked at before are known."""
        parts = key.split("/")
        folder = self._real_root
        inside = os.path.join(folder, parts[0]) + os.sep
        for part in parts[:-1]:
            folder = f"{folder}/{part}"
            if folder in self._safe_dirs:
                continue
            if os.path.islink(folder) and not (os.path.realpath(folder) + os.sep).startswith(inside):
                raise link_error(key)
            self._safe_dirs.add(folder)

    # -- reading -------------------------------------------------------------------------

    def list_root(self, folder: str = "") -> list[Entry]:
        """Return files and folders directly below the root, or below a ``folder``, with one listing call."""
        self.counter.add("lists")
        path = self.path(folder.rstrip("/")) if folder else self.root or "/"
        # No listing cache: a statement must see what other processes committed before it.
        is_remembered = hasattr(self.fs, "dircache") and not self.is_local and "memory" not in self.fs.protocol
        options = {"refresh": True} if is_remembered else {}
        entries = []
        for row in self._listed(folder, lambda: self.fs.ls(path, detail=True, **options)) or ():
            is_dir = row["type"] == "directory"
            etag, modified = row.get("ETag"), row.get("LastModified")
            modified = modified.replace(microsecond=0) if isinstance(modified, datetime) else None
            stamp = ObjectStamp(etag.strip('"'), modified) if isinstance(etag, str) and not is_dir else None
            name = row["name"].rstrip("/").rsplit("/", 1)[-1]
            entries.append(Entry(name, None if is_dir else row.get("size"), is_dir, stamp))
        return sorted(entries, key=attrgetter("name"))

    def list_below(self, prefix: str) -> dict[str, int | None]:
        """Return every key below ``prefix`` with its size, sorted by key."""
        check_key(prefix, source=self.url)
        self.counter.add("lists")
        return {key: info.get("size") for key, info in sorted(self.infos_below(prefix).items())}

    def infos_below(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Return every key below ``prefix`` with its entry in the listing."""
        self.fs.invalidate_cache()
        path = self.path(prefix) if prefix else self.root or "/"
        found = self._listed(prefix, lambda: self.fs.find(path, detail=True)) or {}
        return {path[len(self.root) + 1 :]: info for path, info in found.items()}

    def _listed(self, prefix: str, call: Callable[[], Any]) -> Any:
        """Return what a call lists, None where there is nothing: object stores have no empty folders."""
        with self.failures(prefix, "list"):
            while True:
                try:
                    return call()
                except FileNotFoundError:
                    return None
                except (KeyError, RuntimeError) as e:
                    # Listings in memory fail where others write or delete objects meanwhile.
                    if self.is_local or "memory" not in self.fs.protocol or isinstance(e, RecursionError):
                        raise

    def read(self, key: str, *, start: int | None = None, end: int | None = None, only: str = "") -> bytes:
        """Return the bytes of ``key``, or of its range [start, end); ``only`` is the ETag that it must have.

        Raises KeyError when there is no such key, ``corrupt-file`` when its ETag is another one, ``store-failed``
        and ``access-denied``.
        """
        if self.is_local:
            self.local_path(key)
            with self.failures(key, "read"):
                data: bytes = self.fs.cat_file(self.path(key), start=start, end=end)
        else:
            data = self._read_remote(key, None if start is None and end is None else (start or 0, end), only)
        self.counter.add("reads", key, len(data))
        return data

    def _read_remote(self, key: str, span: tuple[int, int | None] | None, only: str) -> bytes:
        with self.failures(key, "read"):
            try:
                found = self._remote.get(key, span, only=only)
            except PreconditionFailed:
                raise changed_file(key) from None
            start, end = span or (0, None)
            if found.start == start and end is None:
                return found.data
            if found.start > start or (end is not None and found.start + len(found.data) < min(end, found.size)):
                raise OSError("the store sent another range than it was asked for")
            return found.data[start - found.start : None if end is None else end - found.start]

    def read_unless(self, key: str, known: ObjectStamp | None) -> tuple[bytes | None, ObjectStamp | None]:
        """Return a metadata file of a remote store, and what proves later that it is the same, if anything does.

        There are no bytes if it certainly is what ``known`` was kept for. Raises as for ``read``.
        """
        if not self._remote.has_ranges:
            return self.read_metadata(key), None
        with self.failures(key, "read"):
            found = self._remote.get(key, unless=known.etag if known is not None else "")
            if found.unchanged and known is not None:
                if known.is_same(ObjectStamp(found.etag.strip('"'), found.modified)):
                    self.counter.add("reads", key)
                    return None, known
                found = self._remote.get(key)
        self.counter.add("reads", key, len(found.data))
        self._check_size(key, len(found.data))
        return found.data, found.proof

    def start_reading(self, lengths: Mapping[str, int], wanted: Callable[[Fetched], int]) -> dict[str, Future[Fetched]]:
        """Start to read so many bytes at the end of each of some remote objects, many at once.

        ``wanted`` tells by what came how many are needed; more of them are then read. ``result_of`` returns them.
        """
        count = partial(self.counter.add, "reads")
        return self._remote.start(lengths, wanted, count) if lengths else {}

    def result_of(self, key: str, reading: Future[Fetched]) -> Fetched:
        """Return what comes of reading that was started, which stopping ends; raises as for ``read``."""
        with self.failures(key, "read"):
            while not reading.done():
                check()
                wait([reading], 0.1)
            try:
                return reading.result()
            except PreconditionFailed:
                raise changed_file(key) from None

    def read_metadata(self, key: str) -> bytes:
        """Return the whole of a metadata document, index or schema file of at most 1 GiB."""
        if self.is_local:
            # A cheap local call; a remote one would double the requests of every open.
            self._check_size(key, self.size(key) or 0)
        data = self.read(key)
        self._check_size(key, len(data))
        return data

    def _check_size(self, key: str, size: int) -> None:
        if size > MAX_METADATA_BYTES:
            raise FormatError(
                f"{key}: {size:,} bytes are more than the limit of {MAX_METADATA_BYTES:,}",
                code="too-large",
                hint="No dataset's metadata are that large; the file may be damaged or hostile.",
            )

    def map(self, function: Any, items: Sequence[Any], workers: int = MAX_WORKERS) -> Iterable[Any]:
        """Apply ``function`` to all items, so many at a time, and return the results in order."""
        function = checked(function)
        if len(items) <= 1 or workers <= 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(workers, len(items))) as pool:
            return list(pool.map(function, items))

    def size(self, key: str) -> int | None:
        """Return the size of ``key`` in bytes; raises KeyError if it is missing."""
        if self.is_local:
            return self.stamps([key])[key].size
        with self.failures(key, "read"):
            self.counter.add("sizes", key)
            size = self.fs.size(self.path(key))
            return None if size is None else int(size)

    def sizes(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Return the size of each of ``keys`` in bytes; KeyError for one that is not there."""
        if not self.is_local:
            return dict(zip(keys, self.map(self.size, keys), strict=True))
        return {key: stamp.size for key, stamp in self.stamps(keys).items()}

    def stamps(self, keys: Sequence[str]) -> dict[str, Stamp]:
        """Return the stamps of local files; KeyError for one that is not there."""
        found: dict[str, Stamp] = {}
        admit_folders(self._real_root, keys, self._safe_dirs, self._check_folder)
        for key in keys:
            try:
                info = os.lstat(self._local_path(key))
            except OSError:
                with self.failures(key, "read"):
                    raise
            if not stat.S_ISREG(mode := info.st_mode):
                if stat.S_ISDIR(mode):
                    raise KeyError(key)
                if stat.S_ISLNK(mode):
                    raise link_error(key)
                raise FormatError(f"{key}: it is no regular file", code="unsafe-key")
            found[key] = Stamp(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        return found

    def info(self, key: str) -> dict[str, Any]:
        """Return what a remote store says about a file; raises KeyError if it is missing."""
        self.counter.add("sizes", key)
        with self.failures(key, "read"):
            found: dict[str, Any] = self.fs.info(self.path(key))
        return found

    def is_file(self) -> bool:
        """Return whether the URL of the store is that of a file."""
        with self.failures(self.url, "read"):
            return bool(self.fs.isfile(self.root))

    def stamp(self, key: str) -> Stamp | None:
        """Return what shows whether a local file was written since, None for remote ones; KeyError as for size."""
        return self.stamps([key])[key] if self.is_local else None

    # -- whole objects -------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> None:
        """Write ``data`` under ``key``; readers see all of it or what was there before."""
        with self._writing(key) as writer:
            writer.put(key, data)

    @contextlib.contextmanager
    def output(self, key: str, **how: bool) -> Iterator[IO[bytes]]:
        """Open a new object for writing; it is durable at the end, and removed after an error.

        ``how`` is for local disks, see LocalWriter.
        """
        of_caller: BaseException | None = None
        try:
            with self._writing(key) as writer, writer.output(key, **how) as file:
                try:
                    yield file
                except BaseException as e:
                    if not (isinstance(e, OSError) and e.errno in _BROKEN):
                        of_caller = e
                    raise
        except StoreError as e:
            if of_caller is not None and e.__cause__ is of_caller:
                raise of_caller from None
            raise

    def duplicate(self, old: str, new: str) -> None:
        """Make an object a copy of another one, without its bytes coming by; on local disks as a second name."""
        with self._writing(new) as writer:
            writer.duplicate(old, new)

    def sync(self, keys: Iterable[str]) -> None:
        """Make objects durable that were written by ``output(..., sync_folders=False)``."""
        with self.failures("the folders"):
            self._writer.sync(keys)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there count as removed."""
        for key in keys:
            check_key(key, source="delete")
            self.counter.add("writes", key)
        if keys:
            with self.failures(keys[0], "delete"), shielded():
                self._writer.delete(keys, self.map)

    # -- compare and swap ----------------------------------------------------------------

    def read_versioned(self, key: str, known: Content | None = None) -> tuple[bytes, Version]:
        """Return a metadata document and its version, no bytes but ``known`` if that is what a local file still holds.

        Raises KeyError if the key is missing.
        """
        if self.is_local:
            # What is wrong with the file, reading it tells.
            with contextlib.suppress(OSError, KartosqlError):
                if known is not None and self.size(key) == known.size:
                    with open(self.local_path(key), "rb", buffering=0) as file:
                        if known.is_all_of(file):
                            self.counter.add("reads", key)
                            return b"", Version(content=known)
            data = self.read_metadata(key)
            return data, Version(content=Content(data))
        check_key(key, source="read")
        with self.failures(key, "read"):
            data, version = self._remote.read_versioned(key)
        self.counter.add("reads", key, len(data))
        return data, version

    def put_if(self, key: str, content: bytes | Content, expected: Version | None) -> Version:
        """Write ``content`` if ``key`` still has the expected version, None for no object; return the new one.

        Raises PreconditionFailed and OutcomeUnknown; after a StoreError nothing was written.
        """
        check_key(key, source="write")
        if self.single_writer or not self.is_local:
            self.require_conditional_put(side_folder(key))
        with self._writing(key) as writer:
            if self.is_local:
                return cast("LocalWriter", writer).put_if(key, content, expected)
            return self._remote.put_if(key, bytes(content), expected)

    def delete_if(self, key: str, expected: Version) -> None:
        """Remove ``key`` if it still has the expected version; do nothing if it is missing.

        Raises PreconditionFailed and OutcomeUnknown; after a StoreError nothing was removed.
        Stores that would remove any version are refused with ``no-conditional-delete``.
        """
        check_key(key, source="write")
        self.require_conditional_put(side_folder(key))
        with self._writing(key) as writer:
            if self._conditional_delete:
                writer.delete_if(key, expected)
            elif self.single_writer:
                writer.delete_checked(key, expected)
            else:
                raise StoreError(
                    f"The store {self.url!r} deletes objects whatever their version, so {key!r} is not deleted.",
                    code="no-conditional-delete",
                    hint=SINGLE_WRITER_HINT,
                )

    def require_conditional_put(self, folder: str = "") -> None:
        """Raise ``no-conditional-put`` when the store ignores or lacks the condition; asked once.

        The object that is written for the question is below ``folder``. With
        ``single_writer`` such a store is accepted, and each write preceded by a look.
        """
        with self._probe_lock:
            if self._conditional is None:
                key = f"{folder or '.'}{'/' if folder else ''}kartosql-probe-{uuid.uuid4().hex}"
                with self.failures(key):
                    probed = self._writer.probe(check_key(key, source="write"))
                self._conditional, self._conditional_delete = probed
            if not self._conditional and not self.single_writer:
                raise self._unconditional()
            self._writer.checks_by_reading = not self._conditional

    @property
    def is_conditional(self) -> bool:
        """Whether a write that was not answered cannot happen any more once there is another version."""
        return not self._writer.checks_by_reading

    def turn(
        self, folder: str, offer: Callable[[], OfferedWrite | None] = lambda: None
    ) -> contextlib.AbstractContextManager[OfferedWrite | None]:
        """Wait until the writers of this machine who came before have had their turn in ``folder``.

        Nothing relies on it; who waits makes his ``offer`` before, which is the value.
        """
        from kartosql.store.turns import turn

        return turn(self.folder_path(folder) or f"{self.url}/{folder}", is_folder=self.is_local, offer=offer)

    def folder_path(self, folder: str) -> str | None:
        """Return the path of a folder on a local disk."""
        return f"{self._real_root}/{folder}" if self.is_local else None

    # -- current state --------------------------------------------------------------------

    def details(self, prefix: str = "") -> dict[str, Detail]:
        """Return size and time of every object whose key starts with ``prefix``, sorted by key."""
        check_key(f"{prefix}x", source=self.url)
        self.counter.add("lists")
        with self.failures(prefix, "list"):
            if self.is_local:
                self._local_path(f"{prefix}x")  # links are not followed
            found = {}
            for key, info in sorted(self.infos_below(prefix.rpartition("/")[0]).items()):
                if key.startswith(prefix) and info.get("type", "file") == "file":
                    with contextlib.suppress(FileNotFoundError):
                        found[key] = self._writer.detail(key, info)
            return found

    def now(self) -> dt.datetime:
        """Return the time by the clock of the store, which may not be that of this machine."""
        with self.failures("the clock", "read"):
            return self._writer.now()

    # -- how -----------------------------------------------------------------------------

    @property
    def _remote(self) -> RemoteWriter:
        return cast("RemoteWriter", self._writer)

    @memoized
    def _writer(self) -> LocalWriter | RemoteWriter:
        """The writing side for the kind of filesystem; the parts of it are imported only then."""
        if self.is_local:
            from kartosql.store.local_commit import LocalWriter

            return LocalWriter(self._real_root, self._local_path)
        from kartosql.store.remote import writer_of

        return writer_of(protocols_of(self.fs))(self.fs, self.root)

    @contextlib.contextmanager
    def _writing(self, key: str) -> Iterator[LocalWriter | RemoteWriter]:
        check_key(key, source="write")
        self.counter.add("writes", key)
        with self.failures(key):
            if self.is_local:
                self.local_path(key)  # links are not written through
            yield self._writer

    @contextlib.contextmanager
    def failures(self, key: str, verb: str = "write") -> Iterator[None]:
        """Turn what filesystems raise into our errors; ``verb`` says what could not be done: read, list, ..."""
        try:
            yield
        except (KartosqlError, PreconditionFailed, OutcomeUnknown):
            raise
        except Unsupported:
            raise self._unconditional() from None
        except Exception as e:
            if isinstance(e, KeyError) and verb != "list":
                raise
            if isinstance(e, FileNotFoundError | IsADirectoryError | NotADirectoryError) and verb == "read":
                raise KeyError(key) from None
            action = f"{verb} {f'{key!r} in ' if key else ''}{self.url!r}"
            why = self.redacted(e)
            if isinstance(e, PermissionError):
                raise StoreError(f"No permission to {action}.", code="access-denied") from why
            if isinstance(e, OSError) and e.errno in FULL and verb not in ("read", "list"):
                hint = "Free space, then try again. Nothing of this call is visible."
                raise StoreError(f"No space left to {action}.", code="disk-full", hint=hint) from why
            reraise(why, f"Cannot {action}")
            raise no_answer(self._url, f"Cannot {action}", e, why) from why

    def _unconditional(self) -> StoreError:
        return StoreError(
            f"The store {self.url!r} has no conditional writes, so two writers could lose data of each other.",
            code="no-conditional-put",
            hint=SINGLE_WRITER_HINT,
        )


def changed_file(name: str) -> FormatError:
    """Return the error about a file that was written anew while it was read."""
    hint = "Files of datasets never change; run the statement again."
    return FormatError(f"{name}: it was written anew while it was read", code="corrupt-file", hint=hint)


class Mounts:
    """A store, and others that are mounted beside it: their keys begin with ``@<number>/``.

    A number is used once, so what is remembered of a key is never taken for another file's. A
    store stays mounted as long as somebody holds it: an attachment, or a table of a statement.
    """

    kept: KeptObjects | None = None  # of the store itself

    def __init__(self, main: Store) -> None:
        self.main = main
        self.counter = main.counter
        self.map = main.map
        self._mounted: WeakValueDictionary[str, Store] = WeakValueDictionary()
        self._admit: dict[str, WeakMethod[Callable[[Sequence[str]], None]]] = {}
        self._count = 0

    def mount(self, store: Store, admit: Callable[[Sequence[str]], None] | None = None) -> str:
        """Mount a store and return the beginning of its keys; ``admit`` is asked before files of it are opened."""
        self._count += 1
        prefix = f"{MARK}{self._count}"
        store.counter = self.counter
        self._mounted[prefix] = store
        if admit is not None:
            self._admit[prefix] = WeakMethod(admit, lambda _: self._admit.pop(prefix, None))
        return f"{prefix}/"

    def place(self, key: str) -> tuple[Store, str]:
        """Return the store of a key, and the key in it; KeyError for one that is mounted no more."""
        if not key.startswith(MARK):
            return self.main, key
        prefix, _, rest = key.partition("/")
        return self._mounted[prefix], rest

    @property
    def is_local(self) -> bool:
        """Whether all files are on local disks."""
        return self.main.is_local and (not self._mounted or all(s.is_local for s in list(self._mounted.values())))

    def is_on_disk(self, key: str) -> bool:
        """Return whether a file is on a local disk."""
        return self.place(key)[0].is_local

    def local_path(self, key: str) -> str:
        """Return the absolute path of a local file; links that leave its folder are refused."""
        store, rest = self.place(key)
        return store.local_path(rest)

    def display_name(self, key: str) -> str:
        """Return the name of a file as messages and reports have it: its key, or the URL of what is attached."""
        try:
            store, rest = self.place(key)
        except KeyError:
            return key
        return key if store is self.main else f"{store.url.rstrip('/')}/{rest}"

    def dataset_sizes(self, uuid: str) -> dict[str, int | None]:
        """Return the sizes of all files of a dataset by one listing; nothing for what is attached."""
        return {} if uuid.startswith(MARK) else self.main.dataset_sizes(uuid)

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes; raises KeyError if it is missing."""
        store, rest = self.place(key)
        return store.size(rest)

    def stamp(self, key: str) -> Stamp | None:
        """Return what shows whether a local file was written since, None for remote ones; KeyError as for size."""
        store, rest = self.place(key)
        return store.stamp(rest)

    def sizes(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Return the size of each file in bytes; KeyError for one that is not there."""
        return self._ask_places(Store.sizes, keys)

    def stamps(self, keys: Sequence[str]) -> dict[str, Stamp]:
        """Return the stamps of local files; KeyError for one that is not there."""
        return self._ask_places(Store.stamps, keys)

    def _ask_places(self, ask: Callable[[Store, Sequence[str]], dict[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for prefix, group in self._by_prefix(keys).items():
            answers = ask(self.place(prefix)[0], [key[len(prefix) :] for key in group])
            found.update((key, answers[key[len(prefix) :]]) for key in group)
        return found

    def read(self, key: str, *, start: int | None = None, end: int | None = None, only: str = "") -> bytes:
        """Return the bytes of a file or of a range of it; raises KeyError if it is missing."""
        store, rest = self.place(key)
        return store.read(rest, start=start, end=end, only=only)

    def start_reading(self, lengths: Mapping[str, int], wanted: Callable[[Fetched], int]) -> dict[str, Future[Fetched]]:
        """Start to read the ends of remote files; KeyError for one that is mounted no more."""
        found: dict[str, Future[Fetched]] = {}
        for prefix, keys in self._by_prefix(lengths).items():
            inner = {key[len(prefix) :]: lengths[key] for key in keys}
            started = self.place(prefix)[0].start_reading(inner, wanted)
            found.update((prefix + key, reading) for key, reading in started.items())
        return found

    def result_of(self, key: str, reading: Future[Fetched]) -> Fetched:
        """Return what comes of reading that was started; KeyError when there is no such file."""
        store, rest = self.place(key)
        return store.result_of(rest, reading)

    def _by_prefix(self, keys: Iterable[str]) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for key in keys:
            groups.setdefault(key[: key.index("/") + 1] if key.startswith(MARK) else "", []).append(key)
        return groups

    def admit(self, keys: Sequence[str]) -> None:
        """Raise what speaks against reading files that are about to be opened."""
        for prefix, found in list(self._admit.items()):
            begin, admit = f"{prefix}/", found()
            own = [key[len(begin) :] for key in keys if key.startswith(begin)]
            if own and admit is not None:
                admit(own)


Files = Store | Mounts  # what engines ask for files
