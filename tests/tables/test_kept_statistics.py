"""What earlier processes read of footers is believed of the very same files alone, and changes no answer."""

from __future__ import annotations

import datetime as dt
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql import session_pool
from kartosql.engines.duckdb import footers
from kartosql.errors import FormatError
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.tables import kept_statistics, statistics
from kartosql.tables.kept_statistics import KeptStatistics
from kartosql.tables.statistics import ColumnBounds, statistics_of
from kartosql.user_cache import UserCache
from written import write_dataset

FILES = 24
DAY, MOMENT = dt.date(1970, 1, 1), dt.datetime(2020, 3, 28, 22, 59, 59, 999999)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "b": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 127, 0]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "u64": (pa.uint64(), [0, 2**63, 2**64 - 1]),
    "f32": (pa.float32(), [float("nan"), -0.0, 0.0, float("inf"), 1.5]),
    "f64": (pa.float64(), [-0.0, 0.0, -float("inf"), 1e308, 0.1]),
    "dec": (pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("0.01")]),
    "wide": (pa.decimal128(38, 3), [Decimal(10**34), Decimal(-(10**34)), Decimal("0.001")]),
    "day": (pa.date32(), [DAY - dt.timedelta(700_000), DAY + dt.timedelta(2_900_000)]),
    "ts": (pa.timestamp("us"), [MOMENT, MOMENT + dt.timedelta(1)]),
    "tz": (pa.timestamp("ns", "UTC"), [MOMENT, MOMENT - dt.timedelta(1)]),
    "s": (pa.string(), ["", "a\0", "é", "\U0001f600", "\uffff", "z" * 31, "z" * 40]),
    "raw": (pa.binary(), [b"", b"\xff"]),
    "empty": (pa.int32(), [None]),
}


def _rows(seed: int) -> pa.Table:
    r = random.Random(seed)
    owners = [p for p in range(FILES) for _ in range(r.choice([1, 2, 5, 9]))]
    columns: dict[str, Any] = {"p": owners, "h": [p % 3 for p in owners]}
    for name, (type_, values) in COLUMNS.items():
        nulls, without = r.choice([0, 0.3]), r.sample(range(FILES), 3)
        columns[name] = pa.array(
            [None if p in without or r.random() < nulls else r.choice(values) for p in owners], type_
        )
    return pa.table(columns)


class Processes:
    """One dataset, and processes one after the other: what they remember of footers is in the cache alone."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = Store(str(folder / "store"), create=True)
        self.cache = str(folder / "cache")
        self.read: list[str] = []
        read = footers.local_footer

        def counted(path: str, size: int) -> bytes | None:
            self.read.append(path)
            return read(path, size)

        monkeypatch.setattr(footers, "local_footer", counted)
        monkeypatch.setattr(footers, "MIN_KEPT", 1)
        monkeypatch.setattr(kept_statistics, "SETTLED_NS", -(10**18))

    def files(self) -> list[str]:
        return sorted(key for key in self.store.list_below("t/table/") if key.endswith(".parquet"))

    def ask(self, *texts: str, cache: str | None = None) -> list[str]:
        """Return the answers of a new process."""
        session_pool.clear()
        statistics._known.clear()
        self.read.clear()
        with kartosql.connect(self.store.url, cache=cache or self.cache) as made:
            return [repr(made.sql(text).rows()) for text in texts]


@pytest.fixture
def processes(tmp_path, monkeypatch) -> Processes:
    return Processes(tmp_path, monkeypatch)


SMALL = ("SELECT count(*), min(v), max(v) FROM t",)


def _small(processes: Processes) -> None:
    rows = {"p": [n // 2 for n in range(2 * FILES)], "v": [*range(2 * FILES)]}
    write_dataset(processes.store, "t", pa.table(rows), partition_on="p")


def _statements() -> list[str]:
    found = ["SELECT count(*) FROM t", "SELECT h, count(*) FROM t GROUP BY h ORDER BY h"]
    for name in COLUMNS:
        found += [
            f"SELECT count(*), min({name}), max({name}) FROM t",
            f"SELECT p, count(*) FROM t WHERE {name} IS NULL GROUP BY p ORDER BY p",
            f"SELECT {name}, p FROM t ORDER BY {name} DESC NULLS LAST, p LIMIT 3",
            f"SELECT p, count({name}) FROM t WHERE {name} > (SELECT min({name}) FROM t) GROUP BY p ORDER BY p",
        ]
    return found


@pytest.mark.parametrize("seed", range(2))
def test_answers_of_a_later_process_are_those_without_a_cache_whatever_columns_hold(processes, monkeypatch, seed):
    monkeypatch.setattr("kartosql.indexes.index.MIN_FOR_STATISTICS", 1)
    write_dataset(processes.store, "t", _rows(seed), partition_on=["p", "h"])
    for at, key in enumerate(processes.files()):
        rows = pq.read_table(pa.BufferReader(processes.store.read(key)), partitioning=None)
        sink = pa.BufferOutputStream()
        # One file has no rows, one no statistics.
        pq.write_table(rows.slice(0, 0) if at == 5 else rows, sink, write_statistics=at != 7, row_group_size=4)
        processes.store.put(key, bytes(sink.getvalue()))
    # Which of two zeros is the least one depends on which thread is first.
    statements = _statements()
    first, later, without = (
        [answer.replace("-0.0", "0.0") for answer in processes.ask(*statements, cache=cache)]
        for cache in (None, None, "off")
    )
    assert first == later == without


def test_a_later_process_reads_no_footer_again(processes):
    _small(processes)
    assert processes.ask(*SMALL) == ["[(48, 0, 47)]"]
    assert len(processes.read) == FILES
    assert processes.ask(*SMALL) == ["[(48, 0, 47)]"]
    assert processes.read == []
    assert processes.ask(*SMALL, cache="off") == ["[(48, 0, 47)]"]
    assert len(processes.read) == FILES


def test_a_file_that_was_written_anew_is_read_again(processes):
    _small(processes)
    processes.ask(*SMALL)
    key = processes.files()[3]
    size, about = processes.store.size(key), os.stat(processes.store.local_path(key))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"v": pa.array([-7], pa.int64())}), sink)
    with open(processes.store.local_path(key), "r+b") as file:
        file.truncate(0)
        file.write(bytes(sink.getvalue()))
    os.utime(file.name, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert processes.store.size(key) != size
    assert processes.ask(*SMALL) == ["[(47, -7, 47)]"]
    assert processes.read == [processes.store.local_path(key)]


def test_what_came_since_is_read_and_kept_beside_the_rest(processes):
    _small(processes)
    processes.ask(*SMALL)
    with kartosql.connect(processes.store.url) as made:
        made.append_to_dataset("t", pa.table({"p": [99, 99], "v": [500, 501]}))
    assert processes.ask(*SMALL) == ["[(50, 0, 501)]"]
    assert len(processes.read) == 1
    assert processes.ask(*SMALL) == ["[(50, 0, 501)]"]
    assert processes.read == []


def test_processes_that_ask_for_different_files_add_to_what_is_kept(processes):
    _small(processes)
    parts = [f"{SMALL[0]} WHERE p {condition}" for condition in ("< 12", ">= 12")]
    assert [processes.ask(part) for part in parts] == [["[(24, 0, 23)]"], ["[(24, 24, 47)]"]]
    assert processes.ask(*SMALL, *parts) == ["[(48, 0, 47)]", "[(24, 0, 23)]", "[(24, 24, 47)]"]
    assert processes.read == []


def test_files_that_were_written_just_now_are_not_kept(processes, monkeypatch):
    _small(processes)
    monkeypatch.setattr(kept_statistics, "SETTLED_NS", 10**18)
    for _ in range(2):
        processes.ask(*SMALL)
        assert len(processes.read) == FILES


def test_a_footer_that_could_not_be_read_is_read_again(processes):
    _small(processes)
    key = processes.files()[3]
    good = processes.store.read(key)
    processes.store.put(key, good[:-4] + b"oops")
    with pytest.raises(FormatError):
        processes.ask(*SMALL)
    processes.store.put(key, good)
    assert processes.ask(*SMALL) == ["[(48, 0, 47)]"]
    assert processes.read == [processes.store.local_path(key)]


def test_files_that_lack_a_column_are_read_as_their_table_says(processes, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for n in range(20):
        pq.write_table(pa.table({"v": [n]} if n % 2 else {"v": [n], "w": [n]}), folder / f"{n}.parquet")
    session_pool.clear()
    for _ in range(2):
        statistics._known.clear()
        with kartosql.connect(processes.store.url, cache=processes.cache) as made:
            made.sql(f"ATTACH '{folder}' AS f (TYPE parquet)")
            assert made.sql("SELECT count(*), count(w), min(w), max(w), max(v) FROM f").rows() == [(20, 10, 0, 18, 19)]
            assert made.sql("SELECT count(*), min(w), max(w) FROM f WHERE w > 16").rows() == [(1, 18, 18)]


def _entries(processes: Processes) -> list[Path]:
    return sorted(Path(processes.cache).glob(f"{kept_statistics._KIND}-*"))


@pytest.mark.parametrize("damage", range(6))
def test_damaged_entries_are_none(processes, damage):
    write_dataset(processes.store, "t", _rows(0), partition_on=["p", "h"])
    statements = [f"SELECT count(*), min({name}), max({name}) FROM t" for name in ("i8", "wide", "s", "day", "f64")]
    expected = processes.ask(*statements)
    r = random.Random(damage)
    for path in _entries(processes):
        data = bytearray(path.read_bytes())
        for _ in range(3):
            data[r.randrange(len(data))] ^= 1 << r.randrange(8)
        path.write_bytes(data[: r.randrange(len(data))] if damage % 2 else data)
    assert processes.ask(*statements) == expected


WRONG: list[tuple[pa.DataType, dict[str, Any]]] = [
    (pa.int64(), {"low": 9, "high": 8}),
    (pa.int64(), {"nulls": 3}),
    (pa.int64(), {"nulls": -2}),
    (pa.int64(), {"files": 9}),
    (pa.int64(), {"files": -1}),
    (pa.float64(), {"low": float("nan")}),
    (pa.date32(), {"high": 2**40}),
    (pa.decimal128(38, 0), {"high": 10**50}),
    (pa.decimal128(38, 0), {"high": "x"}),
]


@pytest.mark.parametrize(("type_", "changes"), WRONG, ids=str)
def test_entries_that_somebody_made_up_are_none(processes, type_, changes):
    write_dataset(processes.store, "t", pa.table({"p": [0, 1], "v": pa.array([1, 2], type_)}), partition_on="p")
    table: Any = Snapshot(processes.store).dataset("t").tables["table"]
    stamps = dict(enumerate(processes.store.stamps(table.files).values()))
    kept = KeptStatistics(UserCache(processes.cache), "here", table, stamps)
    for is_wrong in (False, True):
        values = {"files": 0, "nulls": 0, "rows": 2, "exact": 1, "low": 1, "high": 2} | (changes if is_wrong else {})
        bounds = ColumnBounds(type_, seen=frozenset({0, 1}), complete=frozenset({0, 1}))
        for name, value in values.items():
            column = getattr(bounds, name)
            column.append(value if isinstance(column, list) else type(column)(column.typecode, [value])[0])
        buffers = kept_statistics._buffers([*kept._names.values()], bounds)
        kept._cache.put(kept_statistics._KIND, kept._of("v"), buffers)
        known = statistics.TableStatistics(table)
        kept.recall(known, ["v"])
        found = known.column("v")
        assert found is not None
        assert (len(found), len(found.complete)) == ((0, 0) if is_wrong else (1, 2))


def test_entries_with_other_numbers_of_values_are_none(processes):
    _small(processes)
    table: Any = Snapshot(processes.store).dataset("t").tables["table"]
    processes.ask(*SMALL)
    stamps = dict(enumerate(processes.store.stamps(table.files).values()))
    cache = UserCache(processes.cache)
    kept = KeptStatistics(cache, processes.store.local_path("t/"), table, stamps)
    good = cache.get(kept_statistics._KIND, kept._of("v"))
    assert good is not None
    for at in range(1, len(good)):
        for wrong in (good[at][:-1], bytes(good[at]) + b"\0" * 8, b""):
            if len(wrong) == len(good[at]) or not len(good[at]):
                continue
            buffers = [*map(bytes, good[1:at]), bytes(wrong), *map(bytes, good[at + 1 :])]
            cache.put(kept_statistics._KIND, kept._of("v"), [kept_statistics._checksum(buffers), *buffers])
            known = statistics.TableStatistics(table)
            kept.recall(known, ["v"])
            found = known.column("v")
            assert found is not None
            assert not found.complete
    assert processes.ask(*SMALL) == ["[(48, 0, 47)]"]
    assert statistics_of(table).column("v") is None
