"""The writing side of a store: durable puts, compare-and-swap, deletes."""

from __future__ import annotations

import contextlib
import errno
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from kartosql.errors import KartosqlError, StoreError
from kartosql.failures import FULL, reraise
from kartosql.stopping import shielded
from kartosql.store import turns
from kartosql.store.conditional import Detail, OutcomeUnknown, PreconditionFailed, Unsupported, Version, version_of
from kartosql.store.keys import check_key, side_folder

if TYPE_CHECKING:
    import datetime as dt

    from kartosql.store.local_commit import LocalWriter
    from kartosql.store.remote import RemoteWriter
    from kartosql.store.store import StoreCounter

SINGLE_WRITER_HINT = (
    "If nobody else writes to this store at the same time, set single_writer=True; "
    "two writers would then lose data of each other."
)
_BROKEN = (*FULL, errno.EIO, errno.EROFS)


class StoreWriting:
    """What a store can do beyond reading; a part of Store.

    All of it raises ``unsafe-key``, ``access-denied``, ``disk-full`` and ``store-failed``.
    ``single_writer`` says that nobody else writes; stores without conditional writes are
    then written as well.
    """

    url: str
    fs: Any
    root: str
    is_local: bool
    counter: StoreCounter
    single_writer: bool = False
    _writer_made: LocalWriter | RemoteWriter | None = None
    _conditional: bool | None = None  # None as long as nobody asked
    _conditional_delete: bool = True

    if TYPE_CHECKING:
        _real_root: str
        _probe_lock: threading.Lock
        _local_path: Callable[[str], str]
        local_path: Callable[[str], str]
        read_metadata: Callable[[str], bytes]
        map: Callable[[Any, Sequence[Any]], Iterable[Any]]
        told: Callable[[Exception], Exception]

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
        return turns.take(path, turns.of_folder if self.is_local else turns.in_process)

    # -- what stands there ---------------------------------------------------------------

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
            raise StoreError(f"Cannot {verb} {key!r} in {self.url!r}: {self.told(e)}") from self.told(e)
        except PermissionError as e:
            why = self.told(e)
            raise StoreError(f"No permission to {verb} {key!r} in {self.url!r}.", code="access-denied") from why
        except Exception as e:  # noqa: BLE001 - drivers raise anything
            if isinstance(e, OSError) and e.errno in FULL:
                raise StoreError(
                    f"No space left to {verb} {key!r} in {self.url!r}.",
                    code="disk-full",
                    hint="Free space, then try again. Nothing of this call is visible.",
                ) from self.told(e)
            reraise(self.told(e), f"Cannot {verb} {key!r} in {self.url!r}")
            raise StoreError(f"Cannot {verb} {key!r} in {self.url!r}: {self.told(e)}") from self.told(e)

    def _unconditional(self) -> StoreError:
        return StoreError(
            f"The store {self.url!r} has no conditional writes, so two writers could lose data of each other.",
            code="no-conditional-put",
            hint=SINGLE_WRITER_HINT,
        )


def _writer_of(store: StoreWriting) -> LocalWriter | RemoteWriter:
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
