"""Folders of files as tables: what is listed, columns, partition values, and what a statement sees."""

from __future__ import annotations

import datetime as dt
import gc
import os
import time
import uuid
from decimal import Decimal
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_folder import Dataset

import kartosql
from kartosql.errors import KartosqlError
from kartosql.formats.folder import ParquetSchemas
from kartosql.store import Store
from kartosql.store.listing import list_files
from kartosql.text.types import type_names

NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def write(path: Path, **columns) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def scan_of(con, sql: str) -> dict:
    return con.explain(sql).to_dict()["scans"][0]["datasets"][0]


def failure(con, sql: str) -> KartosqlError:
    with pytest.raises(KartosqlError) as e:
        con.sql(sql).rows()
    return e.value


def test_a_folder_is_a_table_that_is_pruned_by_partition_values(con, tmp_path):
    for p in (1, 2, 3):
        write(tmp_path / "f" / f"p={p}" / "x.parquet", a=[p * 10, p * 10 + 1])
    assert con.sql(f"ATTACH '{tmp_path}/f' AS t (TYPE parquet)").rows() == [("t", "parquet", f"{tmp_path}/f", None)]
    assert con.sql("SELECT a, p FROM t WHERE p >= 2 ORDER BY a").rows() == [(20, 2), (21, 2), (30, 3), (31, 3)]
    scan = scan_of(con, "SELECT a FROM t WHERE p >= 2")
    assert scan["files"] == ["p=2/x.parquet", "p=3/x.parquet"]
    assert [(s["by"], s["files_before"], s["files_after"]) for s in scan["steps"]] == [("partition key", 3, 2)]
    assert con.explain("FROM t").to_dict()["scans"][0]["cube"] is None


def test_hidden_and_empty_files_do_not_count(con, tmp_path):
    write(tmp_path / "f" / "x.parquet", a=[1])
    write(tmp_path / "f" / "_p=1" / "y.parquet", a=[2])
    for name in ("_SUCCESS", ".x.parquet.crc", "_metadata", "z.parquet._COPYING_"):
        (tmp_path / "f" / name).write_bytes(b"no parquet")
    write(tmp_path / "f" / "_temporary" / "x.parquet", a=[3])
    (tmp_path / "f" / "empty.parquet").write_bytes(b"")
    con.attach(tmp_path / "f", "t", hive_partitioning=False)
    assert con.sql("SELECT a FROM t ORDER BY a").rows() == [(1,), (2,)]


def test_partition_values_are_decoded_and_typed(con, tmp_path):
    folders = ["i=1/d=2020-01-02/t=2020-01-02 03%3A04%3A05.5/f=1.5/s=a%2Fb%25/z=01", f"i={NULL}/d={NULL}/t={NULL}"]
    folders[1] += f"/f={NULL}/s={NULL}/z=x%C3%A9"
    for folder in folders:
        write(tmp_path / "f" / folder / "x.parquet", a=[1])
    con.attach(tmp_path / "f", "t")
    types = {c: t for c, t, *_ in con.sql("DESCRIBE t").rows()}
    assert list(types) == ["a", "i", "d", "t", "f", "s", "z"]
    assert [types[c] for c in "idtfsz"] == ["BIGINT", "DATE", "TIMESTAMP", "DOUBLE", "VARCHAR", "VARCHAR"]
    rows = con.sql("SELECT i, d, t, f, s, z FROM t ORDER BY i").rows()
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 500_000)
    assert rows == [(1, dt.date(2020, 1, 2), moment, 1.5, "a/b%", "01"), (None,) * 5 + ("xé",)]
    for condition, kept in [("i IS NULL", 1), ("i = 1", 1), ("NOT (i = 1)", 0), ("s = 'a/b%'", 1), ("f > 1", 1)]:
        assert scan_of(con, f"SELECT a FROM t WHERE {condition}")["files_selected"] == kept, condition
    con.attach(tmp_path / "f", "texts", hive_types_autocast=False)
    assert con.sql("SELECT i FROM texts ORDER BY i").rows() == [("1",), (None,)]


def test_a_partition_column_hides_a_column_of_the_files(con, tmp_path):
    write(tmp_path / "f" / "P=7" / "x.parquet", a=[1], p=[100])
    con.attach(tmp_path / "f", "t")
    assert con.sql("FROM t").arrow().to_pydict() == {"a": [1], "P": [7]}


def test_columns_of_all_files_are_united_and_widened_exactly(con, tmp_path):
    one = {"n": pa.array([1], pa.int32()), "u": pa.array([200], pa.uint8()), "m": pa.array([Decimal("1.5")])}
    one |= {"s": [{"x": 1, "in": [{"a": 1}]}], "k": pa.nulls(1), "f": pa.array([0.5], pa.float32()), "lone": ["o"]}
    one |= {"t": pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("ms"))}
    two = {"t": pa.array([dt.datetime(2021, 1, 1)], pa.timestamp("us")), "f": [0.1], "k": ["text"]}
    two |= {"s": [{"x": 2, "y": "why", "in": [{"a": 2, "b": "c"}]}], "m": pa.array([Decimal("123.25")])}
    two |= {"n": pa.array([2**40]), "u": pa.array([-1], pa.int16())}
    write(tmp_path / "f" / "1.parquet", **one)
    write(tmp_path / "f" / "2.parquet", **two)
    con.attach(tmp_path / "f", "t")
    rows = con.sql("SELECT n, u, m, s, k, f, t, lone FROM t ORDER BY n").rows()
    first = {"x": 1, "y": None, "in": [{"a": 1, "b": None}]}
    assert rows[0] == (1, 200, Decimal("1.50"), first, None, 0.5, dt.datetime(2020, 1, 1), "o")
    second = {"x": 2, "y": "why", "in": [{"a": 2, "b": "c"}]}
    assert rows[1] == (2**40, -1, Decimal("123.25"), second, "text", 0.1, dt.datetime(2021, 1, 1), None)
    assert con.sql("SELECT u, n FROM t WHERE s.y IS NULL").rows() == [(200, 1)]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (pa.array([1]), pa.array([0.5])),
        (pa.array([1]), pa.array(["x"])),
        (pa.array([1], pa.uint64()), pa.array([1])),
        (pa.array([0], pa.timestamp("us")), pa.array([0], pa.timestamp("us", "UTC"))),
        (pa.array([b"x"]), pa.array(["x"])),
        (pa.array([Decimal(1)], pa.decimal128(38, 0)), pa.array([Decimal(1)], pa.decimal128(5, 4))),
        (pa.array([{"x": 1}]), pa.array([{"X": 1}])),
    ],
    ids=str,
)
def test_types_that_no_type_holds_are_refused_with_column_types_and_files(con, tmp_path, one, two):
    write(tmp_path / "f" / "1.parquet", c=one)
    write(tmp_path / "f" / "2.parquet", c=two)
    error = failure(con, f"ATTACH '{tmp_path}/f' AS t (TYPE parquet)")
    assert error.code == "schema-conflict"
    for part in ("'c'", "1.parquet", "2.parquet", *type_names(one.type, two.type)):
        assert part in error.message
    assert con.sql("SHOW ATTACHED").rows() == []


def test_two_spellings_of_a_column_are_refused(con, tmp_path):
    write(tmp_path / "f" / "1.parquet", c=[1])
    write(tmp_path / "f" / "2.parquet", C=[1])
    assert failure(con, f"ATTACH '{tmp_path}/f' AS t (TYPE parquet)").code == "schema-conflict"


def test_spellings_that_one_file_has_both_are_two_columns(con, tmp_path):
    write(tmp_path / "f" / "1.parquet", v=[1], V=[2])
    con.attach(tmp_path / "f", "t")
    assert con.sql('SELECT v, "V" FROM t').rows() == [(1, 2)]


def test_old_timestamps_of_spark_keep_their_year(con, tmp_path):
    moments = [dt.datetime(1500, 1, 1), dt.datetime(2020, 1, 1, 1, 2, 3, 4)]
    (tmp_path / "f").mkdir()
    table = pa.table({"t": pa.array([moments[1]], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "f" / "x.parquet", use_deprecated_int96_timestamps=True)
    con.attach(tmp_path / "f", "t")
    assert con.sql("SELECT t FROM t").rows() == [(moments[1],)]
    assert str(con.sql("SELECT t FROM t").schema.field(0).type) == "timestamp[us]"


def test_a_statement_sees_files_that_came_went_or_changed(con, tmp_path):
    write(tmp_path / "f" / "1.parquet", a=[1])
    con.attach(tmp_path / "f", "t")
    assert con.sql("SELECT a FROM t").rows() == [(1,)]
    write(tmp_path / "f" / "2.parquet", a=[2], b=["x"])
    for _ in range(6):  # plans and footers are remembered
        assert con.sql("SELECT a, b FROM t ORDER BY a").rows() == [(1, None), (2, "x")]
        assert con.sql("SELECT count(*), min(a) FROM t").rows() == [(2, 1)]
    size = (tmp_path / "f" / "2.parquet").stat().st_size
    time.sleep(0.05)  # longer than the clock of a filesystem ticks
    write(tmp_path / "f" / "2.parquet", a=[7], b=["y"])
    assert (tmp_path / "f" / "2.parquet").stat().st_size == size
    assert con.sql("SELECT a, b FROM t ORDER BY a").rows() == [(1, None), (7, "y")]
    write(tmp_path / "f" / "2.parquet", a=[8, 9])
    assert con.sql("SELECT count(*) FROM t").rows() == [(3,)]
    (tmp_path / "f" / "2.parquet").unlink()
    assert con.sql("FROM t").arrow().to_pydict() == {"a": [1]}
    (tmp_path / "f" / "1.parquet").unlink()
    assert failure(con, "FROM t").code == "no-files"
    assert con.sql("SHOW DATASETS").rows()[0][-1] is not None


def test_statistics_of_files_prune_as_for_datasets(con, tmp_path):
    for i in range(40):
        write(tmp_path / "f" / f"{i:02}.parquet", a=[i, i + 0], b=[str(i)] * 2)
    con.attach(tmp_path / "f", "t")
    sql = "SELECT count(b) FROM t WHERE a = 17"
    for _ in range(4):
        assert con.sql(sql).rows() == [(2,)]
    scan = scan_of(con, sql + " AND b <> ''")
    assert scan["files"] == ["17.parquet"]
    assert scan["steps"][-1]["by"] == "row groups"


def test_one_file_may_be_attached(con, tmp_path):
    write(tmp_path / "p=1" / "x.parquet", a=[1])
    write(tmp_path / "p=1" / "other.parquet", a=[2])
    con.sql(f"ATTACH '{tmp_path}/p=1/x.parquet' AS t (TYPE parquet)")
    assert con.sql("FROM t").arrow().to_pydict() == {"a": [1]}


def test_it_joins_cubes_registered_data_and_itself(tmp_path):
    write(tmp_path / "f" / "p=1" / "x.parquet", a=[1, 2])
    con = kartosql.connect(tmp_path)
    con.create_dataset("d", pa.table({"a": [1, 3], "b": ["x", "y"]}))
    con.register("r", pa.table({"a": [1], "c": [0.5]}))
    con.attach(tmp_path / "f", "t")
    sql = "SELECT t.a, d.b, r.c, u.p FROM t JOIN d USING (a) JOIN r USING (a) JOIN t u USING (a)"
    assert con.sql(sql).rows() == [(1, "x", 0.5, 1)]
    assert [r[0] for r in con.sql("SHOW TABLES").rows()] == ["d", "r", "t", "f"]
    assert failure(con, "INSERT INTO t SELECT 1 AS a, 1 AS p").code == "unknown-table"
    con.sql("CREATE DATASET e AS SELECT a FROM t")
    assert con.sql("SELECT count(*) FROM e").rows() == [(2,)]
    con.close()


def test_remote_folders_are_read_through_their_filesystem(con, tmp_path):
    files, root = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    write(tmp_path / "x.parquet", a=[1, 2])
    for p in (1, 2):
        files.pipe(f"{root}/p={p}/x.parquet", (tmp_path / "x.parquet").read_bytes())
    con.sql(f"ATTACH 'memory:/{root}' AS t (TYPE parquet)")
    write(tmp_path / "f" / "y.parquet", a=[2])
    con.attach(tmp_path / "f", "local")
    assert con.sql("SELECT t.a, p FROM t JOIN local USING (a) WHERE p = 2").rows() == [(2, 2)]
    assert scan_of(con, "SELECT a FROM t WHERE p = 2")["files"] == ["p=2/x.parquet"]
    con.sql(f"ATTACH 'memory:/{root}/p=1/x.parquet' AS one (TYPE parquet)")
    assert con.sql("FROM one").arrow().to_pydict() == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("x.parquet", b"this is no parquet file", "corrupt-file"),
        ("x.parquet", b"PAR1" + b"\xff" * 40 + (30).to_bytes(4, "little") + b"PAR1", "corrupt-file"),
        ("x.parquet", b"PAR1" + (2**31 - 1).to_bytes(4, "little") + b"PAR1", "corrupt-file"),
    ],
)
def test_what_is_no_parquet_file_is_named(con, tmp_path, name, content, code):
    write(tmp_path / "f" / "good.parquet", a=[1])
    (tmp_path / "f" / name).write_bytes(content)
    error = failure(con, f"ATTACH '{tmp_path}/f' AS t (TYPE parquet)")
    assert error.code == code
    assert "x.parquet" in error.message


@pytest.mark.parametrize("rows", [1, 100_000], ids=["smaller", "larger"])
def test_a_file_that_is_replaced_between_listing_and_reading_is_not_told_as_damaged(tmp_path, rows):
    write(tmp_path / "f.parquet", x=[*range(1_000)])
    store = Store(str(tmp_path))
    listed = list_files(store)
    write(tmp_path / "new", x=[f"{n}" for n in range(rows)])
    (tmp_path / "new").replace(tmp_path / "f.parquet")
    assert ParquetSchemas(store).read(listed) == [pa.schema({"x": pa.string()})]
    (tmp_path / "f.parquet").write_bytes(b"PAR1, and no more")
    for files in (listed, list_files(store)):
        with pytest.raises(KartosqlError) as e:
            ParquetSchemas(store).read(files)
        assert e.value.code == "corrupt-file"
    (tmp_path / "f.parquet").unlink()
    with pytest.raises(KartosqlError) as e:
        ParquetSchemas(store).read(listed)
    assert e.value.code == "missing-file"


def test_a_file_damaged_behind_its_footer_is_named_by_its_path(con, tmp_path):
    write(tmp_path / "f" / "x.parquet", a=list(range(10_000)))
    data = bytearray((tmp_path / "f" / "x.parquet").read_bytes())
    data[4:60] = b"\xff" * 56
    (tmp_path / "f" / "x.parquet").write_bytes(data)
    con.attach(tmp_path / "f", "t")
    error = failure(con, "SELECT sum(a) FROM t")
    assert f"{tmp_path}/f/x.parquet" in error.message
    assert "@" not in error.message


def test_links_are_refused(con, tmp_path):
    write(tmp_path / "secret.parquet", a=[1])
    write(tmp_path / "f" / "x.parquet", a=[1])
    os.symlink(tmp_path / "secret.parquet", tmp_path / "f" / "y.parquet")
    assert failure(con, f"ATTACH '{tmp_path}/f' AS t (TYPE parquet)").code == "unsafe-key"


@pytest.mark.parametrize("other", ["q=1/x.parquet", "x.parquet", "p=1/q=1/x.parquet", "q=1/p=1/x.parquet"])
def test_files_of_other_partition_columns_are_refused(con, tmp_path, other):
    write(tmp_path / "f" / "p=1" / "a.parquet", a=[1])
    write(tmp_path / "f" / other, a=[1])
    assert failure(con, f"ATTACH '{tmp_path}/f' AS t (TYPE parquet)").code == "partition-mismatch"
    con.attach(tmp_path / "f", "t", hive_partitioning=False)
    assert con.sql("SELECT count(*) FROM t").rows() == [(2,)]


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("ATTACH '{0}/f' AS d (TYPE parquet)", "name-taken"),
        ("ATTACH '{0}/f' AS D (TYPE parquet)", "name-taken"),
        ("ATTACH '{0}/f' AS r (TYPE parquet)", "name-taken"),
        ("ATTACH '{0}/f' AS t (TYPE parquet)", "name-taken"),
        ("ATTACH '{0}/f' AS q (TYPE sqlite)", "unknown-type"),
        ("ATTACH '{0}/f' AS q (TYPE parquet, DELIM ';')", "invalid-option"),
        ("ATTACH '{0}/f' AS q (TYPE parquet, HIVE_PARTITIONING maybe)", "invalid-option"),
        ("ATTACH '{0}/none' AS q (TYPE parquet)", "store-not-found"),
        ("ATTACH '{0}/nothing' AS q (TYPE parquet)", "no-files"),
        ("ATTACH '{0}/f' AS q (TYPE)", "unknown-type"),
        ("ATTACH '{0}/f' AS q", "not-supported"),
        ("ATTACH '{0}/f'", "not-supported"),
        ("ATTACH '{0}/f' (TYPE parquet)", "syntax-error"),
        ("ATTACH {0} AS q (TYPE parquet)", "syntax-error"),
        ("ATTACH '{0}/f' AS a.b (TYPE parquet)", "syntax-error"),
        ("ATTACH '{0}/f' AS \"a.b\" (TYPE parquet)", "invalid-argument"),
        ("ATTACH '{0}/f' AS q (TYPE parquet, TYPE csv)", "syntax-error"),
        ("ATTACH '{0}/f' AS q (TYPE parquet", "syntax-error"),
        ("ATTACH '{0}/f' AS q (TYPE parquet) x", "syntax-error"),
        ("ATTACH '{0}/f' AS q (TYPE parquet, A [[[[[[1]]]]]])", "syntax-error"),
        ("DETACH q", "not-attached"),
        ("SELECT * FROM t.x", "unknown-table"),
    ],
)
def test_what_cannot_be_attached_is_refused(con, tmp_path, statement, code):
    write(tmp_path / "f" / "x.parquet", a=[1])
    (tmp_path / "nothing").mkdir()
    con.create_dataset("d", pa.table({"a": [1]}))
    con.register("r", pa.table({"a": [1]}))
    con.attach(tmp_path / "f", "t")
    assert failure(con, statement.replace("{0}", str(tmp_path))).code == code
    assert [r[0] for r in con.sql("SHOW ATTACHED").rows()] == ["t"]


def test_names_can_be_replaced_kept_and_freed(con, tmp_path):
    write(tmp_path / "f" / "x.parquet", a=[1])
    write(tmp_path / "g" / "x.parquet", b=[2])
    con.sql(f"ATTACH '{tmp_path}/f' AS t (TYPE parquet)")
    con.sql(f"ATTACH IF NOT EXISTS '{tmp_path}/g' AS t (TYPE parquet)")
    assert con.sql("FROM t").columns == ["a"]
    con.sql(f"ATTACH OR REPLACE '{tmp_path}/g' AS t (TYPE parquet)")
    assert con.sql("FROM T").columns == ["b"]
    assert con.sql("DETACH t").rows() == [("t", True)]
    assert con.sql("DETACH IF EXISTS t").rows() == [("t", False)]
    assert failure(con, "FROM t").code == "unknown-table"


def test_queries_that_were_made_outlive_what_they_read(con, tmp_path):
    write(tmp_path / "f" / "p=1" / "x.parquet", a=[1])
    Dataset(tmp_path / "d").schema(n=pa.int64())
    con.attach(tmp_path / "f", "t")
    con.attach(tmp_path / "d", "x", type="odf")
    query, other = con.sql("SELECT a, p FROM t"), con.sql("SELECT n FROM x")
    con.detach("t")
    con.detach("x")
    gc.collect()
    assert query.rows() == [(1, 1)]
    assert other.rows() == []
    mounts = con._session.mounts
    assert len(mounts._mounted) == 2
    con._session._state.plans = con._session.plans = None
    con._session.runtime.forget()
    del query, other
    gc.collect()
    assert not mounts._mounted
    assert not mounts._admit


def test_another_store_is_a_schema(copy_of, tmp_path):
    folder = copy_of("grid")
    (tmp_path / "empty").mkdir()
    with kartosql.connect(folder) as direct, kartosql.connect(tmp_path / "empty") as con:
        con.sql(f"ATTACH '{folder}' AS k (TYPE kartothek)")
        names = [r[0] for r in direct.sql("SHOW TABLES").rows()]
        assert [r[0] for r in con.sql("SHOW TABLES").rows()] == [f"k.{n}" for n in names]
        for name in names:
            sql = f"SELECT * FROM {name} ORDER BY ALL"
            assert con.sql(sql.replace("FROM ", "FROM k.")).arrow().equals(direct.sql(sql).arrow()), name
            own, other = (
                c.explain(f"FROM {t}").to_dict()["scans"][0]["datasets"]
                for c, t in ((direct, name), (con, f"k.{name}"))
            )
            assert [(d["dataset"], d["files"]) for d in own] == [(d["dataset"], d["files"]) for d in other]
        assert failure(con, "FROM k").code == "unknown-table"
        assert failure(con, "FROM k.none").code == "unknown-table"
        assert failure(con, "DELETE FROM k.grid").code in ("unknown-table", "not-supported", "syntax-error")


@pytest.mark.parametrize("note", ["[" * 100_000, "no JSON", "{}", '{"columns": 1}', '{"columns": [[1]]}', "null", ""])
def test_a_note_of_geometries_that_cannot_be_read_is_none(con, tmp_path, note):
    (tmp_path / "f").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "f" / "a.parquet")
    pq.write_table(pa.table({"x": [2]}).replace_schema_metadata({"geo": note}), tmp_path / "f" / "b.parquet")
    con.attach(tmp_path / "f", "t")
    assert [row[:2] for row in con.sql("DESCRIBE t").rows()] == [("x", "BIGINT")]
