"""The errors that data of Open Data Fabric can give."""

from __future__ import annotations

from kartosql.errors import FormatError

DAMAGED = "The file is damaged or was not written by a tool of Open Data Fabric; restore it from another copy."


def invalid_block(message: str) -> FormatError:
    """Return the error for bytes that are no metadata block."""
    return FormatError(message, code="odf-invalid-block", hint=DAMAGED)


def invalid_schema(message: str) -> FormatError:
    """Return the error for a schema that cannot be read or expressed."""
    return FormatError(message, code="odf-invalid-schema")
