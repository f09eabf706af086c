"""Data-skipping metadata: the files that they rule out, asked with conditions in their own terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kartosql.formats.xskipper.domain import ColumnType
from kartosql.indexes.index import Candidates, FileIndex, Files
from kartosql.indexes.metadata_terms import column_types, in_metadata_terms
from kartosql.memo import memoized
from kartosql.predicate.tree import UNKNOWN, Condition, Path, Predicate


@dataclass(frozen=True)
class SkippingIndexes(FileIndex):
    """The data-skipping metadata of a table: bounds, lists of values and filters."""

    kind: ClassVar[str] = "skipping index"
    takes_whole: ClassVar[bool] = True

    def covers(self, condition: Condition) -> bool:
        """Return whether there are metadata that know something of what a condition says."""
        return self.subject.table.skipping is not None and self._in_metadata_terms(condition) != UNKNOWN

    def candidates(self, condition: Condition, among: Files) -> Sequence[Candidates]:
        """Return the files that may hold a match by each kind of metadata that was asked, bounds first."""
        subject = self.subject
        assert subject.table.skipping is not None
        found = subject.table.skipping.skipped(
            self._in_metadata_terms(condition), self._types, subject.evaluator.time_zone()
        )
        return [Candidates(subject.table.all_files - skipped.files, by=skipped.by) for skipped in found]

    def _in_metadata_terms(self, condition: Condition) -> Predicate:
        return in_metadata_terms(condition, self.subject.occurrence_id, self.subject.usable)

    @memoized
    def _types(self) -> Mapping[Path, ColumnType]:
        table = self.subject.table
        # A column of the files that has the name of a partition column is another one.
        stored = {name: type_ for name, type_ in table.types.items() if name not in table.partition_keys}
        return column_types(stored, texts=not self.subject.evaluator.has_collation())
