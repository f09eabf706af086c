"""Iceberg tables written by hand: deletes of all kinds, schemas and files that pyiceberg does not write."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyroaring import BitMap

FIELD_ID = b"PARQUET:field_id"
PATH_FIELD = pa.field("file_path", pa.string(), False, {FIELD_ID: b"2147483546"})
POS_FIELD = pa.field("pos", pa.int64(), False, {FIELD_ID: b"2147483545"})


def with_ids(rows: pa.Table, ids: Mapping[str, int]) -> pa.Table:
    """Return rows with the ids of their columns, by their names."""
    fields = [f.with_metadata({FIELD_ID: str(ids[f.name]).encode()}) if f.name in ids else f for f in rows.schema]
    return pa.table(rows.columns, schema=pa.schema(fields))


class _Writer(ManifestWriterV2):
    """A manifest with the fields of format version 3, of data or of deletes."""

    deletes = False

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES if self.deletes else ManifestContent.DATA

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(3)
        return AvroOutputFile(self._output_file, schema, "manifest_entry", schema, self._meta)


class HandTable:
    """A table below a folder, to which each commit adds files; ``edit`` changes what its metadata say."""

    def __init__(
        self, root: Path, schema: Schema, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC, version: int = 2
    ) -> None:
        self.root, self.schema, self.spec, self.version = root, schema, spec, version
        self.ids = {f.name: f.field_id for f in schema.fields}
        self.io = PyArrowFileIO()
        self.location = f"file://{root}"
        self.sequence = 0
        self.snapshots: list[dict[str, Any]] = []
        self.edits: dict[str, Any] = {}
        self.schemas = [schema]
        self.specs = [spec]
        self._manifests: list[ManifestFile] = []
        for folder in ("data", "metadata"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    # -- files ---------------------------------------------------------------------------------

    def data(self, rows: pa.Table, partition: Sequence[Any] = (), *, bounds: bool = True, **other: Any) -> DataFile:
        """Write a data file with ids, and return its entry, by default with bounds of its columns."""
        path = self.root / "data" / f"{uuid.uuid4()}.parquet"
        pq.write_table(with_ids(rows, self.ids), path, row_group_size=3)
        return self.file(path, rows, partition, bounds=bounds, **other)

    def file(
        self, path: Path, rows: pa.Table, partition: Sequence[Any] = (), *, bounds: bool = False, **other: Any
    ) -> DataFile:
        """Return the entry of a file."""
        told: dict[str, dict[int, Any]] = {"null_value_counts": {}, "lower_bounds": {}, "upper_bounds": {}}
        for name in rows.column_names if bounds else ():
            field = next((f for f in self.schema.fields if f.name == name), None)
            if field is None or not field.field_type.is_primitive:
                continue
            values = [v for v in rows.column(name).to_pylist() if v is not None and v == v]
            told["null_value_counts"][field.field_id] = rows.column(name).null_count
            if values:
                told["lower_bounds"][field.field_id] = to_bytes(field.field_type, min(values))
                told["upper_bounds"][field.field_id] = to_bytes(field.field_type, max(values))
        found = {
            "content": DataFileContent.DATA,
            "file_path": f"{self.location}/{path.relative_to(self.root)}",
            "file_format": FileFormat.PARQUET,
            "partition": Record(*partition),
            "record_count": rows.num_rows,
            "file_size_in_bytes": path.stat().st_size,
            **told,
        }
        file = DataFile(*[{**found, **other}.get(f.name) for f in DATA_FILE_TYPE[3].fields])
        file.spec_id = self.spec.spec_id
        return file

    def positions(
        self, deleted: Sequence[tuple[DataFile, int]], partition: Sequence[Any] = (), **other: Any
    ) -> DataFile:
        """Write a file that deletes rows by their positions."""
        path = self.root / "data" / f"{uuid.uuid4()}-deletes.parquet"
        columns = [[f.file_path for f, _ in deleted], [n for _, n in deleted]]
        rows = pa.table(columns, schema=pa.schema([PATH_FIELD, POS_FIELD]))
        pq.write_table(rows, path)
        return self.file(path, rows, partition, content=DataFileContent.POSITION_DELETES, **other)

    def keys(self, rows: pa.Table, partition: Sequence[Any] = (), **other: Any) -> DataFile:
        """Write a file that deletes rows that are equal to those in it."""
        path = self.root / "data" / f"{uuid.uuid4()}-equal.parquet"
        pq.write_table(with_ids(rows, self.ids), path)
        ids = [self.ids[c] for c in rows.column_names]
        given = {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": ids, **other}
        return self.file(path, rows, partition, **given)

    def vector(self, file: DataFile, deleted: Sequence[int], partition: Sequence[Any] = (), **other: Any) -> DataFile:
        """Write a deletion vector, with something before it in its file."""
        parts: dict[int, list[int]] = {}
        for number in sorted(deleted):
            parts.setdefault(number >> 32, []).append(number & 0xFFFFFFFF)
        bitmap = len(parts).to_bytes(8, "little")
        bitmap += b"".join(k.to_bytes(4, "little") + BitMap(v).serialize() for k, v in parts.items())
        body = b"\xd1\xd3\x39\x64" + bitmap
        blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
        path = self.root / "data" / f"{uuid.uuid4()}.puffin"
        path.write_bytes(b"PFA1" + blob + b"PFA1{}")
        given = {
            "content": DataFileContent.POSITION_DELETES,
            "file_format": FileFormat.PUFFIN,
            "record_count": len(deleted),
            "referenced_data_file": file.file_path,
            "content_offset": 4,
            "content_size_in_bytes": len(blob),
        }
        return self.file(path, pa.table({}), partition, **{**given, **other})

    # -- commits -------------------------------------------------------------------------------

    def commit(self, *files: DataFile, removed: Sequence[DataFile] = ()) -> int:
        """Add files in one snapshot and return its number; ``removed`` are listed no more."""
        self.sequence += 1
        number = 1000 + self.sequence
        self._manifests = [m for m in self._manifests if not self._lists(m, removed)]
        new: list[tuple[ManifestFile, list[DataFile]]] = []
        for deletes in (False, True):
            some = [f for f in files if (f.content != DataFileContent.DATA) is deletes]
            if some:
                path = f"{self.location}/metadata/{uuid.uuid4()}.avro"
                writer = _Writer(self.spec, self.schema, self.io.new_output(path), number, "deflate")
                writer.deletes = deletes
                with writer:
                    for file in some:
                        entry = [ManifestEntryStatus.ADDED, number, None, None, file]
                        writer.add_entry(ManifestEntry(*entry))
                new.append((writer.to_manifest_file(), some))
        self._manifests = [m for m, _ in new] + self._manifests
        path = f"{self.location}/metadata/snap-{number}-{uuid.uuid4()}.avro"
        with write_manifest_list(2, self.io.new_output(path), number, None, self.sequence, "deflate") as listing:
            listing.add_manifests([copy(m) for m in self._manifests])
        for manifest in self._manifests:
            if manifest.sequence_number < 0:
                manifest.sequence_number = manifest.min_sequence_number = self.sequence
        self.snapshots.append(
            {
                "snapshot-id": number,
                "sequence-number": self.sequence,
                "timestamp-ms": 1_700_000_000_000 + 60_000 * self.sequence,
                "manifest-list": path,
                "summary": {"operation": "append"},
                "schema-id": self.schema.schema_id,
            }
        )
        self.write()
        return number

    def _lists(self, manifest: ManifestFile, files: Sequence[DataFile]) -> bool:
        paths = {f.file_path for f in files}
        return any(e.data_file.file_path in paths for e in manifest.fetch_manifest_entry(self.io)) if paths else False

    def evolve(self, schema: Schema) -> None:
        """Make another schema the present one."""
        self.schema = schema
        self.schemas.append(schema)
        self.ids = {f.name: f.field_id for f in schema.fields}

    def write(self) -> Path:
        """Write the metadata as they are now, and return their file."""
        document = {
            "format-version": self.version,
            "table-uuid": "6a3f2a7e-6f0e-4d5e-8a4e-000000000000",
            "location": self.location,
            "last-sequence-number": self.sequence,
            "last-updated-ms": 1_700_000_000_000 + 60_000 * self.sequence,
            "last-column-id": 100,
            "current-schema-id": self.schema.schema_id,
            "schemas": [json.loads(s.model_dump_json()) for s in self.schemas],
            "default-spec-id": self.spec.spec_id,
            "partition-specs": [json.loads(s.model_dump_json()) for s in self.specs],
            "last-partition-id": 2000,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "current-snapshot-id": self.snapshots[-1]["snapshot-id"] if self.snapshots else -1,
            "snapshots": self.snapshots,
            "snapshot-log": [{k: s[k] for k in ("timestamp-ms", "snapshot-id")} for s in self.snapshots],
            "next-row-id": 0,
            **self.edits,
        }
        path = self.root / "metadata" / f"v{self.sequence}.metadata.json"
        path.write_text(json.dumps(document))
        (self.root / "metadata" / "version-hint.text").write_text(str(self.sequence))
        return path
