"""What a new schema changes, and whether the rules of the format allow it.

Allowed are other attributes, another order, and new columns that may be NULL, also as members of
structs, in lists and maps. Refused are removed, renamed and retyped columns, new ones that must not be
NULL, and a schema that changes nothing. How Arrow lays values out is no type. Between raw schemas a
column of type null may get a type: nothing was in it, so it is as good as new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from kartosql.formats.odf.blocks import Event
from kartosql.formats.odf.data_schema import event_schema

Verdict = Literal["compatible", "incompatible", "no-op"]


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What a schema changes against the one before, in words, and the verdict."""

    verdict: Verdict
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.changes) or "nothing"


@dataclass(frozen=True, slots=True)
class _Difference:
    text: str
    is_allowed: bool


def compare_events(old: Event, new: Event) -> SchemaChange:
    """Return what a SetDataSchema event changes against the one before; raises ``odf-invalid-schema``."""
    raw = old.get("schema") is None, new.get("schema") is None
    before, after = event_schema(old), event_schema(new)
    if raw == (True, True):
        return compare_schemas(before, after)
    if old.get("schema") == new.get("schema"):
        return SchemaChange("no-op", ())
    # Raw schemas say of columns that they may be NULL where the data never were.
    return _change(before, after, _Rules(with_optionality=raw[0] == raw[1], from_null=False))


def compare_schemas(old: pa.Schema, new: pa.Schema) -> SchemaChange:
    """Return what an Arrow schema changes against another one."""
    return SchemaChange("no-op", ()) if old.equals(new, check_metadata=True) else _change(old, new, _RAW)


@dataclass(frozen=True, slots=True)
class _Rules:
    """What counts as a change besides types."""

    with_optionality: bool
    from_null: bool


_RAW = _Rules(with_optionality=True, from_null=True)


def _change(old: pa.Schema, new: pa.Schema, rules: _Rules) -> SchemaChange:
    found = list(_fields(old, new, "", rules)) or [_Difference("attributes changed", True)]
    verdict: Verdict = "compatible" if all(d.is_allowed for d in found) else "incompatible"
    return SchemaChange(verdict, tuple(d.text for d in found))


def _fields(old: Iterable[pa.Field], new: Iterable[pa.Field], path: str, rules: _Rules) -> Iterator[_Difference]:
    before, after = {f.name: f for f in old}, {f.name: f for f in new}
    for name in before:
        if name not in after:
            yield _Difference(f"{path}{name} removed", False)
    for name, field in after.items():
        if name in before:
            yield from _field(before[name], field, f"{path}{name}", rules)
        elif field.nullable:
            yield _Difference(f"{path}{name} added ({field.type})", True)
        else:
            yield _Difference(f"{path}{name} added ({field.type}, not NULL)", False)
    if [n for n in before if n in after] != [n for n in after if n in before]:
        yield _Difference(f"order of {path.rstrip('.') or 'columns'} changed", True)


def _field(old: pa.Field, new: pa.Field, path: str, rules: _Rules) -> Iterator[_Difference]:
    yield from _types(old.type, new.type, path, rules)
    if rules.with_optionality and old.nullable != new.nullable:
        yield _Difference(f"{path} {'may be' if new.nullable else 'must not be'} NULL", False)


def _types(old: pa.DataType, new: pa.DataType, path: str, rules: _Rules) -> Iterator[_Difference]:
    t = pa.types
    if rules.from_null and t.is_null(old) and not t.is_null(new):
        yield _Difference(f"{path} got a type ({new})", True)
    elif t.is_struct(old) and t.is_struct(new):
        yield from _fields(old, new, f"{path}.", rules)
    elif t.is_map(old) and t.is_map(new) and old.keys_sorted == new.keys_sorted:
        yield from _types(old.key_type, new.key_type, f"{path}.key", rules)
        yield from _field(old.item_field, new.item_field, f"{path}.value", rules)
    elif _list_length(old) is not None and _list_length(old) == _list_length(new):
        yield from _field(old.value_field, new.value_field, f"{path}[]", rules)
    elif not _logical(old).equals(_logical(new)):
        yield _Difference(f"type of {path} changed from {old} to {new}", False)


def _list_length(type_: pa.DataType) -> int | None:
    """Return the length of lists of a type, -1 if they have any, None for what is no list."""
    t = pa.types
    if t.is_fixed_size_list(type_):
        length: int = type_.list_size
        return length
    is_list = t.is_list(type_) or t.is_large_list(type_) or t.is_list_view(type_) or t.is_large_list_view(type_)
    return -1 if is_list else None


def _logical(type_: pa.DataType) -> pa.DataType:
    """Return the type that stands for all that differ from it in layout only."""
    t = pa.types
    if t.is_large_string(type_) or t.is_string_view(type_):
        return pa.string()
    if t.is_large_binary(type_) or t.is_binary_view(type_):
        return pa.binary()
    if t.is_date64(type_):
        return pa.date32()
    if t.is_decimal(type_):
        return pa.decimal256(type_.precision, type_.scale)
    return type_
