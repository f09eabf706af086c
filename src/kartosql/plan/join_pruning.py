"""The datasets of a cube prune each other: rows join only where they share partition and dimension values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kartosql.indexes.index import Files
from kartosql.plan.evaluate import MAX_PROBES, Cells, RowSelection, is_exact
from kartosql.plan.scan import Alternative, Step
from kartosql.predicate.tree import Condition, joined, parameters_for
from kartosql.tables.table import Part

ROUNDS = 2
# To open a file takes as long as to scan about this many bytes of it; an index is read at half that speed.
FILE_BYTES = 10_000
INDEX_FACTOR = 2
FEW_FILES = 1_000  # of a dataset, for which each step of a plan notes what it left


@dataclass(frozen=True)
class Narrowed:
    """The files that one condition left, and what answered it."""

    condition: str
    by: str
    left: Files
    alternatives: tuple[Alternative, ...] = ()


@dataclass
class Draft:
    """A dataset while it is pruned.

    Only rows for which all ``own`` conditions are TRUE come out, if the dataset is the seed
    or inner joined.
    """

    part: Part
    join: str
    everything: Files
    own: Sequence[Condition] = ()
    narrowed: list[Narrowed] = field(default_factory=list)
    back: Files = frozenset()  # files that steps had left out

    @property
    def files(self) -> Files:
        """The files that are left."""
        return self.narrowed[-1].left if self.narrowed else self.everything

    def narrow(self, files: Files | None, condition: str, by: str, alternatives: tuple[Alternative, ...] = ()) -> None:
        """Keep only ``files``, and say so if that removes any or was asked of an index."""
        if files is None:
            return
        after = self.files & files
        if by != "join" or after != self.files:
            self.narrowed.append(Narrowed(condition, by, after, alternatives))

    def take_back(self, files: Files, since: int) -> None:
        """Undo the removal of ``files`` by the steps from number ``since`` on."""
        self.back |= files - self.files
        self.narrowed[since:] = [replace(n, left=n.left | files) for n in self.narrowed[since:]]

    def steps(self, *, trace: bool = False) -> tuple[Step, ...]:
        """Return the steps with the numbers of files.

        The files themselves are held for a ``trace``, or if the dataset has few.
        """
        trace = trace or len(self.everything) <= FEW_FILES
        counts = [len(self.everything), *(len(n.left) for n in self.narrowed)]
        return tuple(
            Step(n.condition, n.by, before, after, n.left if trace else None, n.alternatives)
            for n, before, after in zip(self.narrowed, counts, counts[1:], strict=False)
        )


class JoinPruner:
    """Prunes the datasets of one occurrence by each other.

    A seed row needs a partner in every inner joined dataset, and rows of the others need a
    seed row. That rules out whole cells and so, whatever overlays there are, never a row
    that hides another one of a cell that counts.
    """

    def __init__(self, drafts: Sequence[Draft], cells: Cells, parameters: Mapping[str, Any]) -> None:
        self._drafts = drafts
        self._cells = cells
        self._parameters = parameters
        self._seen: dict[tuple[str, str], Files] = {}  # source and target -> files of the source

    def run(self) -> None:
        """Narrow the drafts, the first of which is the seed."""
        seed, others = self._drafts[0], self._drafts[1:]
        for _ in range(ROUNDS):
            for other in others:
                if other.join == "inner":
                    self._restrict(seed, other)
            for other in others:
                self._restrict(other, seed)

    def _restrict(self, target: Draft, source: Draft) -> None:
        """Keep the files of ``target`` that may hold a partner of a row in the files of ``source``."""
        pair = source.part.name, target.part.name
        if self._seen.get(pair) == source.files or not target.files:
            return
        self._seen[pair] = source.files
        reason = f"partner in {source.part.name}"
        target.narrow(_same_partitions(target, source), reason, "join")
        theirs, mine = source.part.table, target.part.table
        for column in target.part.join_key:
            if (
                column in source.part.join_key
                and not (column in mine.partition_keys and column in theirs.partition_keys)
                and (column in mine.partition_keys or column in mine.indices)
                and mine.types[column].equals(theirs.types[column])
                and is_exact(mine.types[column])
            ):
                self._over_dimension(target, source, column, reason)

    def _over_dimension(self, target: Draft, source: Draft, column: str, reason: str) -> None:
        if len(target.files) < 2 or 2 * len(source.files) > len(source.everything):
            return
        mine, theirs = target.part.table, source.part.table
        rows = None
        cost = self._lookup(source, column)
        if cost != 0 and len(source.files) <= MAX_PROBES:
            reading = self._cells.data_bytes(theirs, source.files)
            if cost is None or reading < cost:
                # They are read anyway, and tell which values stand in rows that match.
                rows, cost = self._rows(source, column), reading
        lookup = self._lookup(target, column)
        if cost is None or lookup is None:
            return
        gain = self._effort(target, target.files)
        saved = self._effort(source, source.everything - source.files)
        # At worst nothing is left out: that may cost what is saved already, and a little.
        if 2 * (cost + lookup) <= gain and cost + lookup <= gain / 20 + saved:
            files = self._cells.files_sharing(theirs, source.files, mine, column, rows)
            target.narrow(files, f"{reason} by {column}", "join")

    def _lookup(self, draft: Draft, column: str) -> int | None:
        """Return what it takes to look up values of a column, in bytes, or None if nothing tells them."""
        table = draft.part.table
        if column in table.partition_keys:
            return 0
        size = self._cells.index_bytes(table, column) if column in table.indices else None
        return None if size is None else INDEX_FACTOR * size

    def _effort(self, draft: Draft, files: Files) -> int:
        """Return what it takes to scan files, in bytes."""
        return self._cells.data_bytes(draft.part.table, files) + FILE_BYTES * len(files)

    def _rows(self, source: Draft, column: str) -> RowSelection:
        """Return the rows of a dataset that its own conditions leave."""
        if not source.own:
            return RowSelection({column: "x0"}, "TRUE", {})
        condition = joined("AND", list(source.own))
        # Names of their own: those of columns may differ only in case.
        columns = dict.fromkeys([column, *(name for _, name in sorted(condition.columns))])
        names = {name: f"x{i}" for i, name in enumerate(columns)}
        predicate = condition.render(lambda ref: names[ref[1]])
        return RowSelection(names, predicate, parameters_for(condition, self._parameters))


def _same_partitions(target: Draft, source: Draft) -> Files:
    """Return the files of ``target`` whose shared partition values occur in ``source``."""
    if not source.files:
        return frozenset()
    mine, theirs = target.part.table.partitions, source.part.table.partitions
    shared = [
        (i, theirs.keys.index(key))
        for i, key in enumerate(mine.keys)
        if key in target.part.join_key
        and key in source.part.join_key
        and key in theirs.keys
        and mine.types[i].equals(theirs.types[theirs.keys.index(key)])
    ]
    if not shared:
        return target.files
    their_values = theirs.comparables([j for _, j in shared])
    my_values = mine.comparables([i for i, _ in shared])
    present = set(map(their_values.__getitem__, _folders(source)))
    folders = _folders(target)
    kept = {part for part in folders if my_values[part] in present}
    return target.files if len(kept) == len(folders) else target.files & mine.files_of(kept)


def _folders(draft: Draft) -> set[int] | range:
    """Return the positions of the folders in which the files of a draft are."""
    partitions = draft.part.table.partitions
    if len(draft.files) == len(draft.everything):
        return range(partitions.count)
    return set(map(partitions.part_of_file.__getitem__, draft.files))
