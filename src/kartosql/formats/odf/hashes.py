"""Hashes and ids: multihash bytes, their texts in base16 and base58, and new ids.

Ids are the public halves of ed25519 keys, points of its curve, whose secret halves nobody knows; source: RFC 8032,
section 5.1.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from kartosql.errors import FormatError

SHA3_256 = 0x16
_SHA3_PREFIX = bytes((SHA3_256, 32))
_LOGICAL_PREFIX = bytes((0x96, 0x80, 0xC0, 0x01, 32))
_DID_PREFIX = bytes((0xED, 0x01))  # multicodec ed25519-pub
DID = "did:odf:"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_HEX = re.compile(r"[0-9a-fA-F]*\Z")
MAX_TEXT = 200
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P


def hash_of(data: bytes) -> bytes:
    """Return the multihash of bytes: the physical hash of a file, the hash of a stored block."""
    return _SHA3_PREFIX + hashlib.sha3_256(data).digest()


def logical_hash(digest: bytes) -> bytes:
    """Return the multihash of a logical digest of 32 bytes."""
    return _LOGICAL_PREFIX + digest


def to_text(multihash: bytes) -> str:
    """Return the text of a multihash, in base16 as RFC-012 prefers it."""
    return "f" + multihash.hex()


def from_text(text: str, what: str = "hash") -> bytes:
    """Return the multihash that a text in base16 or base58 stands for.

    Raises ``odf-invalid-hash`` if it is neither, or no multihash.
    """
    return check(_decode(text, what), what)


def check(data: bytes, what: str = "hash", *, code: int | None = None) -> bytes:
    """Return the bytes of a multihash; raises ``odf-invalid-hash`` for other texts.

    With ``code`` it has to be a hash of 32 bytes by that function.
    """
    if len(data) == 34 and data.startswith(_SHA3_PREFIX) and (code is None or code == SHA3_256):
        return data
    found, at = _varint(data, 0)
    length, at = _varint(data, at)
    if found is None or length is None or length != len(data) - at or not length:
        raise _invalid(f"The {what} {data[:40].hex()!r} is no multihash")
    if code is not None and (found != code or length != 32):
        raise _invalid(f"The {what} {to_text(data)[:100]} is by function {found:#x}, not {code:#x}")
    return data


def did_to_text(data: bytes) -> str:
    """Return the text of the id of a dataset."""
    return f"{DID}f{data.hex()}"


def did_from_text(text: str) -> bytes:
    """Return the id of a dataset from its text; raises ``odf-invalid-hash``."""
    if not text.startswith(DID):
        raise _invalid(f"The dataset id {text[:MAX_TEXT]!r} does not begin with {DID}")
    return check_did(_decode(text[len(DID) :], "dataset id"))


def check_did(data: bytes) -> bytes:
    """Return the bytes of the id of a dataset; raises ``odf-invalid-hash`` for other texts."""
    if len(data) != 34 or not data.startswith(_DID_PREFIX):
        raise _invalid(f"The dataset id {data[:40].hex()!r} is no ed25519 key with its prefix ed01")
    return data


def _decode(text: str, what: str) -> bytes:
    if not isinstance(text, str) or not 1 < len(text) <= MAX_TEXT:
        raise _invalid(f"{str(text)[:MAX_TEXT]!r} is no {what}")
    base, body = text[0], text[1:]
    if base in "fF" and len(body) % 2 == 0 and _HEX.match(body):
        return bytes.fromhex(body)
    if base == "z" and all(c in _BASE58 for c in body):
        return _from_base58(body)
    raise _invalid(f"The {what} {text!r} is neither base16 (f...) nor base58 (z...)")


def _from_base58(text: str) -> bytes:
    number = 0
    for character in text:
        number = number * 58 + _BASE58.index(character)
    zeros = len(text) - len(text.lstrip(_BASE58[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    number = 0
    for i in range(at, min(at + 9, len(data))):
        number |= (data[i] & 0x7F) << 7 * (i - at)
        if data[i] < 0x80:
            return number, i + 1
    return None, at


def _invalid(message: str) -> FormatError:
    hint = "Hashes look like f1620 and 64 hex digits, ids of datasets like did:odf:fed01 and 64 hex digits."
    return FormatError(message, code="odf-invalid-hash", hint=hint)


def new_dataset_id() -> bytes:
    """Return the id of a new dataset, which no other one has."""
    while True:
        key = secrets.token_bytes(32)
        y = int.from_bytes(key, "little") & (1 << 255) - 1
        square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P  # of x
        if y < _P and pow(square, (_P - 1) // 2, _P) == 1:
            return _DID_PREFIX + key
