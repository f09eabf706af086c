"""Answers that have to agree, over tables in any place; ``python -m tests.trust answers`` asks for more of them."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
import pytest

import kartosql
from differential.regimes import regime
from differential.stores import make_world
from trust import logictest
from trust.partitions import Disagreement, Partitions

# A script as those of SQLite, which are not here: python -m tests.trust answers --corpus FOLDER
SCRIPT = """\
hash-threshold 8

statement ok
CREATE TABLE t1(a INTEGER, b INTEGER, s VARCHAR(10))

statement ok
INSERT INTO t1 VALUES(1, 10, 'x'), (2, NULL, 'y'), (3, 30, NULL), (4, 10, 'x'), (5, -7, 'it''s')

statement ok
CREATE TABLE t2(c INTEGER PRIMARY KEY, d REAL)

statement ok
INSERT INTO t2 SELECT a, b / 4.0 FROM t1

# What others answer otherwise.
onlyif mysql
query I nosort
SELECT 1 / 0

skipif duckdb
query I nosort
SELECT 1 / 0

query IT rowsort
SELECT a, s FROM t1 WHERE b IN (10, 30)
----
1
x

query I nosort
SELECT count(*) FROM t1, t2 WHERE a = c AND d BETWEEN 2 AND 8

query R nosort
SELECT avg(d) FROM t2 WHERE NOT (c < 2 OR c > 4)

query I nosort
SELECT * FROM t1 WHERE s = 'it''s' OR b IS NULL ORDER BY a DESC

query I nosort
SELECT no_column FROM t1

statement ok
INSERT INTO t1 VALUES(6, 30, 'z')

query I nosort
SELECT sum(a) FROM t1 WHERE b = 30

statement ok
CREATE VIEW v AS SELECT a, b FROM t1 WHERE b > 0

query I nosort
SELECT count(*), sum(a) FROM v WHERE b < 30

query I nosort
SELECT a FROM t1 WHERE b < ALL (SELECT b FROM t1 AS x WHERE x.s = 'x') AND EXISTS (SELECT 1 FROM t2 WHERE c = a)
"""


def test_records_are_those_for_duckdb():
    found = list(logictest.records(SCRIPT))
    assert [kind for kind, _ in found] == ["statement"] * 4 + ["query"] * 5 + ["statement", "query"] * 2 + ["query"]
    assert found[4][1] == "SELECT a, s FROM t1 WHERE b IN (10, 30)"


@pytest.mark.parametrize("seed", range(6))
def test_queries_of_a_script_are_answered_as_by_duckdb(seed):
    found = logictest.check_script(SCRIPT, seed)
    assert found.failures == []
    assert (found.alike, found.refused_by_both, found.refused) == (7, 1, {})
    assert found.places.total() == 6


def _no_answer_is_alike():
    return mock.patch.object(logictest.Answer, "is_like", return_value=False)


def test_another_answer_is_told():
    with _no_answer_is_alike(), mock.patch.object(logictest, "_follows_from_order", return_value=False):
        assert len(logictest.check_script(SCRIPT, 0).failures) == 7


def test_answers_that_follow_from_the_order_of_rows_are_told_apart():
    script = "statement ok\nCREATE TABLE t AS SELECT range AS a FROM range(50)\n\nquery I\nSELECT a FROM t LIMIT 1"
    with _no_answer_is_alike():
        found = logictest.check_script(script, 0)
    assert (found.by_order, found.failures) == (1, [])


def test_rows_in_another_order_are_alike_and_others_are_not():
    one, other = (logictest.Answer(["a"], ["DOUBLE"], pa.table({"a": v})) for v in ([1.0, 2.0, 1.0], [2.0, 1.0, 1.0]))
    assert one.is_like(other)
    assert not one.is_like(logictest.Answer(["a"], ["DOUBLE"], pa.table({"a": [1.0, 2.0, 2.0]})))


def test_most_queries_of_a_script_are_asked_together():
    queries = "".join(f"\n\nquery I\nSELECT a FROM t WHERE a > {n} ORDER BY 1 LIMIT 3;" for n in range(40))
    found = logictest.check_script(f"statement ok\nCREATE TABLE t AS SELECT range AS a FROM range(50){queries}", 0)
    assert (found.alike, found.failures) == (40, [])
    assert 20 < found.together < 40


def test_records_of_the_scripts_of_duckdb():
    script = """\
require parquet

loop i 0 9

foreach kind a b

statement ok
INSERT INTO t VALUES (${i}, '${kind}')

endloop

endloop

mode skip

query I
SELECT 1

mode unskip

statement ok con1
DELETE FROM t

query I
SELECT a FROM t
----
1
"""
    assert list(logictest.records(script)) == [
        *(("statement", f"INSERT INTO t VALUES ({i}, '{kind}')") for i in range(3) for kind in "ab"),
        ("query", "SELECT a FROM t"),
    ]
    assert not any(map(logictest.is_asked, ["DESCRIBE t", "SELECT random()", "SELECT * FROM duckdb_tables()"]))


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_all_parts_of_a_predicate(seed, tmp_path):
    with regime(seed):
        world = make_world(seed, str(tmp_path))
        with kartosql.connect(world.store.url, **world.settings) as con:
            partitions = Partitions(world, con)
            for number in range(8):
                partitions.check(number)
        world.plain.close()
    assert partitions.counts["TLP"] == partitions.counts["NoREC"] >= 5
    assert partitions.counts["pivoted"] >= 5


def test_a_lost_row_is_told(tmp_path):
    world = make_world(0, str(tmp_path))

    class Losing:
        def __init__(self, con):
            self._con = con

        def sql(self, text):
            return self._con.sql(f"{text} LIMIT 1" if " WHERE " in text else text)

    with kartosql.connect(world.store.url, **world.settings) as con:
        partitions = Partitions(world, Losing(con))
        with pytest.raises(Disagreement):
            list(map(partitions.check, range(9)))
    world.plain.close()
