"""Table occurrences of a statement, the queries in it, and the scopes in which columns are looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from sqlglot import exp

from kartosql.errors import Span
from kartosql.tables.table import Table

Columns = Mapping[str, str]

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
    as_of: str | None = None  # the time at which the table is asked for
    used: set[str] = field(default_factory=set)
    all_used: bool = False
    # Set when the walk reached the table through constructs it understands.
    understood: bool = False

    def use(self, column: str) -> None:
        """Note that ``column`` is needed."""
        self.used.add(column)

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns that the statement may touch, or None for all of them."""
        return None if self.all_used or not self.understood else frozenset(self.used)


@dataclass(eq=False)
class Output:
    """One column of a query's result.

    ``inner`` is the name that it has in the text that is run. ``source`` is given where the
    column is one of a source as it stands, ``value`` where it is an expression.
    """

    name: str | None
    inner: str
    value: exp.Expression | None = None
    source: tuple[Source, str] | None = None


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
    id: int = field(default_factory=lambda: next(_ids))

    def rename(self, names: Sequence[str]) -> None:
        """Give the first outputs other names."""
        if self.outputs is None or len(names) > len(self.outputs):
            self.outputs = None
        else:
            listed = [Output(n, n, o.value, o.source) for n, o in zip(names, self.outputs, strict=False)]
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

    def inner(self, column: str) -> str:
        """Return the name of a column in the text that is run."""
        return self.columns.get(column, column)

    def real(self, column: str) -> str:
        """Return the column of the table that is seen here as ``column``."""
        return column if self.renamed is None else self.renamed[column]

    def find(self, name: str) -> str | None:
        """Return the column that ``name`` means here."""
        if name in self.columns:
            return name
        found = [c for c in self.columns if c.lower() == name.lower()]
        return found[0] if len(found) == 1 else None


@dataclass(eq=False)
class Merged:
    """A column that USING or NATURAL made of several.

    ``owner`` is the one whose values it has; without owner (FULL JOIN) it has those of the
    first part that is not NULL, or it is not known.
    """

    owner: tuple[Source, str] | None
    parts: tuple[tuple[Source, str], ...]
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
    using: dict[int, list[tuple[tuple[Source, str], tuple[Source, str]]]] = field(default_factory=dict)
    aliases: dict[str, exp.Expression] = field(default_factory=dict)
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
