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
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.schema import normalise
from kartosql.store import Store
from kartosql.store.keys import check_key
from kartosql.write import files, indexing
from kartosql.write.change import Change
from kartosql.write.evolve import Schemas


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
        tables = self.store.map(lambda column: self._table(column, wanted[column]), columns)
        made = {column: table for column, table in zip(columns, tables, strict=True) if table is not None}
        keys = {}
        for column in made:
            # Two commits in one microsecond must not meet.
            name = f"{created}-{uuids.uuid4().hex}"
            key = indexing.index_key(self.document.uuid, column, name)
            keys[column] = check_key(key, f"{self.document.uuid}/", source=self.document.key)
        self.store.map(lambda column: self._put(keys[column], made[column]), list(made))
        self.store.sync(keys.values())
        return {column: keys.get(column, self.old.get(column)) for column in columns}, tuple(keys.values())

    def _put(self, key: str, table: pa.Table) -> None:
        data = files.parquet_bytes(table, indexing.VALUES_PER_ROW_GROUP)
        with self.store.output(key, sync_folders=False) as out:
            out.write(data)

    def _table(self, column: str, where: Any) -> pa.Table | None:
        """Return the index of a column as it stands in its file; None if the old file stays."""
        given = self.change.indices.get(column)
        if given is not None:
            labels = self.document.labels or ()
            pairs = _without(given, self.planned.difference(labels))
            later = [label for label in labels if label not in self.planned]
            return _merge(None, column, [pairs, *self._pairs(column, later)])
        if where is None:
            return _merge(None, column, [self.change.pairs[column]])
        if not self.removed and not self.change.added:
            return None
        if not isinstance(where, str):
            everything = self._pairs(column, self.document.labels or ())
            return _merge(None, column, everything) if everything else None
        added = self.change.pairs.get(column)
        if added is None:
            new = self._pairs(column, list(self.change.added))
        else:
            # A column without any value has no type of its own.
            new = [] if pa.types.is_null(added.schema.field("value").type) else [added]
        if not self.removed and not any(pairs.num_rows for pairs in new):
            return None
        old = read_index(self.store, where, column)
        return _merge(old, column, new or [_no_pairs(old.schema.field(0).type)], self.removed)

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


def _merge(
    old: pa.Table | None, column: str, pairs: Sequence[pa.Table], removed: frozenset[str] = frozenset()
) -> pa.Table:
    if len(pairs) > 1:
        # Labels may be encoded as a dictionary here and as text there.
        plain = [pa.table({"value": p["value"], "label": p["label"].cast(pa.string())}) for p in pairs if p.num_rows]
        pairs = [pa.concat_tables(plain)] if plain else pairs[:1]
    return indexing.merge(old, removed, pairs[0], column)


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
        reason = f"it is torn or no Parquet file: {e}"
    raise FormatError(f"{key}: {reason}", code="invalid-index", hint="Build the index again.")
