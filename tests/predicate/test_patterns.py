"""What a match of a pattern contains, against DuckDB, for random patterns over few letters."""

from __future__ import annotations

import random

import duckdb
import pytest

from kartosql.predicate.patterns import Pieces, of_like, of_regex

TOKENS = [
    *"aabbcAB.+*?|()",
    "\\.",
    "\\d",
    "[ab]",
    "[^a]",
    "(?:",
    "{1,2}",
    "^",
    "$",
    "(?i)",
    "é",
    "\\+",
    "+?",
    "\\b",
    "|",
]


def fits(text: str, pieces: Pieces) -> bool:
    if pieces.any_case:  # of ASCII
        text, pieces = text.lower(), Pieces(pieces.begin.lower(), tuple(p.lower() for p in pieces.parts))
    return text.startswith(pieces.begin) and all(part in text for part in pieces.parts)


def test_each_match_of_a_regular_expression_contains_its_pieces():
    choose, con = random.Random(5), duckdb.connect()
    con.execute("CREATE TABLE t (s VARCHAR)")
    texts = ["".join(choose.choices("aabbcAB.+1é", k=choose.randrange(7))) for _ in range(400)]
    con.executemany("INSERT INTO t VALUES (?)", [[text] for text in texts])
    told = 0
    for _ in range(4_000):
        pattern = "".join(choose.choices(TOKENS, k=choose.randrange(1, 7)))
        option = choose.choice(["", "", "i"])
        for function in ("regexp_matches", "regexp_full_match"):
            pieces = of_regex(pattern, is_whole=function == "regexp_full_match", any_case=option == "i")
            try:
                found = con.execute(f"SELECT s FROM t WHERE {function}(s, $p, '{option}')", {"p": pattern}).fetchall()
            except duckdb.Error:
                continue
            told += bool(found and (pieces.begin or pieces.parts))
            assert all(fits(text, pieces) for (text,) in found), (function, pattern, pieces)
    assert told > 800


def test_each_match_of_like_contains_its_pieces():
    choose, con = random.Random(6), duckdb.connect()
    con.execute("CREATE TABLE t (s VARCHAR)")
    texts = ["".join(choose.choices("aab!%_B", k=choose.randrange(6))) for _ in range(300)]
    con.executemany("INSERT INTO t VALUES (?)", [[text] for text in texts])
    told = 0
    for _ in range(2_000):
        pattern, word = "".join(choose.choices("aab!%_B%", k=choose.randrange(6))), choose.choice(["LIKE", "ILIKE"])
        escape = choose.choice([None, "!"])
        pieces = of_like(pattern, escape, any_case=word == "ILIKE")
        if pieces is None:
            continue
        sql = f"SELECT s FROM t WHERE s {word} $p" + (" ESCAPE '!'" if escape else "")
        found = con.execute(sql, {"p": pattern}).fetchall()
        told += bool(found and (pieces.begin or pieces.parts))
        assert all(fits(text, pieces) for (text,) in found), (pattern, escape, pieces)
    assert told > 500


@pytest.mark.parametrize(
    ("pattern", "begin", "parts"),
    [
        ("foo.*bar", "", ("foo", "bar")),
        ("^ab+c\\.d", "ab", ("c.d",)),
        ("a|b", "", ()),
        ("(a|b)c", "", ("c",)),
        ("x(?:y)?z", "", ("x", "z")),
        ("a{2,3}b?cd", "", ("cd",)),
        ("a[b]c", "", ("a", "c")),
        ("\\Qa\\E", "", ()),
        ("a\\x41b", "", ()),
        ("(?m)^a", "", ()),
        ("a(b", "", ()),
        ("a" * 10_001, "", ()),
    ],
)
def test_pieces_of_regular_expressions(pattern, begin, parts):
    assert of_regex(pattern) == Pieces(begin, parts)
