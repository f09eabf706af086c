from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from builders import WRITE_ID, parquet, write_dataset
from kartosql.engines.spark import engine
from kartosql.engines.spark import session as sessions
from kartosql.errors import UsageError
from kartosql.parquet import bytes_of_columns
from kartosql.store import Store

COUNT = "SELECT SHOP, count(*) AS n FROM retail GROUP BY SHOP ORDER BY SHOP"


def test_little_work_starts_nothing(ktk_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("nobody asked for Spark")

    monkeypatch.setattr(engine, "check_reach", never)
    monkeypatch.setattr(engine, "session", never)
    with kartosql.connect(ktk_store) as con:
        query = con.sql(COUNT)
        query.arrow()
        assert query.stats is not None
        assert query.stats["engine"] == "duckdb"


def test_above_the_threshold_spark_runs_what_it_answers_alike(spark: Any, ktk_store: Path) -> None:
    with kartosql.connect(ktk_store, spark_threshold=1) as con:
        query = con.sql(COUNT)
        report = query.report.to_dict()  # type: ignore[attr-defined]
        assert report["engine"] == "spark"
        assert "spark_threshold (1 B)" in report["engine_reason"]
        assert query.rows() == con.sql(COUNT, engine="duckdb").rows()
        assert query.stats is not None
        assert query.stats["engine"] == "spark"


def test_statements_of_the_clock_are_routed_as_well(spark: Any, ktk_store: Path) -> None:
    with kartosql.connect(ktk_store, spark_threshold=1) as con:
        query = con.sql("SELECT SHOP, now() > TIMESTAMPTZ '2001-01-01' AS late FROM retail GROUP BY ALL")
        assert {row[1] for row in query.rows()} == {True}
        assert query.stats is not None
        assert query.stats["engine"] == "spark"


def test_what_spark_would_answer_differently_is_duckdbs(spark: Any, ktk_store: Path) -> None:
    text = "SELECT SHOP, approx_quantile(SALES, 0.5) FROM retail GROUP BY SHOP"
    with kartosql.connect(ktk_store, spark_threshold=1) as con:
        query = con.sql(text)
        report = query.report.to_dict()  # type: ignore[attr-defined]
        assert (report["engine"], "Spark does not run it" in report["engine_reason"]) == ("duckdb", True)
        assert query.rows()


def test_what_fails_on_spark_alone_is_run_by_duckdb(spark: Any, local: Store) -> None:
    write_dataset(local, "t", {"t": pa.timestamp("ns")}, [""])
    local.put(f"t/table/{WRITE_ID}.parquet", parquet({"t": pa.array([1001], pa.timestamp("ns"))}))
    with kartosql.connect(local.root, spark_threshold=1) as con:
        query = con.sql("SELECT max(t) AS t FROM t")
        assert query.arrow()["t"].cast(pa.int64()).to_pylist() == [1001]
        assert query.stats is not None
        assert query.stats["engine"] == "duckdb"


def test_without_java_it_is_duckdb_and_the_report_says_why(ktk_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "is_running", lambda: False)
    monkeypatch.setattr(sessions, "_java_checked", sessions.check_java)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with kartosql.connect(ktk_store, spark_threshold=1) as con:
        report = con.explain("SELECT SHOP FROM retail").to_dict()
        assert report["engine"] == "duckdb"
        assert report["engine_reason"].endswith("but Spark needs Java 17 or later, and there is none.")


def test_a_session_that_does_not_start_leaves_it_to_duckdb(
    spark: Any, ktk_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise UsageError("no luck", code="missing-java", hint="none")

    monkeypatch.setattr(engine, "session", broken)
    with kartosql.connect(ktk_store, spark_threshold=1) as con:
        query = con.sql(COUNT)
        assert query.rows() == con.sql(COUNT, engine="duckdb").rows()
        assert query.stats is not None
        assert query.stats["engine"] == "duckdb"
        with pytest.raises(UsageError, match="no luck"):
            con.sql(COUNT, engine="spark").rows()


def test_stores_in_memory_are_duckdbs() -> None:
    store = Store("memory://routing")
    write_dataset(store, "t", {"x": pa.int64()}, [""])
    store.put(f"t/table/{WRITE_ID}.parquet", parquet({"x": [1, 2]}))
    with kartosql.connect("memory://routing", spark_threshold=1) as con:
        report = con.explain("SELECT x FROM t").to_dict()
        assert report["engine"] == "duckdb"
        assert "Spark cannot read the store" in report["engine_reason"]


def test_files_without_footers_are_routed_by_their_size(spark: Any, local: Store, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.csv").write_text("x,y\n1,2\n3,4\n")
    with kartosql.connect(local.root, spark_threshold=1) as con:
        con.attach(str(tmp_path / "more"), "more", type="csv")
        query = con.sql("SELECT sum(x) AS s FROM more")
        report = query.report.to_dict()  # type: ignore[attr-defined]
        assert (report["engine"], "Spark does not run it" in report["engine_reason"]) == ("duckdb", True)
        assert query.rows() == [(4,)]


def test_bytes_of_columns_are_those_of_the_footers(local: Store) -> None:
    data = parquet({"a": list(range(1000)), "b": ["text"] * 1000, "c": [{"d": i, "e": 1} for i in range(1000)]})
    local.put("t/table/x.parquet", data)
    import pyarrow.parquet as pq

    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    sizes = {group.column(i).path_in_schema: group.column(i).total_compressed_size for i in range(group.num_columns)}
    file = ("t/table/x.parquet", len(data))
    assert bytes_of_columns(local, [file], frozenset({"a"}), 10**9) == sizes["a"]
    assert bytes_of_columns(local, [file, file], frozenset({"c", "z"}), 10**9) == 2 * (sizes["c.d"] + sizes["c.e"])
    assert bytes_of_columns(local, [file], None, 0) == len(data)
