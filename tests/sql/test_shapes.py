"""Statements that differ in constants only share a tree, all others do not."""

from __future__ import annotations

from typing import Any

import pytest

from kartosql.errors import SqlError
from kartosql.sql import Select, parse
from kartosql.sql.tree import MAX_SHAPES, MAX_TEXTS, ParsedTexts, alike


def _places(text: str) -> list[str]:
    statement = parse(text)
    assert isinstance(statement, Select)
    return [text[start:end] for start, end in statement.constants]


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("SELECT * FROM t WHERE a = 166461", ["166461"]),
        ("SELECT 5 FROM t WHERE 5 < a AND NOT (b <> 'x' OR c = -2.5) LIMIT 3", ["5", "'x'", "2.5"]),
        ("SELECT 1 FROM t WHERE a BETWEEN 1 AND 20 AND b IN ('x', 'y', 3)", ["1", "20", "'x'", "'y'", "3"]),
        ("SELECT 1 FROM t WHERE d >= DATE '2020-01-01'", ["'2020-01-01'"]),
        ("SELECT 1 FROM (SELECT a FROM t WHERE b = 7) s JOIN u ON s.a = u.a AND u.b = 8", ["7"]),
        ("WITH s AS (SELECT a FROM t WHERE b = 7) SELECT a FROM s WHERE a = 1 UNION SELECT 3 WHERE 4 = 4", "7144"),
        ("FROM t WHERE a = 5", ["5"]),
    ],
)
def test_constants_that_are_compared_in_where_may_differ(text, constants):
    assert _places(text) == list(constants)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 5, 'x', a = 7 FROM t",
        "SELECT (SELECT max(a) FROM t WHERE b = 5) FROM t",
        "SELECT count(*) FILTER (WHERE a = 5) FROM t",
        "SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM u WHERE a = 5)",
        "SELECT 1 FROM t WHERE a + 5 > b AND f(5) AND a LIKE 'x%'",
        "SELECT 1 FROM t WHERE a = 'it''s' AND b = E'x' AND c = 1e5 AND d = x'00'",
        "SELECT a FROM t GROUP BY 1 HAVING a = 5",
        "SELECT a FROM t QUALIFY row_number() OVER () = 1",
        "SELECT 1 FROM t JOIN u ON t.a = 5",
        "SELECT a FROM t WHERE a = TIMESTAMP '2020-01-01 00:00:00'",
        "SELECT a FROM t WHERE COLUMNS(c -> c = 'a') = b",
        "SELECT a FROM t WHERE list_filter(x, y -> y = 5) = z",
        "SUMMARIZE SELECT a FROM t WHERE a = 5",
    ],
)
def test_other_constants_may_not(text):
    assert _places(text) == []


KNOWN = "SELECT a FROM t WHERE a = 166461 AND b IN ('x', 'y') AND c < 2.50 LIMIT 10"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t WHERE a = 000007 AND b IN ('x', ';') AND c < 0.01 LIMIT 10",
        "SELECT a FROM t WHERE a = 999999 AND b IN ('y', 'é') AND c < 9.99 LIMIT 10",
    ],
)
def test_a_text_with_other_constants_has_the_tree_that_it_would_be_parsed_to(text):
    known = parse(KNOWN)
    assert isinstance(known, Select)
    found, parsed = alike(known, text), parse(text)
    assert isinstance(parsed, Select)
    assert found is not None
    assert found.tree is known.tree
    assert (found.text, found.constants) == (parsed.text, parsed.constants)
    assert _without_literals(found.tree) == _without_literals(parsed.tree)
    assert alike(known, KNOWN) == known


def _without_literals(tree: Any) -> list[tuple[str, Any]]:
    from sqlglot import exp

    return [
        (type(n).__name__, None if isinstance(n, exp.Literal) else [a for a in n.args.values() if isinstance(a, str)])
        for n in tree.walk()
    ] + [(str(n.meta), None) for n in tree.walk()]


@pytest.mark.parametrize(
    "text",
    [
        KNOWN.replace("166461", "16646"),
        KNOWN.replace("166461", "1664.1"),
        KNOWN.replace("166461", "166e61"),
        KNOWN.replace("166461", "a66461"),
        KNOWN.replace("166461", "'6646'"),
        KNOWN.replace("166461", "-66461"),
        KNOWN.replace("166461", "1 OR 1"),
        KNOWN.replace("166461", "1_6461"),
        KNOWN.replace("166461", "１66461"),
        KNOWN.replace("2.50", "25.0"),
        KNOWN.replace("2.50", "2500"),
        KNOWN.replace("2.50", "250."),
        KNOWN.replace("'x'", "'''"),
        KNOWN.replace("'x'", "'\\'"),
        KNOWN.replace("'x'", "'\0'"),
        KNOWN.replace("'x'", "$$$"),
        KNOWN.replace("'x', 'y'", "'x'',''y'"),
        KNOWN.replace("LIMIT 10", "LIMIT 20"),
        KNOWN.replace("SELECT a", "SELECT b"),
        KNOWN.replace("c <", "d <"),
    ],
)
def test_any_other_text_is_not_alike(text):
    known = parse(KNOWN)
    assert isinstance(known, Select)
    assert alike(known, text) is None


@pytest.fixture
def parsed() -> Any:
    """A cache, and the texts that it had to parse."""
    texts: list[str] = []

    def noting(text: str) -> Any:
        texts.append(text)
        return parse(text)

    cache = ParsedTexts(noting)
    cache.seen = texts  # type: ignore[attr-defined]
    return cache


def test_of_texts_that_differ_in_constants_only_the_first_is_parsed(parsed):
    for n in range(3 * MAX_TEXTS):
        assert parsed.parse(f"SELECT a FROM t WHERE a = {1000 + n}").text.endswith(str(1000 + n))
    assert len(parsed.seen) == 1
    parsed.parse("SELECT a FROM t WHERE a = 10000")
    assert len(parsed.seen) == 2


@pytest.mark.parametrize(
    "text", ["SELECT a FROM t WHERE a = {};", " SELECT a FROM t\nWHERE a = {} -- x", "SHOW TABLES"]
)
def test_a_text_that_is_parsed_as_another_one_is_parsed_each_time(parsed, text):
    for n in range(3):
        parsed.parse(text.format(100 + n))
    assert len(parsed.seen) == (1 if "SHOW" in text else 3)


def test_shapes_and_texts_are_not_kept_without_end(parsed):
    for n in range(MAX_SHAPES + 10):
        parsed.parse(f"SELECT a{n} FROM t WHERE a = 5")
    assert len(parsed._shapes) == MAX_SHAPES
    assert len(parsed._texts) == MAX_TEXTS


def test_what_cannot_be_parsed_is_an_error_every_time(parsed):
    for _ in range(2):
        with pytest.raises(SqlError):
            parsed.parse("SELECT 'a")
    with pytest.raises(SqlError):
        parsed.parse(5)
