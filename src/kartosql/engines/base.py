"""What every engine does with one statement, and says of files that it cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.plan.bind import BoundQuery
from kartosql.plan.scan import Scan


class RunStats(Protocol):
    """What a run read, as far as the engine counts it."""

    def settle(self) -> dict[str, int | None]:
        """Return bytes, files and row groups read; None is not known."""


class EngineStatement(Protocol):
    """One statement on an engine: described or prepared, run once, and closed or put to rest."""

    def clock(self, function: str) -> str | None:
        """Return the literal that a function of the clock stands for in this statement."""

    def describe(self, query: BoundQuery) -> pa.Schema:
        """Return the Arrow schema of the output, without opening a file."""

    def prepare(self, query: BoundQuery, scan: Scan) -> None:
        """Make the tables of the statement out of the files of a scan."""

    def stream(
        self, query: BoundQuery, *, ordered: bool = True
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch], list[str]]:
        """Run the prepared statement; returns schema and batches of its result, and the DuckDB types of its columns.

        Unless ``ordered``, joins stay in the order of the text.
        """

    def fraction(self) -> float | None:
        """Return how much of the run is done, from 0 to 1, from any thread; None if nobody knows."""

    def measured(self) -> RunStats:
        """Return what the run read."""

    def interrupt(self) -> None:
        """Stop the run, from any thread."""

    def rest(self, kept: bool) -> None:
        """End the statement; what was made for it may be used again if its plan is kept."""

    def close(self) -> None:
        """Free all that the statement holds."""


def corrupt_file(message: str) -> FormatError:
    """Return the error about a data file that cannot be read."""
    hint = "The file is damaged, or not one that the dataset's writer wrote."
    return FormatError(message, code="corrupt-file", hint=hint)


def schema_mismatch(message: str) -> FormatError:
    """Return the error about a data file whose columns are not those of its table."""
    hint = "The file was written with another schema; kartothek would refuse it too."
    return FormatError(message, code="schema-mismatch", hint=hint)
