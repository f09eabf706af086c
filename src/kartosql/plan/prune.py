"""Bound query to scan: the conditions of each table occurrence, and the files that they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from kartosql.indexes.index import (
    PARTITION_KEY,
    FileIndex,
    Files,
    InvertedIndices,
    MetadataBounds,
    PartitionValues,
    RowGroups,
    Subject,
)
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import MAX_PROBES, Cells, Evaluator, RowSelection, is_exact
from kartosql.plan.extract import Extractor, rejects_null
from kartosql.plan.limits import push_down_limits
from kartosql.plan.overlays import Overlays
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scan import Alternative, OccurrenceScan, PartScan, PhaseClock, Scan, Step
from kartosql.plan.scopes import Occurrence
from kartosql.predicate.tree import Condition, Group, is_evaluable, joined, parameters_for
from kartosql.tables.table import Changelog, Overlay, Part

ROUNDS = 2
# To open a file takes as long as to scan about this many bytes of it; an index is read at half that speed.
FILE_BYTES = 10_000
INDEX_FACTOR = 2
FEW_FILES = 1_000  # of a dataset, for which each step of a plan notes what it left


def _skipping_indexes(subject: Subject) -> FileIndex | None:
    if subject.table.skipping is None:
        return None
    # Imported late, as most tables have none.
    from kartosql.indexes.skipping import SkippingIndexes

    return SkippingIndexes(subject)


# The kinds of indexes, those first that cost least.
PRUNERS: tuple[Callable[[Subject], FileIndex | None], ...]
PRUNERS = (PartitionValues, _skipping_indexes, InvertedIndices, MetadataBounds, RowGroups)


def _pruners(subject: Subject) -> list[FileIndex]:
    """Return the indexes of a table, in the order of PRUNERS."""
    return [index for make in PRUNERS if (index := make(subject)) is not None]


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


@dataclass(eq=False)
class JoinPruner:
    """Prunes the datasets of one occurrence by each other.

    A seed row needs a partner in every inner joined dataset, and rows of the others need a
    seed row. That rules out whole cells and so, whatever overlays there are, never a row
    that hides another one of a cell that counts.
    """

    _drafts: Sequence[Draft]
    _cells: Cells
    _parameters: Mapping[str, Any]
    _seen: dict[tuple[str, str], Files] = field(default_factory=dict)  # source and target -> files of the source

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
                rows, cost = RowSelection.of([column], source.own, self._parameters), reading
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
        """Return what it takes to look up values of a column, in bytes, or None if unknown."""
        table = draft.part.table
        if column in table.partition_keys:
            return 0
        size = self._cells.index_bytes(table, column) if column in table.indices else None
        return None if size is None else INDEX_FACTOR * size

    def _effort(self, draft: Draft, files: Files) -> int:
        return self._cells.data_bytes(draft.part.table, files) + FILE_BYTES * len(files)


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


class FileFilter:
    """Asks the indexes of one table about conditions of one occurrence, part by part, the cheapest first."""

    def __init__(self, subject: Subject, indexes: Sequence[FileIndex] | None = None) -> None:
        self._indexes = [i for i in (_pruners(subject) if indexes is None else indexes) if not i.takes_whole]
        self._paying = self._indexes
        self._among = self.all_files = subject.table.all_files
        self._notes: list[str] = []
        self._answers: list[tuple[str, Files]] = []  # what answered parts of the last condition, and the files it left
        self.alternatives: tuple[Alternative, ...] = ()  # of the last condition, if it is an OR of parts

    def files(self, condition: Condition, among: Files | None = None) -> Files | None:
        """Return the files that may hold a row for which ``condition`` is TRUE; None is all of them.

        Only files ``among`` the given ones matter.
        """
        self._among = self.all_files if among is None else among
        self._paying = [i for i in self._indexes if among is None or len(among) >= i.min_files]
        self._notes, self._answers, self.alternatives = [], [], ()
        return self._files(condition)

    def account(self, condition: Condition) -> str:
        """Return the text of a condition, with the reason if the last call of ``files`` kept more than it had to."""
        notes = "; ".join(dict.fromkeys(self._notes))
        return f"{condition.text} ({notes})" if notes else condition.text

    def by(self) -> str:
        """Return the name of what answered the condition of the last call of ``files``."""
        return _decided_by(self._answers, self.all_files)

    def _index(self, condition: Condition) -> FileIndex | None:
        """Return the first index that covers a condition as a whole, None if none does."""
        return next((index for index in self._paying if index.covers(condition)), None)

    def _files(self, condition: Condition) -> Files | None:
        index = self._index(condition)
        if index is not None:
            return self._candidates(index, condition)
        if not isinstance(condition, Group) or not self._can_prune(condition):
            return None
        if condition.op == "OR":
            return self._any_of(condition.items)
        result: Files | None = None
        for item in self.groups(list(condition.items)):
            found = self._files(item)
            if found is not None:
                result = found if result is None else result & found
        return result

    def _any_of(self, items: Sequence[Condition]) -> Files:
        """Return the files that may hold a match of one of several conditions, and note what each of them left."""
        before, left, found = self._answers, frozenset[int](), []
        answers: list[tuple[str, Files]] = []
        for item in items:
            self._answers = []
            files = self._files(item)
            files = self.all_files if files is None else files
            found.append(Alternative(item.text, _decided_by(self._answers, self.all_files), len(self._among & files)))
            answers += self._answers
            left |= files
        self._answers, self.alternatives = [*before, *answers], tuple(found)
        return left

    def _can_prune(self, condition: Condition) -> bool:
        """Return whether evaluating ``condition`` may leave out a file, before an index is read for it."""
        if self._index(condition) is not None:
            return True
        if not isinstance(condition, Group):
            return False
        # All of them are looked at, as asking for statistics is remembered.
        found = [self._can_prune(item) for item in condition.items]
        return all(found) if condition.op == "OR" else any(found)

    def groups(self, items: list[Condition]) -> list[Condition]:
        """Join those of ``items`` that are evaluated together; those of the first index come first."""
        together: dict[tuple[int, str], list[Condition]] = {}
        alone: list[Condition] = []
        for item in items:
            found = ((at, index.group(item)) for at, index in enumerate(self._indexes))
            key = next(((at, name) for at, name in found if name is not None), None)
            (alone if key is None else together.setdefault(key, [])).append(item)
        # The groups of one index stay in the order of the text.
        return [*(joined("AND", together[key]) for key in sorted(together, key=itemgetter(0))), *alone]

    def _candidates(self, index: FileIndex, condition: Condition) -> Files | None:
        left: Files | None = None
        for found in index.candidates(condition, self._among):
            if found.note:
                self._notes.append(found.note)
            if found.by:
                self._answers.append((found.by, found.files))
            left = found.files if left is None else left & found.files
        return left


def _decided_by(answers: Sequence[tuple[str, Files]], everything: Files) -> str:
    """Return which of several kinds of answers left out files, the first one that is no partition key."""
    # If none did, that is one that was asked.
    narrowed = [by for by, files in answers if len(files) < len(everything)] or [by for by, _ in answers]
    return next((by for by in narrowed if by != PARTITION_KEY), PARTITION_KEY)


@dataclass(eq=False)
class OccurrencePruner:
    """Prunes one table occurrence."""

    _query: BoundQuery
    _evaluator: Evaluator
    _occurrence: Occurrence
    _conditions: list[Condition]

    def scan(self, reason: str | None, *, trace: bool) -> OccurrenceScan:
        """Return what the occurrence has to read, with the ``reason`` why all files are kept."""
        used = self._occurrence.read
        parts = [p for p in self._occurrence.source.parts if self._is_needed(p, used)]
        eliminated = tuple(p.name for p in self._occurrence.source.parts if p not in parts)
        drafts = [self._draft(part, seed=at == 0) for at, part in enumerate(parts)]
        if len(drafts) > 1:
            JoinPruner(drafts, self._evaluator.cells, self._query.parameters).run()
        scans = tuple(
            PartScan(
                draft.part,
                draft.join,
                tuple(sorted(draft.files)),
                Overlays(draft.part, self._evaluator.cells).within(draft.files) if draft.part.join_key else frozenset(),
                draft.steps(trace=trace),
                hiding=draft.back & draft.files,
            )
            for draft in drafts
        )
        return OccurrenceScan(
            self._occurrence,
            scans,
            eliminated,
            tuple(self._conditions),
            None if any(s.steps for s in scans) else reason,
            self._unused(scans),
        )

    def _unused(self, scans: Sequence[PartScan]) -> tuple[tuple[str, str], ...]:
        steps = [step.condition for scan in scans for step in scan.steps]
        found = []
        for condition in dict.fromkeys(self._conditions):
            if not any(condition.text in step for step in steps):
                if not is_evaluable(condition):
                    reason = "it depends on more than columns, constants and functions of them"
                elif any(ref[0] != self._occurrence.id for ref in condition.columns):
                    reason = "it depends on other tables"
                else:
                    reason = "no partition key, index or statistics of the table answers it"
                found.append((condition.text, reason))
        return tuple(found)

    def _is_needed(self, part: Part, used: frozenset[str] | None) -> bool:
        if part is self._occurrence.source.parts[0] or used is None:
            return True
        return any(self._occurrence.source.owner.get(column) == part.name for column in used)

    def _draft(self, part: Part, *, seed: bool) -> Draft:
        """Prune one dataset by the conditions that its own columns answer."""
        draft = Draft(part, "seed" if seed else "left", part.table.all_files)
        key = frozenset(part.join_key)
        own = {c for c, name in self._occurrence.source.owner.items() if name == part.name} | key
        if not seed and any(self._drops_missing(c, own - key) for c in self._conditions):
            draft.join = "inner"
        draft.own = [c for c in self._conditions if self._is_about(c, own)]
        # A left-joined dataset may only lose rows that no seed row can meet: those ruled out by key columns.
        payload = own if seed or draft.join == "inner" else key
        if isinstance(part.rows, Changelog):
            own &= part.rows.stable
        if not part.join_key:
            self._narrow(draft, self._conditions, own)
            return draft
        self._narrow(draft, self._conditions, key)
        others = [c for c in self._conditions if any(name not in key for _, name in c.columns)]
        before, since = draft.files, len(draft.narrowed)
        self._narrow(draft, others, payload)
        if draft.files != before:
            overlays = Overlays(part, self._evaluator.cells)
            draft.take_back(overlays.hiding(draft.files, before, draft.own, self._query.parameters), since)
        return draft

    def _narrow(self, draft: Draft, conditions: Sequence[Condition], usable: Set[str]) -> None:
        """Narrow a dataset by conditions on usable columns: whole conditions first, but after partition keys."""
        rows = draft.part.rows
        never_null = rows.never_null if isinstance(rows, Overlay) else frozenset()
        subject = Subject(
            draft.part.table, self._occurrence.id, self._evaluator, self._query.parameters, usable, never_null
        )
        indexes = _pruners(subject)
        filter_, whole = FileFilter(subject, indexes), [index for index in indexes if index.takes_whole]
        about_keys = [c for c in conditions if whole and c.columns and indexes[0].covers(c)]
        others = [c for c in conditions if c not in about_keys]
        self._apply(draft, about_keys, filter_)
        for index in whole:
            for condition in filter(index.covers, others):
                for found in index.candidates(condition, draft.files):
                    if draft.files:
                        draft.narrow(found.files, condition.text, found.by)
        self._apply(draft, others, filter_)

    def _apply(self, draft: Draft, conditions: Sequence[Condition], filter_: FileFilter) -> None:
        for condition in filter_.groups(list(conditions)):
            files = filter_.files(condition, draft.files)
            draft.narrow(files, filter_.account(condition), filter_.by(), filter_.alternatives)

    def _drops_missing(self, condition: Condition, payload: Set[str]) -> bool:
        """Return whether a condition drops all rows for which a dataset, with its ``payload``, has no partner."""
        seed = self._occurrence.source.parts[0].table
        keys = {name: f"k{i}" for i, name in enumerate(seed.partition_keys)}
        if not self._is_about(condition, payload | keys.keys()) or all(c in keys for _, c in condition.columns):
            return False
        types = self._occurrence.source.columns
        if self._is_about(condition, payload):
            return rejects_null(
                condition, lambda c: (self._evaluator.null(types[c[1]]),), self._evaluator, self._query.parameters
            )
        # What else the condition depends on are the seed's partition keys: all their values are known.
        predicate = condition.render(lambda c: keys.get(c[1]) or self._evaluator.null(types[c[1]]))
        return not self._evaluator.partitions(seed, predicate, parameters_for(condition, self._query.parameters))

    def _is_about(self, condition: Condition, columns: Set[str]) -> bool:
        """Return whether a condition can be evaluated and has columns, all of them among ``columns``."""
        found = condition.columns
        return (
            bool(found) and is_evaluable(condition) and all(o == self._occurrence.id and c in columns for o, c in found)
        )


def prune(
    query: BoundQuery,
    evaluator: Evaluator,
    *,
    enabled: bool = True,
    trace: bool = False,
    freeze: Callable[[str], str | None] | None = None,
) -> Scan:
    """Return the files that suffice to answer ``query``.

    ``enabled=False`` keeps all files of the datasets that are used; the rows are the same.
    With ``trace`` each step holds the files that it left.
    ``freeze`` returns the literal that a function of the clock, such as ``now()``, stands for
    in this statement; without it the evaluator's own clock is asked.
    """
    if not query.occurrences:
        return Scan((), (), dict.fromkeys(("conditions", "files", "shapes"), 0.0))
    reader = ConditionReader(query, evaluator, freeze)
    clock = PhaseClock()
    extractor = Extractor(query, reader, evaluator)
    if enabled:
        extractor.run()
    clock.lap("conditions")

    def scan(bound: BoundQuery, occurrence: Occurrence, found: list[Condition]) -> OccurrenceScan:
        pruner = OccurrencePruner(bound, evaluator, occurrence, found)
        return pruner.scan(extractor.reasons.get(occurrence.id), trace=trace)

    stored = [o for o in query.occurrences if o.source.data is None]
    scans = {o.id: scan(query, o, extractor.found.get(o.id, [])) for o in stored}
    clock.lap("files")
    if any(extractor.dynamic_filters.values()):
        from kartosql.plan.dynamic_filters import DynamicFilterPlanner

        planner = DynamicFilterPlanner(query, evaluator, extractor.found)
        scans = planner.run(scans, extractor.dynamic_filters, extractor.origin, scan)
        clock.lap("lookups")
    edits = push_down_limits(query, reader, evaluator, scans, extractor.origin) if enabled else ()
    clock.lap("shapes")
    return Scan(tuple(scans[o.id] for o in stored), edits, clock.phases)
