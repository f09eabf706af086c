"""Statistics of row groups: what is remembered of the bounds and NULLs of a column in each file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kartosql.indexes.index import Candidates, Files, Subject
from kartosql.predicate.tree import Condition, Opaque, parameters_for

ROW_GROUPS = "row groups"


@dataclass(frozen=True)
class RowGroups:
    """The statistics of the footers that are known of the files of a table; each predicate is asked about once."""

    subject: Subject
    kind: str = ROW_GROUPS
    _found: dict[Opaque, Files | None] = field(default_factory=dict)

    def covers(self, condition: Condition) -> bool:
        """Return whether a condition is one predicate over one column in the files that statistics tell about."""
        if not isinstance(condition, Opaque):
            return False
        if condition not in self._found:
            self._found[condition] = self._asked(condition)
        return self._found[condition] is not None

    def candidates(self, condition: Condition, among: Files) -> Sequence[Candidates]:
        """Return the files in which a predicate may be TRUE."""
        assert isinstance(condition, Opaque)
        files = self._found.get(condition)
        return [] if files is None else [Candidates(files, by=self.kind)]

    def _asked(self, predicate: Opaque) -> Files | None:
        subject = self.subject
        columns = subject.columns(predicate)
        if columns is None or len(columns) != 1:
            return None
        (column,) = columns
        if column in subject.keys or column not in subject.table.types:
            return None
        parameters = parameters_for(predicate, subject.parameters)
        return subject.evaluator.statistics(subject.table, column, predicate.says(), parameters)
