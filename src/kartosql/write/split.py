"""Rows -> checked and sorted partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import UsageError
from kartosql.formats.kartothek import naming
from kartosql.store.keys import key_problem
from kartosql.write import files
from kartosql.write.inputs import invalid_data
from kartosql.write.layout import Layout


def arranged(table: pa.Table, layout: Layout) -> pa.Table:
    """Return the rows in the order of ``layout``, in which cells are unique; raises ``duplicate-cells``."""
    if layout.cell and not layout.cells_stay_together:
        check_unique(sorted_by(table.select(list(layout.cell)), layout.cell), layout)
    table = sorted_by(table, layout.order)
    if layout.cell and layout.cells_stay_together:
        check_unique(table, layout)
    return table


def check_columns(schema: pa.Schema, layout: Layout) -> None:
    """Raise ``invalid-data`` for columns that are missing or cannot play their role."""
    checks: tuple[tuple[tuple[str, ...], Callable[[pa.DataType], bool], str], ...] = (
        (layout.partition_on, _is_partition_type, "partition"),
        (layout.cell, _is_ordered, "dimension"),
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
                    f"{column!r} is {type_}, which cannot serve as {what} column{also}",
                    "Cast it to text, an integer, a date or a timestamp"
                    + (", or list it in suppress_index_on." if also else "."),
                )
    if "partition" in layout.index_columns:
        raise invalid_data(layout.name, "a column named 'partition' cannot be indexed", "Rename it.")
    if set(schema.names) == set(layout.partition_on):
        raise invalid_data(layout.name, "all its columns are partition columns, so its files would be empty")


def _is_partition_type(type_: pa.DataType) -> bool:
    # Bytes are left out: the original reads them back from the path as text.
    return is_index_type(type_) and not pa.types.is_binary(type_)


def is_index_type(type_: pa.DataType) -> bool:
    """Return whether the values of a column of this storage type can be indexed."""
    t = pa.types
    number = t.is_boolean(type_) or t.is_integer(type_) or t.is_floating(type_)
    return bool(number or t.is_string(type_) or t.is_binary(type_) or t.is_date32(type_) or t.is_timestamp(type_))


def _is_ordered(type_: pa.DataType) -> bool:
    return is_index_type(type_) or bool(pa.types.is_decimal(type_) or pa.types.is_time(type_))


def check_nulls(table: pa.Table, layout: Layout, before: int | None = 0) -> None:
    """Raise ``null-in-key`` for NULL and NaN where values are needed.

    ``before`` rows stand before ``table``; None for rows that have no numbers.
    """
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


def check_unique(table: pa.Table, layout: Layout) -> None:
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
        f"a cell occurs again in {_rows(count)}, first at {at}",
        f"One row per combination of {', '.join(layout.cell)} is allowed: aggregate, or drop the repeats.",
        "duplicate-cells",
    )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def sorted_by(table: pa.Table, columns: tuple[str, ...]) -> pa.Table:
    """Return the rows ascending by ``columns``, text by code point; equal ones stay in their order."""
    if is_sorted(table, columns):
        return table
    order = pc.sort_indices(table.select(list(columns)), sort_keys=[(c, "ascending") for c in columns])
    return table.take(order)


def is_sorted(table: pa.Table, columns: tuple[str, ...]) -> bool:
    """Return whether no row is smaller in ``columns`` than the row before it."""
    count = table.num_rows - 1
    if count < 1 or not columns:
        return True
    ascends = None
    for name in reversed(columns):
        before, after = table[name].slice(0, count), table[name].slice(1)
        if ascends is None:
            ascends = pc.less_equal(before, after)
        else:
            ascends = pc.or_(pc.less(before, after), pc.and_(pc.equal(before, after), ascends))
    return bool(pc.all(ascends).as_py())


def changed(table: pa.Table, columns: tuple[str, ...]) -> pa.ChunkedArray:
    """Return for each row but the first whether ``columns`` differ from the row before."""
    found = pa.chunked_array([pa.repeat(False, max(0, table.num_rows - 1))])
    for name in columns if table.num_rows > 1 else ():
        column = table[name]
        found = pc.or_(found, pc.not_equal(column.slice(1), column.slice(0, table.num_rows - 1)))
    return found


def run_starts(table: pa.Table, columns: tuple[str, ...]) -> list[int]:
    """Return the first row of each run of rows that are equal in ``columns``."""
    if not table.num_rows:
        return []
    return [0, *(i + 1 for i in pc.indices_nonzero(changed(table, columns)).to_pylist())]


def folders(table: pa.Table, layout: Layout, starts: list[int]) -> list[tuple[str, ...]]:
    """Return the quoted ``column=value`` of each partition column in some rows; raises ``invalid-data``."""
    firsts = table.select(list(layout.partition_on)).take(pa.array(starts, pa.int64()))
    found: list[tuple[str, ...]] = [()] * len(starts)
    for name in layout.partition_on:
        try:
            texts = files.value_texts(firsts[name])
        except (ValueError, OverflowError) as e:
            raise invalid_data(layout.name, f"a value of {name!r} has no text form: {e}") from None
        if pa.types.is_floating(firsts[name].type):
            texts = ["0.0" if t == "-0.0" else t for t in texts]  # they are equal, so they are one partition
        column = naming.quote(name)
        found = [(*f, f"{column}={naming.quote(t)}") for f, t in zip(found, texts, strict=True)]
    return found


def check_label(label: str, layout: Layout) -> None:
    """Raise ``invalid-data`` for a partition whose file could have no name."""
    problem = key_problem(files.file_key(layout.uuid, label))
    if problem:
        raise invalid_data(
            layout.name,
            f"the partition {label[:120]!r} gives no usable file name: {problem}",
            "Partition by a column with shorter values.",
        )
