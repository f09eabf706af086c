"""What joins do to the rows of their sources: who is filled with NULLs, and which conditions may prune whom.

A condition may prune a source if rows for which it is not TRUE cannot change the result.
Source of the rules: the three-valued logic of SQL, and differential fuzzing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kartosql.plan.table_refs import Source
from kartosql.predicate.tree import ColumnRef, Condition


@dataclass(frozen=True)
class Pair:
    """A column that must equal another one; ``known`` are the conditions on the other, where it stands elsewhere."""

    column: ColumnRef
    other: ColumnRef
    known: tuple[Condition, ...] | None = None


@dataclass(frozen=True)
class Conjunct:
    """A part of WHERE, HAVING or ON that must be TRUE, and the columns that are equal by it."""

    condition: Condition
    pairs: tuple[Pair, ...] = ()

    def mentions(self, source: Source) -> bool:
        """Return whether a column of ``source`` occurs."""
        return any(c[0] == source.id for c in self.condition.columns) or self.equates(source)

    def equates(self, source: Source) -> bool:
        """Return whether a column of ``source`` must equal another one."""
        return any(p.column[0] == source.id for p in self.pairs)

    @property
    def is_constant(self) -> bool:
        """Whether no column of a table here occurs."""
        return not self.condition.columns and not self.pairs


RejectsNull = Callable[[Conjunct, Source], bool]


class Joins:
    """The FROM clause of one SELECT, with outer joins strengthened by conditions that reject NULL.

    ``final`` are conjuncts that hold for all rows that matter of the joined table, ``on``
    those of each join by the position of its source.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        final: Sequence[Conjunct],
        on: dict[int, list[Conjunct]],
        rejects: RejectsNull,
    ) -> None:
        self.sources = sources
        self.final = final
        self.on = on
        self.sides = [_side(s) for s in sources]
        # A comma binds less than JOIN: outer joins reach back to the last one.
        self._start: list[int] = []
        for at, source in enumerate(sources):
            self._start.append(at if at == 0 or _is_comma(source) else self._start[-1])
        self._strengthen(rejects)

    @property
    def holding(self) -> list[Conjunct]:
        """Conjuncts that hold for all rows that matter: the final ones, and ON of inner joins that nothing undoes."""
        inner = [
            c for i, found in self.on.items() if self.sides[i] in ("INNER", "SEMI") for c in found if self.stays(i)
        ]
        return [*self.final, *inner]

    def stays(self, join: int) -> bool:
        """Return whether no later join adds rows for which the ON of a join was not TRUE."""
        following = range(join + 1, len(self.sides))
        return not any(self.sides[i] in ("RIGHT", "FULL") and self._start[i] <= join for i in following)

    def nullable(self, before: int | None = None) -> set[int]:
        """Return the positions of the sources that outer joins may fill with NULLs, up to a position."""
        found: set[int] = set()
        for at, side in enumerate(self.sides[:before]):
            if side in ("LEFT", "FULL"):
                found.add(at)
            if side in ("RIGHT", "FULL"):
                found.update(range(self._start[at], at))
        return found

    def _strengthen(self, rejects: RejectsNull) -> None:
        """Turn outer joins into inner ones where the rows they add cannot matter."""
        changed = True
        while changed and self.nullable():
            changed = False
            holding = self.holding
            nullable = self.nullable()
            rejected = {
                i
                for i in nullable
                if not self.sources[i].nested
                and self._is_seen(i)
                and any(c.mentions(self.sources[i]) and rejects(c, self.sources[i]) for c in holding)
            }
            for i, side in enumerate(self.sides):
                left = any(self._start[i] <= j < i for j in rejected)
                new = _STRONGER.get((side, left, i in rejected), side)
                changed |= new != side
                self.sides[i] = new

    def _is_seen(self, at: int) -> bool:
        """Return whether WHERE sees the source as it is: not those of SEMI, ANTI and ASOF joins."""
        return self.sides[at] not in ("SEMI", "ANTI", "ASOF", "POSITIONAL")

    def usable(self, at: int) -> list[Conjunct]:
        """Return the conjuncts that may prune the source at a position."""
        source = self.sources[at]
        if not source.prunable:
            return []
        found: list[Conjunct] = []
        if self._is_seen(at) and at not in self.nullable():
            found += [c for c in self.final if c.mentions(source) or c.is_constant]
        else:
            found += [c for c in self.final if c.is_constant]
        for i in range(at, len(self.sides)):
            if i in self.on and self._on_may_prune(i, at):
                found += [c for c in self.on[i] if c.mentions(source)]
        return found

    def _on_may_prune(self, join: int, at: int) -> bool:
        side, is_right = self.sides[join], join == at
        if side in ("FULL", "ASOF", "POSITIONAL") or at < self._start[join]:
            return False
        if side in ("LEFT", "ANTI"):
            return is_right
        if side == "RIGHT":
            return not is_right and at not in self.nullable(join) and self._is_seen(at)
        return is_right or (at not in self.nullable(join) and self._is_seen(at))


# (side, something before is rejected, the joined source is rejected) -> what the join is then
_STRONGER = {
    ("LEFT", False, True): "INNER",
    ("LEFT", True, True): "INNER",
    ("RIGHT", True, False): "INNER",
    ("RIGHT", True, True): "INNER",
    ("FULL", True, False): "LEFT",
    ("FULL", False, True): "RIGHT",
    ("FULL", True, True): "INNER",
}


def _side(source: Source) -> str:
    join = source.join
    if join is None or source.nested:
        return "INNER"
    method, kind, side = ((v or "").upper() for v in (join.method, join.kind, join.side))
    if method in ("ASOF", "POSITIONAL"):
        return method
    if kind in ("SEMI", "ANTI"):
        return kind
    return side or "INNER"


def _is_comma(source: Source) -> bool:
    join = source.join
    if join is None:
        return True
    return not (source.nested or join.args.get("on") or join.kind or join.side or join.method or join.args.get("using"))


def is_positional(sources: Iterable[Source]) -> bool:
    """Return whether a positional join needs all rows of all sources."""
    return any(_side(s) == "POSITIONAL" for s in sources)
