"""The contents of footers, remembered over the statements of a connection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import TYPE_CHECKING

from kartosql import stopping
from kartosql.engines.base import schema_mismatch
from kartosql.engines.duckdb.types import fits
from kartosql.parquet import DAMAGE, FooterCache, local_footer, read_footer
from kartosql.store import Files
from kartosql.tables.kept_statistics import KeptStatistics
from kartosql.tables.statistics import ReadFooter, TableStatistics, statistics_of
from kartosql.tables.table import FileTable
from kartosql.text.types import SIGNED, UNSIGNED

if TYPE_CHECKING:
    from kartosql.engines.duckdb.statement import EngineSession
    from kartosql.user_cache import UserCache

MIN_KEPT = 16  # fewer footers are read as fast as what other processes know of them
_NARROWER = {"BIGINT": SIGNED[:-1], "UBIGINT": UNSIGNED[:-1]}
_VIRTUAL = frozenset({"filename", "file_index", "file_row_number"})  # columns that DuckDB adds

Shape = tuple[tuple[str, int | None, str | None], ...]  # name, children and DuckDB type of each node of a schema
_File = tuple[str, int | None]  # key and size
_Wanted = tuple[frozenset[str], tuple[tuple[str, str], ...]]  # columns that files may lack, and those declared


class Footers:
    """Schemas of files as DuckDB reads them, and the footers that hold statistics of tables."""

    def __init__(self) -> None:
        self.user_cache: UserCache | None = None  # in which statistics outlive the process
        self._cache = FooterCache()
        self._shapes: dict[int, Shape] = {}  # by the numbers of schemas; the same object for the same one
        self._known: dict[Shape, Shape] = {}
        # What ``check`` returns, by schemas and the declared columns.
        self._checked: dict[tuple[int, _Wanted], frozenset[str] | None] = {}

    # -- schemas -------------------------------------------------------------------------------

    def check(
        self, session: EngineSession, table: FileTable, keys: Sequence[str], declared: Mapping[str, str]
    ) -> frozenset[str] | None:
        """Return the declared columns that are narrower integers in files; all others are of their very types.

        None if that does not describe the files, or their schemas differ. Raises ``schema-mismatch`` where a file
        lacks a declared column that it has to have, or has it in a type that does not fit. Only footers that are not
        known are read.
        """
        sizes = session.files.sizes
        named = list(zip(keys, map(sizes.get, keys), strict=True))
        with self._cache.lock:
            schemas = self._cache.schemas(table)
            known = list(map(schemas.get, named))
            if None in known:
                self._read(
                    session, schemas, [name for name, number in zip(named, known, strict=True) if number is None]
                )
                known = list(map(schemas.get, named))
            wanted = table.may_lack.intersection(declared), tuple(declared.items())
            numbers = {*known}
            self._read_shapes(session, {number: file for file, number in zip(named, known, strict=True)})
            for number in numbers:
                if number is not None and (number, wanted) not in self._checked:
                    _check_shape(session, keys[known.index(number)], self._shapes[number], declared, wanted[0])
                    self._checked[number, wanted] = _narrower(self._shapes[number], declared)
            shapes = {None if number is None else id(self._shapes[number]) for number in numbers}
            number = numbers.pop() if len(shapes) == 1 else None
            return None if number is None else self._checked[number, wanted]

    def _read(self, session: EngineSession, schemas: dict[_File, int], files: list[_File]) -> None:
        """Read the schemas of files: those of local ones here, so that DuckDB is asked for each schema only once."""
        self._cache.make_room(len(files))
        unread: list[_File] = []
        numbers: dict[_File, int] = {}
        local = files if session.store.is_local else []
        for path, file in zip(session.files.names([key for key, _ in local]), local, strict=True):
            stopping.check()
            footer = _local(path, file[1]) if file[1] is not None else None
            if footer is None:
                unread.append(file)
            else:
                numbers[file] = self._cache.recognise(footer)
        asked = self._ask(session, unread if session.store.is_local else files)
        schemas.update(numbers)
        for file, shape in asked.items():
            schemas[file] = number = self._cache.number(shape)
            self._shapes[number] = shape

    def _read_shapes(self, session: EngineSession, file_of: Mapping[int | None, _File]) -> None:
        """Ask DuckDB for the shapes of schemas of which it is not known yet, given a file of each."""
        new = {n: file for n, file in file_of.items() if n is not None and n not in self._shapes}
        asked = self._ask(session, list(new.values()))
        self._shapes.update((number, asked[file]) for number, file in new.items())

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

    def some_sizes(self, table: FileTable, most: int) -> list[int]:
        """Return the sizes of some files of a table that were opened before."""
        with self._cache.lock:
            return [size or 0 for _, size in islice(self._cache.schemas(table), most)]

    # -- statistics ----------------------------------------------------------------------------

    def statistics(
        self, session: EngineSession, table: FileTable, files: Sequence[int], columns: Sequence[str] = ()
    ) -> TableStatistics:
        """Return what is known of a table, once the footers of some files were read for the bounds of columns.

        Without columns they are read for row counts. What cannot be read stays unknown. Raises ``missing-file``, and
        what the store raises.
        """
        found = statistics_of(table)
        unread = found.unread(files, columns)
        if not unread:
            return found
        found = statistics_of(table, coming=len(unread) * len(columns))
        kept = self._cached(session, table, unread)
        if kept is not None:
            kept.recall(found, columns)
            unread = found.unread(unread, columns)
        if unread:
            found.add(table, self._footers(session, table, unread), columns)
        if kept is not None and len(unread) >= MIN_KEPT:
            kept.keep(found, columns)
        return found

    def _cached(self, session: EngineSession, table: FileTable, files: Sequence[int]) -> KeptStatistics | None:
        """Return what other processes know of files, None if they are few, or are not on local disks."""
        cache, keys = self.user_cache, [table.files[f] for f in files]
        if cache is None or cache.folder is None or not session.store.is_local or len(files) < MIN_KEPT:
            return None
        if table.renames:
            return None  # what is kept goes by the names of columns
        session.files.stat(keys)
        stamps = {file: session.files.stamps[key] for file, key in zip(files, keys, strict=True)}
        (place,) = session.files.names([f"{keys[0].partition('/')[0]}/"])
        return KeptStatistics(cache, place, table, stamps)

    def _footers(self, session: EngineSession, table: FileTable, files: Sequence[int]) -> Iterator[ReadFooter | int]:
        """Read footers, and note their schemas; yield the file alone if it has no footer."""
        keys, store = [table.files[f] for f in files], session.store
        session.files.stat(keys)
        store.admit(keys)
        sizes = [session.files.sizes.get(key) or 0 for key in keys]
        if store.is_local:
            read: Iterable[bytes | None] = map(_local, session.files.names(keys), sizes)
        else:
            read = store.map(lambda file: _remote(store, *file), list(zip(keys, sizes, strict=True)))
        with self._cache.lock:
            self._cache.make_room(len(files))
            schemas = self._cache.schemas(table)
        for file, key, size, footer in zip(files, keys, sizes, read, strict=True):
            stopping.check()
            found: ReadFooter | int = file
            with self._cache.lock, contextlib.suppress(*DAMAGE):
                if footer is not None:
                    schemas[key, size] = self._cache.recognise(footer)
                    found = file, footer, self._cache.layout(footer)
            yield found


def _local(path: str, size: int) -> bytes | None:
    try:
        return local_footer(path, size)
    except OSError:  # the engine tells it better
        return None


def _remote(store: Files, key: str, size: int) -> bytes | None:
    try:
        return read_footer(store, key, size)
    except (OSError, KeyError):
        return None


def _check_shape(
    session: EngineSession, key: str, shape: Shape, declared: Mapping[str, str], may_lack: Set[str]
) -> None:
    suspects = [
        name for name, _, type_ in shape if name in declared and type_ is not None and not fits(type_, declared[name])
    ]
    if suspects:
        # Looked at closer, as a nested column may have the name of a top-level one.
        session.set_files("kartosql_suspect", [key])
        described = "(DESCRIBE FROM read_parquet(getvariable('kartosql_suspect')))"
        types = dict(session.rows(f"SELECT column_name, column_type FROM {described}"))
    for name in suspects:
        if types.get(name) is None or not fits(types[name], declared[name]):
            raise schema_mismatch(
                f"{key}: the column {name!r} is {types.get(name)}, but {declared[name]} in the schema of its table"
            )
    names = {name for name, _, _ in shape}
    for name in declared:
        if name not in names and name not in may_lack:
            raise schema_mismatch(f"{key}: the column {name!r} is missing")


def _narrower(shape: Shape, declared: Mapping[str, str]) -> frozenset[str] | None:
    """Return the columns of a flat schema that are narrower integers than declared, None if others differ."""
    columns = shape[1:]  # the first node is the schema itself
    names = [name.lower() for name, _, _ in columns]
    if any(children for _, children, _ in columns) or len(set(names)) < len(names) or not _VIRTUAL.isdisjoint(names):
        return None
    types = {name: type_ for name, _, type_ in columns}
    others = {name for name, type_ in declared.items() if types.get(name) != type_}
    if not all(types.get(name) in _NARROWER.get(declared[name], ()) for name in others):
        return None
    return frozenset(others)
