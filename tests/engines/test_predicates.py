"""What may be evaluated while planning, and how long lists are handled."""

from __future__ import annotations

import json

import duckdb
import pytest

from kartosql.engines.duckdb.evaluator import is_pure, literals, masked, shortened, with_lists, without_places

FUNCTIONS = frozenset({"abs", "list_value", "lower"})


def _tree(predicate: str):
    rows = (
        duckdb.connect()
        .sql("SELECT json_serialize_sql($p)", params={"p": f"SELECT 1 WHERE ({predicate}\n)"})
        .fetchall()
    )
    document = json.loads(rows[0][0])
    assert not document["error"], document
    return without_places(document["statements"][0]["node"]["where_clause"])


@pytest.mark.parametrize(
    "predicate",
    [
        "x IN (SELECT unnest($1))",
        "x NOT IN (SELECT unnest([1, 2, NULL]))",
        "x = ANY($1)",
        "x <> ALL([1, 2])",
        "x IN (SELECT abs($1))",
        "x IN (FROM unnest($1))",
        "x IN (SELECT * FROM unnest([1, abs(-2)]))",
        "x IN (VALUES (1), (abs(-2)))",
        "abs(x) IN (SELECT unnest($1))",
        f"x IN (FROM kartosql_values_{'0f' * 16})",
    ],
)
def test_subqueries_that_list_values_are_pure(predicate):
    assert is_pure(_tree(predicate), lambda: FUNCTIONS)


@pytest.mark.parametrize(
    "predicate",
    [
        "x IN (SELECT y FROM t)",
        "x IN (SELECT unnest($1) FROM t)",
        "x IN (FROM read_text('/etc/passwd'))",
        "x IN (FROM glob('/*'))",
        "x IN (SELECT content FROM read_text('/etc/passwd'))",
        "x IN (SELECT random())",
        "x IN (SELECT unnest([random()]))",
        "x IN (VALUES (random()))",
        "x IN (FROM unnest([random()]))",
        "x IN (SELECT unnest($1) LIMIT 1)",
        "x IN (SELECT unnest($1) WHERE random() < 0.5)",
        "x IN (SELECT unnest($1) USING SAMPLE 1)",
        "x IN (WITH t AS (FROM read_text('a')) SELECT unnest($1))",
        "x IN (SELECT unnest($1) UNION ALL FROM read_text('a'))",
        "x IN (SELECT (SELECT count(*) FROM read_text('a')))",
        "x IN (SELECT COLUMNS(*) FROM unnest([1]))",
        "EXISTS (FROM read_text('a'))",
        "unnest($1) = 1",
        "getvariable('a') = x",
        "x IN (FROM kartosql_values_0)",
        "x IN (FROM kartosql_index_1_0_held)",
        f"x IN (FROM main.kartosql_values_{'0f' * 16})",
        f"x IN (FROM kartosql_values_{'0f' * 16} WHERE random() < 0.5)",
    ],
)
def test_subqueries_that_do_more_are_not_pure(predicate):
    assert not is_pure(_tree(predicate), lambda: FUNCTIONS)


NUMBERS = ", ".join(map(str, range(1_000)))
TEXTS = ",\n".join(f"'it''s {i}'" for i in range(500))


@pytest.mark.parametrize("listed", [NUMBERS, TEXTS, NUMBERS.replace(", ", ",")])
def test_a_long_list_is_cut_to_its_first_literal(listed):
    first = listed.split(",")[0]
    assert shortened(f"x IN ({listed}) AND y = 1") == (f"x IN ({first}) AND y = 1", (listed,))
    assert shortened(f"x not in  ( {listed} )") == (f"x not in  ( {first} )", (listed,))


@pytest.mark.parametrize(
    "predicate",
    [
        f"x = 'a IN ({NUMBERS})'",
        f"x = 'it''s IN ({NUMBERS})'",
        f'"odd IN ({NUMBERS})" = 1',
        f"x IN ({NUMBERS}, NULL)",
        f"x IN ({NUMBERS}, random())",
        f"x IN ({NUMBERS}) -- comment",
        f"x IN (1 /* {NUMBERS} */)",
        f"x = $$ IN ({NUMBERS})$$",
        f"x = $a$ IN ({NUMBERS})$a$",
        f"x = E'\\' IN ({NUMBERS})'",
        f"x = [{NUMBERS}]",
        "x = ' IN (' || lower(y) || '" + "', ' || lower(z) || '" * 100 + "')'",
        "x IN (1, 2, 3)",
    ],
)
def test_everything_else_is_left_as_it_is(predicate):
    assert shortened(predicate) == (predicate, ())


def test_lists_behind_quotes_are_found_all_the_same():
    short, lists = shortened(f"x <> 'a ''(' AND \"y \"\"(\" <> ')' AND x IN ({NUMBERS}) AND z IN ({TEXTS})")
    assert short == "x <> 'a ''(' AND \"y \"\"(\" <> ')' AND x IN (0) AND z IN ('it''s 0')"
    assert lists == (NUMBERS, TEXTS)


@pytest.mark.parametrize(
    ("predicate", "changed"),
    [
        (f"(v IN ({NUMBERS}))", "(v IN (1000 items))"),
        (f"(v NOT IN ({NUMBERS}) AND v > 1)", "(v NOT IN (1000 items) AND v > 1)"),
        (f"(1 + v IN ({NUMBERS}))", None),
        (f"(length(v) IN ({NUMBERS}))", None),
        (f"(xv IN ({NUMBERS}))", None),
        (f"(v::VARCHAR IN ({NUMBERS}))", None),
    ],
)
def test_only_lists_the_column_itself_is_compared_with_are_replaced(predicate, changed):
    assert with_lists(predicate, "v", lambda items: f"{len(items)} items") == (changed or predicate)


def test_literals_have_values_if_they_are_of_one_kind():
    assert literals(["1", "-2", "+3"], texts=True, integers=True) == [1, -2, 3]
    assert literals(["'a'", "'it''s'", "''"], texts=True, integers=True) == ["a", "it's", ""]
    assert literals(["1", "'a'"], texts=True, integers=True) is None
    assert literals(["1"], texts=True, integers=False) is None
    assert literals(["1" * 19], texts=True, integers=True) is None


@pytest.mark.parametrize(
    ("predicate", "mask", "own"),
    [
        ("v = 166461", "v = 1", ("166461",)),
        ("v = -7 AND w > 2.25", "v = -1 AND w > 2.5", ("7", "2.25")),
        ("v IN ('a', 'b 3')", "v IN ('1', '2')", ("'a'", "'b 3'")),
        ('"a 5 \'x" <> 1', '"a 5 \'x" <> 1', ("1",)),
        ('"a""5" = 7', '"a""5" = 1', ("7",)),
        ("v1 > $1 AND #2 = x", "v1 > $1 AND #2 = x", ()),
        ("v > 1e5 AND v < 1_000 AND v <> 0x1F", "v > 1e5 AND v < 1_000 AND v <> 0x1F", ()),
        ("v::DECIMAL(10,2) = 1", "v::DECIMAL(1,2) = 3", ("10", "2", "1")),
    ],
)
def test_literals_are_masked_by_distinct_ones_of_their_kind(predicate, mask, own):
    assert masked(predicate) == (mask, own)


@pytest.mark.parametrize(
    "predicate",
    [
        "v = 'it''s 5'",
        "v = E'a\\' 5'",
        "v = x'00'",
        "v = 'a' -- 5",
        "v = 5 /* 'a */",
        "v = $$5$$",
        "v = $a$5$a$",
        "v = '5",
    ],
)
def test_where_literals_may_hide_nothing_is_masked(predicate):
    assert masked(predicate) is None
