"""What is published of a table: its live files with what is known of them, and where they are for other engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from kartosql.errors import UsageError
from kartosql.formats.partition_table import PartitionTable
from kartosql.store import Store
from kartosql.tables.statistics import ColumnBounds
from kartosql.text.types import type_name

MAX_BOUND = 64  # characters of a text; longer ones are not told
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
MAX_TOLD = 32  # columns of which bounds are told


class FileBounds(NamedTuple):
    """What is known of a column in files: the NULLs of each, None if that is not known, and bounds where both are."""

    nulls: Sequence[int | None]
    low: Sequence[Any]
    high: Sequence[Any]

    def bounds(self, *write: Callable[[Any], Any]) -> Sequence[Sequence[Any]]:
        """Return lower and upper bounds as two functions write them, None for both where one of them is not known."""
        both = zip(write, (self.low, self.high), strict=True)
        found = [[None if value is None else text(value) for value in values] for text, values in both]
        if any(None in values for values in found):
            pairs = [(None, None) if None in pair else pair for pair in zip(*found, strict=True)]
            return [*zip(*pairs, strict=True)]
        return found


@dataclass(frozen=True)
class LiveFiles:
    """The files of a table ``name`` as of now; ``rows``, ``sizes`` and ``bounds`` are those of new ``files``.

    ``deleted`` has the numbers of rows of files that count no more.
    """

    name: str
    schema: pa.Schema  # the columns in the order of SELECT *
    partitions: PartitionTable
    files: Sequence[int]
    sizes: Sequence[tuple[int, int]]  # bytes, and the time of the last change in milliseconds since 1970
    rows: Sequence[int]
    bounds: Mapping[str, FileBounds]
    deleted: Mapping[int, Sequence[int]]

    def only(self, files: Sequence[int]) -> LiveFiles:
        """Return what is known of some of the new files."""
        if files == self.files:
            return self
        places = {file: at for at, file in enumerate(self.files)}
        chosen = [places[file] for file in files]

        def take(values: Sequence[Any]) -> Sequence[Any]:
            return [values[at] for at in chosen]

        bounds = {column: FileBounds(*map(take, known)) for column, known in self.bounds.items()}
        return replace(self, files=files, sizes=take(self.sizes), rows=take(self.rows), bounds=bounds)


def root_of(store: Store) -> str:
    """Return where a store is, as others spell it."""
    root = store.address[0].rstrip("/")
    return f"file://{root}" if store.is_local else root


def locations(source: Store, keys: Sequence[str], target: Store) -> list[str]:
    """Return the paths of files relative to a target above them, else their URLs."""
    root, above = f"{root_of(source)}/", f"{root_of(target)}/"
    found = [root + key for key in keys]
    return [path[len(above) :] for path in found] if all(path.startswith(above) for path in found) else found


def encoded(paths: Sequence[str]) -> Sequence[str]:
    """Return paths as URIs have them; URLs keep their scheme."""
    safe = "/:=@+,;!$&'()*~"
    if not quote("".join(paths), safe=safe).count("%"):
        return paths
    return [quote(path, safe=safe) for path in paths]


def per_file(known: ColumnBounds, files: Sequence[int]) -> FileBounds:
    """Return what is known of a column in some files."""
    nothing, found = (None, None, None), dict[int, tuple[Any, Any, Any]]()
    for file, nulls, has_values, low, high in zip(
        known.files, known.nulls, known.has_values, known.low, known.high, strict=True
    ):
        told = (nulls, low, high) if has_values else (nulls, None, None)
        found[file] = told if file not in found else _both(found[file], told)
    columns = [*zip(*[found.get(file, nothing) for file in files], strict=True)] or [(), (), ()]
    if -1 in columns[0]:
        columns[0] = tuple([None if nulls == -1 else nulls for nulls in columns[0]])
    return FileBounds(*columns)


def _both(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return what is known of two row groups together."""
    nulls = -1 if -1 in (one[0], other[0]) else one[0] + other[0]
    if one[1] is None or other[1] is None:
        return (nulls, *(one if other[1] is None else other)[1:])
    return nulls, min(one[1], other[1]), max(one[2], other[2])


def refused(name: str, column: str, type_: pa.DataType | str, target: str) -> UsageError:
    """Return the error about a column that the format cannot carry, for its type or for what it holds."""
    what = type_ if isinstance(type_, str) else type_name(type_)
    return UsageError(
        f"{name}: {target} has no type for the column {column!r}, which is {what}.",
        code="unsupported-type",
        hint="Publish a dataset without it, or with another type: CREATE DATASET ... AS SELECT CAST(...) ...",
    )
