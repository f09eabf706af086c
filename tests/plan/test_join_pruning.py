"""Datasets of a cube that prune each other over dimensions, and overlays found by their dimensions."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
import kartosql
import kartosql.query
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan import overlays
from kartosql.plan.prune import prune
from kartosql.store import Store
from written import build_cube

CUBE = Cube("c", ["x", "y", "d"], ["p"], index_columns=["i1", "j1", "k1"], suppress_index_on=["d"])
# dataset -> its columns besides the payload, partition columns, dimensions indexed beyond the rules of cubes
MEMBERS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "seed": (["p", "x", "y", "d", "i1", "v"], ["p"], []),
    "a": (["p", "x", "y", "j1", "w"], ["p"], ["x"]),  # with all partition columns
    "f": (["x", "k1", "f1"], [], ["x"]),  # one folder, one dimension
    "g": (["y", "d", "q", "g1"], ["q"], ["y"]),  # keys of its own
    "h": (["x", "y", "h1"], ["x"], []),  # a dimension is its partition key
    "n": (["x", "n1"], [], []),  # nothing to look anything up in
}
TYPES = {"y": pa.string(), "q": pa.string(), "w": pa.string(), "d": pa.date32()}
TEXTS = ["", "a", "B", "b", "é", "it's"]


def _value(rng: random.Random, column: str, span: tuple[int, int]) -> Any:
    if column == "x":
        return rng.randint(*span)
    if column in ("y", "q", "w"):
        return rng.choice(TEXTS)
    if column == "d":
        return rng.randint(0, 2)
    return rng.randint(0, 3) if column == "p" else rng.randint(0, 12)


def _rows(rng: random.Random, name: str, size: int, span: tuple[int, int]) -> pa.Table:
    """Return rows with x in a span, no cell twice; payload is NULL now and then."""
    columns = MEMBERS[name][0]
    key = [c for c in columns if c in ("x", "y", "d", "p")]
    rows = {}
    for _ in range(size):
        row = {c: _value(rng, c, span) for c in columns}
        row |= {c: None for c in columns if c in ("v", "w", "f1", "g1", "h1", "n1") and rng.random() < 0.2}
        rows[tuple(row[c] for c in key)] = row
    types = {c: TYPES.get(c, pa.int64()) for c in columns}
    whole = {c: pa.array([row[c] for row in rows.values()], pa.int32() if c == "d" else types[c]) for c in columns}
    return pa.table({c: v.cast(types[c]) for c, v in whole.items()})


def add_index(store: Store, uuid_: str, column: str) -> None:
    """Index a column of a dataset after the fact."""
    made = builders.read_document(store, uuid_)
    labels: dict[Any, list[str]] = {}
    type_ = None
    for label, entry in made["partitions"].items():
        found = builders.read_parquet(store, entry["files"]["table"]).column(column)
        type_ = found.type
        for value in found.unique().to_pylist():
            labels.setdefault(value, []).append(label)
    made.setdefault("indices", {})[column] = f"{uuid_}/indices/{column}/2026.by-dataset-index.parquet"
    index = {column: pa.array(labels, type_), "partition": pa.array(labels.values(), pa.list_(pa.string()))}
    store.put(made["indices"][column], builders.parquet(index))
    builders.write_document(store, made)


def make_store(seed: int, *, local: str | None = None) -> Store:
    """Return a store with a cube whose datasets were written in several writes, with and without common cells."""
    rng = random.Random(seed)
    store = Store(local or f"memory://{uuid.uuid4().hex}")
    spans = [(0, 9), (10, 19), (5, 14), (20, 29), (0, 29), (30, 39)]
    first = {name: _rows(rng, name, rng.choice([3, 10, 25]), rng.choice(spans)) for name in MEMBERS}
    build_cube(store, CUBE, first, partition_on={"f": [], "g": ["q"], "h": ["x"], "n": []})
    for name, (_, _, more) in MEMBERS.items():
        for column in more:
            add_index(store, CUBE.uuid(name), column)
        for _ in range(rng.choice([0, 1, 2, 4])):
            rows = _rows(rng, name, rng.choice([1, 4, 12]), rng.choice(spans))
            builders.append(store, CUBE.uuid(name), rows, rng.choice([None, None, None, f"part-{rng.random()}"]))
    return store


def reference(store: Store) -> duckdb.DuckDBPyConnection:
    """Return DuckDB with the cube and its datasets as they are by definition."""
    plain = duckdb.connect(":memory:")
    plain.execute("CREATE SCHEMA c")
    made = {"c": builders.cube_table(store, CUBE, MEMBERS)}
    made |= {f'c."{name}"': builders.member_table(store, CUBE, name) for name in MEMBERS}
    for name, table in made.items():
        plain.register("given", table)
        plain.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        plain.unregister("given")
    return plain


def _atom(rng: random.Random, columns: list[str]) -> str:
    column = rng.choice([c for c in columns if c not in ("p",) or rng.random() < 0.3])
    if column in TYPES and column != "d":
        value = repr(rng.choice(TEXTS)).replace('"it\'s"', "'it''s'")
    elif column == "d":
        value = f"DATE '1970-01-0{rng.randint(1, 3)}'"
    else:
        value = str(rng.randint(0, 40 if column == "x" else 12))
    shapes = [f"{column} = {value}"] * 6 + [f"{column} {op} {value}" for op in ("<", ">=", "<>")]
    shapes += [f"{column} IS NULL", f"{column} IS NOT NULL", f"coalesce({column}, {value}) = {value}"]
    if column not in TYPES:
        shapes += [f"{column} IN ({value}, 3, 7)", f"{column} + p = {value}", f"{column} = x"]
    return rng.choice(shapes)


def statement(seed: int) -> str:
    """Return a random SELECT over the cube or one of its datasets."""
    rng = random.Random(seed)
    table = rng.choice(["c"] * 5 + ["c.a", "c.f", "c.g", "c.seed"])
    names = list(MEMBERS) if table == "c" else [table.removeprefix("c.")]
    columns = sorted({c for name in names for c in MEMBERS[name][0]})
    if table != "c":
        atoms = [_atom(rng, [c for c in columns if c != "p" or "p" in columns]) for _ in range(rng.randint(1, 2))]
        atoms = [a for a in atoms if {"p": "p" in columns, "x": "x" in columns}.items() and _fits(a, columns)]
    else:
        atoms = [_atom(rng, columns) for _ in range(rng.randint(1, 3))]
    where = f" WHERE {' AND '.join(atoms)}" if atoms else ""
    if len(atoms) > 1 and rng.random() < 0.25:
        where = (
            f" WHERE {atoms[0]} AND ({' OR '.join(atoms)})" if rng.random() < 0.5 else f" WHERE {' OR '.join(atoms)}"
        )
    shown = ", ".join(rng.sample(columns, min(len(columns), rng.randint(1, 4))))
    what = rng.choice([shown, shown, shown, "*", "count(*)", f"DISTINCT {shown}", f"count({columns[0]}), max(x)"])
    if what.endswith("max(x)") and "x" not in columns:
        what = "count(*)"
    return f"SELECT {what} FROM {table}{where}"


def _fits(atom: str, columns: list[str]) -> bool:
    return not (" + p" in atom and "p" not in columns) and not (atom.endswith("= x") and "x" not in columns)


class World:
    """A store, the connection to it and its tables by definition."""

    def __init__(self, store: Store) -> None:
        self.connection = kartosql.connect(store.url)
        self.plain = reference(store)

    def check(self, sql: str, monkeypatch: pytest.MonkeyPatch) -> int:
        """Compare the three answers; returns how many steps pruned over a join by a dimension."""
        expected = sorted(map(repr, self.plain.execute(sql).fetchall()))
        query = self.connection.sql(sql)
        assert sorted(map(repr, query.rows())) == expected, f"pruned: {sql}\n{query.explain()}"
        with monkeypatch.context() as patch:
            patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
            unpruned = sorted(map(repr, self.connection.sql(sql).rows()))
        assert unpruned == expected, f"unpruned: {sql}"
        (scan,) = query.explain().to_dict()["scans"]
        steps = [step for part in scan["datasets"] for step in part["steps"]]
        return sum(" by " in step["condition"] and step["by"] == "join" for step in steps)


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.connection.close()
        world.plain.close()


@pytest.fixture
def cube(local: Store) -> Any:
    """A cube in one partition: the seed has four files with 10 values of x each, and so has every other dataset."""
    span = [list(range(n, n + 10)) for n in range(0, 40, 10)]

    def rows(name: str, x: list[int]) -> pa.Table:
        one = [1] * 10
        made = {
            "seed": {
                "p": one,
                "x": x,
                "y": ["y"] * 10,
                "d": pa.array(one, pa.int32()).cast(pa.date32()),
                "i1": x,
                "v": x,
            },
            "a": {"p": one, "x": x, "y": ["y"] * 10, "j1": x, "w": ["w"] * 10},
            "f": {"x": x, "k1": [n // 2 for n in x], "f1": x},
            "h": {"x": x, "y": ["y"] * 10, "h1": [n % 7 for n in x]},
            "n": {"x": x, "n1": x},
        }
        return pa.table(made[name])

    names = ["seed", "a", "f", "h", "n"]
    build_cube(local, CUBE, {n: rows(n, span[0]) for n in names}, partition_on={"f": [], "h": ["x"], "n": []})
    for name in names:
        for column in MEMBERS[name][2]:
            add_index(local, CUBE.uuid(name), column)
        for x in span[1:]:
            builders.append(local, CUBE.uuid(name), rows(name, x))
    with kartosql.connect(local.url) as connection:
        yield connection


def _files(connection: Any, sql: str) -> dict[str, int]:
    (scan,) = connection.explain(sql).to_dict()["scans"]
    return {part["dataset"]: len(part["files"]) for part in scan["datasets"]}


@pytest.mark.parametrize(
    ("sql", "files"),
    [
        # from an enrichment to the seed, and from there to the others
        ("SELECT v FROM c WHERE j1 = 7", {"seed": 1, "a": 1}),
        ("SELECT v, f1 FROM c WHERE j1 = 7", {"seed": 1, "a": 1, "f": 1}),
        ("SELECT v, f1, h1 FROM c WHERE j1 = 7", {"seed": 1, "a": 1, "f": 1, "h": 10}),
        ("SELECT v, n1 FROM c WHERE j1 = 7", {"seed": 1, "a": 1, "n": 4}),
        ("SELECT v FROM c WHERE k1 IN (3, 17)", {"seed": 2, "f": 2}),
        ("SELECT v FROM c WHERE j1 = 7 AND k1 = 3", {"seed": 1, "a": 1, "f": 1}),
        ("SELECT v FROM c WHERE j1 = 7 AND k1 = 13", {"seed": 1, "a": 1, "f": 1}),
        ("SELECT v, w FROM c WHERE j1 = 99", {"seed": 0, "a": 0}),
        # from the seed
        ("SELECT w, f1, n1 FROM c WHERE i1 = 7", {"seed": 1, "a": 1, "f": 1, "n": 4}),
        ("SELECT h1 FROM c WHERE i1 = 7 OR i1 = 12", {"seed": 2, "h": 20}),
        ("SELECT w FROM c WHERE i1 IN (7, 17)", {"seed": 2, "a": 2}),
        # where most files are left there is nothing to win
        ("SELECT w FROM c WHERE i1 IN (7, 17, 27)", {"seed": 3, "a": 4}),
        ("SELECT w FROM c", {"seed": 4, "a": 4}),
        # a dataset that need not have a partner does not prune the seed
        ("SELECT v, w FROM c WHERE coalesce(j1, 7) = 7", {"seed": 4, "a": 4}),
        ("SELECT v, w FROM c WHERE j1 = 7 OR i1 = 17", {"seed": 4, "a": 4}),
        ("SELECT v FROM c WHERE j1 = 7 OR k1 = 13", {"seed": 4, "a": 4, "f": 4}),
        ("SELECT v, w FROM c WHERE j1 IS NULL", {"seed": 4, "a": 4}),
    ],
)
def test_files_are_left_out_over_dimensions(cube, monkeypatch, sql, files):
    assert _files(cube, sql) == files, str(cube.explain(sql))
    rows = sorted(map(repr, cube.sql(sql).rows()))
    monkeypatch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
    assert sorted(map(repr, cube.sql(sql).rows())) == rows


def test_the_steps_name_partner_and_dimension(cube):
    (scan,) = cube.explain("SELECT v FROM c WHERE j1 = 7").to_dict()["scans"]
    assert scan["datasets"][0]["steps"] == [
        {"condition": "partner in a by x", "by": "join", "files_before": 4, "files_after": 1}
    ]


def test_nothing_is_looked_up_where_it_costs_too_much(cube, monkeypatch):
    monkeypatch.setattr("kartosql.plan.prune.INDEX_FACTOR", 10_000)
    assert _files(cube, "SELECT v, w FROM c WHERE j1 = 7") == {"seed": 4, "a": 1}
    assert _files(cube, "SELECT v, w FROM c WHERE i1 = 7") == {"seed": 1, "a": 4}


def test_few_files_are_read_instead_of_a_large_index_and_tell_which_rows_match(cube, monkeypatch):
    monkeypatch.setattr("kartosql.plan.prune.INDEX_FACTOR", 20)
    assert _files(cube, "SELECT h1 FROM c WHERE i1 = 7") == {"seed": 1, "h": 1}
    assert _files(cube, "SELECT h1 FROM c WHERE i1 IN (7, 12)") == {"seed": 2, "h": 2}
    assert _files(cube, "SELECT h1 FROM c WHERE i1 BETWEEN 7 AND 12 AND v <> 9") == {"seed": 2, "h": 5}
    assert cube.sql("SELECT x, h1 FROM c WHERE i1 BETWEEN 7 AND 12 AND v <> 9 ORDER BY x").rows() == [
        (7, 0), (8, 1), (10, 3), (11, 4), (12, 5),
    ]  # fmt: skip


def test_an_index_of_a_dimension_that_cannot_be_read_does_not_matter(cube, local):
    local.put(builders.read_document(local, "c++a")["indices"]["x"], b"no Parquet")
    assert _files(cube, "SELECT v, w FROM c WHERE i1 = 7") == {"seed": 1, "a": 4}
    assert cube.sql("SELECT v, w FROM c WHERE i1 = 7").rows() == [(7, "w")]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        # the cell of x = 7 has moved on, in the seed to i1 = 50 and in the enrichment to j1 = 60
        ("SELECT v FROM c WHERE i1 = 7", []),
        ("SELECT v, w FROM c WHERE i1 = 50", [(70, "new")]),
        ("SELECT v FROM c WHERE j1 = 7", []),
        ("SELECT v, w FROM c WHERE j1 = 60", [(70, "new")]),
        ("SELECT v, w FROM c WHERE x = 7", [(70, "new")]),
        ("SELECT v, f1 FROM c WHERE k1 = 3 ORDER BY v", [(6, 6), (70, 7)]),
        ("SELECT v FROM c WHERE i1 = 7 AND j1 = 7", []),
        ("SELECT v FROM c WHERE i1 = 50 AND j1 = 60 AND k1 = 3", [(70,)]),
        ("SELECT count(*) FROM c", [(40,)]),
    ],
)
def test_overwritten_rows_stay_overwritten(cube, local, sql, rows):
    day = pa.array([1], pa.int32()).cast(pa.date32())
    builders.append(local, "c++seed", pa.table({"p": [1], "x": [7], "y": ["y"], "d": day, "i1": [50], "v": [70]}))
    builders.append(local, "c++a", pa.table({"p": [1], "x": [7], "y": ["y"], "j1": [60], "w": ["new"]}))
    assert cube.sql(sql).rows() == rows


def test_what_an_index_cuts_is_not_looked_up_in_it(local):
    cells = [b"a\0%d" % n for n in range(8)]
    seed = pa.table({"x": cells, "p": range(8), "v": range(8)})
    enrichment = pa.table({"x": cells, "q": range(8), "j": range(8)})
    cube = Cube("b", ["x"], ["p"], index_columns=["j"])
    build_cube(local, cube, {"seed": seed, "a": enrichment}, partition_on={"a": ["q"]})
    document = builders.read_document(local, "b++seed")
    # As the originals write it: all values end at their first NUL byte.
    index = pa.table({"x": [b"a"], "partition": pa.array([list(document["partitions"])], pa.list_(pa.string()))})
    local.put(document["indices"]["x"], builders.parquet(index))
    with kartosql.connect(local.url) as made:
        assert made.sql("SELECT v FROM b WHERE j = 3").rows() == [(3,)]


@pytest.mark.parametrize("cheap", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_random_cubes_have_the_same_rows_pruned_unpruned_and_by_definition(seed, cheap, worlds, monkeypatch, tmp_path):
    if cheap:  # whatever may be looked up is
        monkeypatch.setattr("kartosql.plan.prune.INDEX_FACTOR", 0)
        monkeypatch.setattr(overlays, "INDEX_SHARE", float("inf"))
        monkeypatch.setattr(overlays, "FOOTER_BYTES", 0)
    world = World(make_store(seed, local=str(tmp_path)))
    worlds.append(world)
    transferred = sum(world.check(statement(seed * 1000 + n), monkeypatch) for n in range(40))
    assert transferred > 3, "hardly anything is transferred"
