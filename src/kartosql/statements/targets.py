"""What names of statements that write mean, and what a statement did as a table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kartosql.errors import SqlError, UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.sql import write_statements as ws
from kartosql.tables.names import Tables, quote_if_needed, similar
from kartosql.tables.table import Table, by_case
from kartosql.write.datasets import dataset_of, members_of

COUNT, TEXT = pa.int64(), pa.string()
COMMIT = {"sequence": COUNT, "id": TEXT}
CHANGE = {"files": COUNT, "rows": COUNT, "bytes": COUNT, "removed": COUNT, **COMMIT}

Report = Mapping[str, Any]
Reports = Mapping[str, Report]


# -- what a statement did ------------------------------------------------------------------------


def table_of(rows: Iterable[Report], columns: Mapping[str, pa.DataType]) -> pa.Table:
    """Return what was done as a table, one row for each report."""
    return pa.Table.from_pylist(list(rows), schema=pa.schema(columns))


def by_dataset(found: Reports, columns: Mapping[str, pa.DataType]) -> pa.Table:
    """Return what was done as a table, one row for each dataset."""
    return table_of(({**one, "dataset": name} for name, one in found.items()), {"dataset": TEXT, **columns})


def changes(found: Reports) -> pa.Table:
    """Return one row per dataset: files, rows and bytes written, files removed, and the commit."""
    return by_dataset(found, CHANGE)


def dropped(found: Reports) -> pa.Table:
    """Return one row per dataset that is gone, with the number of its files."""
    return by_dataset(found, {"files": COUNT})


# -- what names mean -----------------------------------------------------------------------------


@dataclass(frozen=True)
class WriteTarget:
    """One table of a dataset, which the cube that it is a member of calls ``dataset``."""

    source: Table
    dataset: str

    @property
    def table(self) -> DatasetTable:
        """The table of the dataset."""
        table = self.source.parts[0].table
        assert isinstance(table, DatasetTable)
        return table


def refused(named: ws.Named, text: str, code: str, message: str, hint: str | None = None) -> SqlError:
    """Return the error about what a name stands for."""
    return SqlError(message, code=code, hint=hint, span=named.span, sql=text)


def _unknown(message: str, named: ws.Named, known: Iterable[str], text: str, code: str = "unknown-table") -> SqlError:
    """Return the error about a name that is not known, with a suggestion."""
    known = list(known)
    listed = f"Known: {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}." if known else None
    close = similar(named.last, known)
    return refused(named, text, code, message, listed if close is None else f"Did you mean {close}?")


def cube_name(snapshot: Snapshot, named: ws.Named) -> str | None:
    """Return the cube that is meant, whatever state its datasets are in, or None."""
    found = by_case(named.last, snapshot.members) if len(named.parts) == 1 else None
    return found if found is not None and snapshot.is_cube(found) else None


def need_cube(snapshot: Snapshot, named: ws.Named, text: str) -> str:
    """Return the cube that is meant; raises ``unknown-table``."""
    found = cube_name(snapshot, named)
    if found is None:
        raise _unknown(f"There is no cube {named.last!r}.", named, snapshot.cubes(), text)
    return found


def dataset_uuid(snapshot: Snapshot, named: ws.Named, text: str) -> str | None:
    """Return the uuid of the dataset that is meant, whatever state it is in; raises ``unknown-table`` for a cube."""
    found = None
    if len(named.parts) == 1:
        found = by_case(named.last, snapshot.keys)
    elif len(named.parts) == 2:
        prefix = by_case(named.parts[0], snapshot.members)
        member = by_case(named.last, snapshot.members[prefix]) if prefix is not None else None
        found = f"{prefix}{naming.CUBE_SEPARATOR}{member}" if member is not None else None
    if found is None and (error := _cube_hint(snapshot, named, text)) is not None:
        raise error
    return found


def need_uuid(snapshot: Snapshot, named: ws.Named, text: str) -> str:
    """Return the uuid of the dataset that is meant, whatever state it is in; raises ``unknown-table``."""
    found = dataset_uuid(snapshot, named, text)
    if found is None:
        raise _unknown(f"There is no dataset {'.'.join(named.parts)!r}.", named, snapshot.keys, text)
    return found


def left_behind(snapshot: Snapshot, named: ws.Named) -> tuple[str | None, str | None]:
    """Return the cube or the dataset of which a write that did not come to its end left files, and nothing else is."""
    name = ".".join(named.parts)
    with contextlib.suppress(UsageError):
        return None, dataset_of(snapshot.store, name)
    with contextlib.suppress(UsageError):
        members_of(snapshot.store, name)
        return name, None
    return None, None


def _cube_hint(snapshot: Snapshot, named: ws.Named, text: str) -> SqlError | None:
    """Return the error about the name of a cube where that of a dataset is needed."""
    cube = cube_name(snapshot, named)
    if cube is None:
        return None
    listed = ", ".join(f"{quote_if_needed(cube)}.{quote_if_needed(d)}" for d in sorted(snapshot.members[cube]))
    message = f"{cube!r} is a cube, and here one of its datasets is needed."
    return refused(named, text, "unknown-table", message, f"Use one of {listed}.")


def dataset_target(tables: Tables, named: ws.Named, text: str) -> WriteTarget:
    """Return the table of a dataset that is meant; a cube of one dataset stands for that.

    Raises ``unknown-table``, ``ambiguous-name`` and what is wrong with the dataset.
    """
    source = tables.find(named.parts, named.span, text)
    if source.data is not None:
        message = f"{source.name!r} is registered data, no dataset of the store."
        raise refused(named, text, "unknown-table", message, "CREATE DATASET ... AS SELECT ... makes one of it.")
    if source.is_attached:
        message = f"{source.name!r} is attached, and what is attached can only be read."
        raise refused(named, text, "unknown-table", message, "Connect to the store itself to write to it.")
    if source.cube is None:
        return WriteTarget(source, source.parts[0].table.uuid)
    if len(source.parts) > 1:
        error = _cube_hint(tables.snapshot, named, text)
        assert error is not None
        raise error
    return WriteTarget(source, source.parts[0].name)


def resolved(columns: ws.Columns, known: Iterable[str], what: str, text: str, kind: str = "column") -> list[str]:
    """Return the columns, or the datasets, that names mean; raises ``unknown-column`` and for two ``syntax-error``."""
    known = list(known)
    found: list[str] = []
    for named in columns:
        name = by_case(named.last, known)
        if name is None:
            raise _unknown(f"{what} has no {kind} {named.last!r}.", named, known, text, f"unknown-{kind}")
        if name in found:
            raise refused(named, text, "syntax-error", f"{name!r} occurs twice.")
        found.append(name)
    return found
