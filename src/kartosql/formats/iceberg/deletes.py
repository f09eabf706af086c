"""Rows of Iceberg's data files that are deleted by their positions: files that list them, and deletion vectors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry

from kartosql.formats.iceberg.metadata import Read, decoding, deleted_paths, invalid, vector_of
from kartosql.formats.roaring import rows_of

PATH_ID, POSITION_ID = 2147483546, 2147483545  # reserved for the columns of files that list positions
_FILE, _S3 = re.compile(r"\Afile:/+").sub, re.compile(r"\As3[an]://").sub
_MIN_VECTOR, _MAX_VECTOR = 20, 1 << 30  # bytes, with the length, the magic and the checksum around it


def location(path: str) -> str:
    """Return a path or URL of metadata in one of the ways in which it is written."""
    return _S3("s3://", _FILE("/", path)).rstrip("/")


@dataclass(frozen=True, eq=False)
class Positions(Mapping[int, pa.Array]):
    """The numbers of deleted rows by data file, in ascending order, read when somebody asks for them."""

    paths: Sequence[str]  # of the data files
    files: Mapping[int, Sequence[DataFile]]  # that may delete rows of each
    read: Read
    _known: dict[str, tuple[list[str], pa.Array, pa.Array]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[int]:
        return iter(self.files)

    def __contains__(self, file: object) -> bool:
        return file in self.files

    def __getitem__(self, file: int) -> pa.Array:
        rows = pc.unique(pa.concat_arrays([self._of(one, self.paths[file]) for one in self.files[file]]))
        return rows.take(pc.array_sort_indices(rows))

    def _of(self, file: DataFile, path: str) -> pa.Array:
        with decoding(file.file_path):
            if (place := vector_of(file)) is not None:
                return self._vector(file, *place)
            if file.file_path not in self._known:
                self._known[file.file_path] = _listed(self.read(file.file_path))
            paths, numbers, rows = self._known[file.file_path]
            wanted = pa.array([n for n, known in enumerate(paths) if known == path], numbers.type)
            return rows.filter(pc.is_in(numbers, wanted))

    def _vector(self, file: DataFile, start: int, size: int) -> pa.Array:
        if start < 0 or not _MIN_VECTOR <= size <= _MAX_VECTOR:
            raise ValueError(f"a deletion vector of {size} bytes at {start}")
        data = self.read(file.file_path, (start, start + size))
        if len(data) != size:
            raise ValueError("a deletion vector is cut off")
        return rows_of(data, file.record_count, is_framed=True)


def _listed(data: bytes) -> tuple[list[str], pa.Array, pa.Array]:
    """Return the paths that a file names, and for each row deleted the number of its path, and its position."""
    import pyarrow.parquet as pq

    opened = pq.ParquetFile(pa.BufferReader(data))
    ids = {(f.metadata or {}).get(b"PARQUET:field_id"): f.name for f in opened.schema_arrow}
    names = [ids.get(str(i).encode(), name) for i, name in ((PATH_ID, "file_path"), (POSITION_ID, "pos"))]
    paths, rows = (opened.read([name]).column(name).combine_chunks() for name in names)
    encoded = paths.cast(pa.string()).dictionary_encode()
    return [location(p) for p in encoded.dictionary.to_pylist()], encoded.indices, rows.cast(pa.int64())


def positions_of(
    data: Sequence[ManifestEntry],
    deletes: Sequence[ManifestEntry],
    scope: Sequence[int],
    scopes: Sequence[int],
    read: Read,
) -> Positions:
    """Return which rows of data files are deleted by position, given numbers for the partitions of both.

    A deletion vector holds for its file alone, and instead of whatever else deletes positions there.
    """
    paths = [location(e.data_file.file_path) for e in data]
    at = {path: file for file, path in enumerate(paths)}
    members: dict[int, list[int]] = {}
    for file, partition in enumerate(scope):
        members.setdefault(partition, []).append(file)
    found: dict[int, list[DataFile]] = {}
    vectors: dict[int, list[DataFile]] = {}
    for entry, partition in zip(deletes, scopes, strict=True):
        deleting = entry.data_file
        if deleting.content != DataFileContent.POSITION_DELETES:
            continue
        ends = deleted_paths(deleting, PATH_ID)
        low, high = (location(end) for end in ends) if ends is not None else ("", None)
        one = at.get(low) if low == high else None
        for file in members.get(partition, ()) if low != high else () if one is None else (one,):
            is_older = (data[file].sequence_number or 0) <= (entry.sequence_number or 0)
            if is_older and (high is None or low <= paths[file] <= high):
                (found if vector_of(deleting) is None else vectors).setdefault(file, []).append(deleting)
    for file, those in vectors.items():
        if len(those) > 1:
            raise invalid(data[file].data_file.file_path, "it has several deletion vectors")
    return Positions(paths, found | vectors, read)
