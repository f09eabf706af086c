"""Names that stand where a value would."""

from __future__ import annotations

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import SqlError


@pytest.fixture(scope="module")
def con():
    with kartosql.connect("memory://unquoted") as connection:
        rows = pa.table({"p": ["DE", "FR"], "i": ["SFO", "it's"], "v": ["x", "y"], "n": [1, 2]})
        connection.create_dataset("t", rows, partition_on=["p"], index_columns=["i"])
        yield connection


def _hint(con, where):
    with pytest.raises(SqlError) as caught:
        con.sql(f"SELECT n FROM t WHERE {where}").rows()
    assert caught.value.code == "unknown-column"
    return caught.value.hint


@pytest.mark.parametrize(
    ("where", "column", "value"),
    [
        ("p = DE", "p", "DE"),
        ('p = "DE"', "p", "DE"),
        ('"SFO" = i', "i", "SFO"),
        ("i IN (\"SFO\", 'x')", "i", "SFO"),
        ('i <> "it\'s"', "i", "it''s"),
        ("n = 1 AND NOT i = SFO", "i", "SFO"),
        ('(SELECT max(n) FROM t u WHERE u.i = "SFO") = 1', "i", "SFO"),
    ],
)
def test_a_value_that_partitions_or_an_index_know_is_recognised(con, where, column, value):
    assert _hint(con, where) == f"{column} has the value '{value}'. Text stands in single quotes."


@pytest.mark.parametrize("where", ['p = "XX"', "v = zz", 'i LIKE "S%"', "n = zz", "upper(p) = zz"])
def test_of_other_values_only_the_quotes_are_told(con, where):
    hint = _hint(con, where)
    assert "has the value" not in hint
    assert "A text stands in single quotes: '" in hint


def test_a_name_that_is_compared_with_nothing_is_no_text(con):
    assert "quotes" not in _hint(con, "zz IS NULL")
    assert "quotes" not in _hint(con, "t.zz = 1")


def test_all_names_are_told_with_one_full_stop_each(con):
    with pytest.raises(SqlError) as caught:
        con.sql("SELECT a1, b1 FROM t").rows()
    assert caught.value.message == "2 names are unknown: There is no column 'a1'; There is no column 'b1'."
