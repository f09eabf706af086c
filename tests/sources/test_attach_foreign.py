"""Folders that belong to a table format are refused: their files hold rows that do not count."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_folder import Dataset

import kartosql
from kartosql.errors import KartosqlError
from kartosql.store import Store
from s3_server import BUCKET, serve

# What each format leaves beside its data files: the mark, the folder of the data, and what the message calls it.
FORMATS = {
    "delta": ("_delta_log/00000000000000000000.json", "", "Delta"),
    "delta checkpoint": ("_delta_log/_last_checkpoint", "", "Delta"),
    "hudi": (".hoodie/hoodie.properties", "", "Hudi"),
    "iceberg": ("metadata/00001-a2b3.metadata.json", "data", "Iceberg"),
    "iceberg of a folder": ("metadata/version-hint.text", "data", "Iceberg"),
    "iceberg beside its files": ("metadata/v1.gz.metadata.json", "", "Iceberg"),
    "stream": ("_spark_metadata/0", "", "Spark"),
}


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def refused(con, url: object, **options: object) -> KartosqlError:
    with pytest.raises(KartosqlError) as e:
        con.attach(url, "t", **options)
    assert e.value.code == "foreign-table", (url, e.value)
    assert con.sql("SHOW ATTACHED").rows() == []
    return e.value


def put(folder: Path, *names: str, kind: str = "parquet") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith((".parquet", ".csv")):
            path.write_bytes(b"{}")
        elif kind == "csv":
            path.write_text("a\n1\n")
        else:
            pq.write_table(pa.table({"a": [1]}), path)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("case", FORMATS)
def test_every_folder_of_a_table_is_refused_and_those_beside_it_are_not(con, tmp_path, case, kind):
    mark, data, name = FORMATS[case]
    table, at = tmp_path / "lake" / "db" / "t", tmp_path / "lake" / "db" / "t" / data
    files = [f"{data}/p=1/q=a/x.{kind}".lstrip("/"), f"{data}/p=2/y.{kind}".lstrip("/")]
    put(table, *files, kind=kind)
    put(tmp_path / "lake" / "plain", f"p=1/x.{kind}", kind=kind)
    put(tmp_path / "lake" / "db" / "t_plain", f"x.{kind}", kind=kind)
    places = [table, at, at / "p=1", at / "p=1" / "q=a", tmp_path / "lake" / "db", tmp_path / "lake"]
    con.attach(at, "t", type=kind, hive_partitioning=False)
    con.detach("t")
    put(table, mark)
    for place in places:
        error = refused(con, place, type=kind, hive_partitioning=False)
        assert name in error.message, place
        assert str(table / mark.partition("/")[0]) in error.message, place
        assert (f"TYPE {name.lower()}" if name in ("Delta", "Iceberg") else "con.create_dataset") in error.hint
    for place in ("plain", "db/t_plain"):
        con.attach(tmp_path / "lake" / place, "u", type=kind, replace=True)
        assert con.sql("SELECT a FROM u").rows() == [(1,)]
    # Whoever names one file means that file.
    con.attach(table / files[0], "one", type=kind)
    assert con.sql("SELECT a FROM one").rows() == [(1,)]


def test_a_mark_is_seen_by_its_name_alone_though_it_is_empty(con, tmp_path):
    put(tmp_path / "t", "x.parquet")
    (tmp_path / "t" / "_delta_log").mkdir()
    refused(con, tmp_path / "t")
    put(tmp_path / "i", "data/x.parquet")
    (tmp_path / "i" / "metadata").mkdir()
    con.attach(tmp_path / "i", "i", hive_partitioning=False)
    con.detach("i")
    (tmp_path / "i" / "metadata" / "v1.metadata.json").touch()
    refused(con, tmp_path / "i")
    refused(con, tmp_path / "i" / "data")


def test_a_folder_that_became_a_table_is_refused_from_then_on(con, tmp_path):
    put(tmp_path / "t", "p=1/x.parquet", "p=2/x.parquet")
    con.attach(tmp_path / "t", "t")
    assert con.sql("SELECT count(*) FROM t").rows() == [(2,)]
    (tmp_path / "t" / "_delta_log").mkdir()
    for sql in ("SELECT count(*) FROM t", "EXPLAIN SELECT a FROM t", "DESCRIBE t"):
        with pytest.raises(KartosqlError) as e:
            con.sql(sql).rows()
        assert e.value.code == "foreign-table", sql
    (tmp_path / "t" / "_delta_log").rmdir()
    assert con.sql("SELECT count(*) FROM t").rows() == [(2,)]


def test_a_link_to_a_folder_of_a_table_is_one(con, tmp_path):
    put(tmp_path / "t", "p=1/x.parquet", "_delta_log/0.json")
    (tmp_path / "link").symlink_to(tmp_path / "t" / "p=1")
    refused(con, tmp_path / "link")


def test_kartothek_and_odf_have_types_of_their_own(con, tmp_path):
    cube = kartosql.Cube("c", ["x"], ["p"])
    con.build_cube(cube, {"seed": pa.table({"x": [1, 2], "p": [0, 1]})})
    con.create_dataset("d", pa.table({"a": [1]}))
    store = tmp_path / "store"
    for place in ("d", "d/table", "c++seed", "c++seed/table", "c++seed/table/p=1", ""):
        error = refused(con, store / place, hive_partitioning=False)
        assert f"ATTACH '{store}' AS name (TYPE kartothek)" in error.hint, place
    put(store, "exports/x.parquet")
    con.attach(store / "exports", "t")  # beside datasets, but no part of one
    con.detach("t")
    data = Dataset(tmp_path / "odf", key=["a"])
    data.schema(a=pa.int64())
    data.append([0], {"a": pa.int64()}, [{"a": 1}])
    for place in ("", "data"):
        assert f"ATTACH '{tmp_path}/odf' AS name (TYPE odf)" in refused(con, tmp_path / "odf" / place).hint


def test_buckets_are_asked_a_few_questions_whatever_they_hold(tmp_path):
    with serve() as server, kartosql.connect(tmp_path) as con:

        def upload(prefix: str, *names: str) -> str:
            store = Store(f"s3://{BUCKET}/{prefix}", server.storage_options)
            put(tmp_path / "up", "x.parquet")
            for name in names:
                store.fs.pipe_file(store.path(name), (tmp_path / "up" / "x.parquet").read_bytes())
            return store.url

        plain = upload("lake/plain", *(f"p={p}/x.parquet" for p in range(30)))
        upload("lake", *(f"z{n}/p=1/x.parquet" for n in range(40)))
        before = server.requests.total()
        con.attach(plain, "t", storage_options=server.storage_options)
        asked = server.requests.total() - before - 30  # one of them for each footer
        con.detach("t")
        assert asked < 40
        for case, (mark, data, name) in FORMATS.items():
            root = upload(f"lake/{case.replace(' ', '_')}", f"{data}/p=1/x.parquet".lstrip("/"))
            upload(f"lake/{case.replace(' ', '_')}", mark)
            at = f"{root}/{data}".rstrip("/")
            for place in (root, at, f"{at}/p=1")[-3 if case == next(iter(FORMATS)) else -1 :]:
                error = refused(con, place, storage_options=server.storage_options, hive_partitioning=False)
                assert name in error.message
        with kartosql.connect(f"s3://{BUCKET}/store", storage_options=server.storage_options) as other:
            other.create_dataset("d", pa.table({"a": [1], "p": [1]}), partition_on=["p"])
            for place in ("d/table/p=1", "d/table", "d", ""):
                error = refused(con, f"s3://{BUCKET}/store/{place}".rstrip("/"), storage_options=server.storage_options)
                assert f"ATTACH 's3://{BUCKET}/store' AS name (TYPE kartothek)" in error.hint, place
