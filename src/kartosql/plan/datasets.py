"""One table occurrence to scan: partition keys, then inverted indices, then the joins of the cube.

Overlays are respected: of several files with the same cell the last one counts, so a file
may only be dropped because of a payload condition if it does not hide a row of a kept file.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from kartosql.formats.kartothek.cube import has_cube_flags
from kartosql.plan.bind import BoundQuery
from kartosql.plan.conditions import Condition, is_evaluable, parameters_for
from kartosql.plan.evaluate import Evaluator, FileFilter, Files
from kartosql.plan.occurrences import Occurrence
from kartosql.plan.overlay import Overlays
from kartosql.plan.scan import OccurrenceScan, PartScan, Step
from kartosql.plan.tables import Part


def rejects_null(condition: Condition, occurrence: Occurrence, query: BoundQuery, evaluator: Evaluator) -> bool:
    """Return whether a condition is not TRUE for a row of an occurrence that is all NULL."""
    types = occurrence.source.columns
    predicate = condition.render(lambda column: evaluator.null(types[column[1]]))
    return not evaluator.constant(predicate, parameters_for(condition, query.parameters))


@dataclass
class _Draft:
    """A dataset while it is pruned."""

    part: Part
    join: str
    everything: Files
    narrowed: list[tuple[str, str, Files]]  # condition, by, files that are left

    @property
    def files(self) -> Files:
        """The files that are left."""
        return self.narrowed[-1][2] if self.narrowed else self.everything

    def narrow(self, files: Files | None, condition: str, by: str) -> None:
        """Keep only ``files``, and say so if that removes any or was asked of an index."""
        if files is None:
            return
        after = self.files & files
        if by != "join" or after != self.files:
            self.narrowed.append((condition, by, after))

    def take_back(self, files: Files, since: int) -> None:
        """Undo the removal of ``files`` by the steps from number ``since`` on."""
        self.narrowed[since:] = [(condition, by, left | files) for condition, by, left in self.narrowed[since:]]

    def steps(self) -> tuple[Step, ...]:
        """Return the steps with the numbers of files."""
        counts = [len(self.everything), *(len(left) for _, _, left in self.narrowed)]
        return tuple(
            Step(condition, by, before, after)
            for (condition, by, _), before, after in zip(self.narrowed, counts, counts[1:], strict=False)
        )


class OccurrencePruner:
    """Prunes one table occurrence."""

    def __init__(
        self,
        query: BoundQuery,
        evaluator: Evaluator,
        occurrence: Occurrence,
        conditions: Sequence[Condition],
        reason: str | None,
    ) -> None:
        self._query = query
        self._evaluator = evaluator
        self._occurrence = occurrence
        self._source = occurrence.source
        self._conditions = list(conditions)
        self._reason = reason

    def scan(self) -> OccurrenceScan:
        """Return what the occurrence has to read."""
        used = self._occurrence.columns
        parts = [p for p in self._source.parts if self._is_needed(p, used)]
        eliminated = tuple(p.name for p in self._source.parts if p not in parts)
        drafts = [self._draft(part, seed=at == 0) for at, part in enumerate(parts)]
        if len(drafts) > 1:
            _align(drafts)
        scans = []
        for draft in drafts:
            overlaid = Overlays(draft.part, self._evaluator).within(draft.files)
            scans.append(PartScan(draft.part, draft.join, tuple(sorted(draft.files)), overlaid, draft.steps()))
        reason = None if any(s.steps for s in scans) else self._reason
        return OccurrenceScan(
            self._occurrence, tuple(scans), eliminated, tuple(c.text for c in self._conditions), reason
        )

    def _is_needed(self, part: Part, used: frozenset[str] | None) -> bool:
        if part is self._source.parts[0] or used is None:
            return True
        return any(self._source.owner.get(column) == part.name for column in used)

    def _draft(self, part: Part, *, seed: bool) -> _Draft:
        """Prune one dataset by the conditions that its own columns answer."""
        draft = _Draft(part, "seed" if seed else "left", frozenset(range(len(part.table.files))), [])
        key = frozenset(part.join_key)
        own = {c for c, name in self._source.owner.items() if name == part.name} | key
        if not seed and any(self._is_restrictive(c, own - key) for c in self._conditions):
            draft.join = "inner"
        # A left-joined dataset may only lose rows that no seed row can meet: those ruled out by key columns.
        payload = own if seed or draft.join == "inner" else key
        if not part.join_key:
            self._apply(draft, self._conditions, own)
            return draft
        self._apply(draft, self._conditions, key)
        before, since = draft.files, len(draft.narrowed)
        others = [c for c in self._conditions if any(name not in key for _, name in c.columns)]
        self._apply(draft, others, payload)
        if draft.files != before:
            own_only = [c for c in self._conditions if self._is_about(c, own)]
            overlays = Overlays(part, self._evaluator)
            draft.take_back(overlays.hiding(draft.files, before, own_only, self._query.parameters), since)
        return draft

    def _is_restrictive(self, condition: Condition, payload: Set[str]) -> bool:
        """Return whether a condition drops all rows for which a dataset has no partner."""
        return self._is_about(condition, payload) and rejects_null(
            condition, self._occurrence, self._query, self._evaluator
        )

    def _is_about(self, condition: Condition, columns: Set[str]) -> bool:
        """Return whether a condition can be evaluated and has columns, all of them among ``columns``."""
        found = condition.columns
        return (
            bool(found) and is_evaluable(condition) and all(o == self._occurrence.id and c in columns for o, c in found)
        )

    def _apply(self, draft: _Draft, conditions: list[Condition], usable: Set[str]) -> None:
        """Narrow a dataset by all conditions over the ``usable`` columns."""
        table = draft.part.table
        # A write to a cube is refused if a dimension holds NULL, or an indexed column NaN. Other index columns
        # may have been NULL before they were indexed.
        checked = bool(draft.part.join_key) and has_cube_flags(table.metadata)
        cube = self._source.cube
        never_null = frozenset(cube.cube.dimension_columns) if cube is not None and checked else frozenset()
        filter_ = FileFilter(
            table,
            self._occurrence.id,
            self._evaluator,
            self._query.parameters,
            usable=usable,
            never_null=never_null,
            never_nan=checked,
        )
        for condition, _ in filter_.groups(conditions):
            by = "partition key" if _on_keys(condition, table.partition_keys) else "inverted index"
            draft.narrow(filter_.files(condition), condition.text, by)


def _on_keys(condition: Condition, keys: Sequence[str]) -> bool:
    return all(column in keys for _, column in condition.columns)


def _align(drafts: list[_Draft]) -> None:
    """Prune the datasets of a cube by each other, over the partition columns they share.

    A seed row needs a partner in every restrictive dataset, and rows of the others need a
    seed row, in files with the same values of the shared partition columns.
    """
    seed, others = drafts[0], drafts[1:]
    for other in others:
        if other.join == "inner":
            seed.narrow(_partners(seed, other), f"partner in {other.part.name}", "join")
    for other in others:
        other.narrow(_partners(other, seed), f"partner in {seed.part.name}", "join")


def _partners(draft: _Draft, other: _Draft) -> Files:
    """Return the files of ``draft`` whose shared partition values occur in ``other``."""
    if not other.files:
        return frozenset()
    mine, theirs = draft.part.table.partitions, other.part.table.partitions
    shared = [
        (i, theirs.keys.index(key))
        for i, key in enumerate(mine.keys)
        if key in draft.part.join_key
        and key in other.part.join_key
        and key in theirs.keys
        and mine.types[i].equals(theirs.types[theirs.keys.index(key)])
    ]
    if not shared:
        return draft.files
    my_keys, their_keys = [i for i, _ in shared], [j for _, j in shared]
    present = {theirs.comparable(f, their_keys) for f in other.files}
    return frozenset(f for f in draft.files if mine.comparable(f, my_keys) in present)
