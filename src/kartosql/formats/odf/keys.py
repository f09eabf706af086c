"""New ids of datasets: the public halves of ed25519 keys, whose secret halves nobody keeps.

Source: RFC 8032, section 5.1.5.
"""

from __future__ import annotations

import hashlib
import secrets

_P = 2**255 - 19
_D = -121665 * pow(121666, _P - 2, _P) % _P
_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_Point = tuple[int, int, int, int]  # x and y times z, z, x times y times z


def new_dataset_id() -> bytes:
    """Return the id of a new dataset, which no other one has."""
    return bytes((0xED, 0x01)) + public_key(secrets.token_bytes(32))


def public_key(secret: bytes) -> bytes:
    """Return the ed25519 public key of 32 secret bytes."""
    digest = bytearray(hashlib.sha512(secret).digest()[:32])
    digest[0] &= 248
    digest[31] = (digest[31] & 127) | 64
    number = int.from_bytes(digest, "little")
    point, result = _base(), (0, 1, 1, 0)
    while number:
        if number & 1:
            result = _add(result, point)
        point = _add(point, point)
        number >>= 1
    inverse = pow(result[2], _P - 2, _P)
    x, y = result[0] * inverse % _P, result[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _base() -> _Point:
    square = (_BASE_Y * _BASE_Y - 1) * pow(_D * _BASE_Y * _BASE_Y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    x = _P - x if x & 1 else x
    return x, _BASE_Y, 1, x * _BASE_Y % _P


def _add(one: _Point, other: _Point) -> _Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _P
    b = (one[1] + one[0]) * (other[1] + other[0]) % _P
    c = 2 * one[3] * other[3] * _D % _P
    d = 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P
