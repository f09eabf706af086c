"""Unknown names in the place of a value: texts without single quotes."""

from __future__ import annotations

from dataclasses import replace

from kartosql.indexes.index import Subject
from kartosql.plan.bind import compared_with
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.prune import FileFilter
from kartosql.plan.scopes import Unknown, Walked
from kartosql.predicate.tree import Opaque
from kartosql.text.constants import literal


def with_hints(unknown: tuple[Unknown, ...], walked: Walked, evaluator: Evaluator) -> tuple[Unknown, ...]:
    """Return names that nothing explains, with hints where a value is known that they look like."""
    return tuple(replace(u, hint=_value_hint(u, walked, evaluator)) for u in unknown)


def _value_hint(unknown: Unknown, walked: Walked, evaluator: Evaluator) -> str | None:
    """Return a hint, if the partition keys or an index of a column know the value that a name looks like."""
    bound = walked.bound.get(id(compared_with(unknown)))
    source = None if bound is None else bound.source
    occurrence = None if source is None else source.occurrence
    if bound is None or source is None or occurrence is None:
        return None
    column, text = source.real(bound.column), literal(unknown.name)
    condition = Opaque("", ((occurrence.id, column), f" = {text}"))
    for part in occurrence.source.parts:
        if column not in (*part.table.partition_keys, *part.table.indices):
            continue
        every = frozenset({column})
        asked = FileFilter(Subject(part.table, occurrence.id, evaluator, {}, usable=every, never_null=every))
        if asked.files(condition) and not asked.account(condition):
            return f"{column} has the value {text}. Text stands in single quotes."
    return None
