"""kartosql in Harlequin."""

from __future__ import annotations

import uuid
from importlib.metadata import entry_points

import pyarrow as pa
import pytest
from harlequin import HarlequinAdapter
from harlequin.exception import HarlequinConfigError, HarlequinConnectionError, HarlequinQueryError

from kartosql.harlequin_adapter import HarlequinKartosqlAdapter
from kartosql.store import Store
from written import write_dataset


@pytest.fixture(scope="module")
def url():
    store = Store(f"memory://{uuid.uuid4().hex}")
    write_dataset(store, "t", pa.table({"p": [1, 1, 2], "v": ["a", "b", "c"]}), partition_on="p")
    return store.url


@pytest.fixture
def connection(url):
    made = HarlequinKartosqlAdapter((url,)).connect()
    yield made
    made.close()


def test_harlequin_finds_the_adapter():
    (found,) = (e for e in entry_points(group="harlequin.adapter") if e.name == "kartosql")
    assert issubclass(found.load(), HarlequinAdapter)


def test_rows_types_and_limit(connection):
    cursor = connection.execute("SELECT p, v FROM t ORDER BY v")
    assert cursor.columns() == [("p", "##"), ("v", "s")]
    assert cursor.set_limit(2).fetchall().to_pydict() == {"p": [1, 1], "v": ["a", "b"]}
    assert connection.execute("SELECT v FROM t WHERE p = 2").fetchall().to_pydict() == {"v": ["c"]}
    assert connection.execute("SELECT v FROM t WHERE p = 3").fetchall().num_rows == 0


def test_the_catalog_shows_tables_and_columns(connection):
    (table,) = connection.get_catalog().items
    assert (table.label, table.query_name, table.type_name) == ("t", "t", "dataset")
    assert [(c.label, c.type_label, c.query_name) for c in table.children] == [("p", "##", '"p"'), ("v", "s", '"v"')]


def test_errors_are_those_of_harlequin(connection, tmp_path):
    with pytest.raises(HarlequinQueryError, match="nothing"):
        connection.execute("SELECT nothing FROM t")
    with pytest.raises(HarlequinQueryError):
        connection.execute("SELECT CAST(v AS INTEGER) FROM t").fetchall()
    with pytest.raises(HarlequinConnectionError):
        HarlequinKartosqlAdapter((str(tmp_path / "nothing"),)).connect()
    for given in ((), ("a", "b")):
        with pytest.raises(HarlequinConfigError):
            HarlequinKartosqlAdapter(given)
    with pytest.raises(HarlequinConfigError, match="K=V"):
        HarlequinKartosqlAdapter(("a",), storage_option=["x"])


@pytest.mark.parametrize(
    ("options", "writes"), [({}, False), ({"write": True}, True), ({"write": True, "read_only": True}, False)]
)
def test_it_writes_only_where_it_is_told_to(url, options, writes):
    connection = HarlequinKartosqlAdapter((url,), **options).connect()
    try:
        if writes:
            made = connection.execute("CREATE DATASET d AS SELECT 1 AS x").fetchall()
            assert made["rows"].to_pylist() == [1]
            connection.execute("DROP DATASET d")
        else:
            with pytest.raises(HarlequinQueryError, match="read-only"):
                connection.execute("CREATE DATASET d AS SELECT 1 AS x")
    finally:
        connection.close()


def test_texts_that_cannot_be_split_are_not_valid(connection):
    assert connection.validate_sql("SELECT 1; SELECT 2") == "SELECT 1; SELECT 2"
    assert connection.validate_sql("SELECT 'open") == ""
