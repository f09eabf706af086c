"""Programs of some actors over one store, made by a seed; what comes of them has to be sequential.

A failure prints what it takes to see it again, and the least program that shows it.
"""

from __future__ import annotations

import functools
import io
import itertools
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import kartosql
from kartosql import session_pool
from kartosql.errors import CommitUnknown, KartosqlError, KartosqlWarning, StoreError
from kartosql.formats.kartothek import metadata
from kartosql.store import Store
from kartosql.write import cubes, datasets
from kartosql.write.removal import Removal
from trust.files import Object, simulated
from trust.lake import FOLDER, Lake
from trust.model import START_C, START_D, WRITES, Event, History
from trust.scheduler import DAY, FATES, Crashed, Fault, Scheduler
from writing import originals

Op = tuple[Any, ...]
PARTS, TEXTS = "ab", ("s0", "s1", "s2")
KEYS = [("a", 1), ("a", 2), ("b", 3), ("a", 5), ("b", 6)]
CUBE = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
GRACE = 7 * DAY
FIRST = 1  # version of ``d``
AS_BUILT = "2026-01-01 00:30:00Z"  # when all has been made, and nobody acts yet
SHRINKS = 400  # runs to make a program shorter


class Violation(AssertionError):
    """What must not be."""


@dataclass(frozen=True)
class Program:
    """What actors do: ``seed`` chooses who goes on; ``shared`` says which of them are of one process."""

    seed: str
    actors: tuple[tuple[Op, ...], ...]
    faults: tuple[Fault, ...] = ()
    skews: tuple[float, ...] = ()
    shared: bool = False
    plain: bool = False  # whether whole tables are read, and partitions removed, without an engine: a tenth of the time

    def __str__(self) -> str:
        actors = "".join(f"\n        {ops!r}," for ops in self.actors)
        faults = "".join(f"\n        {fault!r}," for fault in self.faults)
        return (
            f"Program(\n    {self.seed!r},\n    ({actors}\n    ),\n    ({faults}\n    ),\n    {self.skews!r},\n"
            f"    {self.shared!r},\n    {self.plain!r},\n)"
        )


# -- programs by chance ------------------------------------------------------------------------------


class _Maker:
    def __init__(self, random: Random, only: Sequence[str]) -> None:
        self.random = random
        # Statements that an engine has part in take longer than all else together: most programs go without.
        self.is_swift = not only and random.random() < 0.9
        self._numbers = itertools.count(10)
        self.kinds: dict[str, list[str]] = {}
        for table, kinds in KINDS.items():
            # Of few kinds more of them meet.
            known = [kind for kind in kinds if not (self.is_swift and kind in BY_ENGINE)]
            some = random.sample(known, min(len(known), random.choice([2, 3, 4, 6, len(known)])))
            self.kinds[table] = [kind for kind in kinds if kind in only] if only else some

    def rows(self) -> tuple[Any, ...]:
        parts = self.random.choices(PARTS, k=self.random.randint(1, 2))
        return tuple((q, self.random.choice(TEXTS), next(self._numbers)) for q in parts)

    def seed(self) -> tuple[Any, ...]:
        cells = self.random.sample([(p, x) for p in PARTS for x in range(3)], self.random.randint(1, 2))
        return tuple((*cell, self.random.choice(TEXTS), next(self._numbers)) for cell in cells)

    def en(self) -> tuple[Any, ...]:
        return tuple((p, x, v) for p, x, _, v in self.seed())

    def where(self, *, parts: bool = False) -> tuple[str, Any]:
        kind = self.random.choice("ssnq" if parts else "ssn")
        return kind, self.random.choice({"s": TEXTS, "n": range(3), "q": PARTS}[kind])

    def both(self) -> tuple[Any, Any]:
        kind = self.random.random()
        return (self.seed() if kind < 0.8 else ()), (self.en() if kind > 0.3 else ())

    def op(self, table: str) -> Op:
        kinds = self.kinds[table]
        name = self.random.choices(kinds, [KINDS[table][kind] for kind in kinds])[0]
        if name == "merge_d":  # of few keys, which others may have at the same time
            keys = self.random.sample(KEYS, self.random.randint(1, 2))
            return (name, tuple((q, self.random.choice(TEXTS), n) for q, n in keys))
        if name in ("append_d", "replace_d", "foreign_d", "append_l"):
            rows = self.rows()
            return (name, tuple({(q, s): (q, s, n) for q, s, n in rows}.values()))
        if name in ("delete_d", "delete_c"):
            return (name, ("q", self.random.choice(PARTS)) if self.is_swift else self.where(parts=True))
        if name == "update_d":
            where = self.where()
            return (name, where, self.random.choice([None, *TEXTS]) if where[0] == "s" else None)
        if name == "delete_l":
            return (name, ("q", self.random.choice(PARTS)))
        if name in ("set_c", "find_d", "find_c", "find_l"):
            return (name, self.where())
        if name == "append_c":
            return (name, *self.both())
        if name == "update_c":
            part = self.random.choice(PARTS)
            seed, en = ([(part, *row[1:]) for row in rows] for rows in self.both())
            return (name, part, *(tuple({row[1]: row for row in rows}.values()) for rows in (seed, en)))
        if name in ("foreign_c", "extend_c"):
            return (name, self.en())
        if name == "sleep":
            return (name, self.random.choice([1.0, 30.0, 3 * 3600.0, 7.5 * DAY]))
        if name == "index":
            return (name, self.random.choice(["create", "drop", "skip"]), table)
        is_alone = name.startswith(("read", "restore")) or name in ("compact_l", "copy_d")
        return (name,) if is_alone else (name, table)


KINDS: dict[str, dict[str, int]] = {
    "d": {
        "append_d": 6, "replace_d": 3, "delete_d": 4, "update_d": 4, "merge_d": 2, "foreign_d": 1, "read_d": 4,
        "find_d": 3, "old": 3, "changes": 2, "compact": 4, "clean": 3, "index": 2, "sleep": 1, "repair": 1,
        "restore_d": 1, "copy_d": 1,
    },
    "c": {
        "append_c": 7, "update_c": 4, "delete_c": 3, "set_c": 3, "foreign_c": 1, "read_c": 5, "find_c": 3, "compact": 3,
        "clean": 3, "index": 1, "sleep": 1, "repair": 1, "extend_c": 1,
        "restore_c": 1,
    },
    "l": {"append_l": 4, "delete_l": 3, "compact_l": 3, "read_l": 5, "find_l": 3},
}  # fmt: skip


# And DELETE where a condition is about single rows.
BY_ENGINE = ("update_d", "merge_d", "set_c", "find_d", "find_c", "changes")


def program(seed: object, only: Sequence[str] = (), fates: Sequence[str] = ()) -> Program:
    """Return a program by chance; of some kinds of operations ``only``, and with some of the faults ``fates``."""
    random = Random(f"program {seed}")
    maker = _Maker(random, only)
    tables = random.choices(["d", "c", "dc", "l"], [5, 5, 1, 1])[0]
    if only:
        tables = "".join(table for table, kinds in maker.kinds.items() if any(k.endswith(f"_{table}") for k in kinds))
    actors = tuple(
        tuple(maker.op(random.choice(tables)) for _ in range(random.choice([1, 2, 2, 3])))
        for _ in range(random.choice([2, 2, 3, 3, 4, 5]))
    )
    count = random.choice([1, 2, 3] if fates else [0] if only else [0, 0, 1, 1, 2, 3])
    faults = tuple(_faults(random, len(actors), random.choices(fates or FATES, k=count)))
    skews = tuple(random.choice([0.0, 0.0, 5.0, -1200.0, 1200.0]) for _ in actors)
    return Program(str(seed), actors, faults, skews, random.random() < 0.3, maker.is_swift or random.random() < 0.5)


def _faults(random: Random, actors: int, fates: Sequence[str]) -> Iterator[Fault]:
    """Yield faults at any calls, or at the first conditional writes; in half of the programs one actor meets all."""
    one = random.randrange(actors) if random.random() < 0.5 else None
    for fate in fates:
        actor = random.randrange(actors) if one is None else one
        if random.random() < 0.3:
            yield Fault(actor, random.randrange(5), fate, is_conditional=True)
        else:
            yield Fault(actor, random.choice([random.randrange(25), random.randrange(80)]), fate)


# -- carrying them out ---------------------------------------------------------------------------------


def table_d(rows: Any) -> pa.Table:
    return pa.table(
        {"q": [r[0] for r in rows], "s": [r[1] for r in rows], "n": pa.array([r[2] for r in rows], pa.int64())}
    )


def table_seed(rows: Any) -> pa.Table:
    columns = {name: [r[at] for r in rows] for at, name in enumerate("pxiv")}
    return pa.table({**columns, "x": pa.array(columns["x"], pa.int64()), "v": pa.array(columns["v"], pa.int64())})


def table_en(rows: Any) -> pa.Table:
    columns = {name: [r[at] for r in rows] for at, name in enumerate("pxw")}
    return pa.table({**columns, "x": pa.array(columns["x"], pa.int64()), "w": pa.array(columns["w"], pa.int64())})


def condition(where: tuple[str, Any], text: str, number: str, part: str) -> str:
    kind, value = where
    return f"{number} % 1000 % 3 = {value}" if kind == "n" else f"{text if kind == 's' else part} = '{value}'"


@functools.lru_cache(512)
def _contents(data: bytes) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    table = pq.read_table(io.BytesIO(data))
    return tuple(table.column_names), list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def plain_rows(con: kartosql.Connection, name: str, version: int | None = None) -> list[tuple[Any, ...]]:
    """Return the rows of the dataset or the cube, read without an engine: of those of a cell the last one counts."""
    found = {}
    for part in con.tables().find((name,), as_of=version).parts:
        table: Any = part.table
        rows: dict[Any, dict[str, Any]] = {}
        for key, at in zip(table.files, table.partitions.part_of_file, strict=True):
            values = dict(zip(table.partition_keys, (column[at] for column in table.partitions.columns), strict=True))
            try:
                data = con._session.store.read(key)
            except KeyError as e:
                raise StoreError(f"{key} is gone", code="missing-file") from e
            names, listed = _contents(data)
            for row in listed:
                one = {**dict(zip(names, row, strict=True)), **values}
                rows[(one["p"], one["x"]) if name == "c" else len(rows)] = one
        found[part.name] = rows
    first = next(iter(found.values()))
    if name != "c":
        return [(row["q"], row["s"], row["n"]) for row in first.values()]
    seed, en = first, found["en"]
    return [(*cell, row["i"], row["v"], en.get(cell, {}).get("w")) for cell, row in seed.items()]


def plain_removal(column: str, value: str) -> Removal:
    """Return what removes a partition, without an engine that would have to tell which one that is."""

    def select(table: Any) -> list[str]:
        values = table.partitions.columns[table.partition_keys.index(column)]
        found = {number for number, one in enumerate(values) if one == value}
        return [label for label, part in zip(table.labels, table.partitions.part_of_file, strict=True) if part in found]

    return Removal(frozenset({column}), select, needs_all=True)


@dataclass
class Run:
    """A run of a program: the store, what happened, and what was counted."""

    program: Program
    scheduler: Scheduler
    events: list[Event] = field(default_factory=list)
    versions: dict[int, list[Any]] = field(default_factory=dict)
    known: list[int] = field(default_factory=list)  # acknowledged versions of ``d``
    counts: Counter[str] = field(default_factory=Counter)
    met: int = 0  # faults

    def connect(self, actor: object) -> kartosql.Connection:
        con = kartosql.connect(f"sim://{actor}/s", cache="off", threads=1)
        if "l" in _tables(self.program):
            con.attach(f"sim://{actor}/{FOLDER}", "l", type="delta")
        return con

    def body(self, number: int, ops: tuple[Op, ...]) -> Callable[[], None]:
        def act() -> None:
            self.scheduler.pause()
            try:
                con = self.connect(0 if self.program.shared else number)
            except StoreError:  # of the lake, which is read
                if not self.program.faults:
                    raise
                return
            with con:
                for op in ops:
                    self.do(con, number, op)

        return act

    def do(self, con: kartosql.Connection, number: int, op: Op) -> None:
        actor = self.scheduler.actor
        event = Event(number, op[0], op[1:], self.scheduler.steps)
        self.events.append(event)
        met, began = (actor.met if actor is not None else 0), self.scheduler.now
        try:
            event.answer = _Acts(self, con, event).do(op)
            event.outcome = "ok"
        except CommitUnknown as e:
            event.why = str(e)
            if actor is None or (actor.met == met and not self.program.faults):
                raise Violation(f"unknown without a fault: {event}") from e
        except KartosqlError as e:
            event.outcome, event.why = "failed", f"{e.code}: {e}"
            waited = self.scheduler.now - began
            if not self.may_fail(e, event, is_faulty=actor is not None and actor.met > met, waited=waited):
                raise Violation(f"{event}") from e
        finally:
            event.ended = self.scheduler.steps if event.outcome != "unknown" else event.ended
            self.counts[f"{event.name} {event.outcome}"] += 1

    def may_fail(self, error: KartosqlError, event: Event, *, is_faulty: bool, waited: float) -> bool:
        """Return whether an error is what the pages promise."""
        if event.actor < 0:
            return False
        if error.code == "concurrent-commit":
            return event.name in WRITES or event.name in ("compact", "index", "repair", "clean")
        if error.code in ("store-failed", "access-denied", "commit-failed", "disk-full"):
            return is_faulty or bool(self.program.faults)
        if waited > GRACE - DAY:  # files are kept for readers and writers of that time
            return error.code in ("commit-expired", "missing-file", "missing-metadata")
        return error.code == "not-indexed" and event.name == "index"


class _Acts:
    """What each operation calls."""

    def __init__(self, run: Run, con: kartosql.Connection, event: Event) -> None:
        self.run, self.con, self.event = run, con, event

    def do(self, op: Op) -> Any:
        return getattr(self, op[0])(*op[1:])

    def _done(self, report: dict[str, Any] | None) -> None:
        if report and report.get("sequence") is not None:
            self.event.sequence = report["sequence"]
            self.run.known.append(report["sequence"])

    def _sql(self, text: str) -> Any:
        return frozenset(self._rows(text))

    def _all(self, table: str, version: int | None = None) -> Any:
        """Return all rows of a table, as it is or as it was."""
        columns = "q, s, n" if table != "c" else "p, x, i, v, w"
        at = f" AT (VERSION => {version})" if version is not None else ""
        return frozenset(self._rows(f"SELECT {columns} FROM {table}{at}", (table, version)))

    def _rows(self, text: str, whole: tuple[str, int | None] | None = None) -> list[Any]:
        is_plain = whole is not None and self.run.program.plain
        rows = plain_rows(self.con, *whole) if whole is not None and is_plain else self.con.sql(text).rows()
        if len(rows) != len(set(rows)):
            raise Violation(f"{text}: rows occur twice: {sorted(rows, key=repr)}")
        return rows

    def _change(self, text: str) -> None:
        query = self.con.sql(text)
        report = [dict(zip(query.columns, row, strict=True)) for row in query.rows()]
        self._done(report[0] if len(report) == 1 and self.event.name.endswith("_d") and report[0]["removed"] else None)

    # -- the dataset

    def append_d(self, rows: Any) -> None:
        self._done(self.con.append_to_dataset("d", table_d(rows)))

    def replace_d(self, rows: Any) -> None:
        self._done(self.con.replace_partitions("d", table_d(rows)))

    def delete_d(self, where: Any) -> None:
        if self.run.program.plain and where[0] == "q":
            operation, removal = self.con._session.operation("delete_from_dataset"), plain_removal(*where)
            report = datasets.delete_from_dataset(operation, "d", removal)
            self._done(report if report["removed"] else None)
            return
        self._change(f"DELETE FROM d WHERE {condition(where, 's', 'n', 'q')}")

    def update_d(self, where: Any, to: Any) -> None:
        what = f"s = '{to}'" if to else "n = n + 1000"
        self._change(f"UPDATE d SET {what} WHERE {condition(where, 's', 'n', 'q')}")

    def merge_d(self, rows: Any) -> None:
        values = ", ".join(f"('{q}', '{s}', {n})" for q, s, n in rows)
        self._change(
            f"MERGE INTO d USING (SELECT * FROM (VALUES {values}) t(q, s, n)) AS u ON (q, n) "
            "WHEN MATCHED THEN UPDATE SET s = u.s WHEN NOT MATCHED THEN INSERT (q, s, n) VALUES (u.q, u.s, u.n)"
        )

    def foreign_d(self, rows: Any) -> None:
        self._foreign("d", table_d(rows))

    def _foreign(self, name: str, rows: pa.Table) -> None:
        """Write as the originals do, who look at nothing; at once, as what they drop else is theirs."""
        self.run.scheduler.pause()
        actor, self.run.scheduler._of_thread.actor = self.run.scheduler.actor, None
        try:
            store = Store("sim://foreign/s")
            originals.append(store, originals.read(store, name), rows)
        finally:
            self.run.scheduler._of_thread.actor = actor

    def read_d(self) -> Any:
        return self._all("d")

    def find_d(self, where: Any) -> Any:
        return self._sql(f"SELECT q, s, n FROM d WHERE {condition(where, 's', 'n', 'q')}")

    def old(self, table: str) -> None:
        for version in sorted(set(self.run.known))[-4:]:
            self.run.versions.setdefault(version, []).append(self._all("d", version))

    def changes(self, table: str) -> None:
        known = sorted(set(self.run.known))
        if len(known) < 2:
            return
        first, last = known[-2:]
        before, after = (Counter(self._all("d", version)) for version in (first, last))
        self.run.versions.setdefault(first, []).append(frozenset(before))
        self.run.versions.setdefault(last, []).append(frozenset(after))
        for q, s, n, change in self.con.sql(f"SELECT q, s, n, _change FROM changes('d', {first}, {last})").rows():
            before[(q, s, n)] += 1 if change in ("insert", "update_after") else -1
        if +before != +after or min(before.values(), default=0) < 0:
            raise Violation(f"changes('d', {first}, {last}) lead to {before}, but version {last} is {after}")

    def restore_d(self) -> None:
        self._done(self.con.restore("d", FIRST))

    def copy_d(self) -> Any:
        """Answer with the rows of the copy."""
        name = f"copy{self.event.actor}of{self.event.began}"
        self.con.copy_dataset("d", self.con._session.store.url, name=name)
        return self._all(name)

    # -- the cube

    def append_c(self, seed: Any, en: Any) -> None:
        self.con.append_to_cube(CUBE, self._data(seed, en))

    @staticmethod
    def _data(seed: Any, en: Any) -> dict[str, pa.Table]:
        return {name: make(rows) for name, make, rows in (("seed", table_seed, seed), ("en", table_en, en)) if rows}

    def restore_c(self) -> None:
        self.con.restore("c", AS_BUILT)

    def extend_c(self, en: Any) -> None:
        name = f"more{self.event.actor}of{self.event.began}"
        self.con.extend_cube(CUBE, {name: table_en(en).rename_columns(["p", "x", name])})

    def update_c(self, part: str, seed: Any, en: Any) -> None:
        if self.run.program.plain:
            operation = self.con._session.operation("update_cube")
            cubes.update_cube(operation, CUBE, self._data(seed, en), removal=plain_removal("p", part))
            return
        self.con.update_cube(CUBE, self._data(seed, en), remove_conditions=[("p", "==", part)])

    def delete_c(self, where: Any) -> None:
        if self.run.program.plain and where[0] == "q":
            operation = self.con._session.operation("remove_partitions")
            cubes.remove_partitions(operation, "c", plain_removal("p", where[1]))
            return
        self._change(f"DELETE FROM c WHERE {condition(where, 'i', 'v', 'p')}")

    def set_c(self, where: Any) -> None:
        self._change(f"UPDATE c SET v = v + 1000, w = w + 1000 WHERE {condition(where, 'i', 'v', 'p')}")

    def foreign_c(self, en: Any) -> None:
        self._foreign("c++en", table_en(en))

    def read_c(self) -> Any:
        return self._all("c")

    def find_c(self, where: Any) -> Any:
        return self._sql(f"SELECT p, x, i, v, w FROM c WHERE {condition(where, 'i', 'v', 'p')}")

    # -- the Delta table, which others write

    def _lake(self) -> Lake:
        return Lake(self.event.actor, self.event.began)

    def append_l(self, rows: Any) -> None:
        self._lake().append(rows)

    def delete_l(self, where: Any) -> None:
        self._lake().remove(where[1])

    def compact_l(self) -> None:
        self._lake().compact()

    def read_l(self) -> Any:
        return self._sql("SELECT q, s, n FROM l")

    def find_l(self, where: Any) -> Any:
        return self._sql(f"SELECT q, s, n FROM l WHERE {condition(where, 's', 'n', 'q')}")

    # -- upkeep

    def compact(self, table: str) -> None:
        self.con.compact(table)

    def clean(self, table: str) -> None:
        _ = self.con.cleanup_cube("c") if table == "c" else self.con.garbage_collect("d")

    def index(self, what: str, table: str) -> None:
        name, column = ("c.seed", "v") if table == "c" else ("d", "n")
        if what == "skip":
            self.con.create_skipping_index(name, minmax=[column])
        else:
            _ = self.con.create_index(name, column) if what == "create" else self.con.drop_index(name, column)

    def repair(self, table: str) -> None:
        self.con.check(table, repair=True)

    def sleep(self, seconds: float) -> None:
        if self.run.scheduler.may_wait(seconds):
            self.run.scheduler.pause(seconds)


@functools.cache
def _begun(tables: str) -> dict[str, Object]:
    """Return what a store holds before anybody acts."""
    scheduler = Scheduler("begin")
    with simulated(scheduler, "begin") as place, kartosql.connect("sim://begin/s", cache="off", threads=1) as con:
        if "d" in tables:
            report = con.create_dataset("d", table_d(START_D), partition_on=["q"], index_columns=["s"])
            assert report["sequence"] == FIRST
        if "c" in tables:
            con.build_cube(CUBE, {"seed": table_seed(START_C[0]), "en": table_en(START_C[1])})
        if "l" in tables:
            Lake("begin", 0).begin(sorted(START_D))
    session_pool.clear()
    return place.objects


def run(made: Program, scheduler: Scheduler | None = None) -> Run:
    """Carry out a program; raises Violation, and whatever else nobody expected."""
    scheduler, tables = scheduler or Scheduler(made.seed, made.faults), _tables(made)
    found, begun = Run(made, scheduler, scheduler.events), _begun(tables)
    with simulated(scheduler, made.seed) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        metadata._newest.clear()
        session_pool.clear()
        place.objects.update(begun)
        if any(op[0] == "restore_c" for ops in made.actors for op in ops):
            scheduler.now = 2 * 3600.0  # no clock is so slow that what is committed now is from before AS_BUILT
        if "d" in tables:
            found.known.append(FIRST)
            found.versions[FIRST] = []
        try:
            acts = [found.body(n, ops) for n, ops in enumerate(made.actors)]
            found.met = sum(actor.met for actor in scheduler.run(acts, list(made.skews)))
            scheduler.arrive_all()
            _end(found, tables)
        finally:
            session_pool.clear()
    return found


def _tables(made: Program) -> str:
    text = repr(made.actors)
    return "".join(t for t in "dcl" if f"_{t}'" in text or f"'{t}'" in text or ("'old'" in text and t == "d"))


def _end(found: Run, tables: str) -> None:
    """Look at what is there when all have ended: it works on, nothing is wrong, and the history is sequential."""
    plain = found.program.plain
    with found.connect("end") as con:
        if "l" in tables:
            for op in (("append_l", (("a", "s1", 900),)), ("read_l",), ("find_l", ("s", "s1"))):
                found.do(con, -1, op)
        for table, more in (
            ("d", ("append_d", (("a", "s1", 900),))),
            ("c", ("append_c", (("a", 9, "s1", 900),), (("a", 9, 901),))),
        ):
            if table not in tables:
                continue
            # One of both looks before all is put right, the other one afterwards.
            looks = [(f"read_{table}",), (f"read_{table}",) if plain else (f"find_{table}", ("s", "s1"))]
            found.scheduler.random.shuffle(looks)
            for op in (looks[0], more):
                found.do(con, -1, op)
            for finding in con.check(table, full=True):
                if finding.severity == "error" or finding.check in ("missing-file", "index"):
                    raise Violation(f"CHECK {table}: {finding}")
            for days in found.scheduler.random.choice([(), (0, 8)]) if plain else (0, 8, 8):
                found.scheduler.now += days * DAY
                _ = con.cleanup_cube("c") if table == "c" else con.garbage_collect("d")
            for op in (looks[1], ("old", "d"))[: 2 if table == "d" else 1]:
                found.do(con, -1, op)
    for table in tables:
        start = START_C if table == "c" else START_D
        events = [e for e in found.events if e.name.endswith(f"_{table}")]
        if not History(start, events, found.versions if table == "d" else {}).is_sequential():
            told = "\n".join(map(str, events))
            raise Violation(f"the history of {table} is not sequential:\n{told}\nversions: {found.versions}")


# -- failures ------------------------------------------------------------------------------------------


def failure(made: Program, done: list[Run] | None = None) -> str | None:
    """Return what goes wrong with a program, if anything; add a run that ended well to those that are ``done``."""
    try:
        found = run(made)
        if done is not None:
            done.append(found)
    except (Exception, Crashed) as e:  # noqa: BLE001
        lines = traceback.format_exception(e)
        return "".join(lines)[-6000:]
    return None


def shrunk(made: Program, left: int = SHRINKS) -> Program:
    """Leave out actors, operations and faults that a failure does not need; other orders may show it then."""
    while True:
        for fewer in _fewer(made):
            if left <= 0:
                return made
            for number in range(8):
                left -= 1
                tried = fewer if not number else replace(fewer, seed=f"{made.seed.partition('/')[0]}/{number}")
                if failure(tried) is not None:
                    made = tried
                    break
            else:
                continue
            break
        else:
            return made


def _fewer(made: Program) -> Iterator[Program]:
    for at in range(len(made.faults)):
        yield replace(made, faults=made.faults[:at] + made.faults[at + 1 :])
    for n, ops in enumerate(made.actors):
        for at in range(len(ops)):
            yield replace(made, actors=(*made.actors[:n], ops[:at] + ops[at + 1 :], *made.actors[n + 1 :]))
    if any(made.skews):
        yield replace(made, skews=(0.0,) * len(made.actors))
    if made.shared:
        yield replace(made, shared=False)
