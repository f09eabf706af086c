"""Files that data-skipping metadata rule out: the conditions of a plan, in the terms of the metadata."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
from sqlglot import exp

from kartosql.errors import SqlError
from kartosql.formats.xskipper import Index, Skipped
from kartosql.formats.xskipper import conditions as xs
from kartosql.formats.xskipper.domain import ColumnType
from kartosql.plan.conditions import Atom, Condition, Group, Opaque
from kartosql.plan.skipping import condition_of, path_of

_NAME = "kartosql_c"
_SIMPLE = (
    (pa.types.is_signed_integer, "integer"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_date32, "date"),
)


class Skipping(Protocol):
    """Data-skipping metadata of one table, as they stand for a statement."""

    def indexed(self) -> tuple[Sequence[Index], int]:
        """Return the indexes, and how many files of the table they know."""

    def skipped(self, condition: xs.Condition, types: Mapping[xs.Path, ColumnType], zone: str) -> Sequence[Skipped]:
        """Return the files, by position, that hold no row for which a condition is TRUE, by what proves it.

        Whatever is wrong with the metadata rules out nothing.
        """


def column_types(types: Mapping[str, pa.DataType], *, texts: bool) -> dict[xs.Path, ColumnType]:
    """Return the types of columns and of members of structs; those that differ only in case are left out.

    Without ``texts``, columns of text are left out too.
    """
    found: dict[xs.Path, ColumnType] = {}
    seen: set[xs.Path] = set()
    pending: list[tuple[xs.Path, pa.DataType]] = [((name.lower(),), type_) for name, type_ in types.items()]
    while pending:
        path, type_ = pending.pop()
        known = _column_type(type_)
        if path in seen:
            found.pop(path, None)
        elif known is not None and (texts or known.family != "string"):
            found[path] = known
        seen.add(path)
        if pa.types.is_struct(type_):
            pending += [((*path, f.name.lower()), f.type) for f in type_]
    return found


def _column_type(type_: pa.DataType) -> ColumnType | None:
    if pa.types.is_timestamp(type_):
        return ColumnType("timestamp", clock=type_.tz is None)
    if pa.types.is_decimal(type_):
        return ColumnType("decimal", type_.precision, type_.scale)
    if pa.types.is_unsigned_integer(type_):
        # Indexes keep them in the next wider type that has a sign.
        return ColumnType("decimal", 20, 0) if type_.bit_width == 64 else ColumnType("integer")
    return next((ColumnType(name) for test, name in _SIMPLE if test(type_)), None)


def in_metadata_terms(
    condition: Condition, occurrence: int, columns: Collection[str], parameters: Mapping[str, Any]
) -> xs.Condition:
    """Return what a condition says about some columns of one table occurrence; of the rest nothing is known."""
    if isinstance(condition, Group):
        items = [in_metadata_terms(i, occurrence, columns, parameters) for i in condition.items]
        return xs.group(condition.op, items)
    if isinstance(condition, Opaque) and condition.members is not None:
        condition = condition.members
    if not isinstance(condition, Atom):
        return xs.UNKNOWN
    names: list[str] = []

    def named(column: tuple[int, str]) -> str:
        known = column[0] == occurrence and column[1] in columns
        names.append(column[1] if known else "")
        return f"{_NAME}{len(names) - 1}"

    text = condition.render(named)

    def path(node: exp.Expression) -> xs.Path | None:
        found = path_of(node)
        number = found[0].removeprefix(_NAME) if found else ""
        if found is None or not found[0].startswith(_NAME) or not number.isdigit() or int(number) >= len(names):
            return None
        name = names[int(number)]
        return (name.lower(), *found[1:]) if name else None

    try:
        return condition_of(text, _values(parameters), path, dialects=("duckdb",))
    except SqlError:
        return xs.UNKNOWN


def _values(parameters: Mapping[str, Any]) -> dict[str, xs.Value]:
    found = {name: _value(value) for name, value in parameters.items()}
    return {name: value for name, value in found.items() if value is not None}


def _value(value: Any) -> xs.Value | None:
    """Return the value of a parameter as the engine takes it, None for types that are not certain."""
    if isinstance(value, dt.datetime):
        utc = dt.timezone.utc
        since = (value if value.tzinfo is not None else value.replace(tzinfo=utc)) - dt.datetime(1970, 1, 1, tzinfo=utc)
        kind = "timestamp" if value.tzinfo is None else "instant"
        return xs.Value(kind, since // dt.timedelta(microseconds=1))
    if isinstance(value, dt.date):
        return xs.Value("date", value.toordinal() - dt.date(1970, 1, 1).toordinal())
    for type_, kind in _KINDS:
        if type(value) is type_:
            return xs.Value(kind, value)
    return None


_KINDS = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "double"),
    (Decimal, "decimal"),
    (str, "text"),
    (bytes, "binary"),
)
