"""Statements whose pruning is easily wrong, over small stores with nasty values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import golden
import kartosql
from kartosql.errors import KartosqlError

CASES = "sql/cases.json"

Connect = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """Return the connection with a case's store and settings, opened once."""
    opened: dict[str, Any] = {}

    def get(case: dict[str, Any]) -> Any:
        settings = case.get("settings", {})
        name = f"{case['setup']} {settings}"
        if name not in opened:
            url = str(golden.find(f"sql/{case['setup']}"))
            opened[name] = kartosql.connect(url, read_only=True, **settings)
        return opened[name]

    yield get
    for connection in opened.values():
        connection.close()


def _what(case: dict[str, Any]) -> str:
    return f"{case['query']} {case.get('params', '')}\nwhy: {case['why']}"


def _expected(case: dict[str, Any], connection: Any) -> list[Any]:
    """Return the rows of a case; of an ASOF join, which takes any of equal rows, by those taken without WHERE."""
    if " asof join " not in case["query"]:
        return list(case["expect_rows"])
    select, where = case["query"].split(" where ")
    rows = connection.sql(select.replace(" from ", f", {where} from ", 1)).rows()
    return [list(row[:-1]) for row in rows if row[-1]]


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: "expect_error" not in c))
def test_rows_are_those_of_the_unpruned_tables(case, connect):
    expected, query = _expected(case, connect(case)), connect(case).sql(case["query"], parameters=case.get("params"))
    golden.check_rows(case["id"], _what(case), expected, query.rows(), ordered=case.get("ordered", False))


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: "expect_error" in c and "expect_rows" not in c))
def test_statements_that_must_fail_do(case, connect):
    with pytest.raises(KartosqlError):
        connect(case).sql(case["query"], parameters=case.get("params")).rows()


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: "expect_error" in c and "expect_rows" in c))
def test_only_the_query_itself_may_fail(case, connect):
    """The engine may see through an overflow or raise it; the planner must do neither."""
    query = connect(case).sql(case["query"])
    query.explain()
    try:
        rows = query.rows()
    except KartosqlError as e:
        given = e.code
    else:
        given = "rows" if rows == [tuple(row) for row in case["expect_rows"]] else repr(rows)
    assert given in ("query-failed", "rows"), _what(case)


def _files(report: dict[str, Any], table: str) -> set[str]:
    entries = [entry for scan in report["scans"] for entry in scan["datasets"]]
    return {key for entry in entries for key in entry["files"] if key.startswith(f"{table}/")}


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: "max_files" in c))
def test_no_more_files_are_selected_than_a_good_planner_opens(case, connect):
    report = connect(case).explain(case["query"], parameters=case.get("params")).to_dict()
    selected = {table: len(_files(report, table)) for table in case["max_files"]}
    too_many = {table: n for table, n in selected.items() if n > case["max_files"][table]}
    assert not too_many, f"{_what(case)}\nallowed {case['max_files']}, conditions " + str(
        [scan["conditions"] for scan in report["scans"]]
    )


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: "must_keep_all" in c))
def test_tables_that_must_not_be_pruned_are_kept_whole(case, connect):
    report = connect(case).explain(case["query"], parameters=case.get("params")).to_dict()
    for table in case["must_keep_all"]:
        folder = golden.find(f"sql/{case['setup']}/{table}/table")
        everything = {p.relative_to(folder.parents[1]).as_posix() for p in folder.rglob("*.parquet")}
        assert _files(report, table) == everything, _what(case)
