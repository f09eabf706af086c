"""Every public call with arguments of wrong types: our own errors come out, and nothing else."""

from __future__ import annotations

import asyncio
import inspect
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql import dbapi
from kartosql.errors import KartosqlError, KartosqlWarning

BAD: dict[str, Any] = {
    "None": None,
    "true": True,
    "an integer": 5,
    "a negative integer": -1,
    "a huge integer": 10**5000,
    "nan": float("nan"),
    "bytes": b"d",
    "half of a pair": "\ud800",
    "a text": "d",
    "NUL": "a\0b",
    "no text": "",
    "a long text": "x" * 70_000,
    "a path out": "../../etc",
    "a list": ["d"],
    "a list of a list": [["p"]],
    "a list of odd things": [None, 1, b"x", "\ud800"],
    "a condition that is odd": [("p", ["=="], "a")],
    "a condition of three odd things": [(None, None, None)],
    "a condition with a huge number": [("p", "==", 10**5000)],
    "a condition that is unhashable": [(["p"], "==", "a")],
    "a condition over half of a pair": [("p", "==", "\ud800")],
    "a condition in a dictionary": [{"p": 1}],
    "a tuple": ("p", "==", "a"),
    "a map": {"d": 1},
    "a map of odd things": {None: b"x", 1: []},
    "a map of a list": {"seed": [["x"]]},
    "a set": {"p"},
    "an object": object(),
    "a class": type,
    "a function": id,
    "a generator": "generator",
    "complex": 1j,
}
CUBE = kartosql.Cube("c", ["x"], ["p"])
# What is right, so that one argument is wrong at a time.
GOOD: dict[str, Any] = {
    "text": "SELECT * FROM d",
    "sql": "SELECT * FROM d",
    "name": "d",
    "uuid": "d",
    "table": "d",
    "cube": "c",
    "columns": ["k"],
    "conditions": None,
    "url": "nowhere",
    "target": "target",
    "path": "out.csv",
}
DATA = {"p": ["a", "b"], "k": [1, 2], "x": [1, 2]}
# Of the inside, which underscores do not tell yet.
INSIDE = {"answer_over", "learn_sizes", "spark_frame", "summary"}
SKIPPED = {"close", "interrupt"} | INSIDE


def value_of(kind: str) -> Any:
    return iter([1, object()]) if kind == "a generator" else BAD[kind]


def good(name: str, parameter: str, place: Any) -> Any:
    if parameter == "data":
        return {"seed": pa.table(DATA)} if "cube" in name else pa.table(DATA)
    if parameter == "cube" and name == "build_cube":
        return CUBE
    if parameter in ("target", "path"):
        return str(place / "out" / parameter)
    if parameter == "url":
        return str(place)
    return GOOD.get(parameter)


def calls_of(thing: Any) -> Iterator[tuple[str, Callable[..., Any], list[inspect.Parameter]]]:
    for name, call in inspect.getmembers(thing, callable):
        if name.startswith("_") or name in SKIPPED or inspect.isclass(call):
            continue
        try:
            parameters = list(inspect.signature(call).parameters.values())
        except (TypeError, ValueError):
            continue
        # Whatever is true in the place of a session of Spark asks for the one that is active, or starts one.
        named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name != "spark"]
        if named:
            yield name, call, named


def arguments(
    name: str, parameters: list[inspect.Parameter], wrong: str, value: Any, place: Any
) -> tuple[list[Any], dict[str, Any]]:
    given: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name == wrong:
            found = value
        elif parameter.default is inspect.Parameter.empty:
            found = good(name, parameter.name, place)
        else:
            continue
        if parameter.kind == inspect.Parameter.KEYWORD_ONLY or len(given) < parameters.index(parameter):
            named[parameter.name] = found
        else:
            given.append(found)
    return given, named


def survive(call: Callable[[], Any], what: tuple[str, ...], foreign: list[str]) -> None:
    try:
        found = call()
        if inspect.iscoroutine(found):
            found = asyncio.run(found)
        if isinstance(found, kartosql.Query):
            found.rows()
    except KartosqlError as e:
        json.dumps([e.to_dict(), str(e), repr(e), e.code]).encode()
    except dbapi.Error:
        pass
    except Exception as e:  # noqa: BLE001
        foreign.append(f"{'.'.join(what)}: {type(e).__name__}: {str(e)[:120]}")


@pytest.fixture
def connection(tmp_path, monkeypatch) -> Iterator[kartosql.Connection]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def restore(con: kartosql.Connection) -> None:
    con.create_dataset("d", pa.table(DATA), partition_on=["p"], index_columns=["k"], overwrite=True)
    con.build_cube(CUBE, {"seed": pa.table({"x": [1], "p": ["a"], "v": [1]})}, overwrite=True)


def test_no_wrong_argument_of_a_connection_lets_a_foreign_error_out(connection, tmp_path):
    foreign: list[str] = []
    warnings.simplefilter("ignore", KartosqlWarning)
    restore(connection)
    for name, call, parameters in calls_of(connection):
        for parameter in parameters:
            for kind in BAD:
                given, named = arguments(name, parameters, parameter.name, value_of(kind), tmp_path)
                survive(lambda c=call, g=given, n=named: c(*g, **n), (name, parameter.name, kind), foreign)
                if not {"d", "c++seed"} <= set(connection.datasets()):
                    restore(connection)
    assert not foreign, "\n" + "\n".join(foreign)


def test_no_wrong_argument_of_anything_else_lets_a_foreign_error_out(connection, tmp_path):
    """Of what the package exports, of results, of cursors, and of conditions."""
    restore(connection)
    foreign: list[str] = []
    store = str(tmp_path / "store")

    def with_one(name: str, call: Callable[..., Any], given: dict[str, Any], names: list[str]) -> None:
        for parameter in names:
            for kind in BAD:
                wrong = {**given, parameter: value_of(kind)}
                survive(lambda w=wrong: call(**w), (name, parameter, kind), foreign)

    settings = [
        "engine",
        "read_only",
        "storage_options",
        "attach",
        "timeout",
        "TimeZone",
        "memory_limit",
        "single_writer",
    ]
    with_one("connect", kartosql.connect, {"url": store}, ["url", *settings])
    with_one("dbapi.connect", dbapi.connect, {"url": store}, ["url", *settings])
    cube = {"uuid_prefix": "c", "dimension_columns": ["x"], "partition_columns": ["p"], "seed_dataset": "s"}
    with_one("Cube", kartosql.Cube, cube, [*cube, "index_columns", "suppress_index_on"])
    query = connection.sql("SELECT * FROM d")
    for thing in (query, query.stats, connection.explain("SELECT * FROM d"), connection.cubes()["c"]):
        for name, call, parameters in calls_of(thing):
            given = {p.name: good(name, p.name, tmp_path) for p in parameters if p.default is p.empty}
            with_one(f"{type(thing).__name__}.{name}", call, given, [p.name for p in parameters])
    column = kartosql.C("p")
    for kind in BAD:
        value = value_of(kind)
        survive(lambda v=value: kartosql.C(v) == 1, ("C", kind), foreign)
        survive(lambda v=value: kartosql.Condition(v, v, v), ("Condition", kind), foreign)
        for op in ("==", "!=", "<", ">=", "in", "interval", value):
            survive(
                lambda o=op, v=value: connection.query_cube("c", conditions=[("p", o, v)]),
                ("query_cube", kind),
                foreign,
            )
        survive(lambda v=value: connection.query_cube("c", conditions=column == v), ("C ==", kind), foreign)
        with dbapi.connect(store) as db, db.cursor() as cursor:
            survive(lambda c=cursor, v=value: c.execute(v), ("execute", kind), foreign)
            survive(lambda c=cursor, v=value: c.execute("SELECT ?", v), ("parameters", kind), foreign)
            survive(lambda c=cursor, v=value: c.execute("SELECT ?", [v]), ("a parameter", kind), foreign)
            survive(lambda c=cursor, v=value: c.executemany("SELECT ?", v), ("executemany", kind), foreign)
    assert not foreign, "\n" + "\n".join(foreign)


NUMBERS = (
    "9" * 5000,
    "-" + "9" * 400,
    "1e9",
    "-1e3",
    "1e400",
    "1e",
    ".5",
    "5.",
    "0x1F",
    "1_000",
    "\u0661",
    "- 5",
    "+5",
)
TEXTS = (
    "''",
    "'\ud800'",
    "'a\0b'",
    "'" + "9" * 5000 + "'",
    "'nan'",
    "NULL",
    "DEFAULT",
    "TRUE",
    "x",
    '"x"',
    "(1)",
    "[1]",
    "{'a': 1}",
    "",
)
FORMS = (
    "SET timeout = {}",
    "SET max_bytes = {}",
    "SET write_memory = {}",
    "SET threads = {}",
    "SET TimeZone = {}",
    "SET memory_limit = {}",
    "SET TIME ZONE {}",
    "DESCRIBE d VERSION {}",
    "DESCRIBE d AS OF {}",
    "ATTACH '.' AS t (TYPE csv, SKIP {})",
    "ATTACH '.' AS t (TYPE csv, TYPES {})",
    "ATTACH '.' AS t (TYPE {})",
    "ATTACH '.' AS t (TYPE parquet, HIVE_PARTITIONING {}, METADATA_KEYS {})",
    "ATTACH {} AS t (TYPE parquet)",
    "ATTACH '.' AS t (TYPE odf, AS_OF {})",
    "INSERT OVERWRITE d PARTITION (p = {}) SELECT 1 AS k, 1 AS x",
    "CREATE SKIPPING INDEX ON d (BLOOMFILTER(k) WITH (fpp = {}))",
    "CREATE SKIPPING INDEX ON d (BLOOMFILTER(k) WITH (ndv = {}))",
    "DELETE FROM d WHERE p = {}",
    "SELECT {}",
    "SELECT * FROM d WHERE k = {}",
    "SELECT * FROM d WHERE k IN ({}, {})",
    "SELECT * FROM d LIMIT {} OFFSET {}",
    "SELECT * FROM d ORDER BY {}",
    "SELECT count(*) FROM d GROUP BY {}",
    "SELECT * FROM d TABLESAMPLE {}",
    "SELECT * FROM d AS OF {}",
    "SELECT k[{}] FROM d",
    "SELECT ${}",
    "EXPLAIN SELECT * FROM d WHERE k < {}",
    "EXPLAIN WHY {} SELECT * FROM d",
    "ADVISE SELECT * FROM d WHERE k = {}",
    "COPY CUBE c TO {}",
    "EXPORT (SELECT {} AS a) TO {} (TYPE odf)",
    "ALTER DATASET d SET METADATA (a = {})",
)


def test_no_literal_anywhere_lets_a_foreign_error_out(connection):
    restore(connection)
    foreign: list[str] = []
    for form in FORMS:
        for literal in NUMBERS + TEXTS:
            text = form.replace("{}", literal)
            survive(lambda t=text: connection.sql(t), (ascii(text[:80]),), foreign)
        if "d" not in connection.datasets():
            restore(connection)
    assert not foreign, "\n" + "\n".join(foreign)


def test_numbers_of_statements_are_read_in_one_way(connection):
    connection.sql("CREATE DATASET n PARTITION BY (p) AS SELECT 1.5::DOUBLE AS p, 1 AS k")
    for text, value in (("1e3", 1000), ("1_000", 1000), ("+1000", 1000), ("1000.", 1000), ("1.0E+3", 1000)):
        assert connection.sql(f"SET max_bytes = {text}").rows()[0][1] == str(value), text
        assert connection.sql(f"SET threads = {text}").rows()[0][1] == str(value), text
        statement = f"INSERT OVERWRITE n PARTITION (p = {text}) SELECT 1 AS k"
        connection.sql(statement)
    assert connection.sql("SET timeout = .5").rows()[0][1] == "0.5"
    assert connection.sql("SELECT p FROM n ORDER BY p").rows() == [(1.5,), (1000.0,)]
    for text in ("- 5", "-1e3", "1e400", "5d", "1e", "--5", "9" * 400):
        with pytest.raises(KartosqlError):
            connection.sql(f"SET max_bytes = {text}")
