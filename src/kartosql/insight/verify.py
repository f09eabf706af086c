"""VERIFY: one query answered in several ways that have to agree."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import KartosqlError, LimitError, StoreError, reraise
from kartosql.insight.explain import selected
from kartosql.plan.reader import may_tell_time
from kartosql.query import SelectQuery
from kartosql.session import Request
from kartosql.sql import Select
from kartosql.sql.statements import Verify
from kartosql.sql.undetermined import undetermined
from kartosql.store import Store
from kartosql.tables.table import Table, arrow_table
from kartosql.text.constants import quote
from kartosql.text.report import Page, Report, counted, human_bytes, human_seconds
from kartosql.text.types import type_name
from kartosql.text.version import VERSION

TOLERANCE = 1e-9  # relative, of floating point numbers that were summed in another order
EXAMPLES = 3
MAX_ROWS = 200_000  # up to which answers that differ are compared row by row

Row = tuple[Any, ...]


def digest(table: pa.Table) -> str:
    """Return a number that answers with the same rows share, in any order.

    It is the sum of a hash of each row. Both zeros are one value, and all NaN.
    """
    texts = (repr(row).encode("utf-8", "surrogatepass") for row in rows(table))
    total = sum(int.from_bytes(hashlib.blake2b(text, digest_size=16).digest()) for text in texts)
    return f"{total % (1 << 128):032x}"


def rows(table: pa.Table) -> Iterator[Row]:
    """Yield the rows as Python values of which equal ones have the same repr."""
    for batch in table.to_batches():
        columns = [[_value(v) for v in _plain(column)] for column in batch.columns]
        yield from zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)


def _plain(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [str(v) for v in column]


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return 0.0 if value == 0 else value
    if isinstance(value, dict):
        return {k: _value(v) for k, v in value.items()}
    return [_value(v) for v in value] if isinstance(value, list) else value


def difference(given: pa.Table, wanted: pa.Table) -> str | None:
    """Return how an answer differs from another one: a text, empty if only by rounding, or None if not at all."""
    if given.column_names != wanted.column_names or given.schema.types != wanted.schema.types:
        mine, theirs = (", ".join(f"{f.name} {type_name(f.type)}" for f in table.schema) for table in (given, wanted))
        return f"columns {mine} instead of {theirs}"
    if given.num_rows != wanted.num_rows:
        return f"{given.num_rows:,} rows instead of {wanted.num_rows:,}; {_examples(given, wanted)}".rstrip("; ")
    if digest(given) == digest(wanted):
        return None
    if any(pa.types.is_floating(t) for t in given.schema.types) and _are_close(given, wanted):
        return ""
    return _examples(given, wanted) or "rows differ"


def _examples(given: pa.Table, wanted: pa.Table) -> str:
    if max(given.num_rows, wanted.num_rows) > MAX_ROWS:
        return ""
    mine, theirs = Counter(map(repr, rows(given))), Counter(map(repr, rows(wanted)))
    found = [f"missing {row}" for row in list((theirs - mine).elements())[:EXAMPLES]]
    found += [f"too much {row}" for row in list((mine - theirs).elements())[:EXAMPLES]]
    return "; ".join(text[:200] for text in found)


def _are_close(given: pa.Table, wanted: pa.Table) -> bool:
    """Return whether two answers with the same number of rows differ in floating point numbers only, and little."""
    floats = [i for i, t in enumerate(given.schema.types) if pa.types.is_floating(t)]

    def key(row: Row) -> tuple[str, tuple[tuple[int, float], ...]]:
        others, numbers = repr([v for i, v in enumerate(row) if i not in floats]), (row[i] for i in floats)
        # NULL, NaN, then numbers.
        return others, tuple((0, 0.0) if v is None else (1, 0.0) if math.isnan(v) else (2, v) for v in numbers)

    for mine, theirs in zip(sorted(map(key, rows(given))), sorted(map(key, rows(wanted))), strict=True):
        if mine[0] != theirs[0]:
            return False
        for (kind, x), (other, y) in zip(mine[1], theirs[1], strict=True):
            if kind != other or not math.isclose(x, y, rel_tol=TOLERANCE, abs_tol=1e-12):
                return False
    return True


FILE = "__kartosql_file"
MARKS = ("kartosql_intent", "kartosql_unfinished", "kartosql_schema", "kartosql_absent")
MAX_BYTES = 1 << 30

Run = Callable[[str, Mapping[str, pa.Table]], pa.Table]


class CannotRead(Exception):
    """Something that the reader does not know; the message says what."""


def read(store: Store, source: Table, run: Run) -> pa.Table:
    """Return all rows of a table of a statement.

    ``run`` answers a query over given tables. Raises CannotRead for what is not understood, and
    where all files together hold more than 1 GiB.
    """
    if source.is_attached:
        raise CannotRead("it stands in another store, which was attached")
    try:
        tables = {f"t{i}": _dataset(store, p.table.uuid, p.table.table) for i, p in enumerate(source.parts)}
        if not tables:
            raise CannotRead("it is no dataset")
        return run(_query(source, tables), tables)
    except (KeyError, ValueError, TypeError, AttributeError, OSError, pa.ArrowException) as e:
        reraise(e)
        raise CannotRead(f"{type(e).__name__}: {e}".splitlines()[0]) from None
    except (StoreError, LimitError):
        raise
    except KartosqlError as e:
        raise CannotRead(e.message) from None


def _query(source: Table, tables: Mapping[str, pa.Table]) -> str:
    """Return the query that makes the table: the last file wins by cell, then the seed is joined with all others."""
    cube = source.cube
    shown = ", ".join(map(quote, source.columns))
    if cube is None:
        return f"SELECT {shown} FROM t0"
    shared = [*cube.dimension_columns, *cube.partition_columns]
    keys = {n: ", ".join(quote(c) for c in shared if c in t.column_names) for n, t in tables.items()}
    last = "QUALIFY rank() OVER (PARTITION BY {} ORDER BY {} DESC) = 1"
    own = [f"(SELECT * EXCLUDE ({FILE}) FROM {n} {last.format(key, FILE)}) AS p{n}" for n, key in keys.items()]
    joined = [f" LEFT JOIN {part} USING ({key})" for part, key in zip(own[1:], list(keys.values())[1:], strict=True)]
    return f"SELECT {shown} FROM {own[0]}{''.join(joined)}"


def _dataset(store: Store, uuid: str, table: str) -> pa.Table:
    """Return all rows of one table of a dataset, with the number of the file of each."""
    document = _document(store, uuid)
    metadata = document.get("metadata", {})
    if any(mark in metadata for mark in MARKS):
        raise CannotRead("a change of the dataset is under way")
    schema = pq.read_schema(pa.BufferReader(store.read(f"{uuid}/{table}/_common_metadata")))
    if "partitions" in document:
        keys = [entry["files"][table] for entry in document["partitions"].values() if table in entry["files"]]
    else:
        below = f"{uuid}/{table}/"
        keys = [k for k in sorted(store.list_below(uuid)) if k.startswith(below) and k.endswith(".parquet")]
    partition_keys = document.get("partition_keys")
    if partition_keys is None:
        partition_keys = [name for name, _ in _values(keys[0], uuid, table)] if keys else []
    if sum(n or 0 for n in store.sizes(keys).values()) > MAX_BYTES:
        raise CannotRead("there is more than 1 GiB of it")
    pieces = [
        _file(store, key, dict(_values(key, uuid, table)), schema, partition_keys, at) for at, key in enumerate(keys)
    ]
    if not pieces:
        fields = [f if not pa.types.is_null(f.type) else pa.field(f.name, pa.string()) for f in schema]
        return pa.schema([*fields, pa.field(FILE, pa.int64())]).empty_table()
    return pa.concat_tables(pieces, promote_options="permissive")


def _document(store: Store, uuid: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(store.read(f"{uuid}.by-dataset-metadata.json"))
    except KeyError:
        import msgpack
        import zstandard

        packed = store.read(f"{uuid}.by-dataset-metadata.msgpack.zstd")
        with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            found = msgpack.unpackb(stream.read(), raw=False, strict_map_key=False)
    return found


def _values(key: str, uuid: str, table: str) -> list[tuple[str, str]]:
    folders = key.removeprefix(f"{uuid}/{table}/").split("/")[:-1]
    pairs = [folder.partition("=") for folder in folders]
    if not all(separator for _, separator, _ in pairs):
        raise CannotRead(f"a folder is no partition value in {key!r}")
    return [(unquote(name), unquote(value, errors="strict")) for name, _, value in pairs]


def _file(
    store: Store, key: str, values: Mapping[str, str], schema: pa.Schema, partition_keys: list[str], at: int
) -> pa.Table:
    table = pq.read_table(pa.BufferReader(store.read(key)), partitioning=None)
    columns = []
    for field in schema:
        untyped = pa.types.is_null(field.type)
        if field.name in partition_keys:
            type_ = pa.string() if untyped else field.type
            text = values[field.name].lower() if pa.types.is_boolean(type_) else values[field.name]
            column = pa.repeat(pa.array([text]).cast(type_)[0], table.num_rows)
        elif field.name not in table.column_names:  # the file is older than the column
            column = pa.nulls(table.num_rows, field.type)
        else:
            column = table.column(field.name)
            column = column if untyped else column.cast(field.type)
        columns.append(column)
    return pa.table([*columns, pa.array([at] * table.num_rows, pa.int64())], names=[*schema.names, FILE])


ATTEMPTS = 3
# What an engine says that is not asked: it is no answer, and no fault.
NOT_ASKED = frozenset({"not-portable", "missing-extra", "invalid-setting", "not-supported", "byte-budget"})
STOPPED = ("interrupted", "connection-closed")
_HEAD = ("answered by", "rows", "digest", "files", "bytes", "time", "verdict")


@dataclass(frozen=True)
class VerifiedAnswer:
    """One of the answers: ``verdict`` is reference, equal, equal but for rounding, different, failed or not asked.

    ``digest`` stands for the rows, whatever their order; ``note`` says more.
    """

    by: str
    verdict: str
    rows: int | None = None
    digest: str | None = None
    files: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    note: str | None = None


@dataclass(frozen=True, repr=False)
class Certificate(Report):
    """What several answers to one query have in common.

    ``verdict`` is verified, different, or undecided: what differs may do so, as the query does
    not determine its answer, or the data changed meanwhile.
    """

    listed = "answers", VerifiedAnswer
    sql: str
    store: str
    time: str
    version: str
    tables: tuple[tuple[str, int], ...]  # names and numbers of files
    answers: tuple[VerifiedAnswer, ...]
    verdict: str
    because: str | None = None

    @property
    def is_failed(self) -> bool:
        """Whether answers differ that must not."""
        return self.verdict == "different"

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON-able dictionary."""
        return {**super().to_dict(), "tables": [{"table": name, "files": count} for name, count in self.tables]}

    def _rows(self) -> list[list[str]]:
        return [
            [
                a.by,
                "" if a.rows is None else f"{a.rows:,}",
                "" if a.digest is None else a.digest[:16],
                "" if a.files is None else f"{a.files:,}",
                "" if a.bytes is None else human_bytes(a.bytes),
                "" if a.seconds is None else human_seconds(a.seconds),
                a.verdict,
            ]
            for a in self.answers
        ]

    def _facts(self) -> list[tuple[str, str]]:
        tables = ", ".join(f"{name} ({counted(count, 'file')})" for name, count in self.tables)
        made = f"{self.time} by kartosql {self.version}"
        return [("query", self.sql), ("store", self.store), ("tables", tables or "none"), ("made", made)]

    def _laid_out(self, page: Page) -> list[str]:
        """Return the lines of its text on a page."""
        style = "good" if self.verdict == "verified" else "error" if self.is_failed else "hint"
        lines = page.text(self.verdict.upper() + (f": {self.because}" if self.because else ""), "", 300, style)
        lines += page.facts(self._facts(), limit=300)
        lines += page.grid(_HEAD, self._rows(), right=(1, 3, 4, 5))
        return lines + [line for a in self.answers if a.note for line in page.text(f"{a.by}: {a.note}", "  ", 400)]


def verify(request: Request, statement: Verify) -> Certificate:
    """Answer a query with and without pruning, over files read in another way, and by Spark; compare the rows.

    Rows are compared as multisets. Raises what the query itself raises.
    """
    for _ in range(ATTEMPTS):
        found, changed = _attempt(request, statement)
        if not changed:
            break
    return found


def _attempt(request: Request, statement: Verify) -> tuple[Certificate, bool]:
    select = statement.query
    query = request.query(select, on="duckdb")
    started = time.perf_counter()
    reference = query.arrow()
    sources = query.sources
    first = _answer("duckdb, pruned", "reference", reference, query, time.perf_counter() - started)

    def run(asked: SelectQuery) -> tuple[pa.Table, SelectQuery]:
        return asked.arrow(), asked

    others: dict[str, Callable[[], tuple[pa.Table, SelectQuery | None]]] = {
        "duckdb, all files": lambda: run(request.query(select, on="duckdb", pruned=False)),
        "duckdb, files read in another way": lambda: (_independent(request, query), None),
    }
    if statement.engine != "duckdb":
        others["spark"] = lambda: run(request.query(select, on="spark"))
    answers = [first, *(_compared(by, make, reference) for by, make in others.items())]
    now = request.query(select, on="duckdb").sources
    changed = any(a is not b for a, b in zip(sources, now, strict=True) if a.data is None)
    verdict, because = _verdict(answers, select, changed)
    made = Certificate(
        sql=select.text,
        store=str(request.session.store.url),
        time=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        version=VERSION,
        tables=tuple((s.name, sum(len(p.table.files) for p in s.parts)) for s in sources),
        answers=tuple(answers),
        verdict=verdict,
        because=because,
    )
    return made, changed


def _independent(request: Request, query: SelectQuery) -> pa.Table:
    """Answer a query over tables that were read without the library's reader."""

    def run(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        registered = {name: arrow_table(name, table) for name, table in tables.items()}
        return selected(request, sql, registered).arrow()

    tables: dict[int, pa.Table] = {}
    for source in query.sources:
        if id(source) not in tables:
            given = source.data is not None
            tables[id(source)] = source.data if given else read(request.session.store, source, run)
    return query.answer_over([tables[id(source)] for source in query.sources])


def _compared(by: str, make: Callable[[], tuple[pa.Table, SelectQuery | None]], reference: pa.Table) -> VerifiedAnswer:
    started = time.perf_counter()
    try:
        table, query = make()
    except CannotRead as e:
        return VerifiedAnswer(by, "not asked", note=str(e))
    except KartosqlError as e:
        if e.code in STOPPED:
            raise
        # What the machine or a store refuses says nothing about the answer.
        is_asked = e.code not in NOT_ASKED and not isinstance(e, LimitError | StoreError)
        return VerifiedAnswer(by, "failed" if is_asked else "not asked", note=f"{e.code}: {e.message}")
    seconds = time.perf_counter() - started
    how = difference(table, reference)
    verdict = "equal" if how is None else "equal but for rounding" if how == "" else "different"
    return _answer(by, verdict, table, query, seconds, how or None)


def _answer(
    by: str, verdict: str, table: pa.Table, query: SelectQuery | None, seconds: float, note: str | None = None
) -> VerifiedAnswer:
    stats = (query.stats if query is not None else None) or {}
    files, size = stats.get("files_read"), stats.get("bytes_selected")
    return VerifiedAnswer(by, verdict, table.num_rows, digest(table), files, size, seconds, note)


def _verdict(answers: list[VerifiedAnswer], select: Select, changed: bool) -> tuple[str, str | None]:
    others = answers[1:]
    wrong = [a for a in others if a.verdict in ("different", "failed")]
    if changed:
        return "undecided", "the data changed meanwhile"
    if not wrong:
        equal = sum(a.verdict.startswith("equal") for a in others)
        return ("verified", None) if equal else ("undecided", "no other way to answer it was open")
    reason = undetermined(select.tree)
    if reason is None and may_tell_time(select.text):
        reason = "it asks the clock"
    if reason is not None and all(a.verdict == "different" for a in wrong):
        return "undecided", f"the query does not determine its answer: {reason}"
    return "different", f"{', '.join(a.by for a in wrong)}; please report it with this certificate"
