"""Schemas of the Parquet files of a folder, each different one parsed once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.failures import reraise
from kartosql.formats.footer import MAGIC, footer_of, schema_bytes
from kartosql.formats.widening import plain
from kartosql.store import Store
from kartosql.store.listing import ListedFile
from kartosql.store.local import LocalFiles

TAIL = 32_768  # bytes at the end of a file that are read at once
# Behind the schema: no rows, no row groups, nothing else. What Arrow notes there is for Arrow alone.
_REST = b"\x00\x19\x0c\x00"


class ParquetSchemas:
    """The schema of each file, read again only for files that changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, object], bytes] = {}
        self._schemas: dict[bytes, pa.Schema] = {}

    def read(self, files: Sequence[ListedFile]) -> list[pa.Schema]:
        """Return the schema of each file, the same object for the same one; raises ``corrupt-file``."""
        unknown = [f for f in files if (f.name, f.state) not in self._known]
        read = map(self._read, unknown) if self._store.is_local else self._store.map(self._read, unknown)
        found = {(f.name, f.state): data for f, data in zip(unknown, read, strict=True)}
        self._known = {(f.name, f.state): self._known.get((f.name, f.state)) or found[f.name, f.state] for f in files}
        for (name, _), data in self._known.items():
            if data not in self._schemas:
                self._schemas[data] = _parse(data, f"{self._store.url}/{name}")
        return [self._schemas[self._known[f.name, f.state]] for f in files]

    def _read(self, file: ListedFile) -> bytes:
        """Return the beginning of a file's footer, or all of it where it is unusual."""
        footer = footer_of(self._tail(file, TAIL))
        if footer is None:
            tail = self._tail(file, TAIL)
            length = int.from_bytes(tail[-8:-4], "little") + 8 if tail.endswith(MAGIC) else 0
            footer = footer_of(self._tail(file, length)) if TAIL < length <= file.size else None
        if footer is None:
            raise _corrupt(f"{self._store.url}/{file.name}", "it has no footer of a Parquet file")
        return schema_bytes(footer) or footer

    def _tail(self, file: ListedFile, length: int) -> bytes:
        start = max(0, file.size - length)
        try:
            if self._store.is_local:
                path = self._store.local_path(file.name)
                return LocalFiles().tail(path, file.size, length) or b""
            return self._store.read(file.name, start=start, end=file.size)
        except KeyError:
            raise FormatError(f"The file {self._store.url}/{file.name} is missing.", code="missing-file") from None


def _parse(data: bytes, name: str) -> pa.Schema:
    """Return the schema that the beginning of a footer describes."""
    import pyarrow.parquet as pq

    last: Exception | None = None
    for footer in (data + _REST, data):
        whole = MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC
        try:
            metadata = pq.read_metadata(pa.BufferReader(whole))
            return _columns(metadata.schema, metadata.schema.to_arrow_schema(), name)
        except (pa.ArrowException, OSError, ValueError, TypeError) as e:
            reraise(e, f"Cannot read {name!r}")
            last = e
    raise _corrupt(name, str(last).splitlines()[0])


def _columns(leaves: object, schema: pa.Schema, name: str) -> pa.Schema:
    """Return the schema in plain types; instants of 12 bytes are read in microseconds, as by DuckDB."""
    old = set()
    for i in range(len(leaves)):  # type: ignore[arg-type]
        leaf = leaves.column(i)  # type: ignore[attr-defined]
        if leaf.physical_type == "INT96":
            old.add(leaf.path.split(".")[0])
    fields = []
    for field in schema:
        type_ = plain(field.type)
        if field.name in old and pa.types.is_timestamp(type_):
            type_ = pa.timestamp("us")
        fields.append(pa.field(field.name, type_))
    names = [f.name for f in fields]
    if len(set(names)) < len(names):
        raise FormatError(f"{name}: a column name occurs twice", code="schema-conflict")
    return pa.schema(fields)


def _corrupt(name: str, reason: str) -> FormatError:
    return FormatError(
        f"{name}: {reason}",
        code="corrupt-file",
        hint="All files of an attached folder have to be of its type, but for names that begin with . or _.",
    )
