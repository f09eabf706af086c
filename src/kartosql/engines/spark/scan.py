"""Pruned scans as DataFrames of Spark, one for each table occurrence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.engines.base import FILE, OP, ROW, RelationBuilder, RowRequest, corrupt_file, schema_mismatch
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.engines.spark.connect import configured, queried, register_view
from kartosql.engines.spark.listing import Places, moved, relation
from kartosql.engines.spark.session import SEMANTICS, is_connect, isolated
from kartosql.engines.spark.types import FileColumn, quote, spark_type, stored_type, text_literal
from kartosql.errors import FormatError, NotPortable, reraise
from kartosql.formats.partition_table import Variant, tag_of
from kartosql.parquet import END, TAIL, FooterCache, arrow_metadata, file_metadata, read_footer
from kartosql.plan.scan import OccurrenceScan
from kartosql.store import Files
from kartosql.tables.table import Changelog, FileTable
from kartosql.text.types import in_sql_names, type_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Only what reading depends on; the plan of a scan keeps the session that made it.
READING = {
    "spark.sql.caseSensitive": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
}
READS = {**SEMANTICS, **READING}


def check_types(scan: OccurrenceScan) -> None:
    """Raise what the DataFrame of a table occurrence would raise for the types of its columns."""
    _columns(scan)
    for part in scan.parts:
        if isinstance(part.part.rows, Changelog) and not scan.is_empty:
            for column in () if part.part.rows.key else part.part.rows.compared:
                check_comparable(part.part.table.types[column])


def _columns(scan: OccurrenceScan, left_out: set[str] | None = None) -> list[str]:
    """Return the columns that are read; those of types that Spark does not have are an error, or ``left_out``."""
    source, used, read = scan.occurrence.source, scan.occurrence.columns, scan.occurrence.read
    available = {c for p in scan.parts for c in p.part.columns}
    found = []
    for column in source.columns if used is None else filter(used.__contains__, source.columns):
        if column not in available and (read is None or column in read):
            continue
        try:
            stored_type(source.columns[column])
            found.append(column)
        except (FormatError, NotPortable) as e:
            if left_out is None:
                e.message = f"{source.name}.{column}: {e.message}"
                raise
            left_out.add(column)
    return found


def stored_columns(table: pa.Table, exposed: Mapping[str, str]) -> pa.Table:
    """Return data as Spark holds them, by the names ``exposed``, without columns of types that it does not have."""
    found = {}
    for column in table.column_names:
        values = table.column(column)
        try:
            type_ = stored_type(values.type)
        except (FormatError, NotPortable):
            continue
        try:
            found[exposed.get(column, column)] = values.cast(type_)
        except pa.ArrowInvalid as e:
            message = f"{column!r} holds values that Spark does not have: {in_sql_names(e)}"
            raise NotPortable(message, hint="Use engine='duckdb'.") from None
    return pa.table(found)


def _without_gaps(data: pa.Table) -> pa.Table:
    """Return the same rows without empty batches: Spark takes the first of them for the end."""
    return pa.Table.from_batches([b for b in data.to_batches() if b.num_rows], data.schema)


Batches = Iterator[Any]


def decoder(columns: Mapping[str, pa.DataType], constants: Sequence[str]) -> Callable[[Batches], Batches]:
    """Return a function for ``mapInArrow``: from files, one per row, to the rows in them.

    It takes ``path`` and ``content`` of each file, and ``constants``, columns that all rows of a
    file share. It returns the columns as c0, c1, ..., then the constants, then ``ROW``. All that
    it needs is in it, so workers need pyarrow and nothing else.
    """
    names, shared = list(columns), list(constants)
    # Arrow's nanoseconds end in 2262, and old timestamps of 12 bytes do not.
    coerce = None if any(pa.types.is_timestamp(t) and t.unit == "ns" for t in columns.values()) else "us"
    declared = pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(columns.values())]).serialize().to_pybytes()
    stored = pa.schema([pa.field(f"c{i}", stored_type(t)) for i, t in enumerate(columns.values())])
    stored_bytes, row_name = stored.serialize().to_pybytes(), ROW

    def decode(batches: Batches) -> Batches:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = pa.ipc.read_schema(pa.BufferReader(declared)).types
        targets = pa.ipc.read_schema(pa.BufferReader(stored_bytes)).types
        for batch in batches:
            for at in range(batch.num_rows):
                path = batch.column("path")[at].as_py()
                try:
                    content = pa.py_buffer(batch.column("content")[at].as_buffer())
                    table = pq.read_table(
                        pa.BufferReader(content), columns=names, partitioning=None, coerce_int96_timestamp_unit=coerce
                    )
                    found = [table.column(n).combine_chunks() for n in names]
                    arrays = [v.cast(t) for v, t in zip(found, types, strict=True)]
                except (pa.ArrowException, OSError, KeyError, ValueError) as e:
                    raise RuntimeError(f"kartosql:corrupt-file:{path}: {str(e).splitlines()[0]}") from None
                try:
                    arrays = [v.cast(t) for v, t in zip(arrays, targets, strict=True)]
                except pa.ArrowException:
                    raise RuntimeError("kartosql:nanoseconds") from None
                count = table.num_rows
                repeated = pa.array([at], pa.int64()).take(pa.array([0] * count, pa.int64()))
                arrays += [batch.column(n).take(repeated) for n in shared]
                arrays.append(pa.array(range(count), pa.int64()))
                arrays = [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays]
                yield pa.RecordBatch.from_arrays(arrays, [*(f"c{i}" for i in range(len(names))), *shared, row_name])

    return decode


MAX_GROUPS = 8  # differently written files of one table that are read each in their own way
_numbers = count()


class ScanFrames(RelationBuilder[pa.DataType]):
    """Makes DataFrames of a session, with the rows and types of table occurrences.

    One has the columns that the occurrence uses, under the names that DuckDB's relations give
    them (``Table.exposed``), and exactly the rows of that relation. Types are those of
    ``stored_type``. Spark opens the files of the scan, and no others, when rows are asked for;
    nothing is listed. ``shapes`` remembers schemas of files over several statements.

    They must be read with conditions that hold for the planned statement, so not for other
    statements. What a scan finds from metadata alone (``PartScan.summary``, ``Scan.edits``) is
    not used: the statement runs unchanged.

    With ``leave_out`` columns of types that Spark does not have are left out, and noted in
    ``left_out``; else they are an error if they are used.
    """

    def __init__(
        self, spark: SparkSession, store: Files, shapes: FileShapes | None = None, *, leave_out: bool = False
    ) -> None:
        self._spark = spark
        self._reading = isolated(spark, READING)
        self._store, self._shapes = store, shapes or FileShapes()
        self._access, self._places = FileAccess(store), Places(store)
        self._leave_out = leave_out
        self.left_out: set[str] = set()

    def registered(self, data: pa.Table, exposed: Mapping[str, str]) -> DataFrame:
        """Return Arrow data as a DataFrame of the session, with columns by the names ``exposed``."""
        with configured(self._spark, READS):
            rows = _without_gaps(stored_columns(data, exposed))
            # Spark Connect knows no types of a table without rows.
            types = ", ".join(f"{quote(f.name)} {spark_type(f.type)}" for f in rows.schema)
            made = self._reading.createDataFrame(*((rows,) if len(rows) else ([], types)))
            return moved(made, self._spark)

    def frame(self, scan: OccurrenceScan) -> DataFrame:
        """Return the rows of one table occurrence as a DataFrame of the session.

        Raises ``missing-file``, ``corrupt-file`` and ``schema-mismatch`` for files that cannot be
        read, ``not-portable`` for types that Spark does not have, ``store-unreachable``.
        """
        columns = _columns(scan, self.left_out if self._leave_out else None)
        source = scan.occurrence.source
        with configured(self._spark, READS):
            query = self.empty(source, columns) if scan.is_empty else self.over_files(scan, columns, {})
            return moved(queried(self._reading, query), self._spark)

    # -- the SQL of Spark ------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        """Return a name as an identifier of Spark."""
        return quote(name)

    def null(self, type_: pa.DataType) -> str:
        """Return NULL as a value of a type."""
        return f"CAST(NULL AS {spark_type(type_)})"

    def as_group(self, name: str, type_: pa.DataType) -> str:
        """Return a column that rows are counted by; raises ``not-portable`` for values that Spark cannot compare."""
        check_comparable(type_)
        return name

    def raise_error(self, message: str, value: str) -> str:
        """Return an integer that fails when it is computed, with a message and a value behind it."""
        return f"CAST(raise_error(concat({text_literal(message)}, CAST({value} AS STRING))) AS INT)"

    def repeated(self, query: str, shown: Sequence[str]) -> str:
        """Return the query for some columns of another one, each row as often as OP of it says."""
        repeated = f"LATERAL VIEW explode(sequence(1, greatest({OP}, 1))) AS __kartosql_n"
        return f"SELECT {', '.join(shown) or 'NULL AS nothing'} FROM ({query}) {repeated} WHERE {OP} > 0"

    # -- files -----------------------------------------------------------------------------------

    def rows(self, table: FileTable, files: Sequence[int], wanted: RowRequest) -> Iterator[str]:
        """Yield queries over views that together give the rows of files."""
        for variant in table.variants(files):
            for lacking, some in self._by_lack(table, variant.files, table.may_lack.intersection(wanted.names)):
                yield from self._variant(table, replace(variant, files=some), wanted, lacking)

    def _by_lack(
        self, table: FileTable, files: Sequence[int], columns: frozenset[str]
    ) -> Iterable[tuple[frozenset[str], Sequence[int]]]:
        """Return files by those of some columns that they do not have."""
        if not columns:
            return [(columns, files)]
        found: dict[frozenset[str], list[int]] = {}
        for file, number in zip(files, self._shapes_of(table, files), strict=True):
            found.setdefault(columns.difference(self._shapes.shape(number)), []).append(file)
        return found.items()

    def _variant(
        self, table: FileTable, variant: Variant, wanted: RowRequest, lacking: frozenset[str]
    ) -> Iterator[str]:
        own = table.types if variant.types is None else variant.types
        stored_in = [c for c in wanted.names if c not in table.partition_keys]
        # Columns that files with columns of their own lack are NULL, and so are those without a type.
        missing = [
            c
            for c in stored_in
            if c in lacking or (variant.types is not None and pa.types.is_null(own.get(c, pa.null())))
        ]
        named = {c: variant.names.get(c, c) for c in stored_in if c not in missing}
        declared = {name: wanted.types.get(c, own[c]) for c, name in named.items()}
        for group, readings in self._groups(table, variant.files, declared):
            shared = self._file_columns(table, group, wanted)
            of_all = {c: v for c, v in variant.constants.items() if c in missing}
            shared += [FileColumn(c, table.types[c], [value] * len(group)) for c, value in of_all.items()]
            placed = wanted.ordered or wanted.numbered
            view = self._view(table, group, declared, readings, shared, placed=placed)
            if readings is None:
                values = {c: f"c{i}" for i, c in enumerate(named)}
            else:
                found = {n: self.null(declared[n]) if r is None else r.of(n) for n, r in readings.items()}
                values = {c: found[name] for c, name in named.items()}
            if variant.types is not None:
                values = {c: converted(v, own[c], table.types[c]) for c, v in values.items()}
            values |= {c: self.null(table.types[c]) for c in missing}
            values |= {c.name: quote(c.name) for c in shared}
            items = [f"{values[c]} AS {quote(name)}" for c, name in wanted.names.items()]
            items += [quote(name) for name in wanted.codes]
            items += [FILE] if wanted.ordered else []
            items += [ROW] if placed else []
            yield f"SELECT {', '.join(items) or 'NULL AS nothing'} FROM {view}"

    def _file_columns(self, table: FileTable, files: Sequence[int], wanted: RowRequest) -> list[FileColumn]:
        partitions = table.partitions
        folders = [partitions.part_of_file[f] for f in files]
        found = [
            FileColumn(key, partitions.types[at], [partitions.columns[at][folder] for folder in folders])
            for at, key in enumerate(table.partition_keys)
            if key in wanted.names
        ]
        found += [FileColumn(name, pa.int64(), [numbers[f] for f in files]) for name, numbers in wanted.codes.items()]
        return [*found, FileColumn(FILE, pa.int64(), files)] if wanted.ordered else found

    def _view(
        self,
        table: FileTable,
        files: Sequence[int],
        declared: Mapping[str, pa.DataType],
        readings: Mapping[str, Reading | None] | None,
        shared: Sequence[FileColumn],
        *,
        placed: bool,
    ) -> str:
        """Return a view over files: Spark's own reader reads them, or workers decode them with Arrow."""
        keys = [table.files[f] for f in files]
        sizes = [self._access.sizes[k] or 0 for k in keys]
        places = [self._places.of(k) for k in keys]
        location, paths = places[0][0], [place.path(key) for place, key in places]
        stored = None if readings is None else {c: r.type for c, r in readings.items() if r is not None}
        rows = ROW if placed and readings is not None else None
        frame = relation(self._reading, location.root, paths, sizes, stored, shared, location.options, rows)
        if readings is None:
            types = [f"c{i} {spark_type(t)}" for i, t in enumerate(declared.values())]
            types += [f"{quote(c.name)} {spark_type(c.type)}" for c in shared]
            function = decoder(declared, [c.name for c in shared])
            frame = frame.mapInArrow(function, ", ".join([*types, f"{ROW} BIGINT"]))
        name = f"kartosql_rows_{next(_numbers)}"
        register_view(frame, name)
        return name

    def row_counts(self, table: FileTable, files: Sequence[int]) -> Sequence[int]:
        """Return how many rows files have, by their footers, which the driver reads."""
        return list(self._store.map(lambda f: file_metadata(self._store, table.files[f])[0].num_rows, files))

    def arrow_relation(self, data: pa.Table) -> str:
        """Register Arrow data as a view and return its name."""
        name = f"kartosql_rows_{next(_numbers)}"
        register_view(self._reading.createDataFrame(_without_gaps(data)), name)
        return name

    def _shapes_of(self, table: FileTable, files: Sequence[int]) -> list[int]:
        keys = [table.files[f] for f in files]
        self._access.stat(keys)
        self._store.admit(keys)
        sizes = [self._access.sizes[k] or 0 for k in keys]
        for key, size in zip(keys, sizes, strict=True):
            if size == 0:
                raise corrupt_file(f"{key}: it is empty")  # Spark would leave it out
        return self._shapes.of(self._store, table, list(zip(keys, sizes, strict=True)))

    def _groups(
        self, table: FileTable, files: Sequence[int], declared: Mapping[str, pa.DataType]
    ) -> list[tuple[list[int], dict[str, Reading | None] | None]]:
        """Return files that are read in the same way, and how.

        That is: a reading per column, None for one that is NULL in all of them; or None as a
        whole where only Arrow reads them right.
        """
        shapes = self._shapes_of(table, files)
        lower = [c.lower() for c in (*table.schema.names, *declared.keys() - {*table.schema.names})]
        if any(lower.count(c.lower()) > 1 for c in declared):
            return [(list(files), None)]  # Spark finds columns by name again when it runs, whatever their case
        by_shape: dict[int, list[int]] = {}
        for file, number in zip(files, shapes, strict=True):
            by_shape.setdefault(number, []).append(file)
        found: dict[object, tuple[list[int], dict[str, Reading | None] | None]] = {}
        for number, listed in sorted(by_shape.items(), key=lambda item: -len(item[1])):
            way = self._way(number, table.files[listed[0]], declared)
            name = None if way is None else tuple(way.items())
            if name not in found and len(found) >= MAX_GROUPS:
                name, way = None, None
            found.setdefault(name, ([], way))[0].extend(listed)
        return list(found.values())

    def _way(self, number: int, key: str, declared: Mapping[str, pa.DataType]) -> dict[str, Reading | None] | None:
        shape = self._shapes.shape(number)
        found: dict[str, Reading | None] = {}
        arrow = False
        for name, type_ in declared.items():
            column = shape.get(name)
            if column is None:
                raise schema_mismatch(f"{key}: the column {name!r} is missing")
            if is_void(column):
                found[name] = None
                continue
            try:
                found[name] = reading(column, type_)
            except ValueError:
                given, wanted = type_names(column.arrow, type_)
                message = f"{key}: the column {name!r} is {given}, but {wanted} in the schema of its table"
                raise schema_mismatch(message) from None
            # Over Spark Connect files are read with the settings of the user, who has no nanoseconds.
            way = found[name]
            is_nanos = pa.types.is_timestamp(type_) and way is not None and way.type == "BIGINT"
            arrow |= way is None or (is_nanos and is_connect(self._spark))
        return None if arrow else found

    def types_in_files(self, table: FileTable, files: Sequence[int], columns: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the types that files give to columns; those that hold only NULL are left out."""
        found: dict[str, pa.DataType] = {}
        for number in set(self._shapes_of(table, files)):
            shape = self._shapes.shape(number)
            for name in columns:
                column = shape.get(name)
                if column is None or is_void(column):
                    continue
                type_ = stored_type(column.arrow)
                if not found.setdefault(name, type_).equals(type_):
                    types = " and ".join(type_names(found[name], type_))
                    message = f"{table.files[files[0]]} and others: the column {name!r} is {types} in different files"
                    raise schema_mismatch(message)
        return found


def converted(value: str, given: pa.DataType, wanted: pa.DataType, depth: int = 0) -> str:
    """Return the expression for a value of type ``given`` as one of a type to which it widens."""
    if given.equals(wanted, check_metadata=True) or (
        stored_type(given).equals(stored_type(wanted)) and not pa.types.is_nested(wanted)
    ):
        return value
    t = pa.types
    if t.is_struct(given) and t.is_struct(wanted):
        known = {tag_of(f): f for f in given}
        members = []
        for field in wanted:
            member = f"CAST(NULL AS {spark_type(field.type)})"
            if (found := known.get(tag_of(field))) is not None:
                member = converted(f"{value}.{quote(found.name)}", found.type, field.type, depth)
            members += [text_literal(field.name), member]
        return f"IF({value} IS NULL, NULL, named_struct({', '.join(members)}))"
    if t.is_list(given) and t.is_list(wanted):
        item = converted(f"i{depth}", given.value_type, wanted.value_type, depth + 1)
        return f"transform({value}, i{depth} -> {item})"
    if t.is_map(given) and t.is_map(wanted):
        item = converted(f"i{depth}", given.item_type, wanted.item_type, depth + 1)
        return f"transform_values({value}, (k{depth}, i{depth}) -> {item})"
    return f"CAST({value} AS {spark_type(wanted)})"


def check_comparable(type_: pa.DataType) -> None:
    """Raise ``not-portable`` for values of records that Spark cannot compare."""
    if _holds_map(type_):
        raise NotPortable(
            "Records with maps cancel each other, which Spark cannot compare.", hint="Use engine='duckdb' or 'auto'."
        )


def _holds_map(type_: pa.DataType) -> bool:
    return pa.types.is_map(type_) or any(_holds_map(type_.field(i).type) for i in range(type_.num_fields))


# -- what files hold -----------------------------------------------------------------------------

SPARE = 1_024  # by so much footers of one table may differ before one is read twice


@dataclass(frozen=True)
class FileColumnType:
    """The type of a top-level column of a file: physical and logical where it is flat, and what Arrow makes of it."""

    physical: str | None
    logical: str  # as JSON
    arrow: pa.DataType


Shape = Mapping[str, FileColumnType]


@dataclass(frozen=True)
class Reading:
    """How Spark reads a column of files right: as ``type``, then with ``value``, an expression over it as ``{}``."""

    type: str
    value: str = "{}"

    def of(self, name: str) -> str:
        """Return the expression for the column ``name``."""
        return self.value.replace("{}", quote(name))


class FileShapes:
    """Remembers the schemas of files."""

    def __init__(self) -> None:
        self._cache = FooterCache()
        self._shapes: dict[int, Shape] = {}
        self._tail = TAIL

    def of(self, store: Files, table: object, files: Sequence[tuple[str, int]]) -> list[int]:
        """Return the number of the shape of each file of a table, given key and size; raises ``corrupt-file``."""
        with self._cache.lock:
            schemas = self._cache.schemas(table)
            missing = [f for f in dict.fromkeys(files) if f not in schemas]
            self._cache.make_room(len(missing))
            missing = [f for f in dict.fromkeys(files) if f not in schemas]
            read = partial(self._footer, store)
            # Local ones one by one, so that one is held at a time.
            footers: Iterable[bytes] = map(read, missing) if store.is_local else store.map(read, missing)
            for file, footer in zip(missing, footers, strict=True):
                schemas[file] = self._number(file[0], footer)
            return [schemas[f] for f in files]

    def shape(self, number: int) -> Shape:
        """Return the columns of files of a shape."""
        return self._shapes[number]

    def _number(self, key: str, footer: bytes) -> int:
        number = self._cache.recognise(footer)
        if number not in self._shapes:
            shape = _shape(key, footer)
            self._shapes[number] = next((known for known in self._shapes.values() if known == shape), shape)
        return number

    def _footer(self, store: Files, file: tuple[str, int]) -> bytes:
        key, size = file
        try:
            found = read_footer(store, key, size, self._tail)
        except OSError:
            raise corrupt_file(f"{key}: it cannot be read") from None
        if found is None:
            raise corrupt_file(f"{key}: it is torn or no Parquet file")
        self._tail = len(found) + END + SPARE
        return found


def _shape(key: str, footer: bytes) -> dict[str, FileColumnType]:
    try:
        schema = arrow_metadata(footer).schema
        arrow = schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError) as e:
        reraise(e, f"Cannot read {key!r}")
        raise corrupt_file(f"{key}: {str(e).splitlines()[0]}") from None
    found: dict[str, FileColumnType] = {}
    for field in arrow:
        if field.name in found:
            raise corrupt_file(f"{key}: the column {field.name!r} is there twice")
        found[field.name] = FileColumnType(None, "", field.type)
    for at in range(len(schema)):
        leaf = schema.column(at)
        if leaf.path in found and leaf.max_repetition_level == 0 and not pa.types.is_nested(found[leaf.path].arrow):
            found[leaf.path] = FileColumnType(leaf.physical_type, leaf.logical_type.to_json(), found[leaf.path].arrow)
    return found


# -- reading -------------------------------------------------------------------------------------


def is_void(column: FileColumnType) -> bool:
    """Return whether a column holds only NULL, written without a type."""
    return pa.types.is_null(column.arrow) or column.logical == '{"Type":"Null"}'


def reading(column: FileColumnType, declared: pa.DataType) -> Reading | None:
    """Return how Spark reads a column as ``declared``; None if it cannot, but Arrow can.

    Raises ValueError where values of the column are no values of the type.
    """
    if column.physical is None:
        return Reading(spark_type(declared), _members("{}", declared)) if _same_nested(column.arrow, declared) else None
    logical: dict[str, Any] = json.loads(column.logical)
    kind = logical["Type"]
    t = pa.types
    if t.is_integer(declared):
        return _integer(column, kind, logical, declared)
    if t.is_timestamp(declared):
        return _timestamp(column, kind, logical, declared)
    if t.is_decimal(declared):
        return _decimal(kind, logical, declared)
    for test, physical, kinds, type_ in _PLAIN:
        if test(declared):
            if column.physical in physical and kind in kinds:
                return Reading(type_, _unfiltered(type_) if t.is_floating(declared) else "{}")
            if t.is_floating(declared) and kind == "Float16":
                return None
            if t.is_floating(declared) and (column.physical, kind) == ("FLOAT", "None"):
                return Reading("FLOAT", f"CAST({_unfiltered('FLOAT')} AS {spark_type(declared)})")
            raise ValueError
    return None


def _unfiltered(type_: str) -> str:
    """Return a float as it is, in a form of which Spark makes no filter over statistics of files."""
    # These leave NaN out, and distinguish the two zeros.
    return f"nanvl({{}}, CAST('NaN' AS {type_}))"


def _members(value: str, type_: pa.DataType) -> str:
    """Return a value as it is, in a form of which Spark makes no filter over floats inside of structs."""
    if pa.types.is_floating(type_):
        return _unfiltered(spark_type(type_)).replace("{}", value)
    if not pa.types.is_struct(type_):
        return value
    members = [(quote(f.name), f.name, _members(f"{value}.{quote(f.name)}", f.type)) for f in type_]
    if all(found == f"{value}.{quoted}" for quoted, _, found in members):
        return value
    listed = ", ".join(f"{text_literal(name)}, {found}" for _, name, found in members)
    return f"IF({value} IS NULL, NULL, named_struct({listed}))"


def _integer(column: FileColumnType, kind: str, logical: Mapping[str, Any], declared: pa.DataType) -> Reading | None:
    bits = {"INT32": 32, "INT64": 64}.get(column.physical or "")
    if bits is None or kind not in ("None", "Int"):
        raise ValueError
    signed, width = True, bits
    if kind == "Int":
        signed, width = logical["isSigned"], logical["bitWidth"]
    if signed != pa.types.is_signed_integer(declared):
        raise ValueError
    type_, wanted = spark_type(pa.type_for_alias(f"{'' if signed else 'u'}int{width}")), spark_type(declared)
    if signed and width < declared.bit_width:
        return Reading(wanted)  # Spark widens by itself, and keeps filters
    return _as(wanted, type_) if type_ == wanted or width < declared.bit_width else None


def _timestamp(column: FileColumnType, kind: str, logical: Mapping[str, Any], declared: pa.DataType) -> Reading | None:
    if column.physical == "INT96":
        return None
    if column.physical != "INT64" or kind != "Timestamp":
        raise ValueError
    # Without a logical type the flag is a guess, and such files hold what their schema says.
    in_utc, has_zone = bool(logical["isAdjustedToUTC"]), declared.tz is not None
    if not logical.get("is_from_converted_type") and in_utc != has_zone:
        raise ValueError
    wanted = spark_type(declared)
    if logical["timeUnit"] == "nanoseconds":
        exact = "IF({} % 1000 = 0, {}, CAST(raise_error('kartosql:nanoseconds') AS BIGINT))"
        zoned = f"timestamp_micros(({exact}) DIV 1000)"
        return Reading("BIGINT", zoned if has_zone else f"CAST({zoned} AS TIMESTAMP_NTZ)")
    return _as(wanted, "TIMESTAMP_LTZ" if in_utc else "TIMESTAMP_NTZ")


def _decimal(kind: str, logical: Mapping[str, Any], declared: pa.DataType) -> Reading:
    if kind != "Decimal":
        raise ValueError
    precision, scale = logical["precision"], logical["scale"]
    if scale > declared.scale or precision - scale > declared.precision - declared.scale:
        raise ValueError
    return _as(spark_type(declared), f"DECIMAL({precision},{scale})")


def _as(wanted: str, stored: str) -> Reading:
    return Reading(stored, "{}" if stored == wanted else f"CAST({{}} AS {wanted})")


def _same_nested(found: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether Spark reads a nested type as it is: nothing in it needs another reading."""
    t = pa.types
    if t.is_struct(found) and t.is_struct(declared):
        names = [f.name for f in found]
        return names == [f.name for f in declared] and all(
            _same_nested(a.type, b.type) for a, b in zip(found, declared, strict=True)
        )
    if t.is_map(found) and t.is_map(declared):
        return _same_nested(found.key_type, declared.key_type) and _same_nested(found.item_type, declared.item_type)
    if t.is_list(found) and t.is_list(declared):
        return _same_nested(found.value_type, declared.value_type)
    if t.is_nested(found) or t.is_nested(declared):
        return False
    safe = (t.is_boolean, t.is_signed_integer, t.is_float32, t.is_float64, t.is_string, t.is_binary, t.is_date32)
    return found.equals(declared) and any(test(found) for test in safe) and stored_type(found).equals(declared)


_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_PLAIN = (
    (pa.types.is_boolean, ("BOOLEAN",), ("None",), "BOOLEAN"),
    (pa.types.is_float32, ("FLOAT",), ("None",), "FLOAT"),
    (pa.types.is_float64, ("DOUBLE",), ("None",), "DOUBLE"),
    (pa.types.is_string, ("BYTE_ARRAY",), ("String", "Enum", "JSON"), "STRING"),
    (pa.types.is_large_string, ("BYTE_ARRAY",), ("String", "Enum", "JSON"), "STRING"),
    (pa.types.is_binary, _BYTES, ("None",), "BINARY"),
    (pa.types.is_date, ("INT32",), ("Date",), "DATE"),
)
