"""What is published of a table: its live files with what is known of them, and where they are for other engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """What is known of a column in a file: its NULLs, None if that is not known, and bounds where both are known."""

    nulls: int | None
    low: Any = None
    high: Any = None


@dataclass(frozen=True)
class LiveFiles:
    """The files of a table ``name`` as of now; ``rows``, ``sizes`` and ``bounds`` are those of new files.

    ``locations`` are where other engines find them. ``deleted`` has the numbers of rows of files that count no more.
    """

    name: str
    schema: pa.Schema  # the columns in the order of SELECT *
    locations: Sequence[str]
    partitions: PartitionTable
    sizes: Mapping[int, tuple[int, int]]  # bytes, and the time of the last change in milliseconds since 1970
    rows: Mapping[int, int]
    bounds: Mapping[str, Mapping[int, FileBounds]]
    deleted: Mapping[int, Sequence[int]]


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


def per_file(known: ColumnBounds, files: Sequence[int]) -> dict[int, FileBounds]:
    """Return what is known of a column in some files."""
    wanted, found = known.complete.intersection(files), dict[int, FileBounds]()
    for file, nulls, rows, low, high in zip(known.files, known.nulls, known.rows, known.low, known.high, strict=True):
        if file not in wanted:
            continue
        is_empty, before = nulls == rows, found.get(file)
        if before is None:
            found[file] = FileBounds(None if nulls < 0 else nulls, *(() if is_empty else (low, high)))
            continue
        unknown = before.nulls is None or nulls < 0
        bounds: tuple[Any, ...] = (before.low, before.high)
        if not is_empty:
            bounds = (low, high) if before.low is None else (min(low, before.low), max(high, before.high))
        found[file] = FileBounds(None if unknown else before.nulls + nulls, *bounds)
    return found


def refused(name: str, column: str, type_: pa.DataType | str, target: str) -> UsageError:
    """Return the error about a column that the format cannot carry, for its type or for what it holds."""
    what = type_ if isinstance(type_, str) else type_name(type_)
    return UsageError(
        f"{name}: {target} has no type for the column {column!r}, which is {what}.",
        code="unsupported-type",
        hint="Publish a dataset without it, or with another type: CREATE DATASET ... AS SELECT CAST(...) ...",
    )
