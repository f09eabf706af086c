"""One private DuckDB instance: made with the settings of a connection, locked before a user's text runs in it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from kartosql.errors import UsageError
from kartosql.formats.arrays import array_of
from kartosql.plan.bind import SCHEMA
from kartosql.store import Files
from kartosql.tables.table import FileTable

if TYPE_CHECKING:
    from kartosql.engines.duckdb.remote import StoreFiles

# What we change from statement to statement. SET is a statement of its own, so no query of a user reaches it.
# DuckDB 2.0 reads the position of a file from rows that have none when it materialises late, so that
# looking partition values up by it fails ("Attempted to access index ... within vector of size").
LATE = "late_materialization"
OURS = (
    "max_execution_time",
    "parquet_metadata_cache",
    "enable_profiling",
    "disabled_optimizers",
    "async_threads",
    "enable_progress_bar",
    "enable_progress_bar_print",
)
SMALL_LIST = 100  # up to here a list of Python objects is quicker than an Arrow table
FOOTER_CACHE_FILES = 4_000  # a cached footer takes about 30 kB

PREPARED_SCHEMAS = 4
# Each thread that computes or reads ahead has up to so many files open in a scan of small files, as measured.
FILES_OPEN = 16
RESERVED = 64  # for all else that the process opens
_THREADS = "SELECT current_setting('threads'), current_setting('async_threads')"
of_process: weakref.WeakSet[Any] = weakref.WeakSet()  # instances, and what holds connections to them
_default_threads: tuple[int, int] | None = None


def check_setting(name: str, value: Any) -> None:
    """Raise ``invalid-setting`` for what DuckDB does not take for one of its settings."""
    with duckdb.connect(":memory:") as connection:
        _set(connection, name, value)


def _set(connection: duckdb.DuckDBPyConnection, name: str, value: Any) -> None:
    text = str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
    try:
        connection.execute(f"SET GLOBAL {name} = {text}")
    except duckdb.Error as e:
        reason = str(e).splitlines()[0]
        raise UsageError(f"{value!r} is no value for the setting {name}: {reason}", code="invalid-setting") from None


class Instance:
    """An in-memory DuckDB of which each statement takes a cursor.

    ``settings`` are DuckDB's by name. Raises ``invalid-setting``.
    """

    def __init__(self, store: Files, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self._process = os.getpid()
        of_process.add(self)
        self.filesystem: StoreFiles | None = None
        self._allowed: frozenset[str] | None = None
        self._tables: dict[int, weakref.ref[FileTable]] = {}
        self._footers: dict[str, weakref.ref[FileTable]] = {}
        self._current: dict[str, Any] = {
            "max_execution_time": 0,
            "parquet_metadata_cache": False,
            "disabled_optimizers": "''",
        }
        self._directly = True
        self.worn_out = False
        self.epoch = 0  # of the runtime when it was made
        self.resting: Any = None  # a statement that ended, whose views are still there
        # For the views of a statement's first occurrences.
        self.schemas = tuple(f"{SCHEMA}{i}" for i in range(PREPARED_SCHEMAS))
        # Private, as DuckDB may always read and write it; made when something is spilled.
        self._temporary = os.path.join(tempfile.gettempdir(), f"kartosql-{uuid.uuid4().hex}")
        # Threads that read ahead come with the first statement; the planner needs none.
        config = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "async_threads": "0"}
        self._root = duckdb.connect(":memory:", config=config)
        try:
            if not store.is_local:
                from kartosql.engines.duckdb.remote import StoreFiles

                self.filesystem = StoreFiles(store)
                self._root.register_filesystem(self.filesystem)
                # The bytes are in memory already.
                self._root.execute("SET GLOBAL enable_external_file_cache = false")
            self._root.execute("SET GLOBAL python_enable_replacements = false")
            for schema in self.schemas:
                self._root.execute(f"CREATE SCHEMA {schema}")
            threads, default = _threads(self._root)
            for name, value in {"temp_directory": self._temporary, **settings}.items():
                _set(self._root, name, value)
            threads = settings.get("threads", threads)
            self._ahead = min(default, max(0, _descriptors() // FILES_OPEN - threads))
        except BaseException:
            self.close()
            raise

    @property
    def is_of_this_process(self) -> bool:
        """Whether it can be used: in a fork its threads are missing, and its locks may be held by them."""
        return self._process == os.getpid()

    def wake(self) -> None:
        """Forget the statement that rests."""
        resting, self.resting = self.resting, None
        if resting is not None:
            resting.forget()

    def take_over(self, wanted: bool) -> Any:
        """Return the statement that rests if another one wants to go on where it ended, and may; else forget it."""
        resting = self.resting
        if not wanted or resting is None or not resting.may_hand_over:
            self.wake()
            return None
        self.resting = None
        return resting

    def cursor(self) -> Any:
        """Return a connection of its own, for one statement."""
        return self._root.cursor()

    def change(self, name: str, value: int | bool | str) -> None:
        """Change one of OURS for the statement that comes."""
        if self._current[name] != value:
            self._root.execute(f"SET GLOBAL {name} = {str(value).lower()}")
            self._current[name] = value

    def read_directly(self, directly: bool) -> None:
        """Let threads that compute read files themselves, which is quicker where the pages are in memory anyway."""
        if self._directly != directly:
            self._root.execute(f"SET GLOBAL async_threads = {0 if directly else self._ahead}")
            self._directly = directly

    def drop_schema(self, name: str) -> None:
        """Forget all that was made in a schema."""
        self._root.execute(f"DROP SCHEMA {name} CASCADE")

    def remember_footers(self, table: FileTable, keys: Sequence[str]) -> None:
        """Let DuckDB keep the footers of ``keys``, unless they are too many, or may have changed unnoticed.

        DuckDB knows local files by their times; those of other stores have none.
        """
        known = self._footers
        stale = self.filesystem is not None and any((r := known.get(k)) is not None and r() is not table for k in keys)
        fits = not stale and len(known.keys() | keys) <= FOOTER_CACHE_FILES
        if fits:
            known.update(dict.fromkeys(keys, weakref.ref(table)))
        # The next statements start with an empty cache if they may fill it.
        self.worn_out |= not fits and len(keys) <= FOOTER_CACHE_FILES
        self.change("parquet_metadata_cache", fits)

    @property
    def footers(self) -> int:
        """Number of footers kept."""
        return len(self._footers)

    # -- the lock ------------------------------------------------------------------------------

    @property
    def is_locked(self) -> bool:
        """Whether a user's text may run here."""
        return self._allowed is not None

    def lock(self, keys: frozenset[str], paths: Sequence[str], tables: Sequence[FileTable] = ()) -> None:
        """Take away access to everything but ``paths``, the files ``keys``, and lock the settings.

        ``tables`` are those of which every file is among them.
        """
        self._root.execute("SET VARIABLE allowed = ?", [list(paths)])
        self._root.execute("SET GLOBAL allowed_paths = getvariable('allowed')")
        self._root.execute("RESET VARIABLE allowed")
        self._root.execute(f"SET GLOBAL allowed_configs = {list(OURS)}")
        self._root.execute("SET GLOBAL enable_external_access = false")
        self._root.execute("SET GLOBAL lock_configuration = true")
        self._allowed = keys
        self._tables = {id(t): weakref.ref(t) for t in tables}

    def allows(self, keys: Sequence[str]) -> bool:
        """Return whether a statement over the files ``keys`` may run here."""
        return self._allowed is not None and self._allowed.issuperset(keys)

    def covers(self, tables: Sequence[FileTable]) -> bool:
        """Return whether all files of ``tables`` may be read here."""
        return all((ref := self._tables.get(id(t))) is not None and ref() is t for t in tables)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the instance; whatever runs in it is stopped."""
        if not self.is_of_this_process:
            return
        self.wake()
        with contextlib.suppress(duckdb.Error):
            self._root.interrupt()
        self._root.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def close_later(self) -> None:
        """Free the instance in a thread of its own, as it takes longer than a small statement."""
        if not self.is_of_this_process:
            return
        try:
            # No daemon, as a thread that a daemon starts would be: the interpreter waits for it.
            threading.Thread(target=self.close, name="kartosql-close", daemon=False).start()
        except RuntimeError:  # the interpreter is about to end
            self.close()


def _leave_to_parent() -> None:
    """Keep all that DuckDB holds in a fork: to free it would wait for threads that are not there."""
    for found in list(of_process):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def _threads(connection: Any) -> tuple[int, int]:
    """Return how many threads compute, and how many read ahead, unless a setting says otherwise."""
    global _default_threads
    if _default_threads is None:
        connection.execute("RESET GLOBAL async_threads")
        _default_threads = connection.execute(_THREADS).fetchall()[0]
        connection.execute("SET GLOBAL async_threads = 0")
    return _default_threads


def _descriptors() -> int:
    """Return how many files the process may have open, but for some that others need."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(0, limit - RESERVED)


def set_files(connection: Any, variable: str, paths: Sequence[str], sizes: Sequence[int | None]) -> None:
    """Set a variable to a list of files for DuckDB's functions over Parquet files.

    Files that come with a size are neither taken for patterns nor looked for when a query is bound.
    """
    if any(size is None for size in sizes):
        connection.execute(f"SET VARIABLE {variable} = ?", [list(paths)])
    elif len(paths) < SMALL_LIST:
        listed = [{"filename": path, "file_size": size} for path, size in zip(paths, sizes, strict=True)]
        connection.execute(f"SET VARIABLE {variable} = ?", [listed])
    else:
        positions = array_of(range(len(paths)), pa.int64())
        columns = {"i": positions, "filename": array_of(paths, pa.string()), "file_size": array_of(sizes, pa.int64())}
        name = f"{variable}_list"
        connection.register(name, pa.table(columns))
        connection.execute(
            f"SET VARIABLE {variable} = "
            f"(SELECT list({{'filename': filename, 'file_size': file_size}} ORDER BY i) FROM {name})"
        )
        connection.unregister(name)
