"""How long planning takes: from the text to the scan."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import kartosql.query
from kartosql.connection import Connection

ORDINARY: dict[str, str] = {
    "point": "SELECT * FROM lineitem_many WHERE l_partkey = {0}",
    "point, two keys": "SELECT * FROM lineitem_many WHERE l_orderkey = {0} AND l_suppkey = {1}",
    "partition": "SELECT sum(l_quantity) FROM lineitem_many WHERE l_shipmonth = '199{2}-06'",
    "range of partitions": (
        "SELECT l_shipmonth, sum(l_quantity) FROM lineitem_many "
        "WHERE l_shipmonth BETWEEN '199{2}-02' AND '199{2}-10' GROUP BY 1"
    ),
    "range of keys": "SELECT * FROM lineitem_many WHERE l_partkey BETWEEN {0} AND {0} + 20",
    "AND and OR of several": (
        "SELECT * FROM lineitem_many WHERE l_shipmonth >= '199{2}-03' AND (l_partkey = {0} OR l_suppkey = {1}) "
        "AND l_quantity > 5 AND l_shipmode IN ('AIR', 'RAIL')"
    ),
    "join of two tables": (
        "SELECT p_brand, sum(l_quantity) FROM lineitem_many JOIN part ON l_partkey = p_partkey "
        "WHERE l_partkey = {0} AND l_shipmonth > '199{2}-01' GROUP BY 1"
    ),
    "no condition": "SELECT count(l_tax) FROM lineitem_many WHERE l_tax > 0.0{2}",
}
LISTS = (1_000, 10_000, 100_000)


def ordinary(name: str, turn: int, scale: float) -> str:
    """Return an ordinary statement with values that no other turn has."""
    rng = random.Random(f"{name} {turn}")
    return ORDINARY[name].format(
        rng.randint(1, max(10, int(200_000 * scale))), rng.randint(1, max(10, int(10_000 * scale))), 2 + turn % 7
    )


def listed(count: int, turn: int, scale: float) -> str:
    """Return a statement with a list of ``count`` keys."""
    rng = random.Random(f"{count} {turn}")
    keys = (str(rng.randint(1, max(10, int(200_000 * scale)))) for _ in range(count))
    return f"SELECT * FROM lineitem_many WHERE l_partkey IN ({', '.join(keys)})"


class Planner:
    """Explains statements and notes when the scan is known; the report that follows lists all files."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def plan(self, sql: str) -> tuple[float, float, float]:
        """Return the seconds from the text to the scan, elapsed and of CPU, and to the report of con.explain()."""
        ended = (0.0, 0.0)
        prune: Callable[..., Any] = kartosql.query.prune

        def noting(*arguments: Any, **options: Any) -> Any:
            nonlocal ended
            scan = prune(*arguments, **options)
            ended = (time.perf_counter(), time.process_time())
            return scan

        with patch.object(kartosql.query, "prune", noting):
            used, started = time.process_time(), time.perf_counter()
            self._connection.explain(sql)
            report = time.perf_counter() - started
        return ended[0] - started, ended[1] - used, report
