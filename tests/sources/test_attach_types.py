"""Columns of all types that files can hold: read as DuckDB reads the files alone, refused by name, never in the way."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.errors import KartosqlError

UUID = "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID"
# What DuckDB writes: everything that COPY takes.
WRITTEN = {
    "boolean": "true",
    "tinyint": "-3::TINYINT",
    "smallint": "-300::SMALLINT",
    "integer": "-70000",
    "bigint": "-5000000000",
    "hugeint": "170141183460469231731687303715884105727::HUGEINT",
    "uhugeint": "340282366920938463463374607431768211455::UHUGEINT",
    "utinyint": "200::UTINYINT",
    "usmallint": "60000::USMALLINT",
    "uinteger": "4000000000::UINTEGER",
    "ubigint": "18446744073709551615::UBIGINT",
    "float": "1.5::FLOAT",
    "double": "0.1::DOUBLE",
    "decimal of 4": "1.5::DECIMAL(4, 1)",
    "decimal of 9": "12345.6789::DECIMAL(9, 4)",
    "decimal of 18": "1.5::DECIMAL(18, 3)",
    "decimal of 38": "12345678901234567890123456789012345.123::DECIMAL(38, 3)",
    "varchar": "'aé'",
    "blob": "'\\xAA\\x00'::BLOB",
    "date": "DATE '2020-01-02'",
    "date before": "DATE '0044-03-15 (BC)'",
    "date without end": "'infinity'::DATE",
    "time": "TIME '01:02:03.456789'",
    "time at the end": "TIME '24:00:00'",
    "time_ns": "TIME_NS '01:02:03.456789123'",
    "timetz": "'01:02:03+02'::TIMETZ",
    "timestamp": "TIMESTAMP '2020-01-02 03:04:05.678901'",
    "timestamp without end": "'infinity'::TIMESTAMP",
    "timestamp_s": "TIMESTAMP_S '2020-01-02 03:04:05'",
    "timestamp_ms": "TIMESTAMP_MS '2020-01-02 03:04:05.678'",
    "timestamp_ns": "TIMESTAMP_NS '2020-01-02 03:04:05.678901234'",
    "timestamptz": "TIMESTAMPTZ '2020-01-02 03:04:05+02'",
    "timestamptz_ns": "'2020-01-02 03:04:05.678901234+02'::TIMESTAMPTZ_NS",
    "interval": "INTERVAL '1 month 2 days 3.5 seconds'",
    "uuid": UUID,
    "json": "'{\"a\": [1]}'::JSON",
    "enum": "'x'::ENUM('x', 'y')",
    "bit": "'0101'::BIT",
    "bignum": "12345678901234567890123456789012345678901234567890::BIGNUM",
    "variant": "1::VARIANT",
    "variant of a struct": "{'a': [1, 2]}::VARIANT",
    "union": "union_value(n := 1)",
    "list": "[1, 2, NULL]",
    "list of texts": "['a', NULL]",
    "list of lists": "[[1], [2, 3], NULL]",
    "list of uuids": f"[{UUID}]",
    "list of intervals": "[INTERVAL 1 DAY]",
    "list of timetz": "['01:02:03+02'::TIMETZ]",
    "list of enums": "['x'::ENUM('x', 'y')]",
    "list of decimals": "[1.5::DECIMAL(30, 2)]",
    "array": "[1, 2, 3]::INTEGER[3]",
    "struct": "{'a': 1, 'b': 'x'}",
    "struct of odd types": f"{{'metadata': {UUID}, 'value': '[1]'::JSON, 'i': INTERVAL 1 DAY}}",
    "structs in a list": f"[{{'a': [1], 'u': {UUID}}}]",
    "map": "MAP {'k': 1}",
    "map of odd types": f"MAP {{{UUID}: INTERVAL 1 DAY}}",
}
_MOMENT = dt.datetime(2020, 1, 2, 3, 4, 5, 678901)
# What Arrow writes; the older notes of times are those that it made until version 13.
ARROW = {
    "float16": pa.array([1.5], pa.float16()),
    "decimal32": pa.array([Decimal("1.25")], pa.decimal32(5, 2)),
    "decimal256 that fits": pa.array([Decimal(7)], pa.decimal256(30, 0)),
    "fixed bytes": pa.array([b"abc"], pa.binary(3)),
    "16 fixed bytes": pa.array([b"a" * 16], pa.binary(16)),
    "12 fixed bytes": pa.array([b"a" * 12], pa.binary(12)),
    "large texts": pa.array(["a"], pa.large_string()),
    "views": pa.array(["a"], pa.string_view()),
    "dictionary": pa.array(["a"]).dictionary_encode(),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\1" * 16], pa.binary(16))),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[1]"])),
    "seconds": pa.array([_MOMENT.replace(microsecond=0)], pa.timestamp("s")),
    "milliseconds": pa.array([1], pa.timestamp("ms")),
    "zoned": pa.array([_MOMENT], pa.timestamp("us", "Europe/Berlin")),
    "zoned nanoseconds": pa.array([1_577_934_245_678_901_234], pa.timestamp("ns", "UTC")),
    "time32": pa.array([1], pa.time32("ms")),
    "time64": pa.array([1], pa.time64("us")),
    "time of nanoseconds": pa.array([1], pa.time64("ns")),
    "durations": pa.array([1], pa.duration("us")),
    "date64": pa.array([86_400_000], pa.date64()),
    "nothing": pa.nulls(1),
    "list views": pa.array([[1]], pa.list_view(pa.int64())),
    "fixed lists": pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
    "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
}
# Of all columns at once, and of each by itself.
WIDE = [
    "SELECT id, {} FROM t ORDER BY id",
    "SELECT {} FROM t a, t b",
    "SELECT COLUMNS('id') FROM t WHERE COLUMNS('id') > 0 ORDER BY ALL",
    "SELECT count(*) FROM t",
]
OF_EACH = ["CAST({c} AS VARCHAR), typeof({c}), {c} IS NULL", "count({c}), count(*) FILTER (a.{c} = b.{c})", "", ""]
ALONE = [
    "SELECT id FROM t WHERE {c} IS NOT NULL AND {c} = (SELECT any_value({c}) FROM t)",
    "SELECT CAST(list({c} ORDER BY id) AS VARCHAR), CAST(list({{'c': {c}}} ORDER BY id) AS VARCHAR) FROM t",
]


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        con.sql("SET TimeZone = 'Asia/Kathmandu'")
        yield con


def answer(ask, sql: str) -> object:
    try:
        return ask(sql)
    except (duckdb.Error, KartosqlError):
        return "refused"


def check(con, own, folder: Path, cases: list[str]) -> None:
    """Compare answers over a folder, whose columns are c0, c1 and so on, with those of DuckDB over its files."""
    con.attach(folder, "t", replace=True)
    own.execute(f"CREATE OR REPLACE VIEW t AS FROM read_parquet('{folder}/*.parquet', union_by_name = true)")
    asked = []
    for wide, of_each in zip(WIDE, OF_EACH, strict=True):
        of_each = of_each.replace("count({c})", "count(a.{c})")
        asked.append(wide.format(", ".join(of_each.format(c=f"c{at}") for at in range(len(cases)))))
    asked += [sql.format(c=f"c{at}") for at in range(len(cases)) for sql in ALONE]
    for sql in asked:
        wanted = answer(lambda sql: own.execute(sql).fetchall(), sql)
        assert answer(lambda sql: con.sql(sql).rows(), sql) == wanted, (cases, sql)
        assert wanted != "refused", sql


def bare() -> duckdb.DuckDBPyConnection:
    own = duckdb.connect()
    own.execute("SET TimeZone = 'Asia/Kathmandu'")
    return own


def test_what_duckdb_writes_is_read_as_duckdb_reads_it(con, tmp_path):
    own = bare()
    (tmp_path / "t").mkdir()
    columns = ", ".join(f"{value} AS c{at}" for at, value in enumerate(WRITTEN.values()))
    nulls = ", NULL" * len(WRITTEN)
    own.execute(f"COPY (SELECT 1 AS id, {columns} UNION ALL SELECT 2{nulls}) TO '{tmp_path}/t/a.parquet'")
    own.execute(f"COPY (SELECT 3 AS id) TO '{tmp_path}/t/b.parquet'")
    check(con, own, tmp_path / "t", list(WRITTEN))


def test_what_arrow_writes_is_read_as_duckdb_reads_it(con, tmp_path):
    own = bare()
    columns = {f"c{at}": column for at, column in enumerate(ARROW.values())}
    moments = pa.array([dt.datetime(1500, 1, 1)], pa.timestamp("us"))
    old = {"c0": pa.array([1], pa.time64("us")), "c1": moments, "c2": pa.array([[1]], pa.list_(pa.timestamp("ns")))}
    for name, found, options in (
        ("now", columns, {}),
        ("before", old, {"write_time_adjusted_to_utc": True, "use_deprecated_int96_timestamps": True}),
    ):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": [1], **found}), tmp_path / name / "a.parquet", **options)
        check(con, own, tmp_path / name, list(found))


def test_texts_beside_uuids_and_json_are_texts(con, tmp_path):
    own = bare()
    for number, value in enumerate([UUID, "'[1]'::JSON"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        own.execute(f"COPY (SELECT 1 AS id, {value} AS c) TO '{folder}/a.parquet'")
        own.execute(f"COPY (SELECT 2 AS id, 'text' AS c) TO '{folder}/b.parquet'")
        con.attach(folder, "t", replace=True)
        text = own.execute(f"SELECT CAST({value} AS VARCHAR)").fetchall()[0][0]
        assert con.sql("SELECT c, typeof(c) FROM t ORDER BY id").rows() == [(text, "VARCHAR"), ("text", "VARCHAR")]


# Statements that may use all columns, as far as our own parser can tell, but do not use c.
WITHOUT = [
    "SELECT id FROM t WHERE COLUMNS('id') >= 1",
    "SELECT COLUMNS('id.*') FROM t",
    "SELECT max(COLUMNS('id')) FROM t",
    "SELECT * EXCLUDE (c) FROM t",
    "SELECT * EXCLUDE (c) REPLACE (id + 1 AS id) FROM t",
    "SELECT * REPLACE (1 AS c) FROM t",
    "SELECT * LIKE 'id%' FROM t",
    "SELECT COLUMNS(lambda x: x <> 'c') FROM t",
    "SELECT COALESCE(*COLUMNS('id')) FROM t",
    "SELECT id FROM (FROM t)",
    "WITH x AS (FROM t) SELECT id FROM x",
    "WITH x AS MATERIALIZED (FROM t) SELECT a.id FROM x a JOIN x b USING (id)",
    "SELECT id FROM t x(id, y, z)",
    "SELECT id FROM t NATURAL JOIN (SELECT 1 AS id)",
    "SELECT 1 FROM t WHERE EXISTS (FROM t)",
    "SELECT id FROM (FROM t ORDER BY id LIMIT 1)",
    "SELECT id FROM (SELECT * FROM t UNION ALL FROM t)",
    "SELECT id FROM t QUALIFY row_number() OVER (ORDER BY id) = 1",
    "PIVOT (SELECT id, id2 FROM t) ON id IN (1, 2) USING sum(id2)",
    "UNPIVOT (SELECT id, id2 FROM t) ON id, id2",
    "SELECT id FROM t WHERE id IN (SELECT COLUMNS('id2') - 4 FROM t)",
    "SELECT a.id FROM t a ASOF JOIN t b ON a.id >= b.id",
    "SELECT id FROM t POSITIONAL JOIN (SELECT 1)",
    "FROM t SELECT id, [x + 1 FOR x IN [id]]",
]
WITH = [
    "SELECT * FROM t",
    "SELECT c FROM t",
    "SELECT COLUMNS(*) FROM t",
    "SELECT COLUMNS('c') FROM t",
    "SELECT t FROM t",
    "SELECT count(c) FROM t",
    "SELECT id FROM t WHERE c IS NULL",
    "SELECT id FROM (SELECT DISTINCT * FROM t)",
    "SELECT unnest(t) FROM t",
]


def test_a_column_that_cannot_be_read_is_refused_by_name_and_in_nobodys_way(con, tmp_path):
    own = duckdb.connect()
    ids = {"id": [1, 2], "id2": [5, 6]}
    (tmp_path / "t").mkdir()
    for case, value in (("point", "'POINT(1 2)'::GEOMETRY"), ("number", None)):
        path = tmp_path / "t" / "a.parquet"
        if value is None:
            column = pa.array([Decimal(10) ** 50, None], pa.decimal256(76, 0))
            pq.write_table(pa.table({"id": ids["id"], "c": column, "id2": ids["id2"]}), path)
        else:
            own.execute(f"COPY (SELECT 1 AS id, {value} AS c, 5 AS id2 UNION ALL SELECT 2, NULL, 6) TO '{path}'")
        con.attach(tmp_path / "t", "t", replace=True)
        own.execute(f"CREATE OR REPLACE VIEW t AS FROM '{path}'")
        for sql in WITHOUT:
            # In an order of their own, as rows of few statements have one.
            assert sorted(con.sql(sql).rows()) == sorted(own.execute(sql).fetchall()), (case, sql)
        for sql in WITH:
            with pytest.raises(KartosqlError) as e:
                con.sql(sql).rows()
            assert (e.value.code, "t.c: " in e.value.message) == ("unsupported-type", True), (case, sql, e.value)
        assert dict(r[:2] for r in con.sql("DESCRIBE t").rows())["id"] in ("INTEGER", "BIGINT")


def test_large_integers_of_csv_files_are_numbers(con, tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "1.csv").write_text(f"a,b,c\n9,{2**100},{10**60}\n10,-3,7\n")
    (tmp_path / "f" / "2.csv").write_text("a,b,c\n8,5,6\n")
    con.attach(tmp_path / "f", "t", type="csv")
    own = duckdb.connect()
    own.execute(f"CREATE VIEW t AS FROM read_csv('{tmp_path}/f/1.csv') UNION ALL FROM read_csv('{tmp_path}/f/2.csv')")
    for sql in (
        "SELECT max(b)::VARCHAR, min(b)::VARCHAR, max(c)::VARCHAR, min(c)::VARCHAR, max(a) FROM t",
        "SELECT DISTINCT typeof(a), typeof(b), typeof(c) FROM t",
        "SELECT a FROM t WHERE b > 4 ORDER BY b DESC",
        "SELECT a FROM t WHERE c < 100 ORDER BY c",
    ):
        assert con.sql(sql).rows() == own.execute(sql).fetchall(), sql
