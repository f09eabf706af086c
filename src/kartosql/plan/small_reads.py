"""Read rows of few small files in which columns equal constants by Arrow, which is faster than an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from sqlglot import exp

from kartosql.errors import KartosqlError
from kartosql.formats.arrays import constant
from kartosql.plan.bind import BoundQuery
from kartosql.plan.scan import Scan
from kartosql.sql.tree import constant_of, operands
from kartosql.store import Files

MAX_FILES, MAX_BYTES, MAX_CELLS = 8, 1 << 20, 100_000  # of all files together; beyond these DuckDB is quicker
MAX_ROWS_BYTES = 1 << 27  # bytes that rows may take if each text is as long as all texts of the files
_CODES = pa.dictionary(pa.int32(), pa.string())
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_WIDENED = {wide: _INTEGERS[: at + 1] for at, wide in enumerate(_INTEGERS)}
# Types that Arrow and DuckDB read alike, and that results have in both alike; decimals are others.
_TYPES = (*_INTEGERS, pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.date32(), pa.timestamp("us"))
_PLAIN = ("expressions", "from_", "where", "this", "db", "catalog", "alias")  # what a SELECT and its table may have


class SmallRead(NamedTuple):
    """The columns ``shown`` of those rows of files in which columns have the ``values``; ``schema`` is that of both."""

    keys: Sequence[str]
    shown: Sequence[str]
    types: Sequence[pa.DataType]  # of the columns shown
    schema: pa.Schema
    values: Mapping[str, int | str]

    def run(self, store: Files) -> tuple[pa.Table, dict[str, int | None]] | None:
        """Return the rows and what was read; None where an engine has to read it, or to report an error."""
        import pyarrow.parquet as pq

        names, found, size, groups = self.schema.names, list[pa.Table](), 0, 0
        # As dictionaries, since few bytes may tell of many rows that have the same long text.
        texts = [f.name for f in self.schema if f.type == pa.string()]
        try:
            for key in self.keys:
                with open(store.local_path(key), "rb", buffering=0) as opened:
                    data = opened.read(MAX_BYTES)
                file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
                if file.metadata.num_rows * len(names) * len(self.keys) > MAX_CELLS:
                    return None
                found.append(file.read(names, use_threads=False))
                size, groups = size + len(data), groups + file.num_row_groups
            rows = pa.concat_tables(found)
            kinds = {**_WIDENED, pa.string(): (_CODES,)}
            if any(rows.schema.field(f.name).type not in kinds.get(f.type, (f.type,)) for f in self.schema):
                return None
            rows.validate(full=True)  # texts may be no UTF-8, which DuckDB refuses
            for name, value in self.values.items():
                rows = rows.filter(_equal(rows.column(name), value))
            if rows.num_rows * rows.nbytes > MAX_ROWS_BYTES:
                return None
            rows = rows.cast(self.schema).select(self.shown).combine_chunks()
        except (OSError, ValueError, KeyError, pa.ArrowException, KartosqlError):  # files may differ, or lack columns
            return None
        return rows, {"bytes_read": size, "files_opened": len(found), "row_groups_read": groups}


def _equal(column: pa.ChunkedArray, value: int | str) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    known = constant(value, pa.string() if isinstance(value, str) else pa.int64())
    if column.type != _CODES:
        return pc.equal(column, known)
    chunks = [pc.equal(chunk.dictionary, known).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.bool_())


def small_read(bound: BoundQuery, scan: Scan, sizes: Mapping[str, int | None]) -> SmallRead | None:
    """Return what a ``SELECT columns FROM table WHERE column = constant`` reads, None for any other statement."""
    tree, parts = bound.select.tree, [p for o in scan.occurrences for p in o.parts]
    from_, where = (tree.args.get("from_"), tree.args.get("where")) if isinstance(tree, exp.Select) else (None, None)
    if tree is None or from_ is None or where is None or len(parts) != 1 or len(scan.occurrences) != 1:
        return None
    clauses = [*tree.args.items(), *from_.this.args.items()]
    if from_.this is not scan.occurrences[0].occurrence.node or any(v for k, v in clauses if k not in _PLAIN):
        return None
    is_plain = parts[0].summary is None and parts[0].rows_are_files_rows and parts[0].part.table.has_footers
    keys = parts[0].opened if is_plain else []
    if not 0 < len(keys) <= MAX_FILES or sum(sizes.get(key) or MAX_BYTES for key in keys) >= MAX_BYTES:
        return None
    if parts[0].part.table.renames:
        return None
    atoms = operands(where.this) if isinstance(where.this, exp.And) else [where.this]
    nodes = [*tree.expressions, *(atom.this if isinstance(atom, exp.EQ) else atom for atom in atoms)]
    found = [_type(node, bound, scan) for node in nodes]
    if None in found:
        return None
    types, shown = dict(zip([n.name for n in nodes], found, strict=True)), [n.name for n in tree.expressions]
    values = {a.this.name: v for a in atoms if (v := _constant(a, bound, types[a.this.name])) is not None}
    if len({*shown}) < len(shown) or len(values) < len(atoms):
        return None
    return SmallRead(keys, shown, found[: len(shown)], pa.schema(types.items()), values)


def _type(node: exp.Expression, bound: BoundQuery, scan: Scan) -> pa.DataType | None:
    """Return the type of a column of the files, None for any other expression."""
    known = bound.walked.bound.get(id(node)) if isinstance(node, exp.Column) else None
    if known is None or known.source is None or known.source.real(known.column) != node.name:
        return None
    source, table = scan.occurrences[0].occurrence.source, scan.occurrences[0].parts[0].part.table
    type_ = source.columns[node.name]
    if node.name in (*source.exposed, *table.partition_keys) or not type_.equals(table.types.get(node.name)):
        return None
    return type_ if type_ in _TYPES or pa.types.is_decimal128(type_) else None


def _constant(atom: exp.Expression, bound: BoundQuery, type_: pa.DataType) -> int | str | None:
    """Return the constant that a column has to equal, in its type, None for any other expression."""
    if not isinstance(atom, exp.EQ) or not isinstance(atom.expression, exp.Literal):
        return None
    # The tree is that of a statement that may differ in constants.
    text = bound.select.text[atom.expression.meta.get("start", 0) : atom.expression.meta.get("end", -1) + 1]
    if type_.equals(pa.string()):
        return constant_of(text) if text.startswith("'") else None
    return int(text) if type_ in _INTEGERS and text.isdecimal() and text.isascii() and len(text) < 19 else None
