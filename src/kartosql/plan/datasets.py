"""One table occurrence to scan: partition keys, then inverted indices, then the joins of the cube.

Overlays are respected: of several files with the same cell the last one counts, so a file
may only be dropped because of a payload condition if it does not hide a row of a kept file.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from kartosql.indexes.index import Subject
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator, FileFilter, rejects_null
from kartosql.plan.occurrences import Occurrence
from kartosql.plan.overlay import Overlays
from kartosql.plan.scan import OccurrenceScan, PartScan
from kartosql.plan.transfer import Draft, Transfer
from kartosql.predicate.tree import Condition, is_evaluable, parameters_for
from kartosql.tables.table import Changelog, Overlay, Part


class OccurrencePruner:
    """Prunes one table occurrence."""

    def __init__(
        self,
        query: BoundQuery,
        evaluator: Evaluator,
        occurrence: Occurrence,
        conditions: Sequence[Condition],
        reason: str | None,
        *,
        trace: bool = False,
    ) -> None:
        self._query = query
        self._evaluator = evaluator
        self._occurrence = occurrence
        self._source = occurrence.source
        self._conditions = list(conditions)
        self._reason = reason
        self._trace = trace

    def scan(self) -> OccurrenceScan:
        """Return what the occurrence has to read."""
        used = self._occurrence.columns
        parts = [p for p in self._source.parts if self._is_needed(p, used)]
        eliminated = tuple(p.name for p in self._source.parts if p not in parts)
        drafts = [self._draft(part, seed=at == 0) for at, part in enumerate(parts)]
        if len(drafts) > 1:
            Transfer(drafts, self._evaluator.cells, self._query.parameters).run()
        scans = []
        for draft in drafts:
            overlaid = Overlays(draft.part, self._evaluator.cells).within(draft.files)
            files, steps = tuple(sorted(draft.files)), draft.steps(trace=self._trace)
            scans.append(PartScan(draft.part, draft.join, files, overlaid, steps, hiding=draft.back & draft.files))
        reason = None if any(s.steps for s in scans) else self._reason
        texts = tuple(c.text for c in self._conditions)
        return OccurrenceScan(
            self._occurrence, tuple(scans), eliminated, texts, reason, predicates=tuple(self._conditions)
        )

    def _is_needed(self, part: Part, used: frozenset[str] | None) -> bool:
        if part is self._source.parts[0] or used is None:
            return True
        return any(self._source.owner.get(column) == part.name for column in used)

    def _draft(self, part: Part, *, seed: bool) -> Draft:
        """Prune one dataset by the conditions that its own columns answer."""
        draft = Draft(part, "seed" if seed else "left", part.table.all_files)
        key = frozenset(part.join_key)
        own = {c for c, name in self._source.owner.items() if name == part.name} | key
        if not seed and any(self._drops_missing(c, own - key) for c in self._conditions):
            draft.join = "inner"
        draft.own = [c for c in self._conditions if self._is_about(c, own)]
        # A left-joined dataset may only lose rows that no seed row can meet: those ruled out by key columns.
        payload = own if seed or draft.join == "inner" else key
        if isinstance(part.rows, Changelog):
            own &= part.rows.stable
        if not part.join_key:
            self._apply_plain(draft, own)
            return draft
        self._apply(draft, self._conditions, key)
        others = [c for c in self._conditions if any(name not in key for _, name in c.columns)]
        self._skip(draft, [c for c in self._conditions if c not in others], key)
        before, since = draft.files, len(draft.narrowed)
        self._skip(draft, others, payload)
        self._apply(draft, others, payload)
        if draft.files != before:
            overlays = Overlays(part, self._evaluator.cells)
            draft.take_back(overlays.hiding(draft.files, before, draft.own, self._query.parameters), since)
        return draft

    def _apply_plain(self, draft: Draft, own: Set[str]) -> None:
        """Narrow a dataset without overlays by all conditions; data-skipping metadata come after partition keys."""
        table = draft.part.table
        if table.skipping is None:
            self._apply(draft, self._conditions, own)
            return
        keys = own & set(table.partition_keys)
        by_keys = [c for c in self._conditions if self._is_about(c, keys)]
        others = [c for c in self._conditions if c not in by_keys]
        self._apply(draft, by_keys, keys)
        self._skip(draft, others, own)
        self._apply(draft, others, own)

    def _skip(self, draft: Draft, conditions: Sequence[Condition], own: Set[str]) -> None:
        """Narrow a dataset by its data-skipping metadata, if it has any."""
        if draft.part.table.skipping is None:
            return
        # Imported late, as most tables have none.
        from kartosql.indexes.skipping import SkippingIndexes

        index = SkippingIndexes(self._subject(draft, own))
        for condition in conditions:
            for found in index.candidates(condition, draft.files):
                if draft.files:
                    draft.narrow(found.files, condition.text, found.by)

    def _drops_missing(self, condition: Condition, payload: Set[str]) -> bool:
        """Return whether a condition drops all rows for which a dataset, with its ``payload``, has no partner."""
        seed = self._source.parts[0].table
        keys = {name: f"k{i}" for i, name in enumerate(seed.partition_keys)}
        if not self._is_about(condition, payload | keys.keys()) or all(c in keys for _, c in condition.columns):
            return False
        types = self._source.columns
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

    def _apply(self, draft: Draft, conditions: list[Condition], usable: Set[str]) -> None:
        """Narrow a dataset by all conditions over the ``usable`` columns."""
        if not conditions:
            return
        rows = draft.part.rows
        never_null = rows.never_null if isinstance(rows, Overlay) else frozenset()
        filter_ = FileFilter(self._subject(draft, usable), never_null, never_nan=bool(never_null))
        for condition in filter_.groups(conditions):
            files = filter_.files(condition, draft.files)
            draft.narrow(files, filter_.account(condition), filter_.by(), filter_.alternatives)

    def _subject(self, draft: Draft, usable: Set[str]) -> Subject:
        return Subject(draft.part.table, self._occurrence.id, self._evaluator, self._query.parameters, usable)
