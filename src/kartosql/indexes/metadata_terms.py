"""Columns and conditions in the terms of what is stored of them: skipping metadata, and indices of what is attached."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pyarrow as pa

from kartosql.formats.xskipper.domain import ColumnType
from kartosql.predicate.tree import UNKNOWN, Comparison, Condition, IsNull, Leaf, Path, Predicate, mapped, said

_SIMPLE = (
    (pa.types.is_signed_integer, "integer"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_date32, "date"),
)


def column_types(types: Mapping[str, pa.DataType], *, texts: bool) -> dict[Path, ColumnType]:
    """Return the types of columns and of members of structs; those that differ only in case are left out.

    Without ``texts``, columns of text are left out too.
    """
    found: dict[Path, ColumnType] = {}
    seen: set[Path] = set()
    pending: list[tuple[Path, pa.DataType]] = [((name.lower(),), type_) for name, type_ in types.items()]
    while pending:
        path, type_ = pending.pop()
        known = column_type(type_)
        if path in seen:
            found.pop(path, None)
        elif known is not None and (texts or known.family != "string"):
            found[path] = known
        seen.add(path)
        if pa.types.is_struct(type_):
            pending += [((*path, f.name.lower()), f.type) for f in type_]
    return found


def column_type(type_: pa.DataType) -> ColumnType | None:
    """Return what an index knows of a column, None for types that no index is used for."""
    if pa.types.is_timestamp(type_):
        return ColumnType("timestamp", clock=type_.tz is None)
    if pa.types.is_decimal(type_):
        return ColumnType("decimal", type_.precision, type_.scale)
    if pa.types.is_unsigned_integer(type_):
        # Indexes keep them in the next wider type that has a sign.
        return ColumnType("decimal", 20, 0) if type_.bit_width == 64 else ColumnType("integer")
    return next((ColumnType(name) for test, name in _SIMPLE if test(type_)), None)


def in_metadata_terms(condition: Condition, occurrence: int, columns: Collection[str]) -> Predicate:
    """Return what a condition says about some columns of one table occurrence; of the rest nothing is known."""

    def leaf(known: Leaf) -> Predicate:
        (of, column), *members = known.path
        if of != occurrence or column not in columns:
            return UNKNOWN
        is_evaluated = isinstance(known, Comparison) and known.value.kind == "sql"
        is_null = isinstance(known, IsNull) and not known.negated
        return UNKNOWN if is_evaluated or is_null else replace(known, path=(column.lower(), *members))

    return mapped(said(condition), leaf)
