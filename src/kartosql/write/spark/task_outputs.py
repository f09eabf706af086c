"""What tasks write for the driver: pairs of values and files, which it merges into indices, and other tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.store import Store
from kartosql.write import files
from kartosql.write.files import WriteOptions
from kartosql.write.indexing import Postings

PAIRS_PER_ROW_GROUP = 65_536

# -- on executors ------------------------------------------------------------------------------------


def put_pairs(store: Store, token: str, found: Mapping[str, pa.Table], labels: Sequence[str]) -> dict[str, str]:
    """Write the pairs of each index for the driver, and return the keys by column."""
    keys = {}
    for column, pairs in found.items():
        if pairs.num_rows:
            table = _numbered(pairs, labels)
            keys[column] = put_tables(store, token, table.schema, [table], PAIRS_PER_ROW_GROUP)
    return keys


def put_tables(store: Store, token: str, schema: pa.Schema, tables: Iterable[pa.Table], row_group_rows: int) -> str:
    """Write tables that only the driver reads, and only once, and return their key; each begins a row group."""
    key = f"{token}-{uuid.uuid4().hex}"
    with store.output(key, sync_folders=False, sync_content=False) as out:
        files.write_parquet(files.Counted(out), schema, tables, row_group_rows)
    return key


def _numbered(pairs: pa.Table, labels: Sequence[str]) -> pa.Table:
    """Return pairs with the place of each label among ``labels``."""
    known = {label: place for place, label in enumerate(labels)}
    chunks = []
    for chunk in pairs["label"].chunks:
        places = pa.array([known[label] for label in chunk.dictionary.to_pylist()], pa.int32())
        chunks.append(places.take(chunk.indices))
    return pa.table({"value": pairs["value"], "file": pa.chunked_array(chunks, pa.int32())})


# -- on the driver -----------------------------------------------------------------------------------


def pieces(store: Store, key: str, size: int) -> Iterator[pa.Table]:
    """Yield the table that a task has put into the store, in pieces of about ``size`` bytes."""
    with files.opened_parquet(store, key) as file:
        about = file.metadata
        whole = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
        for batch in file.iter_batches(max(1, size * about.num_rows // max(1, whole))):
            yield pa.Table.from_batches([batch])


def collected(
    store: Store,
    answers: Sequence[Mapping[str, Any]],
    types: Mapping[str, pa.DataType],
    labels: Sequence[str],
    options: WriteOptions,
) -> dict[str, pa.Table]:
    """Return the pairs of each index that tasks have put into the store; they take no more than its ``memory`` here.

    ``types`` are those of the index columns; ``labels`` are all that ``answers`` tell, in any order.
    """
    limit = options.memory // 8 // max(1, len(types))
    place_of = {label: place for place, label in enumerate(labels)}
    found = {}
    for name, type_ in types.items():
        pairs = Postings(type_, options.sorter, limit)
        try:
            here = [answer for answer in answers if name in answer["pairs"]]
            store.map(partial(_add, store, name, pairs, place_of), here)
            found[name] = pairs.finish(labels)
        finally:
            pairs.close()
    return found


def _add(store: Store, name: str, pairs: Postings, place_of: Mapping[str, int], answer: Mapping[str, Any]) -> None:
    key, places = answer["pairs"][name], [place_of[label] for label in answer["labels"]]
    with files.opened_parquet(store, key) as file:
        for batch in file.iter_batches(PAIRS_PER_ROW_GROUP):
            for place, values in _by_file(batch.column(0), batch.column(1)):
                pairs.add(places[place], values)


def _by_file(values: pa.Array, places: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Yield the values of each file."""
    order = pc.array_sort_indices(places)
    values, places = values.take(order), places.take(order)
    for place in pc.unique(places).to_pylist():
        start = pc.index(places, place).as_py()
        count = pc.sum(pc.equal(places, place)).as_py()
        yield place, values.slice(start, count)
