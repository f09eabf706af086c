"""What errors of syntax say about their cause and its place."""

from __future__ import annotations

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import SqlError, excerpt

VALID = (
    "SELECT count(*) AS n, [1, 2][1], {'a': upper('b')} FROM t WHERE x IN (1, 2) AND name = 'it''s' GROUP BY ALL",
    "SELECT name, sum(x) FROM t WHERE (x > 1 OR name LIKE 'a%') GROUP BY name HAVING sum(x) > 2 ORDER BY name LIMIT 3",
    'SELECT "x" FROM t\nWHERE x = (SELECT max("x")\nFROM t) -- it\'s all',
)
CLAUSES = ("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT")


@pytest.fixture(scope="module")
def con():
    with kartosql.connect("memory://diagnosis") as connection:
        connection.register("t", pa.table({"x": [1, 2], "name": ["a", "b"]}))
        for sql in VALID:
            connection.sql(sql).rows()
        yield connection


def _error(con, sql) -> SqlError:
    with pytest.raises(SqlError) as caught:
        con.sql(sql).rows()
    assert caught.value.code == "syntax-error", caught.value
    return caught.value


def _without(sql, marks):
    return [(at, sql[:at] + sql[at + 1 :]) for at, c in enumerate(sql) if c in marks and "--" not in sql[:at]]


@pytest.mark.parametrize("sql", VALID)
def test_a_bracket_without_partner_is_named_with_its_place(con, sql):
    for at, broken in _without(sql, "()[]{}"):
        e = _error(con, broken)
        assert "is not closed" in e.message or "closes nothing" in e.message, broken
        assert e.span is not None
        assert broken[e.span[0] : e.span[1]] in "()[]{}", (at, broken)
        assert "^" in str(e), broken


@pytest.mark.parametrize("sql", VALID)
def test_a_quote_without_partner_is_named_with_its_place(con, sql):
    for _, broken in _without(sql.partition("--")[0].replace("it''s", "its"), "'\""):
        e = _error(con, broken)
        assert "is not closed" in e.message, broken
        assert e.span is not None
        assert broken[e.span[0] : e.span[1]] in "'\"", broken
        column = e.span[0] - broken.rfind("\n", 0, e.span[0])
        assert f"column {column} is" in e.message


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELECT 1 /* a /* b */ FROM t", "The comment that begins at column 10 is not closed."),
        ("SELECT $q$ a $$ FROM t", "The text that begins at column 8 is not closed."),
        ("SELECT e'a\\' FROM t", "The text that begins at column 8 is not closed."),
        ("SELECT 1 -- '\n, 'a FROM t", "The text that begins at line 2, column 3 is not closed."),
        ("SELECT '--', \"/*\", 'x FROM t", "The text that begins at column 20 is not closed."),
    ],
)
def test_comments_and_texts_of_every_kind_that_are_not_closed(con, sql, place):
    assert _error(con, sql).message == place


@pytest.mark.parametrize("word", CLAUSES)
def test_a_misspelt_keyword_is_recognised(con, word):
    sql = VALID[1]
    at = sql.index(word)
    for i in range(len(word) - 1):
        typo = word[:i] + word[i + 1] + word[i] + word[i + 2 :]
        if typo != word:
            e = _error(con, sql.replace(word, typo, 1))
            assert e.hint == f"Did you mean {word} instead of {typo}?"
            assert e.span == (at, at + len(word))


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT name x 1 FROM t", "A comma or an operator may be missing in front of 1."),
        ("SELECT (x) (x) FROM t", None),
        ("SELECT x FROM t WHERE x = 1 'a'", "A comma or an operator may be missing in front of a."),
        ("SELECT x FROM t GROUP x", "Did you mean GROUP BY?"),
        ("SELECT x FROM t ORDER x", "Did you mean ORDER BY?"),
        ("SELECT x ORDER BY x FROM t", "FROM stands before ORDER."),
        ("SELECT x FROM t LIMIT 1 WHERE x = 1", "WHERE stands before LIMIT."),
        ("SELECT x FROM t WHERE x = 1 AND", "The statement ends behind AND, where something has to follow."),
        ("SELECT x FROM t WHERE x =", "The statement ends behind =, where something has to follow."),
    ],
)
def test_what_is_missing_or_in_the_wrong_order(con, sql, hint):
    assert _error(con, sql).hint == hint


def test_nothing_is_guessed_where_names_are_like_keywords(con):
    form = pa.table({"form": [1], "wher": [2]})
    con.register("forms", form)
    assert con.sql("SELECT form, wher FROM forms form").rows() == [(1, 2)]
    assert excerpt("SELECT", (0, 6)).endswith("^^^^^^")


def test_explain_analyse_is_meant_for_analyze(con):
    assert _error(con, "EXPLAIN ANALYSE SELECT 1").hint == "Did you mean ANALYZE?"


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("date_trunc(x)", "It is called as date_trunc(VARCHAR, DATE), date_trunc(VARCHAR, INTERVAL), "),
        ("substr(1)", "It is called as substr(VARCHAR, BIGINT, BIGINT), substr(VARCHAR, BIGINT)."),
        ("sum(name)", "It is called as sum("),
    ],
)
def test_a_call_that_fits_no_function_is_told_what_it_takes(con, call, hint):
    with pytest.raises(SqlError) as caught:
        con.sql(f"SELECT {call} FROM t").rows()
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)
    # A cast helps only where the number of arguments is right.
    assert ("CAST" in caught.value.hint) == (call == "sum(name)")


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("'x.csv'", "csv"),
        ("x.csv", "csv"),
        ("'d/x.csv.gz'", "csv"),
        ("'x.parquet'", "parquet"),
        ("'s3://b/t'", "parquet"),
    ],
)
def test_a_file_as_table_is_told_to_attach_it(con, name, type_):
    with pytest.raises(SqlError) as caught:
        con.sql(f"SELECT * FROM {name}").rows()
    assert caught.value.code == "unknown-table"
    assert f"ATTACH '{name.strip(chr(39))}' AS x (TYPE {type_})" in str(caught.value.hint)


def test_functions_that_read_files_name_attach(con):
    with pytest.raises(SqlError, match=r"ATTACH '\.\.\.' AS x") as caught:
        con.sql("SELECT * FROM read_csv('x.csv')")
    assert caught.value.code == "function-not-allowed"
