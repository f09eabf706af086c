"""Bound query to scan: the conditions of each table occurrence, and what they leave of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kartosql.plan.bind import BoundQuery
from kartosql.plan.datasets import OccurrencePruner
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.extract import Extractor
from kartosql.plan.less import read_less
from kartosql.plan.occurrences import Occurrence
from kartosql.plan.phases import PhaseClock
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scan import OccurrenceScan, Scan
from kartosql.plan.shapes import Shapes
from kartosql.predicate.tree import Condition, is_evaluable


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
    if extractor is not None and any(extractor.lookups.values()):
        from kartosql.plan.lookup import LookupPlanner

        planner = LookupPlanner(query, evaluator, conditions)
        scans = planner.run(scans, extractor.lookups, extractor.origin, scan)
        clock.lap("lookups")
    shapes = Shapes(query.walked, reader, query.parameters) if enabled else None
    counts = read_less(query, evaluator, shapes, scans) if shapes is not None else ()
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
        extractor.found, extractor.lookups = {}, {}
        extractor.reasons = {o.id: "the statement is nested too deeply" for o in query.occurrences}
    for occurrence in query.occurrences:
        if occurrence.id not in extractor.found:
            extractor.reasons.setdefault(occurrence.id, "the planner does not look into the construct around it")
    return extractor
