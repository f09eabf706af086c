"""Partition values that datasets of a cube share, as numbers that are cheaper to join on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from kartosql.plan.tables import Part


@dataclass(frozen=True)
class SharedPartitions:
    """Numbers of the files of seed and part; equal where the values of ``columns`` are."""

    columns: frozenset[str]
    of_seed: Sequence[int]
    of_part: Sequence[int]


def shared_partitions(seed: Part, part: Part) -> SharedPartitions | None:
    """Return the numbers for the partition columns that two datasets join on, or None where they save nothing."""
    mine, theirs = seed.table.partitions, part.table.partitions
    keys = [
        (at, theirs.keys.index(key))
        for at, key in enumerate(mine.keys)
        if key in part.join_key and key in theirs.keys and mine.types[at].equals(theirs.types[theirs.keys.index(key)])
    ]
    types = [mine.types[at] for at, _ in keys]
    if not keys or any(pa.types.is_floating(t) for t in types) or (len(keys) == 1 and pa.types.is_integer(types[0])):
        return None
    numbers: dict[object, int] = {}
    of_seed = [numbers.setdefault(v, len(numbers)) for v in mine.comparables([at for at, _ in keys])]
    of_part = [numbers.setdefault(v, len(numbers)) for v in theirs.comparables([at for _, at in keys])]
    return SharedPartitions(
        frozenset(mine.keys[at] for at, _ in keys),
        [of_seed[folder] for folder in mine.part_of_file],
        [of_part[folder] for folder in theirs.part_of_file],
    )
