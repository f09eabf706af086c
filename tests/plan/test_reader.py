"""What atoms of a statement say as trees: the same as their texts, read on their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import kartosql
import kartosql.query
from kartosql.indexes.metadata_terms import in_metadata_terms
from kartosql.plan.prune import prune
from kartosql.predicate.from_sql import predicate_of
from kartosql.predicate.tree import UNKNOWN, Comparison, Constant, Group, In, Opaque, Value, group, mapped, renamed
from kartosql.store import Store
from written import write_dataset

LISTED = ", ".join(map(str, range(-50, 150)))
TEXTS = ", ".join(f"'it''s {n}'" for n in range(120))
COLUMNS = {"i", "d", "s", "b", "day", "at", "r", "p"}
ONE, TWO = Value("integer", 1), Value("integer", 2)
PREDICATES = (
    "i = 1",
    "1 < i",
    "i <> -1.50",
    "i >= 1e3 AND i < 12345678901234567890",
    "NOT i < 1 OR NOT (i = 5 AND d > 2.5)",
    "NOT NOT i = 1",
    "i BETWEEN 1 AND 2 AND d NOT BETWEEN 1.5 AND 2.5",
    "NOT i BETWEEN 1 AND 2",
    "i IN (1, 2, NULL) AND d NOT IN (1, 2)",
    "NOT i IN (3, 4)",
    "i IN (5)",
    f"i IN ({LISTED})",
    f"s IN ({TEXTS}) AND i = 1",
    "s IS NOT NULL AND i IS NULL",
    "NOT s IS NULL",
    "s NOTNULL",
    "b",
    "NOT b",
    "b IS TRUE AND b IS NOT FALSE",
    "i IS NOT DISTINCT FROM 1",
    "i IS DISTINCT FROM 1",
    "i < 1 + 1 OR day > DATE '2020-01-01' - 7",
    "s LIKE 'a_b%' OR s LIKE 'ab'",
    "s NOT LIKE 'a%'",
    "NOT s LIKE 'a%'",
    "s ILIKE 'a%'",
    "starts_with(s, 'ab') OR s ^@ 'x'",
    "contains(s, 'ab') OR s LIKE '%ab_c%'",
    "NOT contains(s, 'ab')",
    "t.s = 'it''s' AND \"S\" > 'b'",
    "day = DATE '2020-01-02' OR day > '2020-01-03'",
    "at >= TIMESTAMP '2020-01-01 00:00:01.5' AND at < '2021-01-01'",
    "at = TIMESTAMPTZ '2020-01-01 00:00:01+01'",
    "i = CAST('5' AS BIGINT) AND d = 0.1::FLOAT",
    "r.x = 1 AND t.r.y['z'] = 2",
    "r['x'] = 1 AND struct_extract(r, 'x') > 2",
    "regexp_extract(s, '(a)', 1) = 'a' AND regexp_extract(s, '(a)', 1) IN ('b', 'c')",
    "upper(s) = 'A' AND i + 1 = 2",
    "i = 1 AND TRUE",
    "i = 1 AND (FALSE OR NULL)",
    "i = d",
    "(i, d) = (1, 2)",
    "i = 1 = b",
    "i = ANY([1, 2])",
    "(((i = 1)) AND ((((d = 2)) AND b)))",
    "i = 1 /* a comment */ AND d = 2 -- another one",
)


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    store = Store(f"memory://{uuid.uuid4().hex}")
    member = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.int64())]))])
    columns = {"i": pa.int64(), "d": pa.float64(), "s": pa.string(), "b": pa.bool_(), "day": pa.date32()}
    columns |= {"at": pa.timestamp("us"), "r": member, "p": pa.int64()}
    table = pa.table({name: pa.array([None, None], type_) for name, type_ in columns.items()})
    write_dataset(store, "t", table.set_column(7, "p", pa.array([1, 2])), partition_on=["p"])
    with kartosql.connect(store.url) as made:
        yield made


def conditions(connection: Any, sql: str, parameters: Any = None) -> list[Any]:
    """Return the conditions on the first table of a statement."""
    scans = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kartosql.query, "prune", lambda *a, **k: scans.append(prune(*a, **k)) or scans[-1])
        connection.explain(sql, parameters)
    (scan,) = scans
    return list(scan.occurrences[0].predicates)


def said(condition: Any) -> Any:
    return told(in_metadata_terms(condition, 0, COLUMNS))


def in_text(condition: Any) -> Any:
    """Return what the text of a condition says when it is read on its own."""
    if isinstance(condition, Group):
        return group(condition.op, [in_text(item) for item in condition.items])
    if condition.pieces is None:
        return UNKNOWN
    read = predicate_of(condition.render(lambda ref: ref[1]), dialects=("duckdb",))
    says = renamed(read, lambda path: ((0, path[0]), *path[1:]))
    return in_metadata_terms(Opaque(says=lambda: says), 0, COLUMNS)


def told(predicate: Any) -> Any:
    """Return a predicate with the constants of its long lists."""
    return mapped(predicate, lambda leaf: replace(leaf, listed=leaf.values) if isinstance(leaf, In) else leaf)


def test_what_an_atom_says(connection):
    known = 0
    for text in PREDICATES:
        for condition in conditions(connection, f"SELECT * FROM t WHERE {text}"):
            assert said(condition) == in_text(condition), text
            known += said(condition) != UNKNOWN
    assert known > 45  # else nothing would be compared


def test_statements_of_one_shape_have_trees_of_their_own(connection):
    for i, s in ((1, "ab"), (2, "cd"), (1, "cd")):
        found = conditions(connection, f"SELECT d FROM t WHERE i = {i} AND s IN ('xy', '{s}') AND d > {i}.5")
        assert said(found[0]) == Comparison(("i",), "=", Value("integer", i))
        assert said(found[1]) == In(("s",), (Value("string", "xy"), Value("string", s)))
        assert [said(c) for c in found] == [in_text(c) for c in found]


def test_parameters_have_their_values(connection):
    for value in (1, 2):
        (named,) = conditions(connection, "SELECT * FROM t WHERE i = $n", {"n": value})
        (placed,) = conditions(connection, "SELECT * FROM t WHERE i > ?", [value])
        assert said(named) == Comparison(("i",), "=", Value("integer", value))
        assert said(placed) == Comparison(("i",), ">", Value("integer", value))


def test_aliases_are_what_they_stand_for(connection):
    sql = "SELECT i AS j, i > 1 AS large, 2 AS two FROM t WHERE j = 1 AND large AND d = two"
    found = [said(c) for c in conditions(connection, sql)]
    assert found[:2] == [Comparison(("i",), "=", ONE), Comparison(("i",), ">", ONE)]
    assert found[2] == Comparison(("d",), "=", TWO)


def test_the_clock_is_that_of_the_statement(connection):
    for function in ("current_date", "today()"):
        (found,) = conditions(connection, f"SELECT * FROM t WHERE day = {function}")
        assert said(found) == in_text(found) != UNKNOWN


def test_columns_keep_their_trees_on_their_way(connection):
    sql = "SELECT * FROM (SELECT i AS j, d FROM t) WHERE j = 1 AND d = 2"
    found = [said(c) for c in conditions(connection, sql)]
    assert found == [Comparison(("i",), "=", ONE), Comparison(("d",), "=", TWO)]


def test_columns_that_are_cast_on_their_way_say_nothing(connection):
    sql = "SELECT * FROM (SELECT i::VARCHAR AS j FROM t) WHERE j = '1'"
    assert [said(c) for c in conditions(connection, sql)] == [UNKNOWN]


def test_what_the_parsers_read_differently_is_no_tree(connection):
    # sqlglot compares first and takes the member of TRUE, DuckDB the other way round.
    for text in ("i < 3 -> '$'", "i = 1 -> '$'"):
        for sql in (f"SELECT * FROM t WHERE {text}", f"SELECT {text} AS odd FROM t WHERE odd"):
            assert [said(c) for c in conditions(connection, sql)] == [UNKNOWN]


def test_a_condition_that_never_holds_says_so():
    assert said(Opaque("", ("FALSE",), says=lambda: Constant(False))) == Constant(False)


def test_what_only_the_engine_can_evaluate_is_its_text(connection):
    for text, value in (("1 + $n", "1 + $kartosql_p_n"), ("length('abc')", "length('abc')"), ("(2 * 3)", "(2 * 3)")):
        (found,) = conditions(connection, f"SELECT * FROM t WHERE i < {text}", {"n": 1} if "$" in text else None)
        assert found.says() == Comparison(((0, "i"),), "<", Value("sql", value))
        assert said(found) == UNKNOWN
    (between,) = conditions(connection, "SELECT * FROM t WHERE i BETWEEN 1 AND 1 + 1")
    assert [leaf.value for leaf in between.says().items] == [Value("sql", "1"), Value("sql", "1 + 1")]


def test_a_long_list_is_its_text_until_somebody_needs_its_constants(connection):
    (found,) = conditions(connection, f"SELECT * FROM t WHERE i IN ({LISTED})")
    assert isinstance(found.says(), In)
    assert found.says().listed.text == LISTED
    assert [v.value for v in found.says().values] == list(range(-50, 150))
