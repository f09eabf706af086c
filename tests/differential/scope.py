"""What a random statement may refer to at some place, and what becomes of a stored table's columns on the way."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from differential.stores import Table, World
from differential.values import related

T = TypeVar("T")
MARK = re.compile(r"<@(\d+)>")
PLACE = re.compile(r"<<(\d+)>>")


@dataclass(frozen=True)
class Column:
    """A column; ``lineage`` tells which table occurrences it is taken from, and through which constructs.

    A ``shaky`` float holds by chance the one or the other of two equal zeros.
    """

    name: str
    kind: str
    lineage: tuple[tuple[int, frozenset[str]], ...] = ()
    shaky: bool = False

    def through(self, *constructs: str, shaky: bool = False) -> Column:
        passed = frozenset(constructs)
        lineage = tuple((mark, via | passed) for mark, via in self.lineage)
        return replace(self, lineage=lineage, shaky=self.shaky or shaky)


@dataclass
class Source:
    """One item of FROM that is in scope."""

    alias: str
    columns: list[Column]


@dataclass
class Scope:
    """The items of a FROM clause, and the scope around it."""

    outer: Scope | None = None
    sources: list[Source] = field(default_factory=list)
    merged: dict[str, Column] = field(default_factory=dict)  # columns of USING and NATURAL
    aliases: list[Column] = field(default_factory=list)  # of SELECT
    star: bool = True  # whether ``*`` may be asked for
    links: list[tuple[Column, Column, str]] = field(default_factory=list)  # columns that a join equates

    def names(self) -> list[str]:
        return [c.name for s in self.sources for c in s.columns]


@dataclass
class Query:
    """Text and columns of a query; a ``simple`` one may stand in a set operation as it is."""

    text: str
    columns: list[Column]
    simple: bool = True


@dataclass
class Cte:
    """A common table expression in scope."""

    columns: list[Column]
    uses: int = 0


Env = dict[str, Cte]


class Base:
    """Draws names, columns and constants, and keeps account of the constructs that were written."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.values: list[Any] = []
        self.tags: set[str] = set()
        self.traces: dict[int, list[frozenset[str]]] = {}  # occurrence -> how each of its conditions reaches it
        self.marks = 0
        self.quiet = False  # whether few conditions are written, so that those around count

    # -- drawing ---------------------------------------------------------------------------

    def pick(self, *choices: T) -> T:
        return self.rng.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def weighted(self, **weights: float) -> str:
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def tag(self, *constructs: str) -> None:
        self.tags.update(constructs)

    # -- columns ---------------------------------------------------------------------------

    def base(self, table: Table, *, alias: str) -> tuple[str, Source]:
        """Return the text of an occurrence of a stored table, and its columns."""
        self.marks += 1
        columns = [
            Column(c, k, ((self.marks, frozenset()),) if c in table.pruning else ()) for c, k in table.columns.items()
        ]
        mark = f"<@{self.marks}>" if table.stored else ""
        return f"{table.name}{mark}", Source(alias, columns)

    def refs(self, scope: Scope, *, outer: bool = True) -> list[tuple[str, Column]]:
        """Return every way to name a column at this place."""
        found = []
        names = scope.names()
        own = {s.alias for s in scope.sources}
        for source in scope.sources:
            for column in source.columns:
                bare = names.count(column.name) == 1 and self.chance(0.35)
                found.append((column.name if bare else f"{source.alias}.{column.name}", column))
        found += [(name, column) for name, column in scope.merged.items()]
        if outer and scope.outer is not None and self.chance(0.3):
            around = [s for s in scope.outer.sources if s.alias not in own]
            found += [(f"{s.alias}.{c.name}", c) for s in around for c in s.columns]
        return found

    def ref(self, scope: Scope, *kinds: str, outer: bool = True, exact: bool = True) -> tuple[str, Column] | None:
        """Return one reference, rather to a column that can prune; of one of ``kinds``, if they are given."""
        found = self.refs(scope, outer=outer)
        if kinds:
            found = [(t, c) for t, c in found if (c.kind in kinds if exact else related(c.kind, kinds[0]))]
        if not found:
            return None
        chosen = self.rng.choice(found)
        for _ in range(6 if self.quiet else 2):
            if not chosen[1].lineage:
                chosen = self.rng.choice(found)
        text, column = chosen
        if self.chance(0.02):
            text = text.upper()
        return text, column

    def constrain(self, columns: list[Column], place: str, scope: Scope | None = None) -> None:
        """Note that a condition over ``columns`` stands at ``place``."""
        for column in columns:
            for mark, via in column.lineage:
                self.traces.setdefault(mark, []).append(via | {place})
        for one, other, join in scope.links if scope is not None else ():
            for mine, theirs in ((one, other), (other, one)):
                if mine in columns:
                    for mark, via in theirs.lineage:
                        self.traces.setdefault(mark, []).append(via | {place, f"over {join}"})
