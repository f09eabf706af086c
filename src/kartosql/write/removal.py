"""What is removed: partitions, by conditions over their values or all of them, and whole datasets.

Of whole datasets the documents go first, at once, and then the files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kartosql.errors import KartosqlError, UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.partitions import parse_partitions
from kartosql.formats.kartothek.places import BASE
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed
from kartosql.write import commit_log
from kartosql.write.change import Change
from kartosql.write.operation import Operation, report

Select = Callable[[DatasetTable], Sequence[str]]


def everything(table: DatasetTable) -> Sequence[str]:
    """Select all partitions."""
    return table.labels


@dataclass(frozen=True)
class Removal:
    """Partitions to remove: those for which conditions over some partition columns hold.

    ``select`` returns their labels in a table as it stands, going by those of ``columns`` that
    the table is partitioned by. Without ``columns`` there is no condition, and all partitions go.
    A table that lacks one of them keeps its rows where it ``needs_all``.
    """

    columns: frozenset[str] = frozenset()
    select: Select = everything
    needs_all: bool = False

    def of(self, partition_keys: Collection[str], *, named: bool) -> Select | None:
        """Return what is removed from a dataset with these partition keys, None for nothing.

        A dataset that none of the conditions is about keeps its rows, unless it was ``named``.
        """
        if not self.columns:
            return everything
        if self.needs_all:
            return self.select if self.columns <= set(partition_keys) else None
        if self.columns.isdisjoint(partition_keys):
            return everything if named else None
        return self.select


def same_partitions(keys: Sequence[str], table: str) -> Select:
    """Return the selection of all partitions whose values occur in the paths of the file ``keys``."""

    def select(found: DatasetTable) -> Sequence[str]:
        if not found.partition_keys or not keys:
            return found.labels if keys else ()
        types = [found.types[name] for name in found.partition_keys]
        places = range(len(types))
        new = set(parse_partitions(keys, found.uuid, table, found.partition_keys, types).comparables(places))
        old = found.partitions.comparables(places)
        return [
            label for label, part in zip(found.labels, found.partitions.part_of_file, strict=True) if old[part] in new
        ]

    return select


def delete_datasets(
    operation: Operation, uuids: Sequence[str], primary: str | None = None
) -> dict[str, dict[str, Any]]:
    """Delete datasets with their files, all or none, and tell by uuid how many files were theirs.

    ``primary`` is the uuid of the seed of their cube. A file that cannot be deleted stays
    behind without meaning, for a cleanup to find.
    """
    if not uuids:
        return {}
    operation.begin_at(uuids)
    documents = []
    for uuid in uuids:
        document = operation.document(uuid)
        if document is None:
            raise UsageError(f"There is no dataset {uuid!r}.", code="unknown-table")
        documents.append(document)
    done = operation.commit([Change(uuid, operation.name, drop=True) for uuid in uuids], primary=primary)
    reports = {}
    for uuid, document in zip(uuids, documents, strict=True):
        with contextlib.suppress(KartosqlError):
            _delete_files(operation.store, document)
            operation.store.delete(list(operation.store.list_below(f"{BASE}/{uuid}")))
        files = [key for column in document.files.values() for key in column if key is not None]
        reports[uuid] = {**report((), done.get(uuid)), "removed": len(document.labels or ()), "files": len(files)}
    return reports


def _delete_files(store: Store, document: DatasetDocument) -> None:
    tables = document.tables or (naming.DEFAULT_TABLE,)
    keys = [key for column in document.files.values() for key in column if key is not None]
    if document.labels is None:
        below = store.list_below(f"{document.uuid}/")
        keys = [key for key in below if not key.endswith(f"/{naming.COMMON_METADATA}")]
        tables = tuple({key.split("/")[1] for key in keys})
    keys += [key for key in document.indices.values() if isinstance(key, str)]
    keys += commit_log.keys(store, document.uuid)
    store.delete(keys)
    for table in tables:
        delete_schema(store, document.uuid, naming.schema_key(document.uuid, table))


def delete_schema(store: Store, uuid: str, key: str) -> None:
    """Delete a schema file, unless somebody makes the dataset anew.

    Its name is the only one that a new dataset shares with the old one. Who makes it looks for
    the file after the commit and we look for the document after the deletion, so that one of
    the two puts it back.
    """
    try:
        data, version = store.read_versioned(key)
        store.delete_if(key, version)
        if exists(store, uuid):
            store.put_if(key, data, None)
    except (KeyError, PreconditionFailed, OutcomeUnknown):
        pass


def exists(store: Store, uuid: str) -> bool:
    """Return whether a dataset has a document."""
    for suffix in (naming.METADATA_JSON, naming.METADATA_MSGPACK):
        try:
            store.size(f"{uuid}{suffix}")
        except KeyError:
            continue
        return True
    return False
