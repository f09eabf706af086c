"""Random data, indexes and predicates for skipping metadata, and the files that really hold a match."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import golden
import kartosql
from kartosql.errors import KartosqlWarning
from kartosql.formats.xskipper import bloom
from kartosql.formats.xskipper.kinds import IndexSpec, Session
from kartosql.formats.xskipper.layout import layout_for
from kartosql.formats.xskipper.naming import column_name
from kartosql.formats.xskipper.refreshing import Sources, refresh
from kartosql.formats.xskipper.scans import DataFile, parquet_scan
from kartosql.formats.xskipper.segment import ROW_METADATA
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.indexes.metadata_terms import column_types
from kartosql.parquet import FooterLayout, footer_of, schema_bytes
from kartosql.predicate.from_sql import predicate_of
from kartosql.store import Store

TABLE = "/data/lake/t"
NAN, INF = float("nan"), float("inf")
LETTERS = ["a", "b", "B", "K", "k", "\u212a", "\u0130", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0001f600"]
LETTERS += [" ", "'", "%", "z"]
MIDNIGHT = dt.datetime(2020, 3, 29)  # clocks change in Berlin
ZONES = ("UTC", "UTC", "Europe/Berlin", "America/New_York")


def bounds_of(file: Path | bytes, column: str, type_: pa.DataType) -> tuple[Any, Any] | None:
    """Return what a footer, or that of a file, tells of the bounds of a column."""
    footer = footer_of(file.read_bytes()) if isinstance(file, Path) else file
    layout = FooterLayout(schema_bytes(footer) or b"\0")
    return layout.bounds(footer, column, type_)


STRUCT = pa.struct([pa.field("a", pa.int32()), pa.field("B", pa.string())])
COLUMNS: dict[str, pa.DataType] = {
    "i": pa.int32(),
    "l": pa.int64(),
    "d": pa.float64(),
    "f": pa.float32(),
    "s": pa.string(),
    "b": pa.bool_(),
    "dt": pa.date32(),
    "ts": pa.timestamp("us", "UTC"),
    "n": pa.timestamp("us"),
    "dec": pa.decimal128(9, 2),
    "st.a": pa.int32(),
    "st.B": pa.string(),
}
NO_FILTER = ("d", "f", "b", "dt", "ts", "n", "dec")


def might_contain(cell: bytes, values: Sequence[int | str | bytes]) -> bool:
    """Return whether a filter may hold one of some values."""
    layout = bloom.CellLayout(cell)
    return any(all(cell[at] & mask for at, mask in layout.probes(value)) for value in values)


def _text(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.choice([0, 1, 1, 2, 3])))


def value(rng: random.Random, column: str, around: int) -> Any:
    """Return a value of a column; those of one file lie ``around`` a number."""
    near = around + rng.randrange(-3, 4)
    if column in ("i", "st.a"):
        return near
    if column == "l":
        return rng.choice([near, near, near, (1 << 53) + near, -(1 << 63), (1 << 63) - 1])
    if column in ("d", "f"):
        return rng.choice(
            [near / 4, near / 4, near / 4, near / 10, 0.0, -0.0, NAN, INF, -INF, 1e300 if column == "d" else 1e30]
        )
    if column in ("s", "st.B"):
        return rng.choice([f"{near:+04d}", f"{near:+04d}", _text(rng)])
    if column == "b":
        return near % 2 == 0
    if column == "dt":
        return rng.choice(
            [MIDNIGHT.date() + dt.timedelta(days=near)] * 5 + [dt.date(1500, 1, 1), dt.date(9999, 12, 31)]
        )
    if column in ("ts", "n"):
        found = rng.choice([MIDNIGHT + dt.timedelta(hours=near, microseconds=near % 2)] * 5 + [dt.datetime(1500, 1, 1)])
        return found.replace(tzinfo=dt.timezone.utc) if column == "ts" else found
    return Decimal(near * 25) / 100


def rows(rng: random.Random, around: int) -> pa.Table:
    """Return the rows of one file; each column has NULLs, or nothing else, or none."""
    count = rng.choice([0, 1, 1, 2, 5, 20])
    arrays: dict[str, list[Any]] = {}
    for column in COLUMNS:
        nulls = rng.choice([0.0, 0.0, 0.3, 1.0])
        same = value(rng, column, around) if rng.random() < 0.2 else None
        arrays[column] = [
            None if rng.random() < nulls else value(rng, column, around) if same is None else same for _ in range(count)
        ]
    members = list(zip(arrays.pop("st.a"), arrays.pop("st.B"), strict=True))
    structs = [None if rng.random() < 0.1 else {"a": a, "B": b} for a, b in members]
    table = {name: pa.array(values, COLUMNS[name]) for name, values in arrays.items()}
    return pa.table({**table, "st": pa.array(structs, STRUCT)})


# -- predicates ----------------------------------------------------------------------------------


def _literal(rng: random.Random, column: str) -> str:
    found = value(rng, column, rng.choice([0, 0, 10, 20, 100]))
    if column in ("i", "l", "st.a", "dec", "d", "f") and rng.random() < 0.35:
        number = rng.randrange(-30, 60)
        return rng.choice(
            [f"{number}.5", f"{number}", f"{number}.0", f"{number}.25e0", "0.1", f"{number}::DECIMAL(7,1)"]
        )
    if isinstance(found, bool):
        return str(found)
    if isinstance(found, float):
        return f"'{found!r}'::DOUBLE" if found != found or abs(found) == INF else repr(found)
    if isinstance(found, dt.datetime):
        text = found.replace(tzinfo=None).isoformat(" ")
        kinds = [f"TIMESTAMP '{text}'", f"'{text}'", f"DATE '{text[:10]}'"]
        return rng.choice([*kinds, f"TIMESTAMPTZ '{text}+00'"] if found.tzinfo else kinds)
    if isinstance(found, dt.date):
        return rng.choice(
            [f"DATE '{found}'", f"'{found}'", f"TIMESTAMP '{found} 00:00:00'", f"TIMESTAMP '{found} 12:00:00'"]
        )
    if isinstance(found, str):
        return "'" + found.replace("'", "''") + "'"
    return str(found)


def _matched(rng: random.Random, column: str, text: str) -> str:
    """Return a predicate that tells texts by their case, by regular expressions, or by places in them."""
    part = text[: rng.choice([1, 2, 3, 4])]
    plain = "".join(f"\\{c}" if c in "+.*" else c for c in part.replace("''", ""))
    found = rng.choice(
        [
            f"{column} ILIKE '%{part.swapcase()}%'",
            f"{column} ILIKE '{part}_%'",
            f"lower({column}) LIKE '%{part.lower()}%'",
            f"{column} LIKE '%{part}!%%' ESCAPE '!'",
            f"{column} LIKE '%{part.replace('0', '!0')}%' ESCAPE '!'",
            f"strpos({column}, '{text}') > 0",
            f"position('{part}' IN {column}) >= 1",
            f"instr({column}, '{part}') <> 0",
            f"regexp_matches({column}, '{plain}')",
            f"regexp_matches({column}, '{plain}', 'i')",
            f"regexp_matches({column}, '^{plain}.*{plain[-1:] or 'a'}')",
            f"regexp_matches({column}, '{plain}|zz')",
            f"regexp_matches({column}, '({plain}|0)?{plain}+')",
            f"{column} ~ '(?i){plain}'",
            f"{column} SIMILAR TO '{plain}.*'",
            f"regexp_full_match({column}, '.*{plain}.?')",
            f"starts_with({column}, '{text}')",
            f"contains(lower({column}), '{part.lower()}')",
        ]
    )
    return f"NOT ({found})" if rng.random() < 0.1 else found


def leaf(rng: random.Random) -> str:
    """Return a predicate over one column."""
    column = rng.choice(list(COLUMNS))
    kind = rng.random()
    if column == "b" and kind < 0.5:
        return rng.choice(["b", "NOT b", "b IS TRUE", "b IS NOT TRUE", "b = FALSE", "b IS NULL"])
    if column in ("s", "st.B") and kind < 0.3:
        prefix = value(rng, column, rng.choice([0, 10])).replace("'", "''").replace("%", "")
        if rng.random() < 0.3:
            return f"{rng.choice(['', '', 'NOT '])}contains({column}, '{prefix}')"
        if rng.random() < 0.5:
            return _matched(rng, column, prefix)
        begin, end = rng.choice(["", "", "%", "_"]), rng.choice(["%", "", "_%", "%x", f"%{prefix}"])
        return f"{column} {rng.choice(['LIKE', 'NOT LIKE'])} '{begin}{prefix}{end}'"
    if kind < 0.5:
        op = rng.choice(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
        return f"{column} {op} {_literal(rng, column)}"
    if kind < 0.55:
        return f"{_literal(rng, column)} {rng.choice(['<', '=', '>='])} {column}"
    if kind < 0.75:
        items = [_literal(rng, column) for _ in range(rng.choice([1, 2, 3, 12]))]
        if rng.random() < 0.1:
            items.append("NULL")
        return f"{column} {rng.choice(['IN', 'IN', 'NOT IN'])} ({', '.join(items)})"
    if kind < 0.9:
        word = rng.choice(["BETWEEN", "NOT BETWEEN"])
        return f"{column} {word} {_literal(rng, column)} AND {_literal(rng, column)}"
    return f"{column} {rng.choice(['IS NULL', 'IS NOT NULL', '= NULL'])}"


def predicate(rng: random.Random, depth: int = 0) -> str:
    """Return a predicate of AND, OR and NOT over some columns."""
    if depth > 2 or rng.random() < 0.45:
        found = leaf(rng)
    else:
        found = f" {rng.choice(['AND', 'OR'])} ".join(predicate(rng, depth + 1) for _ in range(rng.choice([2, 2, 3])))
    return f"NOT ({found})" if rng.random() < 0.15 else f"({found})"


# -- a table with metadata -----------------------------------------------------------------------


@dataclass
class World:
    """Files of a table, their metadata, and DuckDB with all rows and the number of their file."""

    files: list[DataFile]
    store: MetadataStore
    engine: Any
    specs: list[IndexSpec]
    version: int
    zone: str

    @property
    def listing(self) -> list[tuple[str, int]]:
        return [(f.path, f.modified_ms) for f in self.files]

    def read(self, where: str) -> set[str]:
        """Return the paths of the files that are read: without types in UTC, else as the planner asks."""
        if self.zone == "UTC":
            return set(self.store.select(where, self.listing))
        types = column_types({**COLUMNS, "st": STRUCT, "p": pa.int32()}, texts=True)
        session = Session(self.zone, types)
        kept = self.store.select_files([predicate_of(where)], self.listing, session).kept
        return {self.files[i].path for i in kept}

    def matching(self, where: str) -> set[str] | None:
        """Return the paths of the files with a row for which a predicate is TRUE, None if it fails."""
        try:
            numbers = self.engine.sql(f"SELECT DISTINCT number FROM t WHERE {where}").fetchall()
        except duckdb.Error:
            return None
        return {self.files[n].path for (n,) in numbers}


def world(rng: random.Random, folder: Path) -> World:
    """Write random files with random indexes, in a random version of the metadata."""
    data = Store(folder / "data", create=True)
    specs = []
    for column in COLUMNS:
        kinds = ["minmax", "valuelist"] + ([] if column in NO_FILTER else ["bloomfilter"])
        kinds += ["ngram", "prefix"] if column in ("s", "st.B") else []
        specs += [
            IndexSpec(k, column, fpp=0.05, ndv=30, length=rng.choice([1, 2, 3])) for k in kinds if rng.random() < 0.45
        ]
    engine = duckdb.connect()
    zone = rng.choice(ZONES)
    engine.execute(f"SET TimeZone = '{zone}'")
    files = []
    for number in range(rng.choice([2, 4, 8])):
        table = rows(rng, number * 10)
        name = f"p={number % 3}/{number}.parquet"
        path = folder / "data" / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path, row_group_size=rng.choice([1, 7, 1000]))
        files.append(DataFile(f"{TABLE}/{name}", path.stat().st_mtime_ns // 1_000_000, name, {"p": number % 3}))
        table = table.append_column("number", pa.array([number] * len(table), pa.int32()))
        table = table.append_column("p", pa.array([number % 3] * len(table), pa.int32()))
        engine.register("piece", table)
        engine.execute("CREATE TABLE t AS SELECT * FROM piece" if number == 0 else "INSERT INTO t SELECT * FROM piece")
    base = Store(folder, create=True)
    if specs:
        layout = layout_for(TABLE, specs, COLUMNS, {"p": pa.int32()})
        done = refresh(base, "meta", files, layout, Sources(parquet_scan(data)))
        assert (done.added, done.unindexed) == (len(files), ())
    version = rng.choice([1, 2, 3, 4, 4])
    if version < 4:
        for part in sorted((folder / "meta").glob("*.parquet")) if specs else ():
            downgrade(part, version)
    return World(files, MetadataStore.below(base, "meta"), engine, specs, version, zone)


def downgrade(part: Path, version: int) -> None:
    """Write a part file of version 4 again as one of an older version."""
    table = pq.read_table(part)
    described = json.loads(pq.read_metadata(part).metadata[ROW_METADATA.encode()])
    fields, names = [], []
    for entry in described["fields"]:
        old, index = entry["name"], entry["metadata"].get("index")
        if index is None and old != "obj_name":
            table = table.drop_columns([old])
            continue
        if index is not None:
            (column,) = index["cols"]
            newer = column_name(column, index["name"])
            entry["name"] = newer if version > 1 else f"{column.lower()}_{index['name']}"
            if "params" in index and version < 3:
                index["params"] = [
                    k.replace("io.xskipper", "spark.ibm.metaindex") + f":{v}" for k, v in index["params"].items()
                ]
        else:
            entry["metadata"]["version"] = version
        fields.append(entry)
        names.append(entry["name"])
    table = table.rename_columns(names)
    about = {ROW_METADATA: json.dumps({"type": "struct", "fields": fields}), "org.apache.spark.version": "3.0.1"}
    with pq.ParquetWriter(part, table.schema, store_schema=False) as writer:
        writer.add_key_value_metadata(about)
        writer.write_table(table)


def cases(seed: int, folder: Path, count: int) -> Iterator[tuple[World, str, set[str], set[str]]]:
    """Yield a world, a predicate, the files with a match and the files that are read."""
    rng = random.Random(seed)
    made = world(rng, folder)
    for _ in range(count):
        where = predicate(rng)
        matching = made.matching(where)
        if matching is not None:
            yield made, where, matching, made.read(where)


def copied(sample: dict[str, Any], folder: Path) -> Path:
    """Copy the data files of a sample, with the times that the metadata know."""
    shutil.copytree(golden.find(f"xskipper/{sample['data_dir']}"), folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    for name in sample["objects"]:
        path, _, time = name.rpartition("#")
        os.utime(str(folder) + path.removeprefix(sample["object_prefix"]), ns=(int(time) * 10**6,) * 2)
    return folder


def with_sizes(part: Path, sizes: bytes | None) -> None:
    """Write a part file again with other sizes of files in its footer, or without."""
    table, about = pq.read_table(part), pq.read_metadata(part).metadata
    about = {k: v for k, v in about.items() if k not in (b"kartosql.sizes", b"ARROW:schema")}
    with pq.ParquetWriter(part, table.schema.remove_metadata(), store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(about if sizes is None else {**about, b"kartosql.sizes": sizes})


def make_table(con: kartosql.Connection, kind: str, tmp_path: Path, rows: list[pa.Table]) -> None:
    """Make rows of k, p and s, a text, the table ``t``: a dataset or cube, or a folder that is attached."""
    if kind == "dataset":
        con.create_dataset("t", pa.concat_tables(rows), partition_on=["p"])
    elif kind == "cube":
        con.build_cube(kartosql.Cube("t", ["k"], ["p"]), {"seed": pa.concat_tables(rows)})
    else:
        for at, part in enumerate(rows):
            (tmp_path / "f").mkdir(exist_ok=True)
            if kind == "csv":
                lines = (f'{k},"{s}"' for k, s in zip(part["k"].to_pylist(), part["s"].to_pylist(), strict=True) if s)
                (tmp_path / "f" / f"{at}.csv").write_text("k,s\n" + "\n".join(lines), "utf-8", newline="")
            else:
                pq.write_table(part, tmp_path / "f" / f"{at}.parquet")
        with pytest.warns(KartosqlWarning, match="there are no metadata"):
            con.attach(tmp_path / "f", "t", type=kind, metadata=str(tmp_path / "meta"))
