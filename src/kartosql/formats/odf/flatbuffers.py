"""Flatbuffers to values, with every offset checked, and back, to the same bytes everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from struct import Struct, error, pack
from typing import Any

from kartosql.errors import FormatError
from kartosql.formats.odf import hashes
from kartosql.formats.odf.layout import ENUMS, SCALARS, TABLES, UNIONS, Field, TableLayout, member_table
from kartosql.formats.odf.times import from_parts, to_parts

DAMAGED = "The file is damaged or was not written by a tool of Open Data Fabric; restore it from another copy."


def invalid_block(message: str) -> FormatError:
    """Return the error for bytes that are no metadata block."""
    return FormatError(message, code="odf-invalid-block", hint=DAMAGED)


def invalid_schema(message: str) -> FormatError:
    """Return the error for a schema that cannot be read or expressed."""
    return FormatError(message, code="odf-invalid-schema")


MAX_DEPTH = 64
_SCALAR = {
    "bool": Struct("<B").unpack_from,
    "i16": Struct("<h").unpack_from,
    "i32": Struct("<i").unpack_from,
    "u32": Struct("<I").unpack_from,
    "i64": Struct("<q").unpack_from,
    "u64": Struct("<Q").unpack_from,
}
_OFFSET = _SCALAR["u32"]
_BACK = _SCALAR["i32"]
_SIZES = Struct("<HH").unpack_from
_TIME = Struct("<iH2xII").unpack_from
_ENUM = {2: _SCALAR["i16"], 4: _SCALAR["i32"]}

Read = Callable[["Buffer", int, int], Any]


class Buffer:
    """Bytes that are read, and how much of them may still be: tables that share parts end somewhere."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = 4 * len(data) + 1024


class Malformed(Exception):
    """Bytes that are no such table."""


def read_root(data: bytes, table: str, what: str) -> dict[str, Any]:
    """Return the table that a buffer begins with.

    Raises ``odf-invalid-block`` if the bytes are truncated, point outside of themselves or hold what
    the table does not know; ``odf-unknown-event`` for an event of an unknown kind. ``what`` names
    the buffer for the message.
    """
    try:
        (root,) = _OFFSET(data, 0)
        found: dict[str, Any] = _reader(table)(Buffer(data), root, 0)
        return found
    except Malformed as e:
        raise invalid_block(f"{what}: {e}") from None
    except error:
        raise invalid_block(f"{what}: it ends too early, or points outside of itself") from None
    except UnknownEvent as e:
        raise FormatError(
            f"{what}: it holds an event of kind {e}, which is not known here",
            code="odf-unknown-event",
            hint="No event may be left out, as it may change what the others mean; a newer version may know it.",
        ) from None
    except FormatError as e:
        raise invalid_block(f"{what}: {e.message}") from None
    except (ValueError, RecursionError) as e:
        raise invalid_block(f"{what}: {e}") from None


@cache
def _reader(name: str) -> Read:
    return _table_reader(TABLES[name])


def _table_reader(layout: TableLayout) -> Read:
    """Return the function that reads a table at a position."""
    entries = [(f.slot, f.name, _field_reader(f), _default(f), f.required) for f in layout.fields]
    tags = {f.slot: f.slot - 1 for f in layout.fields if f.kind == "union" and not f.many}
    defaults = {name: default for _, name, _, default, required in entries if default is not None and not required}
    slots: dict[int, tuple[str, Read]] = {slot: (name, read) for slot, name, read, _, _ in entries}
    required = [name for _, name, _, _, is_required in entries if is_required]
    known = layout.slots
    table = layout.name

    def read(buffer: Buffer, at: int, depth: int) -> dict[str, Any]:
        data = buffer.data
        offsets, size = _vtable(buffer, at, depth)
        found: dict[str, Any] = dict(defaults)
        for slot, offset in enumerate(offsets):
            if not offset:
                continue
            if not 4 <= offset < size:
                raise Malformed(f"a field of {table} lies outside of it")
            if slot in slots:
                name, read_field = slots[slot]
                if slot in tags:
                    tag = offsets[slot - 1]
                    buffer.left -= 1
                    found[name] = read_field(buffer, at + offset, (data[at + tag] if tag else 0) << 8 | depth)
                else:
                    found[name] = read_field(buffer, at + offset, depth)
            elif slot >= known:
                raise Malformed(f"{table} has a field in slot {slot}, which is not known here")
            elif data[at + offset] and (slot + 1 >= len(offsets) or not offsets[slot + 1]):
                raise Malformed(f"{table} names a kind for slot {slot + 1}, which is absent")
        for name in required:
            if name not in found:
                raise Malformed(f"{table} has no {name}")
        return found

    return read


def _vtable(buffer: Buffer, at: int, depth: int) -> tuple[tuple[int, ...], int]:
    """Return the offsets of the fields of a table, and how many bytes it takes."""
    if depth > MAX_DEPTH:
        raise Malformed(f"it is nested more than {MAX_DEPTH} levels deep")
    buffer.left -= 8
    if buffer.left < 0:
        raise Malformed("its tables share parts, so that they are larger than the bytes")
    start = at - _BACK(buffer.data, at)[0]
    if start < 0:
        raise Malformed("it points before its begin")
    length, size = _SIZES(buffer.data, start)
    if length < 4 or length % 2 or size < 4 or at + size > len(buffer.data):
        raise Malformed("a table says a size that it cannot have")
    return _slots((length - 4) // 2)(buffer.data, start + 4), size


@cache
def _slots(count: int) -> Callable[[bytes, int], tuple[int, ...]]:
    return Struct(f"<{count}H").unpack_from


def _default(field: Field) -> Any:
    if field.many or field.optional or field.kind not in ("scalar", "enum"):
        return None
    if field.kind == "enum":
        return ENUMS[field.of][1][0]
    return False if field.of == "bool" else 0


def _field_reader(field: Field) -> Read:
    """Return the function that reads the value of a field, given where the field stands."""
    if field.many:
        return _vector(field)
    if field.kind == "scalar":
        return _scalar(field.of)
    if field.kind == "enum":
        return _enum(field.of)
    if field.kind == "union":
        return _union(field.of)
    return _POINTED[field.kind] if field.kind in _POINTED else _pointed(_lazy(field.of))


def _lazy(name: str) -> Read:
    """Return the reader of a table that is made when it is needed: types contain themselves."""
    return lambda buffer, at, depth: _reader(name)(buffer, at, depth)


def _pointed(read: Read) -> Read:
    def follow(buffer: Buffer, at: int, depth: int) -> Any:
        return read(buffer, at + _OFFSET(buffer.data, at)[0], depth + 1)

    return follow


def _scalar(of: str) -> Read:
    unpack = _SCALAR[of]
    if of == "bool":
        return lambda buffer, at, depth: unpack(buffer.data, at)[0] != 0
    return lambda buffer, at, depth: unpack(buffer.data, at)[0]


def _enum(of: str) -> Read:
    width, names = ENUMS[of]
    unpack = _ENUM[width]

    def read(buffer: Buffer, at: int, depth: int) -> str:
        (value,) = unpack(buffer.data, at)
        if not 0 <= value < len(names):
            raise Malformed(f"{value} is no {of}")
        name: str = names[value]
        return name

    return read


def _union(of: str) -> Read:
    members = UNIONS[of]

    def read(buffer: Buffer, at: int, tag_and_depth: int) -> dict[str, Any]:
        tag, depth = tag_and_depth >> 8, tag_and_depth & 0xFF
        if not 1 <= tag <= len(members):
            if of == "MetadataEvent":
                raise UnknownEvent(tag)
            raise Malformed(f"{tag} is no known kind of {of}")
        member = members[tag - 1]
        at += _OFFSET(buffer.data, at)[0]
        return {"kind": member, **_reader(member_table(of, member).name)(buffer, at, depth + 1)}

    return read


def _vector(field: Field) -> Read:
    """Return the reader of a vector of strings, tables, or tables that wrap a union."""
    if field.kind == "string":
        item: Read = _POINTED["string"]
    elif field.kind == "union":
        wrapper = TableLayout(f"{field.of} in a list", (Field("value", 1, "union", field.of, False, False, True),), 2)
        read_wrapper = _table_reader(wrapper)
        item = _pointed(lambda buffer, at, depth: read_wrapper(buffer, at, depth)["value"])
    else:
        item = _pointed(_lazy(field.of))

    def read(buffer: Buffer, at: int, depth: int) -> list[Any]:
        at += _OFFSET(buffer.data, at)[0]
        (count,) = _OFFSET(buffer.data, at)
        if at + 4 + 4 * count > len(buffer.data):
            raise Malformed("a list is longer than the bytes")
        return [item(buffer, at + 4 + 4 * i, depth) for i in range(count)]

    return read


def _bytes(buffer: Buffer, at: int, depth: int) -> bytes:
    at += _OFFSET(buffer.data, at)[0]
    (length,) = _OFFSET(buffer.data, at)
    at += 4
    buffer.left -= length + 4
    if at + length > len(buffer.data):
        raise Malformed("a value is longer than the bytes")
    if buffer.left < 0:
        raise Malformed("its values share parts, so that they are larger than the bytes")
    return buffer.data[at : at + length]


def _string(buffer: Buffer, at: int, depth: int) -> str:
    return str(_bytes(buffer, at, depth), "utf-8")


def _hash(buffer: Buffer, at: int, depth: int) -> bytes:
    return hashes.check(_bytes(buffer, at, depth))


def _did(buffer: Buffer, at: int, depth: int) -> bytes:
    return hashes.check_did(_bytes(buffer, at, depth))


def _time(buffer: Buffer, at: int, depth: int) -> int:
    return from_parts(*_TIME(buffer.data, at))


def _json(buffer: Buffer, at: int, depth: int) -> dict[str, Any]:
    """Read the table that holds one JSON object as text."""
    at += _OFFSET(buffer.data, at)[0]
    offsets, size = _vtable(buffer, at, depth + 1)
    if not offsets or not 4 <= offsets[0] < size or any(offsets[1:]):
        raise Malformed("extra attributes are no text")
    return parse_object(_string(buffer, at + offsets[0], depth))


def parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object that a text holds; raises ValueError if it is something else."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) != len(found):
            raise ValueError("extra attributes name a key twice")
        return dict(found)

    def constant(name: str) -> Any:
        raise ValueError(f"extra attributes hold {name}, which is no JSON")

    found = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    if not isinstance(found, dict):
        raise ValueError("extra attributes are no JSON object")
    return found


class UnknownEvent(Exception):
    """An event of a kind that this version does not know."""


_POINTED: dict[str, Read] = {
    "bytes": _bytes,
    "string": _string,
    "hash": _hash,
    "did": _did,
    "time": _time,
    "json": _json,
}


_FORMATS = {"bool": "<B", "i16": "<h", "i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q"}
_PACK_TIME = Struct("<iH2xII")


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


def _write(builder: Builder, layout: TableLayout, value: dict[str, Any]) -> int:
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
        places[field.slot] = builder.inline(_PACK_TIME.pack(*to_parts(value)), builder.time_alignment)
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
