"""What the footers of files tell, remembered over the statements of a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kartosql import stopping
from kartosql.engines.base import schema_mismatch
from kartosql.engines.duckdb.types import SIGNED, TIMESTAMPS, UNSIGNED, fits, literal
from kartosql.parquet import FooterCache, local_footer
from kartosql.tables.table import FileTable

if TYPE_CHECKING:
    from kartosql.engines.duckdb.statement import EngineSession

MIN_FILES = 32  # scans of fewer files are not worth statistics
# To read the statistics of a small file takes as long as to scan it, so a statement does it for part of its files:
# so many, or more if their share of the seconds that it takes to scan all files suffices.
STATISTICS_AT_ONCE, STATISTICS_SHARE = 64, 0.05
STATISTICS_SECONDS, FILE_SECONDS, BYTE_SECONDS = 1.7e-4, 1e-4, 1e-9
_ORDERED = {
    *(*SIGNED, *UNSIGNED, *TIMESTAMPS, "TIMESTAMP WITH TIME ZONE"),
    *("FLOAT", "DOUBLE", "DATE", "TIME", "BOOLEAN", "VARCHAR"),
}
_NARROWER = {"BIGINT": SIGNED[:-1], "UBIGINT": UNSIGNED[:-1]}
_VIRTUAL = frozenset({"filename", "file_index", "file_row_number"})  # columns that DuckDB adds

Shape = tuple[tuple[str, int | None, str | None], ...]  # name, children and DuckDB type of each node of a schema
_File = tuple[str, int | None]  # key and size
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
    """The positions of a table's files by their keys, and the columns of which statistics were asked for."""

    position: dict[str, int]
    columns: dict[str, ColumnStatistics] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.position)


class Footers:
    """Schemas, row counts and statistics of files, as DuckDB tells them."""

    def __init__(self) -> None:
        self._cache = FooterCache()
        self._shapes: dict[int, Shape] = {}  # by the numbers of schemas; the same object for the same one
        self._known: dict[Shape, Shape] = {}
        # What ``check`` returns, by schemas and the declared columns.
        self._checked: dict[tuple[int, tuple[tuple[str, str], ...]], frozenset[str] | None] = {}

    # -- schemas -------------------------------------------------------------------------------

    def check(
        self, session: EngineSession, table: FileTable, keys: Sequence[str], declared: Mapping[str, str]
    ) -> frozenset[str] | None:
        """Return the declared columns that are narrower integers in files; all others are of their very types.

        None if that does not describe the files, or their schemas differ. Raises ``schema-mismatch`` where a file
        lacks a declared column or has it in a type that does not fit. Only footers that are not known are read.
        """
        sizes = session.files.sizes
        named = list(zip(keys, map(sizes.get, keys), strict=True))
        with self._cache.lock:
            schemas = self._cache.facts(table).schemas
            known = list(map(schemas.get, named))
            if None in known:
                self._read(
                    session, schemas, [name for name, number in zip(named, known, strict=True) if number is None]
                )
                known = list(map(schemas.get, named))
            wanted = tuple(declared.items())
            numbers = {*known}
            for number in numbers:
                if number is not None and (number, wanted) not in self._checked:
                    _check_shape(session, keys[known.index(number)], self._shapes[number], declared)
                    self._checked[number, wanted] = _narrower(self._shapes[number], declared)
            self._collect(session, table, keys)
            shapes = {None if number is None else id(self._shapes[number]) for number in numbers}
            number = numbers.pop() if len(shapes) == 1 else None
            return None if number is None else self._checked[number, wanted]

    def _read(self, session: EngineSession, schemas: dict[_File, int], files: list[_File]) -> None:
        """Read the schemas of files: those of local ones here, so that DuckDB has to tell each schema but once."""
        self._cache.make_room(len(files))
        unread: list[_File] = []
        numbers: dict[_File, int] = {}
        local = files if session.store.is_local else []
        for path, file in zip(session.files.names([key for key, _ in local]), local, strict=True):
            stopping.check()
            try:
                footer = local_footer(path, file[1]) if file[1] is not None else None
            except OSError:  # the engine tells it better
                footer = None
            if footer is None:
                unread.append(file)
            else:
                numbers[file] = self._cache.recognise(footer)
        new = {number: file for file, number in numbers.items() if number not in self._shapes}
        asked = self._ask(session, [*new.values(), *(unread if session.store.is_local else files)])
        self._shapes.update((number, asked.pop(file)) for number, file in new.items())
        schemas.update(numbers)
        for file, shape in asked.items():
            schemas[file] = number = self._cache.number(shape)
            self._shapes[number] = shape

    def _ask(self, session: EngineSession, files: list[_File]) -> dict[_File, Shape]:
        if not files:
            return {}
        named = dict(zip(session.set_files("kartosql_unread", [key for key, _ in files]), files, strict=True))
        rows = session.rows(
            "SELECT shape, list(file_name) FROM (SELECT file_name, "
            "list({'name': name, 'children': num_children, 'type': duckdb_type}) AS shape "
            "FROM parquet_schema(getvariable('kartosql_unread')) GROUP BY file_name) GROUP BY shape"
        )
        asked: dict[_File, Shape] = {}
        for nodes, found in rows:
            shape = tuple((n["name"], n["children"], n["type"]) for n in nodes)
            shape = self._known.setdefault(shape, shape)
            asked.update(dict.fromkeys(map(named.__getitem__, found), shape))
        return asked

    # -- row counts ----------------------------------------------------------------------------

    def known_rows(self, table: FileTable) -> list[int | None]:
        """Return the number of rows of each file of a table, None where it is not known."""
        with self._cache.lock:
            return list(map(self._cache.facts(table).rows.get, table.files))

    def load(self, session: EngineSession, table: FileTable, keys: Sequence[str]) -> None:
        """Read the row counts of those files of a table whose count is not known."""
        with self._cache.lock:
            counts = self._cache.facts(table).rows
        unknown = [k for k in dict.fromkeys(keys) if k not in counts]
        if not unknown:
            return
        paths = session.set_files("kartosql_uncounted", unknown)
        rows = session.rows("SELECT file_name, num_rows FROM parquet_file_metadata(getvariable('kartosql_uncounted'))")
        key_of = dict(zip(paths, unknown, strict=True))
        with self._cache.lock:
            self._cache.make_room(len(rows))
            counts.update((key_of[path], count) for path, count in rows)

    # -- statistics ----------------------------------------------------------------------------

    def statistics(self, table: FileTable, column: str, type_: str) -> ColumnStatistics | None:
        """Return what is known of a column of DuckDB type ``type_``, or None.

        Asking is remembered: footers are read for a column when a second statement that asked
        opens files of the table.
        """
        if not (type_ in _ORDERED or type_.startswith("DECIMAL(")) or "," in column or len(table.files) < MIN_FILES:
            return None
        with self._cache.lock:
            facts = self._cache.facts(table)
            if facts.statistics is None:
                self._cache.make_room(len(table.files))
                facts.statistics = _Watched({key: at for at, key in enumerate(table.files)})
            found = facts.statistics.columns.setdefault(column, ColumnStatistics(column, type_))
            found.asked = True
            return found if found.rows and found.type == type_ else None

    def _collect(self, session: EngineSession, table: FileTable, keys: Sequence[str]) -> None:
        """Read the statistics that were asked for repeatedly, of files that are opened anyway."""
        watched: _Watched | None = self._cache.facts(table).statistics
        if len(keys) < MIN_FILES or watched is None:
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
        self, session: EngineSession, position: Mapping[str, int], keys: list[str], columns: list[ColumnStatistics]
    ) -> None:
        paths = session.set_files("kartosql_unread", keys)
        file_of = {path: position[key] for path, key in zip(paths, keys, strict=True)}
        rows = session.rows(_statistics_query(columns))
        for at, column in enumerate(columns):
            column.rows += [
                (file_of[path], low, high, nulls)
                for number, path, low, high, nulls in rows
                if number == at and file_of[path] not in column.seen
            ]
            column.seen.update(file_of.values())


def _check_shape(session: EngineSession, key: str, shape: Shape, declared: Mapping[str, str]) -> None:
    suspects = [
        name for name, _, type_ in shape if name in declared and type_ is not None and not fits(type_, declared[name])
    ]
    if suspects:
        # Looked at closer, as a nested column may have the name of a top-level one.
        described = (
            "SELECT column_name, column_type FROM (DESCRIBE FROM read_parquet([{'filename': ?, 'file_size': 1}]))"
        )
        types = dict(session.rows(described, session.files.names([key])))
    for name in suspects:
        if types.get(name) is None or not fits(types[name], declared[name]):
            raise schema_mismatch(
                f"{key}: the column {name!r} is {types.get(name)}, but {declared[name]} in the schema of its table"
            )
    names = {name for name, _, _ in shape}
    for name in declared:
        if name not in names:
            raise schema_mismatch(f"{key}: the column {name!r} is missing")


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
