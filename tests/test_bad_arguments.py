"""Every public call with arguments of wrong types: our own errors come out, and nothing else."""

from __future__ import annotations

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


class Odd:
    """An object whose text form fails, too."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


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
    "an object without a repr": Odd(),
    "a class": dict,
    "a function": print,
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
SKIPPED = {"close", "interrupt", "detach_all"}


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
        named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
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
