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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import kartosql
from kartosql.engines.duckdb.statement import _exact
from kartosql.errors import KartosqlError
from kartosql.result import python_rows

PLACES = ("dataset", "parts", "cube", "folder", "delta")
ROUNDS = 3  # of a loop
_LOOPS = ("loop", "foreach", "concurrentloop", "concurrentforeach", "endloop")
_DIRECTIVES = (
    "skipif", "onlyif", "hash-threshold", "halt", "mode", "require", "require-env", "load", "restart", "reconnect",
    "sleep", "unzip", "set", "reset", "tags", "test-env", "template", "include", "continue",
)  # fmt: skip
# What is asked: SELECTs over tables, which tell nothing of time, chance, or the machinery of an engine.
_SELECT = re.compile(r"\s*[(\s]*(SELECT|WITH|FROM|VALUES|PIVOT|UNPIVOT)\b", re.IGNORECASE)
_OTHER = re.compile(
    r"\b(random|setseed|gen_random_uuid|uuid\w*|now|today|current_\w+|get_current_\w+|transaction_timestamp|duckdb_\w+|"
    r"pragma_\w+|information_schema|pg_\w+|sqlite_\w+|read_\w+|parquet_\w+|nextval|currval|getenv|txid_current|version|"
    r"test_\w+|rowid|sniff_csv|glob|USING\s+SAMPLE|TABLESAMPLE|reservoir|getvariable|stats|INTO|__TEST_DIR__)\b",
    re.IGNORECASE,
)
_NAMES = (
    "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' AND database_name = current_database() "
    "ORDER BY table_name"
)
_SETS_NO_ROWS = re.compile(
    r"\s*(SET|RESET|PRAGMA|SELECT|EXPLAIN|PREPARE|CALL|LOAD|INSTALL|CHECKPOINT|VACUUM|ANALYZE|REINDEX|"
    r"CREATE\s+(UNIQUE\s+)?INDEX|DROP\s+INDEX)\b",
    re.IGNORECASE,
)
PART, CELL = "kq_part", "kq_cell"  # columns that each table gets, so that it can be cut


TIMEOUT = 60.0  # seconds for a query
TOGETHER = 16  # queries of one statement, as what a statement costs is mostly none of theirs
STATES = 3  # of the tables of a script, for which they are written, where not all queries are asked
ALONE = 0.1  # of the queries are statements of their own
_CONFIG = {"threads": 1, "enable_external_access": "false", "memory_limit": "2GB"}
_WIDER = {pa.int8(): pa.int64(), pa.int16(): pa.int64(), pa.int32(): pa.int64(), pa.float32(): pa.float64()} | {
    t: pa.uint64() for t in (pa.uint8(), pa.uint16(), pa.uint32())
}


@dataclass
class Tally:
    """What came of queries: alike, refused by DuckDB, or by kartosql alone, by code; and what differs."""

    scripts: int = 0
    alike: int = 0
    refused_by_both: int = 0
    by_order: int = 0  # answers that follow from the order of rows, which nothing promises
    unwritten: Counter[str] = field(default_factory=Counter)  # tables that cannot be written, by why
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)  # of what is refused
    failures: list[str] = field(default_factory=list)
    together: int = 0  # of those alike, as branches of one statement
    places: Counter[str] = field(default_factory=Counter)


def records(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind (statement or query) and the SQL of each record that DuckDB is meant to run.

    Loops, which DuckDB's own scripts have, are cut short: what the tables hold then is the same for both sides.
    """
    is_skipped = False
    for block in _unrolled(_blocks(text)):
        lines, is_for_others = [*block], False
        while lines and (words := lines[0].split())[0] in _DIRECTIVES:
            lines.pop(0)
            if words[0] == "halt" and not is_for_others:
                return
            if words[0] == "mode":
                is_skipped = words[1:] == ["skip"] or (is_skipped and words[1:] != ["unskip"])
            engine = words[1] if len(words) > 1 else ""
            is_for_others |= (words[0] == "onlyif" and engine != "duckdb") or words == ["skipif", "duckdb"]
        if not lines or is_for_others or is_skipped:
            continue
        kind, *words = lines[0].split()
        body = "\n".join(lines[1:]).split("\n----")[0]
        if (kind == "statement" and words in (["ok"], ["maybe"])) or kind == "query":
            yield kind, body


def _blocks(text: str) -> Iterator[list[str]]:
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        lines = [line for line in block.split("\n") if line.strip() and not line.startswith("#")]
        while lines and lines[0].split()[0] in _LOOPS:
            yield [lines.pop(0)]
        if lines and lines[-1] == "endloop":
            yield from (lines[:-1], lines[-1:])
        elif lines:
            yield lines


def _unrolled(blocks: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield the blocks of the first rounds of loops, with values in the place of their variables."""
    blocks = iter(blocks)
    for block in blocks:
        word, *given = block[0].split()
        if word not in _LOOPS:
            yield block
        elif word != "endloop":
            inner, depth = [], 1
            for one in blocks:
                depth += (one[0].split()[0] != "endloop") if one[0].split()[0] in _LOOPS else 0
                depth -= one[0].split()[0] == "endloop"
                if not depth:
                    break
                inner.append(one)
            if word in ("loop", "foreach") and given:
                name, *values = given
                numbers = range(*map(int, values[:2])) if word == "loop" and all(map(str.isdigit, values[:2])) else ()
                for value in [*(numbers if word == "loop" else values)][:ROUNDS]:
                    text = [[line.replace(f"${{{name}}}", str(value)) for line in one] for one in inner]
                    yield from _unrolled(text)


def check_script(text: str, seed: object, most: int | None = None) -> Tally:
    """Ask the queries of a script, or ``most`` of them drawn by chance, over some states of its tables."""
    found, queries = Tally(), list(records(text))
    random = Random(f"logictest {seed}")
    asked = _drawn(queries, most, random)
    views: list[str] = []
    pending: list[str] = []
    with duckdb.connect(":memory:", config=_CONFIG) as origin:

        def ask() -> None:
            if pending:
                with _written(origin, views, random, found) as (plain, con):
                    _ask_all(plain, con, pending, random, found)
                pending.clear()

        for number, (kind, sql) in enumerate(queries[: max(asked, default=-1) + 1]):
            if kind == "query":
                pending += [sql] if number in asked else []
                continue
            if not _SETS_NO_ROWS.match(sql):
                ask()
            with contextlib.suppress(duckdb.Error):
                origin.execute(sql)
                views += [sql] if re.match(r"\s*(CREATE|DROP)\s+(OR\s+REPLACE\s+)?VIEW", sql, re.IGNORECASE) else []
        ask()
    return found


def _drawn(queries: list[tuple[str, str]], most: int | None, random: Random) -> set[int]:
    """Return the numbers of the queries to ask."""
    state, state_of = 0, {}
    for number, (kind, sql) in enumerate(queries):
        state += kind == "statement" and not _SETS_NO_ROWS.match(sql)
        if kind == "query" and is_asked(sql):
            state_of[number] = state
    if most is None:
        return {*state_of}
    drawn = random.sample(list(state_of), len(state_of))
    some = [*dict.fromkeys(state_of[number] for number in drawn)][:STATES]
    return {*[number for number in drawn if state_of[number] in some][:most]}


def _ask_all(plain: Any, con: Any, queries: list[str], random: Random, found: Tally) -> None:
    """Ask queries of one state of the tables: most of them as branches of one statement by columns.

    Where such a statement is refused or answered otherwise, each of its queries is asked alone.
    """
    alone, alike = [], dict[tuple[str, ...], list[str]]()
    for sql in queries:
        try:
            types = None if random.random() < ALONE else tuple(map(str, plain.sql(sql).types))
        except Exception:  # noqa: BLE001 - whatever DuckDB refuses, kartosql is asked as well
            types = None
        _ = alone.append(sql) if types is None else alike.setdefault(types, []).append(sql.rstrip("; \n\t"))
    for group in alike.values():
        for at in range(0, len(group), TOGETHER):
            some = group[at : at + TOGETHER]
            if _are_alike(plain, con, some):
                found.alike += len(some)
                found.together += len(some)
            else:
                alone += some
    for sql in alone:
        _ask(plain, con, sql, found)


def _are_alike(plain: Any, con: Any, queries: list[str]) -> bool:
    """Return whether queries of like columns are answered alike as one statement."""
    text = "\nUNION ALL ".join(f"SELECT {n} AS kq_query, * FROM (\n{sql}\n)" for n, sql in enumerate(queries))
    try:
        wanted, query = _answer(plain, text), con.sql(text)
        table = query.arrow()  # which tells the types
        return query.types == wanted.types and wanted.is_like(Answer(query.columns, query.types, table))
    except Exception:  # noqa: BLE001 - of whom it is tells each query alone
        return False


def is_asked(sql: str) -> bool:
    """Return whether a query is a SELECT of which the answer follows from the rows."""
    return _SELECT.match(sql) is not None and _OTHER.search(sql) is None


@contextlib.contextmanager
def _written(origin: Any, views: list[str], random: Random, found: Tally) -> Iterator[tuple[Any, Any]]:
    """Write all tables somewhere, and yield a plain DuckDB and a connection that know them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        duckdb.connect(":memory:", config=_CONFIG) as plain,
        kartosql.connect(folder, attach=True, cache="off", threads=1, timeout=TIMEOUT) as con,
    ):
        try:
            names = origin.execute(_NAMES).fetchall()
        except duckdb.Error:  # something else in there needs files
            names = []
        for (name,) in names:
            if (rows := _rows(origin, name, random.choice([1, 3, 7]))) is None:
                found.unwritten["no rows, or no type of Arrow"] += 1
                continue  # nothing can be written
            for place in (random.choice(PLACES), "folder"):  # which takes more
                try:
                    _write(con, folder, name, rows, rows.column_names[:-2], place, random)
                    found.places[place] += 1
                    break
                except (KartosqlError, pa.ArrowException) as e:
                    found.unwritten[f"{place} {getattr(e, 'code', type(e).__name__)}"] += 1
            else:
                continue
            # In the types that are stored: those of lists may be wider than those that a script names.
            stored = con.sql(f'SELECT * FROM "{name}" LIMIT 0').arrow().schema
            try:
                plain.register("given", rows.select(stored.names).cast(stored))
                plain.execute(f'CREATE TABLE "{name}" AS FROM given')
                plain.unregister("given")
            except (pa.ArrowException, duckdb.Error):
                found.unwritten["types that DuckDB does not take back"] += 1
        for view in views:
            with contextlib.suppress(duckdb.Error, KartosqlError):
                plain.execute(view)
                con.sql(view)
        plain.execute("SET TimeZone = 'UTC'")
        yield plain, con


def _rows(origin: Any, name: str, parts: int) -> pa.Table | None:
    """Return the rows of a table, cut into parts, in types that Kartothek stores; None if it has none."""
    try:
        rows = origin.sql(
            f"SELECT *, CAST(n % {parts} AS BIGINT) AS {PART}, CAST(n AS BIGINT) AS {CELL} "
            f'FROM (SELECT *, row_number() OVER () AS n FROM "{name}")'
        ).to_arrow_table()
        rows = rows.drop_columns(["n"])
        types = [_WIDER.get(field.type, field.type) for field in rows.schema]
        return rows.cast(pa.schema(zip(rows.column_names, types, strict=True))) if rows.num_rows else None
    except (duckdb.Error, pa.ArrowException):
        return None


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
        wanted = _answer(plain, sql)
    except Exception:  # noqa: BLE001 - Python has no year that large, and more of that kind
        wanted = None
    try:
        query = con.sql(sql)
        table = query.arrow()
        given = Answer(query.columns, query.types, table)
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
    elif (given.names, given.types) != (wanted.names, wanted.types):
        found.failures.append(
            f"{sql}\ncolumns given  {given.names[:9]} {given.types[:9]}\n"
            f"columns wanted {wanted.names[:9]} {wanted.types[:9]}"
        )
    elif given.is_like(wanted):
        found.alike += 1
    elif _follows_from_order(plain, sql, wanted):
        found.by_order += 1
    else:
        found.failures.append(f"{sql}\ngiven  {given.rows()[:5]}\nwanted {wanted.rows()[:5]}")


class Answer(NamedTuple):
    """Rows in the same form, whoever answers."""

    names: list[str]
    types: list[str]
    table: pa.Table

    def rows(self) -> list[Any]:
        """Return the rows as Python has them."""
        return list(python_rows(self.table, self.types))

    def is_like(self, other: Answer) -> bool:
        """Return whether another one has the same rows, in any order."""
        return self.table.equals(other.table) or self.counted() == other.counted()

    def counted(self) -> Counter[str]:
        """Return how often each row occurs."""
        return Counter(repr(_rounded(row)) for row in self.rows())


def _answer(plain: Any, sql: str) -> Answer:
    found = plain.sql(sql)
    table = _exact(found).to_arrow_table()  # as text what Arrow does not hold
    return Answer(found.columns, [*map(str, found.types)], table)


def _follows_from_order(plain: Any, sql: str, wanted: Answer) -> bool:
    """Return whether DuckDB answers otherwise over the same rows in another order."""
    names = [name for (name,) in plain.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
    plain.execute("BEGIN")
    try:
        for turn in range(4):
            for name in names:
                by = f"{CELL} DESC" if not turn else f"hash({CELL}, {turn})"
                plain.execute(f'CREATE TEMP TABLE turned AS SELECT * FROM "{name}" ORDER BY {by}')
                plain.execute(f'DELETE FROM "{name}"; INSERT INTO "{name}" SELECT * FROM turned; DROP TABLE turned')
            if _answer(plain, sql).counted() != wanted.counted():
                return True
    except duckdb.Error:
        return False
    finally:
        plain.execute("ROLLBACK")
    return False


def _rounded(row: Any) -> tuple[Any, ...]:
    """Return a row of which sums may be made in another order."""
    return tuple((float(f"{v:.9g}") + 0.0 if math.isfinite(v) else repr(v)) if isinstance(v, float) else v for v in row)


def check_all(paths: list[Path], seed: int, most: int | None, until: float) -> Tally:
    """Ask the queries of scripts, until some time of the monotonic clock."""
    total = Tally()
    for path in Random(f"scripts {seed}").sample(paths, len(paths)):  # whatever there is time for
        if time.monotonic() > until:
            break
        found = check_script(path.read_text("utf-8", "replace"), f"{seed} {path.name}", most)
        total.scripts += 1
        total.alike += found.alike
        total.together += found.together
        total.refused_by_both += found.refused_by_both
        total.by_order += found.by_order
        total.unwritten += found.unwritten
        total.refused += found.refused
        total.places += found.places
        total.examples = found.examples | total.examples
        for text in found.failures:
            print(f"{path}: {text}\nagain: --seed {seed}{f' --queries {most}' if most is not None else ''}", flush=True)
        total.failures += found.failures
    return total


def scripts(folder: str) -> list[Path]:
    """Return the scripts below a folder."""
    return sorted(path for path in Path(folder).rglob("*") if path.suffix in (".test", ".slt"))
