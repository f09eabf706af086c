"""Which constants of a statement an index is asked for, so that other ones can be looked up in their place."""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp

from kartosql.errors import Span
from kartosql.plan.bind import BoundQuery
from kartosql.sql.tree import operands, span_of

Lookup = tuple[str, list[Span]]  # a column, and the places of the constants of which it has to be one


def lookups_of(bound: BoundQuery, conditions: Collection[str]) -> list[Lookup]:
    """Return what the conditions that a plan used for files ask of columns, as far as other constants may stand there.

    Only comparisons ``column = constant`` and ``column IN (constants)`` that the WHERE of a statement over one table
    connects by AND count.
    """
    tree, text = bound.select.tree, bound.select.text
    where = tree.args.get("where") if isinstance(tree, exp.Select) else None
    if where is None or len(bound.occurrences) != 1:
        return []
    found: list[Lookup] = []
    for node in operands(where.this) if isinstance(where.this, exp.And) else [where.this]:
        span = span_of(node)
        if span is None or text[span[0] : span[1]] not in conditions:
            continue
        if isinstance(node, exp.EQ):
            column, constants = node.this, [node.expression]
        elif isinstance(node, exp.In) and len(node.args) == 2:
            column, constants = node.this, node.expressions
        else:
            continue
        known = bound.walked.bound.get(id(column))
        spans = [(c.meta.get("start", -1), c.meta.get("end", -1) + 1) for c in constants]
        if known is not None and known.source is not None and {*spans} <= {*bound.select.constants}:
            found.append((known.source.real(known.column), spans))
    return found
