"""Values to flatbuffers, by the layouts of tables: the same values give the same bytes everywhere.

Tables are written in one order, so that the hash of a block does not depend on who writes it: for
the fields of a table in the order of their declaration first everything that stands elsewhere,
depth first, then the fields themselves. Otherwise as every builder does it: from the back to the
front, with vtables that are shared.
"""

from __future__ import annotations

import json
from struct import Struct, error, pack
from typing import Any

from kartosql.formats.odf import hashes
from kartosql.formats.odf.errors import invalid_schema
from kartosql.formats.odf.layout import ENUMS, SCALARS, TABLES, UNIONS, Field, Layout, member_table
from kartosql.formats.odf.times import to_parts

_FORMATS = {"bool": "<B", "i16": "<h", "i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q"}
_TIME = Struct("<iH2xII")


class Builder:
    """A buffer that is written from its end; positions are counted from there."""

    def __init__(self, time_alignment: int = 4) -> None:
        self._chunks: list[bytes] = []  # the last one stands first in the buffer
        self.size = 0
        self.time_alignment = time_alignment
        self._alignment = 1
        self._vtables: dict[bytes, int] = {}

    def _push(self, data: bytes) -> None:
        self._chunks.append(data)
        self.size += len(data)

    def align(self, size: int, alignment: int) -> None:
        """Pad so that something of ``size`` bytes, written next, begins at a multiple of ``alignment``."""
        self._alignment = max(self._alignment, alignment)
        self._push(bytes(-(self.size + size) % alignment))

    def inline(self, data: bytes, alignment: int) -> int:
        """Write a value; return where it begins."""
        self.align(len(data), alignment)
        self._push(data)
        return self.size

    def offset(self, target: int) -> int:
        """Write the offset to something that was written before; return where it begins."""
        self.align(4, 4)
        return self.inline(pack("<I", self.size + 4 - target), 4)

    def blob(self, data: bytes, *, terminated: bool = False) -> int:
        """Write bytes with their length in front."""
        stored = data + b"\0" if terminated else data
        self.align(len(stored), 4)
        self._push(stored)
        return self.inline(pack("<I", len(data)), 4)

    def offsets(self, targets: list[int]) -> int:
        """Write a vector of offsets."""
        self.align(4 * len(targets), 4)
        for target in reversed(targets):
            self.offset(target)
        return self.inline(pack("<I", len(targets)), 4)

    def table(self, begin: int, fields: dict[int, int]) -> int:
        """Write begin and vtable of a table whose fields were written since ``begin``."""
        at = self.inline(bytes(4), 4)
        count = max(fields, default=-1) + 1
        positions = (at - fields[slot] if slot in fields else 0 for slot in range(count))
        vtable = pack(f"<{2 + count}H", 4 + 2 * count, at - begin, *positions)
        place = self._vtables.get(vtable)
        if place is None:
            place = self.inline(vtable, 2)
            self._vtables[vtable] = place
        self._replace(at, pack("<i", place - at))
        return at

    def _replace(self, at: int, data: bytes) -> None:
        """Replace what begins at a position; it is a chunk of its own near the begin."""
        seen = self.size
        for i in range(len(self._chunks) - 1, -1, -1):
            if seen == at and self._chunks[i]:
                self._chunks[i] = data
                return
            seen -= len(self._chunks[i])
        raise AssertionError("no chunk begins there")

    def finish(self, root: int) -> bytes:
        """Return the bytes, with the offset of the root in front."""
        self.align(4, self._alignment)
        self.offset(root)
        return b"".join(reversed(self._chunks))


def write_root(table: str, value: dict[str, Any], *, time_alignment: int = 4) -> bytes:
    """Return the flatbuffer of a table.

    Version 2 of blocks stores times without alignment (1), version 3 with (4). Raises
    ``odf-invalid-schema`` for values that the table cannot hold.
    """
    builder = Builder(time_alignment)
    try:
        return builder.finish(_write(builder, TABLES[table], value))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, error) as e:
        raise invalid_schema(f"{table} cannot hold what is given: {str(e)[:200]}") from None


def _write(builder: Builder, layout: Layout, value: dict[str, Any]) -> int:
    """Write a table and what it points to; return where it begins."""
    unknown = value.keys() - {f.name for f in layout.fields} - {"kind"}
    if unknown:
        raise invalid_schema(f"{layout.name} has no field {sorted(unknown)[0]!r}")
    targets: dict[str, int] = {}
    for field in layout.fields:
        given = value.get(field.name)
        if given is None:
            if field.required:
                raise invalid_schema(f"{layout.name} needs {field.name}")
        elif field.kind not in ("scalar", "enum", "time"):
            targets[field.name] = _elsewhere(builder, field, given)
    begin = builder.size
    places: dict[int, int] = {}
    for field in layout.fields:
        given = value.get(field.name)
        if given is not None:
            _inline(builder, field, given, targets.get(field.name), places)
    return builder.table(begin, places)


def _inline(builder: Builder, field: Field, value: Any, target: int | None, places: dict[int, int]) -> None:
    if target is not None:
        if field.kind == "union" and not field.many:
            tag = UNIONS[field.of].index(value["kind"]) + 1
            places[field.slot - 1] = builder.inline(bytes((tag,)), 1)
        places[field.slot] = builder.offset(target)
    elif field.kind == "time":
        places[field.slot] = builder.inline(_TIME.pack(*to_parts(value)), builder.time_alignment)
    else:
        number, width, form = _number(field, value)
        if number or field.optional:
            places[field.slot] = builder.inline(pack(form, number), width)


def _number(field: Field, value: Any) -> tuple[int, int, str]:
    """Return the number, width and form in which a scalar is stored."""
    if field.kind == "enum":
        width, names = ENUMS[field.of]
        if value not in names:
            raise invalid_schema(f"{value!r} is no {field.of}")
        return names.index(value), width, "<h" if width == 2 else "<i"
    form = _FORMATS[field.of]
    try:
        pack(form, value)
    except Exception:  # noqa: BLE001 - struct raises its own error, or TypeError
        raise invalid_schema(f"{field.name}: {value!r} does not fit {field.of}") from None
    return int(value), SCALARS[field.of], form


def _elsewhere(builder: Builder, field: Field, value: Any) -> int:
    """Write what a field points to; return where it begins."""
    if field.many:
        return builder.offsets([_item(builder, field, item) for item in value])
    return _item(builder, field, value)


def _item(builder: Builder, field: Field, value: Any) -> int:
    if field.kind == "union":
        target = _member(builder, field.of, value)
        if not field.many:
            return target
        begin = builder.size
        tag = builder.inline(bytes((UNIONS[field.of].index(value["kind"]) + 1,)), 1)
        return builder.table(begin, {0: tag, 1: builder.offset(target)})
    if field.kind == "table":
        return _write(builder, TABLES[field.of], value)
    if field.kind == "json":
        text = builder.blob(extra_text(value).encode(), terminated=True)
        begin = builder.size
        return builder.table(begin, {0: builder.offset(text)})
    if field.kind == "string":
        return builder.blob(value.encode(), terminated=True)
    if field.kind == "hash":
        hashes.check(value)
    elif field.kind == "did":
        hashes.check_did(value)
    return builder.blob(value)


def _member(builder: Builder, union: str, value: dict[str, Any]) -> int:
    kind = value.get("kind")
    if kind not in UNIONS[union]:
        raise invalid_schema(f"{kind!r} is no kind of {union}")
    return _write(builder, member_table(union, kind), value)


def extra_text(value: dict[str, Any]) -> str:
    """Return a JSON object as it is stored: compact, with sorted keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
