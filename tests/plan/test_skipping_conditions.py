"""Predicates of SQL as conditions for skipping metadata."""

from __future__ import annotations

from decimal import Decimal

import pytest
import sqlglot

from kartosql.errors import SqlError
from kartosql.formats.xskipper.conditions import (
    UNKNOWN,
    Compare,
    Constant,
    Extracted,
    Group,
    NotNull,
    OneOf,
    StartsWith,
    Value,
)
from kartosql.plan.skipping import condition_of

pytestmark = pytest.mark.usefixtures("no_collection")  # some statements are as deep as may be

X = ("x",)
DOUBLE_ONE = Value("double", 1.0)
ONE, TWO = Value("integer", 1), Value("integer", 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", Compare(X, "=", ONE)),
        ("1 < x", Compare(X, ">", ONE)),
        ("NOT x < 1", Compare(X, ">=", ONE)),
        ("NOT (x = 1 OR y > 2)", Group("AND", (Compare(X, "<>", ONE), Compare(("y",), "<=", TWO)))),
        ("X != -1", Compare(X, "<>", Value("integer", -1))),
        ('"X" == 1.50', Compare(X, "=", Value("decimal", Decimal("1.50")))),
        ("x = 1e3", Compare(X, "=", Value("double", 1000.0))),
        ("x = 7.0D", Compare(X, "=", Value("double", 7.0))),
        ("x = CAST(0.1 AS FLOAT)", Compare(X, "=", Value("float", 0.10000000149011612))),
        ("x BETWEEN 1 AND 2", Group("AND", (Compare(X, ">=", ONE), Compare(X, "<=", TWO)))),
        ("x NOT BETWEEN 1 AND 2", Group("OR", (Compare(X, "<", ONE), Compare(X, ">", TWO)))),
        ("x BETWEEN 1 AND 2e0", Group("AND", (Compare(X, ">=", DOUBLE_ONE), Compare(X, "<=", Value("double", 2.0))))),
        ("x BETWEEN 1 AND NULL", Constant(False)),
        ("NOT (x > 1.5D)", Compare(X, "<=", Value("double", 1.5))),
        ("x = -" + "9" * 30 + ".5", Compare(X, "=", Value("decimal", Decimal("-" + "9" * 30 + ".5")))),
        ("`x` = to_date('1970-01-02')", Compare(X, "=", Value("date", 1))),
        ("x IN (1, 2, NULL)", OneOf(X, (ONE, TWO))),
        ("x IN (1, 2e0)", OneOf(X, (DOUBLE_ONE, Value("double", 2.0)))),
        ("x NOT IN (1, 2)", OneOf(X, (ONE, TWO), True)),
        ("x IN (NULL)", Constant(False)),
        ("x = NULL", Constant(False)),
        ("x IS NOT NULL", NotNull(X)),
        ("NOT x IS NULL", NotNull(X)),
        ("x", Compare(X, "=", Value("boolean", True))),
        ("NOT x", Compare(X, "=", Value("boolean", False))),
        ("x IS FALSE", Compare(X, "=", Value("boolean", False))),
        ("x IS NOT DISTINCT FROM 1", Compare(X, "=", ONE)),
        ("x LIKE 'a_b%'", StartsWith(X, "a")),
        ("x LIKE '%'", StartsWith(X, "")),
        ("x LIKE 'ab'", Compare(X, "=", Value("string", "ab"))),
        ("starts_with(x, 'ab')", StartsWith(X, "ab")),
        ("a.b.c.d.e = 1", Compare(("a", "b", "c", "d", "e"), "=", ONE)),
        ("A['b'].C = 1", Compare(("a", "b", "c"), "=", ONE)),
        ("struct_extract(a, 'b') = 1", Compare(("a", "b"), "=", ONE)),
        ("x = DATE '1970-01-02'", Compare(X, "=", Value("date", 1))),
        ("x > TIMESTAMP '1970-01-01 00:00:01.5'", Compare(X, ">", Value("timestamp", 1_500_000))),
        ("x = TIMESTAMPTZ '1970-01-01 00:00:01+01'", Compare(X, "=", Value("instant", -3_599_000_000))),
        ("x = TIMESTAMP '1970-01-01 00:00:01+01'", Compare(X, "=", Value("shifted", -3_599_000_000))),
        ("x = to_date('1970-01-02')", Compare(X, "=", Value("date", 1))),
        ("x = date('1970-01-02')", Compare(X, "=", Value("date", 1))),
        ("x = double('2.5')", Compare(X, "=", Value("double", 2.5))),
        ("x = bigint(5)", Compare(X, "=", Value("integer", 5))),
        ("x = X'0aff'", Compare(X, "=", Value("binary", b"\x0a\xff"))),
        ("regexp_extract(x, '(a)', 1) = 'a'", Extracted(X, "(a)", ("a",))),
        ("x = 1 AND upper(y) = 'A'", Compare(X, "=", ONE)),
        ("x = 1 AND FALSE", Constant(False)),
        ("x = 1 OR TRUE", Constant(True)),
        ("((x)) = ((1))", Compare(X, "=", ONE)),
    ],
)
def test_predicates_are_understood(text, expected):
    assert condition_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "x IS NULL",
        "NOT x IS NOT NULL",
        "x IS NOT TRUE",
        "NOT (x IS TRUE)",
        "x IS DISTINCT FROM 1",
        "NOT x IS NOT DISTINCT FROM 1",
        "x IS NOT DISTINCT FROM NULL",
        "x NOT IN (1, NULL)",
        "x NOT LIKE 'a%'",
        "NOT x LIKE 'a%'",
        "x LIKE 'a!%b' ESCAPE '!'",
        "x ILIKE 'a%'",
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
    assert condition_of(text) == UNKNOWN


def test_parameters_and_columns_may_be_given():
    tree = sqlglot.parse_one("t.x = $p", dialect="duckdb")
    found = condition_of(tree, {"p": TWO}, lambda node: X if node.name == "x" else None)
    assert found == Compare(X, "=", TWO)
    assert condition_of(sqlglot.parse_one("x = $q", dialect="duckdb")) == UNKNOWN


def test_texts_with_escapes_of_another_dialect_are_unknown():
    # sqlglot reads X'01' in the dialect of Spark only, where a backslash is the beginning of an escape.
    assert condition_of("x = X'01'") != UNKNOWN
    assert condition_of(r"y = 'a\nb' AND x = X'01'") == UNKNOWN
    assert condition_of(r"y = 'a\nb' AND x = 1") == Compare(X, "=", ONE)
    with pytest.raises(SqlError):
        condition_of("x = 7.0D", dialects=("duckdb",))


@pytest.mark.parametrize("text", ["", "x =", "SELECT 1", "x = 1; DROP TABLE t", "'", "x = 1 AS y", "x" * 2_000_000])
def test_what_is_no_predicate_is_an_error(text):
    with pytest.raises(SqlError) as caught:
        condition_of(text)
    assert caught.value.code == "syntax-error"


def test_long_predicates_are_understood():
    many = " OR ".join(f"x = {i}" for i in range(5_000))
    found = condition_of(many)
    assert isinstance(found, Group)
    assert len(found.items) == 5_000


@pytest.mark.parametrize("text", ["NOT " * 500 + "x", "(" * 3_000 + "x = 1" + ")" * 3_000])
def test_deep_predicates_are_unknown_or_refused(text):
    try:
        found = condition_of(text)
    except SqlError:
        return
    assert found == UNKNOWN
