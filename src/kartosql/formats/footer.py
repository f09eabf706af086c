"""The schema in the footer of a Parquet file, as bytes: files with the same bytes have the same schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kartosql.formats.thrift import DAMAGE, Reader

MAGIC = b"PAR1"
_END = len(MAGIC) + 4  # behind the footer: its length, and the magic bytes
_SCHEMA, _ROWS = 2, 3  # fields of FileMetaData
_BOUNDS = (1, 2, 5, 6)  # fields of Statistics
_BYTE_ARRAY, _FIXED = 6, 7  # physical types
_PHYSICAL = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_LENGTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, _BYTE_ARRAY: None}  # of values, by physical type
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


def footer_of(tail: bytes) -> bytes | None:
    """Return the footer, given the last bytes of a file; None if they do not hold it, or it is encrypted."""
    if len(tail) < _END or not tail.endswith(MAGIC):
        return None
    length = int.from_bytes(tail[-_END : -len(MAGIC)], "little")
    start = len(tail) - _END - length
    return tail[start:-_END] if start >= 0 else None


def schema_bytes(footer: bytes) -> bytes | None:
    """Return the first bytes of a footer, up to where the number of rows begins; None for unusual footers.

    These are the version and the schema, in Thrift's compact protocol, which is read from
    the left: every footer that begins with the same bytes has the same schema.
    """
    at = field = 0
    try:
        while field < _SCHEMA:
            field, kind, at = _field(footer, at, field)
            at = _skip(footer, at, kind)
        following, _, end = _field(footer, at, field)
    except (IndexError, RecursionError):
        return None
    return footer[:end] if (field, following) == (_SCHEMA, _ROWS) and end <= len(footer) else None


def column_sizes(footer: bytes, schema: Any = None) -> list[list[tuple[str, int]]] | None:
    """Return the dotted path and the compressed bytes of each column in each row group, read from the footer.

    None if what tells about a column is encrypted, left out or damaged. Arrow must not be asked about
    such columns, as it ends the process; who wants to ask it hands over its ``schema`` of the file,
    which has to agree.
    """
    try:
        found = Reader(footer).struct()
        leaves = [_leaf(*leaf) for leaf in leaves_of(found[2])]
        groups = [group[1] for group in found[4]]
        if schema is not None and leaves != [_told(schema.column(at)) for at in range(len(schema))]:
            return None
        if any(len(chunks) != len(leaves) for chunks in groups):
            return None
        return [[_column(*pair) for pair in zip(chunks, leaves, strict=True)] for chunks in groups]
    except DAMAGE:
        return None


@dataclass(frozen=True)
class _Leaf:
    """A column: its physical type, the length of its values if that is fixed, and its greatest levels."""

    physical: int
    length: int | None
    definition: int
    repetition: int


def leaves_of(elements: list[dict[int, Any]]) -> Iterator[tuple[str, dict[int, Any], int, int]]:
    """Yield the columns of a schema in order: dotted path, element, and the levels of definition and repetition.

    Raises what is in ``DAMAGE`` for what is no schema.
    """
    at = 1
    # Path, members left and levels of the groups around.
    around: list[list[Any]] = [["", elements[0].get(5, 0), 0, 0]]
    while around:
        if not around[-1][1]:
            around.pop()
            continue
        around[-1][1] -= 1
        before, _, definition, repetition = around[-1]
        element = elements[at]
        at += 1
        name = element[4].decode()
        path = f"{before}.{name}" if before else name
        definition += element.get(3) in (1, 2)
        repetition += element.get(3) == 2
        if element.get(5):
            around.append([path, element[5], definition, repetition])
        else:
            yield path, element, definition, repetition


def _leaf(_: str, element: dict[int, Any], definition: int, repetition: int) -> _Leaf:
    physical = element[1]
    length = element.get(2, 0) if physical == _FIXED else _LENGTHS[physical]
    return _Leaf(physical, length, definition, repetition)


def _told(column: Any) -> _Leaf:
    physical = _PHYSICAL.index(column.physical_type)
    length = column.length if physical == _FIXED else _LENGTHS[physical]
    return _Leaf(physical, length, column.max_definition_level, column.max_repetition_level)


def _column(chunk: dict[int, Any], leaf: _Leaf) -> tuple[str, int]:
    """Return the path and the size of a column in a row group; raises ValueError where Arrow would, for good."""
    if 8 in chunk or 9 in chunk:
        raise ValueError("encrypted")
    meta = chunk[3]
    size, sizes = meta[7], meta.get(16, {})
    if meta[1] != leaf.physical or not isinstance(size, int) or size < 0:
        raise ValueError("damaged")
    for field, level in ((2, leaf.repetition), (3, leaf.definition)):
        if len(sizes.get(field, ())) not in (0, level + 1):
            raise ValueError("damaged")
    if 1 in sizes and leaf.physical != _BYTE_ARRAY:
        raise ValueError("damaged")
    if leaf.length is not None and any(
        len(meta.get(12, {}).get(f, b" " * leaf.length)) != leaf.length for f in _BOUNDS
    ):
        raise ValueError("damaged")
    return ".".join(name.decode() for name in meta[3]), size


def _field(data: bytes, at: int, before: int) -> tuple[int, int, int]:
    """Return number and kind of the field that begins at a position, and where its value begins."""
    step, kind = data[at] >> 4, data[at] & 15
    if kind == _STOP:
        raise IndexError
    if step:
        return before + step, kind, at + 1
    number, at = _number(data, at + 1)
    return (number >> 1) ^ -(number & 1), kind, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of seven bits a byte that begins at a position, and where it ends."""
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1


def _skip(data: bytes, at: int, kind: int) -> int:
    """Return where a value ends; raises IndexError behind the end, and for kinds that no schema has."""
    if kind in (_TRUE, _FALSE):
        return at
    if kind == _BYTE:
        return at + 1
    if kind in (_I16, _I32, _I64):
        return _number(data, at)[1]
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        length, at = _number(data, at)
        return at + length
    if kind == _LIST:
        count, kind = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _number(data, at)
        if kind not in (_BINARY, _STRUCT, _I32):
            raise IndexError
        for _ in range(count):
            at = _skip(data, at, kind)
        return at
    if kind != _STRUCT:
        raise IndexError
    while data[at] != _STOP:
        _, kind, at = _field(data, at, 0)
        at = _skip(data, at, kind)
    return at + 1
