"""How datasets are laid out: roles of columns, what the datasets of a cube agree on, and rows in their order."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import StoreError, UsageError, failure_of
from kartosql.formats.arrays import constant
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube, invalid_cube, is_visible
from kartosql.formats.kartothek.metadata import merge_types, normalise
from kartosql.store import Store
from kartosql.store.keys import key_problem
from kartosql.text.types import type_name, type_names
from kartosql.write.inputs import Rows, gathered, invalid_data

MIN_MEMORY = 1 << 20
MAX_IN_MEMORY = MAX_RUN_BYTES = 1 << 30  # text columns of one Arrow array end at 2 GiB
BATCH_BYTES = 256 << 10
_COMPRESSION = "lz4" if pa.Codec.is_available("lz4") else None


@dataclass(frozen=True)
class Layout:
    """How the rows of one table of a dataset are checked, sorted, split and indexed.

    ``cell`` names the columns whose combination occurs once (empty: rows may repeat), and
    ``not_null`` the columns without NULLs.
    """

    uuid: str
    name: str
    partition_on: tuple[str, ...] = ()
    cell: tuple[str, ...] = ()
    index_columns: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    table: str = naming.DEFAULT_TABLE

    def file_key(self, label: str) -> str:
        """Return the storage key of the data file of a partition."""
        return f"{self.uuid}/{self.table}/{label}.parquet"

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that rows are sorted by: partition columns, then the others of the cell."""
        return tuple(dict.fromkeys(self.partition_on + self.cell))

    @property
    def cells_stay_together(self) -> bool:
        """Whether rows of the same cell always have the same partition."""
        return set(self.partition_on) <= set(self.cell)

    def role(self, column: str) -> str:
        """Return what ``column`` is in this dataset, for messages."""
        if column in self.partition_on:
            return "partition column"
        return "dimension column" if column in self.cell else "index column"


def columns_of(value: str | Iterable[str], what: str) -> tuple[str, ...]:
    """Return column names given as one text or a list; raises ``invalid-argument``."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
        raise UsageError(f"{what}: {value!r} is no list of different column names.")
    return tuple(str(n) for n in names)


def checked_metadata(metadata: Any, name: str) -> dict[str, Any]:
    """Return user metadata as a new dictionary; raises ``invalid-argument`` if JSON cannot hold it."""
    try:
        if isinstance(metadata, Mapping) and all(isinstance(k, str) for k in metadata):
            json.dumps(dict(metadata), allow_nan=False)
            return dict(metadata)
    except (TypeError, ValueError, RecursionError) as e:
        raise UsageError(f"The metadata of {name!r} cannot be written as JSON: {e}") from None
    raise UsageError(f"The metadata of {name!r} is no dictionary with text keys.")


def check_name(name: Any) -> str:
    """Return the name of a dataset; raises ``invalid-argument`` for other values."""
    if not isinstance(name, str) or not naming.is_dataset_uuid(name):
        raise UsageError(f"{name!r} is no legal dataset name.", hint="Use letters, digits, +, - and _.")
    return name


def check_folder(store: Store, uuid: str, tables: Iterable[str]) -> None:
    """Raise ``target-taken`` if the folder of a new dataset holds files that no write of its tables can have left.

    They would be hidden by the dataset, and CLEANUP would remove them.
    """
    folders = (*tables, "indices", "metadata")  # the last one of Iceberg, of a dataset that was published
    own = tuple(f"{uuid}/{name}/" for name in folders)
    for key in store.list_below(f"{uuid}/"):
        if not key.startswith(own) and not key[len(uuid) + 1 :].startswith((".", "_")):
            raise UsageError(
                f"The folder {uuid!r} of the store holds files that belong to no dataset, such as {key!r}.",
                code="target-taken",
                hint="Choose another name, or move them away.",
            )


def check_member_name(name: Any) -> str:
    """Return the name of a dataset of a cube; raises ``invalid-argument`` for other values."""
    if naming.CUBE_SEPARATOR in check_name(name):
        raise UsageError(f"{name!r} is no legal dataset name.", hint="Use letters, digits, +, - and _, but not '++'.")
    return str(name)


def options_of(options: Any, what: str, names: Collection[str]) -> Mapping[str, Any]:
    """Return an argument that is given by dataset; raises ``invalid-argument`` for datasets not among ``names``."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UsageError(f"{what}: expected a dictionary by dataset, got {type(options).__name__}.")
    for name in options:
        if name not in names:
            raise UsageError(
                f"{what}: {name!r} is none of the datasets written.", hint=f"Datasets: {', '.join(names)}."
            )
    return options


def flags(cube: Cube, name: str) -> dict[str, Any]:
    """Return the metadata by which the original finds the dataset ``name`` as a member of ``cube``."""
    return {
        "ktk_cube_dimension_columns": list(cube.dimension_columns),
        "ktk_cube_is_seed": name == cube.seed_dataset,
        "ktk_cube_partition_columns": list(cube.partition_columns),
        "ktk_cube_suppress_index_on": sorted(cube.suppress_index_on),
    }


def member_layout(
    cube: Cube, name: str, schema: pa.Schema, keys: tuple[str, ...], metadata: Mapping[str, Any]
) -> Layout:
    """Return how rows of ``schema`` are laid out as the new dataset ``name``, partitioned by ``keys``.

    Raises ``invalid-cube``, ``invalid-data`` and ``invalid-argument``.
    """
    is_seed, columns = name == cube.seed_dataset, schema.names
    if is_seed and keys != cube.partition_columns:
        raise invalid_cube(
            f"partition_on: the seed {name!r} is always partitioned by {', '.join(cube.partition_columns)}."
        )
    missing = [c for c in keys if c not in columns]
    if missing:
        raise invalid_data(
            name,
            f"the partition column {missing[0]!r} is missing",
            None if is_seed else f"Add it, or say how the dataset is split: partition_on={{{name!r}: []}}.",
        )
    dimensions = tuple(c for c in cube.dimension_columns if c in columns)
    if is_seed and dimensions != cube.dimension_columns:
        lost = next(c for c in cube.dimension_columns if c not in columns)
        raise invalid_data(name, f"the dimension column {lost!r} is missing", "The seed has all dimensions.")
    if not dimensions:
        raise invalid_data(name, f"it has none of the dimension columns {', '.join(cube.dimension_columns)}")
    unlisted = [c for c in cube.partition_columns if c in columns and c not in keys]
    if unlisted:
        raise invalid_data(
            name,
            f"{unlisted[0]!r} is a partition column of the cube, but not in partition_on of this dataset",
            "List it there, or drop the column.",
        )
    indexed = wanted_indices(cube, name, columns, keys)
    return appended_layout(cube, name, columns, keys, indexed, metadata)


def wanted_indices(cube: Cube, name: str, columns: Iterable[str], keys: Collection[str]) -> tuple[str, ...]:
    """Return the columns that have an index in the dataset ``name`` by the rules of the cube."""
    wanted = cube.index_columns
    if name == cube.seed_dataset:
        wanted |= set(cube.dimension_columns) - cube.suppress_index_on
    return tuple(c for c in columns if c in wanted and c not in keys)


def appended_layout(
    cube: Cube,
    name: str,
    columns: Collection[str],
    keys: tuple[str, ...],
    indexed: Iterable[str],
    metadata: Mapping[str, Any],
) -> Layout:
    """Return how rows with ``columns`` are laid out in a dataset that is partitioned and indexed like this."""
    dimensions = tuple(c for c in cube.dimension_columns if c in columns)
    shared = tuple(c for c in cube.partition_columns if c in columns)
    indexed = tuple(indexed)
    # As the original has it for what a cube asks for; columns that were indexed later may hold NULL.
    asked = [] if cube.is_discovered else [c for c in indexed if c in cube.index_columns]
    return Layout(
        uuid=cube.uuid(name),
        name=name,
        partition_on=keys,
        cell=shared + dimensions,
        index_columns=indexed,
        not_null=tuple(dict.fromkeys([*keys, *dimensions, *asked])),
        metadata=checked_metadata(metadata, name) | flags(cube, name),
    )


def check_together(cube: Cube, schemas: Mapping[str, pa.Schema]) -> None:
    """Check that datasets make up a cube; an error names that of two datasets which comes later.

    Raises ``invalid-data`` for a payload column in two datasets and for types that differ.
    """
    shared = {*cube.dimension_columns, *cube.partition_columns}
    seen: dict[str, tuple[str, pa.DataType]] = {}
    for name, schema in schemas.items():
        for column in schema:
            type_ = normalise(column.type)
            if column.name not in seen:
                seen[column.name] = (name, type_)
                continue
            other, known = seen[column.name]
            if is_visible(column.name) and column.name not in shared:
                raise invalid_data(
                    name, f"the payload column {column.name!r} is also in {other!r}", "Rename one of the two."
                )
            merged = merge_types(known, type_)
            if merged is None:
                given, wanted = type_names(type_, known)
                message = f"{column.name!r} is {given}, but {wanted} in {other!r}"
                raise invalid_data(name, message, "Cast one of the two.")
            seen[column.name] = (other, merged)


def arranged(table: pa.Table, layout: Layout) -> pa.Table:
    """Return the rows in the order of ``layout``, in which cells are unique; raises ``duplicate-cells``."""
    if layout.cell and not layout.cells_stay_together:
        _check_unique(_sorted_by(table.select(list(layout.cell)), layout.cell), layout)
    table = _sorted_by(table, layout.order)
    if layout.cell and layout.cells_stay_together:
        _check_unique(table, layout)
    return table


def check_columns(schema: pa.Schema, layout: Layout) -> None:
    """Raise ``invalid-data`` for columns that are missing or cannot play their role."""
    checks: tuple[tuple[tuple[str, ...], Callable[[pa.DataType], Any], str], ...] = (
        # Bytes are left out: the original reads them back from the path as text.
        (layout.partition_on, lambda t: is_index_type(t) and not pa.types.is_binary(t), "partition"),
        (layout.cell, lambda t: is_index_type(t) or pa.types.is_decimal(t) or pa.types.is_time(t), "dimension"),
        (layout.index_columns, is_index_type, "index"),
    )
    for columns, fits, what in checks:
        for column in columns:
            if column not in schema.names:
                raise invalid_data(layout.name, f"the {what} column {column!r} is missing")
            type_ = schema.field(column).type
            if not fits(type_) and not (pa.types.is_null(type_) and column in layout.not_null):
                also = " (dimensions of the seed are indexed)" if what == "index" and column in layout.cell else ""
                raise invalid_data(
                    layout.name,
                    f"{column!r} is {type_name(type_)}, which cannot serve as {what} column{also}",
                    "Cast it to text, an integer, a date or a timestamp"
                    + (", or list it in suppress_index_on." if also else "."),
                )
    if "partition" in layout.index_columns:
        raise invalid_data(layout.name, "a column named 'partition' cannot be indexed", "Rename it.")
    if set(schema.names) == set(layout.partition_on):
        raise invalid_data(layout.name, "all its columns are partition columns, so its files would be empty")


def is_index_type(type_: pa.DataType) -> bool:
    """Return whether the values of a column of this storage type can be indexed."""
    t = pa.types
    number = t.is_boolean(type_) or t.is_integer(type_) or t.is_floating(type_)
    return bool(number or t.is_string(type_) or t.is_binary(type_) or t.is_date32(type_) or t.is_timestamp(type_))


def _check_nulls(table: pa.Table, layout: Layout, before: int | None) -> None:
    """Raise ``null-in-key`` for NULL and NaN where values are needed; ``before`` rows come before ``table``."""
    for name in dict.fromkeys(layout.partition_on + layout.cell + layout.index_columns):
        column = table[name]
        what = "NULL"
        empty = column.is_null()
        if name not in layout.not_null or not column.null_count:
            if not pa.types.is_floating(column.type):
                continue
            what = "NaN"
            empty = pc.fill_null(pc.is_nan(column), False)
        row = pc.index(empty, True).as_py()
        if row >= 0:
            raise invalid_data(
                layout.name,
                f"the {layout.role(name)} {name!r} holds {what}"
                + ("" if before is None else f", first in row {row + before:,}"),
                "Drop these rows or fill in a value such as 'unknown'.",
                "null-in-key",
            )


def _check_unique(table: pa.Table, layout: Layout) -> None:
    """Raise ``duplicate-cells`` if a cell occurs in two neighbouring rows."""
    differs = changed(table, layout.cell)
    count = len(differs) - (pc.sum(differs).as_py() or 0)
    if count:
        row = table.select(list(layout.cell)).slice(pc.index(differs, False).as_py(), 1)
        raise duplicate_cells(layout, count, {c: row[c][0] for c in layout.cell})


def duplicate_cells(layout: Layout, count: int, cell: Mapping[str, Any]) -> UsageError:
    """Return the error for ``count`` rows whose cell another row has already, of which ``cell`` is the first."""
    at = ", ".join(f"{c} = {str(value)[:60]}" for c, value in cell.items())
    return invalid_data(
        layout.name,
        f"a cell occurs again in {count:,} row{'' if count == 1 else 's'}, first at {at}",
        f"One row per combination of {', '.join(layout.cell)} is allowed: aggregate, or drop the repeats.",
        "duplicate-cells",
    )


def _sorted_by(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows ascending by ``columns``, text by code point; equal ones stay in their order."""
    if _is_sorted(table, columns):
        return table
    order = pc.sort_indices(table.select(list(columns)), sort_keys=[(c, "ascending") for c in columns])
    return table.take(order)


def _is_sorted(table: pa.Table, columns: Sequence[str]) -> bool:
    """Return whether no row is smaller in ``columns`` than the row before it."""
    count = table.num_rows - 1
    if count < 1 or not columns:
        return True
    pairs = [(table[name].slice(0, count), table[name].slice(1)) for name in columns]
    return bool(pc.all(_are_before(pairs, pc.less_equal)).as_py())


def _are_before(pairs: Sequence[tuple[Any, Any]], compare: Callable[[Any, Any], Any]) -> Any:
    """Return where rows come before others, by pairs of columns, the last ones given by ``compare``."""
    found = None
    for left, right in reversed(pairs):
        if found is None:
            found = compare(left, right)
        else:
            found = pc.or_(pc.less(left, right), pc.and_(pc.equal(left, right), found))
    return found


def changed(table: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    """Return for each row but the first whether ``columns`` differ from the row before."""
    found = pa.chunked_array([pa.repeat(constant(False, pa.bool_()), max(0, table.num_rows - 1))])  # no pandas
    for name in columns if table.num_rows > 1 else ():
        column = table[name]
        found = pc.or_(found, pc.not_equal(column.slice(1), column.slice(0, table.num_rows - 1)))
    return found


def run_starts(table: pa.Table, columns: Sequence[str]) -> list[int]:
    """Return the first row of each run of rows that are equal in ``columns``."""
    if not table.num_rows:
        return []
    return [0, *(i + 1 for i in pc.indices_nonzero(changed(table, columns)).to_pylist())]


def folders(table: pa.Table, layout: Layout, starts: list[int]) -> list[tuple[str, ...]]:
    """Return the quoted ``column=value`` of each partition column in some rows; raises ``invalid-data``."""
    firsts = table.select(list(layout.partition_on)).take(pa.array(starts, pa.int64()))
    found: list[tuple[str, ...]] = [()] * len(starts)
    for name in layout.partition_on:
        column = firsts[name]
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.timestamp("us", "UTC"))
        try:
            values = column.to_pylist()
            texts = [v.isoformat(sep=" ") if isinstance(v, dt.datetime) else str(v) for v in values]
        except (ValueError, OverflowError) as e:
            raise invalid_data(layout.name, f"a value of {name!r} has no text form: {e}") from None
        if pa.types.is_floating(column.type):
            texts = ["0.0" if t == "-0.0" else t for t in texts]  # they are equal, so they are one partition
        quoted = naming.quote(name)
        found = [(*f, f"{quoted}={naming.quote(t)}") for f, t in zip(found, texts, strict=True)]
    return found


def check_label(label: str, layout: Layout) -> None:
    """Raise ``invalid-data`` for a partition whose file could have no name."""
    problem = key_problem(replace(layout, table=naming.DEFAULT_TABLE).file_key(label))
    if problem:
        raise invalid_data(
            layout.name,
            f"the partition {label[:120]!r} gives no usable file name: {problem}",
            "Partition by a column with shorter values.",
        )


def ordered(rows: Rows, layout: Layout, sorter: SpillingSorter | None, memory: int) -> Generator[pa.Table]:
    """Yield the rows, checked and in the order of ``layout``, in pieces.

    What takes more than a third of ``memory`` and is in another order goes through ``sorter``.
    Raises ``invalid-data``, ``null-in-key`` and ``duplicate-cells``.
    """
    pieces = _checked(rows, layout)
    if not layout.order or _is_in_order(rows, layout):
        yield from pieces
        return
    limit = min(max(memory // 3, MIN_MEMORY), MAX_IN_MEMORY)
    head: list[pa.Table] = []
    size = 0
    for piece in pieces:
        head.append(piece)
        size += piece.nbytes
        if sorter is not None and size > limit:
            yield from _sorted_outside(chain(_drained(head), pieces), rows.schema, layout, sorter, memory)
            return
    if head:
        yield arranged(pa.concat_tables(_drained(head)).combine_chunks(), layout)


def in_order(rows: Rows, layout: Layout) -> Generator[pa.Table]:
    """Yield rows that come in the order of ``layout`` already, checked, one piece at a time.

    Cells are unique in what is yielded where rows of a cell stay together. Raises
    ``invalid-data``, ``null-in-key`` and ``duplicate-cells``.
    """

    def check(keys: pa.Table) -> None:
        if not _is_sorted(keys, layout.order):
            raise AssertionError(f"rows of {layout.name!r} are not in the order of {layout.order}")
        if layout.cell and layout.cells_stay_together:
            _check_unique(keys, layout)

    yield from _with_neighbours(_checked(rows, layout, numbered=False), layout.order, check)


def _is_in_order(rows: Rows, layout: Layout) -> bool:
    """Return whether rows in memory need no sorting; raises ``duplicate-cells`` if they do not."""
    if layout.cell and not layout.cells_stay_together:
        return False
    keys = rows.columns(layout.order)
    if keys is None or any(c.null_count for c in keys.columns) or not _is_sorted(keys, layout.order):
        return False
    if layout.cell:
        _check_unique(keys, layout)
    return True


def _checked(rows: Rows, layout: Layout, numbered: bool = True) -> Iterator[pa.Table]:
    count = 0
    for piece in rows.pieces():
        _check_nulls(piece, layout, count if numbered else None)
        count += piece.num_rows
        yield piece


def _drained(pieces: list[pa.Table]) -> Iterator[pa.Table]:
    # Each is freed as soon as it was read.
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def _sorted_outside(
    pieces: Iterator[pa.Table], schema: pa.Schema, layout: Layout, sorter: SpillingSorter, memory: int
) -> Iterator[pa.Table]:
    with contextlib.ExitStack() as stack:

        def by(columns: Sequence[str], share: int) -> Iterator[pa.Table]:
            return stack.enter_context(contextlib.closing(sorter.sort(pieces, schema, columns, share)))

        if layout.cell and not layout.cells_stay_together:
            # Rows of one cell may go to different partitions, so they are neighbours only in an order of their own.
            pieces = _unique(by(layout.cell, memory // 4), layout)
            yield from by(layout.order, memory // 4)
        elif layout.cell:
            yield from _unique(by(layout.order, memory // 2), layout)
        else:
            yield from by(layout.order, memory // 2)


def _unique(pieces: Iterator[pa.Table], layout: Layout) -> Iterator[pa.Table]:
    return _with_neighbours(pieces, layout.cell, partial(_check_unique, layout=layout))


def _with_neighbours(
    pieces: Iterable[pa.Table], columns: Sequence[str], check: Callable[[pa.Table], None]
) -> Iterator[pa.Table]:
    """Yield ``pieces`` after a ``check`` of some columns of each, with the last row before it."""
    last = None
    for piece in pieces:
        keys = piece.select(list(columns))
        check(keys if last is None else pa.concat_tables([last, keys]))
        last = keys.take([keys.num_rows - 1])
        yield piece


# -- sorting of what is larger than memory ---------------------------------------------------------------


# Returns how many of some sorted rows stand before a place in the order of all rows.
_Bound = Callable[[pa.Table], int]


@dataclass(frozen=True)
class SpillingSorter:
    """Sorts streams larger than memory, by way of files in ``temp_directory`` (default: that of the system).

    Sorted runs are written one after the other. Samples of their keys cut the order of all rows
    into ranges that fit into memory; each range is then read from all runs, and sorted. So every
    row is written once and read once, however many there are.
    """

    temp_directory: str | None = None

    def sort(
        self, pieces: Iterable[pa.Table], schema: pa.Schema, columns: Sequence[str], memory: int
    ) -> Generator[pa.Table]:
        """Yield the rows ascending by ``columns``, text by code point, equal ones in the order given.

        The tables yielded are not empty. Takes about ``memory`` bytes; closing the iterator
        removes the files. Raises ``disk-full`` and ``store-failed``; errors of ``pieces`` pass.
        """
        with contextlib.closing(self.runs(columns)) as runs:
            for some in gathered(pieces, min(memory // 4, MAX_RUN_BYTES)):
                runs.add(pa.concat_tables(_drained(some)).combine_chunks())
            yield from runs.merged(memory // 6)

    def runs(self, columns: Sequence[str]) -> SortedRuns:
        """Return a place for tables that are handed in one by one; raises ``disk-full`` and ``store-failed``."""
        with _disk():
            return SortedRuns(tempfile.mkdtemp(prefix="kartosql-sort-", dir=self.temp_directory), columns)


class SortedRuns:
    """Tables of one schema in a folder of their own, each sorted by ``columns``."""

    def __init__(self, folder: str, columns: Sequence[str]) -> None:
        self._folder, self._columns = folder, list(columns)
        self._runs: list[_Run] = []

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, table: pa.Table) -> None:
        """Sort a table and write it; raises ``disk-full`` and ``store-failed``."""
        path = os.path.join(self._folder, f"{len(self._runs)}.arrow")
        self._runs.append(_Run(path, _sorted_by(table, self._columns), self._columns))

    def merged(self, limit: int) -> Iterator[pa.Table]:
        """Yield all rows in order, in tables of about ``limit`` bytes."""
        for bound, all_equal in [*self._bounds(min(limit, MAX_RUN_BYTES)), (None, False)]:
            if all_equal:
                for run in self._runs:
                    yield from run.until(bound)
                continue
            found = [piece for run in self._runs for piece in run.until(bound)]
            if found:
                table = pa.concat_tables(found).combine_chunks()
                del found
                yield _sorted_by(table, self._columns)
                del table

    def _bounds(self, limit: int) -> Iterator[tuple[_Bound, bool]]:
        """Yield the ends of ranges of about ``limit`` bytes, and whether all rows of a range have the same key."""
        if not self._runs:
            return
        firsts = _sorted_by(pa.concat_tables([run.firsts for run in self._runs]), self._columns)
        average = sum(run.nbytes for run in self._runs) / firsts.num_rows
        each = max(1, int(limit / average))
        last = None
        for at in range(each, firsts.num_rows, each):
            key = firsts.slice(at, 1)
            if last is None or not key.equals(last):
                yield partial(_count_before, key, pc.less), False
                last, closed = key, False
            elif not closed:
                # One key fills a range of its own, which may be of any size and is in order already.
                yield partial(_count_before, key, pc.less_equal), True
                closed = True

    def mapped(self, pieces: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
        """Return ``pieces`` as one table that stays on disk, also when the files are removed."""
        path = os.path.join(self._folder, "mapped.arrow")
        with _disk():
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for piece in pieces:
                    writer.write_table(piece)
            # Pages of a mapped file take no memory that the system could not have back.
            with pa.memory_map(path) as source:
                return pa.ipc.open_file(source).read_all()


def _count_before(key: pa.Table, compare: Callable[[Any, Any], Any], rows: pa.Table) -> int:
    before = _are_before([(rows[name], key[name][0]) for name in key.column_names], compare)
    return int(pc.sum(before).as_py() or 0)


class _Run:
    """Sorted rows in a file, as batches of which the first keys are known; read from front to back."""

    def __init__(self, path: str, table: pa.Table, columns: Sequence[str]) -> None:
        self.nbytes = table.nbytes
        rows = max(1, table.num_rows * BATCH_BYTES // max(1, table.nbytes))
        self.firsts = table.select(list(columns)).take(pa.array(range(0, table.num_rows, rows), pa.int64()))
        self._path = path
        self._next = 0
        self._rest: pa.Table | None = None
        options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
        with _disk(), pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows)

    def until(self, bound: _Bound | None) -> Iterator[pa.Table]:
        """Yield the rows before ``bound`` that were not yielded yet, None for all."""
        count = self.firsts.num_rows
        stop = count if bound is None else bound(self.firsts)
        if self._rest is not None:
            # Rows of a batch that was read before; if a later one begins before the bound, all of them do.
            yield from self._cut(self._rest, bound if stop <= self._next else None)
        if self._next < stop:
            # Opened anew for each range: there may be more runs than files that may be open.
            with _disk(), pa.OSFile(self._path) as source, pa.ipc.open_file(source) as reader:
                while self._next < stop:
                    batch = pa.Table.from_batches([reader.get_batch(self._next)])
                    self._next += 1
                    yield from self._cut(batch, bound if self._next == stop else None)

    def _cut(self, batch: pa.Table, bound: _Bound | None) -> Iterator[pa.Table]:
        end = batch.num_rows if bound is None else bound(batch)
        self._rest = batch.slice(end) if end < batch.num_rows else None
        if end:
            yield batch.slice(0, end)


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as e:
        found = failure_of(e)
        raise StoreError(
            f"Rows cannot be written to the temporary folder while they are sorted: {e}",
            code=found.code if found is not None else None,
            hint="Set temp_directory to a folder with space for them.",
        ) from e
