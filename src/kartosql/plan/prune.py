"""Bound query to scan: the conditions of each table occurrence, and what they leave of it."""

from __future__ import annotations

from kartosql.plan.bind import BoundQuery
from kartosql.plan.conditions import Condition, ConditionReader
from kartosql.plan.datasets import OccurrencePruner, rejects_null
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.extract import Extractor
from kartosql.plan.occurrences import Occurrence
from kartosql.plan.scan import Scan


def prune(query: BoundQuery, evaluator: Evaluator, *, enabled: bool = True) -> Scan:
    """Return the files that suffice to answer ``query``.

    ``enabled=False`` keeps all files of the datasets that are used; the rows are the same.
    """
    conditions: dict[int, list[Condition]] = {}
    reasons: dict[int, str] = {}
    if enabled:
        reader = ConditionReader(
            query.select.text, query.bound, dict(query.parameter_places), evaluator.is_pure, evaluator.same_meaning
        )

        def rejects(condition: Condition, occurrence: Occurrence) -> bool:
            return rejects_null(condition, occurrence, query, evaluator)

        extractor = Extractor(reader, rejects)
        for scope in query.scopes:
            extractor.scope(scope)
        conditions, reasons = extractor.found, extractor.reasons
    scans = [
        OccurrencePruner(query, evaluator, o, conditions.get(o.id, []), reasons.get(o.id)).scan()
        for o in query.occurrences
        if o.source.registered is None
    ]
    return Scan(tuple(scans))
