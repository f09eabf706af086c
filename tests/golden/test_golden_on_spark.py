"""The golden cases on Spark: the same rows, names and types; of the nasty ones, some are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import test_kartothek as kartothek
import test_sql as nasty

import golden
import kartosql
from kartosql.errors import KartosqlError, NotPortable

# What Spark has nothing for, or would answer differently.
REFUSED = {
    *("positional", "row_value_not_in_null", "collate_nocase", "tz_dst_gap"),
    *("asof", "asof_idx"),  # several rows are as near as each other
}

# Of that many calls one is made on Spark, as each is a job; 1 asks all.
SHARE = int(os.environ.get("KARTOSQL_SPARK_SHARE", 12 if os.environ.get("CI") else 24))


def _some(path: str, condition: Callable[[dict[str, Any]], bool]) -> list[Any]:
    return list(golden.params(path, condition))[::SHARE]


@pytest.fixture(scope="module")
def connect(spark) -> Iterator[Any]:
    """Return the connection to a store, or with the store and settings of a case."""
    opened: dict[str, Any] = {}

    def get(store: Any) -> Any:
        settings: dict[str, Any] = {} if isinstance(store, str) else store.get("settings", {})
        path = f"kartothek/{store}" if isinstance(store, str) else f"sql/{store['setup']}"
        name = f"{path} {settings}"
        if name not in opened:
            url = str(golden.find(path))
            opened[name] = kartosql.connect(url, read_only=True, engine="spark", **settings)
        return opened[name]

    yield get
    for connection in opened.values():
        connection.close()


@pytest.mark.parametrize("case", _some(kartothek.CASES, lambda c: c["kind"] == "query_cube"))
def test_query_cube_gives_the_originals_answer_on_spark(case, connect):
    kartothek._check_query_cube(connect, case, kartothek._as_tuple)


@pytest.mark.parametrize("case", golden.params(kartothek.SQL_CASES, lambda c: "expected" in c))
def test_sql_gives_the_same_rows_on_spark(case, connect):
    query = connect(kartothek._store(case)).sql(case["sql"])
    expected = case["expected"]
    golden.check_rows(case["id"], case["sql"], expected["rows"], query.rows(), ordered=expected["ordered"])
    assert query.columns == expected["columns"]
    assert query.stats["engine"] == query.report.to_dict()["engine"] == "spark"


@pytest.mark.parametrize("case", _some(kartothek.CASES, lambda c: kartothek._has_sql(c) and c["kind"] != "query_cube"))
def test_columns_have_the_types_of_the_schema_file_on_spark(case, connect):
    kartothek.test_columns_have_the_types_of_the_schema_file(case, connect)


@pytest.mark.parametrize("case", golden.params(nasty.CASES, lambda c: "expect_error" not in c))
def test_nasty_statements_have_the_same_rows_on_spark_or_are_refused(case, connect):
    query = connect(case).sql(case["query"], parameters=case.get("params"))
    if case["id"] in REFUSED:
        with pytest.raises(NotPortable):
            query.rows()
        return
    ordered = case.get("ordered", False)
    golden.check_rows(case["id"], nasty._what(case), case["expect_rows"], query.rows(), ordered=ordered)


@pytest.mark.parametrize("case", golden.params(nasty.CASES, lambda c: "expect_error" in c and "expect_rows" not in c))
def test_nasty_statements_that_must_fail_do_on_spark(case, connect):
    with pytest.raises(KartosqlError):
        connect(case).sql(case["query"], parameters=case.get("params")).rows()
