"""The schema in the footer of a Parquet file, as bytes: files with the same bytes have the same schema."""

from __future__ import annotations

MAGIC = b"PAR1"
_END = len(MAGIC) + 4  # behind the footer: its length, and the magic bytes
_SCHEMA, _ROWS = 2, 3  # fields of FileMetaData
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
