"""Java's serialization, read as data: no class is ever looked up or made.

The grammar is that of the Java Object Serialization Specification, version 2 of the stream. What a
class writes by a ``writeObject`` of its own stands in its object's ``content``: block data as bytes,
and values.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class _Block:
    data: bytes


_ENDED = object()


def parse(data: bytes) -> Any:
    """Return the first value of a stream: None, text, JavaObject, JavaArray or bytes of block data.

    Raises JavaStreamError for anything odd, and never more than MAX_DEPTH levels or MAX_ITEMS values.
    """
    return parse_prefix(data)[0]


def parse_prefix(data: bytes) -> tuple[Any, int]:
    """Return the first value of a stream and how many bytes it takes; raises as ``parse``."""
    reader = _Reader(data)
    try:
        value = reader.value(0)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError, RecursionError) as e:
        raise JavaStreamError(f"the stream is damaged: {e}") from None
    return (value.data if isinstance(value, _Block) else value), reader.at


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

    def value(self, depth: int, *, ends: bool = False) -> Any:
        """Return the value that begins here; with ``ends`` that may be the mark of an end."""
        if depth > MAX_DEPTH:
            raise JavaStreamError(f"values are nested deeper than {MAX_DEPTH} levels")
        self.count()
        tag = self.number("B")
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
            return _Block(self.take(self.number("B" if tag == _BLOCK else "i")))
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
        if depth > MAX_DEPTH:
            raise JavaStreamError(f"values are nested deeper than {MAX_DEPTH} levels")
        self.count()
        tag = self.number("B")
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
        """Return what stands up to the mark of an end."""
        found: list[Any] = []
        while (value := self.value(depth + 1, ends=True)) is not _ENDED:
            found.append(value.data if isinstance(value, _Block) else value)
        return found

    def object(self, depth: int) -> JavaObject:
        described = self.class_desc(depth + 1)
        if described is None:
            raise JavaStreamError("an object has no class")
        made = JavaObject(described.name)
        self.handles.append(made)
        lineage: list[JavaClass] = []
        level: JavaClass | None = described
        while level is not None:
            lineage.append(level)
            level = level.parent
            if len(lineage) > MAX_DEPTH:
                raise JavaStreamError("a class has too many parents")
        for level in reversed(lineage):
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
