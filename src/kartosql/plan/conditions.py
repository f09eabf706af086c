"""Conditions: the boolean structure of a predicate over atoms of the user's own text.

Nodes are immutable. NOT is pushed down to the atoms (De Morgan's laws hold in three-valued
logic), so that a condition is a tree of AND and OR over atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from kartosql.plan.occurrences import ColumnRef
from kartosql.predicate.tree import UNKNOWN, Path, Predicate, renamed


def _unknown() -> Predicate:
    return UNKNOWN


@dataclass(frozen=True)
class Atom:
    """One predicate as the user wrote it, cut at its column references and parameters.

    ``pieces`` alternate between text and a ColumnRef or a parameter name (as ``Parameter``).
    ``says`` returns what the atom says as a tree, whose paths begin with a ColumnRef; it is made when it is asked for.
    """

    pieces: Pieces
    negated: bool
    text: str
    says: Callable[[], Predicate] = field(default=_unknown, compare=False, repr=False)

    @property
    def columns(self) -> frozenset[ColumnRef]:
        """The columns the atom refers to."""
        return frozenset(p for p in self.pieces if isinstance(p, tuple))

    def render(self, column: Callable[[ColumnRef], str]) -> str:
        """Return the atom as SQL, with ``column`` naming each column reference."""
        body = "".join(
            p if isinstance(p, str) else f"${p.name}" if isinstance(p, Parameter) else column(p) for p in self.pieces
        )
        return f"(NOT ({body}))" if self.negated else f"({body})"


@dataclass(frozen=True)
class Parameter:
    """A parameter of the statement, under the name it is handed over with."""

    name: str


@dataclass(frozen=True)
class Group:
    """AND or OR of at least two conditions."""

    op: str
    items: tuple[Condition, ...]

    @property
    def columns(self) -> frozenset[ColumnRef]:
        """The columns that occur below."""
        return frozenset().union(*(i.columns for i in self.items))

    @property
    def text(self) -> str:
        """The condition for people."""
        return f" {self.op} ".join(f"({i.text})" if isinstance(i, Group) else i.text for i in self.items)

    def render(self, column: Callable[[ColumnRef], str]) -> str:
        """Return the condition as SQL."""
        return "(" + f" {self.op} ".join(i.render(column) for i in self.items) + ")"


@dataclass(frozen=True)
class Opaque:
    """A predicate that is not evaluated while planning; it may be true for every row.

    ``members`` is given if nothing but members of structs is in the way, which data-skipping
    metadata know: the predicate, cut at the columns of these members.
    """

    text: str
    columns: frozenset[ColumnRef] = frozenset()
    members: Atom | None = None

    def render(self, column: Callable[[ColumnRef], str]) -> str:
        """Never called: opaque conditions are not evaluated."""
        raise AssertionError(self.text)


@dataclass(frozen=True)
class Lookup:
    """The condition that a column has a value which a column of another source also has.

    It is not evaluated by itself; where the other source is small, its values are looked up.
    """

    column: ColumnRef
    of: ColumnRef
    text: str

    @property
    def columns(self) -> frozenset[ColumnRef]:
        """The column that is restricted."""
        return frozenset({self.column})

    def render(self, column: Callable[[ColumnRef], str]) -> str:
        """Never called: lookups are not evaluated as they stand."""
        raise AssertionError(self.text)


Condition = Atom | Group | Opaque | Lookup
# Beyond, a predicate is not carried further: expressions put into each other multiply.
MAX_PIECES = 1_000

Pieces = tuple["str | ColumnRef | Parameter", ...]


def is_evaluable(condition: Condition) -> bool:
    """Return whether no part of ``condition`` is opaque."""
    if isinstance(condition, Group):
        return all(is_evaluable(i) for i in condition.items)
    return not isinstance(condition, Opaque | Lookup)


def conjunction(items: list[Condition]) -> Condition:
    """Return the AND of ``items``."""
    flat: list[Condition] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Group) and item.op == "AND" else (item,))
    return flat[0] if len(flat) == 1 else Group("AND", tuple(flat))


def parameters_for(condition: Condition, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the statement's parameters that occur in ``condition``."""
    return {name: parameters[name] for name in _parameter_names(condition)}


def _parameter_names(condition: Condition) -> Iterator[str]:
    if isinstance(condition, Group):
        for item in condition.items:
            yield from _parameter_names(item)
    elif isinstance(condition, Atom):
        yield from (p.name for p in condition.pieces if isinstance(p, Parameter))


def substitute(condition: Condition, pieces: Callable[[ColumnRef], Pieces | None]) -> Condition:
    """Return a condition that holds wherever ``condition`` does, with other pieces for its columns.

    Predicates over columns for which there are none become opaque, as they may be true.
    """
    if isinstance(condition, Group):
        items = [substitute(i, pieces) for i in condition.items]
        if condition.op == "AND":
            items = [i for i in items if not isinstance(i, Opaque)]
        elif any(isinstance(i, Opaque) for i in items):
            items = []
        if not items:
            return Opaque(condition.text)
        return items[0] if len(items) == 1 else Group(condition.op, tuple(items))
    if isinstance(condition, Lookup):
        found = pieces(condition.column)
        if found is None or len(found) != 1 or not isinstance(found[0], tuple):
            return Opaque(condition.text)
        return replace(condition, column=found[0])
    if isinstance(condition, Opaque):
        members = None if condition.members is None else substitute(condition.members, pieces)
        if not isinstance(members, Atom) or len(members.pieces) != len(condition.members.pieces):  # type: ignore[union-attr]
            return Opaque(condition.text)
        return Opaque(condition.text, members.columns, members)
    new: list[str | ColumnRef | Parameter] = []
    for piece in condition.pieces:
        found = pieces(piece) if isinstance(piece, tuple) else (piece,)
        if found is None:
            return Opaque(condition.text)
        new.extend(found)
        if len(new) > MAX_PIECES:
            return Opaque(condition.text)
    says = condition.says
    return Atom(tuple(new), condition.negated, condition.text, cache(lambda: renamed(says(), _moved(pieces))))


def _moved(pieces: Callable[[ColumnRef], Pieces | None]) -> Callable[[Path], Path | None]:
    """Return what becomes of paths when columns are substituted: they end where a column becomes an expression."""

    def path(known: Path) -> Path | None:
        found = pieces(known[0]) or ()
        return (found[0], *known[1:]) if len(found) == 1 and isinstance(found[0], tuple) else None

    return path


def disjunction(alternatives: list[list[Condition]]) -> Condition | None:
    """Return the OR of several conjunctions, or None if one of them is empty."""
    if not alternatives or not all(alternatives):
        return None
    items = list(dict.fromkeys(conjunction(a) for a in alternatives))
    flat: list[Condition] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Group) and item.op == "OR" else (item,))
    return flat[0] if len(flat) == 1 else Group("OR", tuple(flat))
