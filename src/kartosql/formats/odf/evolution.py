"""What a new schema changes, and whether the rules of the format allow it.

Allowed are other attributes, another order, and new columns that may be NULL, also as members of
structs, in lists and maps. Refused are removed, renamed and retyped columns, new ones that must not be
NULL, and a schema that changes nothing. How Arrow lays values out is no type. Between raw schemas a
column of type null may get a type: nothing was in it, so it is as good as new.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def compare_events(old: Event, new: Event) -> SchemaChange:
    """Return what a SetDataSchema event changes against the one before; raises ``odf-invalid-schema``."""
    raw = old.get("schema") is None, new.get("schema") is None
    before, after = event_schema(old), event_schema(new)
    if raw == (True, True):
        return compare_schemas(before, after)
    if old.get("schema") == new.get("schema"):
        return SchemaChange("no-op", ())
    # Raw schemas say of columns that they may be NULL where the data never were.
    return _Comparison(with_optionality=raw[0] == raw[1], from_null=False).change(before, after)


def compare_schemas(old: pa.Schema, new: pa.Schema) -> SchemaChange:
    """Return what an Arrow schema changes against another one."""
    if old.equals(new, check_metadata=True):
        return SchemaChange("no-op", ())
    return _Comparison(with_optionality=True, from_null=True).change(old, new)


class _Comparison:
    """What a schema changes, and what counts as a change besides types."""

    def __init__(self, *, with_optionality: bool, from_null: bool) -> None:
        self.with_optionality = with_optionality
        self.from_null = from_null
        self.changes: list[str] = []
        self.verdict: Verdict = "compatible"

    def change(self, old: pa.Schema, new: pa.Schema) -> SchemaChange:
        self.fields(old, new, "")
        return SchemaChange(self.verdict, tuple(self.changes) or ("attributes changed",))

    def refuse(self, change: str) -> None:
        self.changes.append(change)
        self.verdict = "incompatible"

    def fields(self, old: Iterable[pa.Field], new: Iterable[pa.Field], path: str) -> None:
        before, after = {f.name: f for f in old}, {f.name: f for f in new}
        for name in before:
            if name not in after:
                self.refuse(f"{path}{name} removed")
        for name, field in after.items():
            if name in before:
                self.field(before[name], field, f"{path}{name}")
            elif field.nullable:
                self.changes.append(f"{path}{name} added ({field.type})")
            else:
                self.refuse(f"{path}{name} added ({field.type}, not NULL)")
        if [n for n in before if n in after] != [n for n in after if n in before]:
            self.changes.append(f"order of {path.rstrip('.') or 'columns'} changed")

    def field(self, old: pa.Field, new: pa.Field, path: str) -> None:
        self.types(old.type, new.type, path)
        if self.with_optionality and old.nullable != new.nullable:
            self.refuse(f"{path} {'may be' if new.nullable else 'must not be'} NULL")

    def types(self, old: pa.DataType, new: pa.DataType, path: str) -> None:
        t = pa.types
        if self.from_null and t.is_null(old) and not t.is_null(new):
            self.changes.append(f"{path} got a type ({new})")
        elif t.is_struct(old) and t.is_struct(new):
            self.fields(old, new, f"{path}.")
        elif t.is_map(old) and t.is_map(new) and old.keys_sorted == new.keys_sorted:
            self.types(old.key_type, new.key_type, f"{path}.key")
            self.field(old.item_field, new.item_field, f"{path}.value")
        elif _list_length(old) is not None and _list_length(old) == _list_length(new):
            self.field(old.value_field, new.value_field, f"{path}[]")
        elif not _logical(old).equals(_logical(new)):
            self.refuse(f"type of {path} changed from {old} to {new}")


def _list_length(type_: pa.DataType) -> int | None:
    """Return the length of lists of a type, -1 if they have any, None for what is no list."""
    t = pa.types
    if t.is_fixed_size_list(type_):
        return int(type_.list_size)
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
