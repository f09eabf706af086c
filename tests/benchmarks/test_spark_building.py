"""The figures of building on Spark, on few rows: what they say is not looked at, only that they are measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import spark_building


@pytest.fixture
def rows(spark) -> Any:
    columns = ["id AS l_orderkey", "id % 7 AS l_linenumber", "id % 50 AS l_partkey", "id % 3 AS l_suppkey"]
    return spark.range(600).selectExpr("concat('m', id % 4) AS l_shipmonth", *columns)


def test_all_ways_are_timed(rows, tmp_path):
    for figure, kind in zip(spark_building.throughput(rows, str(tmp_path), 1), ("plain", "sorted"), strict=True):
        assert "600 rows" in figure.name
        assert figure.measured.endswith(" x")
        assert len(list((tmp_path / kind).rglob("*.parquet"))) == 4


def test_what_the_driver_holds_is_watched(rows, tmp_path):
    figure = spark_building.memory(rows, str(tmp_path))
    assert figure.measured.endswith(" MB")


def test_the_peak_is_that_of_the_work():
    def hold() -> None:
        data = b"x" * 400_000_000
        time.sleep(0.5)
        assert data

    assert spark_building.peak_of(hold) >= 400


def test_cpu_time_is_that_of_processes_below_as_well():
    before = spark_building.cpu_seconds()
    child = os.fork()
    if not child:
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    assert spark_building.cpu_seconds() - before >= 0.4
    assert Path("/proc/self/stat").exists()
