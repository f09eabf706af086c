"""Local folders, in the few calls of a filesystem that the store needs.

fsspec has the same; importing it takes longer than a small query.
"""

from __future__ import annotations

import os
from typing import Any


class LocalFiles:
    """Files of the local disk behind the method names of an fsspec filesystem."""

    protocol = ("file", "local")

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        """Return the entries of a folder, without their sizes: each of them would take a call of its own."""
        with os.scandir(path) as entries:
            return [{"name": e.path, "size": None, "type": "directory" if e.is_dir() else "file"} for e in entries]

    def find(self, path: str, detail: bool = True) -> dict[str, dict[str, Any]]:
        """Return every file below a folder; links to folders are not followed, and no folder is left out silently."""
        found = {}
        for folder, _, names in os.walk(path, onerror=_unless_gone):
            for name in names:
                full = f"{folder.rstrip('/')}/{name}"
                if not os.path.islink(full):
                    found[full] = {"size": os.stat(full).st_size}
        return found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file, or of a range of it."""
        with open(path, "rb") as f:
            if start:
                f.seek(start)
            return f.read() if end is None else f.read(max(0, end - (start or 0)))

    def tail(self, path: str, size: int, length: int) -> bytes:
        """Return at most ``length`` bytes at the end of a file of some size; raises OSError if it cannot be read."""
        number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            start = max(0, size - length)
            os.lseek(number, start, os.SEEK_SET)
            return os.read(number, size - start)
        finally:
            os.close(number)

    def invalidate_cache(self) -> None:
        """Do nothing: nothing is cached."""


def _unless_gone(error: OSError) -> None:
    """Raise what went wrong with a folder, unless somebody removed it."""
    if not isinstance(error, FileNotFoundError):
        raise error
