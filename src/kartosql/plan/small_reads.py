"""Read rows of few small files in which columns equal constants by Arrow, which is faster than an engine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp

from kartosql.errors import KartosqlError, Span
from kartosql.formats.arrays import constant, integers_as
from kartosql.formats.parquet_pages import rows_with
from kartosql.parquet import DAMAGE, FooterCache, footer_of
from kartosql.plan.bind import BoundQuery
from kartosql.plan.scan import Scan
from kartosql.plan.scopes import Occurrence
from kartosql.sql.tree import constant_of, operands, span_of
from kartosql.store import Files
from kartosql.tables.table import FileTable, Table

MAX_FILES, MAX_BYTES = 64, 1 << 20  # of all files together; beyond these DuckDB is quicker
MAX_BY_ARROW, MAX_CELLS = 8, 300_000  # files and cells, where Arrow has to read them
TEXT_CELLS = 4  # cells that one of text counts as
MAX_ROWS_BYTES = 1 << 27  # bytes that rows may take if each text is as long as all texts of the files
_CODES = pa.dictionary(pa.int32(), pa.string())
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_WIDENED = {wide: _INTEGERS[: at + 1] for at, wide in enumerate(_INTEGERS)}
# Types that Arrow and DuckDB read alike, and that results have in both alike; decimals are others.
_TYPES = (*_INTEGERS, pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.date32(), pa.timestamp("us"))
_AGGREGATES: dict[type, str] = {exp.Count: "count", exp.Sum: "sum", exp.Min: "min", exp.Max: "max"}
# Those of other types, such as extremes of floats, are not the engine's by Arrow.
_EXTREMES = (*_INTEGERS, pa.date32(), pa.timestamp("us"))
_AGGREGATED = {"sum": (pa.float64(),), "min": _EXTREMES, "max": _EXTREMES}
MAX_DIGITS = 30  # of decimals whose sum has at most 38
_PLAIN = ("expressions", "from_", "where", "this", "db", "catalog", "alias")  # what a SELECT and its table may have


class ReadItem(NamedTuple):
    """An output column of a SELECT: a column, or an ``aggregate`` over it, of all rows where no column is named."""

    name: str
    type: pa.DataType
    column: str = ""
    aggregate: str = ""


class ReadShape(NamedTuple):
    """What statements of a shape have in common: the items, the columns, and those compared with the place of what."""

    items: Sequence[ReadItem]
    schema: pa.Schema
    compared: Sequence[tuple[str, Span]]
    footers: FooterCache | None  # schemas of the files that were read; None if not by pages


class SmallRead(NamedTuple):
    """The items of a ``shape`` of those rows of files in which columns have the ``values``."""

    keys: Sequence[str]
    sizes: Sequence[int]
    shape: ReadShape
    values: Mapping[str, int | str]

    def run(self, store: Files) -> tuple[pa.Table, dict[str, int | None]] | None:
        """Return the rows and what was read; None where an engine has to read it, or to report an error."""
        items = self.shape.items
        try:
            named = zip(self.keys, self.sizes, strict=True)
            contents = [_content(store.local_path(key), size) for key, size in named]
            found = self._by_pages(contents) or (self._by_arrow(contents) if len(self.keys) <= MAX_BY_ARROW else None)
            if found is None:
                return None
            rows, groups = found
            if items[0].aggregate:
                arrays = [pa.repeat(_aggregate(item, rows), 1) for item in items]
                rows = pa.table(arrays, [item.name for item in items])
            else:
                rows = rows.select([item.name for item in items]).combine_chunks()
        except (OSError, ValueError, KeyError, pa.ArrowException, KartosqlError):  # files may differ, or lack columns
            return None
        return rows, {"bytes_read": sum(self.sizes), "files_opened": len(self.keys), "row_groups_read": groups}

    def _by_pages(self, contents: Sequence[bytes]) -> tuple[pa.Table, int] | None:
        """Return the rows that match, and the number of row groups; None where Arrow has to read the files."""
        schema, footers, groups = self.shape.schema, self.shape.footers, 0
        types = dict(zip(schema.names, schema.types, strict=True))
        found: dict[str, list[Any]] = {name: [] for name in types}
        if footers is None:
            return None
        with contextlib.suppress(*DAMAGE, pa.ArrowException, OSError):
            for data in contents:
                footer = footer_of(data) or b""
                footers.recognise(footer)
                of_file, count = rows_with(data, footer, footers.layout(footer), types, self.values)
                groups += count
                for name, values in of_file.items():
                    found[name] += values
            return pa.table([integers_as(found[name], type_) for name, type_ in types.items()], schema), groups
        return None

    def _by_arrow(self, contents: Sequence[bytes]) -> tuple[pa.Table, int] | None:
        """Return what ``_by_pages`` does; None where an engine has to read the files."""
        import pyarrow.parquet as pq

        schema, found, groups = self.shape.schema, list[pa.Table](), 0
        # As dictionaries, since few bytes may tell of many rows that have the same long text.
        texts = [f.name for f in schema if f.type == pa.string()]
        width = len(schema) + (TEXT_CELLS - 1) * len(texts)
        for data in contents:
            # Reading ahead copies what is in memory already.
            file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts, pre_buffer=False)
            if file.metadata.num_rows * width * len(contents) > MAX_CELLS:
                return None
            found.append(file.read(schema.names, use_threads=False))
            groups += file.num_row_groups
        rows = pa.concat_tables(found)
        kinds = {**_WIDENED, pa.string(): (_CODES,)}
        if any(rows.schema.field(f.name).type not in kinds.get(f.type, (f.type,)) for f in schema):
            return None
        for name, value in self.values.items():
            rows = rows.filter(_equal(rows.column(name), value))
        rows.validate(full=True)  # texts of any row may be no UTF-8, which DuckDB refuses
        is_too_long = bool(texts) and rows.num_rows * rows.select(texts).nbytes > MAX_ROWS_BYTES
        return None if is_too_long else (rows.cast(schema), groups)


def _content(path: str, size: int) -> bytes:
    with open(path, "rb", buffering=0) as opened:
        return opened.read(size)  # a larger buffer is taken from the system anew each time


def _equal(column: pa.ChunkedArray, value: int | str) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    known = constant(value, pa.string() if isinstance(value, str) else pa.int64())
    if column.type != _CODES:
        return pc.equal(column, known)
    chunks = [pc.equal(chunk.dictionary, known).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.bool_())


def _aggregate(item: ReadItem, rows: pa.Table) -> pa.Scalar:
    """Return an aggregate over a column of some rows; raises ValueError where only the engine can tell it."""
    import pyarrow.compute as pc

    values = rows.column(item.column).drop_null() if item.column else rows
    if item.aggregate == "count":
        return constant(len(values), item.type)
    if not len(values):
        return pa.nulls(1, item.type)[0]
    if item.aggregate != "sum":
        return getattr(pc, item.aggregate)(values)
    if item.type != pa.float64():
        return pc.sum(values.cast(item.type))
    # One after the other, as the engine adds them; others round in other places.
    total = pc.cumulative_sum(values)[-1]
    if not math.isfinite(total.as_py()):
        raise ValueError(total)
    return total


def small_read(bound: BoundQuery, scan: Scan, sizes: Mapping[str, int | None]) -> SmallRead | None:
    """Return what a ``SELECT columns FROM table WHERE column = constant`` reads, None for any other statement.

    All columns may be aggregates.
    """
    parts = [p for o in scan.occurrences for p in o.parts]
    if len(parts) != 1 or len(scan.occurrences) != 1 or parts[0].summary is not None:
        return None
    table, keys = parts[0].part.table, parts[0].opened if parts[0].rows_are_files_rows else []
    if not 0 < len(keys) <= MAX_FILES or sum(sizes.get(key) or MAX_BYTES for key in keys) >= MAX_BYTES:
        return None
    known = bound.walked.alike
    if ("small", id(table)) not in known:
        known["small", id(table)] = table, _shape(bound, scan.occurrences[0].occurrence, table)
    shape: ReadShape | None = known["small", id(table)][1]
    if shape is None or (shape.footers is None and len(keys) > MAX_BY_ARROW):
        return None
    values = dict[str, int | str]()
    for name, (start, end) in shape.compared:
        # The tree is that of a statement that may differ in constants.
        value = _constant(bound.select.text[start:end], shape.schema.field(name).type)
        if value is None:
            return None
        values[name] = value
    return SmallRead(keys, [sizes[key] or 0 for key in keys], shape, values)


def _shape(bound: BoundQuery, occurrence: Occurrence, table: FileTable) -> ReadShape | None:
    """Return what is known of a statement whatever its constants are, None if only the engine can answer it."""
    tree = bound.select.tree
    from_, where = (tree.args.get("from_"), tree.args.get("where")) if isinstance(tree, exp.Select) else (None, None)
    if tree is None or from_ is None or where is None or not table.has_footers or table.renames:
        return None
    clauses = [*tree.args.items(), *from_.this.args.items()]
    if from_.this is not occurrence.node or any(v for k, v in clauses if k not in _PLAIN):
        return None
    atoms = operands(where.this) if isinstance(where.this, exp.And) else [where.this]
    over = [_aggregated(item) for item in tree.expressions]
    if not all(isinstance(a, exp.EQ) and isinstance(a.expression, exp.Literal) for a in atoms):
        return None
    nodes = [*(node for _, node in over if node is not None), *(atom.this for atom in atoms)]
    found = [(node.name, _type(node, bound, occurrence.source, table)) for node in nodes]
    types = {name: type_ for name, type_ in found if type_ is not None}
    if any(type_ is None for _, type_ in found) or len({not aggregate for aggregate, _ in over}) > 1:
        return None
    items = [_item(item, *of, types) for item, of in zip(tree.expressions, over, strict=True)]
    known, places = [item for item in items if item is not None], [span_of(atom.expression) for atom in atoms]
    compared = [(atom.this.name, span) for atom, span in zip(atoms, places, strict=True) if span is not None]
    if len({item.name for item in known}) < len(items) or len(dict(compared)) < len(atoms):
        return None
    has_others = any(type_ in (pa.string(), pa.bool_()) for type_ in types.values())
    return ReadShape(known, pa.schema(types.items()), compared, None if has_others else FooterCache())


def _aggregated(item: exp.Expression) -> tuple[str, exp.Expression | None]:
    """Return the aggregate that an item is, and the column it is over, None for all rows; no aggregate for others."""
    call = item.this if isinstance(item, exp.Alias) else None
    aggregate = _AGGREGATES.get(type(call), "")
    if call is None or not aggregate or any(v for k, v in call.args.items() if k not in ("this", "big_int")):
        return "", item
    is_all = aggregate == "count" and isinstance(call.this, exp.Star) and not any(call.this.args.values())
    return aggregate, None if is_all else call.this


def _item(
    item: exp.Expression, aggregate: str, over: exp.Expression | None, types: Mapping[str, pa.DataType]
) -> ReadItem | None:
    """Return an item of a SELECT list; None for an aggregate of which only the engine knows what it makes."""
    if not aggregate:
        return ReadItem(item.name, types[item.name], item.name)
    column = "" if over is None else over.name
    if aggregate == "count":
        return ReadItem(item.alias, pa.int64(), column, aggregate)
    of = types[column]
    if pa.types.is_decimal128(of) and of.precision <= MAX_DIGITS:
        return ReadItem(item.alias, pa.decimal128(38, of.scale) if aggregate == "sum" else of, column, aggregate)
    return ReadItem(item.alias, of, column, aggregate) if of in _AGGREGATED[aggregate] else None


def _type(node: exp.Expression, bound: BoundQuery, source: Table, table: FileTable) -> pa.DataType | None:
    """Return the type of a column of the files, None for any other expression."""
    known = bound.walked.bound.get(id(node)) if isinstance(node, exp.Column) else None
    if known is None or known.source is None or known.source.real(known.column) != node.name:
        return None
    type_ = source.columns[node.name]
    if node.name in (*source.exposed, *table.partition_keys) or not type_.equals(table.types.get(node.name)):
        return None
    return type_ if type_ in _TYPES or pa.types.is_decimal128(type_) else None


def _constant(text: str, type_: pa.DataType) -> int | str | None:
    """Return the constant of a text in the type of the column that has to equal it, None for any other text."""
    if type_.equals(pa.string()):
        return constant_of(text) if text.startswith("'") else None
    return int(text) if type_ in _INTEGERS and text.isdecimal() and text.isascii() and len(text) < 19 else None
