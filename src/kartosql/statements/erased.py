"""VERIFY ERASED: which files, also those that do not count, still hold rows for which a condition holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import FormatError, KartosqlError
from kartosql.formats.kartothek import naming, versions
from kartosql.formats.kartothek.metadata import normalise
from kartosql.formats.xskipper.domain import OddCells
from kartosql.formats.xskipper.kinds import DistinctValues, MinMax, Prefix
from kartosql.formats.xskipper.naming import object_id
from kartosql.formats.xskipper.refreshing import specs_of
from kartosql.formats.xskipper.segment import Segment
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.query import SelectQuery
from kartosql.session import Request
from kartosql.sql import parse
from kartosql.sql import write_statements as ws
from kartosql.sql.statements import VerifyData
from kartosql.sql.tree import columns_of_where
from kartosql.statements import targets
from kartosql.statements.row_changes import FILE, ROWS, numbered, point_into
from kartosql.statements.targets import COUNT, TEXT, table_of
from kartosql.store import Store
from kartosql.tables.names import Tables
from kartosql.tables.table import FileTable, Plain, Table, arrow_table, by_case
from kartosql.text.constants import quote
from kartosql.write.files import opened_parquet
from kartosql.write.indexing import StoredIndex


def erased(request: Request, statement: VerifyData) -> pa.Table:
    """Return the files that hold rows for which a condition holds, and those that cannot be read, with versions."""
    try:
        names = _names(request, statement)
        return pa.concat_tables(_Certificate(request, statement, name).run() for name in names)
    except KartosqlError as e:
        point_into(statement.text, e)
        raise


def _names(request: Request, statement: VerifyData) -> list[tuple[str, ...]]:
    """Return the name of the dataset, or of those of a cube that hold all columns of the condition.

    Raises ``not-supported`` where none does, or files of an earlier state of another one may do so.
    """
    text, target = statement.text, ws.Named(statement.target, statement.span)
    source = request.session.tables().find(target.parts, target.span, text)
    if source.is_attached or len(source.parts) < 2:
        return [target.parts]
    tree: Any = parse(f"SELECT 1 FROM {ROWS} {statement.where}")
    named = {name for name in map(source.find, columns_of_where(tree.tree)) if name is not None}
    having = {part.name: named <= part.table.types.keys() for part in source.parts}
    if not any(having.values()):
        message = f"No dataset of the cube holds all columns of the condition: {', '.join(sorted(named))}."
        hint = "VERIFY ERASED tells of rows of datasets: use a condition for each of them."
        raise targets.refused(target, text, "not-supported", message, hint)
    for part in source.parts:
        if not having[part.name] and (key := _former(request.session.store, part.table, named)) is not None:
            what = f"but a file of an earlier state may: {key!r}."
            message = f"{part.name!r} has not all columns of the condition now, {what}"
            hint = "Ask each dataset by itself. CLEANUP removes files of versions that are not kept any more."
            raise targets.refused(target, text, "not-supported", message, hint)
    return [(*target.parts, name) for name, has in having.items() if has]


def _former(store: Store, table: FileTable, named: Set[str]) -> str | None:
    """Return a file of a dataset that is not live and has some columns, or cannot be read; None if there is none."""
    live, wanted = {*table.files}, {name.lower() for name in named}
    for key in store.list_below(f"{table.uuid}/"):
        if key in live or not key.endswith(".parquet") or key.startswith(f"{table.uuid}/indices/"):
            continue
        try:
            with opened_parquet(store, key) as file:
                found = [*_in_path(key), *file.schema_arrow.names]
        except KartosqlError:
            return key
        if wanted <= {name.lower() for name in found}:
            return key
    return None


def _in_path(key: str) -> dict[str, str]:
    """Return the partition keys that the path of a file shows, with their values as text."""
    parts = (part.split("=", 1) for part in key.split("/")[:-1] if "=" in part)
    return {_unquoted(name): _unquoted(value) for name, value in parts}


def _unquoted(text: str) -> str:
    return naming.unquote(text).decode("utf-8", "replace")


class _Certificate:
    def __init__(self, request: Request, statement: VerifyData, name: tuple[str, ...]) -> None:
        self._request, session = replace(request, engine="duckdb"), request.session
        named = ws.Named(name, statement.span)
        self._target = targets.dataset_target(session.tables(), named, statement.text)
        self._table, self._store = self._target.table, session.store
        self._snapshot, rows = session.snapshot(), f" FROM {ROWS} AS {quote(statement.target[-1])} {statement.where}"
        self._select: Any = parse("SELECT 1" + rows)
        self._query(self._target.source)  # which finds what is wrong with names
        self._select = parse(f"SELECT {FILE}, count(*){rows} GROUP BY ALL")

    def run(self) -> pa.Table:
        """Look at all files of the table, and at its index files and skipping indexes."""
        table, store = self._table, self._store
        document = self._snapshot.dataset(table.uuid).document
        live = {*table.files, *document.indices.values()}
        indices = [key for key in document.indices.values() if isinstance(key, str)]
        found = dict(self._data(self._below(table.table, live)))
        about: dict[str, set[str]] = {}  # by part files of skipping indexes
        named = {by_case(name, table.types) for name in columns_of_where(self._select.tree)}
        column = named.pop() if len(named) == 1 else None
        if column is not None:
            found |= self._indices([*indices, *self._below("indices", live)], column)
            for key, count, files in self._skipping(column):
                found[key], about[key] = count, files
        kept = {key for entry in versions.read_entries(store, table.uuid) for key in entry.named_keys()}
        of = {key: about.get(key, {key}) for key in found}
        known = versions.read(self._snapshot, table.uuid).naming(set().union(*of.values())) if found else {}
        rows = []
        for key, count in found.items():
            state = "live" if of[key] & live else "kept version" if of[key] & kept else "unreferenced"
            state = "unreadable" if count is None else state
            numbers = sorted({number for file in of[key] for number in known[file]})
            rows.append({"file": key, "state": state, "rows": count, "versions": numbers})
        return table_of(rows, {"file": TEXT, "state": TEXT, "rows": COUNT, "versions": pa.list_(COUNT)})

    def _below(self, folder: str, live: set[Any]) -> list[str]:
        found = self._store.list_below(f"{self._table.uuid}/{folder}/")
        return [key for key in found if key.endswith(".parquet") and key not in live]

    def _query(self, rows: Table) -> SelectQuery:
        session, request = self._request.session, self._request
        tables = Tables(self._snapshot, {**session.registered, ROWS: rows})
        return SelectQuery(self._select, tables, session.runtime, request.settings, request.parameters)

    def _data(self, others: Sequence[str]) -> Iterator[tuple[str, int | None]]:
        """Yield data files, live ones and ``others``, with the number of rows that match, None for unreadable ones."""
        fits = dict(zip(others, self._store.map(self._fits, others), strict=True))
        yield from self._of_all([*self._table.files, *filter(fits.__getitem__, others)])
        for key in others:
            if not fits[key]:
                yield from self._of_one(key, partial(self._as_it_is, key))

    def _of_all(self, keys: Sequence[str]) -> Iterator[tuple[str, int | None]]:
        whole = replace(self._table, labels=tuple(keys), files=tuple(keys), indices={})
        part = replace(self._target.source.parts[0], table=whole, rows=Plain())
        try:
            for at, count in sorted(self._query(numbered(part, range(len(keys)))).rows()):
                yield keys[at], count
        except FormatError:
            if len(keys) == 1:
                yield keys[0], None
            else:
                for some in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                    yield from self._of_all(some)

    def _of_one(self, key: str, read: Any) -> Iterator[tuple[str, int | None]]:
        try:
            rows = read()
            rows = rows.append_column(FILE, pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows))
        except (KartosqlError, pa.ArrowException):
            yield key, None
        else:
            for _, count in self._query(arrow_table(ROWS, rows)).rows():
                yield key, count

    def _fits(self, key: str) -> bool:
        """Return whether a file is laid out as the table says; those of earlier states may not be."""
        table = self._table
        if naming.derive_partition_keys(naming.folder_of(key, table.uuid, table.table)) != table.partition_keys:
            return False
        try:
            with opened_parquet(self._store, key) as file:
                found = {f.name: normalise(f.type) for f in file.schema_arrow}
        except FormatError:
            return False
        wanted = {f.name: normalise(f.type) for f in table.schema if f.name not in table.partition_keys}
        lacking = wanted.keys() - found.keys() - table.may_lack
        both = wanted.keys() & found.keys()
        return not lacking and all(found[c] == wanted[c] or pa.types.is_null(wanted[c]) for c in both)

    def _as_it_is(self, key: str) -> pa.Table:
        """Return the rows of a file as those of the table; columns that it lacks are NULL."""
        table = self._table
        with opened_parquet(self._store, key) as file:
            rows = file.read()
        found = dict(zip(rows.column_names, rows.columns, strict=True))
        found |= {name: pa.repeat(pa.scalar(value), rows.num_rows) for name, value in _in_path(key).items()}
        columns = [(c, t, found.get(c, pa.nulls(rows.num_rows, t))) for c, t in table.types.items()]
        return pa.table({c: values.cast(t) for c, t, values in columns})

    def _indices(self, keys: Sequence[str], column: str) -> Iterator[tuple[str, int | None]]:
        """Yield files of the index of a column with the number of their values that match."""
        for key in keys:
            if _unquoted(key.split("/")[2]) == column:
                yield from self._of_one(key, partial(self._values, key, column))

    def _values(self, key: str, column: str) -> pa.Table:
        values = StoredIndex(self._store, key, column).values()
        return pa.table({column: values.cast(self._table.types[column])})

    def _skipping(self, column: str) -> Iterator[tuple[str, int | None, set[str]]]:
        """Yield part files of skipping indexes with the number of values that match, and the files they are of."""
        uuid, store, below = self._table.uuid, self._store, f"{self._table.uuid}/{self._table.table}/"
        place = naming.place_in(self._table.metadata, uuid) or naming.place_for(store, uuid, self._table.table)
        details = store.details(below).items()
        files = {object_id(f"{place.table}/{k.removeprefix(below)}", d.milliseconds): k for k, d in details}
        for folder in sorted({key.rpartition("/")[0] for key in store.list_below(f"{naming.BASE}/{uuid}/")}):
            metadata = MetadataStore.below(store, folder)
            yield from ((key, None, set()) for key in (*metadata.unreadable, *metadata.newer, *metadata.locked))
            for segment in (s for s in metadata.segments if s.rows):
                try:
                    held = self._stored_values(segment, column)
                except (KartosqlError, OddCells, pa.ArrowException):
                    yield segment.source, None, set()
                else:
                    if found := dict(self._query(arrow_table(ROWS, held)).rows()):
                        names = {name for row, name in enumerate(segment.ids()) if row in found}
                        yield segment.source, sum(found.values()), {files[name] for name in names & files.keys()}

    def _stored_values(self, segment: Segment, column: str) -> pa.Table:
        """Return the whole values of a column that a part file holds, each once for a file, with its row there."""
        type_ = self._table.types[column]
        found = [pa.table({column: pa.nulls(0, type_), FILE: pa.nulls(0, pa.int64())})]
        for index in (i for i in segment.schema.indexes if i.path == (column.lower(),)):
            if index.name not in (MinMax.name, DistinctValues.name, Prefix.name):
                continue
            if segment.schema.is_legacy:
                raise OddCells("its values may be of another calendar")
            cells = segment.column(index.column)
            if index.name == MinMax.name:
                values = pa.concat_arrays([pc.struct_field(cells, end) for end in ("min", "max")])
                rows = pa.array([*range(len(cells))] * 2, pa.int64())
            else:
                values, rows = pc.list_flatten(cells), pc.list_parent_indices(cells)
            held = pa.table({column: values, FILE: rows}).drop_null()
            if index.name == Prefix.name:  # longer texts are cut
                held = held.filter(pc.less(pc.utf8_length(held[column]), specs_of([index])[0].length))
            found.append(held.cast(found[0].schema))
        return pa.concat_tables(found).group_by([column, FILE]).aggregate([])
