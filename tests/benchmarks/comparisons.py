"""Questions asked twice: as SQL over the store, and by hand over exactly the right files."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import duckdb
import pyarrow as pa

from tests.benchmarks.ideal import Ideal
from tests.benchmarks.lineitem import DIMENSIONS, MONTH, Data, month_of

POINT = "SELECT l_orderkey, l_linenumber, l_quantity, l_extendedprice, l_shipdate FROM {0} WHERE "
MONTHLY = "l_shipmode, count(*) AS n, sum(l_extendedprice * (1 - l_discount)) AS revenue FROM {0} "
PER_MONTH = "count(*) AS n, sum(l_quantity) AS quantity FROM {0} "

# TPC-H query 1 without its ORDER BY.
Q1 = (
    "SELECT l_returnflag, l_linestatus, sum(l_quantity) AS quantity, sum(l_extendedprice) AS base, "
    "sum(l_extendedprice * (1 - l_discount)) AS discounted, "
    "sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS charged, avg(l_quantity) AS mean_quantity, "
    "avg(l_extendedprice) AS mean_price, avg(l_discount) AS mean_discount, count(*) AS orders "
    "FROM {0} WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus"
)
JOINED = (
    "SELECT l_returnflag, l_shipmode, count(*) AS n, sum(l_extendedprice * (1 - l_discount)) AS revenue, "
    "max(l_receiptdate) AS last FROM {0} GROUP BY l_returnflag, l_shipmode"
)
THREE = "{{0}} LEFT JOIN {{1}} USING ({0}) LEFT JOIN {{2}} USING ({0})".format(", ".join(DIMENSIONS))


@dataclass(frozen=True)
class Pair:
    """One statement of ours and the call that answers the same question by hand."""

    sql: str
    by_hand: Callable[[], pa.Table]


@dataclass(frozen=True)
class Comparison:
    """A question whose ``pairs`` take turns; ``limit`` is what ours may cost as multiple of the ideal.

    ``on_the_glob`` is the statement for DuckDB over all files, which we must beat.
    """

    name: str
    limit: float
    pairs: Sequence[Pair]
    on_the_glob: str | None = None


def comparisons(data: Data, ideal: Ideal, turns: int) -> list[Comparison]:
    """Return all questions; those with fresh values have ``turns`` different ones."""
    few, many = data.files["lineitem_few"], data.files["lineitem_many"]
    month = month_of(few[len(few) // 2])
    of_month = [f for f in few if month_of(f) == month]
    members = [data.files[f"lines++{name}"] for name in ("seed", "shipping", "state")]
    return [
        *_points(data, ideal, "l_partkey", turns),
        *_points(data, ideal, "l_orderkey", turns),
        *_keys(ideal, many, turns),
        Comparison(
            "one partition of 80, of 1,000 files",
            1.15,
            [
                Pair(
                    f"SELECT {MONTH}, {MONTHLY} WHERE {MONTH} = '{month}' GROUP BY ALL".format("lineitem_few"),
                    partial(ideal.arrow, f"SELECT '{month}' AS {MONTH}, {MONTHLY} GROUP BY ALL", of_month),
                )
            ],
        ),
        Comparison(
            "full scan of 1,000 files: TPC-H Q1", 1.05, [Pair(Q1.format("lineitem_few"), partial(ideal.arrow, Q1, few))]
        ),
        Comparison(
            "full scan of 1,000 files, grouped by partition key",
            1.05,
            [
                Pair(
                    f"SELECT {MONTH}, {PER_MONTH} GROUP BY {MONTH}".format("lineitem_few"),
                    partial(ideal.by_month, f"SELECT {{month}} AS {MONTH}, {PER_MONTH} GROUP BY 1", few),
                )
            ],
        ),
        Comparison(
            "three datasets of a cube joined",
            1.05,
            [Pair(JOINED.format("lines"), partial(ideal.arrow, JOINED.format(THREE), *members))],
        ),
    ]


def _points(data: Data, ideal: Ideal, column: str, turns: int) -> list[Comparison]:
    table, files = "lineitem_many", data.files["lineitem_many"]
    values = values_of(files, column, turns)
    held = ideal.holding(files, column, values)
    pairs = []
    for value in values:
        sql = f"{POINT}{column} = {value}"
        pairs.append(Pair(sql.format(table), partial(ideal.arrow, sql, held[value])))
    glob = f"read_parquet('{data.glob(table)}', hive_partitioning = true)"
    name = f"point query by {column}, {len(held[values[0]])} of {len(files):,} files"
    return [
        Comparison(f"{name}, repeated", 1.3, pairs[:1], f"{POINT}{column} = {values[0]}".format(glob)),
        Comparison(f"{name}, fresh values", 1.3, pairs),
    ]


def _keys(ideal: Ideal, files: Sequence[str], turns: int) -> list[Comparison]:
    values = values_of(files, "l_partkey", 50 * turns)
    held = ideal.holding(files, "l_partkey", values)
    pairs = []
    for at in range(0, len(values), 50):
        keys = values[at : at + 50]
        needed = sorted({f for key in keys for f in held[key]})
        sql = f"{POINT}l_partkey IN ({', '.join(map(str, keys))})"
        pairs.append(Pair(sql.format("lineitem_many"), partial(ideal.arrow, sql, needed)))
    return [
        Comparison("50 keys of l_partkey, repeated", 1.5, pairs[:1]),
        Comparison("50 keys of l_partkey, fresh values", 1.5, pairs),
    ]


def values_of(files: Sequence[str], column: str, count: int) -> list[int]:
    """Return values of a column in an order of no meaning, the same in every run."""
    with duckdb.connect(":memory:") as connection:
        sql = f"SELECT DISTINCT {column} FROM read_parquet(?, hive_partitioning = false) ORDER BY 1"
        found = [value for (value,) in connection.execute(sql, [list(files[::7])]).fetchall()]
    rng = random.Random(f"{column} {count}")
    return rng.sample(found, count) if count <= len(found) else rng.choices(found, k=count)
