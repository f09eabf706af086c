"""Partition values: they are known of all files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kartosql.indexes.index import Candidates, Files, Subject
from kartosql.predicate.tree import Condition, parameters_for

PARTITION_KEY = "partition key"


@dataclass(frozen=True)
class PartitionValues:
    """The partition values of the files of a table."""

    subject: Subject
    kind: str = PARTITION_KEY

    def covers(self, condition: Condition) -> bool:
        """Return whether a condition is about partition keys alone, or about no column at all."""
        columns = self.subject.columns(condition)
        return columns is not None and columns <= self.subject.keys.keys()

    def candidates(self, condition: Condition, among: Files) -> Sequence[Candidates]:
        """Return the files in partitions for which a condition may be TRUE."""
        subject = self.subject
        predicate = condition.render(subject.name)
        parameters = parameters_for(condition, subject.parameters)
        if not condition.columns:
            holds = subject.evaluator.constant(predicate, parameters)
            return [Candidates(subject.table.all_files if holds else frozenset())]
        return [Candidates(subject.evaluator.partitions(subject.table, predicate, parameters), by=self.kind)]
