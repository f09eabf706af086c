"""Which files of a dataset its data-skipping metadata rule out."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.kartothek.places import Place
from kartosql.formats.xskipper.clauses import INDEX_KINDS, Session
from kartosql.formats.xskipper.naming import path_of
from kartosql.formats.xskipper.schema import Index
from kartosql.formats.xskipper.store import ATTEMPTS, MetadataStore, Skipped
from kartosql.store import Store

RECHECK_SECONDS = 1.0  # how often files that are not indexed make us look for newer metadata


class DatasetSkipping:
    """The data-skipping metadata of one table, read when a condition first asks for them.

    Files of a dataset never change, so what is known of one stays true; metadata are only read
    again for files that are not in them. Whatever is wrong with them warns once and rules out nothing.
    """

    def __init__(self, store: Store, place: Place, files: Iterable[str]) -> None:
        self._store = store
        self._place = place
        self._names = [f"{place.table}/{file}" for file in files]
        self._metadata: MetadataStore | None = None
        self._files: list[tuple[str, int]] = []
        self._is_complete = False
        self._looked = 0.0
        self._told: set[str] = set()

    def skipped(self, condition: Any, types: Mapping[Any, Any], zone: str) -> Sequence[Skipped]:
        """Return the files that hold no row for which a condition is TRUE, by the kind of index that proves it."""
        try:
            for _ in range(ATTEMPTS):
                self._look()
                if self._metadata is None:
                    return []  # what is wrong with them was told
                found = self._metadata.select_files([condition], self._files, Session(zone, types, INDEX_KINDS))
                problems = self._metadata.problems
                if not self._metadata.has_gaps:
                    break
                self._is_complete, self._looked = False, 0.0  # somebody replaced part files while they were read
        except Exception as e:  # noqa: BLE001 - whatever is wrong with the metadata, the answer is right without them
            self._tell(f"{self._place.folder}: {e.message if isinstance(e, KartosqlError) else e}")
            return []
        self._tell(*problems)
        return found.skipped

    def indexed(self) -> tuple[list[Index], int]:
        """Return the indexes, and how many files of the table they know; raises what is wrong with them."""
        self._is_complete, self._looked = False, 0.0  # there may be new indexes of the same files
        self._look()
        assert self._metadata is not None
        return self._metadata.indexes, self._metadata.known(self._files)

    def _look(self) -> None:
        now = time.monotonic()
        if self._is_complete or (self._looked and now - self._looked < RECHECK_SECONDS):
            return
        self._looked = now
        self._metadata = MetadataStore.below(self._store, self._place.folder, table=self._place.table)
        times: dict[str, int] = {}
        odd: set[str] = set()
        for name in self._metadata.objects:
            path = path_of(name)
            if path in times:
                odd.add(path)  # one of the entries is about something else
            number = name[len(path) + 1 :]
            times[path] = int(number) if number.lstrip("-").isdecimal() else -1
        self._files = [(name, -1 if name in odd else times.get(name, -1)) for name in self._names]
        self._is_complete = all(name in times for name in self._names)

    def _tell(self, *problems: str) -> None:
        for problem in problems:
            if problem not in self._told:
                self._told.add(problem)
                warnings.warn(f"Data skipping: {problem}", KartosqlWarning, stacklevel=2)
