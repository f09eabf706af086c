"""Through which queries a condition on their result may be moved to the rows they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from kartosql.plan.columns import ColumnTypes
from kartosql.plan.reader import ConditionReader
from kartosql.plan.table_refs import Output, Relation, Scope
from kartosql.predicate.tree import ColumnRef, Pieces
from kartosql.sql.tokens import number_of

Meaning = Callable[[ColumnRef], Pieces | None]


class Pushdown:
    """Replaces the output columns of a query by expressions inside of it, where a condition may be pushed down."""

    def __init__(self, reader: ConditionReader, types: ColumnTypes) -> None:
        self._reader = reader
        self._types = types

    def into_branch(self, relation: Relation, branch: Relation) -> Meaning:
        """Return the meaning of a set operation's columns in one of its branches."""

        def meaning(ref: ColumnRef) -> Pieces | None:
            if ref[0] != relation.id:
                return None
            type_ = self._types.of(ref)
            if type_ is None or not (relation.keeps_duplicates or self._types.is_plain(type_)):
                return None
            inner = (branch.id, ref[1])
            return (inner,) if self._types.of(inner) == type_ else ("CAST(", inner, f" AS {type_})")

        return meaning

    def into_select(self, relation: Relation) -> Meaning:
        """Return the meaning of a SELECT's columns in terms of the sources of its FROM clause.

        Rows that are dropped must not change other rows: of an aggregation only whole groups
        may go, of a window whole partitions.
        """
        scope, outputs = relation.scope, relation.outputs
        if scope is None or outputs is None or scope.select.args.get("sample"):
            return lambda ref: None
        keys = self.group_keys(scope)
        windows = [self._partition_keys(w, scope) for w in _windows(scope.select)]

        def meaning(ref: ColumnRef) -> Pieces | None:
            if ref[0] != relation.id:
                return None
            at = int(ref[1])
            pieces = self._value(outputs[at], ref)
            if pieces is None or not (relation.keeps_duplicates or self._types.is_plain(self._types.of(ref))):
                return None
            used = {p for p in pieces if isinstance(p, tuple)}
            if keys is not None and not used <= keys and not self._is_key(at, relation):
                return None
            return pieces if all(used <= partition for partition in windows) else None

        return meaning

    def _value(self, output: Output, ref: ColumnRef) -> Pieces | None:
        if output.source is not None:
            return ((output.source[0].id, output.source[1]),)
        pieces = self._reader.pieces(output.value) if output.value is not None else None
        type_ = self._types.of(ref) if pieces is not None else None
        # Seen from outside the expression has a type of its own, which a literal takes on only there.
        return None if pieces is None or type_ is None else ("CAST((", *pieces, f") AS {type_})")

    # -- GROUP BY ----------------------------------------------------------------------------

    def group_keys(self, scope: Scope) -> frozenset[ColumnRef] | None:
        """Return the columns that are equal in each group, or None where nothing is aggregated."""
        group = scope.select.args.get("group")
        if group is None:
            return frozenset() if scope.select.args.get("having") is not None else None
        if not _is_simple(group):
            return frozenset()
        keys = [self._reader.column(e) for e in _group_items(scope.select, group)]
        return frozenset(k for k in keys if k is not None and self._types.is_plain(self._types.of(k)))

    def _is_key(self, at: int, relation: Relation) -> bool:
        """Return whether an output column is itself an expression that is grouped by."""
        scope, output = relation.scope, (relation.outputs or [])[at]
        group = scope.select.args.get("group") if scope is not None else None
        if scope is None or group is None or output.value is None or not _is_simple(group):
            return False
        if not self._types.is_plain(self._types.of((relation.id, str(at)))):
            return False
        items = _group_items(scope.select, group)
        return any(e == output.value or self._reader.alias(e) is output.value for e in items)

    # -- windows -----------------------------------------------------------------------------

    def _partition_keys(self, window: exp.Window, scope: Scope) -> frozenset[ColumnRef]:
        by = list(window.args.get("partition_by") or ())
        name = window.args.get("alias") or (window.this if isinstance(window.this, exp.Identifier) else None)
        if name is not None and not by:
            named = [w for w in scope.select.args.get("windows") or () if w.this.name.lower() == name.name.lower()]
            by = [k for w in named[:1] for k in w.args.get("partition_by") or ()]
        keys = [self._reader.column(e) for e in by]
        return frozenset(k for k in keys if k is not None and self._types.is_plain(self._types.of(k)))


def _windows(select: exp.Select) -> Iterator[exp.Window]:
    """Yield the windows that a SELECT's rows and columns depend on, without those of queries inside of it."""
    stack: list[exp.Expression] = [*select.expressions]
    if select.args.get("qualify") is not None:
        stack.append(select.args["qualify"])
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Window):
            yield node
        if not isinstance(node, exp.Query):
            stack += list(node.iter_expressions())


def _is_simple(group: exp.Expression) -> bool:
    """Return whether a GROUP BY has no ROLLUP, CUBE or GROUPING SETS."""
    if any(value for key, value in group.args.items() if key not in ("expressions", "all")):
        return False
    return not any(isinstance(e, (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple)) for e in group.expressions)


def _group_items(select: exp.Select, group: exp.Expression) -> list[exp.Expression]:
    """Return what is grouped by; positions and aliases stand for items of the SELECT list."""
    items = select.expressions
    if group.args.get("all"):
        return [_unaliased(e) for e in items if e.find(exp.AggFunc, exp.Anonymous, exp.Window, exp.Query) is None]
    found = []
    for e in group.expressions:
        if isinstance(e, exp.Literal):
            number = None if e.is_string else number_of(str(e.this))
            at = number - 1 if isinstance(number, int) else -1
            plain = not any(i.is_star for i in items)
            if plain and 0 <= at < len(items):
                found.append(_unaliased(items[at]))
        else:
            found.append(e)
    return found


def _unaliased(node: exp.Expression) -> exp.Expression:
    return node.this if isinstance(node, exp.Alias) else node
