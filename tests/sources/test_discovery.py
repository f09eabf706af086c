"""Files and folders of a store that are tables without ATTACH."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.errors import KartosqlError


def write(path: Path, **columns) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def shown(place: Path | str, **options) -> list[tuple[str, str]]:
    with kartosql.connect(place, **options) as con:
        return con.sql("SHOW TABLES").rows()


@pytest.fixture
def lake(tmp_path):
    write(tmp_path / "events" / "day=1" / "x.parquet", a=[1, 2])
    write(tmp_path / "events" / "day=2" / "x.parquet", a=[3])
    write(tmp_path / "deep" / "er" / "x.parquet", a=[7])
    write(tmp_path / "flat.v2.parquet", a=[2, 3], s=["x", "y"])
    (tmp_path / "zip.csv").write_text("a,b\n1,x\n")
    (tmp_path / "notes.txt").write_text("no table")
    write(tmp_path / "_hidden" / "x.parquet", a=[1])
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_files_and_folders_are_tables_of_their_names(lake):
    assert shown(lake) == [
        ("deep", "parquet files"),
        ("events", "parquet files"),
        ("flat_v2", "parquet files"),
        ("zip", "csv files"),
    ]
    with kartosql.connect(lake) as con:
        assert con.sql("SELECT a, s FROM events JOIN flat_v2 USING (a) ORDER BY a").rows() == [(2, "x"), (3, "y")]
        assert con.sql("SELECT b FROM ZIP").rows() == [("x",)]
        scan = con.explain("SELECT a FROM events WHERE day = 2").to_dict()["scans"][0]["datasets"][0]
        assert scan["files"] == ["day=2/x.parquet"]
        assert con.sql("SHOW ATTACHED").rows() == []
        write(lake / "events" / "day=3" / "x.parquet", a=[9])
        assert con.sql("SELECT sum(a) FROM events").rows() == [(15,)]


def test_what_is_not_there_any_more_is_no_table(lake):
    with kartosql.connect(lake) as con:
        assert con.sql("SELECT count(*) FROM zip").rows() == [(1,)]
        (lake / "zip.csv").unlink()
        with pytest.raises(KartosqlError, match="There is no table 'zip'") as caught:
            con.sql("SELECT * FROM zip")
        assert caught.value.code == "unknown-table"
        write(lake / "zip.parquet", z=[5])
        assert con.sql("SELECT * FROM zip").rows() == [(5,)]


def test_datasets_registered_and_attached_tables_come_first(lake):
    with kartosql.connect(lake) as con:
        assert con.sql("SELECT count(*) FROM zip").rows() == [(1,)]
        con.create_dataset("zip", pa.table({"a": [1, 2, 3]}))
        assert con.sql("SELECT count(*) FROM zip").rows() == [(3,)]
        con.register("flat_v2", pa.table({"a": [1]}))
        assert con.sql("SELECT count(*) FROM flat_v2").rows() == [(1,)]
        con.attach(lake / "deep", "events")
        assert con.sql("SELECT a FROM events").rows() == [(7,)]
        assert [kind for name, kind in con.sql("SHOW TABLES").rows() if name == "zip"] == ["dataset"]


def test_names_that_are_like_one_are_hinted_at(lake):
    with kartosql.connect(lake) as con, pytest.raises(KartosqlError) as caught:
        con.sql("SELECT * FROM event")
    assert caught.value.hint == "Did you mean events?"


def test_files_of_datasets_are_no_tables_of_their_own(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"a": [1]}))
        assert con.sql("SHOW TABLES").rows() == [("d", "dataset")]
    (tmp_path / "d.by-dataset-metadata.json").unlink()  # another program deletes it, and leaves the files
    assert shown(tmp_path) == []
    with kartosql.connect(tmp_path) as con, pytest.raises(KartosqlError, match="There is no table 'd'"):
        con.sql("SELECT * FROM d")


@pytest.mark.parametrize(
    "files", [["month=1/x.parquet", "month=2/x.parquet"], ["part-0001.parquet", "part-0002.parquet"]]
)
def test_a_folder_of_many_files_is_one_table(tmp_path, files):
    for name in files:
        write(tmp_path / "sales" / name, a=[1])
    assert shown(tmp_path / "sales") == [("sales", "parquet files")]
    with kartosql.connect(tmp_path / "sales") as con:
        assert con.sql("SELECT count(*) FROM sales").rows() == [(2,)]


def test_nothing_is_offered_where_nothing_may_be_attached(lake):
    assert shown(lake, read_only=True) == shown(lake, attach=False) == []
    assert shown(lake, attach=[str(lake / "deep")]) == [("deep", "parquet files")]
    with kartosql.connect(lake, attach=False) as con, pytest.raises(KartosqlError, match="There is no table 'zip'"):
        con.sql("SELECT * FROM zip")


def test_links_and_tables_of_formats_that_are_not_read_are_not_offered(tmp_path):
    write(tmp_path / "elsewhere" / "x.parquet", a=[1])
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "link").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "store" / "hudi" / "x.parquet", a=[1])
    (tmp_path / "store" / "hudi" / ".hoodie").mkdir()
    assert shown(tmp_path / "store") == []


def test_object_stores_offer_theirs():
    name = uuid.uuid4().hex
    with fsspec.filesystem("memory").open(f"/{name}/t/p=1/x.parquet", "wb") as file:
        pq.write_table(pa.table({"a": [4]}), file)
    with kartosql.connect(f"memory://{name}") as con:
        assert con.sql("SHOW TABLES").rows() == [("t", "parquet files")]
        assert con.sql("SELECT a, p FROM t").rows() == [(4, 1)]


@pytest.mark.parametrize("partitioned", ["", "PARTITION BY (p)"])
def test_older_files_of_a_dataset_that_was_dropped_are_no_table(tmp_path, partitioned):
    with kartosql.connect(tmp_path) as con:
        con.sql(f"CREATE DATASET t {partitioned} AS SELECT 1 AS p, 2 AS x")
        (path,) = tmp_path.rglob("*.parquet")
        data = path.read_bytes()
        con.sql("DELETE FROM t WHERE true")
        con.sql("DROP DATASET t")
        assert list(tmp_path.rglob("*.parquet")) == []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)  # as a DROP leaves it that did not come to its end
        assert con.sql("SHOW TABLES").rows() == []
