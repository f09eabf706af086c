"""A statement on Spark from end to end: types, names, parameters, zones, limits of time, what it leaves behind."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import ExecutionError, KartosqlError, LimitError, NotPortable
from sparks import Both, unordered


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    store = str(tmp_path_factory.mktemp("store"))
    rows = {
        "x": pa.array([1, 2, 3, 4]),
        "Odd name`": pa.array(["a", None, "b", "${x}"]),
        "v": pa.array([1, 2, 3, 4], pa.uint64()),
        "f": pa.array([0.0, -0.0, float("nan"), None]),
        "ts": pa.array([dt.datetime(2021, 3, 28, 2, 30), None, dt.datetime(1900, 1, 1), dt.datetime(2020, 1, 1)]),
        "tz": pa.array([dt.datetime(2021, 3, 28, 1, 30, tzinfo=dt.timezone.utc), None] * 2),
        "old": pa.array([dt.date(1500, 2, 3), dt.date(1, 1, 1), None, dt.date(2020, 1, 1)]),
        "n": pa.nulls(4),
        "l": pa.array([[1, None], [], None, [3]]),
        "p": ["a", "a", "b", "b"],
    }
    with kartosql.connect(store) as con:
        con.create_dataset("d", pa.table(rows), partition_on=["p"])
        con.build_cube(
            kartosql.Cube("c", ["x"], ["p"]), {"seed": pa.table({"x": [1, 2, 3], "p": ["a", "a", "b"], "w": [5, 6, 7]})}
        )
    return store


@pytest.fixture(scope="module")
def both(spark, url):
    with Both(url) as found:
        yield found


def test_types_and_names_are_those_of_duckdb(both):
    sql = "SELECT *, 1 AS one, 2.50 AS half, sum(v) OVER () AS total, x AS x FROM d ORDER BY x"
    found, wanted = (both.con.sql(sql, engine=e) for e in ("spark", "duckdb"))
    assert found.arrow().schema.types == wanted.arrow().schema.types
    assert found.columns == wanted.columns
    assert found.types == wanted.types
    assert repr(both.on_spark(sql)) == repr(both.on_duckdb(sql))


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("SELECT x FROM d WHERE x = ?", [2]),
        ("SELECT x FROM d WHERE x IN (SELECT unnest($1))", [[1, 3]]),
        ("SELECT x, $t || p FROM d WHERE p = $p", {"p": "b", "t": "it's ${x} \\ 'q'"}),
        ("SELECT x + ? FROM d", [Decimal("1.25")]),
        ("SELECT x FROM d WHERE ts >= ? AND tz IS NOT NULL", [dt.datetime(2020, 1, 1)]),
        ("SELECT x FROM d WHERE old < ?", [dt.date(1600, 1, 1)]),
        ("SELECT coalesce(?, x) FROM d", [None]),
        ('SELECT "Odd name`" FROM d WHERE "Odd name`" LIKE ?', ["$%"]),
        ("SELECT x FROM d WHERE f = ?", [0.0]),
        ("SELECT count(*) FROM d WHERE n IS NULL OR n = 3", None),
        ("SELECT p, count(*), max(x) FROM d GROUP BY p HAVING max(x) > ?", [2]),
        ("SELECT c.w, d.v FROM c JOIN d USING (x)", None),
        ("SELECT w FROM c WHERE p = 'a'", None),
        ("SELECT w FROM c.seed WHERE x > 1", None),
        ("SELECT count(*) FROM d WHERE p = 'nowhere'", None),
        (f"SELECT x FROM d WHERE x IN ({', '.join(map(str, range(2, 20_000)))})", None),
        (f"SELECT x FROM d WHERE p IN ({', '.join(repr(str(i)) for i in range(3_000))}, 'b')", None),
    ],
)
def test_statements_have_the_same_rows(both, sql, parameters):
    wanted = unordered(both.on_duckdb(sql, parameters))
    assert repr(unordered(both.on_spark(sql, parameters))) == repr(wanted)


def test_files_are_pruned_and_the_report_tells_the_engine(both):
    query = both.con.sql("SELECT w FROM c WHERE p = 'b'", engine="spark")
    assert query.rows() == [(7,)]
    report = query.report.to_dict()
    assert (report["engine"], query.stats["engine"], query.stats["rows"]) == ("spark", "spark", 1)
    assert report["scans"][0]["datasets"][0]["files_selected"] == 1


def test_columns_of_a_zone_are_refused_where_engines_disagree(spark, url):
    with Both(url, TimeZone="Europe/Berlin") as both:
        assert both.on_spark("SELECT x FROM d WHERE tz >= TIMESTAMPTZ '2021-03-28 03:30:00+02' ORDER BY x") == [
            (1,),
            (3,),
        ]
        assert both.on_spark("SELECT tz FROM d ORDER BY x") == both.on_duckdb("SELECT tz FROM d ORDER BY x")
        for sql in ("SELECT ts = tz FROM d", "SELECT hour(tz) FROM d", "SELECT tz::DATE FROM d"):
            with pytest.raises(NotPortable):
                both.on_spark(sql)


def test_collations_are_refused(spark, url):
    with Both(url, default_collation="NOCASE") as both, pytest.raises(NotPortable):
        both.on_spark("SELECT x FROM d WHERE p = 'A'")


def test_unknown_names_are_those_of_the_statement(both):
    with pytest.raises(KartosqlError) as caught:
        both.con.sql("SELECT nothing FROM d", engine="spark").rows()
    assert caught.value.code == "unknown-column"


def test_a_refusal_shows_the_place(both):
    with pytest.raises(NotPortable) as caught:
        both.con.sql("SELECT x, hash(p) FROM d", engine="spark").rows()
    assert caught.value.span == (10, 17)
    assert "hash(p)" in str(caught.value)
    assert "^^^^^^^" in str(caught.value)


def test_errors_of_values_show_no_java(both):
    with pytest.raises(ExecutionError) as caught:
        both.con.sql("SELECT 9223372036854775800 + x * 1000 FROM d", engine="spark").rows()
    assert caught.value.code == "invalid-value"
    assert "org.apache" not in str(caught.value)
    assert "SQLSTATE" not in str(caught.value)


def test_a_timeout_stops_the_jobs(spark, url):
    with kartosql.connect(url, engine="spark", timeout=5) as con:
        con.register("t", pa.table({"x": list(range(3_000))}))
        with pytest.raises(LimitError) as caught:
            con.sql("SELECT count(*) FROM t a, t b, t c WHERE (a.x * b.x + c.x) % 7 = 3").rows()
        assert caught.value.code == "timeout"


def test_nothing_is_left_in_the_users_session(spark, both):
    before = {t.name for t in spark.catalog.listTables()}
    zone = spark.conf.get("spark.sql.session.timeZone")
    both.on_spark("SELECT count(*) FROM c")
    assert {t.name for t in spark.catalog.listTables()} == before
    assert spark.conf.get("spark.sql.session.timeZone") == zone
    assert type(spark).getActiveSession() is spark


def test_explain_analyze_tells_the_operators_of_spark(both):
    sql = "SELECT p, count(*) AS n FROM d WHERE x > 1 AND p = 'b' GROUP BY p"
    content = both.con.sql(f"EXPLAIN ANALYZE {sql}", engine="spark").content
    text = str(content)
    assert "read d: 1 of 2 files" in text
    assert "hash aggregate (keys=[" in text
    assert "row groups: Spark does not count them" in text
    assert not {"{", "#"} & set(text)
    top = content.operators[0]
    while top.children:
        top = top.children[-1]
    assert (top.name, top.rows) == ("read d: 1 of 2 files", 2)
