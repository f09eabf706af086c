"""Files -> inverted indices: which partitions hold which value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Set
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import FormatError
from kartosql.failures import reraise
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.schema import normalise
from kartosql.store import Store
from kartosql.write.files import open_key
from kartosql.write.pairs import one_zero, pairs_of, unique_values
from kartosql.write.ranges import encode, ranges

__all__ = [
    "VALUES_PER_ROW_GROUP",
    "flat",
    "index_key",
    "index_schema",
    "merge",
    "merged",
    "pairs_of",
    "pairs_of_files",
    "unique_values",
]

VALUES_PER_ROW_GROUP = 10_000


def index_key(uuid: str, column: str, created: str) -> str:
    """Return the storage key of the index of ``column`` written at the ISO time ``created``."""
    return f"{uuid}/indices/{naming.quote(column)}/{naming.quote(created)}{naming.INDEX_SUFFIX}"


def merge(old: pa.Table | None, removed: Set[str], added: pa.Table, column: str) -> pa.Table:
    """Return what ``merged`` yields as one table."""
    return pa.concat_tables([index_schema(added, column).empty_table(), *merged(old, removed, added, column)])


def index_schema(added: pa.Table, column: str) -> pa.Schema:
    """Return the schema of the index of ``column`` in memory, where labels are a dictionary."""
    labels = pa.list_(pa.field("item", pa.dictionary(pa.int32(), pa.string())))
    return pa.schema([(column, added.schema.field("value").type), ("partition", labels)])


def merged(old: pa.Table | None, removed: Set[str], added: pa.Table, column: str) -> Iterator[pa.Table]:
    """Yield the inverted index of ``column`` with the pairs of ``added`` and without the labels ``removed``.

    ``old`` is the index as it stands in its file, ``added`` a table of pairs; of both, what is in
    ``removed`` goes. There is one row per value, ascending: ``column`` and ``partition``, the list
    of labels, those of ``old`` first. The tables yielded have VALUES_PER_ROW_GROUP rows, but for
    the last one. Many pairs that ascend by value are never in memory all at once. Raises
    ``invalid-index`` for a foreign ``old``.
    """
    schema = index_schema(added, column)
    values = added["value"]
    labels, codes = _encoded(added["label"])
    if old is not None:
        before = flat(old, column, values.type)
        old_labels, old_codes = _encoded_runs(before["label"])
        both = pa.concat_arrays([old_labels, labels]).dictionary_encode()
        places = [both.indices.slice(0, len(old_labels)), both.indices.slice(len(old_labels))]
        found = [p.take(c) for p, c in zip(places, (old_codes, codes), strict=True)]
        labels, codes = both.dictionary, pa.chunked_array([c for f in found for c in _chunks(f)], pa.int32())
        values = pa.chunked_array([*before["value"].chunks, *values.chunks], values.type)
    if removed:
        gone = pc.is_in(labels, value_set=pa.array(sorted(removed), pa.string()))
        keep = pc.invert(gone.take(codes))
        values, codes = values.filter(keep), codes.filter(keep)
    yield from _lists(ranges(values, codes), labels, schema)


def _chunks(array: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return array.chunks if isinstance(array, pa.ChunkedArray) else [array]


def flat(old: pa.Table, column: str, value_type: pa.DataType) -> pa.Table:
    """Return the pairs of an index file; kartothek and plateau write other string and timestamp types."""
    try:
        pieces = []
        for batch in old.select([column, "partition"]).to_batches():
            lists = batch.column(1)
            values = one_zero(batch.column(0).cast(value_type)).take(pc.list_parent_indices(lists))
            pieces.append([values, pc.list_flatten(lists).cast(pa.string())])
        schema = pa.schema([("value", value_type), ("label", pa.string())])
        table = pa.concat_tables([schema.empty_table(), *(pa.table(p, schema=schema) for p in pieces)])
        return table.filter(pc.and_(pc.is_valid(table["value"]), pc.is_valid(table["label"])))
    except (pa.ArrowException, KeyError) as e:
        reraise(e)
        raise FormatError(
            f"The index of {column!r} cannot be brought forward: {e}",
            code="invalid-index",
            hint="Build the index again.",
        ) from None


def _encoded(labels: pa.ChunkedArray) -> tuple[pa.Array, pa.ChunkedArray]:
    """Return the different labels of pairs, and for each row which of them it is."""
    if not pa.types.is_dictionary(labels.type):
        return _encoded_runs(labels)
    if not labels.num_chunks:
        return pa.array([], pa.string()), pa.chunked_array([], pa.int32())
    labels = labels.unify_dictionaries()
    return labels.chunk(0).dictionary, pa.chunked_array([chunk.indices for chunk in labels.chunks])


def _encoded_runs(column: pa.ChunkedArray) -> tuple[pa.Array, pa.ChunkedArray]:
    """Return the different texts of a column, and for each row which of them it is; quick for runs of one text."""
    count = len(column)
    if count > 1:
        new = pc.not_equal(column.slice(1), column.slice(0, count - 1))
        ends = pc.add(pc.indices_nonzero(new).cast(pa.int64()), 1)
        if len(ends) < count // 4:
            texts, codes = encode(column.take(pa.concat_arrays([pa.array([0], pa.int64()), ends])))
            runs = pa.concat_arrays([ends, pa.array([count], pa.int64())])
            return texts, pa.chunked_array([pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(runs, codes))])
    texts, codes = encode(column)
    return texts, pa.chunked_array([codes])


def _lists(
    pairs: Iterable[tuple[pa.Array, pa.Array, pa.Array]], labels: pa.Array, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield values with their lists of labels in tables of one size.

    ``pairs`` are values, the number of labels of each, and these labels one after the other.
    """
    values, counts, codes = (pa.array([], t) for t in (schema.field(0).type, pa.int64(), pa.int32()))
    for given in chain(pairs, [None]):
        if given is not None:
            values, counts, codes = (
                pa.concat_arrays([a, b]) if len(a) else b for a, b in zip((values, counts, codes), given, strict=True)
            )
        while len(values) >= VALUES_PER_ROW_GROUP or (given is None and len(values)):
            some = counts.slice(0, VALUES_PER_ROW_GROUP)
            offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(some).cast(pa.int32())])
            end = offsets[-1].as_py()
            # Parquet takes a dictionary as it is, so it holds what the row group needs and no more.
            used = codes.slice(0, end).dictionary_encode()
            texts = pa.DictionaryArray.from_arrays(used.indices, labels.take(used.dictionary), safe=False)
            lists = pa.ListArray.from_arrays(offsets, texts)
            yield pa.table([values.slice(0, len(some)), lists], schema=schema)
            values, counts, codes = values.slice(len(some)), counts.slice(len(some)), codes.slice(end)


def pairs_of_files(store: Store, table: DatasetTable, labels: Iterable[str], column: str) -> pa.Table:
    """Return the pairs (``value``, ``label``) of ``column`` as it stands in the files of ``labels``.

    Raises ``missing-file``, ``corrupt-file`` and ``schema-mismatch`` for values that do not fit the column's type.
    """
    labels = tuple(labels)
    files = dict(zip(table.labels, table.files, strict=True))
    type_ = normalise(table.schema.field(column).type)

    def values(label: str) -> pa.Array:
        return values_of_file(store, files[label], column, type_)

    return pairs_of(type_, labels, list(store.map(values, labels)))


def values_of_file(store: Store, key: str, column: str, type_: pa.DataType) -> pa.Array:
    """Return the different values of a column of a file as ``type_``; none where the file lacks it."""
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
        reraise(e, f"Cannot read {key!r}")
        raise FormatError(f"{key}: {e}", code="corrupt-file", hint="Restore the file.") from None
