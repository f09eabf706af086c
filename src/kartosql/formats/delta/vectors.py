"""Deletion vectors of Delta tables: which rows of a file are deleted."""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.formats.roaring import rows_of

Z85 = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)
_UUID = 20  # characters of an encoded name
MAX_BYTES = 1 << 28
Read = Callable[[str, int, int], bytes]  # a range of a file, by its path as the log has it


def positions_of(vector: Mapping[str, Any], read: Read, name: str) -> pa.Array:
    """Return the numbers of the deleted rows of the file ``name``, ascending; raises ``delta-invalid-vector``."""
    kind, place, size = vector["storageType"], vector["pathOrInlineDv"], vector["sizeInBytes"]
    try:
        if not isinstance(size, int) or not 0 < size <= MAX_BYTES:
            raise ValueError(f"its size is {size}")
        if kind == "i":
            return rows_of(_decoded(place)[:size], vector["cardinality"], is_framed=False)
        if kind not in ("u", "p"):
            raise ValueError(f"it is stored in the way {kind!r}, which is not known")
        at = 1 if vector["offset"] is None else vector["offset"]
        if at < 1:
            raise ValueError(f"it stands at {at}")
        data = read(_path(place) if kind == "u" else place, at, at + size + 8)
        if len(data) != size + 8:
            raise ValueError("its file does not have its size")
        return rows_of(data, vector["cardinality"], is_framed=True)
    except (ValueError, TypeError, struct.error, KeyError) as e:
        problem = "its file is missing" if isinstance(e, KeyError) else str(e)[:200]
        raise FormatError(
            f"{name}: the deletion vector cannot be read: {problem}",
            code="delta-invalid-vector",
            hint="Without it nobody can tell which rows of the file are deleted; read an older VERSION of the table.",
        ) from None


def _decoded(text: str) -> bytes:
    if any(ord(c) not in Z85 for c in text) or len(text) % 5:
        raise ValueError("it is no Z85")
    return base64.b85decode(text.translate(Z85))


def _path(place: str) -> str:
    folder, name = place[:-_UUID], uuid.UUID(bytes=_decoded(place[-_UUID:]))
    return f"{folder}/deletion_vector_{name}.bin" if folder else f"deletion_vector_{name}.bin"
