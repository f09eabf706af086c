"""Random statements, answered three ways: pruned, unpruned, and over tables made without the library's reader."""

from __future__ import annotations

import datetime as dt
import math
import os
import random
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
import kartosql
import kartosql.query
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan.prune import prune
from kartosql.store import Store
from kartosql.write.build import build_cube, write_dataset

NAN = float("nan")
INTS = [-7, -1, 0, 1, 2, 3, 4, 5, 9, 2**53 + 1]
BIG = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [-1.5, -0.0, 0.0, 1.0, 2.5, 1e300, float("inf"), -float("inf")]
TEXTS = ["", "a", "A", "b", "é", "日本", "it's", 'quo"te', "a/b", "a%b", "10", "9"]
DATES = [dt.date(1850, 3, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2020, 2, 29), dt.date(2021, 1, 1)]
TIMES = [dt.datetime(1969, 12, 31, 23, 59, 59, 5), dt.datetime(2020, 2, 29), dt.datetime(2020, 2, 29, 12, 30)]
BYTES = [b"", b"a", b"ab", b"b", b"\xff\xfe"]
CUBE = Cube("c", ["x", "y"], ["p", "b"], index_columns=["i1", "s1", "j1", "d1", "n1"])

# kind of each column, by table
TABLES: dict[str, dict[str, str]] = {
    "c": {
        "x": "int", "y": "text", "p": "int", "b": "bool", "i1": "int", "s1": "text", "d1": "date", "u": "big",
        "v": "float", "t": "text", "w": "int", "j1": "int", "q": "text", "k": "text", "n1": "float", "f": "bool",
    },
    "t": {"q": "text", "i": "int", "g": "float", "s": "text", "o": "bytes", "e": "date", "m": "time", "u": "big"},
    "z": {"r": "date", "h": "float", "i": "int", "k": "text"},
    "c.one": {"x": "int", "p": "int", "b": "bool", "w": "int", "j1": "int"},
    "c.two": {"y": "text", "q": "text", "k": "text", "n1": "float", "f": "bool"},
}  # fmt: skip
PRUNING = {"x", "y", "p", "b", "i1", "s1", "d1", "j1", "q", "n1", "i", "g", "s", "o", "e", "r", "h"}
VALUES = {
    "int": INTS, "big": BIG, "float": FLOATS, "text": TEXTS, "date": DATES, "time": TIMES, "bytes": BYTES,
    "bool": [True, False],
}  # fmt: skip
ARROW = {
    "int": pa.int64(), "big": pa.uint64(), "float": pa.float64(), "text": pa.string(), "date": pa.date32(),
    "time": pa.timestamp("us"), "bytes": pa.binary(), "bool": pa.bool_(),
}  # fmt: skip


# -- stores ------------------------------------------------------------------------------------


def _column(rng: random.Random, kind: str, size: int, *, nulls: bool, spread: int = 6) -> pa.Array:
    pool = rng.sample(VALUES[kind], min(spread, len(VALUES[kind])))
    if nulls:
        pool = [*pool, None, NAN] if kind == "float" else [*pool, None]
    return pa.array([rng.choice(pool) for _ in range(size)], ARROW[kind], from_pandas=False)


def _rows(rng: random.Random, kinds: dict[str, str], size: int, solid: set[str], cell: list[str]) -> pa.Table:
    table = pa.table({c: _column(rng, k, size, nulls=c not in solid) for c, k in kinds.items()})
    if not cell:
        return table
    seen: dict[Any, int] = {}
    for at, row in enumerate(table.select(cell).to_pylist()):
        seen.setdefault(tuple(row.values()), at)
    return table.take(pa.array(sorted(seen.values()), pa.int64()))


def _of(table: str, *columns: str) -> dict[str, str]:
    return {c: TABLES[table][c] for c in columns}


def make_store(seed: int) -> Store:
    """Return a store with a cube of three datasets and two plain ones; all have overlays or second writes."""
    rng = random.Random(seed)
    store = Store(f"memory://{uuid.uuid4().hex}")
    members = {
        "seed": (_of("c", "x", "y", "p", "b", "i1", "s1", "d1", "u", "v", "t"), ["p", "b"], ["p", "b", "x", "y"]),
        "one": (_of("c", "x", "p", "b", "w", "j1"), ["p", "b"], ["p", "b", "x"]),
        "two": (_of("c", "y", "q", "k", "n1", "f"), ["q"], ["y"]),
    }
    solid = {"x", "y", "p", "b", "q", *CUBE.index_columns}
    first = {name: _rows(rng, kinds, 60, solid, cell) for name, (kinds, _, cell) in members.items()}
    build_cube(store, CUBE, first, partition_on={"two": ["q"]})
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(list(members))
        kinds, _, cell = members[name]
        tail = rng.choice([None, None, "part-0"])
        builders.append(store, CUBE.uuid(name), _rows(rng, kinds, rng.randint(1, 25), solid, cell), tail)
    finite = {"q", "g"}
    write_dataset(store, "t", _rows(rng, TABLES["t"], 60, finite, []), partition_on="q", index_columns=list("igsoem"))
    builders.append(store, "t", _rows(rng, TABLES["t"], 20, {"q"}, []))
    write_dataset(
        store, "z", _rows(rng, TABLES["z"], 25, {"r", "h"}, []), partition_on=["r", "h"], index_columns=["i", "k"]
    )
    builders.append(store, "z", _rows(rng, TABLES["z"], 5, {"r", "h"}, []))
    return store


def reference(store: Store) -> duckdb.DuckDBPyConnection:
    """Return DuckDB with the tables that the store holds by definition."""
    plain = duckdb.connect(":memory:")
    plain.execute("SET TimeZone = 'UTC'; CREATE SCHEMA c")
    made = {
        "c": builders.cube_table(store, CUBE, ["seed", "one", "two"]),
        "t": builders.dataset_table(store, "t"),
        "z": builders.dataset_table(store, "z"),
        "c.one": builders.member_table(store, CUBE, "one"),
        "c.two": builders.member_table(store, CUBE, "two"),
    }
    for name, table in made.items():
        plain.register("given", table)
        plain.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        plain.unregister("given")
    return plain


# -- statements --------------------------------------------------------------------------------


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{b:02X}" for b in value) + "'::BLOB"
    if isinstance(value, float):
        return f"'{value!r}'::DOUBLE" if math.isinf(value) or math.isnan(value) or value == 0 else repr(value)
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP '{value}'"
    return f"DATE '{value}'" if isinstance(value, dt.date) else str(value)


@dataclass
class Writer:
    """Writes random statements; every one runs without error on the plain tables."""

    rng: random.Random
    values: list[Any] = field(default_factory=list)

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def constant(self, kind: str) -> str:
        if kind == "float" and self.rng.random() < 0.1:
            return "'nan'::DOUBLE"
        value = self.rng.choice(VALUES[kind])
        if kind in ("int", "text", "date") and self.rng.random() < 0.1:
            self.values.append(value)
            return f"<<{len(self.values) - 1}>>"
        return literal(value)

    def columns(self, frm: list[tuple[str, str]], kind: str | None = None) -> list[tuple[str, str]]:
        return [(f"{a}.{c}", k) for a, table in frm for c, k in TABLES[table].items() if kind in (None, k)]

    def predicate(self, frm: list[tuple[str, str]], depth: int = 2) -> str:
        if depth and self.rng.random() < 0.6:
            op = self.pick("AND", "AND", "OR")
            inner = f"{self.predicate(frm, depth - 1)} {op} {self.predicate(frm, depth - 1)}"
            return self.pick(f"({inner})", f"({inner})", f"NOT ({inner})")
        return self.atom(frm)

    def atom(self, frm: list[tuple[str, str]]) -> str:
        column, kind = self.rng.choice(self.columns(frm))
        for _ in range(2):  # mostly columns that can prune
            if column.split(".")[1] not in PRUNING:
                column, kind = self.rng.choice(self.columns(frm))
        value = partial(self.constant, kind)
        listed = ", ".join(self.rng.choice([value(), value(), "NULL"]) for _ in range(self.rng.randint(1, 4)))
        low, high = value(), value()
        shapes: list[Callable[[], str]] = [
            lambda: f"{column} {self.pick('=', '<>', '<', '<=', '>', '>=')} {low}",
            lambda: f"{column} {self.pick('=', '=')} {low}",
            lambda: f"{column} {self.pick('IN', 'NOT IN')} ({listed})",
            lambda: f"{column} {self.pick('BETWEEN', 'NOT BETWEEN')} {low} AND {high}",
            lambda: f"{column} IS {self.pick('', 'NOT')} NULL",
            lambda: f"{column} IS NULL",
            lambda: f"coalesce({column}, {low}) = {high}",
            lambda: f"{column} IS {self.pick('', 'NOT')} DISTINCT FROM {low}",
            lambda: f"CAST({column} AS VARCHAR) {self.pick('LIKE', 'NOT LIKE')} '{self.pick('%a%', '1%', '_')}'",
            lambda: f"TRY_CAST({column} AS {self.pick('VARCHAR', 'DOUBLE')}) = {self.pick(repr('1'), repr('0.0'))}",
            lambda: (
                f"CASE WHEN {column} = {low} THEN {self.pick('TRUE', 'NULL')} ELSE {self.pick('FALSE', 'TRUE')} END"
            ),
            lambda: f"({column} = {low}) IS {self.pick('', 'NOT')} {self.pick('TRUE', 'NULL')}",
            lambda: f"{column} {self.pick('=', '<', '>=')} {self.rng.choice(self.columns(frm, kind))[0]}",
            lambda: f"{column} {self.pick('IN', 'NOT IN')} (SELECT {self.other(kind)})",
            lambda: f"EXISTS (SELECT 1 FROM {self.other(kind, keyword=False)} AND sub.col = {column})",
        ]
        if kind == "text":
            shapes += [
                lambda: f"{column} ILIKE 'A%'",
                lambda: f"upper({column}) = 'A'",
                lambda: f"length({column}) > 1",
            ]
        if kind == "int":
            shapes += [lambda: f"{column} % 3 = 1", lambda: f"{column} = 1.5", lambda: f"{column} BETWEEN 1.5 AND 4.5"]
        if kind == "float":
            shapes += [lambda: f"isnan({column})", lambda: f"1 / {column} < 0", lambda: f"{column}::VARCHAR = '-0.0'"]
        if kind == "bool":
            shapes += [lambda: column, lambda: f"NOT {column}"]
        return self.rng.choice(shapes)()

    def other(self, kind: str, keyword: bool = True) -> str:
        table = self.rng.choice([t for t in TABLES if kind in TABLES[t].values()])
        column = self.rng.choice([c for c, k in TABLES[table].items() if k == kind])
        inner = self.atom_of([("n", table)])
        if keyword:
            return f"n.{column} FROM {table} n WHERE {inner}"
        return f"(SELECT n.{column} AS col FROM {table} n WHERE {inner}) sub WHERE TRUE"

    def atom_of(self, frm: list[tuple[str, str]]) -> str:
        column, kind = self.rng.choice(self.columns(frm))
        return f"{column} {self.pick('=', '<>', '<', '>=')} {self.constant(kind)}"

    def joined(self, left: tuple[str, str], right: tuple[str, str], join: str) -> str:
        kinds = sorted(set(TABLES[left[1]].values()) & set(TABLES[right[1]].values()))
        kind = self.rng.choice(kinds)
        a = self.rng.choice([c for c, k in TABLES[left[1]].items() if k == kind])
        b = self.rng.choice([c for c, k in TABLES[right[1]].items() if k == kind])
        on = f"a.{a} = b.{b}"
        if self.rng.random() < 0.5:
            on += f" {self.pick('AND', 'AND', 'OR')} {self.atom_of([left, right])}"
        both = sorted(set(TABLES[left[1]]) & set(TABLES[right[1]]))
        if both and self.rng.random() < 0.3:
            return f"{left[1]} a {join} {right[1]} b USING ({self.rng.choice(both)})"
        return f"{left[1]} a {join} {right[1]} b ON {on}"

    def select(self, kinds: list[str] | None = None) -> str:
        """Return one SELECT; with ``kinds`` its columns have those kinds."""
        table = self.rng.choice(list(TABLES))
        frm = [("a", table)]
        source = f"{table} a"
        visible = frm
        if self.rng.random() < 0.6:
            join = self.pick("JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")
            second = self.rng.choice([t for t in TABLES if set(TABLES[t].values()) & set(TABLES[table].values())])
            source = self.joined(frm[0], ("b", second), join)
            visible = frm if join in ("SEMI JOIN", "ANTI JOIN") else [*frm, ("b", second)]
        available = self.columns(visible)
        if kinds is None:
            shown = [c for c, _ in self.rng.sample(available, min(len(available), self.rng.randint(1, 4)))]
        else:
            shown = [self.of_kind(visible, k) for k in kinds]
        where = f" WHERE {self.predicate(visible)}" if self.rng.random() < 0.85 else ""
        return f"SELECT {', '.join(f'{c} AS o{i}' for i, c in enumerate(shown))} FROM {source}{where}"

    def of_kind(self, frm: list[tuple[str, str]], kind: str) -> str:
        found = self.columns(frm, kind)
        return self.rng.choice(found)[0] if found else f"CAST(NULL AS {'BIGINT' if kind == 'int' else 'VARCHAR'})"

    def statement(self) -> tuple[str, list[Any]]:
        """Return a statement and its parameters, in the order of their places."""
        text = self.text()
        places = re.findall(r"<<(\d+)>>", text)
        return re.sub(r"<<\d+>>", "?", text), [self.values[int(n)] for n in places]

    def text(self) -> str:
        shape = self.rng.randrange(10)
        if shape < 4:
            return self.select()
        if shape == 4:
            inner = self.select(["int", "text"])
            return f"SELECT count(*), count(o0), count(DISTINCT o0), min(o0), max(o1) FROM ({inner})"
        if shape == 5:
            inner = self.select(["int", "text"])
            return (
                f"SELECT o1, count(*), sum(o0) FROM ({inner}) GROUP BY o1 {self.pick('', 'HAVING o1 > ' + repr('a'))}"
            )
        if shape == 6:
            op = self.pick("UNION", "UNION ALL", "EXCEPT", "INTERSECT")
            return f"{self.select(['int', 'text'])} {op} {self.select(['int', 'text'])}"
        if shape == 7:
            cte = self.select(["int", "text"])
            after = self.pick("WHERE r.o0 > 1", "WHERE r.o1 IS NULL", "JOIN r r2 USING (o0) WHERE r2.o1 = 'a'", "")
            return f"WITH r AS ({cte}) SELECT r.o0, r.o1 FROM r {after}"
        if shape == 8:
            return f"SELECT DISTINCT o1, o0 > 1 FROM ({self.select(['int', 'text'])}) WHERE o0 IN (1, 2, 3, NULL)"
        table = self.rng.choice(list(TABLES))
        return f"SELECT * FROM {table} WHERE {self.predicate([(table.split('.')[-1], table)])}"


# -- comparing ---------------------------------------------------------------------------------


def normal(rows: list[tuple[Any, ...]]) -> list[str]:
    # Which of two equal zeros comes out of DISTINCT or a join is chance.
    return sorted(repr(tuple(0.0 if v == 0 and isinstance(v, float) else v for v in row)) for row in rows)


@dataclass
class World:
    connection: Any
    plain: duckdb.DuckDBPyConnection


SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[int, World]]:
    made: dict[int, World] = {}
    yield made
    for world in made.values():
        world.plain.close()


def _world(worlds: dict[int, World], seed: int) -> World:
    if seed not in worlds:
        store = make_store(seed)
        worlds[seed] = World(kartosql.connect(store.url), reference(store))
    return worlds[seed]


def check(world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int] | None:
    """Compare the three answers to one random statement; returns files (selected, total), None if it is invalid."""
    sql, parameters = Writer(random.Random(seed)).statement()
    try:
        cursor = world.plain.execute(sql, parameters) if parameters else world.plain.execute(sql)
        expected = normal(cursor.fetchall())
    except duckdb.Error:
        return None
    query = world.connection.sql(sql, parameters or None)
    assert normal(query.rows()) == expected, f"pruned: {sql} {parameters}\n{query.explain()}"
    report = query.explain()
    if report.files_selected < report.files_total:
        with monkeypatch.context() as patch:
            patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
            unpruned = normal(world.connection.sql(sql, parameters or None).rows())
        assert unpruned == expected, f"unpruned: {sql} {parameters}"
    return report.files_selected, report.files_total


def _run(world: World, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [check(world, seed, monkeypatch) for seed in seeds]
    valid = [r for r in results if r is not None]
    assert len(valid) > 0.8 * len(results), "the generator writes too many invalid statements"
    assert sum(selected < total for selected, total in valid) > 0.2 * len(valid), "hardly anything is pruned"


@pytest.mark.parametrize("seed", SEEDS)
def test_pruned_unpruned_and_plain_answers_agree(worlds, seed, monkeypatch):
    _run(_world(worlds, seed), range(seed * 10_000, seed * 10_000 + 100), monkeypatch)


@pytest.mark.slow
@pytest.mark.skipif("CI" not in os.environ, reason="takes minutes; set CI to run it")
@pytest.mark.parametrize("seed", range(10, 30))
def test_many_more_answers_agree(seed, monkeypatch):
    _run(_world({}, seed), range(seed * 10_000, seed * 10_000 + 100), monkeypatch)
