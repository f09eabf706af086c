"""The indices of the next document: which stay, and which are written anew."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import FormatError
from kartosql.failures import reraise
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.schema import normalise
from kartosql.store import Store
from kartosql.store.keys import check_key
from kartosql.write import files, indexing
from kartosql.write.change import Change
from kartosql.write.evolve import Schemas

# From here on an index is written without ever being in memory as a whole.
STREAMED_PAIRS = 1_000_000


@dataclass(frozen=True)
class _Work:
    """An index as it stands in its file, the pairs that are new, and the labels that go."""

    old: pa.Table | None
    added: pa.Table
    removed: frozenset[str]


@dataclass(frozen=True)
class IndexWork:
    """What there is to do for the inverted indices of a document.

    ``old`` are the indices and ``planned`` the labels that the change was planned on;
    ``document`` is the next one, but for its indices.
    """

    store: Store
    change: Change
    old: dict[str, Any]
    planned: frozenset[str]
    anew: bool
    schemas: Schemas
    removed: frozenset[str]
    document: DatasetDocument

    def write(self, created: str) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the indices by column and the keys of those files that are new."""
        wanted = {c: w for c, w in self.old.items() if self.change.indices.get(c, ...) is not None}
        new = [*(self.change.pairs.items() if self.anew else ()), *self.change.indices.items()]
        # The originals cannot read an index without a type.
        wanted |= {c: None for c, p in new if p is not None and not pa.types.is_null(p.schema.field("value").type)}
        columns = list(wanted)
        work = self.store.map(lambda column: self._work(column, wanted[column]), columns)
        made = {column: index for column, index in zip(columns, work, strict=True) if index is not None}
        keys = {}
        for column in made:
            # Two commits in one microsecond must not meet.
            name = f"{created}-{uuids.uuid4().hex}"
            key = indexing.index_key(self.document.uuid, column, name)
            keys[column] = check_key(key, f"{self.document.uuid}/", source=self.document.key)
        self.store.map(lambda column: self._put(keys[column], column, made[column]), list(made))
        return {column: keys.get(column, self.old.get(column)) for column in columns}, tuple(keys.values())

    def _put(self, key: str, column: str, work: _Work) -> None:
        schema = indexing.index_schema(work.added, column)
        pieces = indexing.merged(work.old, work.removed, work.added, column)
        if work.old is not None or work.added.num_rows < STREAMED_PAIRS:
            table = pa.concat_tables([schema.empty_table(), *pieces])
            self.store.put(key, files.parquet_bytes(table, indexing.VALUES_PER_ROW_GROUP))
            return
        # Row group by row group, so that an index may be larger than memory.
        with self.store.output(key) as out:
            files.write_parquet(files.Counted(out), schema, pieces, indexing.VALUES_PER_ROW_GROUP)

    def _work(self, column: str, where: Any) -> _Work | None:
        """Return what the index of a column is made of; None if the old file stays."""
        given = self.change.indices.get(column)
        if given is not None:
            labels = self.document.labels or ()
            pairs = _without(given, self.planned.difference(labels))
            later = [label for label in labels if label not in self.planned]
            return _joined(None, [pairs, *self._pairs(column, later)])
        if where is None:
            return _joined(None, [self.change.pairs[column]])
        if not self.removed and not self.change.added:
            return None
        if not isinstance(where, str):
            everything = self._pairs(column, self.document.labels or ())
            return _joined(None, everything) if everything else None
        added = self.change.pairs.get(column)
        if added is None:
            new = self._pairs(column, list(self.change.added))
        else:
            # A column without any value has no type of its own.
            new = [] if pa.types.is_null(added.schema.field("value").type) else [added]
        if not self.removed and not any(pairs.num_rows for pairs in new):
            return None
        old = read_index(self.store, where, column)
        return _joined(old, new or [_no_pairs(old.schema.field(0).type)], self.removed)

    def _pairs(self, column: str, labels: Sequence[str]) -> list[pa.Table]:
        """Return the values of a column in the files of some labels, from each table that has it."""
        found = []
        wanted = set(labels)
        for name, schema in self.schemas.known.items():
            if column in schema.names and not pa.types.is_null(schema.field(column).type):
                table = self.schemas.table(self.document, name)
                here = [label for label in table.labels if label in wanted]
                found.append(indexing.pairs_of_files(self.store, table, here, column))
        return found


def _joined(old: pa.Table | None, pairs: Sequence[pa.Table], removed: frozenset[str] = frozenset()) -> _Work:
    if len(pairs) > 1:
        # Labels may be encoded as a dictionary here and as text there.
        plain = [pa.table({"value": p["value"], "label": p["label"].cast(pa.string())}) for p in pairs if p.num_rows]
        pairs = [pa.concat_tables(plain)] if plain else pairs[:1]
    return _Work(old, pairs[0], removed)


def _without(pairs: pa.Table, labels: Set[str]) -> pa.Table:
    if not labels:
        return pairs
    gone = pa.array(sorted(labels), pa.string())
    return pairs.filter(pc.invert(pc.is_in(pairs["label"].cast(pa.string()), value_set=gone)))


def _no_pairs(type_: pa.DataType) -> pa.Table:
    return pa.table({"value": pa.array([], normalise(type_)), "label": pa.array([], pa.string())})


def read_index(store: Store, key: str, column: str) -> pa.Table:
    """Return the index of a column as it stands in its file; raises ``invalid-index``."""
    try:
        table = pq.ParquetFile(pa.BufferReader(store.read_metadata(key))).read()
        if table.column_names == [column, "partition"]:
            return table
        reason = f"its columns are {', '.join(table.column_names)}"
    except KeyError:
        reason = "it is missing"
    except (pa.ArrowException, OSError) as e:
        reraise(e, f"Cannot read {key!r}")
        reason = f"it is torn or no Parquet file: {e}"
    raise FormatError(f"{key}: {reason}", code="invalid-index", hint="Build the index again.")
