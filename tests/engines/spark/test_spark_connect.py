"""Sessions of Spark Connect: what classic sessions read they read as well, without the JVM."""

from __future__ import annotations

import datetime as dt
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
import kartosql.spark
from engines.spark import test_spark_scan
from engines.spark.random_statements import checker
from engines.spark.spark_rows import comparable, on_duckdb
from engines.spark.test_deletes_on_spark import (  # noqa: F401
    test_rows_that_arrow_decodes_lose_the_same_ones,
    test_the_key_may_be_a_partition_column_or_one_that_is_not_seen,
)
from engines.spark.test_spark_scan import (  # noqa: F401
    test_a_missing_file_is_named,
    test_changes_are_those_of_duckdb,
    test_columns_that_differ_in_case_are_two,
    test_columns_that_files_lack_are_null_if_they_were_added,
    test_differently_written_files_are_read_each_in_its_way,
    test_nanoseconds_that_spark_lacks_are_an_error_and_not_cut_off,
    test_registered_data_become_a_frame,
)
from kartosql.engines.spark import connect
from kartosql.engines.spark import session as sessions
from kartosql.errors import ExecutionError, KartosqlError
from kartosql.store import Store
from written import build_cube

STATEMENTS_OF_A_STORE = int(os.environ.get("KARTOSQL_CONNECT_DIFFERENTIAL", "12"))


@pytest.fixture
def spark(spark_connect: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The session of Spark Connect, as the only one of this process; nothing is left in it."""
    monkeypatch.setattr(sessions, "active", lambda: spark_connect)
    before = dict(spark_connect.conf.getAll)
    yield spark_connect
    gc.collect()
    connect.drop_unused()
    assert dict(spark_connect.conf.getAll) == before
    assert [table.name for table in spark_connect.catalog.listTables() if table.name.startswith("kartosql_")] == []


def flights(con: kartosql.Connection) -> None:
    """A dataset with odd partition values, and a cube."""
    rows = {
        "x": range(8),
        "p": ["a", "é", "a/b", "x y", "__HIVE_DEFAULT_PARTITION__", "01", "a%20b", "ü ö?"],
        "q": range(8),
        "f": [0.5, float("nan"), None, -0.0, 0.0, 1e300, 2.0, 3.0],
        "t": pa.array([dt.datetime(2021, 3, 28, 2, 30 + i) for i in range(8)], pa.timestamp("us")),
    }
    con.create_dataset("d", pa.table(rows), partition_on=["p", "q"])
    seed = pa.table({"x": [1, 2, 3], "p": ["a", "a", "é"], "w": [5, 6, 7]})
    con.build_cube(
        kartosql.Cube("c", ["x"], ["p"]),
        {"seed": seed, "more": pa.table({"x": [1, 3], "p": ["a", "é"], "z": ["u", "v"]})},
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("stores") / "a {b}*[c] é"
    folder.mkdir()
    with kartosql.connect(folder) as con:
        flights(con)
    return str(folder)


@pytest.fixture
def con(store: str) -> Iterator[kartosql.Connection]:
    with kartosql.connect(store) as found:
        yield found


@pytest.fixture(params=["literals", "join"])
def values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How values of files that Spark does not read from paths reach their rows."""
    if request.param == "join":
        monkeypatch.setattr(connect, "MAX_ALIKE", 0)


@pytest.mark.usefixtures("values")
def test_partition_columns_may_be_null_in_each_type(spark: Any, tmp_path: Path) -> None:
    test_spark_scan.test_partition_columns_may_be_null_in_each_type(spark, tmp_path)


@pytest.mark.usefixtures("values")
def test_partition_values_of_any_letters_are_found(spark: Any, con: kartosql.Connection) -> None:
    text = "SELECT p, q, f, t FROM d WHERE p NOT IN ('a', 'x y') AND x + q > 1"
    found, wanted = (con.sql(text, engine=engine).arrow() for engine in ("spark", "duckdb"))
    assert wanted.num_rows == 6
    assert comparable(found) == comparable(wanted)


@pytest.mark.parametrize("name", ["sql/paths", "sql/typed"])
def test_views_hold_the_rows_and_types_of_duckdbs_relations(spark: Any, name: str) -> None:
    test_spark_scan.test_views_hold_the_rows_and_types_of_duckdbs_relations(spark, name)


def test_views_are_those_of_classic_sessions_and_follow_the_store(spark: Any, tmp_path: Path) -> None:
    con = kartosql.connect(tmp_path)
    flights(con)
    views = kartosql.spark.register(spark, con.store.url)
    assert sorted(views) == ["c", "c__more", "c__seed", "d"]
    assert sorted(table.name for table in spark.catalog.listTables()) == sorted(views)
    assert comparable(spark.table("d").toArrow()) == comparable(on_duckdb(con, "FROM d"))
    assert comparable(spark.table("c").toArrow()) == comparable(on_duckdb(con, "FROM c"))
    assert spark.sql("SELECT count(*) AS n FROM d WHERE p > 'a' AND q < 5").collect()[0].n == 3
    con.append_to_dataset(
        "d", pa.table({"x": [9], "p": ["z"], "q": [9], "f": [1.0], "t": pa.array([None], pa.timestamp("us"))})
    )
    assert spark.table("d").count() == 8
    views.refresh()
    assert spark.table("d").count() == 9
    views.close()
    con.close()
    assert spark.catalog.listTables() == []


STATEMENTS = (
    "SELECT p, q / 2 AS h, t, date_trunc('hour', t) AS u FROM d WHERE q < 5",
    "SELECT x, f FROM d WHERE f > 1",
    "SELECT c.x, w, z, d.p FROM c JOIN d USING (x)",
    "SELECT count(*), sum(x), max(p) FROM d WHERE p IN ('a/b', 'é', 'no such')",
    "SELECT x FROM d WHERE x IN (SELECT x FROM c WHERE z IS NULL)",
    "SELECT 1 AS one, 'a\\b' AS text",
)


@pytest.mark.parametrize("text", STATEMENTS)
def test_answers_are_those_of_duckdb_whatever_the_settings_of_the_session_are(
    spark: Any, con: kartosql.Connection, text: str
) -> None:
    settings = {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "Europe/Berlin"}
    wanted = con.sql(text).arrow()
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        frame = kartosql.spark.sql(spark, con.store.url, text)
        assert comparable(frame.toArrow())[1] == comparable(on_duckdb(con, text))[1]
        assert frame.limit(1).count() == min(1, wanted.num_rows)
        assert {name: spark.conf.get(name) for name in settings} == settings
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    query = con.sql(text, engine="spark")
    assert comparable(query.arrow()) == comparable(wanted)
    assert query.stats["engine"] == "spark"
    assert query.explain().to_dict()["engine"] == "spark"


def test_auto_asks_the_session_for_what_is_too_much_for_one_machine(spark: Any, con: kartosql.Connection) -> None:
    con.sql("SET spark_threshold = 1")
    query = con.sql("SELECT sum(x) FROM d")
    assert (query.rows(), query.stats["engine"]) == ([(28,)], "spark")
    con.register("r", pa.table({"x": [1, 2], "ts": [dt.datetime(2020, 1, 1)] * 2}))
    text = "SELECT ts, count(*) AS n FROM r JOIN d USING (x) GROUP BY ts"
    assert con.sql(text, engine="spark").rows() == [(dt.datetime(2020, 1, 1), 2)]


def test_a_frame_holds_while_others_come_and_go(spark: Any, con: kartosql.Connection) -> None:
    first = kartosql.spark.sql(spark, con, "SELECT x FROM d WHERE q < 3")
    derived = first.where("x > 0")
    del first
    gc.collect()
    other = kartosql.spark.sql(spark, con, "SELECT x FROM c")
    assert (derived.count(), derived.join(other, "x").count()) == (2, 2)


ENDLESS = "SELECT count(*) FROM n a, n b, n c WHERE (a.x * b.x + c.x) % 7 = 3"


def test_a_timeout_stops_the_operation(spark: Any, store: str) -> None:
    with kartosql.connect(store, engine="spark", timeout=5) as con:
        con.register("n", pa.table({"x": range(3_000)}))
        with pytest.raises(KartosqlError) as caught:
            con.sql(ENDLESS).rows()
    assert caught.value.code == "timeout"


def test_an_interrupt_stops_the_operation(spark: Any, con: kartosql.Connection) -> None:
    con.register("n", pa.table({"x": range(3_000)}))
    query, found = con.sql(ENDLESS, engine="spark"), []

    def run() -> None:
        try:
            query.rows()
        except KartosqlError as e:
            found.append(e.code)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while query.progress is None and thread.is_alive():
        thread.join(0.05)
    con.interrupt()
    thread.join()
    assert found == ["interrupted"]


def test_overwritten_rows_of_cubes_are_those_of_duckdb(spark: Any, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    seed = {"x": [0, 1, 2, 3], "p": ["a", "a", "é", "é"], "i": [10, 11, 12, 13], "v": list("abcd")}
    enrichment = {"x": [0, 1, 2], "p": ["a", "a", "é"], "w": list("ABC")}
    cube = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
    build_cube(store, cube, {"seed": pa.table(seed), "e": pa.table(enrichment)})
    builders.append(store, "c++seed", pa.table({"x": [0, 3], "p": ["a", "é"], "i": [99, 13], "v": ["new", "d2"]}))
    builders.append(store, "c++e", pa.table({"x": [2], "p": ["é"], "w": ["C2"]}))
    with kartosql.connect(str(tmp_path)) as con:
        for text in ("FROM c", "FROM c WHERE i = 10", "SELECT v, w FROM c WHERE i > 10 AND p = 'é'", "FROM c.e"):
            found, wanted = (con.sql(text, engine=engine).arrow() for engine in ("spark", "duckdb"))
            assert comparable(found) == comparable(wanted), text


def test_random_statements_have_the_rows_of_plain_tables(spark: Any, tmp_path: Path) -> None:
    with checker(0, str(tmp_path), spark, whole=1) as found:
        for number in range(STATEMENTS_OF_A_STORE):
            assert found.ask(number) != "failed", found.failures
        assert found.tally["same"] > 0.3 * STATEMENTS_OF_A_STORE, found.tally


def test_several_stores_are_several_relations(spark: Any, con: kartosql.Connection, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with kartosql.connect(tmp_path / "other") as other:
        other.create_dataset("e", pa.table({"x": [1, 2, 9], "v": [1.5, 2.5, 3.5]}), partition_on=["x"])
    con.attach(str(tmp_path / "other"), "o", type="kartothek")
    text = "SELECT x, p, v FROM d JOIN o.e USING (x)"
    assert comparable(con.sql(text, engine="spark").arrow()) == comparable(con.sql(text, engine="duckdb").arrow())


def test_a_view_of_the_user_is_not_replaced(spark: Any, con: kartosql.Connection) -> None:
    spark.range(1).createOrReplaceTempView("d")
    try:
        with pytest.raises(KartosqlError) as caught:
            kartosql.spark.register(spark, con.store.url, ["d"])
    finally:
        spark.catalog.dropTempView("d")
    assert caught.value.code == "view-exists"


def test_errors_are_ours(spark: Any, con: kartosql.Connection) -> None:
    for text, code in (
        ("SELECT hash(x) FROM d", "not-portable"),
        ("SELECT (x * 100)::TINYINT FROM d", "invalid-value"),
    ):
        with pytest.raises(KartosqlError) as caught:
            con.sql(text, engine="spark").rows()
        assert caught.value.code == code
        assert caught.value.hint or code == "invalid-value"


@pytest.mark.parametrize("key", ["_hidden", ".dotted"])
def test_files_that_spark_would_leave_out_are_refused(key: str) -> None:
    with pytest.raises(ExecutionError) as caught:
        connect.check_paths(["file:///a/b.parquet", f"file:///a/{key}.parquet"])
    assert caught.value.code == "spark-connect"


@pytest.fixture
def counted(spark_connect: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[str]]]:
    """Another session of the server, and the names of its calls but for those that release what was read."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession

    calls: list[str] = []

    class Counting(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
            name = str(details.method).rpartition("/")[2]
            calls.extend([name] if name != "ReleaseExecute" else [])
            return proceed(details, request)

        intercept_unary_stream = intercept_unary_unary

    builder = DefaultChannelBuilder(f"sc://{spark_connect.client._builder.endpoint}")
    builder.add_interceptor(Counting())
    session = SparkSession.builder.channelBuilder(builder).create()
    monkeypatch.setattr(sessions, "active", lambda: session)
    yield session, calls
    session.stop()


def test_a_statement_takes_few_calls_and_the_same_view_again(
    counted: tuple[Any, list[str]], con: kartosql.Connection
) -> None:
    session, calls = counted
    text = "SELECT d.p, sum(x) AS s FROM d JOIN c USING (x) WHERE q < 3 GROUP BY ALL"
    kartosql.spark.sql(session, con, text)  # PySpark asks for settings of its own once
    for _ in range(2):
        gc.collect()
        del calls[:]
        frame = kartosql.spark.sql(session, con, text)
        # All settings, those that are changed, the view, and settings as they were.
        assert calls == ["Config", "Config", "ExecutePlan", "Config"]
        assert frame.count() == 2
        del frame
    assert len([t for t in session.catalog.listTables() if t.name.startswith("kartosql_")]) == 1
    del calls[:]
    assert con.sql(text, engine="spark").arrow().num_rows == 2
    assert calls.count("ExecutePlan") == 2
    assert "AnalyzePlan" not in calls


def test_clients_whose_plans_are_others_have_views(
    spark: Any, con: kartosql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.connect import plan
    from pyspark.sql.connect.conf import RuntimeConf

    monkeypatch.delattr(plan, "SubqueryAlias")
    monkeypatch.delattr(RuntimeConf, "_set_all")
    text = "SELECT c.x, w, z, d.p FROM c JOIN d USING (x)"
    assert comparable(con.sql(text, engine="spark").arrow()) == comparable(con.sql(text, engine="duckdb").arrow())
    assert not connect._scopes


def test_a_setting_that_the_server_keeps_is_named_and_the_others_are_taken_back(spark: Any) -> None:
    with (
        pytest.raises(ExecutionError) as caught,
        connect.configured(spark, {"spark.sql.ansi.enabled": "false", "spark.sql.warehouse.dir": "/nowhere"}),
    ):
        pass
    assert caught.value.code == "spark-connect"
    assert "spark.sql.warehouse.dir" in caught.value.message
