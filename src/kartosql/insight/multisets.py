"""Answers as multisets of rows: digests, and how two answers differ."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

TOLERANCE = 1e-9  # relative, of floating point numbers that were summed in another order
EXAMPLES = 3
MAX_ROWS = 200_000  # up to which answers that differ are compared row by row

Row = tuple[Any, ...]


def digest(table: pa.Table) -> str:
    """Return a number that answers with the same rows share, in whatever order they stand.

    It is the sum of a hash of each row. Both zeros are one value, and all NaN.
    """
    total = 0
    for row in rows(table):
        total += int.from_bytes(hashlib.blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16).digest())
    return f"{total % (1 << 128):032x}"


def rows(table: pa.Table) -> Iterator[Row]:
    """Yield the rows as Python values of which equal ones have the same repr."""
    for batch in table.to_batches():
        columns = [[_value(v) for v in _plain(column)] for column in batch.columns]
        yield from zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)


def _plain(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [str(v) for v in column]


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return 0.0 if value == 0 else value
    if isinstance(value, dict):
        return {k: _value(v) for k, v in value.items()}
    return [_value(v) for v in value] if isinstance(value, list) else value


def difference(given: pa.Table, wanted: pa.Table) -> str | None:
    """Return how an answer differs from another one: a text, empty if only by rounding, or None if not at all."""
    if given.column_names != wanted.column_names or given.schema.types != wanted.schema.types:
        return f"columns {_columns(given)} instead of {_columns(wanted)}"
    if given.num_rows != wanted.num_rows:
        return f"{given.num_rows:,} rows instead of {wanted.num_rows:,}; {_examples(given, wanted)}".rstrip("; ")
    if digest(given) == digest(wanted):
        return None
    if any(pa.types.is_floating(t) for t in given.schema.types) and _are_close(given, wanted):
        return ""
    return _examples(given, wanted) or "rows differ"


def _columns(table: pa.Table) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in table.schema)


def _examples(given: pa.Table, wanted: pa.Table) -> str:
    if max(given.num_rows, wanted.num_rows) > MAX_ROWS:
        return ""
    mine, theirs = Counter(map(repr, rows(given))), Counter(map(repr, rows(wanted)))
    found = [f"missing {row}" for row in list((theirs - mine).elements())[:EXAMPLES]]
    found += [f"too much {row}" for row in list((mine - theirs).elements())[:EXAMPLES]]
    return "; ".join(text[:200] for text in found)


def _are_close(given: pa.Table, wanted: pa.Table) -> bool:
    """Return whether two answers with the same number of rows differ in floating point numbers only, and little."""
    floats = [i for i, t in enumerate(given.schema.types) if pa.types.is_floating(t)]

    def key(row: Row) -> tuple[str, tuple[tuple[int, float], ...]]:
        others = repr([v for i, v in enumerate(row) if i not in floats])
        return others, tuple(_order(row[i]) for i in floats)

    for a, b in zip(sorted(rows(given), key=key), sorted(rows(wanted), key=key), strict=True):
        if key(a)[0] != key(b)[0]:
            return False
        for i in floats:
            x, y = a[i], b[i]
            same = x is y or (x is not None and y is not None and ((math.isnan(x) and math.isnan(y)) or x == y))
            if not same and (x is None or y is None or not math.isclose(x, y, rel_tol=TOLERANCE, abs_tol=1e-12)):
                return False
    return True


def _order(value: float | None) -> tuple[int, float]:
    return (0, 0.0) if value is None else (1, 0.0) if math.isnan(value) else (2, value)
