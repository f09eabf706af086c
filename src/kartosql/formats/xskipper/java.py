"""Java's serialization, read as data: no class is ever looked up or made.

The grammar is that of the Java Object Serialization Specification, version 2 of the stream. What a
class writes by a ``writeObject`` of its own is in its object's ``content``: block data as bytes,
and values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

import pyarrow as pa

from kartosql.errors import reraise
from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.domain import MAX_DIGITS, Bounds, ColumnType, OddCells, Values, bounds_of, keys_of

MAGIC = b"\xac\xed\x00\x05"
MAX_DEPTH = 32
MAX_ITEMS = 1_000_000  # values and array elements of one stream

_NULL, _REFERENCE, _CLASS_DESC, _OBJECT, _STRING, _ARRAY, _CLASS, _BLOCK, _END, _RESET, _LONG_BLOCK = range(0x70, 0x7B)
_LONG_STRING, _PROXY, _ENUM = 0x7C, 0x7D, 0x7E
_WRITES, _SERIALIZABLE, _EXTERNALIZABLE = 1, 2, 4  # flags of a class
_FIRST_HANDLE = 0x7E0000
_PRIMITIVES = {"B": "b", "C": "H", "D": "d", "F": "f", "I": "i", "J": "q", "S": "h", "Z": "?"}
# Classes whose writeObject does not write the fields that their descriptor declares.
_WITHOUT_FIELDS = frozenset(
    {"org.apache.spark.util.sketch.BloomFilterImpl", "org.apache.spark.util.sketch.BloomFilterImplV2"}
)


class JavaStreamError(ValueError):
    """Bytes that are no Java serialization, or more of it than is read."""


@dataclass
class JavaClass:
    """A class descriptor: its name, flags, fields as (type, name) and the descriptor of its parent."""

    name: str
    flags: int = 0
    fields: list[tuple[str, str]] = field(default_factory=list)
    parent: JavaClass | None = None


@dataclass
class JavaObject:
    """An object: the name of its class, its fields with those of its parents, and what classes wrote by themselves."""

    class_name: str
    fields: dict[str, Any] = field(default_factory=dict)
    content: list[Any] = field(default_factory=list)


@dataclass
class JavaArray:
    """An array: the name of its class, such as ``[Ljava.lang.String;``, and its elements; bytes for ``[B``."""

    class_name: str
    values: Any


_ENDED = object()


def parse(data: bytes, *, whole: bool = False) -> Any:
    """Return the first value of a stream: None, text, JavaObject, JavaArray or bytes of block data.

    Raises JavaStreamError for anything odd, and for more than MAX_DEPTH levels or MAX_ITEMS values; if the value has
    to be the ``whole`` stream, also for bytes behind it.
    """
    reader = _Reader(data)
    try:
        value = reader.value(0)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError, RecursionError) as e:
        raise JavaStreamError(f"the stream is damaged: {e}") from None
    if whole and reader.at != len(data):
        raise JavaStreamError("bytes follow the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        if not data.startswith(MAGIC):
            raise JavaStreamError("the bytes are no Java serialization")
        self.data = data
        self.at = len(MAGIC)
        self.items = 0
        self.handles: list[Any] = []

    # -- bytes -----------------------------------------------------------------------------

    def take(self, length: int) -> bytes:
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise JavaStreamError("the stream ends too early")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, code: str) -> Any:
        layout = ">" + code
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, length_code: str = "H") -> str:
        return _modified_utf8(self.take(self.number(length_code)))

    def count(self, more: int = 1) -> None:
        self.items += more
        if self.items > MAX_ITEMS:
            raise JavaStreamError(f"the stream holds more than {MAX_ITEMS:,} values")

    # -- values ----------------------------------------------------------------------------

    def tag(self, depth: int) -> int:
        """Return what kind of value begins here."""
        if depth > MAX_DEPTH:
            raise JavaStreamError(f"values are nested deeper than {MAX_DEPTH} levels")
        self.count()
        return int(self.number("B"))

    def value(self, depth: int, *, ends: bool = False) -> Any:
        """Return the value that begins here; with ``ends`` that may be the mark of an end."""
        tag = self.tag(depth)
        if tag == _NULL:
            return None
        if tag == _REFERENCE:
            return self.reference()
        if tag == _OBJECT:
            return self.object(depth)
        if tag in (_STRING, _LONG_STRING):
            text = self.text("H" if tag == _STRING else "q")
            self.handles.append(text)
            return text
        if tag == _ARRAY:
            return self.array(depth)
        if tag == _ENUM:
            return self.enum(depth)
        if tag in (_BLOCK, _LONG_BLOCK):
            return self.take(self.number("B" if tag == _BLOCK else "i"))
        if tag == _END and ends:
            return _ENDED
        if tag == _CLASS:
            found = self.class_desc(depth + 1)
            self.handles.append(found)
            return found
        raise JavaStreamError(f"the stream holds the tag {tag:#x}")

    def reference(self) -> Any:
        index = self.number("i") - _FIRST_HANDLE
        if not 0 <= index < len(self.handles):
            raise JavaStreamError("a reference points nowhere")
        return self.handles[index]

    def class_desc(self, depth: int) -> JavaClass | None:
        tag = self.tag(depth)
        if tag == _NULL:
            return None
        if tag == _REFERENCE:
            found = self.reference()
            if not isinstance(found, JavaClass):
                raise JavaStreamError("a reference is no class")
            return found
        if tag != _CLASS_DESC:
            raise JavaStreamError(f"a class begins with the tag {tag:#x}")
        described = JavaClass(self.text())
        self.number("q")  # the serialVersionUID differs by compiler and proves nothing
        self.handles.append(described)
        described.flags = self.number("B")
        for _ in range(self.number("H")):
            self.count()
            kind, name = chr(self.number("B")), self.text()
            if kind in "[L":
                kind = str(self.value(depth + 1))
            elif kind not in _PRIMITIVES:
                raise JavaStreamError(f"a field has the type {kind!r}")
            described.fields.append((kind, name))
        self.content(depth)
        described.parent = self.class_desc(depth + 1)
        return described

    def content(self, depth: int) -> list[Any]:
        """Return the bytes up to the mark of an end."""
        return list(iter(lambda: self.value(depth + 1, ends=True), _ENDED))

    def object(self, depth: int) -> JavaObject:
        described = self.class_desc(depth + 1)
        if described is None:
            raise JavaStreamError("an object has no class")
        made = JavaObject(described.name)
        self.handles.append(made)
        lineage = [described]
        while lineage[0].parent is not None:
            lineage.insert(0, lineage[0].parent)
            if len(lineage) > MAX_DEPTH:
                raise JavaStreamError("a class has too many parents")
        for level in lineage:
            if level.flags & _EXTERNALIZABLE or not level.flags & _SERIALIZABLE:
                raise JavaStreamError(f"{level.name} does not write itself as fields")
            if level.name not in _WITHOUT_FIELDS:
                for kind, name in level.fields:
                    made.fields[name] = self.field(kind, depth)
            if level.flags & _WRITES:
                made.content.extend(self.content(depth))
        return made

    def field(self, kind: str, depth: int) -> Any:
        code = _PRIMITIVES.get(kind)
        return self.value(depth + 1) if code is None else self.number(code)

    def array(self, depth: int) -> JavaArray:
        described = self.class_desc(depth + 1)
        if described is None or len(described.name) < 2:
            raise JavaStreamError("an array has no class")
        made = JavaArray(described.name, [])
        self.handles.append(made)
        length, kind = self.number("i"), described.name[1]
        if length < 0:
            raise JavaStreamError("an array has a negative length")
        if kind == "B":
            made.values = self.take(length)
            return made
        self.count(length)
        for _ in range(length):
            made.values.append(self.field(kind, depth))
        return made

    def enum(self, depth: int) -> JavaObject:
        described = self.class_desc(depth + 1)
        made = JavaObject(described.name if described else "")
        self.handles.append(made)
        made.content.append(self.value(depth + 1))
        return made


def _modified_utf8(data: bytes) -> str:
    """Return text in Java's UTF-8: NUL in two bytes, supplementary characters as two surrogates."""
    if data.isascii():
        return data.decode("ascii")
    text = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


_T = TypeVar("_T")
MAX_BYTES = 32 << 20  # of the objects of one column; each byte costs time
_BOXED = {
    **{f"java.lang.{name}": "integer" for name in ("Byte", "Short", "Integer", "Long")},
    **{f"java.lang.{name}": name.lower() for name in ("Float", "Double", "Boolean")},
}
_SETS = ("scala.collection.mutable.HashSet", "scala.collection.immutable.HashSet$SerializationProxy")
_SCALA_PROXY = "scala.collection.generic.DefaultSerializationProxy"
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
    """Return the family and the value of a boxed Java object; raises OddCells for others."""
    # A date of SQL is midnight in a zone that nobody wrote down, so it is not known.
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
    if name in (*_SETS, _SCALA_PROXY):
        if not content or not isinstance(content[0], bytes):
            raise OddCells("a set without its size")
        at = 4 if name == _SETS[0] else 0
        size, items = int.from_bytes(content[0][at : at + 4], "big", signed=True), content[1:]
        ends = bool(items) and isinstance(items[-1], JavaObject) and items[-1].class_name == _END_MARK
        return items[:-1] if name == _SCALA_PROXY and size < 0 and ends else _sized(items, size)
    if name.startswith(_SMALL_SET):
        return _sized([v for k, v in sorted(value.fields.items()) if k.startswith("elem")], int(name[-1]))
    if name == "scala.collection.immutable.Set$EmptySet$":
        return []
    raise OddCells("the values are no set that is read")


def _sized(items: list[Any], size: int) -> list[Any]:
    if len(items) != size:
        raise OddCells("a set has another size than it says")
    return items


def _rows(
    cells: Sequence[bytes | None], names: tuple[str, ...], read: Callable[[list[Any]], list[_T]]
) -> list[list[_T] | None]:
    """Return what ``read`` makes of fields of the object in each cell, None for cells that are not read."""
    size = sum(len(c) for c in cells if c is not None)
    if size > MAX_BYTES:
        raise OddCells(f"its objects have more than {MAX_BYTES:,} bytes")
    found: list[list[_T] | None] = []
    for cell in cells:
        try:
            value = parse(cell) if cell is not None else None
            fields = value.fields if isinstance(value, JavaObject) else {}
            found.append(read([fields[n] for n in names]) if all(n in fields for n in names) else None)
        except (JavaStreamError, OddCells):
            found.append(None)
    return found


def _typed(rows: Sequence[Sequence[tuple[str, Any] | None] | None]) -> tuple[ColumnType, pa.DataType]:
    pairs = [pair for row in rows for pair in row or () if pair is not None]
    # Where all is read and there is no value but NULL, its type does not matter.
    families = {family for family, _ in pairs} or (set() if None in rows else {"integer"})
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
    rows = _rows(cells, ("min", "max"), lambda ends: [None if v is None else _plain(v) for v in ends])
    type_, arrow = _typed(rows)
    ends = [[end and end[1] for end in row or (None, None)] for row in rows]
    low, high = (_array([end[at] for end in ends], arrow) for at in (0, 1))
    made = bounds_of(low, high, type_, is_legacy=True)
    empty = array_of([e and row is not None for e, row in zip(made.empty.to_pylist(), rows, strict=True)], pa.bool_())
    return Bounds(made.low, made.high, empty), type_


def old_values(cells: Sequence[bytes | None]) -> tuple[Values, ColumnType]:
    """Return the values in serialized objects, and their type; raises OddCells."""
    rows = _rows(cells, ("values",), lambda found: [_plain(v) for v in _elements(found[0])])
    type_, arrow = _typed(rows)
    numbers = [number for number, row in enumerate(rows) for _ in row or ()]
    keys = keys_of(_array([value for row in rows for _, value in row or ()], arrow), type_)
    return Values(keys, array_of(numbers, pa.int64()), array_of([row is None for row in rows], pa.bool_())), type_
