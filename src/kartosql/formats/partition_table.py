"""Files of a table: their partition values, and which of them are read alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa

from kartosql.formats.arrays import array_of
from kartosql.memo import memoized

_T = TypeVar("_T")


@dataclass(frozen=True)
class Variant:
    """Files of a table that are read alike, by position.

    ``types`` are those of the columns that they have, None where these are the columns of the
    table; ``reading`` says how text files are written. ``names`` are those that the files give to columns, where they
    differ, ``constants`` the values of columns that they lack, where that is not NULL, given as for ``array_of``.
    """

    files: Sequence[int]
    types: Mapping[str, pa.DataType] | None = None
    reading: Mapping[str, Any] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)

    def stored(self, column: str) -> str | None:
        """Return the name that the files give to a column, None if they lack it."""
        return self.names.get(column, column) if self.types is None or column in self.types else None


TAG = b"kartosql.tag"  # in the metadata of a field inside of another one


def tag_of(member: pa.Field) -> bytes:
    """Return what identifies members of structs in files and tables: its name, unless it is tagged."""
    found: bytes = (member.metadata or {}).get(TAG, member.name.encode())
    return found


def numbered(folders: Sequence[_T]) -> tuple[list[_T], Sequence[int]]:
    """Return the different folders of files, and the number of that of each file."""
    different = list(dict.fromkeys(folders))
    if len(different) == len(folders):
        return different, range(len(folders))
    numbers = {folder: number for number, folder in enumerate(different)}
    return different, tuple([numbers[folder] for folder in folders])


def _once(compute: Callable[[Any, Sequence[int]], _T]) -> Callable[[Any, Sequence[int]], _T]:
    """Keep what is computed of some keys."""

    @wraps(compute)
    def kept(self: PartitionTable, keys: Sequence[int]) -> _T:
        key = (compute, tuple(keys))
        if key not in self._derived:
            self._derived[key] = compute(self, key[1])
        return self._derived[key]  # type: ignore[no-any-return]

    return kept


@dataclass(frozen=True, eq=False)
class PartitionTable:
    """The partition values of the files of one table.

    ``columns`` holds the values of each partition key, one per folder; ``count`` is the number
    of folders, and ``part_of_file`` the folder of each file, in file order. Timestamps are
    integers in the unit of their type.

    What is derived from them is computed once and kept.
    """

    keys: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    columns: tuple[Sequence[Any], ...]
    count: int
    part_of_file: Sequence[int]
    _derived: dict[tuple[Any, tuple[int, ...]], Any] = field(default_factory=dict, init=False, repr=False)

    @memoized
    def tuples(self) -> tuple[tuple[Any, ...], ...]:
        """The partition values of each folder."""
        return tuple(zip(*self.columns, strict=True)) if self.columns else ((),) * self.count

    def text_of(self, part: int) -> str:
        """Return the partition values of a folder for users, such as ``month = 1, origin = 'JFK'``."""
        return ", ".join(
            f"{key} = {_text(column[part], type_)}"
            for key, column, type_ in zip(self.keys, self.columns, self.types, strict=True)
        )

    @memoized
    def arrow(self) -> pa.Table:
        """One row per folder, one column per partition key."""
        arrays = [array_of(column, type_) for column, type_ in zip(self.columns, self.types, strict=True)]
        return pa.table(arrays, schema=pa.schema(list(zip(self.keys, self.types, strict=True))))

    @memoized
    def _files_by_part(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(self.count)]
        for file, part in enumerate(self.part_of_file):
            found[part].append(file)
        return found

    @property
    def is_one_to_one(self) -> bool:
        """Whether each folder holds one file, and numbers of folders are those of files."""
        return isinstance(self.part_of_file, range)

    def files_of(self, parts: Collection[int]) -> frozenset[int]:
        """Return the files in some folders."""
        if self.is_one_to_one:
            return frozenset(parts)
        return frozenset(chain.from_iterable(map(self._files_by_part.__getitem__, parts)))

    # -- comparing ----------------------------------------------------------------------------

    def comparable(self, file: int, keys: Sequence[int]) -> tuple[Any, ...]:
        """Return the entry of ``comparables`` for a file."""
        return self.comparables(keys)[self.part_of_file[file]]

    @_once
    def comparables(self, keys: Sequence[int]) -> Sequence[tuple[Any, ...]]:
        """Return each folder's values of some keys, by position, so that Python's equality is that of the engine."""
        return list(zip(*map(self._column, keys), strict=True)) if keys else [()] * self.count

    def _column(self, key: int) -> Sequence[Any]:
        column = self.columns[key]
        return ["nan" if v != v else v for v in column] if pa.types.is_floating(self.types[key]) else column

    @_once
    def codes(self, keys: Sequence[int]) -> Sequence[int]:
        """Return one number per file, the same for files with the same ``comparable`` values of some keys."""
        values = self._column(keys[0]) if len(keys) == 1 else self.comparables(keys)
        if len(set(values)) == self.count:
            return self.part_of_file
        numbers: dict[Any, int] = {}
        by_part = [numbers.setdefault(value, len(numbers)) for value in values]
        return [by_part[part] for part in self.part_of_file]

    @_once
    def groups(self, keys: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the files that share their ``comparable`` values of some keys with others; each group ascends."""
        codes = self.codes(keys)
        if isinstance(codes, range):
            return ()
        found: dict[int, list[int]] = {}
        for file, code in enumerate(codes):
            found.setdefault(code, []).append(file)
        return tuple(tuple(g) for g in found.values() if len(g) > 1)


def _text(value: Any, type_: pa.DataType) -> str:
    if pa.types.is_timestamp(type_) and value is not None:
        return str(pa.scalar(value, type_))
    return repr(value) if isinstance(value, (str, bytes)) else "NULL" if value is None else str(value)
