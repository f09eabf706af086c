"""The original's answers, over the stores that the original wrote.

Of ``read_table`` only the cases with a statement are asked: SQL is the way to read a plain
dataset, so calls that the original refuses (malformed predicates) have no counterpart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import golden
import kartosql
from kartosql.errors import KartosqlError

CASES = "kartothek/cases.json"
SQL_CASES = "kartothek/cases_sql.json"

# What the original's documented defects hide: false partition values, and values with a slash.
RIGHT_ROWS = {
    "quirk-bool-001": [[True, 1, 0], [False, 2, 1], [False, 3, 2]],
    "quirk-bool-002": [[False, 2, 1], [False, 3, 2]],
    "quirk-slash-001": [["a/b", 1, 0], ["c/d/e", 2, 1], ["f", 3, 2]],
    "quirk-slash-002": [["a/b", 1, 0]],
    "quirk-slash-003": [],
}
ERROR_CODES = {
    "unknown column": "unknown-column",
    "unknown table": "unknown-table",
    "syntax": "syntax-error",
    "not grouped": "not-grouped",
}
TYPES = {"date32": pa.date32(), "list<int64>": pa.list_(pa.int64()), "list<string>": pa.list_(pa.string())}

Connect = Callable[[str], Any]


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """Return the connection to a store of the golden data, opened once."""
    opened: dict[str, Any] = {}

    def get(store: str) -> Any:
        if store not in opened:
            opened[store] = kartosql.connect(str(golden.find(f"kartothek/{store}")), read_only=True)
        return opened[store]

    yield get
    for connection in opened.values():
        connection.close()


def _store(case: dict[str, Any]) -> str:
    name = case.get("cube") or case.get("dataset")
    manifest = golden.load("kartothek/manifest.json")
    if name is None:  # SQL alone: a plateau dataset is named or not
        plateau = [d["name"] for d in manifest["datasets"] if d["store"] == "plateau_store"]
        return "plateau_store" if any(f'"{d}"' in case["sql"] for d in plateau) else "ktk_store"
    return next(e["store"] for e in manifest["cubes"] + manifest["datasets"] if e["name"] == name)


# -- query_cube ------------------------------------------------------------------------------


def _as_tuple(condition: dict[str, Any]) -> Any:
    # An interval has no operator of its own in the tuple form.
    if condition["op"] == "interval":
        return _as_object(condition)
    return condition["column"], condition["op"], golden.decode(condition["value"])


def _as_object(condition: dict[str, Any]) -> Any:
    column, op = kartosql.C(condition["column"]), condition["op"]
    if op == "interval":
        return column.in_interval(golden.decode(condition["start"]), golden.decode(condition["stop"]))
    value = golden.decode(condition["value"])
    if op == "in":
        return column.isin(value)
    return {
        "==": column.__eq__, "!=": column.__ne__, "<": column.__lt__,
        "<=": column.__le__, ">": column.__gt__, ">=": column.__ge__,
    }[op](value)  # fmt: skip


def _query(connect: Connect, case: dict[str, Any], form: Callable[[dict[str, Any]], Any]) -> list[Any]:
    """Return the results of a case, one per group, or one alone without partition_by."""
    args = {k: v for k, v in case["args"].items() if v is not None}
    args["conditions"] = [form(condition) for condition in args.get("conditions", ())]
    if not args["conditions"]:
        del args["conditions"]
    found = connect(_store(case)).query_cube(case["cube"], **args)
    return found if case["args"]["partition_by"] else [found]


def _what(case: dict[str, Any]) -> str:
    return f"query_cube({case['cube']!r}, {case['args']})"


def _check_query_cube(connect: Connect, case: dict[str, Any], form: Callable[[dict[str, Any]], Any]) -> None:
    if "error" in case:
        with pytest.raises(KartosqlError) as e:
            [result.rows() for result in _query(connect, case, form)]
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", e.value.code), e.value.code
        return
    results = _query(connect, case, form)
    groups = [result.rows() for result in results]
    expected = RIGHT_ROWS.get(case["id"], case.get("sql_rows", case["expected"]["rows"]))
    rows = [row for group in groups for row in group]
    golden.check_rows(case["id"], _what(case), expected, rows, ordered="sql_rows" not in case)
    assert [len(group) for group in groups] == case["expected"].get("groups", [len(rows)])
    for result in results:
        assert result.columns == case["expected"]["columns"]


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: c["kind"] == "query_cube"))
def test_query_cube_gives_the_originals_answer(case, connect):
    _check_query_cube(connect, case, _as_tuple)


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: c["args"].get("conditions")))
def test_query_cube_takes_condition_objects(case, connect):
    _check_query_cube(connect, case, _as_object)


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: "plan" in c and "expected" in c))
def test_query_cube_selects_no_more_files_than_the_original(case, connect):
    for result in _query(connect, case, _as_tuple):
        _check_files(case, _what(case), result.report.to_dict())


# -- SQL -------------------------------------------------------------------------------------


def _has_sql(case: dict[str, Any]) -> bool:
    return bool(case["sql"]) and "expected" in case


@pytest.mark.parametrize("case", golden.params(CASES, _has_sql))
def test_sql_gives_the_rows_of_the_call(case, connect):
    query = connect(_store(case)).sql(case["sql"])
    expected = case["expected"]["rows"] if case.get("sql_agrees") is not False else case["sql_rows"]
    golden.check_rows(case["id"], case["sql"], expected, query.rows(), ordered="ORDER BY" in case["sql"])
    assert query.columns == case["expected"]["columns"]


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: "sql_exact" in c))
def test_sql_can_say_what_the_original_means(case, connect):
    rows = connect(_store(case)).sql(case["sql_exact"]).rows()
    golden.check_rows(case["id"], case["sql_exact"], case["expected"]["rows"], rows, ordered=False)


def _arrow_type(name: str) -> pa.DataType:
    decimal = re.fullmatch(r"decimal128\((\d+), (\d+)\)", name)
    zoned = re.fullmatch(r"timestamp\[us, tz=(.+)\]", name)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if zoned:
        return pa.timestamp("us", zoned[1])
    return TYPES.get(name) or pa.type_for_alias(name)


@pytest.mark.parametrize("case", golden.params(CASES, _has_sql))
def test_columns_have_the_types_of_the_schema_file(case, connect):
    schema = connect(_store(case)).sql(case["sql"]).arrow().schema
    wrong = [
        f"{field.name}: {name} expected, {field.type} given"
        for field, name in zip(schema, case["expected"]["types"], strict=True)
        if name != "null" and not _same_type(field.type, _arrow_type(name))
    ]
    assert not wrong, f"{case['id']}: {case['sql']}"


def _same_type(given: pa.DataType, expected: pa.DataType) -> bool:
    # The name of a list's child and the zone in which moments are shown say nothing about the values.
    if pa.types.is_list(given) and pa.types.is_list(expected):
        return _same_type(given.value_type, expected.value_type)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(expected):
        return given.unit == expected.unit and (given.tz is None) == (expected.tz is None)
    return given.equals(expected)


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: "plan" in c and _has_sql(c)))
def test_sql_selects_no_more_files_than_the_original(case, connect):
    report = connect(_store(case)).explain(case["sql"]).to_dict()
    _check_files(case, case["sql"], report)


def _check_files(case: dict[str, Any], what: str, report: dict[str, Any]) -> None:
    """Fail where a scan reads more files of a dataset than the original selected for the case."""
    if case["id"] in RIGHT_ROWS:
        return  # the original selected files by the value it misread
    allowed = case["plan"]["files"]
    assert report["scans"] or not any(allowed.values()), f"{case['id']}: {what}: no scan in the report"
    for scan in report["scans"]:
        assert scan["cube"] == case["cube"]
        for entry in scan["datasets"]:
            assert entry["files_selected"] == len(entry["files"]) <= entry["files_total"]
            counts = [entry["files_total"], *(n for s in entry["steps"] for n in (s["files_before"], s["files_after"]))]
            assert counts == sorted(counts, reverse=True), entry["steps"]
            assert counts[-1] == entry["files_selected"], entry["steps"]
            most = len(allowed.get(entry["dataset"], ()))
            if entry["files_selected"] > most:
                pytest.fail(
                    f"{case['id']}: {what}\n{entry['dataset']}: the original selected {most} files, "
                    f"the scan {entry['files_selected']}\nsteps: {entry['steps']}",
                    pytrace=False,
                )


@pytest.mark.parametrize("case", golden.params(SQL_CASES, lambda c: "expected" in c))
def test_sql_only_cases(case, connect):
    query = connect(_store(case)).sql(case["sql"])
    expected = case["expected"]
    golden.check_rows(case["id"], case["sql"], expected["rows"], query.rows(), ordered=expected["ordered"])
    assert query.columns == expected["columns"]


@pytest.mark.parametrize("case", golden.params(SQL_CASES, lambda c: "error" in c))
def test_sql_that_must_be_rejected(case, connect):
    with pytest.raises(KartosqlError) as e:
        connect(_store(case)).sql(case["sql"]).rows()
    assert e.value.code == ERROR_CODES[case["error"]["kind"]]
