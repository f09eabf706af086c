"""What a commit changes in one dataset, and what a document is after it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.resolve import OWN_KEYS

# Returns the labels to remove from a table as it stands; asked again whenever somebody else was faster.
Select = Callable[[DatasetTable], Sequence[str]]

CODECS = {"json": naming.METADATA_JSON, "msgpack": naming.METADATA_MSGPACK}


@dataclass(frozen=True)
class Change:
    """A change of the dataset ``uuid``, put together before it is known what it will meet.

    ``added`` maps the labels of new partitions, in order, to their file per table, ``pairs``
    each indexed column to the values (column ``value``) and labels (column ``label``) of the
    new files, and ``schemas`` each table to the schema of its columns, partition columns
    included. ``metadata`` go into the document, ``forgotten`` are the keys of those that leave it.
    ``indices`` creates an index from such pairs over all partitions, or drops it (None). With
    ``create`` the dataset must not exist; with ``replace_all`` whatever it holds goes away, and so
    does it with ``drop``. ``positions`` says of added labels whose place among the partitions they
    take, or before which they come if that one stays; all others come last. ``repaired`` are the
    ids of lost commits that this one brings back. With ``restart_history`` the schema history
    begins anew.
    """

    uuid: str
    operation: str
    added: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    removed: Select | frozenset[str] | None = None
    pairs: Mapping[str, pa.Table] = field(default_factory=dict)
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    partition_keys: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    forgotten: frozenset[str] = frozenset()
    create: bool = False
    replace_all: bool = False
    indices: Mapping[str, pa.Table | None] = field(default_factory=dict)
    started: dt.datetime | None = None
    positions: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False
    repaired: tuple[str, ...] = ()
    format: str = "json"
    restart_history: bool = False

    @property
    def starts_anew(self) -> bool:
        """Whether nothing of the dataset as it stands is kept."""
        return self.create or self.replace_all


def apply(
    document: DatasetDocument | None,
    change: Change,
    removed: frozenset[str],
    indices: Mapping[str, Any],
    created: str,
) -> DatasetDocument:
    """Return the document after ``change``, which takes the labels ``removed`` away.

    ``indices`` are those of the result. The keys of kartosql itself are not carried over;
    ``created`` is the time to record where the metadata have none.
    """
    if document is None or change.starts_anew:
        key = document.key if document is not None else change.uuid + CODECS[change.format]
        document = DatasetDocument(change.uuid, key, (), {}, change.partition_keys or (), {}, {})
    labels, files = _with_places(document, change, removed)
    metadata = {k: v for k, v in document.metadata.items() if k not in OWN_KEYS and k not in change.forgotten}
    metadata.update({k: v for k, v in change.metadata.items() if k not in OWN_KEYS})
    metadata.setdefault("creation_time", created)
    return replace(
        document,
        labels=labels,
        files=files,
        partition_keys=partition_keys_of(document),
        indices=dict(indices),
        metadata=metadata,
    )


def partition_keys_of(document: DatasetDocument) -> tuple[str, ...]:
    """Return the partition keys of a dataset, from a file's path where the document does not name them."""
    if document.partition_keys is not None:
        return document.partition_keys
    for table, keys in document.files.items():
        for key in keys:
            if key is not None:
                return naming.derive_partition_keys(naming.folder_of(key, document.uuid, table))
    return ()


def _with_places(
    document: DatasetDocument, change: Change, removed: frozenset[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str | None, ...]]]:
    old = document.labels or ()
    place_of = {place: label for label, place in change.positions.items() if place in removed}
    tables = list(dict.fromkeys([*document.files, *(t for entry in change.added.values() for t in entry)]))
    if not removed and not place_of:
        kept: Sequence[int] = range(len(old))
        labels = old
    else:
        kept = [i for i, label in enumerate(old) if label not in removed or label in place_of]
        labels = tuple([place_of.get(old[i], old[i]) for i in kept])
    placed = set(place_of.values())
    last = [label for label in change.added if label not in placed]
    files: dict[str, tuple[str | None, ...]] = {}
    for table in tables:
        column = document.files.get(table, (None,) * len(old))
        if isinstance(kept, list):
            column = tuple(
                [change.added[place_of[old[i]]].get(table) if old[i] in place_of else column[i] for i in kept]
            )
        column += tuple([change.added[label].get(table) for label in last])
        if any(key is not None for key in column):
            files[table] = column
    return _moved(labels + tuple(last), files, change.positions)


def _moved(
    labels: tuple[str, ...], files: dict[str, tuple[str | None, ...]], positions: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, tuple[str | None, ...]]]:
    """Put labels before those that they have to stand before."""
    if positions.keys().isdisjoint(labels) or set(positions.values()).isdisjoint(labels):
        return labels, files
    number = {label: at for at, label in enumerate(labels)}
    before: dict[str, list[int]] = {}
    for label, place in positions.items():
        if label in number and place in number:
            before.setdefault(place, []).append(number[label])
    moving = {at for found in before.values() for at in found}
    order: list[int] = []
    for at, label in enumerate(labels):
        order += before.get(label, ())
        if at not in moving:
            order.append(at)
    return tuple([labels[at] for at in order]), {t: tuple([c[at] for at in order]) for t, c in files.items()}
