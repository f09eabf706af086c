"""Indices of Delta and Iceberg tables, against the same statements where no index is asked."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

import kartosql
from delta_tables import DeltaTable, column
from kartosql.conditions import C
from kartosql.errors import KartosqlError, KartosqlWarning


class Delta:
    """A Delta table as its writer has it."""

    def __init__(self, path: Path) -> None:
        self.url, self.options = str(path / "d"), {"type": "delta"}

    def append(self, rows: pa.Table) -> None:
        deltalake.write_deltalake(self.url, rows, mode="append")

    def delete(self, where: str) -> None:
        deltalake.DeltaTable(self.url).delete(where)

    def rewrite(self) -> None:
        deltalake.DeltaTable(self.url).optimize.compact()


class Iceberg:
    """An Iceberg table as its writer has it."""

    def __init__(self, path: Path) -> None:
        self._catalog = SqlCatalog("c", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
        self._catalog.create_namespace("n")
        self.url, self.options = str(path / "n" / "t"), {"type": "iceberg"}
        self._table: Any = None

    def append(self, rows: pa.Table) -> None:
        if self._table is None:
            self._table = self._catalog.create_table("n.t", rows.schema)
        self._table.append(rows)

    def delete(self, where: str) -> None:
        self._table.delete(where)

    def rewrite(self) -> None:
        self._table.overwrite(self._table.scan().to_arrow())

    def rename(self) -> None:
        with self._table.update_schema() as change:
            change.rename_column("k", "old")
        with self._table.update_schema() as change:
            change.add_column("k", LongType())

    def swap(self, one: str, other: str) -> None:
        for old, new in ((one, "between"), (other, one), ("between", other)):
            with self._table.update_schema() as change:
                change.rename_column(old, new)

    def close(self) -> None:
        self._catalog.close()


@pytest.fixture(params=[Delta, Iceberg])
def lake(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    if isinstance(made, Iceberg):
        made.close()


@pytest.fixture
def con(tmp_path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def some(choose: random.Random) -> pa.Table:
    keys = [choose.choice([None, *range(60)]) for _ in range(20)]
    return pa.table({"k": pa.array(keys, pa.int64()), "s": [f"t{choose.randrange(60)}" for _ in keys], "n": range(20)})


def steps(con, sql: str) -> list[str]:
    return [s["by"] for s in con.explain(sql).to_dict()["scans"][0]["datasets"][0]["steps"]]


def test_an_index_leaves_out_the_files_without_a_match(con, lake, tmp_path):
    for key in range(6):
        lake.append(pa.table({"k": [key, key + 100, 50], "s": ["a", "b", "c"]}))
    con.attach(lake.url, "t", **lake.options)
    con.sql("CREATE INDEX ON t (k)")
    sql = "SELECT s FROM t WHERE k = 103"
    assert con.sql(sql).rows() == [("b",)]
    scan = con.explain(sql).to_dict()["scans"][0]["datasets"][0]
    assert scan["files_selected"] == 1
    assert "inverted index" in steps(con, "SELECT s FROM t WHERE k = 49") + steps(con, sql)
    assert con.explain("SELECT s FROM t WHERE k = 49").to_dict()["scans"][0]["datasets"][0]["files_selected"] == 0
    assert not list(Path(lake.url).glob("**/.kartosql"))
    with kartosql.connect(tmp_path / "store") as again:
        again.attach(lake.url, "other", **lake.options)
        assert again.sql("SELECT count(*) FROM other WHERE k = 50").rows() == [(6,)]
        assert [row[1] for row in again.sql("SHOW INDEXES FROM other").rows()] == ["k"]
    con.sql("DROP INDEX ON t (k)")
    assert "inverted index" not in steps(con, sql)


@pytest.mark.parametrize("seed", range(2))
def test_rows_are_the_same_with_indices_whatever_happened_since(con, lake, seed):
    choose = random.Random(seed)
    lake.append(some(choose))
    con.attach(lake.url, "t", **lake.options)
    for _ in range(8):
        {0: lambda: lake.append(some(choose)), 1: lambda: lake.delete(f"k = {choose.randrange(60)}")}.get(
            choose.randrange(3), lambda: con.sql(f"CREATE INDEX ON t ({choose.choice(['k', 's', 'k, s'])})")
        )()
        if not choose.randrange(6):
            lake.rewrite()
        for _ in range(6):
            a, b = sorted(choose.sample(range(60), 2))
            where, plain = choose.choice(
                [
                    (f"k = {a}", f"k + 0 = {a}"),
                    (f"k IN ({a}, {b})", f"k + 0 IN ({a}, {b})"),
                    (f"k > {a} AND k < {b}", f"k + 0 > {a} AND k + 0 < {b}"),
                    (f"s = 't{a}' OR k = {b}", f"s || '' = 't{a}' OR k + 0 = {b}"),
                    (f"s = 't{a}' AND k IS NOT NULL", f"s || '' = 't{a}' AND k + 0 IS NOT NULL"),
                ]
            )
            asked = con.sql(f"SELECT * FROM t WHERE {where} ORDER BY ALL").rows()
            assert asked == con.sql(f"SELECT * FROM t WHERE {plain} ORDER BY ALL").rows(), where


def test_a_version_of_the_past_asks_the_same_index(con, lake):
    lake.append(pa.table({"k": [1, 2], "s": ["a", "b"]}))
    lake.append(pa.table({"k": [3, 4], "s": ["c", "d"]}))
    con.attach(lake.url, "t", **lake.options)
    con.sql("CREATE INDEX ON t (k)")
    before = con.sql("SELECT now()").rows()[0][0]
    lake.delete("k = 3")
    assert con.sql("SELECT s FROM t WHERE k = 3").rows() == []
    past = f"t AT (TIMESTAMP => '{before.isoformat()}')"
    assert con.sql(f"SELECT s FROM {past} WHERE k = 3").rows() == [("c",)]
    assert con.sql(f"SELECT s FROM {past} WHERE k = 1").rows() == [("a",)]


def test_the_index_of_a_column_is_not_that_of_another_one_with_its_name(con, tmp_path):
    lake = Iceberg(tmp_path)
    lake.append(pa.table({"k": pa.array([1, 2], pa.int64()), "s": ["a", "b"]}))
    con.attach(lake.url, "t", **lake.options)
    con.sql("CREATE INDEX ON t (k)")
    lake.rename()
    lake.append(pa.table({"old": pa.array([7], pa.int64()), "s": ["c"], "k": pa.array([1], pa.int64())}))
    assert con.sql("SELECT s FROM t WHERE k = 1").rows() == [("c",)]
    assert con.sql("SELECT count(*) FROM t WHERE k IS NULL").rows() == [(2,)]
    assert con.sql("SELECT s FROM t WHERE old = 2").rows() == [("b",)]
    lake.swap("old", "k")
    assert con.sql("SELECT s FROM t WHERE k = 7").rows() == [("c",)]
    assert con.sql("SELECT s FROM t WHERE old = 1").rows() == [("c",)]
    con.sql("CREATE INDEX ON t (k, old)")
    lake.swap("old", "k")
    assert con.sql("SELECT s FROM t WHERE k = 1").rows() == [("c",)]
    assert con.sql("SELECT s FROM t WHERE old = 7").rows() == [("c",)]
    lake.close()


def test_a_place_for_the_index_can_be_given(con, lake, tmp_path):
    lake.append(pa.table({"k": [1, 2], "s": ["a", "b"]}))
    (tmp_path / "place").mkdir()
    con.attach(lake.url, "t", **lake.options, metadata=tmp_path / "place")
    con.sql("CREATE INDEX ON t (k)")
    assert list((tmp_path / "place").glob(".kartosql/**/indexes.json"))
    assert con.sql("SELECT s FROM t WHERE k = 2").rows() == [("b",)]


# -- skipping indexes ------------------------------------------------------------------------------


def selected(con, sql: str) -> int:
    return con.explain(sql).to_dict()["scans"][0]["datasets"][0]["files_selected"]


def texts(at: int) -> pa.Table:
    return pa.table({"k": pa.array([at, at + 1000], pa.int64()), "s": [f"Chapter {at:03}, of whales", None]})


def test_pieces_of_texts_leave_out_files_until_they_are_dropped(con, lake, tmp_path):
    for at in range(12):
        lake.append(texts(at))
    con.attach(lake.url, "t", **lake.options)
    sql, counts = "SELECT k FROM t WHERE s LIKE '%ter 007%'", ["indexes", "added", "removed", "kept", "unindexed"]
    (advice,) = (a for a in con.sql(f"ADVISE {sql}").content.advice if a.statement.startswith("CREATE SKIPPING"))
    con.sql(advice.statement)
    assert con.sql("CREATE SKIPPING INDEX ON t (NGRAM(s), PREFIX(s) WITH (length = 20))").rows()[0][2:] == (12, 0, 0, 0)
    found = con.sql(sql)
    assert (found.rows(), found.report.files_selected, steps(con, sql)[-1]) == ([(7,)], 1, "ngram")
    assert selected(con, "SELECT k FROM t WHERE s LIKE 'Chapter 00%'") == 10
    assert selected(con, "SELECT k FROM t WHERE regexp_matches(s, 'Chapter 0[01]1, ')") <= 4
    lake.append(texts(7))
    assert selected(con, sql) == 2
    lake.append(texts(50))
    assert selected(con, sql) == 3  # of the new ones nothing is known
    done = con.refresh_skipping_index("t")
    assert [done[name] for name in counts] == [3, 2, 0, 12, 0]
    assert (selected(con, sql), con.sql(sql).rows()) == (2, [(7,), (7,)])
    lake.delete("k = 1011")
    lake.delete("k = 11")
    assert con.sql("SELECT count(*) FROM t WHERE s LIKE '%011%'").rows() == [(0,)]
    assert con.refresh_skipping_index("t")["kept"] in (13, 14)  # rows deleted by a vector leave the file
    with kartosql.connect(tmp_path / "store", read_only=True, attach=True) as again:
        again.attach(lake.url, "other", **lake.options)
        assert selected(again, sql.replace("FROM t", "FROM other")) == 2
    assert [row[1:3] for row in con.sql("SHOW SKIPPING INDEXES FROM t").rows()][1:] == [("ngram", "s"), ("prefix", "s")]
    con.sql("DROP SKIPPING INDEX ON t")
    assert selected(con, sql) > 2
    assert not list((tmp_path / "store").glob(".kartosql/*/skipping/*"))
    assert not list(Path(lake.url).glob("**/.kartosql"))
    for call in (con.drop_skipping_index, con.refresh_skipping_index):
        with pytest.raises(KartosqlError) as error:
            call("t")
        assert error.value.code == "not-indexed"


def asked(choose: random.Random) -> tuple[str, str]:
    """Return a condition that skipping indexes answer, and the same one that they do not."""
    a, b = choose.sample(range(60), 2)
    return choose.choice(
        [
            (f"s LIKE '%t{a}%'", f"s || '' LIKE '%t{a}%'"),
            (f"s LIKE 't{a // 10}%' OR k = {b}", f"s || '' LIKE 't{a // 10}%' OR k + 0 = {b}"),
            (f"s ILIKE '%T{a}' AND k < {b}", f"s || '' ILIKE '%T{a}' AND k + 0 < {b}"),
            (f"s = 't{a}'", f"s || '' = 't{a}'"),
            (f"regexp_matches(s, 't{a}$') OR k IS NULL", f"regexp_matches(s || '', 't{a}$') OR k + 0 IS NULL"),
            (f"s NOT LIKE '%t{a}%' AND k = {b}", f"s || '' NOT LIKE '%t{a}%' AND k + 0 = {b}"),
        ]
    )


SPECS = ["NGRAM(s)", "PREFIX(s)", "MINMAX(k)", "VALUELIST(s)", "BLOOMFILTER(k)", "MINMAX(s)", "VALUELIST(k)"]


@pytest.mark.parametrize("seed", range(2))
def test_rows_are_the_same_with_skipping_indexes_whatever_happened_since(con, lake, seed):
    choose = random.Random(seed)
    lake.append(some(choose))
    con.attach(lake.url, "t", **lake.options)
    for turn in range(9):
        if turn % 3 == 1:
            con.sql(f"CREATE SKIPPING INDEX ON t ({', '.join(choose.sample(SPECS, 2))})")
        elif turn % 3 == 2 and not choose.randrange(3):
            con.sql("REFRESH SKIPPING INDEX ON t")
        else:
            lake.append(some(choose))
            lake.delete(f"k = {choose.randrange(60)}")
        if turn == 5:
            lake.rewrite()
        for where, plain in (asked(choose) for _ in range(8)):
            found = con.sql(f"SELECT * FROM t WHERE {where} ORDER BY ALL").rows()
            assert found == con.sql(f"SELECT * FROM t WHERE {plain} ORDER BY ALL").rows(), where


def test_a_skipping_index_is_not_that_of_another_column_with_its_name(con, tmp_path):
    lake = Iceberg(tmp_path)
    lake.append(pa.table({"k": ["one", "two"], "s": ["aaaa", "bbbb"]}))
    con.attach(lake.url, "t", **lake.options)
    con.sql("CREATE SKIPPING INDEX ON t (NGRAM(k), NGRAM(s))")
    assert selected(con, "SELECT s FROM t WHERE k LIKE '%aaa%'") == 0
    lake.swap("s", "k")
    assert con.sql("SELECT s FROM t WHERE k LIKE '%aaa%'").rows() == [("one",)]
    lake.append(pa.table({"s": ["three"], "k": ["cccc"]}))
    assert con.refresh_skipping_index("t")["added"] == 2
    assert selected(con, "SELECT s FROM t WHERE k LIKE '%aaa%'") == 1
    assert con.sql("SELECT s FROM t WHERE k LIKE '%ccc%'").rows() == [("three",)]
    lake.swap("s", "k")
    assert con.sql("SELECT s FROM t WHERE k LIKE '%hree%'").rows() == [("cccc",)]
    lake.close()


def test_skipping_indexes_of_columns_that_are_gone_go_with_the_next_change(con, tmp_path):
    lake = Iceberg(tmp_path)
    lake.append(pa.table({"k": ["one", "two"], "s": ["aaaa", "bbbb"]}))
    con.attach(lake.url, "t", **lake.options)
    con.sql("CREATE SKIPPING INDEX ON t (NGRAM(k), PREFIX(k), NGRAM(s))")
    lake.rename()  # and another column, of numbers, has the name
    lake.append(pa.table({"old": ["three"], "s": ["cccc"], "k": pa.array([7], pa.int64())}))
    assert con.sql("CREATE SKIPPING INDEX ON t (MINMAX(k))").rows() == [("t", 2, 2, 0, 0, 0)]
    assert selected(con, "SELECT s FROM t WHERE s LIKE '%ccc%'") == 1
    assert selected(con, "SELECT s FROM t WHERE k > 7") == 0
    assert con.sql("SELECT s FROM t WHERE old LIKE '%hre%'").rows() == [("cccc",)]
    lake.swap("s", "old")
    assert con.refresh_skipping_index("t")["indexes"] == 2
    lake.close()


def test_columns_that_files_call_otherwise_or_lack_are_indexed(con, tmp_path):
    fields = [column("i", "long", "col-1", 1), column("s", "string", "Odd.name", 2)]
    mapped = {"features": ("columnMapping",), "configuration": {"delta.columnMapping.mode": "name"}}
    made = DeltaTable(tmp_path / "t", fields[:1], **mapped)
    made.add([{"i": 1}])
    made.evolve(fields)
    for at in range(5):
        made.add([{"i": 10 * at, "s": f"text {at}"}])
    con.attach(tmp_path / "t", "t", type="delta")
    assert con.create_skipping_index("t", ngram="s", minmax="i")["added"] == 6
    assert (selected(con, "FROM t WHERE s LIKE '%ext 3'"), selected(con, "FROM t WHERE s LIKE '%new%'")) == (1, 0)
    assert con.sql("SELECT i FROM t WHERE s LIKE '%ext 3'").rows() == [(30,)]
    assert con.sql("SELECT i FROM t WHERE s IS NULL").rows() == [(1,)]


def test_damaged_skipping_indexes_leave_out_nothing(con, lake, tmp_path):
    for at in range(4):
        lake.append(texts(at))
    con.attach(lake.url, "t", **lake.options)
    con.create_skipping_index("t", ngram="s")
    sql = "SELECT k FROM t WHERE s LIKE '%ter 002%'"
    for part in (tmp_path / "store").glob(".kartosql/*/skipping/*.parquet"):
        data = bytearray(part.read_bytes())
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        part.write_bytes(data)
    with kartosql.connect(tmp_path / "store") as again:
        again.attach(lake.url, "t", **lake.options)
        with pytest.warns(KartosqlWarning):
            assert again.sql(sql).rows() == [(2,)]


def test_folders_without_metadata_of_their_own_keep_them_beside_inverted_indices(con, tmp_path):
    (tmp_path / "f" / "p=1").mkdir(parents=True)
    for at in range(6):
        pq.write_table(texts(at), tmp_path / "f" / "p=1" / f"{at}.parquet")
    con.attach(tmp_path / "f", "t", type="parquet")
    con.sql("CREATE SKIPPING INDEX ON t (NGRAM(s))")
    con.sql("CREATE INDEX ON t (k)")
    sql = "SELECT k FROM t WHERE s LIKE '%ter 003%'"
    assert (selected(con, sql), con.sql(sql).rows()) == (1, [(3,)])
    time.sleep(0.02)  # a file system may note times no better
    pq.write_table(texts(3), tmp_path / "f" / "p=1" / "5.parquet")
    assert con.sql(sql).rows() == [(3,), (3,)]
    assert con.refresh_skipping_index("t")["added"] == 1
    assert selected(con, sql) == 2
    assert steps(con, "SELECT s FROM t WHERE k = 3") == ["inverted index"]


# -- query_cube ------------------------------------------------------------------------------------


def test_query_cube_asks_what_is_attached_by_the_dimensions_that_are_named(con, lake, tmp_path):
    for at in (1, 0):
        lake.append(pa.table({"k": [10 * at + 1, 10 * at, None], "s": ["b", "a", "b"], "n": [1, at, None]}))
    con.attach(lake.url, "t", **lake.options)
    con.create_index("t", ["k", "s"])
    found = con.query_cube("t", ["s", "k"])
    assert (found.columns, len(found)) == (["k", "n", "s"], 6)
    assert found.rows()[:3] == [(0, 0, "a"), (10, 1, "a"), (1, 1, "b")]
    lake.delete("k = 10")
    assert con.query_cube("t", "k", payload_columns=["n"], conditions=C("k") == 1).rows() == [(1, 1)]
    found = con.query_cube("t", "k", payload_columns=[], conditions="(k > 5) & (s == 'b')")
    assert (found.columns, found.rows()) == (["k"], [(11,)])
    assert found.report.files_selected < found.report.files_total
    parts = con.query_cube("t", ["k"], partition_by="s", payload_columns=[])
    assert [part.rows() for part in parts] == [[(0, "a")], [(1, "b"), (11, "b"), (None, "b"), (None, "b")]]
    for code, call in {
        "unknown-table": lambda: con.query_cube("t"),
        "unknown-column": lambda: con.query_cube("t", ["k", "no"]),
        "not-indexed": lambda: con.query_cube("t", ["k"], partition_by="n"),
    }.items():
        with pytest.raises(KartosqlError) as error:
            call()
        assert error.value.code == code
    pq.write_table(pa.table({"x": [2, 1], "k": ["b", "a"]}), tmp_path / "store" / "own.parquet")
    assert con.query_cube("own", "x").rows() == [("a", 1), ("b", 2)]  # without ATTACH
    con.build_cube(kartosql.Cube("own", ["x"], ["p"]), pa.table({"x": [7], "p": [0]}))
    assert con.query_cube("own", "x").rows() == [(0, 7)]
