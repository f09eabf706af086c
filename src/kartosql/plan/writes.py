"""Which files of a table came with which write, and where several writes met."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from kartosql.indexes.index import Files
from kartosql.memo import memoized
from kartosql.tables.table import FileTable

_known: weakref.WeakKeyDictionary[FileTable, dict[tuple[str, ...], Writes]] = weakref.WeakKeyDictionary()


class Writes:
    """The writes to a table whose rows are told apart by ``join_key``; empty means that all rows count."""

    def __init__(self, table: FileTable, join_key: Sequence[str]) -> None:
        self._table = weakref.ref(table)
        self._join_key = join_key
        # Which files have cells in common, once it was found out for the whole table.
        self.pairs: frozenset[tuple[int, int]] | None = None
        self.asked = 0  # how often that was asked for some of the files

    def overlaid(self, files: Files) -> Files | None:
        """Return those of some files that have a cell in common with another one of them, None if it is not known."""
        if self.pairs is None:
            return None
        if len(files) == len(self._codes):
            return self._overlaid
        partners = self._partners
        return frozenset(f for f in files if f in partners and not files.isdisjoint(partners[f]))

    @memoized
    def _overlaid(self) -> Files:
        return frozenset(self._partners)

    @memoized
    def _partners(self) -> dict[int, list[int]]:
        """The files with which each file has cells in common."""
        found: dict[int, list[int]] = {}
        for a, b in self.pairs or ():
            found.setdefault(a, []).append(b)
            found.setdefault(b, []).append(a)
        return found

    def groups(self, files: Files, touching: Files) -> Sequence[Sequence[int]]:
        """Return the ``files``, ascending, of each combination of partition values to which several writes went.

        Only combinations to which one of the files ``touching`` belongs are returned.
        """
        if not self._groups or len(files) < 2:
            return []
        if len(touching) == len(self._codes):
            return self._groups
        if 2 * len(touching) > len(self._group_of):
            found: Iterable[int] = range(len(self._groups))
        else:
            found = sorted({self._group_of[f] for f in touching if f in self._group_of})
        groups = ([f for f in self._groups[n] if f in files] for n in found)
        return [g for g in groups if self.are_several(g)]

    def are_several(self, files: Sequence[int]) -> bool:
        """Return whether files came with more than one write."""
        return len(files) > 1 and len(set(map(self._codes.__getitem__, files))) > 1

    def differ(self, one: int, other: int) -> bool:
        """Return whether two files came with different writes, as far as their names tell."""
        return self._codes[one] != self._codes[other]

    @memoized
    def _codes(self) -> Sequence[int]:
        table = self._table()
        return () if table is None else table.writes

    @memoized
    def _groups(self) -> Sequence[Sequence[int]]:
        """The files of each combination of partition values to which several writes went."""
        table = self._table()
        if table is None or not self._join_key or not any(self._codes):
            return []
        partitions = table.partitions
        used = [i for i, key in enumerate(partitions.keys) if key in self._join_key]
        return [g for g in partitions.groups(used) if self.are_several(g)]

    @memoized
    def _group_of(self) -> dict[int, int]:
        return {f: n for n, group in enumerate(self._groups) for f in group}


def writes_of(table: FileTable, join_key: tuple[str, ...]) -> Writes:
    """Return the writes to a table; they are looked for once, as long as the table is in use."""
    known = _known.setdefault(table, {})
    if join_key not in known:
        known[join_key] = Writes(table, join_key)
    return known[join_key]
