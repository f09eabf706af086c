"""Overlays: files with cells that an earlier file of another write also has."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, dropwhile
from typing import Any

from kartosql.indexes.index import Files
from kartosql.memo import memoized
from kartosql.plan.evaluate import MAX_PROBES, Cells, RowSelection, is_exact
from kartosql.predicate.tree import Condition
from kartosql.tables.table import FileTable, Overlay, Part

_known: weakref.WeakKeyDictionary[FileTable, dict[tuple[str, ...], Writes]] = weakref.WeakKeyDictionary()


class Writes:
    """The writes to a table with rows distinguished by ``join_key``; empty means that all rows count."""

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
        """Return whether two files came with different writes, according to their names."""
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


Pairs = set[tuple[int, int]]  # (earlier, later) file

MAX_PAIRS = 50_000
# To read a footer costs about as much as the last-one-wins step over this many bytes of a file.
FOOTER_BYTES = 16_000
# An index is read at about twice the speed at which the last-one-wins step is done.
INDEX_SHARE = 1.0


class Overlays:
    """Finds the files of a cube's dataset that may hold the same cells.

    Cells differ where a partition column of the join key differs, or any dimension. Files of
    one write hold different cells: every write to a cube is checked for that, and its files
    share one id.
    """

    def __init__(self, part: Part, cells: Cells) -> None:
        self._part = part
        self._table = part.table
        self._cells = cells
        # They are looked for once, as long as the table is in use.
        known = _known.setdefault(part.table, {})
        self._writes = known.setdefault(part.join_key, Writes(part.table, part.join_key))
        # Dimensions that were checked to hold no NULL, which neither indices nor ranges tell about.
        keys = part.table.partition_keys
        checked = part.rows.never_null if isinstance(part.rows, Overlay) else ()
        self._dimensions = [c for c in part.join_key if c in checked and c not in keys]
        self._indexed = [c for c in self._dimensions if c in self._table.indices and is_exact(self._table.types[c])]

    def within(self, files: Files) -> Files:
        """Return those of ``files`` for which the last file has to win."""
        writes = self._writes
        writes.asked += 1
        if writes.pairs is None and writes.asked > 1 and not self._refines():
            # Nothing tells more than the names of the files, for any statement.
            self._within(self._table.all_files)
        known = writes.overlaid(files)
        return self._within(files) if known is None else known

    def _refines(self) -> bool:
        """Return whether footers or indices may show that files have no cell in common."""
        if self._indexed:
            return True
        files = self._table.all_files
        return bool(self._dimensions) and self._cells.data_bytes(self._table, files) >= FOOTER_BYTES * len(files)

    def _within(self, files: Files) -> Files:
        groups = self._apart(self._writes.groups(files, files))
        if sum(len(g) ** 2 for g in groups) > 2 * MAX_PAIRS:
            return frozenset(f for group in groups for f in group)
        pairs = {pair for group in groups for pair in combinations(group, 2) if self._writes.differ(*pair)}
        pairs = self._sharing(pairs, groups)
        if len(files) == len(self._table.files):
            self._writes.pairs = frozenset(pairs)
        return frozenset(f for pair in pairs for f in pair)

    def hiding(self, kept: Files, candidates: Files, conditions: Sequence[Condition], parameters: Any) -> Files:
        """Return the candidates that may hide rows of ``kept`` files, because they come later.

        Only rows for which all ``conditions`` are TRUE matter.
        """
        groups = self._apart([g for g in self._writes.groups(candidates, kept) if _has_late(g, kept)])
        hiding: set[int] = set()
        pairs: Pairs = set()
        for group in groups:
            early = [f for f in group if f in kept]
            late = [f for f in group if f not in kept and early and f > early[0]]
            if len(pairs) + len(early) * len(late) > MAX_PAIRS:
                hiding.update(late)
            else:
                pairs |= {(e, f) for f in late for e in early if e < f and self._writes.differ(e, f)}
        pairs = self._sharing(pairs, groups)
        if pairs and conditions:
            pairs = self._by_rows(pairs, RowSelection.of(self._part.join_key, conditions, parameters))
        return frozenset(hiding).union(f for _, f in pairs)

    def _apart(self, groups: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Split groups of files where the ranges of a dimension do not meet."""
        if self._writes.pairs is not None:
            return groups
        for column in self._dimensions:
            files = frozenset(f for group in groups for f in group)
            if not files or self._cells.data_bytes(self._table, files) < FOOTER_BYTES * len(files):
                break
            ranges = self._cells.ranges(self._table, column, files)
            groups = [g for group in groups for g in _clusters(group, ranges) if self._writes.are_several(g)]
        return groups

    def _sharing(self, pairs: Pairs, groups: Iterable[Sequence[int]]) -> Pairs:
        """Drop the pairs of files that have no cell in common, according to the dimensions' indices."""
        if self._writes.pairs is not None:
            return pairs & self._writes.pairs
        for column in self._indexed:
            files = frozenset(f for pair in pairs for f in pair)
            if files and self._pays(column, files):
                numbers = {f: number for number, group in enumerate(groups) for f in group if f in files}
                pairs = pairs & self._cells.share_values(self._table, column, numbers)
        return pairs

    def _pays(self, column: str, files: Files) -> bool:
        """Return whether to read an index costs less than to read the files, last one wins."""
        cost = self._cells.index_bytes(self._table, column)
        return cost is not None and cost <= INDEX_SHARE * self._cells.data_bytes(self._table, files)

    def _by_rows(self, pairs: Pairs, rows: RowSelection) -> Pairs:
        """Drop the pairs of files that have no cell in common of a row that matters."""
        # The earlier file is read anyway: which of its rows match decides which cells matter.
        early = {e for e, _ in pairs}
        if len(early) > MAX_PROBES:
            return pairs
        if self._indexed and len(pairs) > MAX_PROBES:
            late = frozenset(f for _, f in pairs)
            if all(self._pays(c, late) for c in self._indexed):
                by_early = {e: frozenset(f for at, f in pairs if at == e) for e in early}
                holding, indexed = self._cells.holding_cells, self._indexed
                pairs = {(e, f) for e in early for f in holding(self._table, e, by_early[e], indexed, rows)}
        if len(pairs) > MAX_PROBES:
            return pairs
        key = self._part.join_key
        return {(e, f) for e, f in pairs if self._cells.share_cells(self._table, e, f, key, rows)}


def _has_late(group: Iterable[int], kept: Files) -> bool:
    """Return whether a file that is not kept comes after one that is."""
    return not kept.issuperset(dropwhile(lambda file: file not in kept, group))


def _clusters(group: Sequence[int], ranges: Mapping[int, tuple[Any, Any]]) -> list[list[int]]:
    """Split files so that those with overlapping ranges stay together; unknown ranges overlap all."""
    if any(f not in ranges for f in group):
        return [list(group)]
    clusters: list[list[int]] = []
    end: Any = None
    for file in sorted(group, key=lambda f: ranges[f][0]):
        low, high = ranges[file]
        if clusters and low <= end:
            clusters[-1].append(file)
            end = max(end, high)
        else:
            clusters.append([file])
            end = high
    return [sorted(c) for c in clusters]
