"""What the footers of files tell about their columns, from a sample where there are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow.parquet as pq

from kartosql.parquet.metadata import file_metadata
from kartosql.plan.scan import OccurrenceScan, PartScan
from kartosql.store import Files

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
