"""Thrift's compact protocol, in which the footers of Parquet files are written."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 16
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
# What wrong types of values in damaged data lead to.
DAMAGE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)


class Reader:
    """Thrift's compact protocol as dictionaries of fields; raises IndexError for what is none."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self) -> int:
        """Return the next number without a sign."""
        data, at = self.data, self.at
        byte = data[at]
        at += 1
        found = byte & 0x7F
        shift = 7
        while byte & 0x80:
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if shift > 70:
                raise IndexError
        self.at = at
        return found

    def signed(self) -> int:
        """Return the next number with a sign."""
        found = self.number()
        return (found >> 1) ^ -(found & 1)

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of the next struct by their numbers."""
        if depth > MAX_DEPTH:
            raise IndexError
        found: dict[int, Any] = {}
        field = 0
        while True:
            head = self.data[self.at]
            self.at += 1
            kind = head & 15
            if kind == _STOP:
                return found
            field = field + (head >> 4) if head >> 4 else self.signed()
            found[field] = self.value(kind, depth)

    def field(self, before: int) -> tuple[int, int]:
        """Return the number and the kind of the next field of a struct; raises IndexError where there is none."""
        head = self.data[self.at]
        self.at += 1
        if head & 15 == _STOP:
            raise IndexError
        return (before + (head >> 4) if head >> 4 else self.signed()), head & 15

    def value(self, kind: int, depth: int = 0) -> Any:
        """Return the next value of a kind; floating-point numbers as None."""
        if 4 <= kind <= 6:
            return self.signed()
        if kind == _BINARY:
            length = self.number()
            start, self.at = self.at, self.at + length
            if self.at > len(self.data):
                raise IndexError
            return self.data[start : self.at]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in (_LIST, _SET):
            if depth > MAX_DEPTH:
                raise IndexError
            head = self.data[self.at]
            self.at += 1
            count = head >> 4 if head >> 4 != 15 else self.number()
            if count > len(self.data) - self.at:
                raise IndexError
            kind = head & 15
            if kind in (_TRUE, _FALSE):
                kind = _BYTE
            return [self.value(kind, depth + 1) for _ in range(count)]
        if kind == _BYTE:
            self.at += 1
            return self.data[self.at - 1]
        if kind == _DOUBLE:
            self.at += 8
            return None
        raise IndexError
