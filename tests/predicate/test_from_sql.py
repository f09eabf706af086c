"""Predicates of SQL as conditions for skipping metadata."""

from __future__ import annotations

from decimal import Decimal

import pytest
import sqlglot

from kartosql.errors import SqlError
from kartosql.predicate.from_sql import Meaning, predicate_of
from kartosql.predicate.tree import (
    UNKNOWN,
    Comparison,
    Constant,
    Contains,
    ContainsFolded,
    Extracted,
    Group,
    In,
    IsNull,
    Value,
)

pytestmark = pytest.mark.usefixtures("no_collection")  # some statements are as deep as may be

X = ("x",)
DOUBLE_ONE, DOUBLE_TWO = Value("double", 1.0), Value("double", 2.0)
ONE, TWO = Value("integer", 1), Value("integer", 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", Comparison(X, "=", ONE)),
        ("1 < x", Comparison(X, ">", ONE)),
        ("NOT x < 1", Comparison(X, ">=", ONE)),
        ("NOT (x = 1 OR y > 2)", Group("AND", (Comparison(X, "<>", ONE), Comparison(("y",), "<=", TWO)))),
        ("X != -1", Comparison(X, "<>", Value("integer", -1))),
        ('"X" == 1.50', Comparison(X, "=", Value("decimal", Decimal("1.50")))),
        ("x = 1e3", Comparison(X, "=", Value("double", 1000.0))),
        ("x = 7.0D", Comparison(X, "=", Value("double", 7.0))),
        ("x = CAST(0.1 AS FLOAT)", Comparison(X, "=", Value("float", 0.10000000149011612))),
        ("x BETWEEN 1 AND 2", Group("AND", (Comparison(X, ">=", ONE), Comparison(X, "<=", TWO)))),
        ("x NOT BETWEEN 1 AND 2", Group("OR", (Comparison(X, "<", ONE), Comparison(X, ">", TWO)))),
        (
            "x BETWEEN 1 AND 2e0",
            Group("AND", (Comparison(X, ">=", DOUBLE_ONE), Comparison(X, "<=", Value("double", 2.0)))),
        ),
        ("x BETWEEN 1 AND NULL", Constant(False)),
        ("NOT (x > 1.5D)", Comparison(X, "<=", Value("double", 1.5))),
        ("x = -" + "9" * 30 + ".5", Comparison(X, "=", Value("decimal", Decimal("-" + "9" * 30 + ".5")))),
        ("`x` = to_date('1970-01-02')", Comparison(X, "=", Value("date", 1))),
        ("x IN (1, 2, NULL)", In(X, (ONE, TWO))),
        ("x IN (1, 2e0)", In(X, (DOUBLE_ONE, Value("double", 2.0)))),
        ("x NOT IN (1, 2)", In(X, (ONE, TWO), True)),
        ("x IN (NULL)", Constant(False)),
        ("x = NULL", Constant(False)),
        ("x IS NOT NULL", IsNull(X, True)),
        ("NOT x IS NULL", IsNull(X, True)),
        ("x IS NULL", IsNull(X)),
        ("NOT x IS NOT NULL", IsNull(X)),
        ("x IS DISTINCT FROM 1", Group("OR", (IsNull(X), Comparison(X, "<>", ONE)))),
        ("NOT x IS NOT DISTINCT FROM 1", Group("OR", (IsNull(X), Comparison(X, "<>", ONE)))),
        ("x", Comparison(X, "=", Value("boolean", True))),
        ("NOT x", Comparison(X, "=", Value("boolean", False))),
        ("x IS FALSE", Comparison(X, "=", Value("boolean", False))),
        ("x IS NOT DISTINCT FROM 1", Comparison(X, "=", ONE)),
        ("x LIKE 'a_b%'", Group("AND", (Contains(X, "a", begins=True), Contains(X, "b")))),
        ("x LIKE 'ab%'", Contains(X, "ab", begins=True)),
        ("x LIKE '%ab'", Contains(X, "ab")),
        ("x LIKE '%a_%b%%'", Group("AND", (Contains(X, "a"), Contains(X, "b")))),
        ("x LIKE '%'", Contains(X, "", begins=True)),
        ("x LIKE '__'", Contains(X, "", begins=True)),
        ("x LIKE ''", Comparison(X, "=", Value("text", ""))),
        ("contains(x, 'a%b')", Contains(X, "a%b")),
        ("contains(x, '')", Contains(X, "")),
        ("x LIKE 'ab'", Comparison(X, "=", Value("text", "ab"))),
        ("starts_with(x, 'ab')", Contains(X, "ab", begins=True)),
        ("a.b.c.d.e = 1", Comparison(("a", "b", "c", "d", "e"), "=", ONE)),
        ("A['b'].C = 1", Comparison(("a", "b", "c"), "=", ONE)),
        ("struct_extract(a, 'b') = 1", Comparison(("a", "b"), "=", ONE)),
        ("x = DATE '1970-01-02'", Comparison(X, "=", Value("date", 1))),
        ("x > TIMESTAMP '1970-01-01 00:00:01.5'", Comparison(X, ">", Value("timestamp", 1_500_000))),
        ("x = TIMESTAMPTZ '1970-01-01 00:00:01+01'", Comparison(X, "=", Value("instant", -3_599_000_000))),
        ("x = TIMESTAMPTZ '1970-01-01 00:00:01'", Comparison(X, "=", Value("zoned", 1_000_000))),
        ("x = to_date('1970-01-02')", Comparison(X, "=", Value("date", 1))),
        ("x = date('1970-01-02')", Comparison(X, "=", Value("date", 1))),
        ("x = double('2.5')", Comparison(X, "=", Value("double", 2.5))),
        ("x = bigint(5)", Comparison(X, "=", Value("integer", 5))),
        ("x = X'0aff'", Comparison(X, "=", Value("binary", b"\x0a\xff"))),
        ("regexp_extract(x, '(a)', 1) = 'a'", Extracted(X, "(a)", ("a",))),
        ("x = 1 AND upper(y) = 'A'", Comparison(X, "=", ONE)),
        ("x = 1 AND FALSE", Constant(False)),
        ("x = 1 OR TRUE", Constant(True)),
        ("((x)) = ((1))", Comparison(X, "=", ONE)),
    ],
)
def test_predicates_are_understood(text, expected):
    assert predicate_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "x IS NOT TRUE",
        "x = TIMESTAMP '1970-01-01 00:00:01+01'",
        "NOT (x IS TRUE)",
        "x IS DISTINCT FROM NULL",
        "x IS NOT DISTINCT FROM NULL",
        "x NOT IN (1, NULL)",
        "x NOT LIKE 'a%'",
        "NOT x LIKE 'a%'",
        "x ILIKE 'é%'",
        "x LIKE 'a!' ESCAPE '!'",
        "x LIKE 'a' ESCAPE '!!'",
        "x NOT ILIKE 'a%'",
        "upper(x) LIKE 'A%'",
        "strpos(x, 'a') = 0",
        "strpos(x, 'a') > -1",
        "strpos('a', x) > 0",
        "regexp_matches(x, y)",
        "regexp_matches(x, 'a', 'm')",
        "NOT regexp_matches(x, 'a')",
        "NOT contains(x, 'a')",
        "contains('abc', x)",
        "contains(x, NULL)",
        "contains(x, 1)",
        "list_contains(x, 'a')",
        "x = y",
        "x + 1 = 2",
        "upper(x) = 'A'",
        "x::VARCHAR = '1'",
        "x COLLATE NOCASE = 'a'",
        "x = 'a' COLLATE NOCASE",
        "x = 1::VARCHAR",
        "x = 'a' || 'b'",
        "x IN (SELECT 1)",
        "x IN (1, 'a')",
        "x IN (1, y)",
        "x IN (9007199254740993, 2.5e0)",
        "x BETWEEN 9007199254740993 AND 1e19",
        "x BETWEEN 'a' AND DATE '2020-01-01'",
        "x BETWEEN 1 AND y",
        "x NOT BETWEEN 1 AND NULL",
        "x = 1 OR upper(y) = 'A'",
        "x BETWEEN SYMMETRIC 2 AND 1",
        "(x, y) = (1, 2)",
        "x < 1 = TRUE",
        "x = 1 IS NULL",
        "regexp_extract(x, '(a)') = 'a'",
        "regexp_extract(x, '(a)', 0) = 'a'",
        "NOT regexp_extract(x, '(a)', 1) = 'a'",
        "x = 'a\\\\b'",
        "x = CAST('12:00' AS TIME)",
        "x = CAST(300 AS TINYINT)",
        "x = CAST(1.55 AS DECIMAL(2,1))",
        "x = TIMESTAMP '2020-01-01 00:00:00.1234567'",
        "x = DATE '2020-02-30'",
        "x = to_date('01.02.1970', 'dd.MM.yyyy')",
        "x = double(y)",
        "EXISTS (SELECT 1)",
    ],
)
def test_what_is_not_certain_is_unknown(text):
    assert predicate_of(text) == UNKNOWN


def test_parameters_and_columns_may_be_given():
    tree = sqlglot.parse_one("t.x = $p", dialect="duckdb")
    found = predicate_of(tree, Meaning(lambda node: X, lambda node: {"p": TWO}[node.name]))
    assert found == Comparison(X, "=", TWO)
    assert predicate_of(sqlglot.parse_one("x = $q", dialect="duckdb")) == UNKNOWN


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a\\%b%c", Contains(X, "a", begins=True)),
        ("%a\\_b", Contains(X, "a")),
        ("\\", Contains(X, "", begins=True)),
        ("a\\b", Contains(X, "a", begins=True)),
        ("%\ud7ff\U0001f600", Contains(X, "\ud7ff\U0001f600")),
    ],
)
def test_nothing_is_said_behind_a_backslash_of_a_pattern(pattern, says):
    meaning = Meaning(parameter=lambda node: Value("string", pattern))
    assert predicate_of(sqlglot.parse_one("x LIKE $p", dialect="duckdb"), meaning) == says


def test_texts_with_escapes_of_another_dialect_are_unknown():
    # sqlglot reads X'01' in the dialect of Spark only, where a backslash is the beginning of an escape.
    assert predicate_of("x = X'01'") != UNKNOWN
    assert predicate_of(r"y = 'a\nb' AND x = X'01'") == UNKNOWN
    assert predicate_of(r"y = 'a\nb' AND x = 1") == Comparison(X, "=", ONE)
    with pytest.raises(SqlError):
        predicate_of("x = 7.0D", dialects=("duckdb",))


@pytest.mark.parametrize("text", ["", "x =", "SELECT 1", "x = 1; DROP TABLE t", "'", "x = 1 AS y", "x" * 2_000_000])
def test_what_is_no_predicate_is_an_error(text):
    with pytest.raises(SqlError) as caught:
        predicate_of(text)
    assert caught.value.code == "syntax-error"


def test_long_predicates_are_understood():
    many = " OR ".join(f"x = {i}" for i in range(5_000))
    found = predicate_of(many)
    assert isinstance(found, Group)
    assert len(found.items) == 5_000


@pytest.mark.parametrize("text", ["NOT " * 500 + "x", "(" * 3_000 + "x = 1" + ")" * 3_000])
def test_deep_predicates_are_unknown_or_refused(text):
    try:
        found = predicate_of(text)
    except SqlError:
        return
    assert found == UNKNOWN


def test_case_is_known_of_ascii_letters_alone():
    path = ("x",)
    assert predicate_of("x ILIKE 'Aé_b'") == Group("AND", (ContainsFolded(path, "A"), ContainsFolded(path, "b")))
    assert predicate_of("lower(x) LIKE '%ab%'") == ContainsFolded(path, "ab")
    assert predicate_of("regexp_matches(x, '(?i)é')") == UNKNOWN


def test_texts_are_read_as_their_engine_has_them():
    path = ("x",)
    assert predicate_of("x LIKE 'a!%b%c' ESCAPE '!'") == Group(
        "AND", (Contains(path, "a%b", begins=True), Contains(path, "c"))
    )
    certain = Meaning(is_duckdb=True)
    assert predicate_of(r"x LIKE 'a\_%' ESCAPE '\'", certain) == Contains(path, "a_", begins=True)
    assert predicate_of(r"x LIKE 'a\_%' ESCAPE '\'") == UNKNOWN
    assert predicate_of(r"regexp_matches(x, 'a\d+bc')", certain) == Group(
        "AND", (Contains(path, "a"), Contains(path, "bc"))
    )
    assert predicate_of("0 < strpos(x, 'ab')") == Contains(path, "ab") == predicate_of("position('ab' IN x) >= 1")
