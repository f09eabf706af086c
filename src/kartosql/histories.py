"""The calls of a connection about schema histories, and datasets of Open Data Fabric that are written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import UsageError, text_of
from kartosql.failures import reraise, tells_failures
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.result import Query
from kartosql.store import Store
from kartosql.tables.names import Tables

if TYPE_CHECKING:
    from kartosql.write.operation import Operation


@tells_failures
class Histories:
    """What a connection knows of the schemas that its tables had."""

    store: Store

    def _open(self) -> None:
        raise NotImplementedError

    def _operation(self, name: str) -> Operation:
        raise NotImplementedError

    def _tables(self) -> Tables:
        raise NotImplementedError

    def _snapshot(self) -> Snapshot:
        raise NotImplementedError

    def schema_history(self, table: str) -> Query:
        """Return the schemas that a dataset, a cube or an attached ODF dataset had, as SHOW SCHEMA HISTORY does.

        Raises ``unknown-table`` and ``broken-schema-history``.
        """
        from kartosql.schema_log import history_table

        self._open()
        tables = self._tables()
        return Query(history_table(tables.find(named(table), (0, 0), table), tables.snapshot))

    def record_schema(self, table: str) -> list[dict[str, Any]]:
        """Add the schemas of a dataset, or of all of a cube, to their histories where they are not there yet.

        Returns for each table its ``dataset``, ``table``, ``version``, ``block``, and whether it was
        ``recorded``. A broken history is put aside and a new one begun. Raises ``unknown-table``,
        and what commits raise.
        """
        from kartosql.write.recording import record_schema

        operation = self._operation("record_schema")
        return [row for uuid in self._uuids_of(table) for row in record_schema(operation, uuid)]

    def _uuids_of(self, table: str) -> list[str]:
        snapshot = self._snapshot()
        if text_of(table) in snapshot.members and snapshot.is_cube(table):
            return [f"{table}{naming.CUBE_SEPARATOR}{name}" for name in snapshot.names(table)]
        parts = named(table)
        uuid = table if len(parts) == 1 else naming.CUBE_SEPARATOR.join(parts)
        if uuid not in snapshot.keys:
            raise UsageError(f"There is no dataset {table!r}.", code="unknown-table")
        return [uuid]

    def export_schema_history(self, table: str, target: str | os.PathLike[str] | Store) -> dict[str, Any]:
        """Write the schema history of a dataset as a chain that other tools of Open Data Fabric read.

        ``target`` is a folder or the URL of one, which is made if need be and has to be empty. Returns
        ``head``, the hash of the last block, and the number of ``blocks``. Raises ``unknown-table``,
        ``no-schema-history``, ``broken-schema-history`` and ``dataset-exists``.
        """
        from kartosql.schema_log import blocks_of
        from kartosql.write.odf import check_empty, write_chain

        self._check_writing()
        tables = self._tables()
        blocks = blocks_of(tables.find(named(table), (0, 0), table), tables.snapshot)
        store = target if isinstance(target, Store) else Store(target, create=True)
        check_empty(store)
        return {"head": write_chain(store, blocks), "blocks": len(blocks)}

    def export_odf(
        self,
        data: Any,
        target: str | os.PathLike[str] | Store,
        *,
        primary_key: str | Iterable[str] = (),
        event_time: str | None = None,
    ) -> dict[str, Any]:
        """Write rows as a new root dataset of Open Data Fabric, and return its ``id``, ``head``, ``rows``, ``bytes``.

        ``data`` is anything with ``__arrow_c_stream__``, results too. ``primary_key`` names columns
        that identify a row, ``event_time`` the column that says when it happened; without it, that
        is the time of writing. Raises ``dataset-exists``, ``unknown-column``, ``invalid-argument``,
        ``invalid-data``, ``null-in-key`` and ``odf-invalid-schema``.
        """
        from kartosql.write.commit import utc_now
        from kartosql.write.layout import columns_of
        from kartosql.write.odf import check_empty, write_dataset

        self._check_writing()
        keys = columns_of(primary_key, "primary_key")
        try:
            # Through the reader of our own results errors keep their codes.
            rows = data.reader() if isinstance(data, Query) else pa.RecordBatchReader.from_stream(data)
        except (TypeError, ValueError, pa.ArrowException) as e:
            reraise(e)
            raise UsageError(
                f"{type(data).__name__} is no Arrow data: {str(e)[:200]}",
                code="invalid-data",
                hint="Hand over anything with __arrow_c_stream__: pyarrow, pandas, polars, a result.",
            ) from None
        for name in [*keys, *([event_time] if event_time is not None else [])]:
            if name not in rows.schema.names:
                raise UsageError(f"The rows have no column {name!r}.", code="unknown-column")
        store = target if isinstance(target, Store) else Store(target, create=True)
        check_empty(store)
        return write_dataset(store, rows, primary_key=keys, event_time=event_time, now=utc_now())

    def _check_writing(self) -> None:
        self._operation("export")  # which says no on a connection that may not write


def named(table: str) -> tuple[str, ...]:
    """Return the parts of a name as calls give it."""
    return tuple(text_of(table).split("."))
