"""Encrypted metadata: Parquet's modular encryption with master keys that the caller hands over."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Any

from kartosql.errors import UsageError

Keys = Mapping[str, "str | bytes"]
_NONCE = 12


def checked_keys(keys: Keys | None) -> dict[str, bytes]:
    """Return master keys by their labels as bytes; text counts as base64.

    Raises ``invalid-argument`` for what is no key of 16, 24 or 32 bytes.
    """
    found = {}
    for label, key in (keys or {}).items():
        try:
            raw = base64.b64decode(key, validate=True) if isinstance(key, str) else bytes(key)
        except (binascii.Error, ValueError, TypeError):
            raw = b""
        if len(raw) not in (16, 24, 32):
            raise UsageError(
                f"The key {label!r} is no AES key.", hint="A key has 16, 24 or 32 bytes, as bytes or as base64 text."
            )
        found[str(label)] = raw
    return found


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError(
            "Encrypted metadata need the package cryptography.",
            code="missing-extra",
            hint="Install the extra: pip install 'kartosql[encryption]'.",
        ) from None
    return AESGCM(key)


def wrap(key: bytes, master: bytes, label: str) -> bytes:
    """Return a key encrypted with a master key, in base64, as parquet-mr does it."""
    nonce = os.urandom(_NONCE)
    return base64.b64encode(nonce + _cipher(master).encrypt(nonce, key, label.encode()))


def unwrap(wrapped: bytes | str, master: bytes, label: str) -> bytes:
    """Return the key that ``wrap`` encrypted; ValueError if it is not one, or of another master key."""
    try:
        raw = base64.b64decode(wrapped, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"the key {label!r} does not open what it should") from None
    cipher = _cipher(master)
    from cryptography.exceptions import InvalidTag

    try:
        plain: bytes = cipher.decrypt(raw[:_NONCE], raw[_NONCE:], label.encode())
    except (InvalidTag, ValueError):
        raise ValueError(f"the key {label!r} does not open what it should") from None
    return plain


def factory(keys: Mapping[str, bytes]) -> tuple[Any, Any]:
    """Return Arrow's factory of encryption properties over some master keys, and its connection to them."""
    import pyarrow.parquet.encryption as pe

    class Keeper(pe.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return wrap(key_bytes, _master(keys, master_key_identifier), master_key_identifier)

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            return unwrap(wrapped_key, _master(keys, master_key_identifier), master_key_identifier)

    return pe.CryptoFactory(lambda _: Keeper()), pe.KmsConnectionConfig()


def _master(keys: Mapping[str, bytes], label: str) -> bytes:
    if label not in keys:
        raise ValueError(f"the key {label!r} is not given")
    return keys[label]


def decryption(keys: Mapping[str, bytes]) -> Any:
    """Return Arrow's properties to read files with some master keys, None without keys."""
    if not keys:
        return None
    _cipher(next(iter(keys.values())))  # a missing package is told before a file is opened
    made, connection = factory(keys)
    import pyarrow.parquet.encryption as pe

    # The factory has to live as long as the properties: they call it for each column.
    return made, made.file_decryption_properties(connection, pe.DecryptionConfiguration())
