"""The kinds of statement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from kartosql.errors import Span

Name = tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """One statement; ``text`` is what the user wrote, without the closing semicolon."""

    text: str


@dataclass(frozen=True)
class Select(Statement):
    """A query. ``tree`` is None when only the engine understands the text.

    ``constants`` are the places of those constants that may differ between statements with one
    tree. It is that of the statement ``like``, if there is one.
    """

    tree: exp.Expression | None
    constants: tuple[Span, ...] = ()
    like: Select | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Write(Statement):
    """A statement of a connection that may write; ``kartosql.sql.write_statements`` has the kinds."""


@dataclass(frozen=True)
class Show(Statement):
    """SHOW CUBES, DATASETS, PARTITIONS, INDEXES, FILES, STATS, METADATA, HISTORY, TABLES, ATTACHED or SETTINGS."""

    what: str
    target: Name | None
    span: Span | None


@dataclass(frozen=True)
class Attach(Statement):
    """ATTACH 'url' AS name (TYPE ..., option value, ...); names of options are in lower case.

    The URL may be that of a ``parameter``, by its name or number.
    """

    url: str
    name: str
    span: Span
    options: dict[str, Any]
    replace: bool
    if_not_exists: bool
    parameter: str | None = None


@dataclass(frozen=True)
class Detach(Statement):
    """DETACH [IF EXISTS] name."""

    name: str
    span: Span
    if_exists: bool


@dataclass(frozen=True)
class Describe(Statement):
    """DESCRIBE of a table, as it is, as a VERSION of its schema was or as it was AS OF a time; or of a query."""

    target: Name | None
    span: Span | None
    query: Select | None
    version: int | None = None
    as_of: str | None = None


FORMATS = ("TEXT", "TABLE", "JSON", "HTML")  # of what the statements that inspect tell


@dataclass(frozen=True)
class Inspect(Statement):
    """A statement that looks at a query or a cube instead of answering it.

    ``format`` is one of FORMATS, in lower case.
    """

    query: Select | None
    format: str


@dataclass(frozen=True)
class Explain(Inspect):
    """EXPLAIN [ANALYZE | COST | WHY 'file'] [(FORMAT ...)] of a query.

    ``kind`` is scan, analyze, cost or why; ``file`` is the one that WHY asks for.
    """

    query: Select
    kind: str = "scan"
    file: str | None = None


@dataclass(frozen=True)
class Advise(Inspect):
    """ADVISE [(FORMAT ...)] of a query."""

    query: Select


@dataclass(frozen=True)
class Verify(Inspect):
    """VERIFY [(DUCKDB, FORMAT ...)] of a query; ``engine`` is duckdb if no other one is to be asked."""

    query: Select
    engine: str | None = None


@dataclass(frozen=True)
class VerifyData(Statement):
    """VERIFY of a table whose data have hashes, or VERIFY ERASED of one, with the ``where`` of rows."""

    target: Name
    span: Span
    where: str = ""


@dataclass(frozen=True)
class ShowCoverage(Inspect):
    """SHOW COVERAGE [(FORMAT ...)] OF a cube BY columns, each with its place."""

    target: Name
    span: Span
    columns: tuple[tuple[str, Span], ...]


@dataclass(frozen=True)
class Set(Statement):
    """SET name = value."""

    name: str
    value: Any


@dataclass(frozen=True)
class Reset(Statement):
    """RESET name."""

    name: str
