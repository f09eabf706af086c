"""Where results go instead of the screen: the next one, or all of them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kartosql.errors import StoreError, UsageError
from kartosql.render.files import format_of, replacing
from kartosql.render.formats import BINARY_FORMATS, write_stream
from kartosql.result import Query


@dataclass(frozen=True)
class File:
    """A file for results: replaced by one result, or with results appended to each other."""

    path: str
    format: str
    appends: bool

    def write(self, query: Query) -> int:
        """Write a result and return the number of rows; raises ``store-failed``."""
        if not self.appends:
            with replacing(self.path) as out:
                return write_stream(query.reader(), self.format, out)
        try:
            with open(self.path, "ab") as out:
                return write_stream(query.reader(), self.format, out, header=out.tell() == 0)
        except OSError as e:
            raise StoreError(f"Cannot write {self.path!r}: {e.strerror or e}") from None


class Target:
    """The files of ``.once`` and ``.output``."""

    def __init__(self) -> None:
        self._once: File | None = None
        self._all: File | None = None

    def once(self, path: str) -> None:
        """Send the next result to a file; raises ``invalid-argument`` for a suffix that names no format."""
        path = os.path.expanduser(path)
        self._once = File(path, format_of(path), False)

    def every(self, path: str | None) -> None:
        """Send all results from now on to a file, which is begun anew; None is the screen."""
        if path is None:
            self._all = None
            return
        path = os.path.expanduser(path)
        format_ = format_of(path)
        if format_ in BINARY_FORMATS or format_ == "json":
            raise UsageError(
                f"A {format_} file holds one result.", hint="Use .once FILE, or a .csv, .tsv or .jsonl file."
            )
        try:
            with open(path, "wb"):
                pass
        except OSError as e:
            raise StoreError(f"Cannot write {path!r}: {e.strerror or e}") from None
        self._all = File(path, format_, True)

    @property
    def path(self) -> str | None:
        """The file of ``.output``."""
        return self._all.path if self._all is not None else None

    def take(self) -> File | None:
        """Return the file for the result that comes, None for the screen."""
        found, self._once = self._once or self._all, None
        return found
