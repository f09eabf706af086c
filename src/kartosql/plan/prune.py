"""Bound query to scan: the conditions of each table occurrence, and the files that they leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from kartosql.errors import Span
from kartosql.indexes.index import Subject
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator, FileFilter, rejects_null
from kartosql.plan.extract import Extractor
from kartosql.plan.join_pruning import Draft, JoinPruner
from kartosql.plan.limit_pushdown import LimitedSelects, push_down_limits
from kartosql.plan.overlays import Overlays
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scan import OccurrenceScan, PartScan, PhaseClock, Scan
from kartosql.plan.table_refs import Occurrence
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
            JoinPruner(drafts, self._evaluator.cells, self._query.parameters).run()
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
    reader = reader_of(query, evaluator, freeze)
    clock = PhaseClock()
    extractor = _extract(query, evaluator, reader) if enabled else None
    clock.lap("conditions")
    conditions = extractor.found if extractor is not None else {}
    reasons = extractor.reasons if extractor is not None else {}

    def scan(bound: BoundQuery, occurrence: Occurrence, found: list[Condition]) -> OccurrenceScan:
        reason = reasons.get(occurrence.id)
        return OccurrencePruner(bound, evaluator, occurrence, found, reason, trace=trace).scan()

    stored = [o for o in query.occurrences if o.source.data is None]
    scans = {o.id: scan(query, o, conditions.get(o.id, [])) for o in stored}
    clock.lap("files")
    if extractor is not None and any(extractor.dynamic_filters.values()):
        from kartosql.plan.dynamic_filters import DynamicFilterPlanner

        planner = DynamicFilterPlanner(query, evaluator, conditions)
        scans = planner.run(scans, extractor.dynamic_filters, extractor.origin, scan)
        clock.lap("lookups")
    counts: tuple[tuple[Span, bool], ...] = ()
    if enabled:
        counts = push_down_limits(query, evaluator, LimitedSelects(query.walked, reader, query.parameters), scans)
    clock.lap("shapes")
    explained = (_explained(scans[o.id], conditions.get(o.id, [])) for o in stored)
    return Scan(tuple(explained), counts, clock.phases)


def reader_of(
    query: BoundQuery, evaluator: Evaluator, freeze: Callable[[str], str | None] | None = None
) -> ConditionReader:
    """Return the reader of a query's predicates."""
    return ConditionReader(
        query.select.text,
        query.walked.bound,
        query.walked.members,
        query.parameter_places,
        query.parameters,
        evaluator,
        freeze or evaluator.freeze,
    )


def _explained(scan: OccurrenceScan, conditions: list[Condition]) -> OccurrenceScan:
    """Note which conditions left out no file, and why."""
    steps = [step.condition for part in scan.parts for step in part.steps]
    unused = []
    for condition in dict.fromkeys(conditions):
        if not any(condition.text in step for step in steps):
            foreign = any(ref[0] != scan.occurrence.id for ref in condition.columns)
            reason = (
                "it depends on more than columns, constants and functions of them"
                if not is_evaluable(condition)
                else "it depends on other tables"
                if foreign
                else "no partition key, index or statistics of the table answers it"
            )
            unused.append((condition.text, reason))
    return replace(scan, unused=tuple(unused))


def _extract(query: BoundQuery, evaluator: Evaluator, reader: ConditionReader) -> Extractor:
    extractor = Extractor(query.walked, reader, evaluator, query.parameters)
    try:
        extractor.run()
    except RecursionError:
        extractor.found, extractor.dynamic_filters = {}, {}
        extractor.reasons = {o.id: "the statement is nested too deeply" for o in query.occurrences}
    for occurrence in query.occurrences:
        if occurrence.id not in extractor.found:
            extractor.reasons.setdefault(occurrence.id, "the planner does not look into the construct around it")
    return extractor
