"""The rows of a query as the columns of a dataset, for a writer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kartosql.errors import ConcurrentCommit, SqlError
from kartosql.formats.kartothek.metadata import normalise
from kartosql.result import Query
from kartosql.sql import write_statements as ws
from kartosql.statements import targets
from kartosql.write.inputs import check_origin


@dataclass(frozen=True)
class _TargetColumn:
    """A column to be written: that of the query at ``place``, or a ``constant`` (None is NULL) where that is None.

    ``type`` is that of the table. Values of the same kind are widened to it; all others are left to the writer.
    """

    name: str
    place: int | None
    type: pa.DataType | None = None
    constant: Any = None


class QueryRows(Query):
    """The rows of a query for a writer, as the columns of a dataset.

    The query runs when the writer asks for the first row, over what the store holds at that
    moment: the writer noted before which commits it knows, so a commit of somebody else after
    that is a rival, and what the query reads is never older than what the write replaces.
    """

    def __init__(self, make: Callable[[], Query], name: str) -> None:
        super().__init__()
        self._make = make
        self._name = name
        self._given = make().schema  # names are checked before anything is written
        self._columns = [_TargetColumn(n, place) for place, n in enumerate(self._given.names)]
        self._batches: Generator[pa.RecordBatch, None, None] | None = None

    def named(self, columns: ws.Columns, text: str) -> list[str]:
        """Return the columns of the query that names mean; raises ``unknown-column``."""
        return targets.resolved(columns, self._given.names, "The query", text)

    def become(
        self, stored: pa.Schema, positions: Sequence[str] | None, constants: Mapping[str, Any], *, evolve: bool = False
    ) -> None:
        """Let the rows have the columns ``stored`` of a table, and others if the table is to ``evolve``.

        ``positions`` are the columns of the table in the order of the query; those that are
        missing there are NULL. Without it columns are found by their names. Raises
        ``incompatible-schema`` for columns too many, too few or twice.
        """
        count = len(self._given.names)
        if positions is None:
            places = _by_name(self._given, stored, constants, self._name, evolve=evolve)
        elif len(positions) != count:
            raise SqlError(
                f"The query has {count} column{'' if count == 1 else 's'}, {self._name} takes {len(positions)} here: "
                f"{', '.join(positions)}.",
                code="incompatible-schema",
            )
        else:
            places = {column: place for place, column in enumerate(positions)}
        self._columns = [_TargetColumn(f.name, places.get(f.name), f.type, constants.get(f.name)) for f in stored]
        self._columns += [_TargetColumn(name, place) for name, place in places.items() if name not in stored.names]

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows that are written."""
        return pa.schema([(c.name, self._type(c)) for c in self._columns])

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows; ``concurrent-commit`` is raised on the way if the query has other columns by now."""
        self._batches = self._run()
        return pa.RecordBatchReader.from_batches(self.schema, self._batches)

    def close(self) -> None:
        """Stop reading."""
        if self._batches is not None:
            self._batches.close()

    def _type(self, column: _TargetColumn) -> pa.DataType:
        if column.place is None:
            return column.type
        given = self._given.field(column.place).type
        return column.type if column.type is not None and normalise(given).equals(column.type) else given

    def _run(self) -> Generator[pa.RecordBatch, None, None]:
        schema = self.schema
        running = self._make()
        with running.reader() as reader:
            if not reader.schema.equals(self._given):
                raise ConcurrentCommit(f"{self._name}: the columns of the query changed while the statement ran.")
            types = running.types or ()
            places = {c.name: c.place for c in self._columns if c.place is not None}
            check_origin({name: types[place] for name, place in places.items()}, self._name)
            for batch in reader:
                yield pa.RecordBatch.from_arrays([self._array(c, batch) for c in self._columns], schema=schema)

    def _array(self, column: _TargetColumn, batch: pa.RecordBatch) -> pa.Array:
        if column.place is None:
            if column.constant is None:
                return pa.nulls(batch.num_rows, column.type)
            return pa.repeat(pa.scalar(column.constant, column.type), batch.num_rows)
        return batch.column(column.place).cast(self._type(column))


def _by_name(
    query: pa.Schema, stored: pa.Schema, constants: Mapping[str, Any], name: str, *, evolve: bool
) -> dict[str, int]:
    hint = f"Columns are found by their names: rename them with AS, or say INSERT INTO {name} (a, b) SELECT ..."
    by_lower: dict[str, list[str]] = {}
    for column in stored.names:
        by_lower.setdefault(column.lower(), []).append(column)
    places: dict[str, int] = {}
    for place, given in enumerate(query.names):
        alike = by_lower.get(given.lower(), [])
        found = given if given in alike else alike[0] if len(alike) == 1 else None
        if found is None and evolve and not alike:
            found = given
        if found is None or found in constants:
            reason = f"is no column of {name}" if found is None else "is given by PARTITION already"
            raise SqlError(f"The column {given!r} of the query {reason}.", code="incompatible-schema", hint=hint)
        if found in places:
            raise SqlError(f"The query has the column {given!r} twice.", code="incompatible-schema", hint=hint)
        places[found] = place
    missing = [c for c in stored.names if c not in places and c not in constants]
    if missing and not evolve:
        raise SqlError(
            f"The query has no column {', '.join(map(repr, missing))}, which {name} has.",
            code="incompatible-schema",
            hint=hint,
        )
    return places
