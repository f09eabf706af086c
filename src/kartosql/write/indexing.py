"""Files -> inverted indices: which partitions hold which value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence, Set

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import FormatError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.schema import normalise
from kartosql.store import Store
from kartosql.write.files import open_key

VALUES_PER_ROW_GROUP = 10_000
PAIRS_PER_PIECE = 1 << 20


def index_key(uuid: str, column: str, created: str) -> str:
    """Return the storage key of the index of ``column`` written at the ISO time ``created``."""
    return f"{uuid}/indices/{naming.quote(column)}/{naming.quote(created)}{naming.INDEX_SUFFIX}"


def unique_values(column: pa.ChunkedArray, type_: pa.DataType | None = None) -> pa.Array:
    """Return the different values of a column of a data file in the type of its index, without NULL."""
    values = pc.unique(column).drop_null()
    values = values.cast(normalise(values.type) if type_ is None else type_)
    if pa.types.is_floating(values.type):
        return pc.unique(_one_zero(values))
    # Files are read and written by several threads, and runs in order are merged in a third of the time.
    return values.take(pc.array_sort_indices(values)) if _is_number(values.type) else values


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_temporal(type_))


def _one_zero(values: pa.Array) -> pa.Array:
    # Hashing tells 0.0 from -0.0, which are one value of the index.
    return pc.add(values, pa.scalar(0.0, values.type)) if pa.types.is_floating(values.type) else values


def pairs_of(type_: pa.DataType, labels: Sequence[str], values: Sequence[pa.Array]) -> pa.Table:
    """Return the pairs (``value``, ``label``) of a column of type ``type_``; ``values`` are those of each label."""
    ends, parts, total = [], [], 0
    for part, array in enumerate(values):
        if len(array):
            total += len(array)
            ends.append(total)
            parts.append(part)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int64()), pa.array(parts, pa.int32()))
    codes = pc.run_end_decode(runs) if total else pa.array([], pa.int32())
    texts = pa.array(labels, pa.string())
    # Taken in pieces, as one array of text ends at 2 GiB.
    found = [texts.take(codes.slice(at, PAIRS_PER_PIECE)) for at in range(0, total, PAIRS_PER_PIECE)]
    value_type = normalise(type_)
    joined = pa.table({"value": pa.chunked_array(values, value_type)}).combine_chunks()
    return joined.append_column("label", pa.chunked_array(found, pa.string()))


def merge(old: pa.Table | None, removed: Set[str], added: pa.Table, column: str) -> pa.Table:
    """Return the inverted index of ``column`` with the pairs of ``added`` and without the labels ``removed``.

    ``old`` is the index as it stands in its file, ``added`` a table of pairs; of both, what is in
    ``removed`` goes. The result has one row per value, ascending: ``column`` and ``partition``,
    the list of labels, those of ``old`` first. Raises ``invalid-index`` for a foreign ``old``.
    """
    value_type = added.schema.field("value").type
    pairs = added.select(["value", "label"])
    if old is not None:
        pairs = pa.concat_tables([flat(old, column, value_type), pairs])
    labels, codes = _encoded_runs(pairs["label"])
    values = pairs["value"]
    if removed:
        gone = pc.is_in(labels, value_set=pa.array(removed, pa.string()))
        keep = pc.invert(gone.take(codes))
        codes, values = codes.filter(keep), values.filter(keep)
    values, ranks, places = _ranked(values)
    # One number per pair: by value, then by label.
    width = pa.scalar(max(1, len(labels)), pa.int64())
    keys = pc.add(pc.multiply(ranks, width), codes.take(places))
    if not _ascends(keys):
        keys = pc.unique(keys)  # an older index may hold a pair twice; the order stays
    ranks = pc.divide(keys, width)
    return _lists(column, values, ranks, labels, pc.subtract(keys, pc.multiply(ranks, width)))


def flat(old: pa.Table, column: str, value_type: pa.DataType) -> pa.Table:
    """Return the pairs of an index file; kartothek and plateau write other string and timestamp types."""
    try:
        pieces = []
        for batch in old.select([column, "partition"]).to_batches():
            lists = batch.column(1)
            values = _one_zero(batch.column(0).cast(value_type)).take(pc.list_parent_indices(lists))
            pieces.append([values, pc.list_flatten(lists).cast(pa.string())])
        schema = pa.schema([("value", value_type), ("label", pa.string())])
        table = pa.concat_tables([schema.empty_table(), *(pa.table(p, schema=schema) for p in pieces)])
        return table.filter(pc.and_(pc.is_valid(table["value"]), pc.is_valid(table["label"])))
    except (pa.ArrowException, KeyError) as e:
        raise FormatError(
            f"The index of {column!r} cannot be brought forward: {e}",
            code="invalid-index",
            hint="Build the index again.",
        ) from None


def _encoded_runs(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return the different texts of a column, and for each row which of them it is; quick for runs of one text."""
    count = len(column)
    if count > 1:
        new = pc.not_equal(column.slice(1), column.slice(0, count - 1))
        ends = pc.add(pc.indices_nonzero(new).cast(pa.int64()), 1)
        if len(ends) < count // 4:
            texts, codes = _encoded(column.take(pa.concat_arrays([pa.array([0], pa.int64()), ends])))
            runs = pa.concat_arrays([ends, pa.array([count], pa.int64())])
            return texts, pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(runs, codes))
    return _encoded(column)


def _encoded(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return the different values of a column, and for each row which of them it is."""
    # In one chunk, unless text is too long for it: each chunk would bring all values along.
    encoded = pa.table([column], names=["c"]).combine_chunks()["c"].dictionary_encode().unify_dictionaries()
    if not encoded.num_chunks:
        return pa.array([], column.type), pa.array([], pa.int64())
    return encoded.chunk(0).dictionary, pa.concat_arrays([c.indices for c in encoded.chunks]).cast(pa.int64())


def _ranked(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the different values ascending, the rank of each row's value ascending, and the rows in that order."""
    if _is_number(column.type):
        rows = column.combine_chunks()
        places = pc.array_sort_indices(rows)
        rows = rows.take(places)
        new = pc.not_equal(rows.slice(1), rows.slice(0, max(0, len(rows) - 1)))
        ranks = pc.cumulative_sum(new.cast(pa.int64()))
        first = pa.array([0][: len(rows)], pa.int64())
        starts = pa.concat_arrays([first, pc.add(pc.indices_nonzero(new).cast(pa.int64()), 1)])
        return rows.take(starts), pa.concat_arrays([first, ranks]), places
    values, numbers = _encoded(column)
    ranks = pc.subtract(pc.rank(values, "ascending", tiebreaker="first").cast(pa.int64()), 1).take(numbers)
    places = pc.array_sort_indices(ranks)
    return values.take(pc.sort_indices(values)), ranks.take(places), places


def _ascends(keys: pa.Array) -> bool:
    return len(keys) < 2 or bool(pc.all(pc.greater(keys.slice(1), keys.slice(0, len(keys) - 1))).as_py())


def _lists(column: str, values: pa.Array, ranks: pa.Array, labels: pa.Array, codes: pa.Array) -> pa.Table:
    """Return the index file's table; in pieces, as all labels together may be too long for one array."""
    count = len(ranks)
    schema = pa.schema([(column, values.type), ("partition", pa.list_(pa.field("item", pa.string())))])
    if not count:
        return schema.empty_table()
    new = pc.not_equal(ranks.slice(1), ranks.slice(0, count - 1))
    starts = pa.concat_arrays([pa.array([0], pa.int64()), pc.add(pc.indices_nonzero(new).cast(pa.int64()), 1)])
    pieces = []
    for at in range(0, len(starts), VALUES_PER_ROW_GROUP):
        offsets = starts.slice(at, VALUES_PER_ROW_GROUP + 1)
        if at + VALUES_PER_ROW_GROUP >= len(starts):
            offsets = pa.concat_arrays([offsets, pa.array([count], pa.int64())])
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        texts = labels.take(codes.slice(first, last - first))
        lists = pa.ListArray.from_arrays(pc.subtract(offsets, first).cast(pa.int32()), texts)
        pieces.append(pa.table([values.take(ranks.take(offsets.slice(0, len(offsets) - 1))), lists], schema=schema))
    return pa.concat_tables(pieces)


def pairs_of_files(store: Store, table: DatasetTable, labels: Iterable[str], column: str) -> pa.Table:
    """Return the pairs (``value``, ``label``) of ``column`` as it stands in the files of ``labels``.

    Raises ``missing-file``, ``corrupt-file`` and ``schema-mismatch`` for values that do not fit the column's type.
    """
    labels = tuple(labels)
    files = dict(zip(table.labels, table.files, strict=True))
    type_ = normalise(table.schema.field(column).type)

    def values(label: str) -> pa.Array:
        return _values_of_file(store, files[label], column, type_)

    return pairs_of(type_, labels, list(store.map(values, labels)))


def _values_of_file(store: Store, key: str, column: str, type_: pa.DataType) -> pa.Array:
    try:
        with contextlib.closing(open_key(store, key)) as source, pq.ParquetFile(source, pre_buffer=True) as file:
            if column not in file.schema_arrow.names:
                return pa.array([], type_)
            found = [unique_values(file.read_row_group(i, [column])[column], type_) for i in range(file.num_row_groups)]
        return pc.unique(pa.chunked_array(found, type_))
    except (KeyError, FileNotFoundError):
        raise FormatError(
            f"{key}: the file is missing", code="missing-file", hint="Restore the file, or remove its partition."
        ) from None
    except pa.ArrowInvalid as e:
        code = "corrupt-file" if "Parquet" in str(e) else "schema-mismatch"
        raise FormatError(f"{key}: the column {column!r} cannot be read as {type_}: {e}", code=code) from None
    except (pa.ArrowException, OSError) as e:
        raise FormatError(f"{key}: {e}", code="corrupt-file", hint="Restore the file.") from None
