"""Inverted indices of Delta and Iceberg tables, against the same statements where no index is asked."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

import kartosql


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
    con.attach(lake.url, "t", **lake.options, metadata=str(tmp_path / "place"))
    con.sql("CREATE INDEX ON t (k)")
    assert list((tmp_path / "place").glob(".kartosql/**/indexes.json"))
    assert con.sql("SELECT s FROM t WHERE k = 2").rows() == [("b",)]
