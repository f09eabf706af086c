"""Rows of Iceberg's data files that are deleted by their positions: files that list them, and deletion vectors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFileContent

from kartosql.formats.iceberg.avro import BOUNDS, LISTS, of_key, values
from kartosql.formats.iceberg.metadata import Read, decoding, invalid
from kartosql.formats.roaring import rows_of

PATH_ID, POSITION_ID = 2147483546, 2147483545  # reserved for the columns of files that list positions
_FILE, _S3 = re.compile(r"\Afile:/+").sub, re.compile(r"\As3[an]://").sub
_MIN_VECTOR, _MAX_VECTOR = 20, 1 << 30  # bytes, with the length, the magic and the checksum around it


def location(path: str) -> str:
    """Return a path or URL of metadata in one of the ways in which it is written."""
    return _S3("s3://", _FILE("/", path)).rstrip("/")


@dataclass(frozen=True)
class DeleteFile:
    """A file that deletes rows of data files with at most its number, of those in a partition unless it says more."""

    path: str
    sequence: int
    scope: int  # number of its partition
    is_scoped: bool  # whether files are parted as it is
    keys: Sequence[int]  # ids of columns by which it deletes; if there are none, it deletes by positions
    vector: tuple[int, int] | None  # the place of a deletion vector in the file, and its size
    rows: int
    ends: tuple[str, str] | None  # the first and last path of files of which it deletes rows, if that is known


def delete_file(row: Mapping[str, Any], scope: int, *, is_scoped: bool) -> DeleteFile:
    """Return a file of ``Entries``."""
    keys, ends, named = (), None, row["referenced"]
    if row["content"] == DataFileContent.EQUALITY_DELETES:
        keys = tuple(sorted({*(values(LISTS, [row["ids"]])[0] or ())})) or (0,)
    elif named is not None:
        ends = named, named
    else:
        low, high = (of_key(BOUNDS, [row[end]], PATH_ID)[0] for end in ("low", "high"))
        with contextlib.suppress(UnicodeDecodeError):
            ends = (low.decode(), high.decode()) if low is not None and high is not None else None
    vector = (row["offset"], row["length"]) if row["is_vector"] else None
    return DeleteFile(row["path"], row["sequence"] or 0, scope, is_scoped, keys, vector, row["rows"], ends)


@dataclass(frozen=True, eq=False)
class Positions(Mapping[int, pa.Array]):
    """The numbers of deleted rows by data file, in ascending order, read when somebody asks for them."""

    paths: Sequence[str]  # of the data files
    files: Mapping[int, Sequence[DeleteFile]]  # that may delete rows of each
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

    def _of(self, file: DeleteFile, path: str) -> pa.Array:
        with decoding(file.path):
            if file.vector is not None:
                return self._vector(file, *file.vector)
            if file.path not in self._known:
                self._known[file.path] = _listed(self.read(file.path))
            paths, numbers, rows = self._known[file.path]
            wanted = pa.array([n for n, known in enumerate(paths) if known == path], numbers.type)
            return rows.filter(pc.is_in(numbers, wanted))

    def _vector(self, file: DeleteFile, start: int, size: int) -> pa.Array:
        if start < 0 or not _MIN_VECTOR <= size <= _MAX_VECTOR:
            raise ValueError(f"a deletion vector of {size} bytes at {start}")
        data = self.read(file.path, (start, start + size))
        if len(data) != size:
            raise ValueError("a deletion vector is cut off")
        return rows_of(data, file.rows, is_framed=True)


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
    paths: Sequence[str], sequence: Sequence[int], scope: Sequence[int], deletes: Iterable[DeleteFile], read: Read
) -> Positions:
    """Return which rows of data files are deleted by position, given numbers of these and of their partitions.

    A deletion vector holds for its file alone, and instead of whatever else deletes positions there.
    """
    paths = [location(path) for path in paths]
    at = {path: file for file, path in enumerate(paths)}
    members: dict[int, list[int]] = {}
    for file, partition in enumerate(scope):
        members.setdefault(partition, []).append(file)
    found: dict[int, list[DeleteFile]] = {}
    vectors: dict[int, list[DeleteFile]] = {}
    for one in deletes:
        low, high = (location(end) for end in one.ends) if one.ends is not None else ("", None)
        named = at.get(low) if low == high else None
        for file in members.get(one.scope, ()) if low != high else () if named is None else (named,):
            if sequence[file] <= one.sequence and (high is None or low <= paths[file] <= high):
                (found if one.vector is None else vectors).setdefault(file, []).append(one)
    for file, those in vectors.items():
        if len(those) > 1:
            raise invalid(paths[file], "it has several deletion vectors")
    return Positions(paths, found | vectors, read)
