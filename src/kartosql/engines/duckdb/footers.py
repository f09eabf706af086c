"""What the footers of files tell, remembered over the statements of a connection."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kartosql import stopping
from kartosql.engines.duckdb.types import fits, literal
from kartosql.errors import FormatError
from kartosql.formats.footer import footer_of, schema_bytes
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.store.local import LocalFiles

if TYPE_CHECKING:
    from kartosql.engines.duckdb.session import Session

MAX_FILES = 200_000
MIN_FILES = 32  # scans of fewer files are not worth statistics
# To read the statistics of a small file takes as long as to scan it, so a statement does it for part of its files:
# so many, or more if their share of the seconds that it takes to scan all files suffices.
STATISTICS_AT_ONCE, STATISTICS_SHARE = 64, 0.05
STATISTICS_SECONDS, FILE_SECONDS, BYTE_SECONDS = 1.7e-4, 1e-4, 1e-9
_ORDERED = {
    *(
        "FLOAT",
        "DOUBLE",
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "UTINYINT",
        "USMALLINT",
        "UINTEGER",
        "UBIGINT",
        "BOOLEAN",
    ),
    *("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"),
    "VARCHAR",
}

_LOCAL = LocalFiles()
TAIL = 32_768  # bytes at the end of a local file that are read for its footer
MAX_PREFIXES = 16  # beginnings of footers with which others are compared

_NARROWER = {"BIGINT": {"TINYINT", "SMALLINT", "INTEGER"}, "UBIGINT": {"UTINYINT", "USMALLINT", "UINTEGER"}}
_VIRTUAL = frozenset({"filename", "file_index", "file_row_number"})  # columns that DuckDB adds

Shape = tuple[tuple[str, int | None, str | None], ...]  # name, children and DuckDB type of each node of a schema
_File = tuple[str, int | None]  # key and size
_Shapes = dict[_File, int]
Bounds = tuple[int, str | None, str | None, int | None]  # file, minimum, maximum, number of NULLs


@dataclass
class ColumnStatistics:
    """Bounds of one column of one table, for the files of which they are known.

    A minimum and maximum of None stand for a file in which the column is NULL everywhere. NaN
    is beyond all bounds. ``seen`` are the files whose footers were read, also those that tell
    nothing.
    """

    column: str
    type: str
    asked: bool = False
    uses: int = 0
    rows: list[Bounds] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)


@dataclass
class _Watched:
    """A table of whose columns statistics were asked for."""

    table: weakref.ref[DatasetTable]
    position: dict[str, int]
    columns: dict[str, ColumnStatistics] = field(default_factory=dict)


@dataclass
class _Facts:
    """What the footers of one table's files tell: numbers of shapes by key and size, row counts by key."""

    table: weakref.ref[DatasetTable]
    shapes: _Shapes = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


class Footers:
    """Remembers schemas, row counts and statistics of files.

    All is kept with the table, and thus forgotten when its metadata change: other programs may
    write a dataset anew under its old labels. A data file does not change before its metadata.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._facts: dict[int, _Facts] = {}
        self._shapes: dict[Shape, int] = {}
        self._prefixes: dict[bytes, int] = {}  # beginning of a footer -> number of its shape
        self._good: set[tuple[int, tuple[tuple[str, str], ...]]] = set()
        self._narrower: dict[tuple[int, tuple[tuple[str, str], ...]], frozenset[str] | None] = {}
        self._watched: dict[int, _Watched] = {}

    # -- schemas -------------------------------------------------------------------------------

    def _facts_of(self, table: DatasetTable) -> _Facts:
        found = self._facts.get(id(table))
        if found is None or found.table() is not table:
            self._facts = {n: f for n, f in self._facts.items() if f.table() is not None}
            found = self._facts[id(table)] = _Facts(weakref.ref(table))
        return found

    def _make_room(self, coming: int) -> None:
        """Forget everything if so many more files are too many."""
        if sum(max(len(f.shapes), len(f.counts)) for f in self._facts.values()) + coming > MAX_FILES:
            for facts in self._facts.values():
                facts.shapes.clear()
                facts.counts.clear()

    def check(
        self,
        session: Session,
        table: DatasetTable,
        keys: Sequence[str],
        paths: Sequence[str],
        declared: Mapping[str, str],
    ) -> None:
        """Raise ``schema-mismatch`` where a file lacks a declared column or has it in a type that does not fit.

        ``paths`` are the names of ``keys`` in DuckDB. Only footers that are not known are read.
        """
        sizes = session.files.sizes
        named = list(zip(keys, map(sizes.get, keys), strict=True))
        with self._lock:
            shapes = self._facts_of(table).shapes
            known = list(map(shapes.get, named))
            if None in known:
                self._read(session, shapes, [name for name, shape in zip(named, known, strict=True) if shape is None])
                known = list(map(shapes.get, named))
            wanted = tuple(declared.items())
            for shape in {*known}:
                if shape is not None and (shape, wanted) not in self._good:
                    self._check_shape(session, paths[known.index(shape)], keys[known.index(shape)], shape, declared)
                    self._good.add((shape, wanted))
            self._collect(session, table, keys)

    def _read(self, session: Session, shapes: _Shapes, files: list[_File]) -> None:
        """Read the schemas of files."""
        self._make_room(len(files))
        if session.store.is_local:
            files = self._recognise(session, shapes, files)
            if len(files) > 1:
                self._ask(session, shapes, files[:1])
                files = self._recognise(session, shapes, files[1:])
        if files:
            self._ask(session, shapes, files)

    def _recognise(self, session: Session, shapes: _Shapes, files: list[_File]) -> list[_File]:
        """Note the shapes of local files whose footers begin like known ones, and return the other files."""
        if not self._prefixes:
            return files
        others = []
        for file in files:
            stopping.check()
            footer = _footer(session, file)
            known = (number for prefix, number in self._prefixes.items() if footer.startswith(prefix))
            number = next(known, None)
            if number is None:
                others.append(file)
            else:
                shapes[file] = number
        return others

    def _learn(self, session: Session, file: _File, number: int) -> None:
        """Remember how the footers of a shape begin."""
        prefix = schema_bytes(_footer(session, file))
        if prefix is not None:
            while len(self._prefixes) >= MAX_PREFIXES:
                del self._prefixes[next(iter(self._prefixes))]
            self._prefixes[prefix] = number

    def _ask(self, session: Session, shapes: _Shapes, files: list[_File]) -> None:
        """Let DuckDB read the schemas of files."""
        paths = session.set_files("kartosql_unread", [key for key, _ in files])
        named = dict(zip(paths, files, strict=True))
        rows = session.rows(
            "SELECT shape, list(file_name) FROM (SELECT file_name, "
            "list({'name': name, 'children': num_children, 'type': duckdb_type}) AS shape "
            "FROM parquet_schema(getvariable('kartosql_unread')) GROUP BY file_name) GROUP BY shape"
        )
        for nodes, found in rows:
            shape = tuple((n["name"], n["children"], n["type"]) for n in nodes)
            number = self._shapes.setdefault(shape, len(self._shapes))
            shapes.update(dict.fromkeys(map(named.__getitem__, found), number))
            if session.store.is_local:
                self._learn(session, named[found[0]], number)

    def _check_shape(self, session: Session, path: str, key: str, number: int, declared: Mapping[str, str]) -> None:
        """Check one of the files of one shape."""
        (shape,) = (s for s, n in self._shapes.items() if n == number)
        suspects = [
            name
            for name, _, type_ in shape
            if name in declared and type_ is not None and not fits(type_, declared[name])
        ]
        if suspects:
            # Looked at closer, as a nested column may have the name of a top-level one.
            described = (
                "SELECT column_name, column_type FROM (DESCRIBE FROM read_parquet([{'filename': ?, 'file_size': 1}]))"
            )
            types = dict(session.rows(described, [path]))
        for name in suspects:
            if types.get(name) is None or not fits(types[name], declared[name]):
                raise _mismatch(
                    f"{key}: the column {name!r} is {types.get(name)}, but {declared[name]} in the schema of its table"
                )
        names = {name for name, _, _ in shape}
        for name in declared:
            if name not in names:
                raise _mismatch(f"{key}: the column {name!r} is missing")

    def narrower(
        self,
        table: DatasetTable,
        keys: Sequence[str],
        sizes: Mapping[str, int | None],
        declared: Mapping[str, str],
    ) -> frozenset[str] | None:
        """Return the declared columns that are narrower integers in checked files; all others are of their very types.

        None if that does not describe the files, or their schemas differ.
        """
        with self._lock:
            shapes = self._facts_of(table).shapes
            numbers = {shapes.get((key, sizes.get(key))) for key in keys}
            number = numbers.pop()
            if numbers or number is None:
                return None
            wanted = (number, tuple(declared.items()))
            if wanted not in self._narrower:
                (shape,) = (s for s, n in self._shapes.items() if n == number)
                self._narrower[wanted] = _narrower(shape, declared)
            return self._narrower[wanted]

    # -- row counts ----------------------------------------------------------------------------

    def known_rows(self, table: DatasetTable) -> list[int | None]:
        """Return the number of rows of each file of a table, None where it is not known."""
        with self._lock:
            return list(map(self._facts_of(table).counts.get, table.files))

    def load(self, session: Session, table: DatasetTable, keys: Sequence[str]) -> None:
        """Read the row counts of those files of a table whose count is not known."""
        with self._lock:
            counts = self._facts_of(table).counts
        unknown = [k for k in dict.fromkeys(keys) if k not in counts]
        if not unknown:
            return
        paths = session.set_files("kartosql_uncounted", unknown)
        rows = session.rows("SELECT file_name, num_rows FROM parquet_file_metadata(getvariable('kartosql_uncounted'))")
        key_of = dict(zip(paths, unknown, strict=True))
        with self._lock:
            self._make_room(len(rows))
            counts.update((key_of[path], count) for path, count in rows)

    # -- statistics ----------------------------------------------------------------------------

    def statistics(self, table: DatasetTable, column: str, type_: str) -> ColumnStatistics | None:
        """Return what is known of a column of DuckDB type ``type_``, or None.

        Asking is remembered: footers are read for a column when a second statement that asked
        opens files of the table.
        """
        if not (type_ in _ORDERED or type_.startswith("DECIMAL(")) or "," in column or len(table.files) < MIN_FILES:
            return None
        with self._lock:
            watched = self._watched.get(id(table))
            if watched is None or watched.table() is not table:
                self._forget_dead(len(table.files))
                position = {key: at for at, key in enumerate(table.files)}
                watched = self._watched[id(table)] = _Watched(weakref.ref(table), position)
            found = watched.columns.setdefault(column, ColumnStatistics(column, type_))
            found.asked = True
            return found if found.rows and found.type == type_ else None

    def _forget_dead(self, coming: int) -> None:
        self._watched = {n: w for n, w in self._watched.items() if w.table() is not None}
        if sum(len(w.position) for w in self._watched.values()) + coming > MAX_FILES:
            self._watched.clear()

    def _collect(self, session: Session, table: DatasetTable, keys: Sequence[str]) -> None:
        """Read the statistics that were asked for repeatedly, of files that are opened anyway."""
        watched = self._watched.get(id(table))
        if len(keys) < MIN_FILES or watched is None or watched.table() is not table:
            return
        position, wanted = watched.position, []
        for column in watched.columns.values():
            column.uses += column.asked
            column.asked = False
            if column.uses > 1:
                wanted.append(column)
        files = [k for k in keys if k in position and any(position[k] not in c.seen for c in wanted)]
        if files:
            scanned = FILE_SECONDS * len(keys) + BYTE_SECONDS * sum(session.files.sizes.get(k) or 0 for k in keys)
            affordable = int(STATISTICS_SHARE * scanned / STATISTICS_SECONDS)
            self._read_statistics(session, position, files[: max(STATISTICS_AT_ONCE, affordable)], wanted)

    def _read_statistics(
        self, session: Session, position: Mapping[str, int], keys: list[str], columns: Iterable[ColumnStatistics]
    ) -> None:
        paths = session.set_files("kartosql_unread", keys)
        file_of = {path: position[key] for path, key in zip(paths, keys, strict=True)}
        columns = list(columns)
        rows = session.rows(_statistics_query(columns))
        for at, column in enumerate(columns):
            column.rows += [
                (file_of[path], low, high, nulls)
                for number, path, low, high, nulls in rows
                if number == at and file_of[path] not in column.seen
            ]
        for column in columns:
            column.seen.update(file_of.values())


def _footer(session: Session, file: _File) -> bytes:
    """Return the footer of a local file, empty if DuckDB has to read it."""
    key, size = file
    (path,) = session.files.names([key])
    tail = _LOCAL.tail(path, size, TAIL) if size is not None else None
    footer = footer_of(tail) if tail is not None else None
    # What GeoParquet notes behind the schema gives columns another type.
    return b"" if footer is None or b"geo" in footer else footer


def _narrower(shape: Shape, declared: Mapping[str, str]) -> frozenset[str] | None:
    """Return the columns of a flat schema that are narrower integers than declared.

    None if others are not of their declared types, or a name is there twice.
    """
    columns = shape[1:]  # the first node is the schema itself
    names = [name.lower() for name, _, _ in columns]
    if any(children for _, children, _ in columns) or len(set(names)) < len(names) or not _VIRTUAL.isdisjoint(names):
        return None
    types = {name: type_ for name, _, type_ in columns}
    others = {name for name, type_ in declared.items() if types.get(name) != type_}
    if not all(types.get(name) in _NARROWER.get(declared[name], ()) for name in others):
        return None
    return frozenset(others)


def _statistics_query(columns: Sequence[ColumnStatistics]) -> str:
    """Return the query for (number of the column, path, minimum, maximum, NULLs) of each file.

    Files of which a row group has values, but no statistics that can be relied on, are left out.
    """
    names = ", ".join(literal(c.column) for c in columns)
    queries = [
        f"SELECT {at} AS number, file_name, {_text('min(low)', c.type)}, {_text('max(high)', c.type)}, "
        "CASE WHEN count(nulls) = count(*) THEN CAST(sum(nulls) AS BIGINT) END "
        f"FROM (SELECT file_name, nulls, num_values, {_exact('low', c.type)} AS low, {_exact('high', c.type)} AS high "
        f"FROM footers WHERE path_in_schema = {literal(c.column)}) GROUP BY file_name "
        "HAVING bool_and(coalesce(nulls = num_values, false) OR (low IS NOT NULL AND high IS NOT NULL))"
        for at, c in enumerate(columns)
    ]
    return (
        "WITH footers AS MATERIALIZED (SELECT file_name, path_in_schema, type, num_values, "
        "stats_min_value AS low, stats_max_value AS high, stats_null_count AS nulls "
        f"FROM parquet_metadata(getvariable('kartosql_unread')) WHERE path_in_schema IN ({names})) "
        + " UNION ALL ".join(queries)
    )


def _exact(text: str, type_: str) -> str:
    """Return ``text`` as a value of ``type_``, NULL unless it is certainly the value in the file."""
    value = f"TRY_CAST({text} AS {type_})"
    if type_ == "VARCHAR":
        # Bytes that are no text are shown with a backslash. Compared as bytes, whatever the collation is.
        return f"CASE WHEN NOT contains({text}, '\\') THEN encode({text}) END"
    if type_ == "TIMESTAMP WITH TIME ZONE":
        return f"CASE WHEN ends_with({text}, '+00') THEN {value} END"
    if type_ == "DOUBLE":
        # 0.1 in a FLOAT is another number than 0.1 in a DOUBLE.
        narrow = f"TRY_CAST({text} AS FLOAT)"
        return f"CASE type WHEN 'DOUBLE' THEN {_same(value, text)} WHEN 'FLOAT' THEN {_same(narrow, text)} END"
    if type_ == "FLOAT":
        return f"CASE type WHEN 'FLOAT' THEN {_same(value, text)} END"
    return f"CASE WHEN CAST({value} AS VARCHAR) = {text} THEN {value} END"


def _same(value: str, text: str) -> str:
    """Return a floating-point value that is a number and is written as ``text``."""
    return f"CASE WHEN CAST({value} AS VARCHAR) = {text} AND NOT isnan({value}) THEN {value} END"


def _text(value: str, type_: str) -> str:
    """Return a value of ``type_`` (text as bytes) as text from which it can be read in any time zone."""
    if type_ == "VARCHAR":
        return f"decode({value})"
    if type_ == "TIMESTAMP WITH TIME ZONE":
        return f"CAST(timezone('UTC', {value}) AS VARCHAR) || '+00'"
    return f"CAST({value} AS VARCHAR)"


def _mismatch(message: str) -> FormatError:
    return FormatError(
        message,
        code="schema-mismatch",
        hint="The file was written with another schema; kartothek would refuse it too.",
    )
