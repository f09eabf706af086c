"""The examples in docstrings of the main calls, run over a store of their own."""

from __future__ import annotations

import doctest
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql import Connection, Cube, Query

MAIN = [
    *(kartosql.connect, Connection.sql, Connection.explain, Connection.query_cube, Connection.coverage),
    *(Connection.register, Connection.attach, Connection.build_cube, Connection.extend_cube, Connection.append_to_cube),
    *(Connection.create_dataset, Connection.append_to_dataset, Connection.create_index, Connection.history),
    *(Query.arrow, Query.rows, Query.write, Cube),
]


@pytest.fixture
def con(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("files", "store"):
        os.mkdir(folder)
    pq.write_table(pa.table({"x": [1]}), "files/a.parquet")
    with kartosql.connect("store") as con:
        con.create_dataset(
            "trips", pa.table({"city": ["Bonn", "Bonn", "Rom"], "km": [2.5, 5.0, 7.5]}), partition_on="city"
        )
        seed = pa.table({"shop": [1, 2], "country": ["DE", "FR"], "amount": [10.0, 20.0]})
        con.build_cube(Cube("sales", ["shop"], ["country"]), {"seed": seed})
        yield con


@pytest.mark.parametrize("call", MAIN, ids=lambda call: call.__qualname__)
def test_the_example_of_a_call_gives_what_it_says(con, call):
    names = {"kartosql": kartosql, "pa": pa, "con": con}
    test = doctest.DocTestParser().get_doctest(call.__doc__, names, call.__qualname__, None, None)
    assert test.examples
    found: list[str] = []
    assert not doctest.DocTestRunner().run(test, out=found.append).failed, "".join(found)
