"""The DuckDB instances of a connection: one that plans, and locked ones that run statements."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.files import FileAccess
from kartosql.engines.duckdb.footers import Footers
from kartosql.engines.duckdb.instance import FOOTER_CACHE_FILES, Instance
from kartosql.engines.duckdb.statement import DuckStatement
from kartosql.plan.scan import Scan
from kartosql.settings import Settings
from kartosql.stopping import Works, is_stopped, shielded
from kartosql.store import Files
from kartosql.tables.table import FileTable

MAX_PLANNERS = 2
MAX_IDLE = 4
MAX_FOOTERS = 2 * FOOTER_CACHE_FILES  # of all idle instances
# To start an instance costs as much as to allow it a few thousand files; an instance for whole
# tables is made when as much was spent on instances for single statements.
FILES_PER_MISS = 4_000
MAX_ALLOWED = 200_000
# Of all connections of the process, so many keep idle instances, and so many of these keep threads that read ahead.
MAX_WARM, MAX_READING_AHEAD = 8, 2
_recent: OrderedDict[int, weakref.ref[Runtime]] = OrderedDict()  # the one that was used last comes last
_recent_guard = threading.Lock()


class Runtime:
    """Hands out planner and statements, from any thread, and keeps what can be used again.

    After ``close()`` everything still works, but nothing is kept.
    """

    def __init__(self, store: Files) -> None:
        self.store = store
        self.footers = Footers()
        self._planning = threading.Lock()
        self._guard = threading.Lock()
        self._planners: OrderedDict[tuple[Any, ...], Planner] = OrderedDict()
        self._idle: list[Instance] = []
        self._misses: dict[frozenset[tuple[str, str]], int] = {}
        self._sizes: weakref.WeakKeyDictionary[FileTable, dict[str, int | None]] = weakref.WeakKeyDictionary()
        self._closed = False
        self._one_more = False
        self.watched = False  # whether somebody looks at the progress of statements
        self._epoch = 0
        self.works = Works()  # what goes on, and can be stopped
        weakref.finalize(self, _close_all, self._planners, self._idle)

    def close(self) -> None:
        """Free what is idle, and stop what other threads are doing; streams that nobody reads stay usable."""
        self._closed = True
        if not self.works.is_of_this_process:
            return
        self.works.stop("connection-closed", of_others=True)
        with self._guard:
            _close_all({}, self._idle)
        # Who plans at this moment closes the planner afterwards.
        if self._planning.acquire(blocking=False):
            try:
                _close_all(self._planners, [])
            finally:
                self._planning.release()

    def forget(self) -> None:
        """Free what is idle, with all that it knows of files; what is attached may have changed."""
        with self._guard:
            self._epoch += 1
            _close_all({}, self._idle)
        with self._planning:
            _close_all(self._planners, [])

    def expect_one(self) -> None:
        """Expect that one more statement runs, so that the planner's instance may run it."""
        self._one_more = True

    def sizes_of(self, tables: Iterable[FileTable]) -> dict[str, int | None]:
        """Return the sizes of all files of tables, for reports, None if one is not there; of a table asked for once.

        In a remote store one listing of the dataset tells them; those of files that are attached are not asked for.
        """
        found: dict[str, int | None] = {}
        for table in tables:
            if (known := self._sizes.get(table)) is None:
                known = self._sizes[table] = self._asked_for(table.files)
            found.update(known)
        return found

    def _asked_for(self, keys: Sequence[str]) -> dict[str, int | None]:
        found: dict[str, int | None] = dict.fromkeys(keys)
        if self.store.is_local:
            for key in keys:
                with contextlib.suppress(KeyError):
                    found[key] = self.store.size(key)
            return found
        listed: dict[str, int | None] = {}
        for uuid in {key.split("/")[0] for key in keys}:
            listed.update(self.store.dataset_sizes(uuid))
        return {key: listed.get(key) for key in keys}

    # -- planning --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def planner(self, settings: Settings, files: FileAccess) -> Iterator[Planner]:
        """Lend the planner for one statement; others wait."""
        _used(self)
        values = settings.engine_settings()
        key = _key(values)
        with self._planning:
            planner = self._planners.pop(key, None) or Planner(self._made(values), files, self.footers)
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
        resting = self._take_resting(settings, scan, files) if scan is not None else None
        if resting is not None:
            return resting
        every = list({id(t): t for t in tables}.values())
        values = settings.engine_settings()
        instance = self._take(values, every, keys) or self._take_planners(values) or self._made(values)

        former = instance.take_over(scan is not None)

        def lock(selected: Sequence[str]) -> None:
            if not instance.is_locked:
                whole = self._is_worth(every)
                allowed = frozenset(k for t in every for k in t.files) if whole else frozenset(selected)
                instance.lock(allowed, files.names(sorted(allowed)), every if whole else ())

        try:
            return DuckStatement(
                instance,
                files,
                self.footers,
                former,
                lock=lock,
                give_back=self._give_back,
                timeout=_milliseconds(settings),
                watched=self.watched,
            )
        except BaseException:
            instance.close()
            raise

    def _take_resting(self, settings: Settings, scan: Scan, files: FileAccess) -> DuckStatement | None:
        values = settings.engine_settings()
        with self._guard:
            for at, found in enumerate(self._idle):
                statement: DuckStatement | None = found.resting
                if statement is not None and found.settings == values and statement.resumes(scan, files):
                    self._idle.pop(at)
                    found.resting = None
                    break
            else:
                return None
        statement.resume(_milliseconds(settings), self._give_back)
        return statement

    def _take(
        self, values: Mapping[str, Any], tables: Sequence[FileTable], keys: Sequence[str] | None
    ) -> Instance | None:
        with self._guard:
            for at in reversed(range(len(self._idle))):
                found = self._idle[at]
                if found.settings == values and (found.covers(tables) if keys is None else found.allows(keys)):
                    return self._idle.pop(at)
        return None

    def _take_planners(self, values: Mapping[str, Any]) -> Instance | None:
        """Return the planner's instance if nothing more is to be planned: a new one takes longer than a small query."""
        if not self._one_more or not self._planning.acquire(blocking=False):
            return None
        try:
            planner = self._planners.pop(_key(values), None)
        finally:
            self._planning.release()
        return planner.end_for_good() if planner is not None else None

    def _made(self, values: Mapping[str, Any]) -> Instance:
        instance = Instance(self.store, values)
        instance.epoch = self._epoch
        return instance

    def _is_worth(self, tables: Sequence[FileTable]) -> bool:
        """Return whether enough statements over ``tables`` came to allow an instance all of their files."""
        count = sum(len(t.files) for t in tables)
        if not tables or count > MAX_ALLOWED:
            return False
        name = frozenset((t.uuid, t.table) for t in tables)
        with self._guard:
            misses = self._misses.get(name, 0)
            worth = misses * FILES_PER_MISS >= count and misses > 0
            self._misses[name] = 0 if worth else misses + 1
        return worth

    def _give_back(self, instance: Instance, reusable: bool) -> None:
        surplus = []
        with self._guard:
            if (
                self._closed
                or not reusable
                or not instance.is_locked
                or instance.worn_out
                or instance.epoch != self._epoch
            ):
                surplus.append(instance)
            else:
                self._idle.append(instance)
                while len(self._idle) > MAX_IDLE or sum(i.footers for i in self._idle) > MAX_FOOTERS:
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

    def release(self) -> None:
        """Free what is idle; the next statement makes it anew."""
        with self._guard:
            old, self._idle[:] = [*self._idle], []
        for instance in old:
            instance.close_later()
        if self._planning.acquire(blocking=False):
            try:
                _close_all(self._planners, [])
            finally:
                self._planning.release()


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
            found.release()
        elif found is not None and at >= MAX_READING_AHEAD:
            found.rest()


def _forget_parents() -> None:
    """Forget the runtimes of the process that this one was forked from."""
    global _recent_guard
    _recent_guard = threading.Lock()
    _recent.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)


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
