"""Merging small files: each run of files of a partition becomes one, in which every cell stands once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import FormatError, KartosqlError, UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube, CubeMember
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.formats.kartothek.schema import normalise
from kartosql.write import cubes, datasets
from kartosql.write.change import Change
from kartosql.write.document import check_writable
from kartosql.write.files import open_key
from kartosql.write.frames import storage_type
from kartosql.write.inputs import FILE_BATCH_ROWS, open_rows
from kartosql.write.layout import Layout, columns_of
from kartosql.write.operation import Operation, report
from kartosql.write.rows import Written
from kartosql.write.split import is_index_type, run_starts

TARGET_BYTES = 128_000_000
SMALL_BYTES = 8_000_000
WORKERS = 4
# Rows that break the rules of a cube have no last version to keep; CHECK names them.
_BROKEN = ("duplicate-cells", "null-in-key")


def compact(
    operation: Operation,
    table: Cube | str,
    names: str | Iterable[str] | None = None,
    *,
    target_bytes: int = TARGET_BYTES,
    min_files: int = 2,
) -> dict[str, Any]:
    """Merge the small files of a cube's datasets, or of one dataset; see Connection.compact."""
    for what, value, least in (("target_bytes", target_bytes, 1), ("min_files", min_files, 2)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{what}: {value!r} is no whole number of {least} or more.")
    if isinstance(table, Cube) or operation.snapshot.is_cube(table):
        cubes.begin(operation, table)
        members = cubes.find_cube(operation.snapshot, table).members
        chosen = tuple(members) if names is None else columns_of(names, "datasets")
        for name in chosen:
            if name not in members:
                raise UsageError(
                    f"There is no dataset {name!r} in the cube.",
                    code="unknown-dataset",
                    hint=f"Datasets: {', '.join(members)}.",
                )
        return {name: _compact(operation, members[name], target_bytes, min_files) for name in chosen}
    dataset = datasets.find_dataset(operation, table)
    cube = datasets.cube_of(operation.snapshot, dataset.uuid)
    if cube is not None:
        return dict(compact(operation, cube[0], [cube[1]], target_bytes=target_bytes, min_files=min_files)[cube[1]])
    return _compact(operation, dataset, target_bytes, min_files)


@dataclass
class _Run:
    """Partitions that become one: ``folders`` by table are where their files are, and the new ones will be."""

    folders: Mapping[str, str]
    labels: list[str] = field(default_factory=list)
    keys: dict[str, list[str]] = field(default_factory=dict)
    bytes: int = 0


def _compact(operation: Operation, what: CubeMember | Dataset, target_bytes: int, min_files: int) -> dict[str, Any]:
    uuid = what.table.uuid if isinstance(what, CubeMember) else what.uuid
    dataset = operation.snapshot.dataset(uuid)
    check_writable(dataset.document)
    member = what if isinstance(what, CubeMember) else None
    runs = [r for r in _runs(operation, dataset, member, target_bytes) if len(r.labels) >= min_files]
    merger = _Merger(operation, dataset, member)
    try:
        merger.merge(runs)
    except BaseException:
        operation.discard(merger.written)
        raise
    if not merger.added:
        return {**report(None, None), "skipped": merger.skipped}
    change = Change(
        uuid,
        operation.name,
        added=merger.added,
        removed=frozenset(label for labels in merger.replaced.values() for label in labels),
        pairs={column: pa.concat_tables(found) for column, found in merger.pairs.items()},
        positions={new: labels[-1] for new, labels in merger.replaced.items()},
    )
    done = operation.commit([change], merger.written)[uuid]
    totals = {name: sum(report(w, None)[name] for w in merger.written) for name in ("files", "rows", "bytes")}
    return {**report(None, done), **totals, "skipped": merger.skipped}


def _runs(operation: Operation, dataset: Dataset, member: CubeMember | None, target_bytes: int) -> list[_Run]:
    """Return the runs of files that can take one place among the files of a dataset.

    Between files of a run stands no file with the same values of the partition columns that
    tell cells apart: it could hold a newer version of one row, and an older one of another.
    """
    document = dataset.document
    sizes = operation.store.list_below(f"{dataset.uuid}/")
    groups = _groups(member)
    found: list[_Run] = []
    last: dict[Any, _Run] = {}
    for at, label in enumerate(document.labels or ()):
        keys = {table: column[at] for table, column in document.files.items()}
        given = {table: key for table, key in keys.items() if key is not None}
        lost = [key for key in given.values() if key not in sizes]
        if lost:
            raise FormatError(f"The file {lost[0]!r} is missing.", code="missing-file", hint="CHECK lists such files.")
        is_plain = all(key.startswith(f"{dataset.uuid}/{table}/") for table, key in given.items())
        folders = {table: naming.folder_of(key, dataset.uuid, table) for table, key in given.items()}
        size = sum(sizes[key] or 0 for key in given.values())
        group = groups[label] if groups is not None else tuple(folders.items())
        run = last.get(group)
        if run is None or not is_plain or run.folders != folders or run.bytes + size > target_bytes:
            run = last[group] = _Run(folders)
            found.append(run)
        if not is_plain:
            last.pop(group)
        run.labels.append(label)
        run.bytes += size
        for table, key in given.items():
            run.keys.setdefault(table, []).append(key)
    return found


def _groups(member: CubeMember | None) -> dict[str, Any] | None:
    """Return for each label of a cube's dataset the partition values that are part of its cells."""
    if member is None:
        return None
    table = member.table
    places = [i for i, name in enumerate(table.partition_keys) if name in member.join_key]
    return {label: table.partitions.comparable(i, places) for i, label in enumerate(table.labels)}


class _Merger:
    """Writes the new files; what it has done so far can be read at any time."""

    def __init__(self, operation: Operation, dataset: Dataset, member: CubeMember | None) -> None:
        self._operation = operation
        self._dataset = dataset
        self._name = member.name if member is not None else dataset.uuid
        self._member = member
        self._lock = threading.Lock()
        self.written: list[Written] = []
        self.added: dict[str, dict[str, str]] = {}
        self.replaced: dict[str, list[str]] = {}
        self.pairs: dict[str, list[pa.Table]] = {}
        self.skipped = 0

    def merge(self, runs: Sequence[_Run]) -> None:
        """Write the file of each run."""
        # Large ones take the memory of the setting each.
        workers = WORKERS if max((r.bytes for r in runs), default=0) <= SMALL_BYTES else 1
        pool = ThreadPoolExecutor(workers, thread_name_prefix="kartosql-compact")
        futures = [pool.submit(self._merge, run) for run in runs]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _merge(self, run: _Run) -> None:
        made: dict[str, Written] = {}
        try:
            for table, keys in run.keys.items():
                made[table] = self._write(self._dataset.tables[table], keys, run.folders[table])
        except BaseException as e:
            self._operation.discard(made.values())
            if isinstance(e, KartosqlError) and e.code in _BROKEN:
                with self._lock:
                    self.skipped += len(run.labels)
                return
            raise
        first = next(iter(made.values()))
        label = "/".join(filter(None, [next(iter(run.folders.values())), first.labels[0]]))
        with self._lock:
            self.written += made.values()
            self.added[label] = {table: written.keys[0] for table, written in made.items()}
            self.replaced[label] = run.labels
            for written in made.values():
                for column, found in written.pairs.items():
                    labels = pa.array([label] * found.num_rows, pa.string())
                    self.pairs.setdefault(column, []).append(pa.table({"value": found["value"], "label": labels}))

    def _write(self, table: DatasetTable, keys: Sequence[str], folder: str) -> Written:
        merged = _Merged(self._operation, table, keys)
        indexed = tuple(
            column
            for column in self._dataset.document.indices
            if column in merged.schema.names
            and not pa.types.is_null(table.schema.field(column).type)
            and is_index_type(merged.schema.field(column).type)
            and not pa.types.is_floating(merged.schema.field(column).type)
        )
        cell: tuple[str, ...] = ()
        if self._member is not None and merged.num_rows:
            cell = tuple(c for c in self._member.join_key if c not in table.partition_keys)
        layout = Layout(table.uuid, self._name, (), cell, indexed, cell)
        pieces = merged.last_versions(layout) if cell else merged.pieces()
        batches = (batch for piece in pieces for batch in piece.to_batches())
        rows = open_rows(pa.RecordBatchReader.from_batches(merged.schema, batches), self._name)
        return self._operation.write_table(rows, layout, "/".join(filter(None, [table.table, folder])))


class _Merged:
    """The rows of several files of a partition, in the types that they are stored in."""

    def __init__(self, operation: Operation, table: DatasetTable, keys: Sequence[str]) -> None:
        self._operation = operation
        self._store = operation.store
        self._keys = keys
        self.num_rows = 0
        schemas = []
        for key in keys:
            with _opened(operation, key) as file:
                schemas.append(file.schema_arrow)
                self.num_rows += file.metadata.num_rows
        names = [name for name in table.schema.names if name not in table.partition_keys]
        self.schema = pa.schema([(name, _type(name, table.schema, schemas)) for name in names])
        self._number = "file"
        while self._number in names:
            self._number += "_"

    def pieces(self) -> Iterator[pa.Table]:
        """Yield the rows of one file after the other."""
        for _, piece in self._numbered():
            yield piece

    def last_versions(self, layout: Layout) -> Iterator[pa.Table]:
        """Yield for each cell the row of the last file that has it, ascending by cell.

        Raises ``duplicate-cells`` and ``null-in-key`` for files that break the rules of a cube.
        """
        # A cell may occur once per file.
        inner = Layout(layout.uuid, layout.name, (), (*layout.cell, self._number), (), layout.cell)
        schema = self.schema.append(pa.field(self._number, pa.int64()))
        rows = open_rows(pa.RecordBatchReader.from_batches(schema, self._with_numbers(schema)), layout.name)
        held: pa.Table | None = None
        for piece in self._operation.ordered(rows, inner):
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
        for number, piece in self._numbered():
            numbers = pa.repeat(pa.scalar(number, pa.int64()), piece.num_rows)
            yield from piece.append_column(schema.field(self._number), numbers).to_batches()

    def _numbered(self) -> Iterator[tuple[int, pa.Table]]:
        for number, key in enumerate(self._keys):
            with _opened(self._operation, key) as file:
                for batch in file.iter_batches(FILE_BATCH_ROWS):
                    yield number, self._typed(batch, key)

    def _typed(self, batch: pa.RecordBatch, key: str) -> pa.Table:
        columns = []
        for name, type_ in zip(self.schema.names, self.schema.types, strict=True):
            try:
                columns.append(batch.column(name).cast(type_))
            except (pa.ArrowException, KeyError) as e:
                reason = "is missing" if isinstance(e, KeyError) else f"cannot be read as {type_}: {e}"
                raise FormatError(f"{key}: the column {name!r} {reason}", code="schema-mismatch") from None
        return pa.table(columns, schema=self.schema)


@contextlib.contextmanager
def _opened(operation: Operation, key: str) -> Iterator[pq.ParquetFile]:
    try:
        with contextlib.closing(open_key(operation.store, key)) as source, pq.ParquetFile(source) as file:
            yield file
    except KeyError:
        raise FormatError(
            f"The file {key!r} is missing.", code="missing-file", hint="CHECK lists such files."
        ) from None
    except (pa.ArrowException, OSError) as e:
        raise FormatError(f"{key}: {e}", code="corrupt-file", hint="Restore the file.") from None


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
