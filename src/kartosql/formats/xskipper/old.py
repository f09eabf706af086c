"""Version 0, whose cells are Java objects: what of them is read as data."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from kartosql.failures import reraise
from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.cells import Bounds, OddCells, Values, bounds_of, keys_of
from kartosql.formats.xskipper.domain import MAX_DIGITS, ColumnType
from kartosql.formats.xskipper.java import JavaArray, JavaObject, JavaStreamError, parse

MAX_BYTES = 32 << 20  # of the objects of one column; each byte costs time
_BOXED = {
    "java.lang.Byte": "integer",
    "java.lang.Short": "integer",
    "java.lang.Integer": "integer",
    "java.lang.Long": "integer",
    "java.lang.Float": "float",
    "java.lang.Double": "double",
    "java.lang.Boolean": "boolean",
}
_SETS = ("scala.collection.mutable.HashSet", "scala.collection.immutable.HashSet$SerializationProxy")
_PROXY = "scala.collection.generic.DefaultSerializationProxy"
_END_MARK = "scala.collection.generic.SerializeEnd$"
_SMALL_SET = "scala.collection.immutable.Set$Set"
_ARROW = {
    "integer": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us"),
}


def _plain(value: Any) -> tuple[str, Any]:
    """Return the family and the value of a boxed Java object; raises OddCells for others.

    A date of SQL is midnight in a zone that nobody wrote down, so it is not known.
    """
    if isinstance(value, str):
        return "string", value
    if isinstance(value, JavaObject):
        name, fields = value.class_name, value.fields
        if name in _BOXED:
            return _BOXED[name], fields.get("value")
        if name == "java.math.BigDecimal":
            return "decimal", _decimal(fields)
        if name == "java.sql.Timestamp":
            return "timestamp", _micros(value)
    raise OddCells("a Java object is of a class that is not read")


def _decimal(fields: dict[str, Any]) -> Decimal:
    unscaled, scale = fields.get("intVal"), fields.get("scale")
    if not isinstance(unscaled, JavaObject) or not isinstance(scale, int) or not 0 <= scale <= MAX_DIGITS:
        raise OddCells("a decimal without a usable scale")
    magnitude, sign = unscaled.fields.get("magnitude"), unscaled.fields.get("signum")
    if not isinstance(magnitude, JavaArray) or not isinstance(magnitude.values, bytes) or len(magnitude.values) > 16:
        raise OddCells("a decimal without digits")
    if sign not in (-1, 0, 1):
        raise OddCells("a decimal without a sign")
    digits = str(int.from_bytes(magnitude.values, "big"))
    return Decimal((0 if sign >= 0 else 1, tuple(map(int, digits)), -scale))


def _micros(value: JavaObject) -> int:
    nanos = value.fields.get("nanos")
    blocks = [c for c in value.content if isinstance(c, bytes)]
    if not isinstance(nanos, int) or len(blocks) != 1 or len(blocks[0]) != 8 or nanos % 1000:
        raise OddCells("a timestamp without its parts")
    (millis,) = struct.unpack(">q", blocks[0])
    return int(millis // 1000 * 1_000_000 + nanos // 1000)


def _elements(value: Any) -> list[Any]:
    """Return the elements of a set of Scala, in the forms of 2.12 and 2.13."""
    if not isinstance(value, JavaObject):
        raise OddCells("the values are no set")
    name, content = value.class_name, value.content
    if name in _SETS:
        if not content or not isinstance(content[0], bytes):
            raise OddCells("a set without its size")
        at = 4 if name == _SETS[0] else 0
        size = int.from_bytes(content[0][at : at + 4], "big", signed=True)
        return _sized(content[1:], size)
    if name == _PROXY:
        if not content or not isinstance(content[0], bytes):
            raise OddCells("a set without its size")
        size = int.from_bytes(content[0][:4], "big", signed=True)
        items = content[1:]
        ends = bool(items) and isinstance(items[-1], JavaObject) and items[-1].class_name == _END_MARK
        return items[:-1] if size < 0 and ends else _sized(items, size)
    if name.startswith(_SMALL_SET):
        return _sized([v for k, v in sorted(value.fields.items()) if k.startswith("elem")], int(name[-1]))
    if name == "scala.collection.immutable.Set$EmptySet$":
        return []
    raise OddCells("the values are no set that is read")


def _sized(items: list[Any], size: int) -> list[Any]:
    if len(items) != size:
        raise OddCells("a set has another size than it says")
    return items


def _objects(cells: Sequence[bytes | None], names: tuple[str, ...]) -> list[list[Any] | None]:
    """Return fields of the object in each cell, None for cells that are not read."""
    size = sum(len(c) for c in cells if c is not None)
    if size > MAX_BYTES:
        raise OddCells(f"its objects have more than {MAX_BYTES:,} bytes")
    found: list[list[Any] | None] = []
    for cell in cells:
        try:
            value = parse(cell) if cell is not None else None
        except JavaStreamError:
            value = None
        fields = value.fields if isinstance(value, JavaObject) else {}
        found.append([fields[n] for n in names] if all(n in fields for n in names) else None)
    return found


def _typed(pairs: list[tuple[str, Any]], *, are_known: bool) -> tuple[ColumnType, pa.DataType]:
    # Where all is read and there is no value but NULL, its type does not matter.
    families = {family for family, _ in pairs} or ({"integer"} if are_known else set())
    if len(families) != 1:
        raise OddCells("the cells hold values of several types")
    (family,) = families
    if family != "decimal":
        return ColumnType(family), _ARROW[family]
    scale = max(-int(v.as_tuple().exponent) for _, v in pairs)
    return ColumnType("decimal", MAX_DIGITS, scale), pa.decimal128(MAX_DIGITS, scale)


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    try:
        return array_of(values, type_)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError) as e:
        reraise(e)
        raise OddCells(str(e)) from None


def old_bounds(cells: Sequence[bytes | None]) -> tuple[Bounds, ColumnType]:
    """Return the bounds in serialized objects, and the type of the values; raises OddCells."""
    lows: list[Any] = []
    highs: list[Any] = []
    pairs: list[tuple[str, Any]] = []
    unknown = []
    for found in _objects(cells, ("min", "max")):
        try:
            ends = [None if v is None else _plain(v) for v in found] if found is not None else [None, None]
        except OddCells:
            found, ends = None, [None, None]
        unknown.append(found is None)
        pairs += [e for e in ends if e is not None]
        lows.append(None if ends[0] is None else ends[0][1])
        highs.append(None if ends[1] is None else ends[1][1])
    type_, arrow = _typed(pairs, are_known=not any(unknown))
    made = bounds_of(_array(lows, arrow), _array(highs, arrow), type_, is_legacy=True)
    empty = array_of([e and not u for e, u in zip(made.empty.to_pylist(), unknown, strict=True)], pa.bool_())
    return Bounds(made.low, made.high, empty), type_


def old_values(cells: Sequence[bytes | None]) -> tuple[Values, ColumnType]:
    """Return the values in serialized objects, and their type; raises OddCells."""
    rows: list[int] = []
    pairs: list[tuple[str, Any]] = []
    unknown = []
    for row, found in enumerate(_objects(cells, ("values",))):
        try:
            items = [_plain(v) for v in _elements(found[0])] if found is not None else None
        except OddCells:
            items = None
        unknown.append(items is None)
        pairs += items or []
        rows += [row] * len(items or [])
    type_, arrow = _typed(pairs, are_known=not any(unknown))
    keys = keys_of(_array([v for _, v in pairs], arrow), type_)
    return Values(keys, array_of(rows, pa.int64()), array_of(unknown, pa.bool_())), type_
