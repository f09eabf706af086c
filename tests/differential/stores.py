"""Random stores: a cube of four datasets with overlays and a sparse enrichment, and four plain tables."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

import builders
from differential.values import FLOATS, column, pools
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from kartosql.write.cubes import build_cube
from kartosql.write.files import WriteOptions
from kartosql.write.operation import Operation
from written import write_dataset

KEYS = ["int", "small", "text", "text", "digits", "date", "bool", "time"]  # kinds of partition keys
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]


@dataclass(frozen=True)
class Table:
    """What statements know of a table: its kinds by column, and the columns whose conditions may prune it."""

    name: str
    columns: dict[str, str]
    pruning: frozenset[str] = frozenset()
    stored: bool = True


@dataclass
class World:
    """A store, what is in it, and the same tables in a plain DuckDB."""

    seed: int
    store: Store
    pools: dict[str, list[Any]]
    settings: dict[str, str]
    tables: list[Table] = field(default_factory=list)
    registered: pa.Table | None = None
    plain: Any = None

    def prepare(self, connection: Any) -> None:
        """Give a plain DuckDB the settings of this world, and the schema of the cube's datasets."""
        for name, value in self.settings.items():
            connection.execute(f"SET {name} = '{value}'")
        connection.execute("CREATE SCHEMA c")


class _Maker:
    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng

    def rows(self, kinds: dict[str, str], size: int, solid: set[str], cell: list[str]) -> pa.Table:
        """Return random rows; those of one cell occur once, and ``solid`` columns hold neither NULL nor NaN."""
        pools_ = self.world.pools
        made = {c: column(self.rng, k, pools_[k], size, nulls=c not in solid) for c, k in kinds.items()}
        table = pa.table(made)
        seen: dict[Any, int] = {}
        for at, row in enumerate(table.select(cell).to_pylist() if cell else ()):
            seen.setdefault(tuple(row.values()), at)
        return table.take(pa.array(sorted(seen.values()), pa.int64())) if cell else table

    def some(self, columns: list[str]) -> list[str]:
        """Return some of ``columns``, most of the time nearly all of them."""
        return [c for c in columns if self.rng.random() < 0.75]

    def cube(self) -> Cube:
        rng = self.rng
        keys = ["p", "b"] if rng.random() < 0.5 else ["p"]
        kind = {
            "x": rng.choice(["int", "small", "text"]), "y": rng.choice(["text", "date", "digits", "int"]),
            "p": rng.choice(KEYS), "b": rng.choice(["bool", "int", "text"]), "q": rng.choice(KEYS),
            "i1": "int", "s1": "text", "d1": rng.choice(["date", "time"]), "j1": rng.choice(["int", "small", "digits"]),
            "n1": rng.choice(["float", "text", "date"]), "m1": rng.choice(["int", "time", "bool"]),
            "u": "big", "v": "float", "t": "text", "z": "zone", "w": "int", "k": "text", "f": "bool", "g": "single",
        }  # fmt: skip
        indexed = self.some(["i1", "s1", "d1", "j1", "n1", "m1", "u", "z"])
        cube = Cube("c", ["x", "y"], keys, index_columns=[c for c in indexed if c != "z"])
        members = {
            "seed": ["x", "y", *keys, "i1", "s1", "d1", "u", "v", "t", "z"],
            "one": ["x", *keys, "w", "j1"],
            "two": ["y", "q", "k", "n1", "f"],
            "sparse": ["x", "y", *keys, "m1", "g"],
        }
        solid = {"x", "y", "q", *keys, *cube.index_columns}
        cells = {name: [c for c in columns if c in ("x", "y", *keys)] for name, columns in members.items()}
        sizes = {"seed": 26, "one": 14, "two": 6, "sparse": 4}
        kinds = {name: {c: kind[c] for c in columns} for name, columns in members.items()}
        first = {name: self.rows(kinds[name], sizes[name], solid, cells[name]) for name in members}
        # A write may make several files of a partition, of which it is known that they hold different cells.
        rows_per_file = [None, 2, 5][self.world.seed % 3]
        options = WriteOptions(row_group_rows=rng.choice([2, 5, 1000]), rows_per_file=rows_per_file)
        operation = Operation(self.world.store, "build_cube", options=options)
        build_cube(operation, cube, first, partition_on={"two": ["q"]})
        for _ in range(rng.randint(0, 3)):
            name = rng.choice(list(members))
            rows = self.rows(kinds[name], rng.randint(1, 8), solid, cells[name])
            builders.append(self.world.store, cube.uuid(name), rows, rng.choice([None, None, "part-0"]))
        can_prune = frozenset(["x", "y", "q", *keys, *cube.index_columns])
        hidden = {c for c in members["two"] if c == "q"}
        everything = sorted({c for columns in members.values() for c in columns} | hidden)
        self.world.tables.append(Table("c", {c: kind[c] for c in everything}, can_prune))
        for name, columns in members.items():
            table = rng.choice([f"c.{name}", f"c.{name}", f'"c++{name}"'])
            self.world.tables.append(Table(table, {c: kind[c] for c in sorted(columns)}, can_prune & {*columns}))
        return cube

    def plain(self, name: str, kinds: dict[str, str], keys: list[str], size: int, appended: int) -> None:
        solid = {c for c in keys if c in kinds}
        indexed = self.some([c for c in kinds if c not in keys and kinds[c] not in ("zone", "single", "bool", "dec")])
        # A write refuses NaN in an index column; the original's writer leaves it out of the index.
        finite = {c for c in indexed if kinds[c] in FLOATS}
        rows = self.rows(kinds, size, solid | finite, [])
        write_dataset(self.world.store, name, rows, partition_on=keys, index_columns=indexed)
        for _ in range(appended):
            builders.append(self.world.store, name, self.rows(kinds, self.rng.randint(1, 6), solid, []))
        self.world.tables.append(Table(name, kinds, frozenset([*keys, *indexed])))


def make_world(seed: int, url: str | None = None) -> World:
    """Return the store number ``seed``, in a folder or in memory, with its reference tables."""
    rng = random.Random(f"store {seed}")
    store = Store(url or f"memory://{uuid.uuid4().hex}")
    settings = {"TimeZone": rng.choice(ZONES)}
    if seed % 8 == 7:
        settings["default_collation"] = "NOCASE"
    world = World(seed, store, pools(rng), settings)
    maker = _Maker(world, rng)
    cube = maker.cube()
    pick = rng.choice
    maker.plain(
        "t",
        {"q": pick(KEYS), "i": "int", "g": "float", "s": "text", "o": "bytes", "e": "date", "m": "time", "u": "big"},
        ["q"], 20, 1,
    )  # fmt: skip
    maker.plain("z", {"r": pick(KEYS), "h": pick([*FLOATS, "int"]), "i": "small", "k": "digits", "z": "zone"},
                ["r", "h"], 12, 1)  # fmt: skip
    maker.plain("k", {"x": pick(["int", "text"]), "p": pick(KEYS), "s": "text", "n": "dec"}, [], 3, pick([0, 1, 2]))
    kinds = {"x": "small", "p": "date", "s": "text", "v": "single"}
    world.registered = maker.rows(kinds, 5, set(), [])
    world.tables.append(Table("reg", kinds, stored=False))
    world.plain = _reference(world, cube)
    return world


def _reference(world: World, cube: Cube) -> Any:
    """Return DuckDB with the tables that the store holds by definition."""
    plain = duckdb.connect(":memory:", config={"threads": "1"})
    world.prepare(plain)
    plain.execute("SET max_execution_time = 3000")
    members = ["seed", "one", "two", "sparse"]
    for table in world.tables:
        name = table.name.strip('"')
        if name == "reg":
            made = world.registered
        elif name == "c":
            made = builders.cube_table(world.store, cube, members)
        elif name.startswith(("c.", "c++")):
            made = builders.member_table(world.store, cube, name[2:].lstrip("+"))
        else:
            made = builders.dataset_table(world.store, name)
        kinds = {c: table.columns[c] for c in made.column_names}
        table.columns.clear()  # SELECT * has the order of the stored schema
        table.columns.update(kinds)
        plain.register("given", made)
        plain.execute(f"CREATE TABLE {table.name} AS SELECT * FROM given")
        plain.unregister("given")
    return plain
