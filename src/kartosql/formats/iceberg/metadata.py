"""Metadata files of Iceberg tables, their snapshots, and the files that manifests list; pyiceberg decodes them."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
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
from kartosql.formats.arrays import array_of, constant
from kartosql.formats.iceberg.avro import BOUNDS, COUNTS, LISTS, Records, alike, values
from kartosql.user_cache import blake2b

if TYPE_CHECKING:
    from kartosql.user_cache import UserCache

HINT = "version-hint.text"
MAX_BYTES = 1 << 30  # of a metadata file, once it is no longer compressed
NEWEST_FORMAT = 3
_NAME = re.compile(r"v?(\d{1,18})(?:-[^/]+)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
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
_NUMBERS = {"snapshot": 1, "sequence": 3, "content": 134, "rows": 103, "size": 104, "offset": 144, "length": 145}
# Decoded when they are asked for.
_RAW = {"nulls": (110, COUNTS), "low": (125, BOUNDS), "high": (128, BOUNDS), "ids": (135, LISTS)}
_KIND = "iceberg-manifest-1"  # of entries of the cache of the user

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
    if hint is not None and (not hint.isdecimal() or int(hint[:18]) > version):  # older ones have dead rows
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
        found = metadata.current_snapshot()
        if found is None and metadata.current_snapshot_id is not None:
            raise invalid(name, f"there is no snapshot {metadata.current_snapshot_id}, which is the present one")
        return found
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


COLUMNS = dict.fromkeys(_NUMBERS, pa.int64()) | dict.fromkeys(("path", "referenced"), pa.string())
COLUMNS |= dict.fromkeys(_RAW, pa.binary()) | {"is_vector": pa.bool_()}


@dataclass(frozen=True, eq=False)
class Entries:
    """Live files that manifests list, column by column, with the partition that each is in."""

    files: pa.Table
    partitions: Sequence[tuple[int, tuple[Any, ...]]]  # the spec, and the values
    partition: Sequence[int]  # of each file, the place of one of these

    @classmethod
    def of(cls, manifests: Sequence[Entries]) -> Entries:
        """Return the files of manifests."""
        partitions, partition = list[tuple[int, tuple[Any, ...]]](), list[int]()
        for one in manifests:
            partition += [len(partitions) + at for at in one.partition]
            partitions += one.partitions
        tables = [one.files for one in manifests] or [pa.table({n: pa.nulls(0, t) for n, t in COLUMNS.items()})]
        return cls(pa.concat_tables(tables), partitions, partition)

    def some(self, files: Sequence[int]) -> Entries:
        """Return some of the files."""
        found = self.files.take(array_of(files, pa.int64()))
        return Entries(found, self.partitions, [self.partition[file] for file in files])

    def scopes(self, numbers: dict[tuple[Any, ...], int]) -> list[int]:
        """Return a number for the partition of each file, the same for the same one of one spec."""
        alike = [(spec, *("nan" if v != v else v for v in found)) for spec, found in self.partitions]
        own = [numbers.setdefault(found, len(numbers)) for found in alike]
        return [own[at] for at in self.partition]


def entries_of(manifest: ManifestFile, read: Read, cache: UserCache | None = None) -> Entries:
    """Return the live files that a manifest lists, with the numbers that they inherit from it.

    Raises ``unsupported-feature`` for files that are no Parquet files, or encrypted.
    """
    name = manifest.manifest_path
    with decoding(name):
        written, files = _cached(read(name), name, cache)
        if any(bool(content) != bool(manifest.content) for content in pc.unique(files["content"]).to_pylist()):
            raise invalid(name, f"{files['path'][0].as_py()[:200]!r} is of another content than the manifest")
        is_bare = pc.and_(pc.is_null(files["sequence"]), pc.invert(files["is_new"]))
        if manifest.sequence_number and pc.any(is_bare).as_py():
            raise invalid(name, f"{files['path'].filter(is_bare)[0].as_py()[:200]!r} has no sequence number")
        encoded = files["partition"].combine_chunks().dictionary_encode()
        sequence = pc.coalesce(files["sequence"], constant(manifest.sequence_number, pa.int64()))
        records = values(_ENTRIES.field(written, 102), encoded.dictionary.to_pylist())
        own = [(manifest.partition_spec_id, tuple(record[at] for at in range(len(record)))) for record in records]
        columns = {n: files[n] for n in COLUMNS} | {"sequence": sequence}
        return Entries(pa.table(columns), own, encoded.indices.to_pylist())


def _cached(data: bytes, name: str, cache: UserCache | None) -> tuple[str, pa.Table]:
    """Return what ``_decoded`` does, from the cache of the user if it is there."""
    if cache is None:
        return _decoded(data, name)
    identity = [blake2b(data).digest()]
    if (known := cache.get(_KIND, identity)) is not None:
        written, stream = known
        return bytes(written).decode(), pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
    text, files = _decoded(data, name)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema) as out:
        out.write_table(files)
    cache.put(_KIND, identity, [text.encode(), memoryview(sink.getvalue())])
    return text, files


def _decoded(data: bytes, name: str) -> tuple[str, pa.Table]:
    """Return the schema of a manifest, and the live files that it lists."""
    written, columns = _ENTRIES.columns(data)
    status, formats, keys = (values(*columns[id_]) for id_ in (0, 101, 131))
    found = {n: array_of(values(*columns[id_]), pa.int64()) for n, id_ in _NUMBERS.items()}
    found |= {n: array_of(values(*columns[id_]), pa.string()) for n, id_ in (("path", 100), ("referenced", 143))}
    raw = {n: alike(*columns[id_], wanted) for n, (id_, wanted) in _RAW.items()}
    found |= {n: array_of(pieces, pa.binary()) for n, pieces in (raw | {"partition": columns[102][1]}).items()}
    found["is_new"] = array_of([s == ManifestEntryStatus.ADDED for s in status], pa.bool_())
    found["is_vector"] = array_of([f == FileFormat.PUFFIN for f in formats], pa.bool_())
    files = pa.table(found)
    is_odd = [f is not FileFormat.PARQUET or bool(k) for f, k in zip(formats, keys, strict=True)]
    for at, _ in filter(itemgetter(1), enumerate(is_odd)):
        if status[at] != ManifestEntryStatus.DELETED:
            _check(files.slice(at, 1).to_pylist()[0], formats[at], bool(keys[at]), name)
    return written, files.filter(array_of([s != ManifestEntryStatus.DELETED for s in status], pa.bool_()))


def _check(file: Mapping[str, Any], format_: FileFormat, is_encrypted: bool, name: str) -> None:
    """Raise what is wrong with a file that is no plain one of Parquet."""
    if is_encrypted:
        raise unsupported(file["path"], "an encrypted file")
    if file["content"] != DataFileContent.POSITION_DELETES or not file["is_vector"]:
        raise unsupported(file["path"], f"a file of {format_.name.capitalize()}")
    if None in (file["referenced"], file["offset"], file["length"]):
        raise invalid(name, f"{file['path'][:200]!r} is no deletion vector")
