"""Whatever fails on executors is a named error, and leaves nothing behind."""

from __future__ import annotations

import datetime as dt
import functools
import json
import signal
import time
import uuid
from typing import Any

import pyarrow as pa
import pytest
from sameness import leftovers

import kartosql
from kartosql.errors import ExecutionError, StoreError, UsageError
from kartosql.store import Store
from kartosql.write.spark import job, task
from kartosql.write.spark.task import Address

CUBE = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
FEW = ("id AS x", "concat('p', id % 3) AS p", "'i' AS i", "0.5D AS v")


@pytest.fixture
def con(tmp_path) -> Any:
    with kartosql.connect(str(tmp_path)) as con:
        yield con


@pytest.fixture(params=["new", "existing"])
def build(request, con) -> Any:
    """A call that writes, to a store that is empty or has the cube already; it must not change what is visible."""
    if request.param == "new":
        return functools.partial(con.build_cube, CUBE)
    con.build_cube(CUBE, pa.table({"x": [-1], "p": ["p0"], "v": [0.5], "i": ["i0"]}))
    return functools.partial(con.append_to_cube, CUBE)


def refused(con: kartosql.Connection, call: Any, data: Any, code: str, match: str = ".", **options: Any) -> UsageError:
    before = con.sql("SELECT * FROM c").rows() if con.cubes() else None
    with pytest.raises(kartosql.KartosqlError, match=match) as e:
        call(data, **options)
    assert e.value.code == code
    assert not leftovers(con.store)
    after = con.sql("SELECT * FROM c").rows() if con.cubes() else None
    assert after == before
    return e.value


@pytest.mark.parametrize("repartition", [True, False, "range"])
def test_a_cell_that_occurs_twice(spark, con, build, repartition):
    rows = spark.range(0, 90, 1, 4).selectExpr(*FEW)
    rows = rows.union(rows.where("x IN (40, 41)"))
    refused(con, build, rows, "duplicate-cells", "occurs again in .*, first at p = p", repartition=repartition)


def test_the_cells_of_all_tasks_are_counted(spark, con):
    rows = spark.range(0, 90, 1, 4).selectExpr("id AS x", "concat('p', id % 3) AS p", "'i' AS i", "1 AS v")
    rows = rows.union(rows.where("x IN (40, 41)")).union(rows.where("x = 41"))
    build = functools.partial(con.build_cube, CUBE)
    refused(con, build, rows, "duplicate-cells", "again in 3 rows, first at p = p1, x = 40", repartition=False)


@pytest.mark.parametrize("repartition", [True, False, "range"])
def test_a_cell_that_goes_to_two_partitions(spark, con, repartition):
    con.build_cube(CUBE, spark.range(10).selectExpr("id AS x", "'p' AS p", "1 AS v", "'i' AS i"))
    rows = spark.sql("SELECT explode(array(1L, 2L, 3L)) AS x, 'p' AS p, 'one' AS q, 0 AS w")
    twice = rows.union(spark.sql("SELECT 2L AS x, 'p' AS p, 'two' AS q, 0 AS w"))
    extend = functools.partial(con.extend_cube, "c", partition_on={"e": ["p", "q"]}, repartition=repartition)
    refused(con, extend, {"e": twice}, "duplicate-cells", "again in 1 row, first at p = p, x = 2")
    extend({"e": rows})
    assert con.sql("SELECT count(w) FROM c").rows() == [(3,)]


@pytest.mark.parametrize("column", ["x", "p", "i"])
@pytest.mark.parametrize("repartition", [True, False])
def test_null_where_a_value_is_needed(spark, con, build, column, repartition):
    given = {"x": "id", "p": "concat('p', id % 3)", "i": "'i'", "v": "0.5D"}
    given[column] = f"if(id = 77, NULL, {given[column]})"
    rows = spark.range(0, 90, 1, 4).selectExpr(*(f"{text} AS {name}" for name, text in given.items()))
    refused(con, build, rows, "null-in-key", f"column '{column}' holds NULL\\n", repartition=repartition)


def test_types_and_columns_that_do_not_fit(spark, con):
    con.build_cube(CUBE, spark.range(9).selectExpr(*FEW))
    append = functools.partial(con.append_to_cube, "c")
    refused(con, append, spark.sql("SELECT 1L AS x, 'p' AS p, 'i' AS i, 'text' AS v"), "incompatible-schema", "'v'")
    refused(con, append, spark.sql("SELECT 1L AS x, 'p' AS p, 'i' AS i"), "incompatible-schema", "'v' is missing")
    for text, type_ in (("map('a', 1)", "map"), ("INTERVAL 1 YEAR", "interval"), ("parse_json('1')", "variant")):
        refused(con, append, spark.sql(f"SELECT 1L AS x, {text} AS v"), "invalid-data", f"'v' is {type_}")
    refused(con, append, spark.sql("SELECT 1L AS x, 2L AS x"), "invalid-data", "occurs twice")
    refused(con, append, spark.range(3).rdd, "invalid-data", "is no DataFrame")
    refused(con, append, spark.readStream.format("rate").load(), "invalid-data", "is a stream")


def test_values_are_converted_where_none_of_them_changes(spark, con):
    con.create_dataset("d", pa.table({"p": [1], "v": [0.5], "day": [dt.date(2020, 1, 1)]}), partition_on="p")

    def append(p: str, v: str, day: str = "DATE '2020-01-02'") -> None:
        con.append_to_dataset("d", spark.sql(f"SELECT {p} AS p, {v} AS v, {day} AS day, 7 AS `__index_level_0__`"))

    append("2", "3L")
    append("CAST(3 AS DECIMAL(5,1))", "CAST(0.1 AS DECIMAL(9,3))", "TIMESTAMP_NTZ '2020-01-03 00:00:00'")
    expected = [(1, 0.5, dt.date(2020, 1, 1)), (2, 3.0, dt.date(2020, 1, 2)), (3, 0.1, dt.date(2020, 1, 3))]
    assert sorted(con.sql("SELECT p, v, day FROM d").rows()) == expected
    for row, code in {
        ("2", "9007199254740993L"): "invalid-data",
        ("CAST(2.5 AS DECIMAL(5,1))", "3L"): "invalid-data",
        ("2", "3L", "TIMESTAMP_NTZ '2020-01-03 23:59:59'"): "invalid-data",
        ("2", "3L", "TIMESTAMP_LTZ '2020-01-03 00:00:00'"): "incompatible-schema",
        ("2", "3L", "'2020-01-03'"): "incompatible-schema",
    }.items():
        with pytest.raises(UsageError) as e:
            append(*row)
        assert e.value.code == code, row
    assert not leftovers(con.store)
    assert sorted(con.sql("SELECT p, v, day FROM d").rows()) == expected


@pytest.mark.parametrize(("what", "code"), [("rows_per_file", 0), ("rows_per_file", True), ("repartition", "hash")])
def test_options_that_are_none(spark, con, what, code):
    build = functools.partial(con.build_cube, CUBE)
    refused(con, build, spark.range(1), "invalid-argument", what, **{what: code})


@pytest.mark.parametrize("dimension", ["id", "id + 0.5D", "string(id)"])
def test_a_cell_that_occurs_twice_in_a_dataset_without_partitions(spark, con, dimension):
    seed = spark.range(90).selectExpr(f"{dimension} AS x", "'p' AS p", "1 AS v", "'i' AS i")
    con.build_cube(kartosql.Cube("c", ["x"], ["p"], suppress_index_on=["x"]), seed)
    rows = spark.range(0, 90, 1, 4).selectExpr(f"{dimension} AS x", "id AS w")
    extend = functools.partial(con.extend_cube, "c", partition_on={"e": []})
    twice = rows.union(rows.where("w = 60").selectExpr("x", "-w AS w"))
    refused(con, extend, {"e": twice}, "duplicate-cells", "again in 1 row, first at x = 60")
    extend({"e": rows})
    assert con.sql("SELECT count(*), count(w) FROM c").rows() == [(90, 90)]


def test_both_zeros_are_one_partition(spark, con):
    cube = kartosql.Cube("c", ["x"], ["p"], suppress_index_on=["x"])
    rows = spark.sql("SELECT explode(array(1, 2)) AS x, 0.0D AS p, 1 AS v")
    other = spark.sql("SELECT explode(array(2, 3)) AS x, -0.0D AS p, 1 AS v")
    for repartition in (True, "range", False):
        build = functools.partial(con.build_cube, cube, repartition=repartition)
        refused(con, build, rows.union(other), "duplicate-cells", "again in 1 row, first at p = -?0.0, x = 2")


def test_an_interrupt_stops_the_job(spark, con, tmp_path):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    slow = spark.range(0, 10**12, 1, 2).selectExpr(
        "id AS x", "concat('p', id % 3) AS p", "'i' AS i", "sha2(string(id), 512) AS v"
    )
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 3)
        with pytest.raises(KeyboardInterrupt):
            con.build_cube(CUBE, slow, repartition=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    started = time.monotonic()
    while spark.sparkContext.statusTracker().getActiveJobsIds() and time.monotonic() < started + 120:
        time.sleep(0.1)
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert con.cubes() == {}


def test_a_driver_without_pandas_is_told_what_to_install():
    with pytest.raises(UsageError, match="lacks a package: pandas") as e, job.spark_errors():
        raise ImportError("pandas >= 2.2.0 must be installed")
    assert e.value.code == "missing-extra"


def test_a_store_in_memory_is_not_shared(spark):
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as con:
        build = functools.partial(con.build_cube, CUBE)
        refused(con, build, spark.range(9).selectExpr(*FEW), "store-unreachable")


def test_executors_that_see_another_folder(spark, con, tmp_path, monkeypatch):
    """A local folder of another machine is there as well, and is another one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(job, "address_of", lambda _: Address(str(elsewhere), {}))
    build = functools.partial(con.build_cube, CUBE)
    rows = spark.range(9).selectExpr(*FEW)
    error = refused(con, build, rows, "store-unreachable", "do not see what the driver writes")
    assert isinstance(error, StoreError)
    assert not list(elsewhere.rglob("*.parquet"))


def test_a_query_that_fails(spark, con, build):
    rows = spark.range(0, 90, 1, 4).selectExpr(*FEW[:3], "0.5D / (id - 77) AS v")
    error = refused(con, build, rows, "spark-job-failed", "DIVIDE_BY_ZERO")
    assert isinstance(error, ExecutionError)


def test_a_name_that_no_file_can_have(spark, con, build):
    rows = spark.range(3).selectExpr("id AS x", "repeat('long', 100) AS p", "'i' AS i", "0.5D AS v")
    refused(con, build, rows, "invalid-data", "gives no usable file name")


def test_secrets_are_in_no_text(tmp_path):
    address = Address("s3://bucket", {"secret": "hunter2"})
    assert "hunter2" not in repr(address) + str(address)
    assert "hunter2" not in repr(Store(str(tmp_path)))


def test_errors_travel_as_they_are():
    error = UsageError("No.", code="null-in-key", hint="Fill it in.")
    found = task.as_error(task.as_dict(error))
    assert type(found) is UsageError
    assert found.to_dict() == error.to_dict()
    error = StoreError("It {was} not reached.")
    with pytest.raises(StoreError, match="not reached") as e, job.spark_errors():
        raise RuntimeError(f"Job aborted\nStoreFailed: {task.MARK}{json.dumps(task.as_dict(error))}\n  at line 3")
    assert e.value.to_dict() == error.to_dict()
