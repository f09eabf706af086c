"""Stores to which random lake tables are attached, with indexes of all kinds, some of which have not seen all files."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import kartosql
from differential.statements import CTE_NAMES
from differential.stores import ZONES, Table, World
from differential.values import column, pools
from kartosql.errors import KartosqlError
from kartosql.store import Store
from lakes.tables import LAKES, Lake

NAMES = ["c", "t", "z", "k", "h"]
OF_TEXT = ("ngram", "prefix")
KINDS = ("minmax", "valuelist", "bloomfilter", *OF_TEXT)
# What an index is not for: columns of bytes, and some kinds over some types.
REFUSED = ("invalid-data", "unsupported-type", "unsupported-index")


@dataclass
class LakeWorld(World):
    """Tables that are attached, as the table in ``plain`` of the same name has them."""

    attached: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    indexes: int = 0

    def attach(self, connection: Any) -> None:
        """Attach them to a connection."""
        for url, name, options in self.attached:
            connection.attach(url, name, **options)


class _Maker:
    def __init__(self, world: LakeWorld, rng: random.Random, folder: Path) -> None:
        self.world, self.rng, self.folder = world, rng, folder
        self.con = kartosql.connect(world.store.url, write_memory=rng.choice([4_000, 512 << 20]))

    def rows(self, kinds: dict[str, str]) -> pa.Table:
        size, few = self.rng.randint(1, 7), self.rng.random() < 0.5
        pools_ = {k: self.rng.sample(v, min(len(v), 2)) if few else v for k, v in self.world.pools.items()}
        return pa.table({c: column(self.rng, k, pools_[k], size, nulls=True) for c, k in kinds.items()})

    def table(self, name: str, of: type[Lake]) -> None:
        rng = self.rng
        letters = dict(zip(rng.sample("abdefgijlmnop", 13), rng.sample(of.kinds_of, len(of.kinds_of)), strict=False))
        kinds = {c: k for at, (c, k) in enumerate(letters.items()) if at < rng.randint(4, 8)}
        key = "q" if rng.random() < 0.6 else None
        if key is not None:
            kinds = {key: rng.choice(of.keys), **kinds}
        kinds |= {"s": "text"}
        lake = of(self.folder / name, kinds, key, rng)
        late, past = {"v": rng.choice(["int", "text", "date"])}, []
        lake.append(self.rows(lake.kinds))
        self.con.attach(lake.url, name, type=lake.type)
        for turn in range(rng.randint(4, 8)):
            lake.append(self.rows(lake.kinds))
            past.append(lake.past())
            step = rng.choice(["delete", "delete", "compact", "evolve", "index", "index", "skipping", "skipping"])
            if step == "delete":
                kind = lake.kinds[at := rng.choice([*lake.kinds])]
                if kind not in ("bytes", "single", "zone", "float"):
                    lake.delete(at, rng.choice([None, *self.world.pools[kind]]))
            elif step == "compact" and turn < 5:
                lake.compact()
            elif step == "evolve" and late:
                lake.evolve(*late.popitem())
            else:
                self.index(name, lake, step)
        own = {"type": lake.type}
        self.world.attached.append((lake.url, name, own))
        self.note(name, lake, lake.arrow())
        if past[0] is not None and rng.random() < 0.6:
            then = rng.choice(past)
            assert then is not None
            if name not in CTE_NAMES and rng.random() < 0.5:  # views refuse a WITH that has the name of what they read
                (version,) = then.values()
                self.con.sql(f"CREATE VIEW {name}0 AS SELECT * FROM {name} AT (VERSION => {version})")
            else:
                self.world.attached.append((lake.url, f"{name}0", {**own, **then}))
            self.note(f"{name}0", lake, lake.arrow(then))
        lake.close()

    def index(self, name: str, lake: Lake, step: str) -> None:
        columns = [c for c in lake.kinds if c != lake.key]
        if step == "index":
            for at in self.rng.sample(columns, 3):
                with self.refused():
                    self.con.create_index(name, at)
            return
        if self.world.indexes and self.rng.random() < 0.3:
            with self.refused("not-indexed"):
                self.con.refresh_skipping_index(name)
        for kind in self.rng.sample(KINDS, 3):
            texts = [c for c in columns if lake.kinds[c] in ("text", "digits")]
            with self.refused():
                self.con.create_skipping_index(name, **{kind: self.rng.choice(texts if kind in OF_TEXT else columns)})

    @contextlib.contextmanager
    def refused(self, *more: str) -> Any:
        try:
            yield
            self.world.indexes += 1
        except KartosqlError as e:
            if e.code not in (*REFUSED, *more):
                raise

    def note(self, name: str, lake: Lake, rows: pa.Table) -> None:
        """Note the rows that the table's own reader has."""
        kinds = {c: (lake.former | lake.kinds)[c] for c in rows.column_names}
        self.world.tables.append(Table(name, kinds, frozenset(kinds)))
        self.world.plain.register("given", rows)
        self.world.plain.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        self.world.plain.unregister("given")


def make_world(seed: int, folder: str) -> LakeWorld:
    """Return the store number ``seed`` with tables of all writers attached."""
    rng = random.Random(f"lakes {seed}")
    (Path(folder) / "store").mkdir()
    settings = {"TimeZone": rng.choice(ZONES)}
    if seed % 8 == 7:
        settings["default_collation"] = "NOCASE"
    world = LakeWorld(seed, Store(f"{folder}/store"), pools(rng), settings)
    world.plain = duckdb.connect(":memory:", config={"threads": "1"})
    world.prepare(world.plain)
    world.plain.execute("SET max_execution_time = 3000")
    maker = _Maker(world, rng, Path(folder))
    with maker.con:
        for name, of in zip(NAMES, rng.sample(LAKES, len(LAKES)), strict=True):
            maker.table(name, of)
    kinds = {"x": "small", "p": "date", "s": "text", "v": "single"}
    world.registered = maker.rows(kinds)
    world.tables.append(Table("reg", kinds, stored=False))
    world.plain.register("given", world.registered)
    world.plain.execute("CREATE TABLE reg AS SELECT * FROM given")
    world.plain.unregister("given")
    return world
