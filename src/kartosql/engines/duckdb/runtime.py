"""The DuckDB instances of a connection: one that plans, and locked ones that run statements."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb

from kartosql.engines.duckdb.alignment import Alignments
from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.footers import Footers
from kartosql.engines.duckdb.lockdown import CONFIG, PIVOTED, lock
from kartosql.engines.duckdb.statement import DuckStatement, FileAccess, of_process
from kartosql.errors import UsageError
from kartosql.plan.bind import SCHEMA
from kartosql.plan.scan import Scan
from kartosql.settings import Settings, machine_memory
from kartosql.stopping import Works, is_stopped, shielded
from kartosql.store import Files
from kartosql.tables.table import FileTable
from kartosql.text.constants import literal

if TYPE_CHECKING:
    from kartosql.engines.duckdb.remote import SlotFiles, StoreFiles
    from kartosql.user_cache import UserCache


# What DuckDB keeps of footers takes so many bytes for each column of a file, within its own limit of memory. All idle
# instances of a connection together keep no more than one of them may.
COLUMN_BYTES = 1_500
MAX_FOOTER_BYTES = min(1 << 30, machine_memory() // 16)

PREPARED_SCHEMAS = 4
# Each thread that computes or reads ahead has up to so many files open in a scan of small files, as measured.
FILES_OPEN = 16
RESERVED = 64  # for all else that the process opens
_THREADS = "SELECT current_setting('threads'), current_setting('async_threads')"
_default_threads: tuple[int, int] | None = None


def check_setting(name: str, value: Any) -> None:
    """Raise ``invalid-setting`` for what DuckDB does not take for one of its settings."""
    with duckdb.connect(":memory:") as connection:
        _set(connection, name, value)


def _set(connection: duckdb.DuckDBPyConnection, name: str, value: Any) -> None:
    text = str(value) if isinstance(value, int) else literal(str(value))
    try:
        connection.execute(f"SET GLOBAL {name} = {text}")
    except duckdb.Error as e:
        reason = str(e).splitlines()[0]
        raise UsageError(f"{value!r} is no value for the setting {name}: {reason}", code="invalid-setting") from None


class Instance:
    """An in-memory DuckDB of which each statement takes a cursor.

    ``settings`` are DuckDB's by name. With ``slots`` it may open few local files of each statement, and no others.
    Raises ``invalid-setting``.
    """

    def __init__(self, store: Files, settings: Mapping[str, Any], *, slots: bool = False) -> None:
        self.settings = dict(settings)
        self._process = os.getpid()
        of_process.add(self)
        self.filesystem: StoreFiles | None = None
        self.slots: SlotFiles | None = None
        self._allowed: frozenset[str] | None = None
        self._tables: dict[int, weakref.ref[FileTable]] = {}
        self._footers: dict[str, weakref.ref[FileTable]] = {}
        self._current: dict[str, Any] = {
            "max_execution_time": 0,
            "parquet_metadata_cache": False,
            "disabled_optimizers": "''",
            "async_threads": 0,
            "pivot_filter_threshold": PIVOTED,
        }
        self.footer_bytes = 0  # about what the footers take that are kept
        self.worn_out = False
        self.ran_short = False  # of memory, which the next statement may need
        self.epoch = 0  # of the runtime when it was made
        self.resting: Any = None  # a statement that ended, whose views are still there
        # For the views of a statement's first occurrences.
        self.schemas = tuple(f"{SCHEMA}{i}" for i in range(PREPARED_SCHEMAS))
        # Private, as DuckDB may always read and write it; made when something is spilled.
        self._temporary = os.path.join(tempfile.gettempdir(), f"kartosql-{uuid.uuid4().hex}")
        self._root = duckdb.connect(":memory:", config=CONFIG)
        try:
            if not store.is_local:
                from kartosql.engines.duckdb.remote import StoreFiles

                self.filesystem = StoreFiles(store)
            elif slots:
                from kartosql.engines.duckdb.remote import SlotFiles

                self.slots = SlotFiles(SLOTS)
            if (own := self.filesystem or self.slots) is not None:
                self._root.register_filesystem(own)
                # The bytes are in memory already.
                self._root.execute("SET GLOBAL enable_external_file_cache = false")
            self._root.execute("SET GLOBAL python_enable_replacements = false")
            for schema in self.schemas:
                self._root.execute(f"CREATE SCHEMA {schema}")
            threads, default = _threads(self._root)
            for name, value in {"temp_directory": self._temporary, **settings}.items():
                _set(self._root, name, value)
            self.threads = settings.get("threads", threads)
            self._ahead = min(default, max(0, _descriptors() // FILES_OPEN - self.threads))
        except BaseException:
            self.close()
            raise

    @property
    def is_of_this_process(self) -> bool:
        """Whether it can be used: in a fork its threads are missing, and its locks may be held by them."""
        return self._process == os.getpid()

    def take_over(self, wanted: bool = False) -> Any:
        """Return the statement that rests if another one wants to go on where it ended, and may; else forget it."""
        resting, self.resting = self.resting, None
        if resting is None or (wanted and resting.may_hand_over):
            return resting
        resting.forget()
        return None

    def cursor(self) -> Any:
        """Return a connection of its own, for one statement."""
        return self._root.cursor()

    def change(self, name: str, value: int | bool | str) -> None:
        """Change one of OURS for the statement that comes."""
        if self._current[name] != value:
            self._root.execute(f"SET GLOBAL {name} = {str(value).lower()}")
            self._current[name] = value

    def setting(self, name: str) -> Any:
        """Return what one of OURS was changed to."""
        return self._current[name]

    def read_directly(self, directly: bool) -> None:
        """Let threads that compute read files themselves.

        Where pages are in memory anyway, handing reads over to other threads takes a third of the time of a scan.
        """
        self.change("async_threads", 0 if directly else self._ahead)

    def remember_footers(self, table: FileTable, keys: Sequence[str]) -> None:
        """Let DuckDB keep the footers of ``keys``, unless they are too many, or may have changed unnoticed.

        DuckDB knows local files by their times; those of other stores have none.
        """
        if self.slots is not None:
            self.change("parquet_metadata_cache", COLUMN_BYTES * len(table.schema.names) * SLOTS <= MAX_FOOTER_BYTES)
            return
        known = self._footers
        stale = self.filesystem is not None and any((r := known.get(k)) is not None and r() is not table for k in keys)
        each = COLUMN_BYTES * len(table.schema.names)
        held = self.footer_bytes + each * sum(key not in known for key in keys)
        fits = not stale and held <= MAX_FOOTER_BYTES
        if fits:
            self.footer_bytes = held
            known.update(dict.fromkeys(keys, weakref.ref(table)))
        # The next statements start with an empty cache if they may fill it.
        self.worn_out |= not fits and each * len(keys) <= MAX_FOOTER_BYTES
        self.change("parquet_metadata_cache", fits)

    def calms_down(self, most: int) -> bool:
        """Forget the last statement and end threads that read ahead; returns whether it holds at most so many bytes."""
        self.epoch = 0
        try:
            self.take_over()
            self.read_directly(True)
            ((held,),) = self._root.execute("SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()").fetchall()
        except duckdb.Error:
            return False
        return (held or 0) + (0 if self.filesystem is None else self.filesystem.forget()) <= most

    # -- the lock ------------------------------------------------------------------------------

    @property
    def is_locked(self) -> bool:
        """Whether a user's text may run here."""
        return self._allowed is not None

    def lock(self, keys: frozenset[str], paths: Sequence[str], tables: Sequence[FileTable] = ()) -> None:
        """Take away access to everything but ``paths``, the files ``keys``, and lock the settings.

        ``tables`` are those of which every file is among them.
        """
        lock(self._root, paths if self.slots is None else self.slots.names)
        self._allowed = keys
        self._tables = {id(t): weakref.ref(t) for t in tables}

    def allows(self, keys: Sequence[str]) -> bool:
        """Return whether a statement over the files ``keys`` may run here, slots aside."""
        return self.slots is None and self._allowed is not None and self._allowed.issuperset(keys)

    def covers(self, tables: Sequence[FileTable]) -> bool:
        """Return whether all files of ``tables`` may be read here."""
        return all((ref := self._tables.get(id(t))) is not None and ref() is t for t in tables)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the instance; whatever runs in it is stopped."""
        if not self.is_of_this_process:
            return
        self.take_over()
        with contextlib.suppress(duckdb.Error):
            self._root.interrupt()
        self._root.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def close_later(self) -> None:
        """Free the instance in a thread of its own, as it takes longer than a small statement."""
        if not self.is_of_this_process:
            return
        if self.ran_short:
            self.close()
            return
        try:
            # No daemon, as a thread that a daemon starts would be: the interpreter waits for it.
            threading.Thread(target=self.close, name="kartosql-close", daemon=False).start()
        except RuntimeError:  # the interpreter is about to end
            self.close()


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


MAX_PLANNERS = 2
MAX_IDLE = 4
# To start an instance costs as much as to allow it a few thousand files; an instance for whole
# tables is made when as much was spent on instances for single statements.
FILES_PER_MISS = 4_000
MAX_ALLOWED = 200_000
# So few and small files a statement reads by slots, which takes it longer than to allow some files: 0.13 ms for each.
SLOTS, SLOT_BYTES, FILES_PER_SLOTS = 8, 16 << 20, 12
# Of all connections of the process, so many keep idle instances, and so many of these keep threads that read ahead.
MAX_WARM, MAX_READING_AHEAD = 8, 2
_recent: OrderedDict[int, weakref.ref[Runtime]] = OrderedDict()  # the one that was used last comes last
_recent_guard = threading.Lock()


@dataclass
class Engines:
    """Instances of one store that nobody uses, and what is known of files; one runtime has them."""

    planners: OrderedDict[tuple[Any, ...], Planner] = field(default_factory=OrderedDict)
    idle: list[Instance] = field(default_factory=list)
    footers: Footers = field(default_factory=Footers)
    alignments: Alignments = field(default_factory=Alignments)
    # What statements over tables cost, in files to allow, and the present state of these tables.
    misses: dict[frozenset[tuple[str, str]], tuple[int, list[weakref.ref[FileTable]]]] = field(default_factory=dict)
    are_calm: bool = False  # whether nobody used them since they were shrunk

    def shrink(self, most: int) -> None:
        """Keep the planner and the instance that were used last, if they hold at most so many bytes, and no threads."""
        if self.are_calm:
            return
        self.are_calm = True
        planners = [*self.planners.items()]
        for key, planner in planners:
            if planner is not planners[-1][1] or not planner.instance.calms_down(most):
                del self.planners[key]
                planner.close()
        kept = [i for i in self.idle[-1:] if i.calms_down(most)]
        for instance in self.idle:
            if instance not in kept:
                instance.close_later()
        self.idle[:] = kept

    def close(self) -> None:
        """Free all instances."""
        _close_all(self.planners, self.idle)


class Runtime:
    """Hands out planner and statements, from any thread, and keeps what can be used again.

    It begins with the ``engines`` that another one left. After ``close()`` everything still works, but nothing is kept.
    """

    def __init__(self, store: Files, engines: Engines | None = None, cache: UserCache | None = None) -> None:
        self.store = store
        engines = engines or Engines()
        self.footers, self.alignments = engines.footers, engines.alignments
        self.alignments.cache = self.footers.user_cache = cache
        self._planning = threading.Lock()
        self._guard = threading.Lock()
        self._planners = engines.planners
        self._idle = engines.idle
        self._misses = engines.misses
        self._are_calm = engines.are_calm
        self._sizes: weakref.WeakKeyDictionary[FileTable, dict[str, int | None]] = weakref.WeakKeyDictionary()
        self._closed = False
        self.one_more = False  # whether but one statement is expected, which the planner's instance may run
        self.watched = False  # whether somebody looks at the progress of statements
        self._epoch = 0
        self.works = Works()  # what goes on, and can be stopped
        weakref.finalize(self, _close_all, self._planners, self._idle)

    def close(self) -> Engines | None:
        """Stop what other threads are doing, and return what is idle; streams that nobody reads stay usable.

        None in a fork.
        """
        self._closed = True
        if not self.works.is_of_this_process:
            return None
        self.works.stop("connection-closed", of_others=True)
        left = Engines(footers=self.footers, alignments=self.alignments, misses=self._misses, are_calm=self._are_calm)
        with self._guard:
            left.idle, self._idle[:] = [*self._idle], []
        # Who plans at this moment closes the planner afterwards.
        if self._planning.acquire(blocking=False):
            try:
                left.planners = self._planners.copy()
                self._planners.clear()
            finally:
                self._planning.release()
        return left

    def forget(self) -> None:
        """Free what is idle, with all that it knows of files; what is attached may have changed."""
        with self._guard:
            self._epoch += 1
        self._free(wait=True)

    def _free(self, *, later: bool = False, wait: bool = False) -> None:
        """Free what is idle, and the planners unless one is planning; ``wait`` until it is not."""
        with self._guard:
            idle, self._idle[:] = [*self._idle], []
        for instance in idle:
            (instance.close_later if later else instance.close)()
        if self._planning.acquire(blocking=wait):
            try:
                _close_all(self._planners, [])
            finally:
                self._planning.release()

    def sizes_of(self, tables: Iterable[FileTable]) -> dict[str, int | None]:
        """Return the sizes of all files of tables, for reports, None if one is not there; of a table asked for once.

        In a remote store one listing of the dataset gives them; those of files that are attached are not asked for.
        """
        found: dict[str, int | None] = {}
        for table in tables:
            if (known := self._sizes.get(table)) is None:
                listed: dict[str, int | None] = {}
                for dataset in () if self.store.is_local else {key.split("/")[0] for key in table.files}:
                    listed.update(self.store.dataset_sizes(dataset))
                for key in table.files if self.store.is_local else ():
                    with contextlib.suppress(KeyError):
                        listed[key] = self.store.size(key)
                known = self._sizes[table] = {key: listed.get(key) for key in table.files}
            found.update(known)
        return found

    # -- planning --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def planner(self, settings: Settings, files: FileAccess) -> Iterator[Planner]:
        """Lend the planner for one statement; others wait."""
        _used(self)
        self._are_calm = False
        values = settings.engine_settings()
        key = _key(values)
        with self._planning:
            planner = self._planners.pop(key, None) or Planner(self._new_instance(values), files, self.footers)
            self._planners[key] = planner
            try:
                planner.begin(files, _milliseconds(settings))
                yield planner
            finally:
                with shielded():
                    planner.end()
                if is_stopped():  # in the middle of whatever it made
                    del self._planners[key]
                    planner.close()
                while len(self._planners) > (0 if self._closed else MAX_PLANNERS):
                    _, old = self._planners.popitem(last=False)
                    old.close()

    # -- running ---------------------------------------------------------------------------------

    def statement(
        self,
        settings: Settings,
        files: FileAccess,
        tables: Iterable[FileTable] = (),
        keys: Sequence[str] | None = None,
        scan: Scan | None = None,
    ) -> DuckStatement:
        """Return a statement over ``tables`` that reads the files ``keys``.

        Without ``keys`` it may be begun before its files are known; they are given to
        ``DuckStatement.prepare`` by the scan then. If the views of ``scan`` are still there, they
        are used again, and so is what fits of those of another scan. Without ``scan`` the
        statement has a transaction of its own.
        """
        self._are_calm = False
        values = settings.engine_settings()
        if scan is not None and (
            found := self._take(values, lambda i: i.resting is not None and i.resting.resumes(scan, files))
        ):
            resting: DuckStatement = found.resting
            found.resting = None
            resting.resume(_milliseconds(settings), self._give_back)
            return resting
        every = list({id(t): t for t in tables}.values())
        instance = self._take(values, lambda i: i.covers(every) if keys is None else i.allows(keys))
        if instance is None and keys is not None and scan is not None and self._slots_pay(every, keys, files):
            instance = self._take(values, lambda i: i.slots is not None) or self._new_instance(values, slots=True)
        instance = instance or self._take_planners(values) or self._new_instance(values)
        former = instance.take_over(scan is not None)

        def lock_up(selected: Sequence[str]) -> None:
            if not instance.is_locked:
                whole = instance.slots is None and self._is_worth(every)
                allowed = frozenset(k for t in every for k in t.files) if whole else frozenset(selected)
                instance.lock(allowed, files.names(sorted(allowed)), every if whole else ())

        try:
            return DuckStatement(
                instance,
                files,
                self.footers,
                former,
                lock=lock_up,
                give_back=self._give_back,
                timeout=_milliseconds(settings),
                alignments=self.alignments,
                watched=self.watched,
            )
        except BaseException:
            instance.close()
            raise

    def _take(self, values: Mapping[str, Any], fits: Callable[[Instance], bool]) -> Instance | None:
        with self._guard:
            for at in reversed(range(len(self._idle))):
                if self._idle[at].settings == values and fits(self._idle[at]):
                    return self._idle.pop(at)
        return None

    def _take_planners(self, values: Mapping[str, Any]) -> Instance | None:
        """Return the planner's instance if nothing more is to be planned: a new one takes longer than a small query."""
        if not self.one_more or not self._planning.acquire(blocking=False):
            return None
        try:
            planner = self._planners.pop(_key(values), None)
        finally:
            self._planning.release()
        return planner.end_for_good() if planner is not None else None

    def _new_instance(self, values: Mapping[str, Any], *, slots: bool = False) -> Instance:
        instance = Instance(self.store, values, slots=slots)
        instance.epoch = self._epoch
        return instance

    def _slots_pay(self, tables: Sequence[FileTable], keys: Sequence[str], files: FileAccess) -> bool:
        """Return whether a statement over few files is to open them by slots, as others came before it."""
        sizes = [files.sizes.get(k) for k in keys]
        if not self.store.is_local or not hasattr(os, "pread") or not 0 < len(keys) <= SLOTS or None in sizes:
            return False
        if sum(n or 0 for n in sizes) > SLOT_BYTES or not all(t.has_footers for t in tables):
            return False
        count = sum(len(t.files) for t in tables)
        with self._guard:
            spent = self._spent(tables)
            # After a commit, an instance for all files of the state before is of no use any more.
            if spent is None and _names(tables) not in self._misses:
                return False
            if spent is not None and (not spent or spent >= count <= MAX_ALLOWED):
                return False
            self._spend(tables, (spent or 0) + FILES_PER_SLOTS)
        return True

    def _spent(self, tables: Sequence[FileTable]) -> int | None:
        """Return what statements over tables as they are cost, None if none came."""
        spent, known = self._misses.get(_names(tables), (0, []))
        is_same = {id(r()) for r in known} == {id(t) for t in tables}
        return spent if is_same and known else None

    def _spend(self, tables: Sequence[FileTable], spent: int) -> None:
        self._misses[_names(tables)] = spent, [weakref.ref(t) for t in tables]

    def _is_worth(self, tables: Sequence[FileTable]) -> bool:
        """Return whether enough statements over ``tables`` came to allow an instance all of their files."""
        count = sum(len(t.files) for t in tables)
        if not tables:
            return False
        with self._guard:
            spent = self._spent(tables) or 0
            worth = 0 < spent >= count <= MAX_ALLOWED
            self._spend(tables, 0 if worth else spent + FILES_PER_MISS)
        return worth

    def _give_back(self, instance: Instance, reusable: bool) -> None:
        surplus = []
        with self._guard:
            current = not self._closed and instance.epoch == self._epoch
            if not (current and reusable and instance.is_locked) or instance.worn_out:
                surplus.append(instance)
            else:
                self._idle.append(instance)
                while len(self._idle) > MAX_IDLE or sum(i.footer_bytes for i in self._idle) > MAX_FOOTER_BYTES:
                    surplus.append(self._idle.pop(0))
        for old in surplus:
            old.close_later()
        _used(self)

    # -- many connections ------------------------------------------------------------------------

    def rest(self) -> None:
        """End the threads that read ahead for statements to come."""
        with self._guard:
            for instance in self._idle:
                instance.read_directly(True)


def _used(runtime: Runtime) -> None:
    """Note that a runtime was used just now, and let those rest that were not used for long."""
    if next(reversed(_recent), None) == id(runtime):
        return
    with _recent_guard:
        _recent.pop(id(runtime), None)
        _recent[id(runtime)] = weakref.ref(runtime)
        for number in [n for n, ref in _recent.items() if ref() is None]:
            del _recent[number]
        order = [ref() for ref in reversed(_recent.values())]
        while len(_recent) > MAX_WARM:
            _recent.popitem(last=False)
    for at, found in enumerate(order):
        if found is not None and at >= MAX_WARM:
            found._free(later=True)
        elif found is not None and at >= MAX_READING_AHEAD:
            found.rest()


def _forget_parents() -> None:
    global _recent_guard
    _recent_guard = threading.Lock()
    _recent.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)


def _names(tables: Iterable[FileTable]) -> frozenset[tuple[str, str]]:
    return frozenset((t.uuid, t.table) for t in tables)


def _key(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(values.items()))


def _milliseconds(settings: Settings) -> int:
    return 0 if settings["timeout"] is None else max(1, int(settings["timeout"] * 1000))


def _close_all(planners: dict[Any, Planner], idle: list[Instance]) -> None:
    # In a fork each of them does nothing, and stays.
    while planners:
        planners.popitem()[1].close()
    while idle:
        idle.pop().close()
