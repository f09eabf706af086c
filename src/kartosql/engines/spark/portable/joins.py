"""Joins of a plan, and the subqueries that DuckDB made joins of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kartosql.engines.spark.portable.casts import raises
from kartosql.engines.spark.portable.constants import Node
from kartosql.engines.spark.portable.duckdb_types import BOOLEAN
from kartosql.engines.spark.portable.expressions import Expressions, SparkColumn
from kartosql.engines.spark.portable.rules import Arg
from kartosql.errors import NotPortable


@dataclass(frozen=True)
class SparkRelation:
    """A FROM clause, and what else a SELECT over it has to have; ``columns`` are in scope there.

    Names of columns are unique in the whole statement, so that none needs a qualifier.
    """

    source: str | None  # None for one row without columns
    columns: tuple[SparkColumn, ...]
    where: tuple[str, ...] = ()
    order: str = ""
    limit: str = ""
    simple: bool = True  # whether the source is a single item

    def select(self, items: Sequence[str], *, distinct: bool = False) -> str:
        """Return the SELECT of some expressions."""
        text = f"SELECT {'DISTINCT ' if distinct else ''}{', '.join(items) or 'true'}"
        if self.source is not None:
            text += f" FROM {self.source}"
        elif self.where:
            text += " FROM (SELECT true)"
        if self.where:
            text += f" WHERE {' AND '.join(self.where)}"
        if self.order:
            text += f" ORDER BY {self.order}"
        return text + self.limit

    def filtered(self, conditions: Sequence[str]) -> SparkRelation:
        """Return the rows that satisfy conditions; not for relations with a limit."""
        return replace(self, where=(*self.where, *conditions))

    def of(self, positions: Sequence[int]) -> SparkRelation:
        """Return some of the columns, in a given order."""
        return replace(self, columns=tuple(self.columns[i] for i in positions))


class JoinBuilder:
    """Makes relations out of others, with names that are used nowhere else."""

    def __init__(self) -> None:
        self._count = 0
        self.expressions: list[tuple[str, str]] = []  # common table expressions: name and query, in order

    def fresh(self, letter: str = "k") -> str:
        """Return a name that is used nowhere else."""
        self._count += 1
        return f"{letter}{self._count}"

    def project(
        self, relation: SparkRelation, items: Sequence[SparkColumn], *, distinct: bool = False
    ) -> SparkRelation:
        """Return the relation of some expressions over another one."""
        names = [self.fresh() for _ in items]
        query = relation.select([f"{i.sql} AS {n}" for i, n in zip(items, names, strict=True)], distinct=distinct)
        return self.query(query, [SparkColumn(n, i.type) for i, n in zip(items, names, strict=True)])

    def query(self, query: str, columns: Sequence[SparkColumn]) -> SparkRelation:
        """Return the relation that a query is."""
        return SparkRelation(f"({query}) AS {self.fresh('t')}", tuple(columns))

    def settled(self, relation: SparkRelation) -> SparkRelation:
        """Return the relation as a source with nothing around it; an order without limit is dropped."""
        if not relation.where and not relation.limit and relation.source is not None:
            return replace(relation, order="")
        if not relation.limit:
            relation = replace(relation, order="")
        return self.project(relation, relation.columns)

    def item(self, relation: SparkRelation) -> SparkRelation:
        """Return the relation as a single item of FROM."""
        settled = self.settled(relation)
        return settled if settled.simple else self.project(settled, settled.columns)

    def unlimited(self, relation: SparkRelation) -> SparkRelation:
        """Return the relation as one that may be filtered and ordered."""
        return self.settled(relation) if relation.limit else relation

    def shared(self, relation: SparkRelation) -> str:
        """Make a relation a common table expression and return its name; its columns are c0, c1, ..."""
        name = self.fresh("w")
        items = [f"{c.sql} AS c{i}" for i, c in enumerate(relation.columns)]
        self.expressions.append((name, relation.select(items)))
        return name

    def reference(self, name: str, columns: Sequence[SparkColumn]) -> SparkRelation:
        """Return one reference to a common table expression."""
        names = [self.fresh() for _ in columns]
        items = ", ".join(f"c{i} AS {n}" for i, n in enumerate(names)) or "true"
        query = f"SELECT {items} FROM {name}"
        return self.query(query, [SparkColumn(n, c.type) for n, c in zip(names, columns, strict=True)])


_WORDS = {
    "INNER": "JOIN",
    "LEFT": "LEFT JOIN",
    "RIGHT": "RIGHT JOIN",
    "FULL": "FULL JOIN",
    "OUTER": "FULL JOIN",
    "SEMI": "LEFT SEMI JOIN",
    "ANTI": "LEFT ANTI JOIN",
}
SAME, OTHER, EQUAL = "COMPARE_NOT_DISTINCT_FROM", "COMPARE_DISTINCT_FROM", "COMPARE_EQUAL"
_SEVERAL = "More than one row returned by a subquery used as an expression"


@dataclass(frozen=True)
class JoinCondition:
    """A condition of a join: a comparison of a value of either side, or an expression over both."""

    sql: str
    comparison: str
    left: Arg | None = None
    right: Arg | None = None


@dataclass(frozen=True)
class Marked:
    """Rows with a mark that says whether a subquery holds something like them; not yet written out.

    The mark is the last column. Where it only filters, a semi join takes its place.
    """

    left: SparkRelation
    right: SparkRelation
    conditions: tuple[JoinCondition, ...]
    columns: tuple[SparkColumn, ...]  # of the left side that are kept

    @property
    def is_total(self) -> bool:
        """Whether the mark is never NULL."""
        return all(c.comparison in (SAME, OTHER) for c in self.conditions)


class JoinWriter:
    """Writes the joins of one plan."""

    def __init__(self, expressions: Expressions, builder: JoinBuilder) -> None:
        self._expressions = expressions
        self._builder = builder

    def join(self, node: Node, left: SparkRelation, right: SparkRelation) -> SparkRelation:
        """Return the join of two relations; raises ``not-portable``."""
        kind = node.get("join_type", "INNER")
        if kind == "SINGLE":
            return self._single(node, left, right)
        word = _WORDS.get(kind)
        if word is None:
            raise NotPortable(f"Spark has no {kind} JOIN as DuckDB has it.")
        left, right = self._builder.settled(left), self._builder.item(right)
        on = " AND ".join(c.sql for c in self.conditions(node, left, right))
        if not on and kind == "INNER":
            word = "CROSS JOIN"
        source = f"{left.source} {word} {right.source}" + (f" ON {on or 'true'}" if word != "CROSS JOIN" else "")
        columns = _picked(node, "left", left)
        if kind not in ("SEMI", "ANTI"):
            columns += _picked(node, "right", right)
        return SparkRelation(source, columns, simple=False)

    def cross(self, left: SparkRelation, right: SparkRelation) -> SparkRelation:
        """Return the cross product of two relations."""
        left, right = self._builder.settled(left), self._builder.item(right)
        return SparkRelation(f"{left.source} CROSS JOIN {right.source}", (*left.columns, *right.columns), simple=False)

    def conditions(self, node: Node, left: SparkRelation, right: SparkRelation) -> list[JoinCondition]:
        """Return the conditions of a join over the columns of both sides."""
        both = (*left.columns, *right.columns)
        if "condition" in node:
            return [JoinCondition(self._expressions.sql(node["condition"], both), "INVALID")]
        found = []
        for condition in node.get("conditions", ()):
            comparison = condition.get("comparison", "INVALID")
            if comparison == "INVALID":
                found.append(JoinCondition(self._expressions.sql(condition["left"], both), comparison))
                continue
            a = self._expressions.render(condition["left"], left.columns)
            b = self._expressions.render(condition["right"], right.columns)
            found.append(JoinCondition(self._expressions.compare(comparison, a, b), comparison, a, b))
        return found

    def mark(self, node: Node, left: SparkRelation, right: SparkRelation) -> Marked:
        """Return the rows of one side with a mark for those that the other one holds."""
        left, right = self._builder.settled(left), self._builder.item(right)
        return Marked(left, right, tuple(self.conditions(node, left, right)), _picked(node, "left", left))

    # -- marks -----------------------------------------------------------------------------------

    def only(self, marked: Marked, *, found: bool) -> SparkRelation | None:
        """Return the rows whose mark is true, or false with ``found=False``; None if that is no plain join."""
        if not found and not marked.is_total:
            return None
        word = "LEFT SEMI JOIN" if found else "LEFT ANTI JOIN"
        on = " AND ".join(c.sql for c in marked.conditions) or "true"
        mark = SparkColumn("true" if found else "false", BOOLEAN)
        source = f"{marked.left.source} {word} {marked.right.source} ON {on}"
        return SparkRelation(source, (*marked.columns, mark), simple=False)

    def written(self, marked: Marked) -> SparkRelation:
        """Return the rows with their mark, which is NULL where SQL's IN is."""
        same = [c for c in marked.conditions if c.comparison == SAME]
        others = [c for c in marked.conditions if c.comparison != SAME]
        if len(others) > 1 or any(c.comparison != EQUAL for c in others):
            raise NotPortable("Spark does not answer such a comparison with a subquery as DuckDB does.")
        right = [c.right for c in (*same, *others) if c.right is not None]
        shared = self._builder.shared(self._builder.project(marked.right, [SparkColumn(a.sql, a.type) for a in right]))
        columns = [SparkColumn("", a.type) for a in right]
        held = self._builder.reference(shared, columns)
        if others:
            held = held.filtered([f"{held.columns[-1].sql} IS NOT NULL"])
        held = self._builder.project(held, [*held.columns, SparkColumn("true", BOOLEAN)], distinct=True)
        on = [f"{c.left.sql} <=> {k.sql}" for c, k in zip(same, held.columns, strict=False) if c.left is not None]
        if not others:
            source = f"{marked.left.source} LEFT JOIN {held.source} ON {' AND '.join(on) or 'true'}"
            mark = f"({held.columns[-1].sql} IS NOT NULL)"
            return SparkRelation(source, (*marked.columns, SparkColumn(mark, BOOLEAN)), simple=False)
        value = others[0].left
        assert value is not None
        on.append(f"{value.sql} = {held.columns[len(same)].sql}")
        counts = self._counts(shared, columns)
        keys = [f"{c.left.sql} <=> {k.sql}" for c, k in zip(same, counts.columns, strict=False) if c.left is not None]
        rows, known = (c.sql for c in counts.columns[-2:])
        source = (
            f"{marked.left.source} LEFT JOIN {held.source} ON {' AND '.join(on)} "
            f"LEFT JOIN {counts.source} ON {' AND '.join(keys) or 'true'}"
        )
        mark = (
            f"CASE WHEN {held.columns[-1].sql} THEN true WHEN coalesce({rows}, 0) = 0 THEN false "
            f"WHEN {value.sql} IS NULL OR {known} < {rows} THEN NULL ELSE false END"
        )
        return SparkRelation(source, (*marked.columns, SparkColumn(f"({mark})", BOOLEAN)), simple=False)

    def _counts(self, shared: str, columns: Sequence[SparkColumn]) -> SparkRelation:
        """Return per key how many values a subquery holds, and how many of them are not NULL."""
        held = self._builder.reference(shared, columns)
        keys, value = held.columns[:-1], held.columns[-1]
        names = [self._builder.fresh() for _ in range(len(keys) + 2)]
        items = [*(k.sql for k in keys), "count(*)", f"count({value.sql})"]
        query = held.select([f"{i} AS {n}" for i, n in zip(items, names, strict=True)])
        if keys:
            query += f" GROUP BY {', '.join(k.sql for k in keys)}"
        return self._builder.query(query, [SparkColumn(n, BOOLEAN) for n in names])

    # -- scalar subqueries -------------------------------------------------------------------------

    def _single(self, node: Node, left: SparkRelation, right: SparkRelation) -> SparkRelation:
        """Return rows with the one row of a subquery that belongs to them; several are an error."""
        left, right = self._builder.settled(left), self._builder.item(right)
        conditions = self.conditions(node, left, right)
        keys = [c.right for c in conditions if c.right is not None and c.comparison in (SAME, EQUAL)]
        if len(keys) < len(conditions):
            raise NotPortable("Spark does not answer such a subquery as DuckDB does.")
        wanted = _picked(node, "right", right)
        names = [self._builder.fresh() for _ in range(len(keys) + len(wanted) + 1)]
        items = [*(k.sql for k in keys), *(f"first({w.sql})" for w in wanted), "count(*)"]
        query = right.select([f"{i} AS {n}" for i, n in zip(items, names, strict=True)])
        if keys:
            query += f" GROUP BY {', '.join(k.sql for k in keys)}"
        found = self._builder.query(query, ())
        on = []
        for condition, name in zip(conditions, names, strict=False):
            assert condition.left is not None
            on.append(f"{condition.left.sql} {'<=>' if condition.comparison == SAME else '='} {name}")
        several = f"{names[-1]} > 1"
        values = [
            SparkColumn(f"(CASE WHEN {several} THEN {raises(_SEVERAL)} ELSE {name} END)", w.type)
            for name, w in zip(names[len(keys) :], wanted, strict=False)
        ]
        source = f"{left.source} LEFT JOIN {found.source} ON {' AND '.join(on) or 'true'}"
        return SparkRelation(source, (*_picked(node, "left", left), *values), simple=False)


def _picked(node: Node, side: str, relation: SparkRelation) -> tuple[SparkColumn, ...]:
    positions = node.get(f"{side}_projection_map")
    return relation.columns if not positions else tuple(relation.columns[p] for p in positions)
