"""A locked engine opens the few files of each statement by names that stand for these files alone."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.engines.duckdb import runtime
from kartosql.errors import KartosqlError
from kartosql.plan import small_reads
from kartosql.store import Store
from written import write_dataset

COUNT = 100


@pytest.fixture
def place(tmp_path: Path) -> str:
    """``t`` has files by ``p`` with an index on ``i``, all of one size: v is 1000 + i, and f is NaN, -0.0 or NULL."""
    numbers = list(range(2 * COUNT))
    table = pa.table(
        {
            "p": [n % COUNT for n in numbers],
            "i": numbers,
            "v": [1000 + n for n in numbers],
            "f": pa.array([(float("nan"), -0.0, None)[n % 3] for n in numbers], pa.float64()),
        }
    )
    store = Store(str(tmp_path / "store"), create=True)
    write_dataset(store, "t", table, partition_on="p", index_columns=["i"])
    return str(tmp_path / "store")


@pytest.fixture
def connection(place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One on which every statement but the first uses slots, of which there are five."""
    monkeypatch.setattr(runtime, "FILES_PER_MISS", 1)
    monkeypatch.setattr(runtime, "FILES_PER_SLOTS", 0)
    monkeypatch.setattr(runtime, "SLOTS", 5)
    monkeypatch.setattr(small_reads, "MAX_FILES", 0)
    with kartosql.connect(place) as made:
        made.sql("SELECT v FROM t WHERE i = 0").rows()
        made.sql("SELECT v FROM t WHERE i = 1").rows()
        yield made


def _kept(connection: Any) -> runtime.Instance:
    (found,) = (i for i in connection._session.runtime._idle if i.slots is not None)
    return found


def _files(place: str, p: object) -> list[str]:
    return glob.glob(f"{place}/t/table/p={p}/*.parquet")


def test_one_engine_answers_for_all_files(connection):
    kept = _kept(connection)
    for i in [*range(2 * COUNT), *range(0, 2 * COUNT, 7)]:
        assert connection.sql(f"SELECT p, v FROM t WHERE i = {i}").rows() == [(i % COUNT, 1000 + i)]
        assert connection.sql("SELECT v FROM t WHERE i = ?", [i]).rows() == [(1000 + i,)]
    assert _kept(connection) is kept


def test_datasets_of_more_files_than_an_engine_may_be_allowed_share_one_as_well(place, monkeypatch):
    monkeypatch.setattr(runtime, "MAX_ALLOWED", COUNT - 1)
    monkeypatch.setattr(small_reads, "MAX_FILES", 0)
    with kartosql.connect(place) as con:
        for i in range(2):
            con.sql(f"SELECT v FROM t WHERE i = {i}").rows()
        kept = _kept(con)
        for i in range(2, 2 * COUNT):
            assert con.sql(f"SELECT v FROM t WHERE i = {i}").rows() == [(1000 + i,)]
        assert _kept(con) is kept


def test_changes_in_between_leave_the_engine_in_use(place, monkeypatch):
    monkeypatch.setattr(small_reads, "MAX_FILES", 0)
    with kartosql.connect(place) as connection:
        connection.sql("DELETE FROM t WHERE i = 0")
        connection.sql("DELETE FROM t WHERE i = 1")
        kept = _kept(connection)
        for i in range(2, 9):
            assert connection.sql(f"SELECT v FROM t WHERE i = {i}").rows() == [(1000 + i,)]
            connection.sql(f"DELETE FROM t WHERE i = {i}")
            assert connection.sql(f"SELECT p, v FROM t WHERE i = {i + COUNT}").rows() == [(i, 1000 + i + COUNT)]
            assert _kept(connection) is kept


def test_more_files_than_slots_are_read_by_another_engine(connection):
    for first in range(0, 40, 3):
        for count in (2, 5, 6, 20):
            listed = ", ".join(str(i) for i in range(first, first + count))
            found = connection.sql(f"SELECT v FROM t WHERE i IN ({listed}) ORDER BY v").rows()
            assert found == [(1000 + i,) for i in range(first, first + count)]


def test_answers_are_those_of_a_bare_engine(connection, place):
    sql = "SELECT i, v, f, signbit(f) FROM {} WHERE i IN ({}) AND (f IS NULL OR f = 0 OR isnan(f)) ORDER BY i"
    bare = duckdb.connect()
    for first in range(0, 2 * COUNT - 4, 11):
        listed = ", ".join(map(str, range(first, first + 4)))
        expected = bare.execute(sql.format(f"read_parquet('{place}/t/table/*/*.parquet')", listed)).fetchall()
        found = connection.sql(sql.format("t", listed)).rows()
        assert repr(found) == repr(expected)
        assert repr(connection.sql(sql.format("t", listed)).rows()) == repr(expected)  # once more


def test_contents_of_one_time_and_size_are_told_apart(connection, place):
    """Footers are kept by the name and the time of a file, and one name stands for many files."""
    for path in glob.glob(f"{place}/t/table/*/*.parquet"):
        os.utime(path, ns=(10**18, 10**18))
    assert len({os.stat(p).st_size for p in glob.glob(f"{place}/t/table/*/*.parquet")}) < COUNT
    for i in [*range(2 * COUNT), *reversed(range(2 * COUNT))]:
        assert connection.sql(f"SELECT v FROM t WHERE i = {i} AND v > {999 + i}").rows() == [(1000 + i,)]


def test_a_file_that_was_replaced_is_read_anew(connection, place):
    sql = "SELECT v FROM t WHERE i = 7"
    for _ in range(6):
        assert connection.sql(sql).rows() == [(1007,)]
    (path,) = _files(place, 7)
    before, table = os.stat(path), pq.read_table(path, partitioning=None)
    other = table.set_column(table.column_names.index("v"), "v", pa.array([5, 6]))
    pq.write_table(other, path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(3):
        assert connection.sql(sql).rows() == [(5,)]


def test_nothing_else_can_be_opened(connection, place):
    connection.sql("SELECT v FROM t WHERE i = 7").rows()
    kept = _kept(connection)
    (own,), (other,) = _files(place, 7), _files(place, 8)
    cursor = kept.cursor()
    name, size = kept.slots.names_of([own])[0], os.path.getsize(own)
    reader = f"read_parquet([{{'filename': '{name}', 'file_size': {size}}}])"
    assert cursor.execute(f"SELECT i FROM {reader} ORDER BY i").fetchall() == [(7,), (107,)]
    texts = [f"FROM read_parquet('{path}')" for path in (own, other, "kartosql://9", "kartosql://x")]
    texts += ["SET GLOBAL allowed_paths = ['/tmp']", "SET GLOBAL enable_external_access = true"]
    texts += ["COPY (SELECT 1) TO 'kartosql://0'", "COPY (SELECT 1) TO 'kartosql://4'", "ATTACH 'kartosql://1' AS x"]
    for text in texts:
        with pytest.raises(duckdb.Error):
            cursor.execute(text).fetchall()
    assert pq.read_table(own, partitioning=None)["i"].to_pylist() == [7, 107]
    kept.slots.forget()
    with pytest.raises(duckdb.Error):
        cursor.execute(f"FROM {reader}").fetchall()


def test_the_users_text_names_no_slot(connection):
    for text in ("FROM read_parquet('kartosql://0')", "FROM 'kartosql://0'", "FROM glob('kartosql://*')"):
        with pytest.raises(KartosqlError) as e:
            connection.sql(text).rows()
        assert e.value.code in ("not-allowed", "function-not-allowed", "unknown-table", "not-supported")


def test_errors_name_the_file(connection, place):
    (path,) = _files(place, 9)
    with open(path, "r+b") as f:
        f.seek(4)
        f.write(b"\xff" * 60)
    with pytest.raises(KartosqlError) as e:
        connection.sql("SELECT v FROM t WHERE i = 9").rows()
    assert e.value.code == "corrupt-file"
    assert "t/table/p=9/" in str(e.value)
    assert "kartosql://" not in str(e.value)
    assert connection.sql("SELECT v FROM t WHERE i = 10").rows() == [(1010,)]


def test_types_of_files_are_looked_at(connection, place):
    """A member of a struct may have the name of a column, and a column of a file another type than its table."""
    (nested,), (other,) = _files(place, 21), _files(place, 22)
    table = pq.read_table(nested, partitioning=None)
    members = pa.StructArray.from_arrays([pa.array(["a", "b"])], ["v"])
    pq.write_table(table.append_column("s", members), nested)
    table = pq.read_table(other, partitioning=None)
    pq.write_table(table.set_column(table.column_names.index("v"), "v", pa.array(["a", "b"])), other)
    assert connection.sql("SELECT v FROM t WHERE i = 21").rows() == [(1021,)]
    with pytest.raises(KartosqlError) as e:
        connection.sql("SELECT v FROM t WHERE i = 22").rows()
    assert e.value.code == "schema-mismatch"


def test_files_that_went_away_and_links_are_refused(connection, place, tmp_path):
    (gone,), (linked,), (target,) = _files(place, 11), _files(place, 12), _files(place, 13)
    connection.sql("SELECT v FROM t WHERE i = 11").rows()
    os.remove(gone)
    os.remove(linked)
    os.symlink(target, linked)
    for i, codes in ((11, {"missing-file"}), (12, {"unsafe-key"})):
        with pytest.raises(KartosqlError) as e:
            connection.sql(f"SELECT v FROM t WHERE i = {i}").rows()
        assert e.value.code in codes
    slots = _kept(connection).slots
    with pytest.raises(OSError, match="symbolic"):
        slots.open(slots.names_of([linked])[0])


def test_descriptors_are_closed(connection):
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        pytest.skip("no list of descriptors")
    for i in range(20):
        connection.sql(f"SELECT v FROM t WHERE i = {i}").rows()
    before = len(os.listdir(folder))
    for i in range(60):
        connection.sql(f"SELECT v FROM t WHERE i = {i}").rows()
    assert len(os.listdir(folder)) <= before + 2


def test_a_process_that_ends_without_closing_says_nothing(place):
    asked = "; ".join(f"c.sql('SELECT v FROM t WHERE i = {i}').rows()" for i in range(5))
    patched = "from kartosql.engines.duckdb import runtime; runtime.FILES_PER_MISS = 1; "
    patched += "from kartosql.plan import small_reads; small_reads.MAX_FILES = 0"
    code = f"import kartosql; {patched}; c = kartosql.connect({place!r}); {asked}; print(len(c._session.runtime._idle))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("2\n", "")
