"""kartosql.dbapi is a database of PEP 249."""

from __future__ import annotations

import datetime as dt
import uuid

import pyarrow as pa
import pytest
from dbapi20 import DatabaseAPI20Test

from kartosql import KartosqlError, dbapi


class NamedColumns(dbapi.Cursor):
    """A cursor that names the columns of an INSERT, as those of a dataset are in the order of the alphabet."""

    def execute(self, operation, parameters=None):
        return super().execute(operation.replace("barflys values", "barflys (name, drink) values"), parameters)


class TestCompliance(DatabaseAPI20Test):
    """The public compliance test of dbapi-compliance, with kartosql's words for tables."""

    driver = dbapi
    ddl1 = "CREATE DATASET dbapi20test_booze AS SELECT CAST(NULL AS VARCHAR) AS name WHERE false"
    ddl2 = (
        "CREATE DATASET dbapi20test_barflys AS "
        "SELECT CAST(NULL AS VARCHAR) AS name, CAST(NULL AS VARCHAR) AS drink WHERE false"
    )
    xddl1 = "DROP DATASET dbapi20test_booze"
    xddl2 = "DROP DATASET dbapi20test_barflys"

    @pytest.fixture(autouse=True)
    def _named(self, monkeypatch):
        monkeypatch.setattr(dbapi, "Cursor", NamedColumns)

    def setUp(self):
        self.connect_args = (f"memory://{uuid.uuid4().hex}",)

    def test_nextset(self):
        assert not hasattr(dbapi.Cursor, "nextset")

    def test_setoutputsize(self):
        dbapi.connect(*self.connect_args).cursor().setoutputsize(10, 0)


del DatabaseAPI20Test  # it is no test by itself


@pytest.fixture
def connection():
    con = dbapi.connect(f"memory://{uuid.uuid4().hex}")
    con.native.register(
        "t",
        pa.table(
            {
                "n": pa.array([1, 2, None]),
                "s": ["a", "b", "c"],
                "d": [dt.date(2024, 1, 1), None, dt.date(9999, 12, 31)],
                "b": [b"x", b"y", None],
            }
        ),
    )
    yield con
    con.close()


def test_descriptions_hold_names_and_types(connection):
    cursor = connection.execute("SELECT * FROM t")
    names = [d[0] for d in cursor.description]
    kinds = [
        next(k for k in (dbapi.STRING, dbapi.NUMBER, dbapi.DATETIME, dbapi.BINARY) if k == d[1])
        for d in cursor.description
    ]
    assert dict(zip(names, kinds, strict=True)) == {
        "n": dbapi.NUMBER,
        "s": dbapi.STRING,
        "d": dbapi.DATETIME,
        "b": dbapi.BINARY,
    }


def test_rows_are_streamed_in_pieces(connection):
    cursor = connection.execute("SELECT range AS i FROM range(100_000) ORDER BY i")
    assert cursor.fetchone() == (0,)
    assert cursor.fetchmany(3) == [(1,), (2,), (3,)]
    assert sum(1 for _ in cursor) == 99_996
    assert cursor.fetchone() is None
    assert cursor.fetchall() == []


def test_parameters_by_place_and_by_name(connection):
    assert connection.execute("SELECT s FROM t WHERE n = ?", [2]).fetchall() == [("b",)]
    assert connection.execute("SELECT s FROM t WHERE n = :n", {"n": 1}).fetchall() == [("a",)]


@pytest.mark.parametrize(
    ("sql", "kind", "code"),
    [
        ("SELECT nothing FROM t", dbapi.ProgrammingError, "unknown-column"),
        ("SELEC 1", dbapi.ProgrammingError, None),
        ("SELECT CAST(s AS INTEGER) FROM t", dbapi.OperationalError, None),
        ("SELECT 1; SELECT 2", dbapi.ProgrammingError, None),
        ("CREATE DATASET d PARTITION BY (n) AS SELECT n, s FROM t", dbapi.DataError, "null-in-key"),
    ],
)
def test_errors_are_those_of_pep_249_and_keep_code_and_hint(connection, sql, kind, code):
    with pytest.raises(kind) as caught:
        connection.execute(sql).fetchall()
    assert isinstance(caught.value, KartosqlError)
    assert caught.value.code == code or code is None
    assert isinstance(caught.value.__cause__, KartosqlError)


def test_an_error_marks_its_place_in_the_text(connection):
    with pytest.raises(dbapi.ProgrammingError, match=r"\^") as caught:
        connection.execute("SELECT nothing FROM t")
    assert caught.value.span == (7, 14)


def test_what_was_written_is_not_rolled_back_in_silence(connection):
    connection.rollback()
    cursor = connection.execute("CREATE DATASET made AS SELECT s FROM t")
    assert (cursor.rowcount, cursor.description) == (3, None)
    assert cursor.query.arrow()["dataset"].to_pylist() == ["made"]
    with pytest.raises(dbapi.NotSupportedError, match="rolled back"):
        connection.rollback()
    connection.commit()
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM made").fetchall() == [(3,)]


def test_executemany_counts_all_rows(connection):
    connection.execute("CREATE DATASET made AS SELECT s FROM t WHERE false")
    cursor = connection.cursor().executemany("INSERT INTO made VALUES (?)", [["x"], ["y"]])
    assert cursor.rowcount == 2
    with pytest.raises(dbapi.ProgrammingError, match="without rows"):
        cursor.executemany("SELECT ?", [[1]])


def test_a_closed_cursor_says_so(connection):
    cursor = connection.execute("SELECT 1")
    cursor.close()
    with pytest.raises(dbapi.InterfaceError, match="closed"):
        cursor.fetchone()
    with pytest.raises(dbapi.InterfaceError, match="no statement with rows"):
        connection.cursor().fetchone()


def test_cursors_of_one_connection_do_not_disturb_each_other(connection):
    first = connection.execute("SELECT range FROM range(10_000)")
    second = connection.execute("SELECT s FROM t ORDER BY s")
    assert first.fetchone() == (0,)
    assert second.fetchall() == [("a",), ("b",), ("c",)]
    assert len(first.fetchall()) == 9_999


def test_pandas_and_polars_read_from_it(connection):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    with pytest.warns(UserWarning, match="SQLAlchemy"):
        frame = pandas.read_sql("SELECT n, s FROM t WHERE n = ?", connection, params=[2])
    assert frame["s"].tolist() == ["b"]
    assert polars.read_database("SELECT s FROM t ORDER BY s", connection)["s"].to_list() == ["a", "b", "c"]


def test_a_store_that_is_not_there_is_an_operational_error(tmp_path):
    with pytest.raises(dbapi.OperationalError) as caught:
        dbapi.connect(tmp_path / "nothing")
    assert caught.value.code == "store-not-found"
    assert issubclass(dbapi.Error, Exception)
