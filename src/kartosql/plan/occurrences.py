"""Table occurrences of a statement, and the scopes in which its columns are looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from kartosql.errors import Span
from kartosql.plan.tables import TableSource

Columns = Mapping[str, str]
Known = Mapping[str, Columns | None]  # common table expressions by lower-case name


@dataclass(eq=False)
class Occurrence:
    """One place where a statement names a table; each is scanned by itself.

    ``view`` is the schema and name under which the statement's text, as it is run, finds it.
    """

    id: int
    source: TableSource
    name: tuple[str, ...]
    view: tuple[str, str]
    node: exp.Table | None = None
    span: Span | None = None
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
class Source:
    """One item of a FROM clause.

    ``columns`` maps its columns to the names they have in the text that is run; it is None
    when they are not known.
    """

    alias: str
    columns: Columns | None
    occurrence: Occurrence | None = None
    # How the item is joined to what stands before it.
    join: exp.Join | None = None
    prunable: bool = True

    def inner(self, column: str) -> str:
        """Return the name of a column in the text that is run."""
        return (self.columns or {}).get(column, column)

    def find(self, name: str) -> str | None:
        """Return the column that ``name`` means here."""
        if self.columns is None or name in self.columns:
            return name if self.columns is not None else None
        found = [c for c in self.columns if c.lower() == name.lower()]
        return found[0] if len(found) == 1 else None


@dataclass(eq=False)
class Scope:
    """One SELECT with the items of its FROM clause and the scopes around it."""

    select: exp.Select
    outer: tuple[Scope, ...]
    sources: list[Source] = field(default_factory=list)
    merged: set[str] = field(default_factory=set)  # lower-case columns of USING and NATURAL
    aliases: set[str] = field(default_factory=set)
    natural: bool = False

    def chain(self) -> Iterator[Scope]:
        """Yield this scope and those around it, innermost first."""
        yield self
        yield from self.outer


@dataclass(frozen=True)
class Unknown:
    """A column reference that nothing in scope explains."""

    node: exp.Expression
    name: str
    qualifier: str | None
    candidates: tuple[str, ...]
