"""Names that nothing explains and that stand where a value would: texts without single quotes."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from kartosql.indexes.index import Subject
from kartosql.plan.evaluate import Evaluator, FileFilter
from kartosql.plan.scopes import Walked
from kartosql.plan.table_refs import Occurrence, Unknown
from kartosql.predicate.tree import Opaque

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.ILike, exp.In, exp.Between)


def quoted(name: str) -> str:
    """Return a text as SQL."""
    return "'" + name.replace("'", "''") + "'"


def compared_with(unknown: Unknown) -> exp.Expression | None:
    """Return what a name that nothing explains is compared with, None if it is not, or has a qualifier."""
    parent = unknown.node.parent
    if unknown.qualifier is not None or not isinstance(parent, _COMPARISONS):
        return None
    first = parent.this
    return parent.args.get("expression") if first is unknown.node else first


def with_known_value(unknown: Unknown, walked: Walked, occurrences: dict[int, Occurrence], evaluator: Evaluator) -> str:
    """Return a hint, if the partition keys or an index of a column know the value that a name looks like, else ''.

    ``occurrences`` are those of the statement by id.
    """
    bound = walked.bound.get(id(compared_with(unknown)))
    source = None if bound is None else bound.source
    occurrence = None if source is None else occurrences.get(source.id)
    if bound is None or source is None or occurrence is None:
        return ""
    column, text = source.real(bound.column), quoted(unknown.name)
    condition = Opaque("", ((occurrence.id, column), f" = {text}"))
    for part in occurrence.source.parts:
        if column not in (*part.table.partition_keys, *part.table.indices):
            continue
        every = frozenset({column})
        subject = Subject(part.table, occurrence.id, evaluator, {}, usable=every)
        asked = FileFilter(subject, every, never_nan=True)
        if asked.files(condition) and not asked.account(condition):
            return f"{column} has the value {text}. Text stands in single quotes."
    return ""


def with_hints(
    unknown: tuple[Unknown, ...], walked: Walked, occurrences: tuple[Occurrence, ...], evaluator: Evaluator
) -> tuple[Unknown, ...]:
    """Return names that nothing explains, with hints where a value is known that they look like."""
    by_id = {o.id: o for o in occurrences}
    return tuple(replace(u, hint=with_known_value(u, walked, by_id, evaluator) or None) for u in unknown)
