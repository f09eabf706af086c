"""Folders of CSV files as tables."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path

import fsspec
import pytest

import kartosql
from kartosql.errors import KartosqlError


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_suffix_says_what_a_file_is(con, tmp_path):
    write(tmp_path / "rows.csv", "a\n7\n")
    con.attach(tmp_path / "rows.csv", "t")
    assert con.sql("FROM t").rows() == [(7,)]
    con.sql(f"ATTACH '{tmp_path}/rows.csv' AS u")
    con.sql(f"ATTACH '{tmp_path}/rows.csv' AS v (HEADER false)")
    assert con.sql("FROM u").rows() == [(7,)]
    assert con.sql("FROM v").rows() == [("a",), ("7",)]
    with pytest.raises(KartosqlError) as caught:
        con.sql("ATTACH 'rows' AS w")
    assert caught.value.code == "not-supported"
    assert "TYPE parquet | csv" in caught.value.hint


def test_each_file_is_read_as_it_is_written(con, tmp_path):
    write(tmp_path / "c" / "p=1" / "a.csv", 'i,s,d\n1,"x,y",2020-01-01\n2,,2020-01-02\n')
    write(tmp_path / "c" / "p=2" / "a.csv", "d;i;s\n03.04.2021;3;z\n")
    write(tmp_path / "c" / "p=3" / "odd *[1]?.csv", "i\n4\n")
    con.sql(f"ATTACH '{tmp_path}/c' AS t (TYPE csv)")
    rows = con.sql("SELECT i, s, d, p FROM t ORDER BY i").rows()
    first, second, third = dt.date(2020, 1, 1), dt.date(2020, 1, 2), dt.date(2021, 4, 3)
    assert rows == [(1, "x,y", first, 1), (2, None, second, 1), (3, "z", third, 2), (4, None, None, 3)]
    assert con.sql("SELECT count(*) FROM t WHERE p = 1").rows() == [(2,)]
    assert con.explain("SELECT i FROM t WHERE p <> 1").to_dict()["scans"][0]["datasets"][0]["files_selected"] == 2


def test_types_are_those_that_hold_all_values(con, tmp_path):
    write(tmp_path / "c" / "1.csv", "n,m,e,t\n1,1,,1\n")
    write(tmp_path / "c" / "2.csv", "n,m,e,t\n1.5,x,5,\n")
    con.attach(tmp_path / "c", "t", type="csv", header=True)
    assert con.sql("FROM t ORDER BY n").rows() == [(1.0, "1", None, 1), (1.5, "x", 5, None)]


def test_options_are_those_of_the_reader(con, tmp_path):
    write(tmp_path / "c.txt", "# note\n007|1,5|-\n008|2|3\n")
    options = "COMMENT '#', DELIM '|', HEADER false, NULLSTR '-', DECIMAL_SEPARATOR ','"
    con.sql(f"ATTACH '{tmp_path}/c.txt' AS t (TYPE csv, {options}, TYPES {{'column0': 'text', column2: 'INT'}})")
    assert con.sql("FROM t ORDER BY 1").rows() == [("007", 1.5, None), ("008", 2.0, 3)]
    con.sql(f"ATTACH '{tmp_path}/c.txt' AS u (TYPE csv, {options}, TYPES {{'column2': 'DECIMAL(5, 2)'}})")
    assert con.sql("SELECT column2 FROM u ORDER BY 1").rows() == [(Decimal("3.00"),), (None,)]


@pytest.mark.parametrize(
    "options", ["TYPES {'a': 'ENUM(1)'}", "TYPES {'a': 'INTEGER), (SELECT 1'}", "TYPES 5", "DELIMS ','"]
)
def test_other_options_are_refused(con, tmp_path, options):
    write(tmp_path / "c" / "1.csv", "a\n1\n")
    with pytest.raises(KartosqlError) as e:
        con.sql(f"ATTACH '{tmp_path}/c' AS t (TYPE csv, {options})")
    assert e.value.code == "invalid-option"


def test_values_that_do_not_fit_are_errors_of_ours(con, tmp_path):
    write(tmp_path / "c" / "1.csv", "a,b\n1,2\nx,3\n")
    con.sql(f"ATTACH '{tmp_path}/c' AS t (TYPE csv, TYPES {{'a': 'BIGINT'}})")
    with pytest.raises(KartosqlError) as e:
        con.sql("SELECT sum(a) FROM t").rows()
    assert e.value.code in ("corrupt-file", "invalid-value")
    assert con.sql("SELECT sum(b) FROM t").rows() == [(5,)]


def test_two_spellings_are_refused_and_new_files_are_seen(con, tmp_path):
    write(tmp_path / "c" / "1.csv", "a\n1\n")
    con.attach(tmp_path / "c", "t", type="csv")
    write(tmp_path / "c" / "2.csv", "a\n2\n")
    assert con.sql("SELECT sum(a), count(*) FROM t").rows() == [(3, 2)]
    write(tmp_path / "c" / "2.csv", "A\n2\n")
    with pytest.raises(KartosqlError) as e:
        con.sql("FROM t")
    assert e.value.code == "schema-conflict"


def test_remote_files_are_read_through_their_filesystem(con):
    files, root = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    files.pipe(f"{root}/p=a b%2Fc/x.csv", b"i,j\n1,2\n")
    files.pipe(f"{root}/p=q/x.csv", b"i,j\n3,\n")
    con.sql(f"ATTACH 'memory:/{root}' AS t (TYPE csv)")
    assert con.sql("FROM t ORDER BY i").rows() == [(1, 2, "a b/c"), (3, None, "q")]
    assert con.sql("SELECT i FROM t WHERE p = 'a b/c'").rows() == [(1,)]
