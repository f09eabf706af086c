from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartosql.errors import SqlError
from kartosql.sql.incremental_lexer import is_blank, lexemes, open_mark, statement_end
from kartosql.sql.parse import split_statements


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("select 1;", 9),
        ("select 1", None),
        ("select ';'", None),
        ("select 'it''s;';", 16),
        ('select ";";', 11),
        ("select 1 -- ;", None),
        ("select 1 -- ;\n;", 15),
        ("select /* ; /* ; */ ; */ 1;", 27),
        ("select /* ;", None),
        ("select $$;$$;", 13),
        ("select $a$;$$;$a$;", 18),
        (r"select e'\';';", 14),
        ("select 'a;", None),
        (";", 1),
    ],
)
def test_a_statement_ends_at_a_semicolon_that_nothing_hides(text, end):
    assert statement_end(text) == end


PIECES = ["select", " ", ";", "'", '"', "--", "\n", "/*", "*/", "$$", "a", "1", "''", "e'", "\\"]


@given(st.lists(st.sampled_from(PIECES)))
def test_where_the_parser_splits_there_the_shell_splits_too(pieces):
    text = "".join(pieces)
    try:
        wanted = split_statements(text)
    except SqlError:
        return
    found, at = [], 0
    while (end := statement_end(text, at)) is not None:
        found.append(text[at : end - 1].strip())
        at = end
    found.append(text[at:].strip())
    # What holds only comments is none of the parser's statements.
    assert [f for f in found if not is_blank(f)] == wanted


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("select 'a", "'"),
        ('select "a', '"'),
        ("select /* a", "/*"),
        ("select $x$ a", "$x$"),
        ("select 'a'", None),
        ("", None),
    ],
)
def test_an_open_quote_is_known_by_its_mark(text, mark):
    assert open_mark(text) == mark


def kinds(text: str) -> list[tuple[str, str]]:
    return [(lexeme.text, lexeme.kind) for lexeme in lexemes(text)]


def test_each_piece_has_its_kind():
    assert kinds("SELECT count(*), \"a b\" FROM t WHERE x = 'it''s' -- c\nAND y = 1.5 AND z = ?") == [
        ("SELECT", "keyword"),
        ("count", "function"),
        ("(", "symbol"),
        ("*", "symbol"),
        (")", "symbol"),
        (",", "symbol"),
        ('"a b"', "quoted"),
        ("FROM", "keyword"),
        ("t", "name"),
        ("WHERE", "keyword"),
        ("x", "name"),
        ("=", "symbol"),
        ("'it''s'", "string"),
        ("-- c", "comment"),
        ("AND", "keyword"),
        ("y", "name"),
        ("=", "symbol"),
        ("1.5", "number"),
        ("AND", "keyword"),
        ("z", "name"),
        ("=", "symbol"),
        ("?", "parameter"),
    ]


def test_half_of_a_statement_has_kinds_too():
    assert kinds("select 'abc") == [("select", "keyword"), ("'abc", "string")]
    assert kinds("select /* a") == [("select", "keyword"), ("/* a", "comment")]


def test_words_of_our_statements_are_keywords_in_them_only():
    assert ("CUBE", "keyword") in kinds("CREATE CUBE c DIMENSIONS (x)")
    assert ("coverage", "name") in kinds("SELECT coverage FROM t")


@given(st.text(max_size=80))
def test_whatever_is_typed_pieces_are_in_order_and_inside_of_the_text(text):
    at = 0
    for lexeme in lexemes(text):
        assert at <= lexeme.start < lexeme.end <= len(text)
        assert text[lexeme.start : lexeme.end] == lexeme.text
        at = lexeme.start
