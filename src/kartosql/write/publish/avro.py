"""Values and files in Avro's binary form."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

NULL, VALUE = b"\x00", b"\x02"  # in front of what may be NULL


def number(value: int) -> bytes:
    """Return an integer of whatever width."""
    return _KNOWN[value] if 0 <= value < _MANY else _number(value)


def _number(value: int) -> bytes:
    left = value << 1 if value >= 0 else (-value << 1) - 1
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


_MANY = 1 << 14
_KNOWN = [_number(value) for value in range(_MANY)]  # which files have many of


def octets(value: bytes) -> bytes:
    """Return bytes with their length."""
    return number(len(value)) + value


def text(value: str) -> bytes:
    """Return a text."""
    return octets(value.encode())


def pairs(found: Iterable[bytes]) -> bytes:
    """Return a list of encoded items, NULL if there are none."""
    items = list(found)
    return VALUE + number(len(items)) + b"".join(items) + b"\x00" if items else NULL


def file(schema: Any, metadata: Mapping[str, str], records: Iterable[bytes]) -> bytes:
    """Return a file with encoded records of a schema."""
    listed, sync = list(records), os.urandom(16)
    heads = {"avro.schema": json.dumps(schema), "avro.codec": "deflate", **metadata}
    head = b"Obj\x01" + number(len(heads)) + b"".join(text(k) + text(v) for k, v in heads.items()) + b"\x00" + sync
    if not listed:
        return head
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    data = packer.compress(b"".join(listed)) + packer.flush()
    return head + number(len(listed)) + octets(data) + sync
