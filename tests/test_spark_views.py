from __future__ import annotations

import shutil
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
    assert not [t.name for t in spark.catalog.listTables()]


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
