"""Predicates over columns, as far as an index can tell something about them.

They say TRUE or not: NOT is gone, NULL counts as not. A predicate may hold for more rows than the
text it was read from, never for fewer; ``Unknown`` may hold for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kartosql.predicate.values import Value

# A column, as its reader names it, and the members of structs below it, in lower case.
Path = tuple[Any, ...]


@dataclass(frozen=True)
class Comparison:
    """A column compared with a constant; ``op`` is one of ``= <> < <= > >=``."""

    path: Path
    op: str
    value: Value


@dataclass(frozen=True)
class In:
    """A column that is one of some constants or, negated, a value that is none of them."""

    path: Path
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True)
class Prefix:
    """A text that begins with a prefix."""

    path: Path
    prefix: str


@dataclass(frozen=True)
class NotNull:
    """A column that is not NULL."""

    path: Path


@dataclass(frozen=True)
class Extracted:
    """A text whose first group of a regular expression is one of some texts."""

    path: Path
    pattern: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    """A predicate that holds for each row, or for none."""

    holds: bool


@dataclass(frozen=True)
class Unknown:
    """A predicate of which nothing is known."""


@dataclass(frozen=True)
class Group:
    """AND or OR of some predicates."""

    op: str
    items: tuple[Predicate, ...]


Leaf = Comparison | In | Prefix | NotNull | Extracted
Predicate = Leaf | Constant | Unknown | Group
UNKNOWN = Unknown()


def group(op: str, items: list[Predicate]) -> Predicate:
    """Return AND or OR of some predicates, without those that change nothing."""
    flat: list[Predicate] = []
    kept: list[Predicate]
    for item in items:
        flat.extend(item.items if isinstance(item, Group) and item.op == op else (item,))
    if op == "AND":
        kept = [i for i in flat if not isinstance(i, Unknown) and i != Constant(True)]
        if Constant(False) in kept:
            return Constant(False)
        if not kept:
            return UNKNOWN if UNKNOWN in flat else Constant(True)
    else:
        kept = [i for i in flat if i != Constant(False)]
        if Constant(True) in kept:
            return Constant(True)
        if not kept:
            return Constant(False)
        if UNKNOWN in kept:
            return UNKNOWN
    return kept[0] if len(kept) == 1 else Group(op, tuple(kept))


def mapped(predicate: Predicate, leaf: Callable[[Leaf], Predicate]) -> Predicate:
    """Return a predicate with something else in place of each of its leaves."""
    if isinstance(predicate, Group):
        return group(predicate.op, [mapped(item, leaf) for item in predicate.items])
    return predicate if isinstance(predicate, Constant | Unknown) else leaf(predicate)


def renamed(predicate: Predicate, path: Callable[[Path], Path | None]) -> Predicate:
    """Return what a predicate says of columns under other names; of those without one nothing is known."""

    def leaf(one: Leaf) -> Predicate:
        found = path(one.path)
        return UNKNOWN if found is None else replace(one, path=found)

    return mapped(predicate, leaf)
