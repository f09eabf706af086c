"""EXPLAIN COST: what a query will read, measured in the footers of its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.parquet.metadata import column_bytes, file_metadata
from kartosql.plan.report import ScanReport
from kartosql.plan.scan import OccurrenceScan, PartScan
from kartosql.store import Files
from kartosql.text import markup
from kartosql.text.grid import grid
from kartosql.text.report import Report, dict_of, table_of
from kartosql.text.sizes import counted, human_bytes

MAX_FOOTERS = 200


@dataclass(frozen=True)
class Sample:
    """Footers and sizes in bytes of some files of a dataset; ``files`` are the positions of those that were read."""

    of: int
    files: tuple[int, ...]
    footers: tuple[pq.FileMetaData, ...]
    sizes: tuple[int, ...]

    @property
    def is_all(self) -> bool:
        """Whether no file was left out."""
        return len(self.files) == self.of

    def scaled(self, number: float) -> int:
        """Return what a sum over the sample is for all files."""
        return round(number * self.of / len(self.files)) if self.files else 0


def sample(store: Files, keys: Sequence[str], files: Sequence[int], most: int = MAX_FOOTERS) -> Sample:
    """Read the footers of ``files``, positions in ``keys``; evenly spread ones if there are more than ``most``.

    Raises ``missing-file`` and ``corrupt-file``.
    """
    step = max(1.0, len(files) / most)
    chosen = tuple(files[int(i * step)] for i in range(min(len(files), most)))
    found = list(store.map(partial(file_metadata, store, with_columns=True), [keys[i] for i in chosen]))
    return Sample(len(files), chosen, tuple(f for f, _ in found), tuple(size for _, size in found))


def columns_read(scan: OccurrenceScan, part: PartScan) -> tuple[str, ...]:
    """Return the columns of a dataset's files that a scan reads: those used, and the key where rows are matched."""
    used, table = scan.occurrence.columns, part.part.table
    columns = set(part.part.columns if used is None else used & set(part.part.columns))
    if sum(bool(p.files) for p in scan.parts) > 1 or part.overlaid:
        columns |= set(part.part.join_key)
    return tuple(sorted(columns - set(table.partition_keys)))


_HEAD = ("dataset", "files", "row groups", "rows", "bytes of files", "bytes of columns", "columns")


@dataclass(frozen=True)
class Item:
    """What is read of one dataset: files with their bytes, and the bytes of the columns needed in them.

    ``footers`` of the files were read to know; if they are fewer, the numbers are scaled up.
    """

    table: str
    dataset: str
    files: int
    row_groups: int
    rows: int
    bytes: int
    column_bytes: int
    columns: tuple[str, ...]
    footers: int


@dataclass(frozen=True, repr=False)
class Cost(Report):
    """What a query will read.

    Row groups that the engine leaves out by their statistics are counted; it reads a little more
    where columns that it needs lie close together. ``planning`` are the calls to the store and
    bytes that planning took; ``limit`` is the setting ``max_bytes``, which is held against the
    bytes of the files.
    """

    items: tuple[Item, ...]
    planning: dict[str, int]
    limit: int | None

    @property
    def bytes(self) -> int:
        """Bytes of all files that are opened."""
        return sum(i.bytes for i in self.items)

    @property
    def column_bytes(self) -> int:
        """Bytes of the columns that are read of these files."""
        return sum(i.column_bytes for i in self.items)

    @property
    def is_refused(self) -> bool:
        """Whether the query would end with ``byte-budget``."""
        return self.limit is not None and self.bytes > self.limit

    def to_dict(self) -> dict[str, Any]:
        """Return the cost as JSON-able dictionary."""
        return {
            "bytes": self.bytes,
            "column_bytes": self.column_bytes,
            "files": sum(i.files for i in self.items),
            "rows": sum(i.rows for i in self.items),
            "max_bytes": self.limit,
            "refused": self.is_refused,
            "planning": self.planning,
            "items": list(map(dict_of, self.items)),
        }

    def table(self) -> pa.Table:
        """Return one row per dataset that is opened."""
        types = {"table": pa.string(), "dataset": pa.string(), "columns": pa.list_(pa.string())}
        return table_of(self.items, Item, types, pa.int64())

    def _summary(self) -> list[str]:
        files = sum(i.files for i in self.items)
        lines = [
            f"reads {human_bytes(self.column_bytes)} of columns, out of {human_bytes(self.bytes)} "
            f"in {counted(files, 'file')}",
            f"planning: {counted(self.planning['reads'] + self.planning['lists'] + self.planning['sizes'], 'call')} "
            f"to the store, {human_bytes(self.planning['bytes_read'])}",
        ]
        if self.limit is not None:
            verdict = "refused with byte-budget" if self.is_refused else "allowed"
            lines.append(f"max_bytes: {human_bytes(self.limit)}, {verdict}")
        sampled = [i for i in self.items if i.footers < i.files]
        lines += [f"{i.table}, {i.dataset}: scaled up from {i.footers:,} of {i.files:,} files" for i in sampled]
        return lines

    def _rows(self) -> list[list[str]]:
        return [
            [
                f"{i.table}, {i.dataset}" if i.table != i.dataset else i.table,
                f"{i.files:,}",
                f"{i.row_groups:,}",
                f"{i.rows:,}",
                human_bytes(i.bytes),
                human_bytes(i.column_bytes),
                ", ".join(i.columns),
            ]
            for i in self.items
        ]

    def __str__(self) -> str:
        first, *others = self._summary()
        return "\n".join([first, *grid(_HEAD, self._rows(), right=range(1, 6)), *others])

    def html(self) -> str:
        """Return the cost as a piece of HTML."""
        first, *others = (f"<p>{markup.text(line)}</p>" for line in self._summary())
        rows = [[markup.text(cell) for cell in row] for row in self._rows()]
        return markup.fragment(first, markup.table(_HEAD, rows, right=range(1, 6)), *others)


def cost(store: Files, report: ScanReport, planning: dict[str, int], limit: int | None) -> Cost:
    """Return what a planned query will read; the footers of up to 200 files per dataset are read for it.

    Raises ``missing-file`` and ``corrupt-file``.
    """
    items = []
    for scan in report.scan.occurrences:
        for part in scan.parts:
            if part.summary is not None or not part.files or not part.part.table.has_footers:
                continue  # text files tell nothing before they are read
            found = sample(store, part.part.table.files, part.files)
            columns = columns_read(scan, part)
            items.append(
                Item(
                    scan.occurrence.source.name,
                    part.part.name,
                    len(part.files),
                    found.scaled(sum(f.num_row_groups for f in found.footers)),
                    found.scaled(sum(f.num_rows for f in found.footers)),
                    found.scaled(sum(found.sizes)),
                    found.scaled(sum(column_bytes(f, columns) for f in found.footers)),
                    columns,
                    len(found.files),
                )
            )
    return Cost(tuple(items), planning, limit)
