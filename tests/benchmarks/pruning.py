"""Statements of all kinds, each with pruning and without: what pruning costs where it brings nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import kartosql.query
from kartosql.plan.prune import prune

# ``{n}`` is the number of the turn, so that no two turns ask for the same values.
STATEMENTS: dict[str, str] = {
    "count(*)": "SELECT count(*) FROM lineitem_few",
    "count(*), all but one key": "SELECT count(*) FROM lineitem_few WHERE l_partkey <> 17{n}",
    "min and max of a key": "SELECT min(l_orderkey), max(l_orderkey) FROM lineitem_few",
    "min and max of a column": "SELECT min(l_shipdate), max(l_extendedprice) FROM lineitem_few",
    "full aggregate": "SELECT l_returnflag, sum(l_quantity) FROM lineitem_few GROUP BY 1",
    "payload condition": "SELECT sum(l_extendedprice * l_discount) FROM lineitem_few WHERE l_quantity < 24.{n}",
    "TPC-H Q6": (
        "SELECT sum(l_extendedprice * l_discount) FROM lineitem_few WHERE l_shipdate >= DATE '1994-01-01' "
        "AND l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24.{n}"
    ),
    "range of keys, most of them": "SELECT count(*), sum(l_tax) FROM lineitem_few WHERE l_partkey > 1{n}",
    "range of keys, half of them": "SELECT count(*), sum(l_tax) FROM lineitem_few WHERE l_orderkey < 30000{n}",
    "key of most files": "SELECT count(*), sum(l_tax) FROM lineitem_few WHERE l_suppkey = 17{n}",
    "function of a key": "SELECT count(*), sum(l_tax) FROM lineitem_few WHERE l_partkey % 7{n} <> 3",
    "LIKE on the partition key": (
        "SELECT count(*), sum(l_tax) FROM lineitem_few WHERE l_shipmonth LIKE '199%' AND l_tax < 9{n}"
    ),
    "OR with a payload column": "SELECT sum(l_tax) FROM lineitem_few WHERE l_partkey = 5{n} OR l_comment LIKE '%zz%'",
    "many keys": "SELECT sum(l_tax) FROM lineitem_few WHERE l_suppkey IN (1, 2, 3, 5, 8, 13, 21, 34, 55, 89{n})",
    "join": (
        "SELECT p_mfgr, sum(l_quantity) FROM lineitem_few JOIN part ON l_partkey = p_partkey "
        "WHERE p_size < 40.{n} GROUP BY 1"
    ),
    "join, few of the small side": (
        "SELECT sum(l_extendedprice) FROM lineitem_few JOIN part ON l_partkey = p_partkey "
        "WHERE p_brand = 'Brand#12' AND p_container = 'SM PKG'"
    ),
    "self-join": (
        "SELECT count(*) FROM lineitem_few a JOIN lineitem_few b USING (l_orderkey) "
        "WHERE a.l_shipmonth = '1995-03' AND b.l_linenumber < 1.{n}"
    ),
    "IN (SELECT), not selective": (
        "SELECT count(*), sum(l_tax) FROM lineitem_few "
        "WHERE l_partkey IN (SELECT p_partkey FROM part WHERE p_size < 45.{n})"
    ),
    "IN (SELECT), selective": (
        "SELECT count(*) FROM lineitem_few WHERE l_partkey IN (SELECT p_partkey FROM part WHERE p_partkey < 9{n})"
    ),
    "EXISTS": (
        "SELECT count(*) FROM part WHERE EXISTS "
        "(SELECT 1 FROM lineitem_few WHERE l_partkey = p_partkey AND l_shipmonth = '1996-02')"
    ),
    "window": (
        "SELECT max(n) FROM (SELECT row_number() OVER (PARTITION BY l_shipmonth ORDER BY l_extendedprice) AS n "
        "FROM lineitem_few WHERE l_shipmonth BETWEEN '1995-01' AND '1995-06' AND l_tax < 9{n})"
    ),
    "UNION ALL": (
        "SELECT count(*) FROM (SELECT l_tax FROM lineitem_few WHERE l_tax > 0.05{n} "
        "UNION ALL SELECT l_tax FROM lineitem_few WHERE l_shipmonth < '1993')"
    ),
    "LIMIT": "SELECT l_orderkey, l_comment FROM lineitem_few LIMIT 10",
    "ORDER BY ... LIMIT": "SELECT l_orderkey, l_extendedprice FROM lineitem_few ORDER BY 2 DESC, 1 LIMIT 10",
    "cube, one dataset": "SELECT l_suppkey, sum(l_quantity) FROM lines GROUP BY 1",
    "cube, three datasets": "SELECT l_returnflag, l_shipmode, count(*), sum(l_quantity) FROM lines GROUP BY ALL",
    "cube, condition on an enrichment": (
        "SELECT l_shipmode, sum(l_quantity) FROM lines WHERE l_tax > 0.04{n} GROUP BY 1"
    ),
}
WITHOUT_ORDER = {"LIMIT"}  # any ten rows are right


def statement(name: str, turn: int) -> str:
    """Return a statement with the values of one turn."""
    return STATEMENTS[name].format(n=f"{turn:02}")


@contextmanager
def switched_off() -> Iterator[None]:
    """Let every dataset that is used be read whole."""
    with patch.object(kartosql.query, "prune", partial(prune, enabled=False)):
        yield
