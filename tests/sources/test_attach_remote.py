"""What is attached on object stores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import HandTable
from odf_folder import Dataset
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import kartosql
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.store import Store
from kartosql.store.listing import list_files
from s3_server import BUCKET, S3Server, serve


@pytest.fixture
def server() -> Iterator[S3Server]:
    with serve() as server:
        yield server


def uploaded(server: S3Server, folder: Path, prefix: str) -> str:
    """Copy a folder into the bucket and return its URL."""
    store = Store(f"s3://{BUCKET}/{prefix}", server.storage_options)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.fs.pipe_file(store.path(str(path.relative_to(folder))), path.read_bytes())
    return store.url


def folder_of(tmp_path: Path) -> Path:
    for p in (1, 2):
        path = tmp_path / "f" / f"p={p}" / "x.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"a": [p, p + 10]}), path)
    (tmp_path / "f" / "_SUCCESS").write_bytes(b"")
    return tmp_path / "f"


@pytest.mark.parametrize("few", [0, 32])
def test_skipping_indexes_lie_in_the_bucket_of_their_folder(server, tmp_path, monkeypatch, few):
    monkeypatch.setattr("kartosql.store.listing.FEW", few)
    url = uploaded(server, folder_of(tmp_path), "data/f")
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        for number, where in enumerate([{}, {"metadata_type": "EXPLICIT_LOCATION"}]):
            at = f"s3://{BUCKET}/meta{number}"
            with pytest.warns(KartosqlWarning, match="there are no metadata"):
                con.attach(url, f"t{number}", storage_options=server.storage_options, metadata=at, **where)
            made = con.create_skipping_index(f"t{number}", minmax="a", valuelist="a", bloomfilter="a")
            assert (made["indexes"], made["added"], made["unindexed"]) == (3, 2, 0)
            scan = con.explain(f"SELECT a FROM t{number} WHERE a = 12").to_dict()["scans"][0]["datasets"][0]
            assert scan["files"] == ["p=2/x.parquet"]
            assert con.refresh_skipping_index(f"t{number}")["kept"] == 2
            assert con.drop_skipping_index(f"t{number}")["files"] == 1
            assert con.sql(f"SELECT a FROM t{number} WHERE a = 12").rows() == [(12,)]


def test_folders_and_datasets_in_a_bucket_join_local_ones(server, tmp_path):
    url = uploaded(server, folder_of(tmp_path), "data/f")
    data = Dataset(tmp_path / "d", key=["a"])
    data.schema(a=pa.int64())
    data.append([0, 0], {"a": pa.int64()}, [{"a": 1}, {"a": 12}])
    odf = uploaded(server, tmp_path / "d", "data/odf")
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        con.create_dataset("local", pa.table({"a": [1, 2, 12]}))
        con.attach(url, "t", storage_options=server.storage_options)
        con.attach(odf, "x", type="odf", storage_options=server.storage_options)
        sql = "SELECT a, p FROM t JOIN x USING (a) JOIN local USING (a) ORDER BY a"
        assert con.sql(sql).rows() == [(1, 1), (12, 2)]
        scan = con.explain("SELECT a FROM t WHERE p = 2").to_dict()["scans"][0]["datasets"][0]
        assert scan["files"] == ["p=2/x.parquet"]
        con.attach(f"{url}/p=1/x.parquet", "one", storage_options=server.storage_options)
        assert con.sql("FROM one ORDER BY a").rows() == [(1,), (11,)]


def test_options_of_the_store_are_those_of_what_lies_below_it(server, tmp_path):
    url = uploaded(server, folder_of(tmp_path), "store/f")
    with kartosql.connect(f"s3://{BUCKET}/store", storage_options=server.storage_options) as con:
        con.sql(f"ATTACH '{url}' AS t (TYPE parquet)")
        assert con.sql("SELECT count(*) FROM t").rows() == [(4,)]


def test_times_are_those_of_the_objects(server, tmp_path):
    before = int(time.time()) * 1000
    url = uploaded(server, folder_of(tmp_path), "data/f")
    listed = list_files(Store(url, server.storage_options))
    assert [f.name for f in listed] == ["p=1/x.parquet", "p=2/x.parquet"]
    for file in listed:
        assert file.time is not None
        assert before <= file.time <= time.time() * 1000
    assert list_files(Store(url, server.storage_options), "p=2/x.parquet")[0][:3] == listed[1][:3]


def test_urls_of_local_files_are_local(tmp_path):
    folder = folder_of(tmp_path)
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(f"file://{folder}", "t")
        con.attach(f"file://{folder}/p=1/x.parquet", "one")
        assert con.sql("SELECT count(*) FROM t, one").rows() == [(8,)]


def test_an_iceberg_table_that_was_copied_into_a_bucket(server, tmp_path):
    table = HandTable(tmp_path / "lake", Schema(NestedField(1, "a", LongType()), schema_id=0), version=3)
    files = [table.data(pa.table({"a": [n, n + 10]})) for n in range(3)]
    table.commit(*files)
    table.commit(table.vector(files[2], [1]), table.positions([(files[1], 0)]))
    url = uploaded(server, table.root, "data/lake")
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        for place in (url, f"{url}/metadata/v2.metadata.json"):
            con.attach(place, "t", type="iceberg", storage_options=server.storage_options, replace=True)
            assert con.sql("SELECT a FROM t ORDER BY a").rows() == [(0,), (2,), (10,), (11,)]
            scan = con.explain("SELECT a FROM t WHERE a > 11").to_dict()["scans"][0]["datasets"][0]
            assert (len(scan["files"]), scan["steps"][0]["by"]) == (1, "manifest statistics")
        with pytest.raises(KartosqlError) as e:
            con.attach(f"{url}/metadata/v9.metadata.json", "u", type="iceberg", storage_options=server.storage_options)
        assert e.value.code == "missing-file"
