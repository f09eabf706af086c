"""Bound query to scan: the conditions of each table occurrence, and what they leave of it."""

from __future__ import annotations

from collections.abc import Callable

from kartosql.plan.bind import BoundQuery
from kartosql.plan.conditions import Condition
from kartosql.plan.datasets import OccurrencePruner
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.extract import Extractor
from kartosql.plan.less import read_less
from kartosql.plan.lookup import LookupPlanner
from kartosql.plan.occurrences import Occurrence
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scan import OccurrenceScan, Scan
from kartosql.plan.shapes import Shapes


def prune(
    query: BoundQuery,
    evaluator: Evaluator,
    *,
    enabled: bool = True,
    freeze: Callable[[str], str | None] | None = None,
) -> Scan:
    """Return the files that suffice to answer ``query``.

    ``enabled=False`` keeps all files of the datasets that are used; the rows are the same.
    ``freeze`` returns the literal that a function of the clock, such as ``now()``, stands for
    in this statement; without it the evaluator's own clock is asked.
    """
    reader = ConditionReader(
        query.select.text,
        query.walked.bound,
        query.parameter_places,
        evaluator.is_pure,
        evaluator.same_meaning,
        freeze or evaluator.freeze,
    )
    extractor = _extract(query, evaluator, reader) if enabled else None
    conditions = extractor.found if extractor is not None else {}
    reasons = extractor.reasons if extractor is not None else {}

    def scan(bound: BoundQuery, occurrence: Occurrence, found: list[Condition]) -> OccurrenceScan:
        return OccurrencePruner(bound, evaluator, occurrence, found, reasons.get(occurrence.id)).scan()

    stored = [o for o in query.occurrences if o.source.registered is None]
    scans = {o.id: scan(query, o, conditions.get(o.id, [])) for o in stored}
    if extractor is not None and any(extractor.lookups.values()):
        planner = LookupPlanner(query, evaluator, conditions)
        scans = planner.run(scans, extractor.lookups, extractor.origin, scan)
    shapes = Shapes(query.walked, reader, query.parameters) if enabled else None
    counts = read_less(query, evaluator, shapes, scans) if shapes is not None else ()
    return Scan(tuple(scans[o.id] for o in stored), counts)


def _extract(query: BoundQuery, evaluator: Evaluator, reader: ConditionReader) -> Extractor:
    extractor = Extractor(query.walked, reader, evaluator, query.parameters)
    try:
        extractor.run()
    except RecursionError:
        extractor.found, extractor.lookups = {}, {}
        extractor.reasons = {o.id: "the statement is nested too deeply" for o in query.occurrences}
    return extractor
