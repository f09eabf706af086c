"""Writers of other programs that race with CREATE INDEX and REFRESH, and a reader that misses no acknowledged row.

    PYTHONPATH=tests python -m lakes.races [--minutes 5 | --rounds 20] [--seed 0] [delta] [iceberg] [parquet]

Of each table two processes append, delete and compact, two more create, refresh and drop indexes, and the reader asks
for keys. A writer notes what it begins and what was acknowledged: a row that was acknowledged before a statement, and
that nobody began to delete before its end, has to be in the answer; one whose deletion was acknowledged before it may
not be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import In

import kartosql
from kartosql.errors import KartosqlError, KartosqlWarning

WRITERS, INDEXERS = 2, 2
LIVE = 400  # rows of a writer, from which on it deletes rather than appends
KEYS = 10**6  # of one writer


def rows_of(keys: Iterable[int]) -> pa.Table:
    return pa.table(
        {"k": pa.array(keys, pa.int64()), "s": pa.array([f"the key {k} of them" for k in keys], pa.string())}
    )


class Delta:
    """A Delta table, as one of its writers has it."""

    kind, refusals = "delta", (deltalake.exceptions.CommitFailedError,)
    options: ClassVar[dict[str, str]] = {}

    def __init__(self, root: Path) -> None:
        self.url = str(root / "t")

    def make(self) -> None:
        deltalake.write_deltalake(self.url, rows_of(range(-9, 0)))

    def append(self, keys: list[int]) -> None:
        deltalake.write_deltalake(self.url, rows_of(keys), mode="append")

    def delete(self, keys: list[int]) -> None:
        deltalake.DeltaTable(self.url).delete(f"k IN ({', '.join(map(str, keys))})")

    def compact(self) -> None:
        table = deltalake.DeltaTable(self.url)
        table.optimize.compact()
        table.create_checkpoint()


class Iceberg:
    """An Iceberg table in a catalog, as one of its writers has it."""

    kind, refusals = "iceberg", (CommitFailedException, ValidationException)
    options: ClassVar[dict[str, str]] = {"catalog": "c", "table": "n.t"}  # which alone tells whose commit counts

    def __init__(self, root: Path) -> None:
        self.url, self._files = f"sqlite:///{root}/catalog.db", f"file://{root}"

    def _table(self) -> Any:
        return SqlCatalog("c", uri=self.url, warehouse=self._files).load_table("n.t")

    def make(self) -> None:
        with contextlib.closing(SqlCatalog("c", uri=self.url, warehouse=self._files)) as catalog:
            catalog.create_namespace("n")
            catalog.create_table("n.t", rows_of([]).schema).append(rows_of(range(-9, 0)))

    def append(self, keys: list[int]) -> None:
        self._table().append(rows_of(keys))

    def delete(self, keys: list[int]) -> None:
        self._table().delete(In("k", set(keys)))

    def compact(self) -> None:
        table = self._table()
        table.overwrite(table.scan().to_arrow())


class Folder:
    """Parquet files in a folder; each writer has files of its own, which it writes anew or merges."""

    kind, refusals = "parquet", ()
    options: ClassVar[dict[str, str]] = {}

    def __init__(self, root: Path) -> None:
        self._root, self.url, self._files = root / "t", str(root / "t"), dict[Path, list[int]]()

    def make(self) -> None:
        self._root.mkdir()
        self.append([*range(-9, 0)])

    def _put(self, path: Path, keys: list[int]) -> None:
        made = path.with_name(f".{path.name}")
        pq.write_table(rows_of(keys), made)
        made.rename(path)
        self._files[path] = keys

    def append(self, keys: list[int]) -> None:
        self._put(self._root / f"{uuid.uuid4().hex}.parquet", keys)

    def delete(self, keys: list[int]) -> None:
        for path, own in list(self._files.items()):
            if not {*keys}.isdisjoint(own):
                self._put(path, [k for k in own if k not in keys])

    def compact(self) -> None:
        """Merge files, whose rows are there twice for a moment."""
        old = list(self._files)[:10]
        self.append([k for path in old for k in self._files[path]])
        for path in old:
            path.unlink()
            del self._files[path]


TABLES: dict[str, Any] = {made.kind: made for made in (Delta, Iceberg, Folder)}


def attach(con: Any, kind: str, root: Path) -> None:
    """Attach the table as ``t``, again if files go away in the middle where no log keeps them."""
    table = TABLES[kind](root)
    while True:
        try:
            con.attach(table.url, "t", type=kind, **table.options)
            return
        except KartosqlError as e:
            if kind != "parquet" or e.code not in CHANGED:
                raise


# -- notes of writers ------------------------------------------------------------------------------


@dataclass
class Notes:
    """What writers have noted: keys by what was begun and what was acknowledged."""

    folder: Path
    keys: dict[str, set[int]] = field(default_factory=lambda: {n: set() for n in ("add", "added", "delete", "deleted")})
    counts: Counter[str] = field(default_factory=Counter)
    _read: dict[Path, int] = field(default_factory=dict)

    def look(self) -> None:
        """Read what came since."""
        for path in self.folder.glob("*.notes"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file.read().split(b"\n")[:-1]:
                    self._read[path] = self._read.get(path, 0) + len(line) + 1
                    what, keys = json.loads(line)
                    self.counts[what] += 1
                    if what in self.keys:
                        self.keys[what].update(keys)

    def sure(self) -> set[int]:
        """Return the keys of rows that are there, and that nobody has begun to delete."""
        return self.keys["added"] - self.keys["delete"]


class Noting:
    """Notes what one process does, line by line."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / f"{name}.notes", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def __call__(self, what: str, keys: Iterable[int] = ()) -> None:
        os.write(self._file, json.dumps([what, [*keys]]).encode() + b"\n")


def write(kind: str, root: Path, number: int, seed: int) -> None:
    """Append, delete and compact until there is a file ``stop``.

    In a table with a log the first one alone does more than append: two that compact at the same time double rows.
    """
    warnings.simplefilter("ignore")
    logging.disable()
    chance, note, table = random.Random(f"{seed} {number}"), Noting(root, f"writer{number}"), TABLES[kind](root)
    live, count = [], 0
    most = 1 if number > 1 and kind != "parquet" else LIVE
    while not (root / "stop").exists():
        way = chance.random() if most == LIVE else 0
        try:
            if way < 0.6 and len(live) < most:
                keys = [number * KEYS + (7919 * n) % KEYS for n in range(count, count + chance.randint(1, 12))]
                count += len(keys)
                note("add", keys)
                table.append(keys)
                note("added", keys)
                live += keys
            elif way < 0.93 and len(live) > 20:
                keys = [live.pop(chance.randrange(len(live))) for _ in range(chance.randint(1, 12))]
                note("delete", keys)
                table.delete(keys)
                note("deleted", keys)
            elif way >= 0.93:
                table.compact()
                note("compacted")
        except table.refusals:
            note("refused")


# -- indexes ---------------------------------------------------------------------------------------

# What files that go away or change in the middle are told by, where no log keeps them, and what others dropped.
CHANGED = {"missing-file", "corrupt-file", "store-failed", "query-failed", "not-indexed", "no-files", "file-changed"}


def index(kind: str, root: Path, number: int, seed: int) -> None:
    """Create, refresh and drop indexes until there is a file ``stop``."""
    warnings.simplefilter("ignore")
    chance, note = random.Random(f"{seed} index {number}"), Noting(root, f"index{number}")
    with kartosql.connect(root / "store") as con:
        attach(con, kind, root)
        steps: list[tuple[str, Callable[[], object]]] = [
            *[("index", lambda: con.create_index("t", "k")), ("index", lambda: con.create_index("t", ["s", "k"]))] * 2,
            ("skipping index", lambda: con.create_skipping_index("t", minmax="k", ngram="s")),
            ("skipping index", lambda: con.create_skipping_index("t", prefix="s", bloomfilter="k")),
            *[("refresh", lambda: con.refresh_skipping_index("t"))] * 4,
            ("drop", lambda: con.drop_index("t", "k")), ("drop", lambda: con.drop_skipping_index("t")),
        ]  # fmt: skip
        weights = [10] * (len(steps) - 2) + [1, 1]
        while not (root / "stop").exists():
            name, step = chance.choices(steps, weights)[0]
            try:
                step()
                note(name)
            except KartosqlError as e:
                note(f"{name}: {e.code}")


# -- the reader ------------------------------------------------------------------------------------


class Lost(AssertionError):
    """An answer that lacks a row, or has one that is deleted."""


class Reader:
    """Asks for keys and compares with the notes of the writers."""

    def __init__(self, kind: str, root: Path, seed: int) -> None:
        self.kind, self.root, self.notes, self.chance = kind, root, Notes(root), random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.con = self._connect()

    def _connect(self) -> Any:
        con = kartosql.connect(self.root / "store", read_only=True, attach=True)
        attach(con, self.kind, self.root)
        return con

    def round(self) -> None:
        """Ask for some keys that are there, some that are gone, and some that come."""
        if self.counts["rounds"] % 10 == 9:
            self.con.close()
            self.con = self._connect()
        self.counts["rounds"] += 1
        self.notes.look()
        sure, dead = self.notes.sure(), self.notes.keys["deleted"]
        some = [k for keys in (sure, sure, dead, self.notes.keys["add"]) for k in self._some(keys)]
        for where, keys in (
            (f"k IN ({', '.join(map(str, some))})", some),
            *((f"k = {k}", [k]) for k in some[:2] + some[-1:]),
            *((f"s = 'the key {k} of them'", [k]) for k in some[:2]),
            *((f"s LIKE '%key {k} of%'", [k]) for k in some[:2] + some[-1:]),
            (f"k BETWEEN {min(some)} AND {max(some)}", None),
        ):
            self.ask(where, keys)

    def _some(self, keys: set[int]) -> list[int]:
        return self.chance.sample(sorted(keys), min(len(keys), 3)) or [-1]

    def ask(self, where: str, keys: list[int] | None) -> None:
        """Ask a condition that is true of rows with some keys, None for all between those of the condition."""
        self.notes.look()
        before, dead = self.notes.sure(), set(self.notes.keys["deleted"])
        try:
            query = self.con.sql(f"SELECT k FROM t WHERE {where}")
            found = Counter(k for (k,) in query.rows())
        except KartosqlError as e:
            if self.kind != "parquet" or e.code not in CHANGED:
                raise
            self.counts[f"statements that files went away from: {e.code}"] += 1
            return
        self.notes.look()
        if keys is None:
            low, high = map(int, where.removeprefix("k BETWEEN ").split(" AND "))
            wanted = {k for k in before if low <= k <= high}
        else:
            wanted = before & {*keys}
        lost, back = (wanted - self.notes.keys["delete"]) - found.keys(), found.keys() & dead
        strange = found.keys() - self.notes.keys["add"] - {*range(-9, 0)} if keys is None else found.keys() - {*keys}
        twice = [k for k, n in found.items() if n > 1] if self.kind != "parquet" else []
        self.counts["statements"] += 1
        self.counts["rows that had to be there"] += len(wanted)
        self.counts["files read"] += query.report.files_selected
        self.counts["files there were"] += query.report.files_total
        if lost or back or strange or twice:
            told = {"lost": lost, "deleted": back, "strange": strange, "twice": twice}
            raise Lost(f"{self.kind}: {where}: { {n: sorted(k)[:10] for n, k in told.items() if k} }\n{query.report}")

    def end(self) -> None:
        """Ask for all rows when nobody writes any more, by an index that may lack the last of them and by a new one."""
        for is_fresh in (False, True):
            if is_fresh:
                with kartosql.connect(self.root / "store") as con:
                    attach(con, self.kind, self.root)
                    con.create_index("t", ["k", "s"])
                    con.create_skipping_index("t", ngram="s")
            self.notes.look()
            keys = sorted(self.notes.keys["add"])
            for at in range(0, len(keys), 200):
                self.ask(f"k IN ({', '.join(map(str, keys[at : at + 200]))})", keys[at : at + 200])
        self.con.close()


def race(kind: str, root: Path, seed: int, goes_on: Callable[[Reader], bool]) -> Counter[str]:
    """Let them race as long as it goes on, and return what was done; raises Lost."""
    (root / "store").mkdir()
    TABLES[kind](root).make()
    context = multiprocessing.get_context("spawn")
    parts = [(write, n) for n in range(1, WRITERS + 1)] + [(index, n) for n in range(INDEXERS)]
    others = [context.Process(target=part, args=(kind, root, n, seed)) for part, n in parts]
    for other in others:
        other.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)  # of files of an index that is replaced while it is read
        try:
            reader = Reader(kind, root, seed)
            while goes_on(reader):
                if any(other.exitcode for other in others):
                    raise AssertionError(f"{kind}: a process ended by {[other.exitcode for other in others]}")
                reader.round()
        finally:
            (root / "stop").touch()
            for other in others:
                other.join()
        reader.end()
    return reader.counts + reader.notes.counts


def rounds(count: int) -> Callable[[Reader], bool]:
    """Return what goes on for some rounds, and until each of the others has done something."""

    def goes_on(reader: Reader) -> bool:
        told = reader.notes.counts
        is_busy = told["added"] >= count and told["deleted"] and told["index"] > 1 and told["refresh"]
        return reader.counts["rounds"] < count or not is_busy

    return goes_on


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=[*TABLES])
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for kind in given.kinds:
        until = time.monotonic() + 60 * (given.minutes or 0)
        how = rounds(given.rounds) if given.minutes is None else lambda _, until=until: time.monotonic() < until
        with tempfile.TemporaryDirectory() as folder:
            counts = race(kind, Path(folder), given.seed, how)
        print(f"{kind}, seed {given.seed}: no row was lost", *(f"{n:>10,}  {w}" for w, n in counts.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
