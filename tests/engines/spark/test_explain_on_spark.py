"""EXPLAIN on Spark tells the refusal that running would give, and starts no session."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nasty
import pyarrow as pa
import pytest
import test_statements

import kartosql
from kartosql.engines.spark import engine as engines
from kartosql.engines.spark import session as sessions
from kartosql.errors import KartosqlError

ANSWERED = ["n + 1", "date_trunc('hour', ts)", "upper(s)", "floor(g)", "l[1]"]


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[kartosql.Connection]:
    """A connection in a process that has Java, and in which Spark must not be started."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("nobody asked for a session")

    monkeypatch.setattr(engines, "session", never)
    monkeypatch.setattr(sessions, "is_running", lambda: False)
    monkeypatch.setattr(sessions, "_java_checked", lambda: None)
    with kartosql.connect(str(tmp_path)) as found:
        found.register("t", nasty.table())
        found.register("u", pa.table({"p": [1, 2], "y": [1, 2]}))
        found.register("v", pa.table({"p": [1, 2], "w": [1, 2]}))
        yield found


def refusals(con: kartosql.Connection, sql: str) -> list[tuple[Any, ...]]:
    """Return what running a statement and each way of explaining it say."""
    ways = [
        lambda: con.sql(sql, engine="spark").rows(),
        lambda: con.explain(sql, engine="spark"),
        lambda: con.sql(f"EXPLAIN {sql}", engine="spark").rows(),
        lambda: con.sql(f"EXPLAIN ANALYZE {sql}", engine="spark").rows(),
        lambda: con.sql(sql, engine="spark").explain(),
    ]
    found = []
    for way in ways:
        with pytest.raises(KartosqlError) as caught:
            way()
        found.append((caught.value.code, caught.value.message, caught.value.hint))
    return found


def test_what_running_refuses_explain_refuses_in_the_same_words(con):
    statements = [f"SELECT {e} FROM t" for e in nasty.REFUSED]
    statements += [s for s in test_statements.REFUSED if not s.startswith(("PIVOT", "SUMMARIZE"))]
    for sql in statements:
        ran, *explained = refusals(con, sql)
        assert ran[0] == "not-portable"
        assert explained == [ran] * len(explained), sql


@pytest.mark.parametrize("expression", ANSWERED)
def test_what_spark_answers_is_explained_without_a_session(con, expression):
    report = con.explain(f"SELECT {expression} FROM t", engine="spark").to_dict()
    assert (report["engine"], "asks for Spark" in report["engine_reason"]) == ("spark", True)


def test_files_that_spark_reads_otherwise_are_refused_by_explain(con, monkeypatch, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.csv").write_text("x,y\n1,2\n")
    con.attach(str(tmp_path / "more"), "more", type="csv")
    monkeypatch.setattr(engines, "MAX_TEXT", 1)
    con.create_dataset("d", pa.table({"x": [1], "clock": pa.array([1], pa.time64("us"))}))
    for sql in ("SELECT sum(x) FROM more", "SELECT count(clock) FROM d"):
        ran, *explained = refusals(con, sql)
        assert ran[0] == "not-portable"
        assert explained == [ran] * len(explained), sql


def test_explain_tells_what_the_process_lacks(con, monkeypatch, tmp_path):
    sql = "SELECT n FROM t"
    monkeypatch.setattr(engines, "session", sessions.session)
    monkeypatch.setattr(sessions, "active", lambda: None)
    monkeypatch.setattr(sessions, "_java_checked", sessions.check_java)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    ran, *explained = refusals(con, sql)
    assert ran[0] == "missing-java"
    assert explained == [ran] * len(explained)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "pyspark" else found(name, *a))
    with pytest.raises(KartosqlError) as caught:
        con.explain(sql, engine="spark")
    assert caught.value.code == "missing-extra"


def test_stores_that_executors_cannot_reach_are_refused_by_explain(con, monkeypatch):
    with kartosql.connect("memory://explain-on-spark") as other:
        other.create_dataset("d", pa.table({"x": [1]}))
        with pytest.raises(KartosqlError) as caught:
            other.explain("SELECT x FROM d", engine="spark")
        assert caught.value.code == "store-unreachable"


def test_a_server_of_spark_connect_that_keeps_its_settings_is_refused_and_auto_stays_with_duckdb(con, monkeypatch):
    class Conf:
        getAll = {"spark.sql.ansi.enabled": "false"}

        def set(self, name, value):
            raise ValueError(name)

    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "conf": Conf()})()
    monkeypatch.setattr(sessions, "is_running", lambda: True)
    monkeypatch.setattr(engines, "session", lambda: remote)
    con.create_dataset("d", pa.table({"x": [1, 2]}))
    with pytest.raises(KartosqlError) as caught:
        con.sql("SELECT x FROM d", engine="spark").rows()
    assert (caught.value.code, "does not let spark.sql" in caught.value.message) == ("spark-connect", True)
    con.sql("SET spark_threshold = 1")
    query = con.sql("SELECT x FROM d")
    assert (query.rows(), query.stats["engine"]) == ([(1,), (2,)], "duckdb")


def test_under_auto_the_reason_is_the_refusal(con):
    con.create_dataset("d", pa.table({"x": [1, 2], "clock": pa.array([1, 2], pa.time64("us"))}))
    con.sql("SET spark_threshold = 1")
    for sql in ("SELECT hash(x) FROM d", "SELECT x, max(clock) FROM d GROUP BY x"):
        with pytest.raises(KartosqlError) as caught:
            con.explain(sql, engine="spark")
        report = con.explain(sql, engine="auto").to_dict()
        assert report["engine"] == "duckdb"
        assert report["engine_reason"].endswith(f"but Spark does not run it: {caught.value.message}")
