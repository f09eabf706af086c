"""Which partitions a removal takes: by conditions over partition values, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.partitions import parse_partitions

Select = Callable[[DatasetTable], Sequence[str]]


def everything(table: DatasetTable) -> Sequence[str]:
    """Select all partitions."""
    return table.labels


@dataclass(frozen=True)
class Removal:
    """Partitions to remove: those for which conditions over some partition columns hold.

    ``select`` returns their labels in a table as it stands, going by those of ``columns`` that
    the table is partitioned by. Without ``columns`` there is no condition, and all partitions go.
    """

    columns: frozenset[str] = frozenset()
    select: Select = everything

    def of(self, partition_keys: Collection[str], *, named: bool) -> Select | None:
        """Return what is removed from a dataset with these partition keys, None for nothing.

        A dataset that none of the conditions is about keeps its rows, unless it was ``named``.
        """
        if not self.columns:
            return everything
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
