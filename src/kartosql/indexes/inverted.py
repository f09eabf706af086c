"""Inverted indices: the files of each value of a column."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from kartosql.indexes.index import Candidates, Files, Subject
from kartosql.predicate.tree import Condition, parameters_for, said

INVERTED_INDEX = "inverted index"


@dataclass(frozen=True)
class InvertedIndices:
    """The inverted indices of a table; NULL and NaN stand in none, unless there are ``never`` any."""

    subject: Subject
    never_null: Set[str]
    never_nan: bool
    kind: str = INVERTED_INDEX

    def column(self, condition: Condition) -> str | None:
        """Return the indexed column that a condition is about beside partition keys, None unless it is one.

        Of two columns indices do not know which values stand in one row.
        """
        columns = self.subject.columns(condition)
        indexed = (columns or frozenset()) - self.subject.keys.keys()
        return next(iter(indexed)) if len(indexed) == 1 and indexed <= self.subject.table.indices.keys() else None

    def covers(self, condition: Condition) -> bool:
        """Return whether a condition is about one indexed column, and partition keys perhaps."""
        return self.column(condition) is not None

    def candidates(self, condition: Condition, among: Files) -> Sequence[Candidates]:
        """Return the files with a value for which a condition may be TRUE."""
        subject, column = self.subject, self.column(condition)
        assert column is not None
        found = subject.evaluator.index(
            subject.table,
            column,
            condition.render(subject.name),
            parameters_for(condition, subject.parameters),
            says=said(condition),
            with_keys=any(name in subject.keys for _, name in condition.columns),
            never_null=column in self.never_null,
            never_nan=self.never_nan,
            among=among,
        )
        return [replace(found, by=self.kind)]
