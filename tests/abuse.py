"""Statements that take all the time or memory that they get: few lines that stand for hundreds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kartosql
from kartosql import untrusted

BIG = 1_000_000_000
AGGREGATES = """
list(a)|array_agg(a ORDER BY a DESC)|string_agg(a::VARCHAR, ',')|histogram(a)|mode(a)|median(a)|quantile_cont(a, 0.5)
count(DISTINCT a)|count(DISTINCT md5(a::VARCHAR))|list(DISTINCT a)|first(a ORDER BY md5(a::VARCHAR))|map([a], [a])
arg_max(a, md5(a::VARCHAR))|max(repeat(a::VARCHAR, 100))|list([a, a, a])|list({'x': a, 'y': a})|entropy(a)|mad(a)
string_agg(DISTINCT a::VARCHAR)|quantile_disc(a, [0.1, 0.5])|product(a + 1)|bit_xor(a)|kurtosis(a)|approx_top_k(a, 9)
"""
WINDOWS = """
row_number()|rank()|dense_rank()|percent_rank()|ntile(7)|lag(a, 1000)|lead(a)|sum(a)|list(a)|median(a)|first_value(a)
count(DISTINCT a)
"""
VALUES = """
repeat('x', {n})|lpad('x', {n}, 'y')|rpad('x', {n}, 'y')|repeat('xy', {n})::BLOB|range({n})|generate_series({n})
list_sort(range({n}))|list_distinct(range({n}))|list_reverse(range({n}))|list_transform(range({n}), lambda x: x + 1)
list_filter(range({n}), lambda x: x % 2 = 0)|list_reduce(range({n}), lambda x, y: x + y)
flatten([range({n}), range({n})])|list_zip(range({n}), range({n}))|array_to_string(range({n}), ',')
list_aggregate(range({n}), 'sum')
bitstring('1', {n})|upper(repeat('x', {n}))|reverse(repeat('x', {n}))
replace(repeat('x', {n}), 'x', 'yyyyyyyyyy')
md5(repeat('x', {n}))|string_split(repeat('x,', {n}), ',')|regexp_replace(repeat('a', {n}), '(a+)+b', '', 'g')
hex(repeat('x', {n}))
regexp_extract_all(repeat('a', {n}), 'a')|to_json(range({n}))|repeat('[', {n})::JSON|unnest(range({n}))
levenshtein(repeat('a', {n}), repeat('b', {n}))|jaccard(repeat('a', {n}), repeat('b', {n}))|format('{{:>{n}}}', 1)
printf('%{n}d', 1)|list_concat(range({n}), range({n}))|map_from_entries(list_zip(range({n}), range({n})))
"""
TEXTS = {
    "SELECT {}1{}": [("(", ")"), ("[", "]"), ("-", ""), ("NOT ", ""), ("abs(", ")"), ("CASE WHEN true THEN ", " END")],
    "SELECT 1{}{}": [
        (" + 1", ""),
        (" || 'x'", ""),
        ("::INT", ""),
        (" AND 1", ""),
        (" OR k", ""),
        (" UNION SELECT 1", ""),
    ],
    "SELECT 1 AS a{}{} FROM t": [(", k", ""), (", *", ""), (", (SELECT max(k) FROM t)", ""), (", sum(k) OVER ()", "")],
    "SELECT count(*) FROM t{}{}": [(", t", ""), (" JOIN t USING (k)", ""), (" CROSS JOIN range(100)", "")],
    "SELECT 1 -- {}{}": [("x", ""), ("/*", "")],
    "SELECT '{}{}'": [("x", ""), ("''", "")],
    "{}SELECT 1{}": [("SELECT * FROM (", ")"), ("EXPLAIN ", ""), ("WITH c AS (SELECT 1) ", "")],
}


class Clock:
    """Time of an owner that passes as it is looked at, so that a busy machine changes nothing.

    Between two looks of an owner that waits are 10 ms at most. Put in place of ``untrusted.time``.
    """

    def __init__(self, look: float = untrusted.TICK / 3) -> None:
        self.now = 0.0
        self._look = look  # there are three for each wait

    def monotonic(self) -> float:
        self.now += self._look
        return self.now


def statements() -> Iterator[str]:
    """Yield all of them."""
    for a in _split(AGGREGATES):
        for count in (10**8, BIG):
            yield f"SELECT {a} FROM range({count}) t(a)"
            yield f"SELECT a % 1000000 AS g, {a} FROM range({count}) t(a) GROUP BY g"
    for a in _split(WINDOWS):
        for over in ("ORDER BY a DESC", "PARTITION BY a % 9999 ORDER BY md5(a::VARCHAR)"):
            yield f"SELECT count(x) FROM (SELECT {a} OVER ({over}) AS x FROM range({BIG}) t(a))"
    for value in _split(VALUES):
        for n in (10**5, 10**7, 2 * 10**9):
            yield f"SELECT {value.replace('{n}', str(n)).replace('{{', '{').replace('}}', '}')}"
    for text, parts in TEXTS.items():
        for before, after in parts:
            for n in (50, 900, 30_000):
                yield text.format(before * n, after * n)
    for n in (3, 5, 8, 20):
        yield f"SELECT count(*) FROM {', '.join(f'range({BIG}) r{i}' for i in range(n))}"
        yield f"SELECT count(*) FROM t GROUP BY CUBE ({', '.join(f'k + {i}' for i in range(n))})"
        chain = ", ".join(f"c{i} AS (SELECT * FROM c{i - 1}, c{i - 1} AS x)" for i in range(1, n + 8)).replace(
            "c0", "t"
        )
        yield f"WITH {chain} SELECT count(*) FROM c{n + 7}"
        step = " UNION ALL ".join(["SELECT a + 1 FROM r"] * n)
        yield f"WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL ({step})) SELECT count(*) FROM r"


def _split(lines: str) -> list[str]:
    return [part for line in lines.strip().splitlines() for part in line.split("|") if "||" not in part]


def small_store(folder: Path) -> Path:
    """Make the store that statements are about: a dataset of four files, whose ``v`` is twice its ``k``."""
    with kartosql.connect(folder) as con:
        con.sql("CREATE DATASET t PARTITION BY (p) INDEX (k) AS SELECT i % 4 p, i k, i * 2 v FROM range(2000) r(i)")
    return folder
