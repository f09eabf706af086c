"""Objects of a store as files of Python: read by ranges, and written with a count."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from typing import IO, Any


class RangedFile(io.RawIOBase):
    """A file of so many bytes that ``fetch`` reads from one place to another; its position is kept per thread.

    DuckDB's threads share a file: each of them seeks and then reads, and another one may come in between.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, descriptor: int = -1) -> None:
        self._fetch, self._size = fetch, size
        self._descriptor = descriptor  # of the local file that it is, which is closed with it
        self._here = threading.local()

    def readable(self) -> bool:
        """Return True, as pyarrow asks for it."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        self._here.at = max(0, base + offset)
        return self.tell()

    def tell(self) -> int:
        """Return the place of this thread."""
        return int(getattr(self._here, "at", 0))

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        at = self.tell()
        end = self._size if size is None or size < 0 else min(at + size, self._size)
        data = self._fetch(at, end) if end > at else b""
        self._here.at = at + len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        super().close()


class CountedOutput(io.RawIOBase):
    """A file object that knows how much was written, as pipes do not; to leave its block does not close the file.

    After an error in the block nothing more is written: the libraries would add a footer, and a part of the rows would
    look like all of them.
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._failed = False
        self.count = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._failed = kind is not None

    def writable(self) -> bool:
        """Return True, as pyarrow asks for it."""
        return True

    def write(self, data: Any, /) -> int:
        """Write all of ``data``."""
        if not self._failed:
            self._out.write(data)
            self.count += len(data)
        return len(data)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.count
