"""The answers of SHOW HISTORY and SHOW SCHEMA HISTORY, and DESCRIBE of a version or a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from kartosql.errors import SqlError, UsageError
from kartosql.formats.kartothek import history as histories
from kartosql.formats.kartothek import versions
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.odf import times
from kartosql.formats.odf.chain import Chain
from kartosql.formats.odf.data_schema import SchemaChange, compare_events, compare_schemas
from kartosql.tables.names import no_versions
from kartosql.tables.table import Table

_COLUMNS = (
    *(("dataset", pa.string()), ("version", pa.int64()), ("time", pa.timestamp("us", "UTC")), ("block", pa.string())),
    *(("form", pa.string()), ("change", pa.string()), ("compatible", pa.bool_())),
)
_VERSIONS = (
    *(*_COLUMNS[:3], ("operation", pa.string()), ("rows", pa.int64())),
    *(("files_added", pa.int64()), ("files_removed", pa.int64()), ("commit", pa.string())),
)
Row = tuple[Any, ...]


def history_table(source: Table, snapshot: Snapshot) -> pa.Table:
    """Return one row for each schema that a table had; of a cube for each of its datasets.

    The last row has no version where another program wrote since: its change is not recorded.
    Raises ``broken-schema-history``.
    """
    if source.chain is not None:
        histories_of = {source.name: _recorded(source.chain)}
    else:
        histories_of = {name: _of_table(table, snapshot) for name, table in _datasets(source).items()}
    return _table([(name, *row) for name, found in histories_of.items() for row in found], _COLUMNS)


def versions_table(source: Table, snapshot: Snapshot) -> pa.Table:
    """Return one row for each version of a dataset, the oldest first, of a cube for each of its datasets.

    Counts are NULL where nobody recorded what a commit did. Raises ``no-versions``.
    """
    rows: list[Row] = []
    if not source.parts:
        raise no_versions(source.name)
    for part in source.parts:
        table: Any = part.table
        if (store := getattr(table, "keeper", None)) is not None:
            table, snapshot = table.origin, Snapshot(store)
        elif source.is_attached or not isinstance(table, DatasetTable):
            raise no_versions(source.name)
        for v in versions.read(snapshot, table.uuid).entries:
            e = v.entry
            counts = (e.rows, *(sum(map(len, f.values())) for f in (e.added, e.removed))) if e else (None,) * 3
            rows.append((part.name, v.version, v.time, v.operation, *counts, v.commit))
    return _table(rows, _VERSIONS)


def _table(rows: Sequence[Row], columns: Sequence[tuple[str, pa.DataType]]) -> pa.Table:
    table = pa.table({name: pa.array([row[i] for row in rows], type_) for i, (name, type_) in enumerate(columns)})
    return table if len({row[0] for row in rows}) > 1 else table.drop_columns(["dataset"])


def _recorded(chain: Chain) -> Iterator[Row]:
    for before, version in zip((None, *chain.schemas), chain.schemas, strict=False):
        change = None if before is None else compare_events(before.event, version.event)
        block = version.link.block
        yield (
            version.number,
            block.system_time // 1000,
            version.link.hash,
            version.form,
            *_describe_change(change, version.arrow),
        )


def _of_table(table: DatasetTable, snapshot: Snapshot) -> Iterator[Row]:
    chain, is_sealed = _chain_of(table, snapshot)
    if chain is not None:
        yield from _recorded(chain)
    if not is_sealed:
        now = histories.plain(table.schema)
        change = None if chain is None or chain.schema is None else compare_schemas(chain.schema.arrow, now)
        yield None, None, None, "unrecorded", *_describe_change(change, now)


def _describe_change(change: SchemaChange | None, schema: pa.Schema) -> tuple[str, bool]:
    """Return what a change is and whether readers of before can go on; None is that of the first schema."""
    if change is None:
        return f"the first, of {len(schema)} columns", True
    return str(change), change.verdict != "incompatible"


def _chain_of(table: DatasetTable, snapshot: Snapshot) -> tuple[Chain | None, bool]:
    """Return the chain of a table, and whether nobody else wrote since."""
    document = snapshot.documents([table.uuid])[table.uuid]
    if not isinstance(document, DatasetDocument) or document.metadata != table.metadata:
        # A table of an attached store: what it knows of its document is what counts.
        files = {table.table: table.files}
        document = DatasetDocument(
            table.uuid, table.uuid, table.labels, files, table.partition_keys, {}, table.metadata
        )
    history = histories.history_of(document)
    if history is None or table.table not in history.tables:
        return None, False
    return history.tables[table.table].chain, histories.is_sealed(history, document)


def _datasets(source: Table) -> dict[str, DatasetTable]:
    """Return the datasets that a table is made of; raises ``no-schema-history`` if it is made of anything else."""
    found = {p.name: p.table for p in source.parts if isinstance(p.table, DatasetTable)}
    if not found:
        raise SqlError(f"{source.name!r} has no schema history.", code="no-schema-history")
    return found


def _single(source: Table) -> DatasetTable:
    """Return the dataset that a table is; raises for cubes and other tables."""
    found = _datasets(source)
    if len(found) > 1:
        listed = ", ".join(f"{source.name}.{name}" for name in found)
        raise SqlError(
            f"{source.name!r} is a cube, and here one of its datasets is needed.",
            code="unknown-table",
            hint=f"Use one of {listed}.",
        )
    return next(iter(found.values()))


def chain_of(source: Table, snapshot: Snapshot) -> Chain:
    """Return the chain of schemas of a table; raises ``no-schema-history``."""
    chain = source.chain if source.chain is not None else _chain_of(_single(source), snapshot)[0]
    if chain is None or not chain.schemas:
        hint = "RECORD SCHEMA FOR the table begins one; so does the next write."
        raise SqlError(f"{source.name!r} has no schema history.", code="no-schema-history", hint=hint)
    return chain


def blocks_of(source: Table, snapshot: Snapshot) -> list[bytes]:
    """Return the blocks of the schema history of a dataset as they are stored, the oldest first."""
    if source.chain is not None:
        raise UsageError(f"{source.name!r} is an ODF dataset already.", hint="Copy its folder.")
    table = _single(source)
    chain = chain_of(source, snapshot)
    history = histories.history_of(table)
    assert history is not None
    return [history.tables[table.table].blocks[link.hash] for link in chain.links]


def schema_at(source: Table, snapshot: Snapshot, version: int | None, as_of: str | None) -> pa.Schema:
    """Return the schema of a version, or of a moment; raises ``no-such-version`` and ``no-schema-history``."""
    chain = chain_of(source, snapshot)
    if version is not None:
        found = [s for s in chain.schemas if s.number == version]
        problem = f"{source.name!r} has the versions 1 to {len(chain.schemas)}, and no version {version}."
    else:
        moment = times.statement_time(str(as_of))
        found = [s for s in chain.schemas if s.link.block.system_time <= moment]
        first = times.to_text(chain.schemas[0].link.block.system_time)
        problem = f"The first schema of {source.name!r} was recorded at {first}, after {as_of}."
    if not found:
        raise SqlError(problem, code="no-such-version", hint="SHOW SCHEMA HISTORY FROM the table lists them.")
    return found[-1].arrow
