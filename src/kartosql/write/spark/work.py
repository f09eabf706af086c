"""What tasks are told to do, as it travels to the executors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.store import Store
from kartosql.text.secrets import redacted
from kartosql.write.layout import Layout
from kartosql.write.merge import Merge
from kartosql.write.sorting import SpillingSorter

if TYPE_CHECKING:
    from kartosql.formats.xskipper import Layout as SkippingLayout

# What one task may take for rows; the processes of executors have little memory beside the JVM.
TASK_MEMORY = 128_000_000


def task_sorter() -> SpillingSorter:
    """Return what sorts the rows of a task, in a folder that Spark clears away when the executor ends."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return SpillingSorter(folder if os.path.isdir(folder) else None)


def spark_name(number: int) -> str:
    """Return the name that a column has in Spark, where names that differ in case alone are the same."""
    return f"c{number}"


@dataclass(frozen=True)
class Address:
    """How to reach a store; its options may hold secrets, so they are in no text form."""

    url: str
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Address({redacted(self.url)!r})"

    def open(self) -> Store:
        """Return the store, as far as a task needs it; raises ``store-failed`` and ``store-not-found``."""
        return Store(self.url, self.options, without_driver=True)


@dataclass(frozen=True)
class Work:
    """What all tasks of a job have in common.

    ``token`` is the key of an object that the driver put into ``store``; beside it go the files
    that tasks write for the driver.
    """

    store: Address
    token: str


@dataclass(frozen=True)
class WriteRows(Work):
    """Write rows, which arrive as columns in the order of ``schema``, as files of a dataset."""

    write_id: str
    layout: Layout
    schema: pa.Schema
    table: str
    row_group_rows: int
    rows_per_file: int | None


@dataclass(frozen=True)
class ReadValues(Work):
    """Read the different values of columns, for their indices, from files that arrive as label and key."""

    types: Mapping[str, pa.DataType]


@dataclass(frozen=True)
class MergeFiles(Work):
    """Merge files that arrive as the number, the folders and the keys of a run.

    The ids of what is written begin with ``prefix``.
    """

    prefix: str
    how: Merge
    row_group_rows: int


@dataclass(frozen=True)
class CopyFiles(Work):
    """Copy files that arrive as their number, their key, the folder to copy to and the id to have there."""

    source: Address


@dataclass(frozen=True)
class ReadCells(Work):
    """Read columns of files, which arrive as their key and a text; yield both."""

    columns: tuple[str, ...]


@dataclass(frozen=True)
class CollectMetadata(Work):
    """Collect data-skipping metadata of files, which arrive as their path and time in the metadata and their key."""

    layout: SkippingLayout
