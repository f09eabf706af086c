"""Scripts of SQLite's sqllogictest: their SELECTs over datasets, cubes, Delta tables and folders, and plain DuckDB.

The tables of a script are made by DuckDB, cut at random, and written; then both answer its queries. What DuckDB
answers, kartosql has to answer alike. Integers have 64 bits on both sides, as Kartothek stores no others.
"""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow.parquet as pq

import kartosql
from kartosql.errors import KartosqlError

PLACES = ("dataset", "parts", "cube", "folder", "delta")
PART, CELL = "kq_part", "kq_cell"  # columns that each table gets, so that it can be cut


@dataclass
class Tally:
    """What came of queries: alike, refused by DuckDB, or by kartosql alone, by code; and what differs."""

    scripts: int = 0
    alike: int = 0
    refused_by_both: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)  # of what is refused
    failures: list[str] = field(default_factory=list)
    places: Counter[str] = field(default_factory=Counter)


def records(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind (statement or query) and the SQL of each record that DuckDB is meant to run."""
    skipped = False
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        lines = [line for line in block.split("\n") if line and not line.startswith("#")]
        skipped = False
        while lines and lines[0].split()[0] in ("skipif", "onlyif", "hash-threshold", "halt"):
            word, *names = lines.pop(0).split()
            if word == "halt" and not skipped:
                return
            engine = names[0] if names else ""
            skipped |= (word == "onlyif" and engine != "duckdb") or (word == "skipif" and engine == "duckdb")
        if not lines or skipped:
            continue
        kind, *words = lines[0].split()
        body = "\n".join(lines[1:]).split("\n----")[0]
        if (kind == "statement" and words[:1] == ["ok"]) or kind == "query":
            yield kind, body


def check_script(text: str, seed: object, most: int | None = None) -> Tally:
    """Ask the queries of a script, ``most`` of them drawn by chance."""
    found, queries = Tally(), list(records(text))
    numbers = [n for n, (kind, _) in enumerate(queries) if kind == "query"]
    random = Random(f"logictest {seed}")
    asked = set(numbers if most is None else random.sample(numbers, min(most, len(numbers))))
    views: list[str] = []
    with duckdb.connect(":memory:", config={"threads": 1}) as origin, contextlib.ExitStack() as stack:
        both: Any = None
        for number, (kind, sql) in enumerate(queries):
            if kind == "statement":
                with contextlib.suppress(duckdb.Error):
                    origin.execute(re.sub(r"\b(INTEGER|INT)\b(?!\s*\()", "BIGINT", sql) if "CREATE" in sql else sql)
                    both = None
                    views += [sql] if re.match(r"(CREATE|DROP) +VIEW", sql, re.IGNORECASE) else []
            elif number in asked:
                if both is None:
                    stack.close()
                    both = stack.enter_context(_written(origin, views, random, found))
                _ask(*both, sql, found)
    return found


@contextlib.contextmanager
def _written(origin: Any, views: list[str], random: Random, found: Tally) -> Iterator[tuple[Any, Any]]:
    """Write all tables somewhere, and yield a plain DuckDB and a connection that know them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        duckdb.connect(":memory:", config={"threads": 1}) as plain,
        kartosql.connect(folder, attach=True, cache="off") as con,
    ):
        names = [name for (name,) in origin.sql("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall()]
        for name in names:
            columns = origin.sql(f'SELECT * FROM "{name}" LIMIT 0').columns
            parts = random.choice([1, 3, 7])
            rows = origin.sql(
                f"SELECT *, CAST(n % {parts} AS BIGINT) AS {PART}, CAST(n AS BIGINT) AS {CELL} "
                f'FROM (SELECT *, row_number() OVER () AS n FROM "{name}")'
            ).to_arrow_table()
            rows = rows.select([*columns, PART, CELL])
            if not rows.num_rows:
                continue  # nothing can be written
            place = random.choice(PLACES)
            found.places[place] += 1
            _write(con, folder, name, rows, columns, place, random)
            order = ", ".join(f'"{c}"' for c in con.sql(f'SELECT * FROM "{name}" LIMIT 0').columns)
            plain.register("given", rows)
            plain.execute(f'CREATE TABLE "{name}" AS SELECT {order} FROM given')
            plain.unregister("given")
        for view in views:
            with contextlib.suppress(duckdb.Error, KartosqlError):
                plain.execute(view)
                con.sql(view)
        yield plain, con


def _write(con: Any, folder: str, name: str, rows: Any, columns: list[str], place: str, random: Random) -> None:
    cut = random.randrange(1, rows.num_rows) if rows.num_rows > 1 and random.random() < 0.5 else rows.num_rows
    first, more = rows.slice(0, cut), rows.slice(cut)
    indexed = [c for c in columns if random.random() < 0.4 and rows[c].null_count < rows.num_rows]
    if place == "folder":
        for n, piece in enumerate((first, more)):
            if piece.num_rows:
                path = Path(folder, "files", name)
                path.mkdir(parents=True, exist_ok=True)
                pq.write_table(piece, path / f"{n}.parquet", row_group_size=max(1, cut // 3))
        con.attach(f"{folder}/files/{name}", name)
        return
    target = f"{name}_stored" if place == "delta" else name
    if place == "cube":
        indexed = [c for c in indexed if not rows[c].null_count]  # as a cube asks for
        cube = kartosql.Cube(name, [CELL], [PART], index_columns=indexed)
        con.build_cube(cube, {"seed": first})
        if more.num_rows:
            con.append_to_cube(cube, {"seed": more})
    else:
        keys = [PART] if place == "parts" else []
        con.create_dataset(target, first, partition_on=keys, index_columns=indexed)
        if more.num_rows:
            con.append_to_dataset(target, more)
    if random.random() < 0.3 and columns:
        con.create_skipping_index(f"{name}.seed" if place == "cube" else target, minmax=[random.choice(columns)])
    if place == "delta":
        con.publish(target, f"{folder}/{target}", "delta")
        con.attach(f"{folder}/{target}", name, type="delta")


def _ask(plain: Any, con: Any, sql: str, found: Tally) -> None:
    try:
        wanted = plain.execute(sql).fetchall()
    except duckdb.Error:
        wanted = None
    try:
        given = con.sql(sql).rows()
    except KartosqlError as e:
        if wanted is None:
            found.refused_by_both += 1
        else:
            found.refused[e.code] += 1
            found.examples.setdefault(e.code, f"{sql}\n{e}")
        return
    except Exception as e:  # noqa: BLE001
        found.failures.append(f"{sql}\n{type(e).__name__}: {e}")
        return
    if wanted is None:
        found.refused_by_both += 1  # an order of evaluation may meet no error
    elif Counter(map(_rounded, given)) != Counter(map(_rounded, wanted)):
        found.failures.append(f"{sql}\ngiven  {given[:5]}\nwanted {wanted[:5]}")
    else:
        found.alike += 1


def _rounded(row: Any) -> tuple[Any, ...]:
    """Return a row of which sums may be made in another order."""
    return tuple((float(f"{v:.9g}") + 0.0 if math.isfinite(v) else repr(v)) if isinstance(v, float) else v for v in row)


def check_all(paths: list[Path], seed: int, most: int | None, until: float) -> Tally:
    """Ask the queries of scripts, until some time of the monotonic clock."""
    total = Tally()
    for path in paths:
        if time.monotonic() > until:
            break
        found = check_script(path.read_text("utf-8", "replace"), f"{seed} {path.name}", most)
        total.scripts += 1
        total.alike += found.alike
        total.refused_by_both += found.refused_by_both
        total.refused += found.refused
        total.places += found.places
        total.examples = found.examples | total.examples
        total.failures += [f"{path}: {text}" for text in found.failures]
    return total


def scripts(folder: str) -> list[Path]:
    """Return the scripts below a folder."""
    return sorted(Path(folder).rglob("*.test"))
