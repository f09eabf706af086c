"""Relations of a plan as pieces of one Spark statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kartosql.engines.spark.portable.expressions import Column


@dataclass(frozen=True)
class Relation:
    """What stands in FROM, and what else a SELECT over it has to have; ``columns`` are in scope there.

    Names of columns are unique in the whole statement, so that none needs a qualifier.
    """

    source: str | None  # None for one row without columns
    columns: tuple[Column, ...]
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

    def filtered(self, conditions: Sequence[str]) -> Relation:
        """Return the rows that satisfy conditions; not for relations with a limit."""
        return replace(self, where=(*self.where, *conditions))

    def of(self, positions: Sequence[int]) -> Relation:
        """Return some of the columns, in a given order."""
        return replace(self, columns=tuple(self.columns[i] for i in positions))


class Builder:
    """Makes relations out of others, with names that are used nowhere else."""

    def __init__(self) -> None:
        self._count = 0
        self.expressions: list[tuple[str, str]] = []  # common table expressions: name and query, in order

    def fresh(self, letter: str = "k") -> str:
        """Return a name that is used nowhere else."""
        self._count += 1
        return f"{letter}{self._count}"

    def project(self, relation: Relation, items: Sequence[Column], *, distinct: bool = False) -> Relation:
        """Return the relation of some expressions over another one."""
        names = [self.fresh() for _ in items]
        query = relation.select([f"{i.sql} AS {n}" for i, n in zip(items, names, strict=True)], distinct=distinct)
        return self.query(query, [Column(n, i.type) for i, n in zip(items, names, strict=True)])

    def query(self, query: str, columns: Sequence[Column]) -> Relation:
        """Return the relation that a query is."""
        return Relation(f"({query}) AS {self.fresh('t')}", tuple(columns))

    def settled(self, relation: Relation) -> Relation:
        """Return the relation as a source with nothing around it; an order without limit is dropped."""
        if not relation.where and not relation.limit and relation.source is not None:
            return replace(relation, order="")
        if not relation.limit:
            relation = replace(relation, order="")
        return self.project(relation, relation.columns)

    def item(self, relation: Relation) -> Relation:
        """Return the relation as a single item of FROM."""
        settled = self.settled(relation)
        return settled if settled.simple else self.project(settled, settled.columns)

    def unlimited(self, relation: Relation) -> Relation:
        """Return the relation as one that may be filtered and ordered."""
        return self.settled(relation) if relation.limit else relation

    def shared(self, relation: Relation) -> str:
        """Make a relation a common table expression and return its name; its columns are c0, c1, ..."""
        name = self.fresh("w")
        items = [f"{c.sql} AS c{i}" for i, c in enumerate(relation.columns)]
        self.expressions.append((name, relation.select(items)))
        return name

    def reference(self, name: str, columns: Sequence[Column]) -> Relation:
        """Return one reference to a common table expression."""
        names = [self.fresh() for _ in columns]
        items = ", ".join(f"c{i} AS {n}" for i, n in enumerate(names)) or "true"
        query = f"SELECT {items} FROM {name}"
        return self.query(query, [Column(n, c.type) for n, c in zip(names, columns, strict=True)])
