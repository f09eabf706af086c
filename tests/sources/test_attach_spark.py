"""What is attached, on Spark: the same rows and types as on DuckDB."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import HandTable
from odf_folder import Dataset
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import golden
import kartosql
from kartosql.errors import KartosqlError

pytestmark = pytest.mark.usefixtures("spark")
NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def same(con: Any, sql: str) -> list[Any]:
    duck, spark = con.sql(sql, engine="duckdb").arrow(), con.sql(sql, engine="spark").arrow()
    assert spark.schema.equals(duck.schema)
    assert Counter(map(repr, spark.to_pylist())) == Counter(map(repr, duck.to_pylist())), sql
    return spark.to_pylist()


def test_golden_odf_datasets(con):
    for entry in golden.entries("odf/manifest.json", "datasets"):
        con.sql(f"ATTACH OR REPLACE '{golden.find('odf/' + entry['folder'])}' AS t (TYPE odf)")
        same(con, "SELECT * FROM t")
        same(con, 'SELECT * FROM "t$log"')
        query = entry["expect"].get("query")
        if query is not None:
            rows = [list(r.values()) for r in same(con, query["state_sql"])]
            assert sorted(map(repr, rows)) == sorted(map(repr, query["state"]))


def test_odf_datasets_of_several_schemas_and_times(con, tmp_path):
    for name, key in (("keyed", ["k"]), ("plain", None)):
        data = Dataset(tmp_path / name, {"offset": "o", "op": "w", "system": "st", "event": "et"}, key)
        item = pa.struct([("x", pa.int32())])
        data.schema(k=pa.int64(), n=pa.int32(), s=item, m=pa.list_(item), d=pa.decimal128(5, 2))
        types = {"k": pa.int64(), "n": pa.int32(), "s": item, "m": pa.list_(item), "d": pa.decimal128(5, 2)}
        row = {"k": 1, "n": 7, "s": {"x": 1}, "m": [{"x": 2}, None], "d": Decimal("1.25")}
        data.append([0, 0, 0], types, [row, row, {"k": 2}])
        before = data.now
        wide = pa.struct([("x", pa.int64()), ("y's", pa.string())])
        data.schema(k=pa.int64(), n=pa.int64(), s=wide, m=pa.list_(wide), d=pa.decimal128(9, 3), z=pa.string())
        types = {"k": pa.int64(), "n": pa.int64(), "s": wide, "m": pa.list_(wide), "d": pa.decimal128(9, 3)}
        types |= {"z": pa.string()}
        data.append([1, 0], types, [{"k": 2}, {"k": 3, "n": 2**40, "s": {"x": 1, "y's": "q"}, "z": "zet"}])
        con.attach(tmp_path / name, name, type="odf")
        assert same(con, f"SELECT k, n, s, m, d, z FROM {name}")
        assert len(same(con, f"SELECT k FROM {name} WHERE k <= 2")) == (1 if key else 2)
        at = dt.datetime.fromtimestamp(before // 10**9, dt.timezone.utc)
        assert len(same(con, f"SELECT k, s FROM {name} AS OF '{at}'")) == (2 if key else 3)
    data.append([7], types, [{"k": 9}])
    with pytest.raises(KartosqlError) as e:
        con.sql("SELECT k FROM plain", engine="spark").arrow()
    assert (e.value.code, "operation 7" in e.value.message) == ("invalid-value", True)


def test_folders_of_parquet_files_and_other_stores(con, tmp_path, copy_of):
    old = [dt.datetime(1500, 1, 1), dt.datetime(2020, 1, 1, 1, 2, 3, 4)]
    for number, p in enumerate(("1", "2", NULL)):
        path = tmp_path / "f" / f"p={p}" / "q=a b%2Fc" / "x.parquet"
        path.parent.mkdir(parents=True)
        columns = {
            "a": pa.array([number, None], pa.int32() if number else pa.int64()),
            "t": pa.array(old, pa.timestamp("us")),
        }
        if number:
            columns["lone"] = pa.array(["x", None])
        pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=number == 1)
    con.attach(tmp_path / "f", "t")
    assert len(same(con, "SELECT * FROM t")) == 6
    assert len(same(con, "SELECT a, p, q, lone FROM t WHERE p IS NULL OR p = 1")) == 4
    con.attach(copy_of("grid"), "k", type="kartothek")
    assert same(con, "SELECT * FROM k.grid")


def test_csv_files_are_read_by_duckdb_and_handed_over(con, tmp_path, monkeypatch):
    folder = tmp_path / "c"
    (folder / "p=1").mkdir(parents=True)
    (folder / "p=2").mkdir()
    lines = ["1;' x';2020-01-02;1.5", "2;;;", '3;"q""\n;z";1999-12-31;nan', "4;1e5;0001-01-01;-0.0"]
    (folder / "p=1" / "a.csv").write_text("\n".join(["n;s;d;f", *lines]) + "\n")
    (folder / "p=2" / "b.csv").write_text("s\tn\n007\t9223372036854775807\n")
    (folder / "p=2" / "c.csv").write_text("n,s\n")
    con.attach(folder, "c", type="csv")
    assert len(same(con, "SELECT * FROM c")) == 5
    assert len(same(con, "SELECT n, s, f FROM c WHERE p = 1 AND (n > 1 OR s IS NULL)")) == 3
    assert same(con, "SELECT count(*) AS n FROM c WHERE p = 3") == [{"n": 0}]
    con.register("r", pa.table({"n": [1, 3]}))
    con.sql("CREATE DATASET t AS SELECT n, n * 2 AS m FROM r")
    assert len(same(con, "SELECT a.s, b.m, r.n FROM c a JOIN t b USING (n) JOIN r USING (n) JOIN c x USING (n)")) == 2
    assert "now" in same(con, "SELECT s, now() > d AS now FROM c WHERE p = 1")[0]
    con.sql("SET engine = 'spark'")
    assert con.explain("SELECT max(s) FROM c").to_dict()["engine"] == "spark"
    monkeypatch.setattr("kartosql.engines.spark.engine.MAX_TEXT", 10)
    with pytest.raises(KartosqlError) as e:
        con.sql("SELECT * FROM c").arrow()
    assert (e.value.code, "CREATE DATASET" in (e.value.hint or "")) == ("not-portable", True)


def test_iceberg_tables_with_deletes_of_all_kinds_and_columns_of_other_names(con, tmp_path):
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "s", StringType()), schema_id=0)
    table = HandTable(tmp_path / "t", schema, version=3)
    files = [table.data(pa.table({"a": [n, n + 1, n + 2], "s": ["x", None, f"y{n}"]})) for n in range(3)]
    table.commit(*files)
    table.commit(table.vector(files[0], [0]), table.positions([(files[1], 2)]), table.keys(pa.table({"s": ["y2"]})))
    table.evolve(Schema(NestedField(2, "t", StringType()), NestedField(1, "b", LongType()), schema_id=1))
    table.write()
    con.attach(table.root, "t", type="iceberg")
    found = same(con, "SELECT t, b FROM t")
    assert sorted((r["b"], r["t"]) for r in found if r["t"]) == [(1, "x"), (2, "x"), (2, "y0")]
    assert [r["b"] for r in same(con, "SELECT b FROM t WHERE b > 2")] == [3]
    assert same(con, "SELECT count(*) AS n FROM t WHERE t IS NULL") == [{"n": 3}]
