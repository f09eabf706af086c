"""A store beside its model: each operation is carried out in both, and SQL has to see the same."""

from __future__ import annotations

import contextlib
import datetime as dt
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import ConcurrentCommit, KartosqlError, KartosqlWarning
from kartosql.store import Store
from writing import originals
from writing.model import (
    BUILT_INDICES,
    COLUMNS,
    NUMBER,
    PARTITION,
    UUIDS,
    Commit,
    Dataset,
    Numbers,
    cube_rows,
    files_of,
    table_of,
)

CUBE = kartosql.Cube("c", ["x", "y"], ["p"], index_columns=["i"])
MEMBERS = ("seed", "en", "k")
GRACE = dt.timedelta(days=7)
Op = tuple[Any, ...]
Stream = Callable[[pa.Table], Any]


class World:
    """A store with two connections that write to it, and one that reads.

    ``do`` carries out an operation, a tuple of the name of a method and its arguments. What
    there is nothing for to do it to, is left out.
    """

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None) -> None:
        self.url = url
        self.storage_options = storage_options
        self.store = Store(url, storage_options)
        self.ahead = dt.timedelta()
        self.numbers = Numbers()
        self.datasets: dict[str, Dataset] = {}
        self.foreign: set[str] = set()  # last written by another program
        self.held: list[tuple[Any, Counter[Any], dt.timedelta]] = []
        self.refusals = 0

    def __enter__(self) -> World:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(mock.patch.object(Store, "now", self._now))
        self._writers = [self._connect(), self._connect()]
        self.con = self._writers[0]
        self.reader = self._connect(read_only=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _now(self) -> dt.datetime:
        return dt.datetime.now(dt.timezone.utc) + self.ahead

    def _connect(self, **options: Any) -> kartosql.Connection:
        options |= {"storage_options": self.storage_options, "history_versions": 0}
        return self._stack.enter_context(kartosql.connect(self.url, **options))

    def do(self, op: Op) -> None:
        getattr(self, op[0])(*op[1:])

    def _has(self, *names: str) -> bool:
        return all(name in self.datasets for name in names)

    def _rows(self, name: str, cells: Any) -> list[dict[str, Any]]:
        return self.numbers.rows(name, cells)

    def _run(self, act: Callable[[], Any], touched: set[str]) -> None:
        """Write; a warning comes where another program wrote last, and only there."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", KartosqlWarning)
            act()
        assert bool(found) == bool(self.foreign & touched), [str(w.message) for w in found]
        self.foreign -= touched

    # -- rows that come in -----------------------------------------------------------------------

    def append(self, written: dict[str, Any], stream: Stream | None = None) -> None:
        rows = {name: self._rows(name, cells) for name, cells in written.items() if self._has(name, "seed")}
        self._write(rows, lambda data: self.con.append_to_cube("c", data), {}, stream)

    def update(self, part: str, written: dict[str, Any], stream: Stream | None = None) -> None:
        rows = {name: self._rows(name, cells) for name, cells in written.items() if self._has(name, "seed")}
        gone = {name: {part} for name in rows if PARTITION[name] is not None}
        conditions = [("p", "==", part)]
        self._write(rows, lambda data: self.con.update_cube("c", data, remove_conditions=conditions), gone, stream)

    def append_d(self, cells: Any, stream: Stream | None = None) -> None:
        rows = {"d": self._rows("d", cells)} if self._has("d") else {}
        self._write(rows, lambda data: self.con.append_to_dataset("d", data["d"]), {}, stream)

    def replace(self, name: str, cells: Any, stream: Stream | None = None) -> None:
        if self._has(name):
            rows = {name: self._rows(name, cells)}
            gone = {name: {f.part for f in files_of(name, rows[name])}}
            self._write(rows, lambda data: self.con.replace_partitions(_table(name), data[name]), gone, stream)

    def _write(
        self, rows: dict[str, Any], call: Callable[[Any], Any], gone: dict[str, set[Any]], stream: Stream | None
    ) -> None:
        """Commit rows by dataset, in the place of the partitions that are ``gone``."""
        if not rows:
            return
        seen = {name: (self.datasets[name], list(self.datasets[name].files)) for name in rows}
        data = {name: (stream or _same)(table_of(name, found)) for name, found in rows.items()}
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", KartosqlWarning)
            try:
                call(data)
            except ConcurrentCommit:
                if not self._is_conflict(seen, gone):
                    raise
                self.refusals += 1
                return
        assert not self._is_conflict(seen, gone), "what cannot be joined was committed"
        assert bool(warned) == bool(self.foreign & rows.keys())
        self.foreign -= rows.keys()
        for name, new in rows.items():
            removed = self.datasets[name].in_partitions(gone[name]) if name in gone else []
            self.datasets[name].commit(Commit(files_of(name, new), removed))

    def _is_conflict(self, seen: dict[str, Any], gone: dict[str, set[Any]]) -> bool:
        """Return whether a dataset was made anew, or files came to the partitions that are removed."""
        for name, (dataset, files) in seen.items():
            if self.datasets.get(name) is not dataset:
                return True
            if name in gone and not set(dataset.in_partitions(gone[name])) <= set(files):
                return True
        return False

    def within(self, outer: Op, inner: Op) -> None:
        """Let somebody else act after a writer has begun with ``outer``, and before he commits."""
        acted = []

        def stream(table: pa.Table) -> pa.RecordBatchReader:
            def batches() -> Iterator[pa.RecordBatch]:
                if not acted:
                    acted.append(inner)
                    self.con = self._writers[1]
                    self.do(inner)
                    self.con = self._writers[0]
                yield from table.to_batches()

            return pa.RecordBatchReader.from_batches(table.schema, batches())

        getattr(self, outer[0])(*outer[1:], stream)

    def refused(self, name: str, kind: str) -> None:
        """Append rows that are wrong to one dataset and good ones to the others: nothing happens."""
        if not self._has("seed", name):
            return
        (row,) = self._rows(name, [("a", 1, 1)])
        table = table_of(name, [row] * (2 if kind == "twice" else 1))
        if kind == "null":
            table = table.set_column(table.schema.get_field_index("x"), "x", pa.array([None], pa.int64()))
        if kind == "missing":
            table = table.drop_columns([NUMBER[name]])
        if kind == "type":
            table = table.set_column(table.schema.get_field_index(NUMBER[name]), NUMBER[name], pa.array([b"?"]))
        good = {n: table_of(n, self._rows(n, [("a", 0, 0)])) for n in MEMBERS if self._has(n)}
        with pytest.raises(KartosqlError) as error:
            self.con.append_to_cube("c", {**good, name: table})
        assert error.value.code == {"twice": "duplicate-cells", "null": "null-in-key"}.get(kind, "incompatible-schema")

    # -- other changes ---------------------------------------------------------------------------

    def remove(self, part: str | None, named: str | None) -> None:
        if not self._has("seed", *([named] if named else [])):
            return
        conditions = None if part is None else [("p", "==", part)]
        targets = [named] if named is not None else [n for n in MEMBERS if self._has(n)]
        if named is None and part is not None:
            targets = [n for n in targets if PARTITION[n] is not None]
        self._run(lambda: self.con.remove_partitions("c", conditions, named), set(targets))
        for name in targets:
            dataset = self.datasets[name]
            dataset.commit(Commit(removed=dataset.files if part is None else dataset.in_partitions([part])))

    def remove_d(self, part: str) -> None:
        if self._has("d"):
            self._run(lambda: self.con.delete_from_dataset("d", [("q", "==", part)]), {"d"})
            self.datasets["d"].commit(Commit(removed=self.datasets["d"].in_partitions([part])))

    def compact(self, table: str) -> None:
        of = [n for n in (MEMBERS if table == "c" else ["d"]) if self._has(n, "seed" if table == "c" else "d")]
        if not of:
            return
        merged = {name: self.datasets[name].merged() for name in of}
        merged = {name: commit for name, commit in merged.items() if commit.added}
        self._run(lambda: self.con.compact(table), set(merged))
        for name, commit in merged.items():
            self.datasets[name].commit(commit)

    def index(self, name: str, column: str) -> None:
        """Create an index, or drop it."""
        if not self._has(name):
            return
        dataset = self.datasets[name]
        change = self.con.drop_index if column in dataset.indices else self.con.create_index
        self._run(lambda: change(_table(name), column), {name})
        dataset.indices ^= {column}
        dataset.commit(Commit())

    # -- datasets that come and go ---------------------------------------------------------------

    def build(self, written: dict[str, Any]) -> None:
        """Build the cube, in the place of the one that is there."""
        names = [n for n in MEMBERS if n == "seed" or n in written or self._has(n)]
        rows = {name: self._rows(name, written.get(name, [("a", 0, 0)])) for name in names}
        options = {"overwrite": any(map(self._has, MEMBERS)), "partition_on": {"k": ()} if "k" in rows else None}
        data = {name: table_of(name, found) for name, found in rows.items()}
        self._run(lambda: self.con.build_cube(CUBE, data, **options), {n for n in names if self._has(n)})
        for name, found in rows.items():
            self.datasets[name] = Dataset(name, files_of(name, found), set(BUILT_INDICES[name]))

    def extend(self, name: str, cells: Any) -> None:
        """Add a dataset to the cube, or replace it."""
        if not self._has("seed"):
            return
        rows = self._rows(name, cells)
        known = {column for n in MEMBERS if self._has(n) for column in self.datasets[n].indices}
        keys = () if PARTITION[name] is None else ("p",)
        options = {"overwrite": self._has(name), "partition_on": {name: keys}}
        touched = {name} if self._has(name) else set()
        self._run(lambda: self.con.extend_cube("c", {name: table_of(name, rows)}, **options), touched)
        self.datasets[name] = Dataset(name, files_of(name, rows), set(COLUMNS[name]) & known - {"x", "y", "p"})

    def create(self, cells: Any) -> None:
        """Create the plain dataset, in the place of the one that is there."""
        rows = self._rows("d", cells)
        options = {"partition_on": "q", "index_columns": "s", "overwrite": self._has("d")}
        touched = {"d"} & self.datasets.keys()
        self._run(lambda: self.con.create_dataset("d", table_of("d", rows), **options), touched)
        self.datasets["d"] = Dataset("d", files_of("d", rows), {"s"})

    def delete(self, name: str) -> None:
        gone = [n for n in MEMBERS if self._has(n)] if name == "cube" else [n for n in [name] if self._has(n)]
        if not gone:
            return
        self.held.clear()  # the files of deleted datasets go at once
        act = self.con.delete_cube if name == "cube" else self.con.delete_dataset
        self._run(lambda: act("c" if name == "cube" else _table(name)), set(gone))
        for n in gone:
            del self.datasets[n]

    # -- other programs --------------------------------------------------------------------------

    def original_appends(self, name: str, cells: Any) -> None:
        if self._has(name):
            self._original_writes(name, originals.read(self.store, UUIDS[name]), cells)

    def _original_writes(self, name: str, document: Any, cells: Any) -> None:
        rows = self._rows(name, cells)
        originals.append(self.store, document, table_of(name, rows))
        self.datasets[name].files = self.datasets[name].files + files_of(name, rows)
        self.foreign.add(name)

    def original_drops_commits(self, name: str, between: list[Op], after: list[Op], cells: Any) -> None:
        """An original reads, we commit, it writes what it knows, we append; a repair brings all of it together."""
        if not self._has(name):
            return
        self.repair()  # what the document has lost before is another story
        dataset = self.datasets[name]
        document = originals.read(self.store, UUIDS[name])
        files, known, at = list(dataset.files), set(dataset.indices), len(dataset.log)
        for op in between:
            self.do(op)
        lost = dataset.log[at:]
        dataset.files, dataset.indices = files, known
        self._original_writes(name, document, cells)
        self.sql_sees_the_model()
        at, files = len(dataset.log), dataset.files
        for op in after:
            self.do(op)
        later = dataset.log[at:]
        self.repair()
        dataset.files = files
        for commit in [*lost, *later]:
            dataset.commit(commit)

    def original_wipes_metadata(self) -> None:
        if self._has("d"):
            originals.wipe_metadata(self.store, "d")
            self.foreign.discard("d")  # nobody knows any more that it was ours

    def original_cleans_up(self, name: str) -> None:
        if self._has(name):
            self.held.clear()
            originals.collect_garbage(self.store, UUIDS[name])

    # -- upkeep ----------------------------------------------------------------------------------

    def _tables(self) -> list[str]:
        """Return the names under which something stands in the store, be it what is left of them."""
        there = {e.name.partition("/")[0].split(".by-")[0] for e in self.store.list_root()}
        return [t for t in ("c", "d") if any(UUIDS[n] in there for n in (MEMBERS if t == "c" else "d"))]

    def repair(self) -> None:
        for table in self._tables():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", KartosqlWarning)
                self.con.check(table, repair=True)
        self.foreign.clear()
        self.nothing_is_wrong()

    def clean(self, days: int = 0) -> None:
        """Clean up some days later; readers that are older than the grace period end before."""
        self.ahead += dt.timedelta(days=days)
        self.readers_read_on([held for held in self.held if held[2] + GRACE <= self.ahead])
        self.held = [held for held in self.held if held[2] + GRACE > self.ahead]
        for table in self._tables():
            _ = self.con.cleanup_cube("c") if table == "c" else self.con.garbage_collect("d")

    def hold(self, table: str) -> None:
        """Begin to read, and go on much later."""
        if self._has({"c": "seed", "d": "d"}[table]):
            query = self.reader.sql(f"SELECT * FROM {table}")
            self.held.append((query, Counter(query.rows()), self.ahead))

    def readers_read_on(self, readers: Any = None) -> None:
        for query, expected, _ in self.held if readers is None else readers:
            assert Counter(query.rows()) == expected

    # -- what has to hold ------------------------------------------------------------------------

    def nothing_is_wrong(self, *, full: bool = False) -> None:
        """Check that CHECK finds nothing but files that are waiting for CLEANUP, and datasets that are no more."""
        for table in self._tables():
            for finding in self.con.check(table, full=full):
                if finding.check == "metadata" and finding.severity == "warning":
                    assert finding.dataset not in self.datasets
                else:
                    assert finding.severity == "info" or self._is_headless(finding), finding

    def _is_headless(self, finding: Any) -> bool:
        return finding.check == "cube" and "seed" not in self.datasets

    def sql_sees_the_model(self) -> None:
        sql = self.reader.sql
        if self._has("seed"):
            columns, rows = cube_rows(self.datasets)
            query = sql("SELECT * FROM c")
            assert query.columns == columns
            assert Counter(query.rows()) == Counter(rows)
            cube = [dict(zip(columns, row, strict=True)) for row in rows]
            found = sql("SELECT v FROM c WHERE i = 'i2' AND p <> 'b'").rows()
            assert sorted(found) == sorted((r["v"],) for r in cube if r["i"] == "i2" and r["p"] != "b")
            if self._has("en"):
                found = sql("SELECT w, v FROM c WHERE w > 7 AND x = 1").rows()
                assert sorted(found) == sorted((r["w"], r["v"]) for r in cube if (r["w"] or 0) > 7 and r["x"] == 1)
        for name, dataset in self.datasets.items():
            rows = [tuple(row[c] for c in COLUMNS[name]) for row in dataset.rows()]
            table = _table(name) if self._has("seed") or name == "d" else f'"{UUIDS[name]}"'
            if table[0] != '"':  # without a seed there are no cells, and rows are those of the files
                assert Counter(sql(f"SELECT {', '.join(COLUMNS[name])} FROM {table}").rows()) == Counter(rows)
            assert set(builders.read_document(self.store, UUIDS[name]).get("indices", {})) == dataset.indices
        if self._has("d"):
            found = sql("SELECT n FROM d WHERE s = 's1' AND (n > 5 OR n IS NULL)").rows()
            wanted = [r["n"] for r in self.datasets["d"].rows() if r["s"] == "s1"]
            assert Counter(found) == Counter((n,) for n in wanted if n is None or n > 5)

    def end(self) -> None:
        """Check that nothing is wrong, and that after two cleanups nothing is left over."""
        self.readers_read_on()
        self.repair()
        self.nothing_is_wrong(full=True)
        self.held.clear()
        for days in (0, 8, 8):
            self.clean(days)
        for name, key in UUIDS.items():
            assert originals.orphans(self.store, key) == []
            assert self._has(name) or self.store.list_below(f"{key}/") == {}
        self.sql_sees_the_model()


def _same(table: pa.Table) -> pa.Table:
    return table


def _table(name: str) -> str:
    return name if name == "d" else f"c.{name}"
