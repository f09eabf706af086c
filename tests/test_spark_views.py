from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kartosql
import kartosql.spark
from builders import WRITE_ID, parquet, write_dataset
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.store import Store


def code_of(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(KartosqlError) as caught:
        kartosql.spark.register(*args, **kwargs)
    return caught.value.code


def test_the_module_is_there_when_it_is_asked_for() -> None:
    program = (
        "import sys, kartosql; assert 'kartosql.spark' not in sys.modules; "
        "assert kartosql.spark.register and kartosql.spark.sql; assert 'pyspark' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_cubes_and_their_datasets_become_views(spark: Any, ktk_store: Path) -> None:
    before = dict(spark.conf.getAll)
    views = kartosql.spark.register(spark, ktk_store, ["retail", "pd-multi"])
    try:
        assert {"retail", "retail__seed", "retail__weather"} < set(views)
        assert all("__" in name for name in views if name.startswith("pd-multi"))
        with kartosql.connect(ktk_store) as con:
            for name, table in views.names.items():
                (expected,) = con.sql(f"SELECT count(*) FROM {table}").rows()
                assert tuple(spark.sql(f"SELECT count(*) FROM `{name}`").first()) == tuple(expected)
        assert dict(spark.conf.getAll) == before
    finally:
        views.close()
    assert not [t.name for t in spark.catalog.listTables() if t.name.startswith(("retail", "pd-"))]


def test_a_refresh_shows_what_was_committed(spark: Any, copy_of: Callable[..., Path]) -> None:
    store = copy_of("retail")
    with kartosql.connect(store) as con:
        views = kartosql.spark.register(spark, store)
        try:
            assert spark.sql("SELECT count(*) FROM retail__weather").first()[0]
            con.sql("DELETE FROM retail.weather WHERE true")
            assert spark.sql("SELECT count(*) FROM retail__weather").first()[0]  # files stay for a while
            views.refresh()
            assert spark.sql("SELECT count(*) FROM retail__weather").first()[0] == 0
            shutil.rmtree(store / "retail++weather")
            (store / "retail++weather.by-dataset-metadata.json").unlink()
            views.refresh()
            assert "retail__weather" not in views
            assert not spark.catalog.tableExists("retail__weather")
        finally:
            views.close()


def test_views_of_the_user_are_not_replaced(spark: Any, ktk_store: Path) -> None:
    spark.range(1).createOrReplaceTempView("retail")
    try:
        assert code_of(spark, ktk_store, "retail") == "view-exists"
        assert spark.table("retail").columns == ["id"]
        assert not spark.catalog.tableExists("retail__seed")
    finally:
        spark.catalog.dropTempView("retail")


def test_unknown_cubes_and_unreachable_stores_are_errors(spark: Any, ktk_store: Path) -> None:
    assert code_of(spark, ktk_store, ["nosuch"]) == "unknown-table"
    store = Store("memory://views")
    write_dataset(store, "t", {}, [])
    assert code_of(spark, "memory://views", ["t"]) == "store-unreachable"


def test_what_spark_cannot_show_is_left_out_with_a_warning(spark: Any, local: Store) -> None:
    write_dataset(local, "t", {"x": pa.int64(), "c": pa.time64("us")}, [""])
    local.put(f"t/table/{WRITE_ID}.parquet", parquet({"x": [1], "c": pa.array([1], pa.time64("us"))}))
    local.put("broken.by-dataset-metadata.json", b"{")
    with pytest.warns(KartosqlWarning) as warned:
        views = kartosql.spark.register(spark, local.root)
    try:
        assert sorted(("lacks columns" in str(w.message), "no view" in str(w.message)) for w in warned) == [
            (False, True),
            (True, False),
        ]
        assert list(views) == ["t"]
        assert spark.table("t").columns == ["x"]
    finally:
        views.close()


def test_joins_prune_partitions_while_they_run(spark: Any, ktk_store: Path) -> None:
    views = kartosql.spark.register(spark, ktk_store, ["retail"])
    try:
        partition = kartosql.connect(ktk_store).cubes()["retail"].partition_columns[0]
        plan = spark.sql(f"SELECT * FROM retail__seed WHERE {partition} IS NULL")._jdf.queryExecution().executedPlan()
        assert f"PartitionFilters: [isnull({partition}" in plan.toString()
    finally:
        views.close()


# -- statements that once gave wrong rows over a data source that keeps filters ----------------------


def test_filters_of_one_statement_are_gone_in_the_next(spark: Any, local: Store) -> None:
    write_dataset(local, "t", {"p": pa.int64(), "x": pa.int64()}, ["p=1", "p=2", "p=3"], partition_keys=["p"])
    for p in (1, 2, 3):
        local.put(f"t/table/p={p}/{WRITE_ID}.parquet", parquet({"x": [p]}))
    views = kartosql.spark.register(spark, local.root)

    def rows(text: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, spark.sql(text).collect()))

    try:
        for column in ("p", "x"):
            assert rows(f"SELECT {column} FROM t WHERE {column} = 1") == [(1,)]
            assert rows(f"SELECT {column} FROM t") == [(1,), (2,), (3,)]
            assert rows("SELECT count(*) FROM t") == [(3,)]
            assert rows(f"SELECT {column} FROM t WHERE {column} = 2 OR {column} = 3") == [(2,), (3,)]
            assert rows(f"SELECT {column} FROM t WHERE {column} = 1 UNION ALL SELECT {column} FROM t") == [
                (1,),
                (1,),
                (2,),
                (3,),
            ]
            join = f"SELECT a.{column}, b.{column} FROM t a, t b WHERE a.{column} = 1 AND b.{column} > 1"
            assert rows(join) == [(1, 2), (1, 3)]
    finally:
        views.close()


# -- kartosql.spark.sql ------------------------------------------------------------------------------

OTHER = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.caseSensitive": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}


@pytest.fixture
def other(spark: Any) -> Any:
    """A session whose settings answer differently."""
    session = spark.newSession()
    for name, value in OTHER.items():
        session.conf.set(name, value)
    return session


@pytest.mark.parametrize(
    "text",
    [
        "SELECT country, count(*) AS n, sum(SALES), avg(SALES) FROM retail GROUP BY ALL",
        "SELECT a.SHOP, b.DAY FROM retail a JOIN retail b USING (SHOP) WHERE a.SALES > b.SALES",
        "SELECT max(DAY) AS d, max(DAY)::TIMESTAMPTZ AS z, max(DAY)::DATE AS day, hour(max(DAY)) AS h FROM retail",
        "SELECT 7 / 2 AS a, 7 // 2 AS b, 1.10 * 1.1000 AS c, 12345678901234567890.12345 * 1.0001 AS d FROM retail",
        "SELECT sum(SALES) AS s, sum(SALES) AS s FROM retail WHERE SHOP IS NULL",
    ],
)
def test_answers_are_duckdbs_whatever_the_session_is_set_to(other: Any, ktk_store: Path, text: str) -> None:
    frame = kartosql.spark.sql(other, ktk_store, text)
    assert frame.sparkSession is other
    with kartosql.connect(ktk_store) as con:
        expected = con.sql(text, engine="duckdb").arrow()
    found = frame.toArrow().cast(expected.schema) if len(set(frame.columns)) == len(frame.columns) else None
    assert frame.columns == expected.schema.names
    if found is not None:
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))
    assert {name: other.conf.get(name) for name in OTHER} == OTHER


def test_a_frame_of_a_statement_reads_only_the_files_of_its_plan(spark: Any, ktk_store: Path) -> None:
    with kartosql.connect(ktk_store) as con:
        value = con.sql("SELECT min(SHOP) FROM retail.seed").rows()[0][0]
        text = "SELECT SALES FROM retail.seed WHERE SHOP = $1"
        selected = con.explain(text, [value]).files_selected
        frame = kartosql.spark.sql(spark, con, text, [value])
        assert len(set(frame.inputFiles())) == selected
        assert selected < con.explain("SELECT SALES FROM retail.seed").files_selected
        frame.createOrReplaceTempView("kept")
        assert spark.table("kept").count() == len(con.sql(text, [value]).rows())
        spark.catalog.dropTempView("kept")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("SHOW CUBES", "not-a-select"),
        ("SELECT approx_quantile(SALES, 0.5) FROM retail", "not-portable"),
        ("SELECT nosuch FROM retail", "unknown-column"),
    ],
)
def test_what_is_no_frame_is_an_error(spark: Any, ktk_store: Path, text: str, code: str) -> None:
    with pytest.raises(KartosqlError) as caught:
        kartosql.spark.sql(spark, ktk_store, text)
    assert caught.value.code == code


def test_credentials_are_in_no_plan(spark: Any, ktk_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kartosql.engines.spark import listing
    from kartosql.engines.spark.listing import Location

    where = listing.location(Store(str(ktk_store)))
    secret = Location(where.root, {"fs.s3a.bucket.b.secret.key": "HUSH"})
    monkeypatch.setattr(listing, "location", lambda _: secret)
    frame = kartosql.spark.sql(spark, ktk_store, "SELECT SALES FROM retail")
    execution = frame._jdf.queryExecution()
    explained = spark._sc._jvm.PythonSQLUtils.explainString(execution, "extended")
    assert "FileScan parquet" in explained
    assert "HUSH" not in explained + execution.toString()
    assert "HUSH" not in repr(secret)
