"""Writes that did not come to their end: nothing refuses or warns for ever."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError
from kartosql.store import Store
from kartosql.write.operation import Operation

ROWS = pa.table({"x": [1, 2], "p": ["a", "b"], "v": [10, 20]})
STATEMENTS = {
    "c": "ALTER CUBE c ADD DATASET k AS SELECT x, p, v + 1 AS w FROM c",
    "n": "CREATE CUBE n DIMENSIONS (x) PARTITION BY (p) AS SELECT x, p, v FROM c",
    "e": "CREATE DATASET e PARTITION BY (p) AS SELECT x, p, v FROM c",
}
LEFT = {"c": "c++k", "n": "n++seed", "e": "e"}
DROP = {"c": "DROP DATASET IF EXISTS c.k", "n": "DROP CUBE IF EXISTS n", "e": "DROP DATASET IF EXISTS e"}


class Killed(BaseException):
    """The end of the process."""


@pytest.fixture(params=STATEMENTS)
def name(request):
    return request.param


@pytest.fixture
def con(tmp_path, name, monkeypatch):
    """A connection to a store in which a statement was killed before its commit."""
    with kartosql.connect(tmp_path) as con:
        con.build_cube(kartosql.Cube("c", "x", "p"), ROWS)
        with monkeypatch.context() as patch:
            patch.setattr(Operation, "_commit", die)
            with pytest.raises(Killed):
                con.sql(STATEMENTS[name])
        assert list(con.store.list_below(f"{LEFT[name]}/"))
        assert [row[2] for row in con.sql(f"CHECK {name}").rows() if row[1] == "metadata"] == ["warning"]
        yield con


def die(*args):
    raise Killed


def severities(con, name):
    return {f.severity for f in con.check(name)}


def test_the_same_statement_works(con, name):
    con.sql(STATEMENTS[name])
    assert severities(con, name) == {"info"}
    assert con.sql(f"SELECT count(*) FROM {name}").rows() == [(2,)]


@pytest.mark.parametrize("way", ["DROP", "CLEANUP", "REPAIR"])
def test_the_warning_goes_and_the_files_a_grace_period_later(con, name, way, monkeypatch):
    con.sql({"DROP": DROP[name], "CLEANUP": f"CLEANUP {name}", "REPAIR": f"CHECK {name} REPAIR"}[way])
    # Whoever wrote them may be at work still, and commit them.
    assert [key for key in con.store.list_below(f"{LEFT[name]}/") if key.endswith(".parquet")]
    assert severities(con, name) == {"info"}
    now = Store.now
    monkeypatch.setattr(Store, "now", lambda store: now(store) + dt.timedelta(days=8))
    con.sql(f"CLEANUP {name}")
    assert list(con.store.list_below(f"{LEFT[name]}/")) == []
    con.sql(DROP[name])
    con.sql(STATEMENTS[name])
    assert severities(con, name) <= {"info"}


def test_what_was_left_to_a_cleanup_is_no_concern_of_the_same_statement(con, name):
    con.sql(DROP[name])
    con.sql(STATEMENTS[name])
    con.sql(f"CLEANUP {name}")
    assert con.sql(f"SELECT count(*) FROM {name}").rows() == [(2,)]


def test_dropping_what_never_was_stays_silent_and_changes_nothing(con):
    before = con.store.details()
    for sql in ("CUBE IF EXISTS nothing", "DATASET IF EXISTS nothing", "DATASET IF EXISTS c.nothing"):
        con.sql(f"DROP {sql}")
    assert con.store.details() == before
    with pytest.raises(KartosqlError) as e:
        con.sql("CLEANUP nothing")
    assert e.value.code == "unknown-table"
