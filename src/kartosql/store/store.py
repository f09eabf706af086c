"""The store: listing, reading and writing bytes under keys, durably and by compare-and-swap, on any filesystem."""

from __future__ import annotations

import contextlib
import difflib
import errno
import inspect
import os
import stat
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from kartosql.errors import FormatError, KartosqlError, StoreError, UsageError, quoted
from kartosql.failures import FULL, reraise
from kartosql.stopping import checked, shielded
from kartosql.store import advisory_locks
from kartosql.store.conditional import Detail, OutcomeUnknown, PreconditionFailed, Unsupported, Version, version_of
from kartosql.store.keys import check_key, side_folder
from kartosql.store.local import LocalFiles
from kartosql.text.secrets import harmless, redacted

if TYPE_CHECKING:
    import datetime as dt

    from kartosql.store.local_commit import LocalWriter
    from kartosql.store.remote import RemoteWriter

_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "azure"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
}
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError", "TokenRetrievalError")
_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the storage options key and "
    "secret; for public buckets the storage option anon=true.",
}


def protocol_of(url: str) -> str:
    """Return the protocol of a URL, the outermost of several."""
    return url.partition("://")[0].partition("::")[0].lower()


def not_opened(url: str, error: Exception) -> StoreError:
    """Return the error about a store of which the driver cannot be used."""
    protocol = protocol_of(url)
    extra = _EXTRAS.get(protocol)
    if isinstance(error, ImportError):
        return StoreError(
            f"Cannot open the store {url!r}: the driver of {protocol}:// is not installed.",
            code="missing-extra",
            hint=f"pip install 'kartosql[{extra}]'" if extra else _first_line(error),
        )
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return StoreError(f"Cannot open the store {url!r}: there is no driver of {protocol}://.", hint=_known(protocol))
    return StoreError(f"Cannot open the store {url!r}: {_first_line(error)}")


def no_answer(url: str, action: str, error: BaseException, told: BaseException) -> StoreError:
    """Return the error about a call of a driver that failed, with how credentials are given if it is them it misses.

    ``told`` is what may be shown of ``error``.
    """
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ in _NO_CREDENTIALS:
            hint = _CREDENTIALS.get(_EXTRAS.get(protocol_of(url), ""))
            return StoreError(f"{action}: {told}", code="access-denied", hint=hint)
        seen = seen.__cause__ or seen.__context__
    return StoreError(f"{action}: {told}")


def _first_line(error: BaseException) -> str:
    """Return the first line of what a driver says; some go on for pages."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _known(protocol: str) -> str:
    from fsspec import available_protocols

    close = difflib.get_close_matches(protocol, ["s3", "abfs", "gs", "file", *available_protocols()], 1)
    listed = "Protocols are s3://, abfs://, gs://, http:// and others of fsspec; local folders are written as paths."
    return f"Did you mean {close[0]}://? {listed}" if close else listed


SINGLE_WRITER_HINT = (
    "If nobody else writes to this store at the same time, set single_writer=True; "
    "two writers would then lose data of each other."
)
_BROKEN = (*FULL, errno.EIO, errno.EROFS)
MAX_WORKERS = 32
MAX_METADATA_BYTES = 1 << 30
# Their drivers remember listings for ever, and believe them when they are asked for a file or its size.
_REMEMBERING = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl")


class Entry(NamedTuple):
    """One name of a listing; ``size`` is None for folders and local files, ``etag`` where the store gives none."""

    name: str
    size: int | None
    is_dir: bool
    etag: str | None = None


class Stamp(NamedTuple):
    """The identity of a local file and of its last change."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


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
            if kind == "reads" and _is_data(key):
                self.data_bytes += nbytes
            if kind == "reads":
                self.keys.append(key)

    def to_dict(self) -> dict[str, int]:
        """Return the counts as a dictionary."""
        names = ("lists", "reads", "sizes", "writes", "bytes_read")
        return {name: getattr(self, name) for name in names}


def _is_data(key: str) -> bool:
    return not ("/indices/" in key or ".by-dataset-metadata." in key or key.endswith("_common_metadata"))


class Store:
    """A folder or bucket prefix that holds datasets.

    ``url`` is a local path or any fsspec URL. Raises ``store-failed`` when the filesystem
    cannot be made and ``store-not-found`` when a local folder does not exist. ``without_driver``
    says that reads and plain writes will do, where the driver of fsspec may not be installed.
    Writing raises ``unsafe-key``, ``access-denied``, ``disk-full`` and ``store-failed``.
    ``single_writer`` says that nobody else writes; stores without conditional writes are
    then written as well.
    """

    single_writer = False
    _writer_made: LocalWriter | RemoteWriter | None = None
    _conditional: bool | None = None  # None as long as nobody asked
    _conditional_delete = True

    def __init__(
        self,
        url: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        create: bool = False,
        without_driver: bool = False,
    ) -> None:
        url = os.fspath(url) if isinstance(url, os.PathLike) else url
        if not isinstance(url, str) or not url or "\0" in url or not _is_encodable(url):
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
        self.fs, root = (_plain_filesystem if without_driver else _filesystem)(url, dict(self._options))
        self.root: str = root.rstrip("/")
        self.is_local = isinstance(self.fs, LocalFiles)
        self._whole = _whole_object(self.fs)
        self.counter = StoreCounter()
        self._real_root = ""
        self._probe_lock = threading.Lock()
        self._safe_dirs: set[str] = set()
        if self.is_local:
            if create:
                self._make_root()
            try:
                is_folder = stat.S_ISDIR(os.stat(self.root or "/").st_mode)
            except (OSError, ValueError) as e:
                reraise(self.redacted(e), f"Cannot open {self.root!r}")
                is_folder = False
            if not is_folder:
                raise StoreError(
                    f"{self.root!r} is no folder.", code="store-not-found", hint="Check the path of the store."
                )
            self._real_root = os.path.realpath(self.root or "/")
            self._safe_dirs.add(self._real_root)

    def _make_root(self) -> None:
        try:
            os.makedirs(self.root or "/", exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            pass  # what is in the way is reported as no folder
        except PermissionError as e:
            raise StoreError(f"No permission to make {self.root!r}.", code="access-denied") from e
        except OSError as e:
            reraise(self.redacted(e), f"Cannot make {self.root!r}")
            raise StoreError(f"Cannot make {self.root!r}: {e}") from e

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def redacted(self, error: Exception) -> Exception:
        """Return what a driver raised, without the credentials that it may tell."""
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
            raise _link_error(key)
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
                raise _link_error(key)
            self._safe_dirs.add(folder)

    # -- reading -------------------------------------------------------------------------

    def list_root(self) -> list[Entry]:
        """Return files and folders directly below the root, with one listing call."""
        return self._list("")

    def _list(self, prefix: str) -> list[Entry]:
        self.counter.add("lists")
        path = self.path(prefix) if prefix else (self.root or "/")
        try:
            # No listing cache: a statement must see what other processes committed before it.
            rows = self.fs.ls(path, detail=True, refresh=True) if self._refreshable else self.fs.ls(path, detail=True)
        except FileNotFoundError:
            return []  # object stores have no empty folders
        except PermissionError as e:
            raise StoreError(f"No permission to list {self.url!r}.", code="access-denied") from self.redacted(e)
        except Exception as e:  # noqa: BLE001 - drivers raise anything
            if self._is_torn(e):
                return self._list(prefix)
            reraise(self.redacted(e), f"Cannot list {self.url!r}")
            raise no_answer(self._url, f"Cannot list {self.url!r}", e, self.redacted(e)) from self.redacted(e)
        entries = []
        for row in rows:
            name = row["name"].rstrip("/").rsplit("/", 1)[-1]
            is_dir = row["type"] == "directory"
            etag = row.get("ETag")
            etag = etag.strip('"') if isinstance(etag, str) and not is_dir else None
            entries.append(Entry(name, None if is_dir else row.get("size"), is_dir, etag))
        return sorted(entries, key=lambda e: e.name)

    @property
    def _refreshable(self) -> bool:
        return hasattr(self.fs, "dircache") and not self.is_local and "memory" not in self.fs.protocol

    def _is_torn(self, error: Exception) -> bool:
        """Return whether a listing in memory failed because others write or delete objects meanwhile."""
        torn = isinstance(error, (KeyError, RuntimeError)) and not isinstance(error, RecursionError)
        return torn and not self.is_local and "memory" in self.fs.protocol

    def list_below(self, prefix: str) -> dict[str, int | None]:
        """Return every key below ``prefix`` with its size, sorted by key."""
        check_key(prefix, source=self.url)
        self.counter.add("lists")
        try:
            self.fs.invalidate_cache()
            found: dict[str, Any] = self.fs.find(self.path(prefix), detail=True)
        except FileNotFoundError:
            return {}
        except PermissionError as e:
            why = self.redacted(e)
            raise StoreError(f"No permission to list {prefix!r} in {self.url!r}.", code="access-denied") from why
        except Exception as e:  # noqa: BLE001 - drivers raise anything
            if self._is_torn(e):
                return self.list_below(prefix)
            reraise(self.redacted(e), f"Cannot list {prefix!r} in {self.url!r}")
            why = self.redacted(e)
            raise no_answer(self._url, f"Cannot list {prefix!r} in {self.url!r}", e, why) from why
        cut = len(self.root) + 1
        return {path[cut:]: info.get("size") for path, info in sorted(found.items())}

    def read(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of ``key``, or of its range [start, end).

        Raises KeyError when there is no such key, ``store-failed`` and ``access-denied``.
        """
        if self.is_local:
            self.local_path(key)
        with self._errors(key):
            how = self._whole if start is None and end is None else {}
            data: bytes = self.fs.cat_file(self.path(key), start=start, end=end, **how)
        self.counter.add("reads", key, len(data))
        return data

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

    def map(self, function: Any, items: Sequence[Any]) -> Iterable[Any]:
        """Apply ``function`` to all items concurrently and return the results in order."""
        function = checked(function)
        if len(items) <= 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(MAX_WORKERS, len(items))) as pool:
            return list(pool.map(function, items))

    def size(self, key: str) -> int | None:
        """Return the size of ``key`` in bytes; KeyError when there is none."""
        with self._errors(key):
            if self.is_local:
                return self._lstat(key).st_size
            self.counter.add("sizes", key)
            size = self.fs.size(self.path(key))
            return None if size is None else int(size)

    def sizes(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Return the size of each of ``keys`` in bytes; KeyError for one that is not there."""
        if not self.is_local:
            return dict(zip(keys, self.map(self.size, keys), strict=True))
        found: dict[str, int | None] = {}
        for key in keys:
            try:
                info = os.lstat(self._local_path(key))
            except OSError:
                found[key] = self.size(key)  # which raises an error of our own
            else:
                found[key] = info.st_size if stat.S_ISREG(info.st_mode) else self.size(key)
        return found

    def info(self, key: str) -> dict[str, Any]:
        """Return what a remote store tells about a file; KeyError when there is none."""
        self.counter.add("sizes", key)
        with self._errors(key):
            found: dict[str, Any] = self.fs.info(self.path(key))
        return found

    def is_file(self) -> bool:
        """Return whether the URL of the store is that of a file."""
        with self._errors(self.url):
            return bool(self.fs.isfile(self.root))

    def stamp(self, key: str) -> Stamp | None:
        """Return what tells whether a local file was written since, None for remote ones; KeyError as for size."""
        if not self.is_local:
            return None
        with self._errors(key):
            found = self._lstat(key)
        return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def _lstat(self, key: str) -> os.stat_result:
        found = os.lstat(self._local_path(key))
        if stat.S_ISLNK(found.st_mode):
            raise _link_error(key)
        if stat.S_ISDIR(found.st_mode):
            raise KeyError(key)
        if not stat.S_ISREG(found.st_mode):
            raise FormatError(f"{key}: it is no regular file", code="unsafe-key")
        return found

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise KeyError(key) from None
        except PermissionError as e:
            raise StoreError(f"No permission for {key!r} in {self.url!r}.", code="access-denied") from self.redacted(e)
        except (FormatError, StoreError, KeyError):
            raise
        except Exception as e:  # noqa: BLE001 - drivers raise anything
            reraise(self.redacted(e), f"Cannot read {key!r} in {self.url!r}")
            why = self.redacted(e)
            raise no_answer(self._url, f"Cannot read {key!r} in {self.url!r}", e, why) from why

    # -- whole objects -------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> None:
        """Write ``data`` under ``key``; readers see all of it or what was there before."""
        with self._writing(key) as writer:
            writer.put(key, data)

    @contextlib.contextmanager
    def output(self, key: str, *, sync_folders: bool = True, sync_content: bool = True) -> Iterator[IO[bytes]]:
        """Open a new object for writing; it is durable at the end, and removed after an error.

        On local disks an existing file is refused, and the file can be seen while it grows. Many
        files of one folder are faster with ``sync_folders=False`` and one ``sync`` for all. What
        may be missing or torn after a power loss needs neither.
        """
        of_caller: BaseException | None = None
        try:
            with (
                self._writing(key) as writer,
                writer.output(key, sync_folders=sync_folders, sync_content=sync_content) as file,
            ):
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

    def sync(self, keys: Iterable[str]) -> None:
        """Make objects durable that were written by ``output(..., sync_folders=False)``."""
        with self._failures("the folders"):
            self._writer.sync(keys)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there count as removed."""
        for key in keys:
            check_key(key, source="delete")
            self.counter.add("writes", key)
        if keys:
            with self._failures(keys[0], "delete"), shielded():
                self._writer.delete(keys, self.map)

    # -- compare and swap ----------------------------------------------------------------

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return a metadata document and its version; KeyError when there is none."""
        if self.is_local:
            data = self.read_metadata(key)
            return data, version_of(data)
        check_key(key, source="read")
        with self._failures(key, "read"):
            data, version = self._writer.read_versioned(key)
        self.counter.add("reads", key, len(data))
        return data, version

    def put_if(self, key: str, data: bytes, expected: Version | None) -> Version:
        """Write ``data`` if ``key`` still has the expected version, None for no object; return the new one.

        Raises PreconditionFailed and OutcomeUnknown; after a StoreError nothing was written.
        """
        check_key(key, source="write")
        if self.single_writer or not self.is_local:
            self.require_conditional_put(side_folder(key))
        with self._writing(key) as writer:
            return writer.put_if(key, data, expected)

    def delete_if(self, key: str, expected: Version) -> None:
        """Remove ``key`` if it still has the expected version; silent when there is none.

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

        The object that is written for the question stands below ``folder``. With
        ``single_writer`` such a store is accepted, and each write preceded by a look.
        """
        with self._probe_lock:
            if self._conditional is None:
                self._conditional, self._conditional_delete = self._probe(folder)
            if not self._conditional and not self.single_writer:
                raise self._unconditional()
            self._writer.checks_by_reading = not self._conditional

    @property
    def is_conditional(self) -> bool:
        """Whether a write that was not answered cannot happen any more once another version stands there."""
        return not self._writer.checks_by_reading

    def _probe(self, folder: str) -> tuple[bool, bool]:
        key = f"{folder or '.'}{'/' if folder else ''}kartosql-probe-{uuid.uuid4().hex}"
        with self._failures(key):
            return self._writer.probe(check_key(key, source="write"))

    def turn(self, folder: str) -> contextlib.AbstractContextManager[None]:
        """Wait until no other writer on this machine has its turn in ``folder``, for some seconds at most.

        It saves writers from doing work that another one makes useless; nothing relies on it.
        """
        path = f"{self._real_root}/{folder}" if self.is_local else f"{self.url}/{folder}"
        return advisory_locks.take(path, advisory_locks.of_folder if self.is_local else advisory_locks.in_process)

    # -- current state --------------------------------------------------------------------

    def details(self, prefix: str = "") -> dict[str, Detail]:
        """Return size and time of every object whose key starts with ``prefix``, sorted by key."""
        check_key(f"{prefix}x", source=self.url)
        self.counter.add("lists")
        with self._failures(prefix, "list"):
            return self._writer.details(prefix)

    def now(self) -> dt.datetime:
        """Return the time by the clock of the store, which may not be that of this machine."""
        with self._failures("the clock", "read"):
            return self._writer.now()

    # -- how -----------------------------------------------------------------------------

    @property
    def _writer(self) -> LocalWriter | RemoteWriter:
        if self._writer_made is None:
            self._writer_made = _writer_of(self)
        return self._writer_made

    @contextlib.contextmanager
    def _writing(self, key: str) -> Iterator[LocalWriter | RemoteWriter]:
        check_key(key, source="write")
        self.counter.add("writes", key)
        with self._failures(key):
            if self.is_local:
                self.local_path(key)  # links are not written through
            yield self._writer

    @contextlib.contextmanager
    def _failures(self, key: str, verb: str = "write") -> Iterator[None]:
        """Turn what filesystems raise into our errors; ``verb`` says what could not be done."""
        try:
            yield
        except (KartosqlError, PreconditionFailed, OutcomeUnknown, KeyError):
            raise
        except Unsupported:
            raise self._unconditional() from None
        except FileNotFoundError as e:
            if verb == "read":
                raise KeyError(key) from None
            raise StoreError(f"Cannot {verb} {key!r} in {self.url!r}: {self.redacted(e)}") from self.redacted(e)
        except PermissionError as e:
            why = self.redacted(e)
            raise StoreError(f"No permission to {verb} {key!r} in {self.url!r}.", code="access-denied") from why
        except Exception as e:  # noqa: BLE001 - drivers raise anything
            if isinstance(e, OSError) and e.errno in FULL:
                raise StoreError(
                    f"No space left to {verb} {key!r} in {self.url!r}.",
                    code="disk-full",
                    hint="Free space, then try again. Nothing of this call is visible.",
                ) from self.redacted(e)
            reraise(self.redacted(e), f"Cannot {verb} {key!r} in {self.url!r}")
            raise StoreError(f"Cannot {verb} {key!r} in {self.url!r}: {self.redacted(e)}") from self.redacted(e)

    def _unconditional(self) -> StoreError:
        return StoreError(
            f"The store {self.url!r} has no conditional writes, so two writers could lose data of each other.",
            code="no-conditional-put",
            hint=SINGLE_WRITER_HINT,
        )


def _is_encodable(url: str) -> bool:
    try:
        os.fsencode(url)
    except UnicodeEncodeError:
        return False
    return True


def _filesystem(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the filesystem of a URL and the path in it."""
    if "://" not in url and "::" not in url:
        if options:
            raise StoreError(f"A local path takes no storage options, but {sorted(options)[0]!r} was given.")
        return LocalFiles(), os.path.abspath(os.path.expanduser(url))
    if url.partition("://")[0] in _REMEMBERING and "::" not in url:
        options["use_listings_cache"] = False
    try:
        from fsspec.core import url_to_fs

        filesystem, root = url_to_fs(url, **options)
    except Exception as e:  # noqa: BLE001 - drivers raise anything
        why = harmless(e, options)
        raise not_opened(url, why) from why
    protocols = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol
    return (LocalFiles() if "file" in protocols else filesystem), root


def _whole_object(filesystem: Any) -> dict[str, Any]:
    """Return what lets ``cat_file`` ask for a whole object at once, where S3's driver would ask for its size first."""
    call = getattr(filesystem, "_cat_file", None)
    if (
        "s3" not in getattr(filesystem, "protocol", ())
        or call is None
        or "max_concurrency" not in inspect.signature(call).parameters
    ):
        return {}
    return {"max_concurrency": 1}


def _plain_filesystem(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return what ``_filesystem`` returns, or one of pyarrow where the driver is not installed."""
    try:
        return _filesystem(url, options)
    except StoreError as e:
        from kartosql.store.arrow_files import arrow_files

        found = arrow_files(url, options) if isinstance(e.__cause__, ImportError) else None
        if found is None:
            raise
        return found


def _link_error(key: str) -> FormatError:
    return FormatError(
        f"The file {key!r} is a link or lies behind one that leaves its dataset.",
        code="unsafe-key",
        hint="Replace the link by the file itself.",
    )


def _writer_of(store: Store) -> LocalWriter | RemoteWriter:
    """Return the writing side for the kind of filesystem; the parts of it are imported only then."""
    if store.is_local:
        from kartosql.store.local_commit import LocalWriter

        return LocalWriter(store._real_root, store._local_path)
    from kartosql.store.remote import MemoryWriter, RemoteWriter

    protocols = (store.fs.protocol,) if isinstance(store.fs.protocol, str) else tuple(store.fs.protocol)
    if "memory" in protocols:
        return MemoryWriter(store.fs, store.root)
    if "s3" in protocols:
        from kartosql.store.s3 import S3Writer

        return S3Writer(store.fs, store.root)
    if "abfs" in protocols:
        from kartosql.store.azure import AzureWriter

        return AzureWriter(store.fs, store.root)
    if "gs" in protocols:
        from kartosql.store.gcs import GcsWriter

        return GcsWriter(store.fs, store.root)
    return RemoteWriter(store.fs, store.root)
