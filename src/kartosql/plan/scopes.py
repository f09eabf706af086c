"""What the names of a statement mean: its tables, the queries in it, and their columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
from sqlglot import exp

from kartosql.errors import Span
from kartosql.predicate.tree import ColumnRef
from kartosql.sql.tree import Past
from kartosql.tables.table import Table, by_case

Columns = Mapping[str, str]
Origin = Callable[[ColumnRef], ColumnRef | None]  # finds the column of a table that a column is

# Occurrences are numbered from 0, whatever else columns may belong to from here.
_ids = count(1 << 20)


@dataclass(eq=False)
class Occurrence:
    """One place where a statement names a table; each is scanned by itself.

    ``view`` is the schema and name under which the statement's text, as it is run, finds it.
    """

    id: int
    source: Table
    name: tuple[str, ...]
    view: tuple[str, str]
    node: exp.Table | None = None
    span: Span | None = None
    as_of: Past | None = None  # the time at which the table is asked for, the version, or two of which it tells changes
    used: set[str] = field(default_factory=set)
    all_used: bool = False
    # Those of the columns used that something asks for; None where that may be all of them.
    needed: set[str] | None = None
    # Set when the walk reached the table through constructs it understands.
    understood: bool = False

    @property
    def moment(self) -> str | int | None:
        """The version or the time at which the table is read, None for as of now and for changes between two."""
        if isinstance(self.as_of, dt.timedelta):
            return f"now() - {-self.as_of}"
        return None if isinstance(self.as_of, tuple) else self.as_of

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns that the statement may touch, or None for all of them."""
        return None if self.all_used or not self.understood else frozenset(self.used)

    @property
    def read(self) -> frozenset[str] | None:
        """The columns whose values the result may depend on, or None for all; others are there, but may be NULL."""
        return self.columns if self.needed is None or not self.understood else frozenset(self.needed)


@dataclass(eq=False)
class Dependencies:
    """What values depend on: columns of tables (None for all of one), and other values."""

    columns: list[tuple[Occurrence, str | None]] = field(default_factory=list)
    others: list[Dependencies] = field(default_factory=list)

    def settle(self, occurrences: Collection[Occurrence]) -> bool:
        """Note of each occurrence which columns the values depend on, and return whether some are not needed."""
        needed: dict[Occurrence, set[str | None]] = {o: set() for o in occurrences}
        stack, seen = [self], {id(self)}
        while stack:
            values = stack.pop()
            for occurrence, column in values.columns:
                needed[occurrence].add(column)
            fresh = {id(v): v for v in values.others if id(v) not in seen}
            seen.update(fresh)  # |= with the keys would copy all that was seen
            stack += fresh.values()
        for occurrence, columns in needed.items():
            types = occurrence.source.columns
            # What has its type from files alone is not NULL of that type without them.
            shown = types if occurrence.all_used else occurrence.used
            known = {c for c in columns if c is not None} | {c for c in shown if pa.types.is_null(types[c])}
            occurrence.needed = None if None in columns or known.issuperset(shown) else known
        return any(o.needed is not None for o in occurrences)


@dataclass(eq=False)
class Output:
    """One column of a query's result.

    ``inner`` is the name that it has in the text that is run. ``source`` is given where the
    column is one of a source, ``value`` where it is an expression. ``values`` are what it depends
    on, but for what the rows of the query depend on.
    """

    name: str | None
    inner: str
    value: exp.Expression | None = None
    source: ColumnRef | None = None
    values: Dependencies = field(default_factory=Dependencies)


@dataclass(eq=False)
class Relation:
    """A query inside of a statement: a SELECT (``scope``), a set operation (``branches``) or something else.

    ``outputs`` is None when the columns are not known. ``barrier`` says why no condition on
    the result may be moved into the query. ``uses`` are the FROM items that read it.
    """

    outputs: list[Output] | None
    scope: Scope | None = None
    branches: tuple[Relation, Relation] | None = None
    keeps_duplicates: bool = True
    barrier: str | None = None
    uses: list[Source] = field(default_factory=list)
    # What columns depend on where it is not known which there are.
    whole: Dependencies = field(default_factory=Dependencies)
    id: int = field(default_factory=lambda: next(_ids))

    def values(self, position: int | None = None) -> Dependencies:
        """Return what one of the columns depends on, or all of them."""
        if self.outputs is None:
            return self.whole
        return (
            Dependencies(others=[o.values for o in self.outputs]) if position is None else self.outputs[position].values
        )

    def rename(self, names: Sequence[str]) -> None:
        """Give the first outputs other names."""
        if self.outputs is None or len(names) > len(self.outputs):
            self.outputs = None
        else:
            listed = [Output(n, n, o.value, o.source, o.values) for n, o in zip(names, self.outputs, strict=False)]
            self.outputs = [*listed, *self.outputs[len(names) :]]

    def seen_as(self, names: Sequence[str]) -> tuple[dict[str, str], dict[str, int], bool]:
        """Return what a FROM item with the column list ``names`` shows.

        That is, by column: the name in the text that is run, and the position; and whether
        there may be other columns.
        """
        if self.outputs is None or len(names) > len(self.outputs):
            return {}, {}, True
        listed = [(n, n) for n in names] + [(o.name, o.inner) for o in self.outputs[len(names) :]]
        # Columns that differ only in case have names of their own inside of the engine; to it all others are the same.
        lower = [inner.lower() for _, inner in listed]
        unique = [(i, n, inner) for i, (n, inner) in enumerate(listed) if n and lower.count(inner.lower()) == 1]
        return {n: inner for _, n, inner in unique}, {n: i for i, n, _ in unique}, len(unique) < len(listed)


@dataclass(eq=False)
class Source:
    """One item of a FROM clause.

    ``columns`` maps its columns to the names they have in the text that is run; ``open`` says
    that there may be more than those.
    """

    alias: str
    columns: Columns
    open: bool = False
    occurrence: Occurrence | None = None
    relation: Relation | None = None
    # How the item is joined to the items before it.
    join: exp.Join | None = None
    # Joined inside of an item, as in ``a JOIN (b JOIN c)``.
    nested: bool = False
    prunable: bool = True
    # Names that a column list gives to the columns of a table.
    renamed: Mapping[str, str] | None = None
    # Where the columns stand in the output of a query.
    positions: Mapping[str, int] = field(default_factory=dict)
    id: int = -1

    def __post_init__(self) -> None:
        self.id = next(_ids) if self.occurrence is None else self.occurrence.id

    def use(self, column: str | None = None) -> Dependencies:
        """Note that a column has to be there, or all of them; returns what its values depend on."""
        if self.occurrence is not None and column is not None:
            self.occurrence.used.add(self.real(column))
        elif self.occurrence is not None:
            self.occurrence.all_used = True
        return self.values(column)

    def values(self, column: str | None = None) -> Dependencies:
        """Return what the values of a column depend on, or those of all."""
        if self.relation is not None:
            return self.relation.values(None if column is None else self.positions[column])
        return Dependencies([(self.occurrence, column and self.real(column))] if self.occurrence is not None else [])

    def is_called(self, name: str) -> bool:
        """Return whether a name is the alias."""
        return self.alias.lower() == name.lower()

    @property
    def side(self) -> str:
        """How the item is joined: INNER, LEFT, RIGHT, FULL, SEMI, ANTI, ASOF or POSITIONAL."""
        if self.join is None or self.nested:
            return "INNER"
        method, kind, side = ((v or "").upper() for v in (self.join.method, self.join.kind, self.join.side))
        if method in ("ASOF", "POSITIONAL"):
            return method
        return kind if kind in ("SEMI", "ANTI") else side or "INNER"

    @property
    def is_filter(self) -> bool:
        """Whether the item only filters others (SEMI and ANTI joins), so that its columns are not seen."""
        return self.join is not None and (self.join.kind or "").upper() in ("SEMI", "ANTI")

    @property
    def is_behind_comma(self) -> bool:
        """Whether nothing but a comma joins the item to those before it."""
        join = self.join
        if join is None:
            return True
        return not (self.nested or join.kind or join.side or join.method or any(map(join.args.get, ("on", "using"))))

    def inner(self, column: str) -> str:
        """Return the name of a column in the text that is run."""
        return self.columns.get(column, column)

    def real(self, column: str) -> str:
        """Return the column of the table that is seen here as ``column``."""
        return column if self.renamed is None else self.renamed[column]

    def find(self, name: str) -> str | None:
        """Return the column that ``name`` means here."""
        return by_case(name, self.columns)


@dataclass(eq=False)
class Merged:
    """A column that USING or NATURAL made of several.

    ``owner`` is the one whose values it has; without owner (FULL JOIN) it has those of the
    first part that is not NULL, or it is not known.
    """

    owner: Bound | None
    parts: tuple[ColumnRef, ...]
    join: exp.Join
    id: int = field(default_factory=lambda: next(_ids))


@dataclass(eq=False)
class Scope:
    """One SELECT with the items of its FROM clause and the scopes around it."""

    select: exp.Select
    outer: tuple[Scope, ...]
    sources: list[Source] = field(default_factory=list)
    merged: dict[str, Merged] = field(default_factory=dict)  # by lower-case name
    # Equal columns by USING and NATURAL, by the position of the joined source.
    using: dict[int, list[tuple[ColumnRef, ColumnRef]]] = field(default_factory=dict)
    aliases: dict[str, exp.Expression] = field(default_factory=dict)
    items: dict[str, Dependencies] = field(default_factory=dict)  # what those of the SELECT list depend on, by alias
    nested: list[Relation] = field(default_factory=list)  # queries in its expressions

    def chain(self) -> Iterator[Scope]:
        """Yield this scope and those around it, innermost first."""
        yield self
        yield from self.outer


@dataclass(frozen=True)
class Bound:
    """What a column reference means: a column of a source, a merged column, or an item of the SELECT list."""

    source: Source | None = None
    column: str = ""
    merged: Merged | None = None
    alias: exp.Expression | None = None

    @property
    def ref(self) -> ColumnRef:
        """The column, which is no item of the SELECT list."""
        owner = self.source or self.merged
        assert owner is not None
        return owner.id, self.column


@dataclass(frozen=True)
class Member:
    """What a reference to a member of a struct means: the column, which the first ``parts`` of the name stand for."""

    source: Source
    column: str
    parts: int


@dataclass(frozen=True)
class Unknown:
    """A column reference that nothing in scope explains."""

    node: exp.Expression
    name: str
    qualifier: str | None
    candidates: tuple[str, ...]  # columns of the table that is named, or of all tables in scope
    aliases: tuple[str, ...] = ()  # what the tables in scope are called
    hint: str | None = None  # what is known of it, which goes before guesses


@dataclass(eq=False)
class Walked:
    """What a walk found: every query of the statement, and what the columns in it mean.

    Nodes are known by their ids; the statement's tree keeps them alive.
    """

    root: Relation = field(default_factory=lambda: Relation(None))
    scopes: list[Scope] = field(default_factory=list)
    relations: dict[int, Relation] = field(default_factory=dict)
    expressions: list[Relation] = field(default_factory=list)  # common table expressions
    loose: list[Relation] = field(default_factory=list)  # queries in ORDER BY and LIMIT of set operations
    bound: dict[int, Bound] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)  # references to members of structs that are certain
    unknown: list[Unknown] = field(default_factory=list)
    # Columns of known tables that are not there, beside tables that are not known.
    missing: list[Unknown] = field(default_factory=list)
    # Identifiers that have another name in the text that is run.
    renamed: list[tuple[exp.Identifier, str]] = field(default_factory=list)
    # What was found out for all statements that differ in constants only: its kind and the id of an object, which is
    # there to be kept alive.
    alike: dict[tuple[str, int], tuple[object, Any]] = field(default_factory=dict)
