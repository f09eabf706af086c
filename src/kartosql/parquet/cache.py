"""What footers tell of the files of a table, remembered as long as the table is."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from kartosql.parquet.footer import GEO, notes_of, schema_bytes
from kartosql.parquet.thrift import DAMAGE

MAX_FILES = 200_000
MAX_PREFIXES = 16  # beginnings of footers with which others are compared before they are read


@dataclass
class Facts:
    """What the footers of one table's files tell.

    ``schemas`` are the numbers of the schemas of files, by their keys and what tells their contents apart, such as
    their size; ``rows`` are row counts by key; ``statistics`` is what an engine keeps of columns.
    """

    table: weakref.ref[Any]
    schemas: dict[tuple[str, Any], int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    statistics: Any = None

    def __len__(self) -> int:
        return max(len(self.schemas), len(self.rows), len(self.statistics or ()))


class FooterCache:
    """Keeps facts with the table object whose metadata name the files, and forgets them with it.

    Other programs may write a dataset anew under its old labels, but a data file does not change before the metadata
    that name it. Schemas that are the same have the same number, of all tables.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._facts: dict[int, Facts] = {}
        self._numbers: dict[Hashable, int] = {}
        self._recent: dict[bytes, int] = {}  # beginning of a footer -> number of its schema

    def facts(self, table: object) -> Facts:
        """Return what is known of the files of a table."""
        found = self._facts.get(id(table))
        if found is None or found.table() is not table:
            self._facts = {n: f for n, f in self._facts.items() if f.table() is not None}
            found = self._facts[id(table)] = Facts(weakref.ref(table))
        return found

    def make_room(self, coming: int) -> None:
        """Forget everything if so many more files are too many."""
        if sum(map(len, self._facts.values())) + coming > MAX_FILES:
            for facts in self._facts.values():
                facts.schemas.clear()
                facts.rows.clear()
                facts.statistics = None

    def number(self, schema: Hashable) -> int:
        """Return the number of a schema, the same for the same one."""
        return self._numbers.setdefault(schema, len(self._numbers))

    def recognise(self, footer: bytes) -> int:
        """Return the number of the schema of a footer."""
        with self.lock:
            number = next((n for prefix, n in self._recent.items() if footer.startswith(prefix)), None)
            if number is None:
                prefix = schema_bytes(footer)
                number = self.number(prefix or hashlib.sha256(footer).digest())
                if prefix is not None:
                    while len(self._recent) >= MAX_PREFIXES:
                        del self._recent[next(iter(self._recent))]
                    self._recent[prefix] = number
            # What GeoParquet notes behind the schema gives columns another type.
            notes = _geo_notes(footer) if GEO in footer else ()
            return self.number((number, notes)) if notes else number


def _geo_notes(footer: bytes) -> tuple[bytes, ...]:
    """Return digests of GeoParquet's notes in a footer; that of the whole footer, where it cannot be read."""
    try:
        notes = notes_of(footer, GEO)
    except DAMAGE:
        notes = [footer]
    return tuple(hashlib.sha256(note).digest() for note in notes)
