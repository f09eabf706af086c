"""The statements that write: what each of them says, before any name is looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kartosql.errors import Span
from kartosql.sql.statements import Name, Select, Write

Literal = str | int | float | bool


class Named(NamedTuple):
    """A dotted name and its place in the statement."""

    parts: Name
    span: Span

    @property
    def last(self) -> str:
        """The part behind the last dot."""
        return self.parts[-1]


Columns = tuple[Named, ...]


@dataclass(frozen=True)
class CreateCube(Write):
    """CREATE [OR REPLACE] CUBE c DIMENSIONS (...) PARTITION BY (...) [SEED s] [INDEX (...)] AS query."""

    cube: Named
    dimensions: Columns
    partition_by: Columns
    seed: Named | None
    index: Columns
    replace: bool
    query: Select


@dataclass(frozen=True)
class AddDataset(Write):
    """ALTER CUBE c ADD DATASET d [PARTITION BY (...)] [INDEX (...)] AS query.

    ``partition_by`` None leaves the choice to the cube, ``()`` is no partitioning.
    """

    cube: Named
    dataset: Named
    partition_by: Columns | None
    index: Columns
    query: Select


@dataclass(frozen=True)
class CreateDataset(Write):
    """CREATE [OR REPLACE] DATASET d [PARTITION BY (...)] [INDEX (...)] AS query."""

    dataset: Named
    partition_by: Columns
    index: Columns
    replace: bool
    query: Select


@dataclass(frozen=True)
class Insert(Write):
    """INSERT INTO t, or INSERT OVERWRITE t [PARTITION (...)], with a query behind it.

    ``columns`` is None where the columns of the query are found by their names, ``()`` where
    they stand in the order of those of the table. ``partition`` holds the columns of PARTITION
    with the constants given to them; None is a column without one.
    """

    target: Named
    overwrite: bool
    partition: tuple[tuple[Named, Literal | None], ...] | None
    columns: Columns | None
    query: Select


@dataclass(frozen=True)
class Delete(Write):
    """DELETE FROM t [DATASETS (...)] WHERE condition.

    ``query`` is ``FROM t WHERE condition``, with every character where it stands in the text.
    """

    target: Named
    datasets: Columns | None
    query: Select


@dataclass(frozen=True)
class DropCube(Write):
    """DROP CUBE [IF EXISTS] c."""

    cube: Named
    if_exists: bool


@dataclass(frozen=True)
class DropDataset(Write):
    """DROP DATASET [IF EXISTS] d."""

    dataset: Named
    if_exists: bool


@dataclass(frozen=True)
class CreateIndex(Write):
    """CREATE INDEX ON t (column, ...)."""

    target: Named
    columns: Columns


@dataclass(frozen=True)
class DropIndex(Write):
    """DROP INDEX ON t (column, ...)."""

    target: Named
    columns: Columns


class Skip(NamedTuple):
    """One skipping index: its kind in upper case, the column with members of structs, and its parameters."""

    kind: str
    column: tuple[str, ...]
    parameters: tuple[tuple[str, int | float | str], ...] = ()


@dataclass(frozen=True)
class CreateSkipping(Write):
    """CREATE SKIPPING INDEX ON t (MINMAX(a), VALUELIST(b), BLOOMFILTER(c) WITH (fpp = 0.01, ndv = 100000))."""

    target: Named
    indexes: tuple[Skip, ...]


@dataclass(frozen=True)
class RefreshSkipping(Write):
    """REFRESH SKIPPING INDEX ON t."""

    target: Named


@dataclass(frozen=True)
class DropSkipping(Write):
    """DROP SKIPPING INDEX ON t."""

    target: Named


@dataclass(frozen=True)
class SetMetadata(Write):
    """ALTER DATASET d SET METADATA (key = value, ...); None removes a key."""

    target: Named
    metadata: tuple[tuple[str, Literal | None], ...]


@dataclass(frozen=True)
class CopyCube(Write):
    """COPY CUBE c [DATASETS (...)] TO 'url' [AS name]."""

    cube: Named
    datasets: Columns | None
    url: str
    new_name: Named | None


@dataclass(frozen=True)
class CopyDataset(Write):
    """COPY DATASET d TO 'url' [AS name]."""

    dataset: Named
    url: str
    new_name: Named | None


@dataclass(frozen=True)
class Compact(Write):
    """COMPACT t."""

    target: Named


@dataclass(frozen=True)
class Cleanup(Write):
    """CLEANUP t [DRY RUN]."""

    target: Named
    dry_run: bool


@dataclass(frozen=True)
class Check(Write):
    """CHECK t [FULL] [REPAIR]."""

    target: Named
    full: bool
    repair: bool


@dataclass(frozen=True)
class RecordSchema(Write):
    """RECORD SCHEMA FOR t."""

    target: Named


@dataclass(frozen=True)
class ExportHistory(Write):
    """EXPORT SCHEMA HISTORY OF t TO 'url'."""

    target: Named
    url: str


@dataclass(frozen=True)
class ExportOdf(Write):
    """EXPORT (query) TO 'url' (TYPE odf, PRIMARY_KEY (...), EVENT_TIME column)."""

    url: str
    primary_key: Columns
    event_time: Named | None
    query: Select
