"""How the datasets of a cube are joined: aliases, columns, and numbers in the place of partition values they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kartosql.plan.scan import OccurrenceScan, PartScan
from kartosql.tables.table import Part

SEED = "p0"
Codes = Mapping[str, Sequence[int]]  # a number for each file of a table, by the name of the column that it becomes


@dataclass(frozen=True)
class Join:
    """How the rows of a dataset come to those of the seed, whose alias is ``SEED``.

    Rows belong together if ``columns`` are equal, and the columns that ``codes`` become.
    """

    scan: PartScan
    alias: str
    columns: tuple[str, ...]
    codes: Codes

    @property
    def keyword(self) -> str:
        """The kind of join in SQL."""
        return "INNER JOIN" if self.scan.join == "inner" else "LEFT JOIN"


def joins_of(scan: OccurrenceScan) -> tuple[Codes, list[Join]]:
    """Return the codes of the seed's files and the joins of the other datasets; those without files have none."""
    seed = scan.parts[0].part
    of_seed: dict[str, Sequence[int]] = {}
    found = []
    for number, other in enumerate(scan.parts[1:], 1):
        if not other.files:
            continue
        name, shared = f"__kartosql_{other.part.name}", shared_partitions(seed, other.part)
        codes: Codes = {}
        if shared is not None:
            of_seed[name], codes = shared.of_seed, {name: shared.of_part}
        coded = shared.columns if shared is not None else ()
        columns = tuple(c for c in other.part.join_key if c not in coded)
        found.append(Join(other, f"p{number}", columns, codes))
    return of_seed, found


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
