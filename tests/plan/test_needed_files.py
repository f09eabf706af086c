"""How many files joins read, against those that the metadata cannot rule out.

Metadata know of a file its partition values and the values of its indexed columns, but not which of them stand in one
row. So a file counts as needed if its rows would, were there one for each combination of these values.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import kartosql
import kartosql.query
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan.prune import prune
from kartosql.store import Store
from written import build_cube, write_dataset

STATEMENTS = 400
WORLDS = 8
TABLES = {"big": "big++seed", "a": "a++seed", "big.d": "big++d", "t": "t"}


class World:
    """Two cubes, a dataset of one of them and a plain dataset, all partitioned by p and indexed by x and i."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        store = Store(f"memory://{uuid.uuid4().hex}")
        big, small = rng.choice([(60, 60), (60, 20), (30, 10), (20, 5), (8, 60)])
        self.rows = {
            "big": _rows(rng, big, "v"),
            "a": _rows(rng, small, "w"),
            "big.d": _rows(rng, rng.choice([big, 4]), "u", index="j"),
            "t": _rows(rng, rng.choice([5, 20]), "v"),
        }
        cube = {"seed": self.rows["big"], "d": self.rows["big.d"]}
        build_cube(store, Cube("big", ["x"], ["p"], index_columns=["i", "j"]), cube)
        build_cube(store, Cube("a", ["x"], ["p"], index_columns=["i"]), {"seed": self.rows["a"]})
        write_dataset(store, "t", self.rows["t"], partition_on="p", index_columns=["x", "i"])
        self.connection = kartosql.connect(store.url)
        self.oracle = duckdb.connect()
        for name, rows in self.rows.items():
            index = "j" if name == "big.d" else "i"
            x = {
                # Of datasets that enrich a cube dimensions are not indexed: a row may have any value.
                "big.d": "(SELECT DISTINCT p FROM given) CROSS JOIN range(1000) r(x)",
                # No index knows NULL, and columns of plain datasets may hold it.
                "t": "(SELECT DISTINCT p, x FROM given UNION SELECT p, NULL FROM given)",
            }.get(name, "(SELECT DISTINCT p, x FROM given)")
            self.oracle.register("given", rows)
            self.oracle.execute(
                f"""CREATE TABLE "{name}" AS SELECT * FROM (SELECT DISTINCT p FROM given)
                JOIN (FROM {x}) USING (p)
                JOIN (SELECT DISTINCT p, {index} FROM given) USING (p)"""
            )
            self.oracle.unregister("given")

    def needed(self, tables: dict[str, str], queries: dict[str, str]) -> int:
        """Return how many files, one for each p, the queries of each alias find."""
        found = 0
        for alias in tables:
            ((count,),) = self.oracle.execute(queries[alias]).fetchall()
            found += count
        return found


def _rows(rng: random.Random, files: int, payload: str, index: str = "i") -> pa.Table:
    first = rng.choice([0, 0, 0, 10])
    values, rows = rng.choice([(5, 10), (40, 60)])
    cells = sorted({(p, rng.randrange(values)) for p in range(first, first + files) for _ in range(rows)})
    spread = rng.choice([files // 3 + 1, 40])
    return pa.table(
        {
            "p": [p for p, _ in cells],
            "x": [x for _, x in cells],
            index: [rng.randrange(spread) for _ in cells],
            payload: [rng.randrange(5) for _ in cells],
        }
    )


def _condition(rng: random.Random, alias: str, index: str) -> str:
    def one() -> str:
        column = rng.choice(["p", "x", index, index])
        value = rng.randrange(rng.choice([5, 30, 60]))
        return rng.choice(
            [
                f"{alias}.{column} = {value}",
                f"{alias}.{column} IN ({value}, {value + 3})",
                f"{alias}.{column} BETWEEN {value} AND {value + 2}",
                f"{alias}.{column} > {value}",
                f"({alias}.{rng.choice('px')} IS NULL OR {alias}.{column} = {value})",
                f"({alias}.p = {value} OR {alias}.{index} = {value + 1})",
                f"{alias}.{column} = 999",
            ]
        )

    return " AND ".join(one() for _ in range(rng.choice([1, 1, 2])))


def _statement(rng: random.Random) -> tuple[str, dict[str, str], dict[str, str]]:
    """Return a statement over two tables l and r, the tables, and queries that count the files of each."""
    tables = dict(zip("lr", rng.sample(list(TABLES), 2), strict=True))
    left, right = (f"{name} {alias}" for alias, name in tables.items())
    of = {alias: f'"{name}" {alias}' for alias, name in tables.items()}
    where = dict.fromkeys(tables, "true")
    for alias in rng.choice(["l", "r", "r", "lr", "lr"]):
        where[alias] = _condition(rng, alias, "j" if tables[alias] == "big.d" else "i")
    both = f"{where['l']} AND {where['r']}"
    keys = rng.choice([["p"], ["p", "x"], ["p", "x"], ["x"]])
    on = " AND ".join(f"l.{k} = r.{k}" for k in keys)
    count = {alias: f"SELECT count(DISTINCT {alias}.p) FROM {{}}" for alias in tables}
    inner = {alias: text.format(f"{of['l']}, {of['r']} WHERE {on} AND {both}") for alias, text in count.items()}
    kind = rng.choice(["using", "on", "comma", "in", "exists", "semi", "left", "left on", "right", "anti", "cross"])
    if kind == "left" and "IS NULL" in where["r"]:
        kind = "on"  # whether each row of l has a partner is nothing that metadata know
    if kind == "using":
        return f"SELECT count(*) FROM {left} JOIN {right} USING ({', '.join(keys)}) WHERE {both}", tables, inner
    if kind == "on":
        return f"SELECT count(*) FROM {left} JOIN {right} ON {on} AND {both}", tables, inner
    if kind == "comma":
        return f"SELECT count(*) FROM {left}, {right} WHERE {on} AND {both}", tables, inner
    if kind == "in":
        listed = f"({', '.join(f'l.{k}' for k in keys)}) IN (SELECT {', '.join(keys)} FROM {right} WHERE {where['r']})"
        if len(keys) > 1:
            listed = f"EXISTS (SELECT 1 FROM {right} WHERE {on} AND {where['r']})"
        return f"SELECT count(*) FROM {left} WHERE {where['l']} AND {listed}", tables, inner
    if kind == "exists":
        exists = f"EXISTS (SELECT 1 FROM {right} WHERE {on} AND {where['r']})"
        return f"SELECT count(*) FROM {left} WHERE {exists} AND {where['l']}", tables, inner
    if kind == "semi":
        return (
            f"SELECT count(*) FROM {left} SEMI JOIN {right} ON {on} AND {where['r']} WHERE {where['l']}",
            tables,
            inner,
        )
    if kind == "cross":
        crossed = {a: t.format(f"{of['l']}, {of['r']} WHERE {both}") for a, t in count.items()}
        return f"SELECT count(*) FROM {left}, {right} WHERE {both}", tables, crossed
    if kind == "left":
        joined = f"LEFT JOIN {{}} ON {on} WHERE {both}"
        outer = {a: t.format(f"{of['l']} {joined.format(of['r'])}") for a, t in count.items()}
        return f"SELECT count(*) FROM {left} {joined.format(right)}", tables, outer
    if kind in ("left on", "right"):
        side = "LEFT" if kind == "left on" else "RIGHT"
        joined = f"{side} JOIN {{}} ON {on} AND {where['r']} WHERE {where['l']}"
        outer = {a: t.format(f"{of['l']} {joined.format(of['r'])}") for a, t in count.items()}
        return f"SELECT count(*) FROM {left} {joined.format(right)}", tables, outer
    # That a combination of values has a partner does not tell that a row has: all files of l may hold one without.
    anti = {"l": count["l"].format(f"{of['l']} WHERE {where['l']}"), "r": inner["r"]}
    return f"SELECT count(*) FROM {left} ANTI JOIN {right} ON {on} AND {where['r']} WHERE {where['l']}", tables, anti


@pytest.fixture(scope="module")
def worlds() -> Iterator[list[World]]:
    made = [World(seed) for seed in range(WORLDS)]
    yield made
    for world in made:
        world.connection.close()


def selected(connection: Any, sql: str) -> int:
    """Return how many files a statement reads."""
    scans = connection.explain(sql).to_dict()["scans"]
    return sum(len(dataset["files"]) for scan in scans for dataset in scan["datasets"])


def test_joins_read_at_most_twice_the_files_that_metadata_need_in_99_of_100_statements(worlds):
    rng = random.Random(5)
    beyond = []
    for number in range(STATEMENTS):
        world = worlds[number % WORLDS]
        sql, tables, queries = _statement(rng)
        needed, read = world.needed(tables, queries), selected(world.connection, sql)
        if read > 2 * max(needed, 1):
            beyond.append(
                f"{read} for {needed}: {sql} ({ {n: r['p'].value_counts().__len__() for n, r in world.rows.items()} })"
            )
    assert len(beyond) <= STATEMENTS / 100, "\n".join([f"{len(beyond)}", *beyond])


def test_joins_that_prune_each_other_answer_as_over_all_files(worlds, monkeypatch):
    rng = random.Random(5)
    for number in range(STATEMENTS):
        world = worlds[number % WORLDS]
        sql = _statement(rng)[0]
        rows = world.connection.sql(sql).rows()
        if number % 4 == 0:
            with monkeypatch.context() as patch:
                patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
                assert world.connection.sql(sql).rows() == rows, sql


BIG, SMALL = 20, 5


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    """``big`` has 20 files by p, ``small`` 5 of these, each p with two rows of i; ``none`` has no row."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    for name, files in (("big", BIG), ("small", SMALL)):
        rows = pa.table({"p": [p // 2 for p in range(2 * files)], "i": list(range(2 * files)), "v": [1, None] * files})
        write_dataset(store, name, rows, partition_on="p", index_columns="i")
    cells = pa.table({"p": [0, 0, 1], "x": [1, 2, 1], "i": [5, 6, 7]})
    more = pa.table({"p": [0, 0, 1], "x": [1, 2, 1], "u": [1, None, 3]})
    build_cube(store, Cube("c", ["x"], ["p"], index_columns=["i"]), {"seed": cells, "d": more})
    with kartosql.connect(store.url) as made:
        made.register("none", pa.table({"p": pa.array([], pa.int64())}))
        yield made


NO_ROW = "(SELECT * FROM small WHERE i = 99)"


@pytest.mark.parametrize(
    ("sql", "files"),
    [
        # Partition values of the files that are left.
        ("SELECT * FROM big JOIN small USING (p) WHERE small.i = 3", 2),
        ("SELECT * FROM small JOIN big USING (p)", 2 * SMALL),
        ("SELECT * FROM big WHERE p IN (SELECT p FROM small WHERE i > 5)", 4),
        ("SELECT * FROM small WHERE i = 3 AND p IN (SELECT p FROM big)", 2),
        ("SELECT * FROM big WHERE EXISTS (SELECT 1 FROM small WHERE small.p = big.p AND i IN (0, 9))", 4),
        ("SELECT * FROM small LEFT JOIN big USING (p) WHERE small.i = 3", 2),
        ("SELECT * FROM big LEFT JOIN small USING (p) WHERE small.i = 3", 2),
        ("SELECT * FROM big LEFT JOIN small ON big.p = small.p AND small.i = 3", BIG + 1),
        ("SELECT * FROM big RIGHT JOIN small USING (p)", 2 * SMALL),
        ("SELECT * FROM big RIGHT JOIN small ON big.p = small.p AND small.i = 3", 1 + SMALL),
        ("SELECT * FROM big RIGHT JOIN small ON big.p = small.p AND small.p = 3", 1 + SMALL),
        ("SELECT * FROM big RIGHT JOIN small s(a, b, c) ON big.p = a AND b = 3", 1 + SMALL),
        ("SELECT * FROM small LEFT JOIN big ON big.v = small.v AND big.p = small.p AND small.i = 99", SMALL),
        ("SELECT * FROM small LEFT JOIN big ON big.p = small.p AND (small.i = 3 OR big.v = 1)", 2 * SMALL),
        ("SELECT * FROM small ANTI JOIN big ON big.p = small.p AND small.i = 3", 1 + SMALL),
        ("SELECT * FROM small FULL JOIN big ON big.p = small.p AND small.i = 3", BIG + SMALL),
        ("SELECT * FROM big FULL JOIN small USING (p)", BIG + SMALL),
        ("SELECT * FROM big ANTI JOIN small USING (p)", BIG + SMALL),
        ("SELECT * FROM small ANTI JOIN big USING (p)", 2 * SMALL),
        ("SELECT * FROM big WHERE p NOT IN (SELECT p FROM small)", BIG + SMALL),
        ("SELECT * FROM (SELECT p, count(*) FROM big GROUP BY p) b JOIN small USING (p) WHERE i = 3", 2),
        ("SELECT * FROM (SELECT p, i, sum(i) OVER () s FROM big) b JOIN small USING (p) WHERE small.i = 3", BIG + 1),
        ("WITH b AS (FROM big) SELECT * FROM b JOIN small USING (p) WHERE small.i = 3", 2),
        ("SELECT * FROM c JOIN c.d USING (p, x) WHERE c.i = 7", 3),
        ("SELECT * FROM c.d JOIN c USING (p) WHERE c.i = 99", 0),
        ("SELECT * FROM big b, big o, small WHERE b.p = o.p AND o.p = small.p AND small.i = 3", 3),
        # A source without a row.
        ("SELECT * FROM big, none", 0),
        (f"SELECT * FROM big, {NO_ROW}", 0),
        (f"SELECT count(*), max(big.i) FROM big, {NO_ROW} s", 0),
        (f"SELECT * FROM {NO_ROW} s, big b JOIN small USING (p)", 0),
        (f"SELECT * FROM big JOIN {NO_ROW} s ON big.p + s.p = 3", 0),
        (f"SELECT * FROM {NO_ROW} s LEFT JOIN big ON big.v = s.v", 0),
        (f"SELECT * FROM big RIGHT JOIN {NO_ROW} s ON big.v = s.v", 0),
        (f"SELECT * FROM big SEMI JOIN {NO_ROW} s ON big.v = s.v", 0),
        (f"SELECT * FROM {NO_ROW} s ANTI JOIN big ON big.v = s.v", 0),
        (f"SELECT * FROM big, (SELECT t.p FROM {NO_ROW} t, small) s", 0),
        (f"SELECT * FROM (SELECT count(*) FROM big) b, {NO_ROW} s", 0),
        (f"SELECT (SELECT count(*) FROM big), count(*) FROM {NO_ROW} s", BIG),
        (f"SELECT * FROM big LEFT JOIN {NO_ROW} s ON big.v = s.v", BIG),
        (f"SELECT * FROM big FULL JOIN {NO_ROW} s ON big.v = s.v", BIG),
        (f"SELECT * FROM {NO_ROW} s FULL JOIN big ON big.v = s.v", BIG),
        (f"SELECT * FROM {NO_ROW} s RIGHT JOIN big ON big.v = s.v", BIG),
        (f"SELECT * FROM big ANTI JOIN {NO_ROW} s ON big.v = s.v", BIG),
        (f"SELECT * FROM big POSITIONAL JOIN {NO_ROW} s", BIG),
        (f"SELECT * FROM big ASOF LEFT JOIN {NO_ROW} s ON big.p = s.p AND big.i >= s.i", BIG),
        (f"SELECT * FROM big, (SELECT count(*) FROM {NO_ROW}) s", BIG),
        (f"SELECT * FROM big, (SELECT max(p) FROM {NO_ROW}) s", BIG),
        (f"SELECT * FROM big, (SELECT first(p) m FROM {NO_ROW}) s", BIG),
        (f"SELECT * FROM big, (SELECT list(p) m FROM {NO_ROW}) s", BIG),
        (f"SELECT * FROM big, (SELECT count(*) FROM {NO_ROW} GROUP BY ()) s", BIG),
        (f"SELECT * FROM big, (SELECT p FROM {NO_ROW} GROUP BY ROLLUP (p)) s", BIG),
        (f"SELECT * FROM big, (SELECT p FROM {NO_ROW} UNION ALL SELECT 1) s", BIG),
        (f"SELECT * FROM big b LEFT JOIN (small JOIN {NO_ROW} s USING (p)) ON b.v = s.v", BIG + SMALL),
        (f"SELECT * FROM small b JOIN ({NO_ROW} s RIGHT JOIN big USING (p)) ON b.p = big.p", BIG + 2 * SMALL),
        (
            f"SELECT * FROM small b JOIN (({NO_ROW}) s RIGHT JOIN big USING (p)) ON b.p = big.p AND b.i = 3",
            BIG + 1 + SMALL,
        ),
        (f"SELECT b.p FROM big b SEMI JOIN {NO_ROW} s USING (p) FULL JOIN small o ON b.v = o.v", SMALL),
        (f"WITH s AS {NO_ROW}, b AS (FROM big) SELECT 1 FROM b, s UNION ALL SELECT 2 FROM b", BIG),
        ("SELECT * FROM big WHERE EXISTS (SELECT 1 FROM small WHERE i = 99 AND small.v = big.v)", 0),
        # A dimension, or a partition key, is never NULL; where a join fills it, it may be.
        ("SELECT p, x, i FROM c WHERE x IS NULL OR i = 7", 1),
        ("SELECT * FROM c WHERE x IS NULL", 0),
        ("SELECT p, x, i FROM c WHERE NOT (x IS NOT NULL) OR p = 1", 1),
        ("SELECT * FROM c.d WHERE x IS NULL OR p = 1", 1),
        ("SELECT * FROM c WHERE x IS NULL OR u = 1", 4),
        ("SELECT * FROM c WHERE u IS NULL OR p = 1", 4),
        ("SELECT c.i FROM c JOIN small USING (p) WHERE c.x IS NULL OR c.p = 1", 2),
        ("SELECT c.i FROM big LEFT JOIN c USING (p) WHERE c.x IS NULL OR c.p = 1", BIG + 2),
        ("SELECT * FROM big WHERE i IS NULL OR p = 1", BIG),
        ("SELECT * FROM big JOIN small USING (i) WHERE small.i IS NULL OR small.p = 1", None),
        ("SELECT * FROM small JOIN small s USING (i) WHERE small.i IS NULL OR small.p = 1", 1 + SMALL),
        ("SELECT * FROM big LEFT JOIN small USING (i) WHERE big.i IS NULL OR big.p = 1", BIG + SMALL),
        ("SELECT * FROM big LEFT JOIN small ON big.i = small.i AND (small.i IS NULL OR small.p = 1)", BIG + 1),
        ("SELECT * FROM big JOIN small ON big.i IS NOT DISTINCT FROM small.i WHERE big.i IS NULL OR big.p = 1", None),
        ("SELECT * FROM c y(p, q, r) WHERE r IS NULL OR q = 1", None),
    ],
)
def test_files_that_a_join_or_a_column_without_null_leaves(connection, monkeypatch, sql, files):
    rows = sorted(map(repr, connection.sql(sql).rows()))
    with monkeypatch.context() as patch:
        patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
        assert rows == sorted(map(repr, connection.sql(sql).rows()))
    assert files is None or selected(connection, sql) == files
