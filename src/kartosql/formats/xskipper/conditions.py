"""Conditions over columns, as far as an index can tell something about them.

They say TRUE or not: NOT is gone, NULL counts as not. A condition may hold for more rows than the
predicate it was made from, never for fewer; ``Unknown`` may hold for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

Path = tuple[str, ...]  # a column and the members of structs below it, in lower case


@dataclass(frozen=True)
class Value:
    """A constant and its kind.

    ``integer`` (int), ``decimal`` (Decimal), ``double`` and ``float`` (float), ``string`` (a bare
    literal, str), ``text`` (of the type VARCHAR, str), ``binary`` (bytes), ``boolean`` (bool), ``date``
    (days since 1970), ``timestamp`` (microseconds since 1970 on the clock of the session), ``shifted`` (the same,
    after an offset was taken away), ``instant`` (microseconds since 1970, UTC).
    """

    kind: str
    value: int | float | Decimal | str | bytes | bool


@dataclass(frozen=True)
class Compare:
    """A column compared with a constant; ``op`` is one of ``= <> < <= > >=``."""

    path: Path
    op: str
    value: Value


@dataclass(frozen=True)
class OneOf:
    """A column that is one of some constants or, negated, a value that is none of them."""

    path: Path
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True)
class StartsWith:
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
    """A condition that holds for each row, or for none."""

    holds: bool


@dataclass(frozen=True)
class Unknown:
    """A condition of which nothing is known."""


@dataclass(frozen=True)
class Group:
    """AND or OR of some conditions."""

    op: str
    items: tuple[Condition, ...]


Leaf = Compare | OneOf | StartsWith | NotNull | Extracted
Condition = Leaf | Constant | Unknown | Group
UNKNOWN = Unknown()


def group(op: str, items: list[Condition]) -> Condition:
    """Return AND or OR of some conditions, without those that change nothing."""
    flat: list[Condition] = []
    kept: list[Condition]
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
