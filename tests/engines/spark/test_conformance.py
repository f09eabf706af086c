"""Each expression that Spark claims to answer has DuckDB's values there, over values on which engines differ."""

from __future__ import annotations

import re

import nasty
import pytest

from kartosql.errors import KartosqlError, NotPortable
from sparks import Both, same

BATCH = 90  # expressions in one statement, as each job takes its time


@pytest.fixture(scope="module")
def both(spark, tmp_path_factory):
    with Both(str(tmp_path_factory.mktemp("store")), {"t": nasty.table()}) as found:
        yield found


@pytest.mark.parametrize("first", range(0, len(nasty.EXPRESSIONS), BATCH))
def test_expressions_have_the_same_values_on_both_engines(both, first):
    expressions = nasty.EXPRESSIONS[first : first + BATCH]
    sql = f"SELECT id, {', '.join(expressions)} FROM t ORDER BY id"
    wanted, found = both.on_duckdb(sql), both.on_spark(sql)
    assert [row[0] for row in found] == [row[0] for row in wanted]
    different = {
        e: pairs[:3]
        for at, e in enumerate(expressions, 1)
        if (pairs := [(a[0], a[at], b[at]) for a, b in zip(wanted, found, strict=True) if not same(a[at], b[at])])
    }
    assert not different


def test_what_differs_is_refused_by_name(both):
    for expression in nasty.REFUSED:
        with pytest.raises(NotPortable) as caught:
            both.translation(f"SELECT {expression} FROM t")
        assert caught.value.code == "not-portable"
        named = re.match(r"\w+(?=\()", expression)
        if named and named[0] not in ("row", "list_sum", "array_to_string"):
            assert named[0] in caught.value.message
        if "(" in expression:
            assert caught.value.span is not None, expression


def test_what_fails_in_duckdb_fails_on_spark(both):
    for expression in nasty.FAILING:
        sql = f"SELECT {expression} FROM t"
        with pytest.raises(KartosqlError):
            both.on_duckdb(sql)
        with pytest.raises(KartosqlError) as caught:
            both.on_spark(sql)
        assert caught.value.code in ("invalid-value", "not-portable"), caught.value.message
