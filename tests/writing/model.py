"""What a store holds, kept in plain Python: a cube of up to three datasets, and a plain dataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
Cell = tuple[str, int, int]
Rows = list[tuple[Any, ...]]

# The datasets of the cube ``c``, and ``d``: columns, what tells rows apart (nothing in ``d``), partition column.
COLUMNS = {"seed": "ipvxy", "en": "pwx", "k": "uxy", "d": "nqs"}
CELL = {"seed": "pxy", "en": "px", "k": "xy", "d": ""}
PARTITION = {"seed": "p", "en": "p", "k": None, "d": "q"}
NUMBER = {"seed": "v", "en": "w", "k": "u", "d": "n"}
UUIDS = {"seed": "c++seed", "en": "c++en", "k": "c++k", "d": "d"}
BUILT_INDICES = {"seed": {"x", "y", "i"}, "en": set(), "k": set(), "d": {"s"}}


@dataclass(frozen=True, eq=False)
class File:
    """A data file with the value of its partition column."""

    part: Any
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Commit:
    """What one commit does to the list of files; ``places`` maps new files to those whose place they take."""

    added: Sequence[File] = ()
    removed: Sequence[File] = ()
    places: dict[File, File] = field(default_factory=dict)


def applied(files: Sequence[File], commit: Commit) -> list[File]:
    found: list[File] = []
    for file in files:
        found += [new for new, old in commit.places.items() if old is file]
        if file not in commit.removed:
            found.append(file)
    return found + [new for new in commit.added if new not in found]


@dataclass(eq=False)
class Dataset:
    """The files of a dataset in their order; ``log`` holds the commits since it was made."""

    name: str
    files: list[File]
    indices: set[str]
    log: list[Commit] = field(default_factory=list)

    def commit(self, commit: Commit) -> None:
        self.files = applied(self.files, commit)
        self.log.append(commit)

    def in_partitions(self, parts: Iterable[Any]) -> list[File]:
        """Return the files of some partitions; of a dataset without partition column, all."""
        wanted = set(parts)
        return [f for f in self.files if PARTITION[self.name] is None or f.part in wanted]

    def rows(self) -> list[Row]:
        return last_versions(self.name, self.files)

    def merged(self) -> Commit:
        """Return the commit of a compaction: one file for each partition that has several."""
        added, removed, places = [], [], {}
        for part in dict.fromkeys(f.part for f in self.files):
            files = [f for f in self.files if f.part == part]
            if len(files) > 1:
                one = File(part, tuple(last_versions(self.name, files)))
                added.append(one)
                removed += files
                places[one] = files[-1]
        return Commit(added, removed, places)


def last_versions(name: str, files: Sequence[File]) -> list[Row]:
    rows = [row for file in files for row in file.rows]
    if not CELL[name]:
        return rows
    return list({tuple(row[c] for c in CELL[name]): row for row in rows}.values())


class Numbers:
    """Makes rows; each has a number that no other row has."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def rows(self, name: str, cells: Iterable[Cell]) -> list[Row]:
        found = {}
        for p, x, y in cells:
            number = next(self._next)
            row = {"p": p, "q": p, "x": x, "y": y, "i": f"i{(x + number) % 4}", "s": f"s{(y + number) % 3}"}
            row[NUMBER[name]] = None if name == "d" and number % 4 == 0 else number
            row = {column: row[column] for column in COLUMNS[name]}
            found[tuple(row[c] for c in CELL[name]) or number] = row
        return list(found.values())


def files_of(name: str, rows: Iterable[Row]) -> list[File]:
    by_part: dict[Any, list[Row]] = {}
    key = PARTITION[name]
    for row in rows:
        by_part.setdefault(None if key is None else row[key], []).append(row)
    return [File(part, tuple(found)) for part, found in by_part.items()]


def table_of(name: str, rows: Sequence[Row]) -> pa.Table:
    """Return rows as Arrow data, integers of one width or another."""
    narrow = len(rows) % 2 and all((row[NUMBER[name]] or 0) < 2**15 for row in rows)
    types = {c: pa.int64() if c in "xyvwun" else pa.string() for c in COLUMNS[name]}
    if narrow:
        types[NUMBER[name]] = pa.int16()
    return pa.Table.from_pylist(list(rows), pa.schema(types.items()))


def cube_rows(datasets: dict[str, Dataset]) -> tuple[list[str], Rows]:
    """Return the columns and rows of the cube: the seed, with what the others have of its cells."""
    others = [name for name in ("en", "k") if name in datasets]
    known = {name: {_cell(name, row): row for row in datasets[name].rows()} for name in others}
    columns = sorted({c for name in ("seed", *others) for c in COLUMNS[name]})
    found = []
    for row in datasets["seed"].rows():
        row = dict(row)
        for name in others:
            match = known[name].get(_cell(name, row), {})
            row[NUMBER[name]] = match.get(NUMBER[name])
        found.append(tuple(row[c] for c in columns))
    return columns, found


def _cell(name: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[c] for c in CELL[name])
