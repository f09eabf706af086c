"""Which files of a dataset its data-skipping metadata rule out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from kartosql.errors import StoreError
from kartosql.formats.kartothek.naming import Place, write_ids
from kartosql.formats.xskipper.naming import path_of
from kartosql.formats.xskipper.segment import Index
from kartosql.formats.xskipper.store import MetadataSkipping, MetadataStore, Warned
from kartosql.store import Store

RECHECK_SECONDS = 1.0  # how often files that are not indexed make us look for newer metadata


class DatasetSkipping(MetadataSkipping):
    """The data-skipping metadata of one table, read when a condition first asks for them.

    ``files`` are the keys of its files, below ``folder``. A file with a name that its writer made up, by an id, never
    changes, so what is known of it stays true; one with a label that a user chose may be another since, which its time
    tells. Metadata are only read again for files that are not in them. Whatever is wrong with them warns once and rules
    out nothing.
    """

    def __init__(self, store: Store, place: Place, folder: str, files: Iterable[str]) -> None:
        self._store = store
        self._place = place
        self._folder = folder
        self._names = [f"{place.table}/{file.removeprefix(folder)}" for file in files]
        self._is_complete = False
        self._looked = 0.0
        self._tell = Warned()
        self._shown = place.folder

    def indexed(self) -> tuple[list[Index], int]:
        """Return the indexes and how many files they cover, those made since the last look included."""
        self._look_again()  # there may be new indexes of the same files
        return super().indexed()

    def _look_again(self) -> bool:
        self._is_complete, self._looked = False, 0.0
        return True

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
        indexed = {name: times[name] for name in self._names if name in times}
        times |= self._times_of(
            [name for name, write in zip(indexed, write_ids(indexed), strict=True) if write is None]
        )
        self._files = [(name, -1 if name in odd else times.get(name, -1)) for name in self._names]
        self._is_complete = all(name in indexed and indexed[name] == times[name] for name in self._names)

    def _times_of(self, names: Sequence[str]) -> dict[str, int]:
        """Return when files were written, -1 if the store does not say."""
        if not names:
            return {}
        try:
            details = self._store.details(self._folder)
        except StoreError:
            return dict.fromkeys(names, -1)
        found = ((name, details.get(self._folder + name.removeprefix(f"{self._place.table}/"))) for name in names)
        return {name: detail.milliseconds if detail is not None else -1 for name, detail in found}
