"""Arrow schemas as the bare flatbuffers that events hold.

Their root is the table Schema itself. Arrow's messages hold the same table behind a table
Message, so taking one to the other moves nothing but the offset of the root.
"""

from __future__ import annotations

from struct import pack, unpack_from

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.failures import reraise
from kartosql.formats.odf.errors import DAMAGED

_PREFIX = 8  # of a message: a marker and the length
_MARKER = 0xFFFFFFFF
_HEADER_SLOT = 2
_MESSAGE = 32  # bytes of the table Message that goes in front


def to_bytes(schema: pa.Schema) -> bytes:
    """Return a schema as a bare flatbuffer; its metadata and those of its fields are kept."""
    message: bytes = schema.serialize().to_pybytes()[_PREFIX:]
    (table,) = unpack_from("<I", message, 0)
    (back,) = unpack_from("<i", message, table)
    (at,) = unpack_from("<H", message, table - back + 4 + 2 * _HEADER_SLOT)
    header = table + at
    (offset,) = unpack_from("<I", message, header)
    return pack("<I", header + offset) + message[4:]


def from_bytes(data: bytes, what: str = "the schema") -> pa.Schema:
    """Return the schema that a bare flatbuffer holds; raises ``odf-invalid-schema``."""
    if len(data) < 8:
        raise _invalid(f"{what}: it has {len(data)} bytes only")
    (root,) = unpack_from("<I", data, 0)
    if root == _MARKER:
        raise _invalid(f"{what}: it is a message of Arrow, not the bare table Schema")
    if not 4 <= root <= len(data) - 4:
        raise _invalid(f"{what}: its root lies outside of it")
    # vtable: 12 bytes, of 4 slots; table: 12 bytes, the offset of the header at 4, version at 8, type at 10.
    front = pack("<IHHHHHHiIHBx4x", 16, 12, 12, 8, 10, 4, 0, 12, _MESSAGE + root - 20, 4, 1)
    body = front + data
    body += bytes(-len(body) % 8)
    try:
        return pa.ipc.read_schema(pa.py_buffer(pack("<Ii", _MARKER, len(body)) + body))
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, UnicodeDecodeError) as e:
        reraise(e)
        raise _invalid(f"{what}: Arrow cannot read it: {' '.join(str(e).split())[:200]}") from None


def _invalid(message: str) -> FormatError:
    return FormatError(message, code="odf-invalid-schema", hint=DAMAGED)
