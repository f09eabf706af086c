"""Metadata files of Iceberg tables, their snapshots, and the files that manifests list; pyiceberg decodes them."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator

from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot

from kartosql.errors import FormatError, KartosqlError, SqlError, first_line, reraise
from kartosql.formats.iceberg.avro import Records

HINT = "version-hint.text"
MAX_BYTES = 1 << 30  # of a metadata file, once it is no longer compressed
NEWEST_FORMAT = 3
_NAME = re.compile(r"v?(\d{1,18})(?:-[^/]+)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
_REFERENCED, _OFFSET, _SIZE = 17, 18, 19  # fields of a file in format version 3, which pyiceberg does not name
_MANIFESTS = Records(
    MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
    {-1: ManifestFile, 508: PartitionFieldSummary},
    {517: ManifestContent},
)
_ENTRIES = Records(
    MANIFEST_ENTRY_SCHEMAS[NEWEST_FORMAT],
    {-1: ManifestEntry, 2: DataFile},
    {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
)

Read = Callable[..., bytes]  # of a path that metadata name, or of a range of it


def invalid(name: str, problem: str) -> FormatError:
    """Return the error about metadata that cannot be read, or contradict themselves."""
    hint = "A file is damaged, or its writer did not follow the specification; attach an older metadata file."
    return FormatError(f"{name}: {problem}", code="iceberg-invalid-metadata", hint=hint)


def unsupported(name: str, feature: str) -> FormatError:
    """Return the error about something that is not read."""
    hint = "Copy the rows with a reader that knows it, such as Spark: con.create_dataset('t', rows)."
    return FormatError(f"{name}: {feature} cannot be read", code="unsupported-feature", hint=hint)


@contextlib.contextmanager
def decoding(name: str) -> Iterator[None]:
    """Raise what a decoder says about the bytes of a file as ``iceberg-invalid-metadata``."""
    try:
        yield
    except KartosqlError:
        raise
    except Exception as e:  # noqa: BLE001 - decoders raise anything
        reraise(e, f"Cannot read {name!r}")
        raise invalid(name, f"{type(e).__name__}: {first_line(e)}") from None


def newest(names: Iterable[str], hint: str | None, folder: str) -> str:
    """Return the metadata file that counts, given the names in the folder, and what the hint there says.

    Raises ``no-files``, and ``iceberg-invalid-metadata`` where only a catalog knows.
    """
    found: dict[int, list[str]] = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            found.setdefault(int(match[1]), []).append(name)
    if not found:
        hint = "ATTACH the root of a table, above its folder metadata, or one of the metadata files in there."
        raise FormatError(f"{folder}: there is no metadata file of an Iceberg table", code="no-files", hint=hint)
    version = max(found)
    if hint is not None and not hint.isdecimal():
        named = [n for ns in found.values() for n in ns if n in (hint, f"{hint}.metadata.json")]
        if not named:
            raise invalid(f"{folder}/{HINT}", f"there is no metadata file {hint[:120]!r}")
        return named[0]
    if hint is not None and int(hint[:18]) in found:
        version = int(hint[:18])
        while version + 1 in found:  # the hint is written behind the file
            version += 1
    if len(found[version]) > 1:
        raise FormatError(
            f"{folder}: {' and '.join(sorted(found[version])[:3])} are of the same version",
            code="iceberg-invalid-metadata",
            hint="Only the catalog tells which of them counts: ATTACH that file, or the table by its catalog.",
        )
    return found[version][0]


def parse(data: bytes, name: str) -> TableMetadata:
    """Return the metadata of a table; raises ``iceberg-invalid-metadata``, ``unsupported-feature``, ``too-large``."""
    with decoding(name):
        if data[:2] == b"\x1f\x8b":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise FormatError(f"{name}: it is larger than {MAX_BYTES:,} bytes", code="too-large")
        try:
            metadata = TableMetadataUtil.parse_raw(data.decode())
        except Exception:
            version = json.loads(data).get("format-version")
            if isinstance(version, int) and version > NEWEST_FORMAT:
                raise unsupported(name, f"version {version} of the format") from None
            raise
        if not metadata.location or metadata.schema_by_id(metadata.current_schema_id) is None:
            raise invalid(name, "it has no location, or none of its schemas counts")
        if (names := metadata.name_mapping()) is not None:
            names.model_dump_json()  # the reader lets pass fields without names
        if any("encryption" in key for key in metadata.properties):
            raise unsupported(name, "an encrypted table")
        return metadata


def snapshot_of(metadata: TableMetadata, wanted: int | None, moment: int | None, name: str) -> Snapshot | None:
    """Return the snapshot of a number, the one at a moment in nanoseconds, or the present one.

    Raises ``no-such-version`` and ``version-gone``.
    """
    if moment is not None:
        passed = [e.snapshot_id for e in metadata.snapshot_log if e.timestamp_ms * 1_000_000 <= moment]
        if not passed:
            raise SqlError(f"{name!r} has no snapshot of that time.", code="no-such-version")
        wanted = passed[-1]
    elif wanted is None:
        return metadata.current_snapshot()
    found = metadata.snapshot_by_id(wanted)
    if found is None and moment is not None:
        raise SqlError(f"The snapshot {wanted} of {name!r}, of that time, has expired.", code="version-gone")
    if found is None:
        known = ", ".join(str(s.snapshot_id) for s in metadata.snapshots[-5:])
        hint = f"The last ones are {known}." if known else "It has none yet."
        raise SqlError(f"{name!r} has no snapshot {wanted}.", code="no-such-version", hint=hint)
    return found


def manifests_of(snapshot: Snapshot, read: Read) -> list[ManifestFile]:
    """Return the manifests of a snapshot; raises ``unsupported-feature`` for encrypted ones."""
    name = snapshot.manifest_list
    with decoding(name):
        found = list(_MANIFESTS(read(name)))
        if any(manifest.key_metadata for manifest in found):
            raise unsupported(name, "an encrypted manifest")
        return found


def entries_of(manifest: ManifestFile, read: Read) -> list[ManifestEntry]:
    """Return the live files that a manifest lists, with the numbers that they inherit from it.

    Raises ``unsupported-feature`` for files that are no Parquet files, or encrypted.
    """
    name = manifest.manifest_path
    with decoding(name):
        found = [entry for entry in _ENTRIES(read(name)) if entry.status != ManifestEntryStatus.DELETED]
        for entry in found:
            file = entry.data_file
            if entry.sequence_number is None:
                if entry.status != ManifestEntryStatus.ADDED and manifest.sequence_number:
                    raise invalid(name, f"{file.file_path[:200]!r} has no sequence number")
                entry.sequence_number = manifest.sequence_number
            file.spec_id = manifest.partition_spec_id
            if bool(file.content) != bool(manifest.content):
                raise invalid(name, f"{file.file_path[:200]!r} is {file.content.name}, unlike the manifest")
            if file.key_metadata:
                raise unsupported(file.file_path, "an encrypted file")
            is_vector = file.file_format == FileFormat.PUFFIN and file.content == DataFileContent.POSITION_DELETES
            if file.file_format != FileFormat.PARQUET and not is_vector:
                raise unsupported(file.file_path, f"a file of {file.file_format.name.capitalize()}")
            if is_vector and None in (file[_REFERENCED], file[_OFFSET], file[_SIZE]):
                raise invalid(name, f"{file.file_path[:200]!r} is no deletion vector")
        return found


def vector_of(file: DataFile) -> tuple[int, int] | None:
    """Return the place of a deletion vector in its file, and its size; None for a file of another kind."""
    return (file[_OFFSET], file[_SIZE]) if file.file_format == FileFormat.PUFFIN else None


def deleted_paths(file: DataFile, path_id: int) -> tuple[str, str] | None:
    """Return the first and last path of data files of which a file deletes rows, or None if unknown."""
    if file[_REFERENCED] is not None:
        return file[_REFERENCED], file[_REFERENCED]
    low, high = ((bounds or {}).get(path_id) for bounds in (file.lower_bounds, file.upper_bounds))
    with contextlib.suppress(UnicodeDecodeError):
        return (low.decode(), high.decode()) if low is not None and high is not None else None
    return None
