"""Several files of a partition -> the rows of one, in which every cell is there once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, reraise
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.metadata import normalise
from kartosql.store import Store
from kartosql.text.types import in_sql_names, type_name
from kartosql.write.document import discard
from kartosql.write.files import Written, opened_parquet
from kartosql.write.inputs import FILE_BATCH_ROWS, Rows, rows_of, storage_schema, storage_type
from kartosql.write.layout import Layout, is_index_type, run_starts

_BROKEN = ("duplicate-cells", "null-in-key")
Ordered = Callable[[Rows, Layout], Generator[pa.Table]]  # sorts rows as a layout says


@dataclass(frozen=True)
class Merge:
    """How the files of the dataset ``name`` are merged.

    ``tables`` need not know their files, ``indexed`` are the columns with an inverted index, and
    ``join_key`` the columns that distinguish cells of a cube; None where all rows stay.
    """

    name: str
    tables: Mapping[str, DatasetTable]
    indexed: tuple[str, ...]
    join_key: tuple[str, ...] | None

    def rows(self, store: Store, table: str, keys: Sequence[str], ordered: Ordered) -> tuple[Rows, Layout]:
        """Return the rows of some files of one folder, as a stream, and how their file is laid out.

        Reading them raises ``missing-file``, ``corrupt-file`` and ``schema-mismatch``, and
        ``duplicate-cells`` and ``null-in-key`` for files that break the rules of a cube.
        """
        stored = self.tables[table]
        merged = _Merged(store, stored, keys)
        indexed = tuple(
            column
            for column in self.indexed
            if column in merged.schema.names
            and not pa.types.is_null(stored.schema.field(column).type)
            and is_index_type(merged.schema.field(column).type)
            and not pa.types.is_floating(merged.schema.field(column).type)
        )
        cell: tuple[str, ...] = ()
        if self.join_key is not None and merged.num_rows:
            cell = tuple(c for c in self.join_key if c not in stored.partition_keys)
        layout = Layout(stored.uuid, self.name, (), cell, indexed, cell)
        pieces = merged.last_versions(layout, ordered) if cell else (piece for _, piece in merged.numbered())
        batches = (batch for piece in pieces for batch in piece.to_batches())
        return rows_of(batches, storage_schema(merged.schema, self.name), self.name), layout


@dataclass
class Run:
    """Partitions that become one: ``folders`` by table are where their files are, and the new ones will be."""

    folders: Mapping[str, str]
    labels: list[str] = field(default_factory=list)
    keys: dict[str, list[str]] = field(default_factory=dict)
    bytes: int = 0

    def label_of(self, made: Mapping[str, Written]) -> str:
        """Return the label of the new partition."""
        first = next(iter(made.values()))
        return "/".join(filter(None, [next(iter(self.folders.values())), first.labels[0]]))


def write_merged(
    merge: Merge, run: Run, store: Store, ordered: Ordered, write: Callable[[Rows, Layout], Written]
) -> dict[str, Written] | None:
    """Write the files that take the place of those of ``run``, one for each table.

    Returns None for rows that break the rules of a cube: they have no last version to keep, and
    CHECK names them. After an error nothing stays of what ``write`` wrote.
    """
    made: dict[str, Written] = {}
    try:
        for table, keys in run.keys.items():
            rows, layout = merge.rows(store, table, keys, ordered)
            below = "/".join(filter(None, [table, run.folders[table]]))
            made[table] = write(rows, replace(layout, table=below))
    except BaseException as e:
        for written in made.values():
            discard(store, written.keys)
        if isinstance(e, KartosqlError) and e.code in _BROKEN:
            return None
        raise
    return made


class _Merged:
    """The rows of several files of a partition, in the types that they are stored in."""

    def __init__(self, store: Store, table: DatasetTable, keys: Sequence[str]) -> None:
        self._store = store
        self._keys = keys
        self._may_lack = table.may_lack
        self.num_rows = 0
        schemas = []
        for key in keys:
            with opened_parquet(store, key) as file:
                schemas.append(file.schema_arrow)
                self.num_rows += file.metadata.num_rows
        names = [name for name in table.schema.names if name not in table.partition_keys]
        self.schema = pa.schema([(name, _type(name, table.schema, schemas)) for name in names])
        self._number = "file"
        while self._number in names:
            self._number += "_"

    def last_versions(self, layout: Layout, ordered: Ordered) -> Iterator[pa.Table]:
        """Yield for each cell the row of the last file that has it, ascending by cell.

        Raises ``duplicate-cells`` and ``null-in-key`` for files that break the rules of a cube.
        """
        # A cell may occur once per file.
        inner = Layout(layout.uuid, layout.name, (), (*layout.cell, self._number), (), layout.cell)
        schema = self.schema.append(pa.field(self._number, pa.int64()))
        rows = rows_of(self._with_numbers(schema), storage_schema(schema, layout.name), layout.name)
        held: pa.Table | None = None
        for piece in ordered(rows, inner):
            piece = piece.select(self.schema.names)
            if held is not None:
                piece = pa.concat_tables([held, piece])
            # The last row of a cell is in its last file; that of the last cell may come with the next piece.
            ends = [start - 1 for start in run_starts(piece, layout.cell)[1:]]
            if ends:
                yield piece.take(pa.array(ends, pa.int64()))
            held = piece.slice(piece.num_rows - 1)
        if held is not None:
            yield held

    def _with_numbers(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for number, piece in self.numbered():
            numbers = pa.repeat(pa.scalar(number, pa.int64()), piece.num_rows)
            yield from piece.append_column(schema.field(self._number), numbers).to_batches()

    def numbered(self) -> Iterator[tuple[int, pa.Table]]:
        for number, key in enumerate(self._keys):
            with opened_parquet(self._store, key) as file:
                for batch in file.iter_batches(FILE_BATCH_ROWS):
                    yield number, self._typed(batch, key)

    def _typed(self, batch: pa.RecordBatch, key: str) -> pa.Table:
        columns = []
        for name, type_ in zip(self.schema.names, self.schema.types, strict=True):
            try:
                is_lacking = name in self._may_lack and name not in batch.schema.names
                columns.append(pa.nulls(batch.num_rows, type_) if is_lacking else batch.column(name).cast(type_))
            except (pa.ArrowException, KeyError) as e:
                reraise(e, f"Cannot read {key!r}")
                reason = (
                    "is missing"
                    if isinstance(e, KeyError)
                    else f"cannot be read as {type_name(type_)}: {in_sql_names(e)}"
                )
                raise FormatError(f"{key}: the column {name!r} {reason}", code="schema-mismatch") from None
        return pa.table(columns, schema=self.schema)


def _type(name: str, schema: pa.Schema, files: Sequence[pa.Schema]) -> pa.DataType:
    """Return the type of a column in the merged file: that of all files, else that of the table."""
    known = schema.field(name).type
    found = list(dict.fromkeys(f.field(name).type for f in files if name in f.names))
    given = [t for t in found if not pa.types.is_null(t)]
    if given and (len(given) == 1 or pa.types.is_null(known)):
        type_ = storage_type(given[0] if len(given) == 1 else normalise(given[0]))
        if type_ is not None and (pa.types.is_null(known) or normalise(type_).equals(normalise(known))):
            return type_
    return storage_type(known) or known
