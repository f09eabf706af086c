"""What an error about names says: all of them at once, their places, and suggestions from the right scope."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError, SqlError, UnknownNameError
from kartosql.sql.tree import edited, original_span


@pytest.fixture(scope="module")
def con():
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as connection:
        cube = kartosql.Cube("sales", ["day"], ["country"])
        connection.build_cube(
            cube, {"seed": pa.table({"day": [1], "country": ["DE"], "turnover": [2.0], "name": ["a"]})}
        )
        connection.create_dataset("shops", pa.table({"country": ["DE"], "city": ["Bonn"]}))
        yield connection


def _error(con, sql) -> SqlError:
    with pytest.raises(KartosqlError) as e:
        con.sql(sql).rows()
    assert isinstance(e.value, KartosqlError)
    return e.value


def _found(error):
    errors = error.errors if isinstance(error, UnknownNameError) else [error]
    return [(e.code, error.sql[e.span[0] : e.span[1]]) for e in errors]


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("SELECT dday, turnovr FROM sales", [("unknown-column", "dday"), ("unknown-column", "turnovr")]),
        ("SELECT 1 FROM slaes, shps", [("unknown-table", "slaes"), ("unknown-table", "shps")]),
        ("EXPLAIN SELECT * FROM a.b.c.d", [("unknown-table", "a.b.c.d")]),
        ("SELECT 1 FROM sales JOIN a.b.c.d.e USING (day)", [("unknown-table", "a.b.c.d.e")]),
        (
            "SELECT s.dday FROM sales s JOIN shps p ON p.country = s.country",
            [("unknown-column", "s.dday"), ("unknown-table", "shps")],
        ),
        (
            "SELECT day FROM sales WHERE EXISTS (SELECT 1 FROM nope) AND tunrover > 3",
            [("unknown-table", "nope"), ("unknown-column", "tunrover")],
        ),
        # Whose column it is cannot be told, so only the table is named.
        ("SELECT whatever FROM sales, nope", [("unknown-table", "nope")]),
        ("SELECT p.whatever FROM sales s, nope p", [("unknown-table", "nope")]),
    ],
)
def test_all_names_that_are_unknown_are_told_at_once(con, sql, wanted):
    error = _error(con, sql)
    assert _found(error) == wanted
    codes = {code for code, _ in wanted}
    assert error.code == (codes.pop() if len(codes) == 1 else "unknown-name")
    assert str(error).count("^\n") + str(error).endswith("^") == len(wanted)


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT turnovr FROM sales", "Did you mean turnover?"),
        ("SELECT s.cit FROM sales s, shops p", "Columns: country, day, name, turnover."),
        ("SELECT p.cty FROM sales s, shops p", "Did you mean city?"),
        ("SELECT x.day FROM sales", "Did you mean sales.day?"),
        ("SELECT sale.day FROM sales, shops", "Did you mean sales.day?"),
        ("SELECT zzz.day FROM sales, shops", "Its tables are sales, shops."),
        ("SELECT 1 FROM sale", "Did you mean sales?"),
        ("SELECT 1 FROM sales.sed", "It has seed."),
        ("WITH w AS (SELECT turnover AS sold FROM sales) SELECT turnover, soold FROM w", "Did you mean sold?"),
    ],
)
def test_suggestions_come_from_the_scope_of_the_name(con, sql, hint):
    assert hint in (_error(con, sql).hint or "")


@pytest.mark.parametrize(
    ("sql", "place", "code"),
    [
        ("SELECT day FROM sales WHERE lenght(name) > 3", "lenght(name)", "invalid-query"),
        ("SELECT sum(name) FROM sales", "sum(name)", "invalid-query"),
        ("SELECT name,\n  count(*)\nFROM sales", "name", "not-grouped"),
        ("SELECT day FROM sales\nWHERE sum(day) > 3", "sum(day)", "invalid-query"),
        ("SELECT s.name::INT FROM sales.seed s", "s.name::INT", "invalid-value"),
        ("SELECT 1 FROM sales a, sales b WHERE day = 3", "day", "invalid-query"),
        ("SELECT :x + name FROM sales", "+", "invalid-query"),
    ],
)
def test_what_the_engine_refuses_is_told_at_its_place_in_the_users_own_text(con, sql, place, code):
    with pytest.raises(KartosqlError) as e:
        con.sql(sql, {"x": 1} if ":x" in sql else None).rows()
    error = e.value
    assert error.code == code
    assert error.span is not None, str(error)
    assert error.sql[error.span[0] : error.span[1]] in (place, place.split("::")[0], "::INT"), str(error)
    assert "__kartosql" not in str(error)


def test_a_function_that_is_not_there_has_a_suggestion(con):
    error = _error(con, "SELECT lenght(name) FROM sales")
    assert (error.message, error.hint) == ("There is no function 'lenght'.", "Did you mean length?")


def test_places_are_carried_back_over_edits():
    text = "SELECT a.b FROM c WHERE d"
    edits = [((16, 17), '"schema"."c"'), ((7, 8), "x"), ((0, 0), "EXPLAIN ")]
    run = edited(text, edits)
    assert run == 'EXPLAIN SELECT x.b FROM "schema"."c" WHERE d'
    for word, wanted in (("x.b", "a"), ('"schema"', "c"), ('."c"', "c"), ("WHERE", "WHERE"), ("d", "d")):
        at = run.rindex(word) if word == "d" else run.index(word)
        start, end = original_span(text, edits, at)
        assert text[start:end] == wanted, word
    assert original_span(text, edits, 10_000) == (len(text), len(text) + 1)
    assert original_span(text, edits, 2) == (0, 0)
