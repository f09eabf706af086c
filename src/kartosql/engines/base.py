"""What every engine does with one statement, and what engines share: errors about files, and the query over a scan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.formats.arrays import constant
from kartosql.plan.bind import BoundQuery
from kartosql.plan.operators import Operator, TableFiles
from kartosql.plan.scan import OccurrenceScan, PartScan, Scan
from kartosql.tables.table import CHANGE, STEP, Changelog, Changes, Deletes, FileTable, KeyDeletes, Part, Table
from kartosql.text.report import counted
from kartosql.text.types import type_name


class Measured(Protocol):
    """What an engine measured of a run."""

    def settle(self) -> dict[str, int | None]:
        """Return bytes_read, files_opened and row_groups_read; None is not known."""

    def operators(self, sources: Callable[[], Mapping[str, TableFiles]]) -> tuple[Operator, ...]:
        """Return the operators of the run, as far as it is told; ``sources`` are the tables by the names of files."""


class JoinOrder(Enum):
    """Who says in which order an engine joins: first what is fastest, last what never fails."""

    COMPARED = 1  # the engine, of whose plans the one with fewer cross products is taken
    OF_ENGINE = 2
    OF_TEXT = 3

    @property
    def following(self) -> JoinOrder | None:
        """The order to try where this one failed, None if it is the last."""
        return None if self is JoinOrder.OF_TEXT else JoinOrder(self.value + 1)


class EngineStatement(Protocol):
    """One statement on an engine: described or prepared, run once, and closed or put to rest."""

    def clock(self, function: str) -> str | None:
        """Return the literal that a function of the clock stands for in this statement."""

    def describe(self, query: BoundQuery) -> pa.Schema:
        """Return the Arrow schema of the output, without opening a file."""

    def prepare(self, query: BoundQuery, scan: Scan) -> None:
        """Make the tables of the statement out of the files of a scan."""

    def stream(
        self, query: BoundQuery, *, joins: JoinOrder = JoinOrder.COMPARED
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch], list[str]]:
        """Run the prepared statement; returns schema and batches of its result, and the DuckDB types of its columns."""

    def fraction(self) -> float | None:
        """Return how much of the run is done, or on Spark of its stages, from any thread; None if nobody knows."""

    def measured(self) -> Measured:
        """Return what tells about the run, also once the statement is at its end."""

    def interrupt(self) -> None:
        """Stop the run, from any thread."""

    def rest(self, kept: bool) -> None:
        """End the statement; what was made for it may be used again if its plan is kept."""

    def close(self) -> None:
        """Free all that the statement holds."""


def corrupt_file(message: str) -> FormatError:
    """Return the error about a data file that cannot be read."""
    hint = "The file is damaged, or not one that the dataset's writer wrote."
    return FormatError(message, code="corrupt-file", hint=hint)


def schema_mismatch(message: str) -> FormatError:
    """Return the error about a data file whose columns are not those of its table."""
    hint = "The file was written with another schema; kartothek would refuse it too."
    return FormatError(message, code="schema-mismatch", hint=hint)


SEED = "p0"
Codes = Mapping[str, Sequence[int]]  # a number for each file of a table, by the name of the column that it becomes
# Columns that tell where a row stands, and what a record does.
FILE, ROW = "__kartosql_file", "__kartosql_row"
OFFSET, OP = "__kartosql_offset", "__kartosql_op"
_SEQUENCE, _SCOPE, _KEY = "__kartosql_sequence", "__kartosql_scope", "__kartosql_key_"
_RANK = "__kartosql_rank"
_Type = TypeVar("_Type")  # what files tell of the type of a column


@dataclass(frozen=True)
class RowRequest:
    """What is asked of the rows of files: columns, by their names in the table, with the names that they get.

    ``types`` are the engine's of columns for which the table has none, ``codes`` are numbers of files that become
    columns. With ``ordered`` the columns FILE and ROW give the place of a row, with ``numbered`` ROW alone. ``beside``
    are as many files of other tables, with the same number of rows in the same order, and what is asked of
    them; of the first ones FILE1 and ROW1 give the place of a row. Only DuckDB is asked for them.
    """

    names: Mapping[str, str]
    types: Mapping[str, Any] = field(default_factory=dict)
    codes: Codes = field(default_factory=dict)
    ordered: bool = False
    numbered: bool = False
    beside: tuple[tuple[FileTable, Sequence[int], RowRequest], ...] = ()


class RelationBuilder(ABC, Generic[_Type]):
    """Writes the query over exactly the files of a scan, in the SQL of an engine, which a subclass knows."""

    @abstractmethod
    def quoted(self, name: str) -> str:
        """Return a name as an identifier."""

    @abstractmethod
    def null(self, type_: pa.DataType) -> str:
        """Return NULL as a value of a type."""

    @abstractmethod
    def types_in_files(self, table: FileTable, files: Sequence[int], columns: Sequence[str]) -> dict[str, _Type]:
        """Return the types that files give to columns; those that hold only NULL are left out."""

    @abstractmethod
    def rows(self, table: FileTable, files: Sequence[int], wanted: RowRequest) -> Iterable[str]:
        """Return queries that together give the rows of files."""

    @abstractmethod
    def row_counts(self, table: FileTable, files: Sequence[int]) -> Sequence[int]:
        """Return how many rows files have; raises what is wrong with their footers."""

    @abstractmethod
    def arrow_relation(self, data: pa.Table) -> str:
        """Return the name of a relation that has the rows of Arrow data."""

    @abstractmethod
    def raise_error(self, message: str, value: str) -> str:
        """Return an integer that fails when it is computed, with a message and a value behind it."""

    @abstractmethod
    def repeated(self, query: str, shown: Sequence[str]) -> str:
        """Return the query for the columns ``shown`` of another one, each row as often as OP of it says."""

    def as_key(self, name: str, type_: pa.DataType) -> str:
        """Return a quoted column as what distinguishes rows, whatever values are equal to the user."""
        return name

    def as_group(self, name: str, type_: pa.DataType) -> str:
        """Return a quoted column as what rows are counted by, whatever values are equal to the user."""
        return name

    # -- one occurrence --------------------------------------------------------------------------

    def empty(self, source: Table, columns: Sequence[str]) -> str:
        """Return a query for some columns of a table without a row."""
        items = [f"{self.null(source.columns[c])} AS {self.quoted(source.exposed.get(c, c))}" for c in columns]
        return f"SELECT {', '.join(items) or 'NULL AS nothing'} WHERE false"

    def over_files(
        self, scan: OccurrenceScan, columns: Sequence[str], refused: Mapping[str, str], beside: Sequence[PartScan] = ()
    ) -> str:
        """Return the query for some columns over the files of a scan; of those refused it has the expressions given.

        Those that nothing depends on are NULL.

        Files of other datasets ``beside`` those of the seed have the same cells in the same order.
        """
        source, seed, quoted = scan.occurrence.source, scan.parts[0], self.quoted
        shown = {c: source.exposed.get(c, c) for c in source.columns}
        read = source.columns if scan.occurrence.read is None else scan.occurrence.read
        wanted = [c for c in columns if c in read and c not in refused]
        typed: dict[tuple[str, str], _Type] = {}
        of_seed, joins = _joins_of(scan)
        names = dict.fromkeys((p.part.name for p in (seed, *beside)), SEED)
        names |= {join.scan.part.name: join.alias for join in joins}
        others = [
            (p.part.table, p.files, self._request(p, {*wanted}.difference(p.part.join_key), shown, typed))
            for p in beside
        ]
        body = f"({self._part(seed, wanted, shown, typed, of_seed, tuple(o for o in others if o[2].names))}) {SEED}"
        for join in joins:
            keys = [(quoted(shown[c]), source.columns[c]) for c in join.columns]
            on = [f"{SEED}.{name} = {self.as_key(f'{join.alias}.{name}', type_)}" for name, type_ in keys]
            on += [f"{SEED}.{quoted(name)} = {join.alias}.{quoted(name)}" for name in join.codes]
            query = self._part(join.scan, wanted, shown, typed, join.codes)
            keyword = "INNER JOIN" if join.scan.join == "inner" else "LEFT JOIN"
            body += f" {keyword} ({query}) {join.alias} ON {' AND '.join(on)}"
        items = []
        for column in columns:
            owner, type_ = names.get(source.owner[column]), source.columns[column]
            is_read = (
                owner is not None
                and column in read
                and (not pa.types.is_null(type_) or (source.owner[column], column) in typed)
            )
            value = f"{owner}.{quoted(shown[column])}" if is_read else self.null(type_)
            items.append(f"{refused.get(column, value)} AS {quoted(shown[column])}")
        # A table always has some column, even where count(*) is all that is asked.
        return f"SELECT {', '.join(items) or 'NULL AS nothing'} FROM {body}"

    def _part(
        self,
        scan: PartScan,
        wanted: Sequence[str],
        shown: Mapping[str, str],
        typed: dict[tuple[str, str], _Type],
        codes: Codes,
        beside: tuple[tuple[FileTable, Sequence[int], RowRequest], ...] = (),
    ) -> str:
        """Return the query over the files of one dataset, overlays resolved; types that files give go to ``typed``."""
        part, table = scan.part, scan.part.table
        if isinstance(part.rows, Changes):
            return self._changes(scan, part.rows, shown, typed)
        if isinstance(part.rows, Changelog):
            return self._state(scan, part.rows, wanted, shown)
        request = replace(self._request(scan, {*wanted, *part.join_key}, shown, typed), codes=codes, beside=beside)
        if isinstance(part.rows, Deletes):
            return " UNION ALL ".join(self._undeleted(scan, part.rows, request))
        plain = [f for f in scan.files if f not in scan.overlaid]
        overlaid = [f for f in scan.files if f in scan.overlaid]
        queries = [*self.rows(table, plain, request)] if plain else []
        if overlaid:
            cell = [self.as_key(self.quoted(shown[c]), table.types[c]) for c in part.join_key]
            inner = " UNION ALL ".join(self.rows(table, overlaid, replace(request, ordered=True)))
            queries.append(self._last(inner, [*request.names.values(), *codes], cell, f"{FILE} DESC, {ROW} DESC"))
        return " UNION ALL ".join(queries)

    def _request(
        self, scan: PartScan, wanted: Set[str], shown: Mapping[str, str], typed: dict[tuple[str, str], _Type]
    ) -> RowRequest:
        """Return what is asked of the files of a dataset; types that only the files give are added to ``typed``."""
        part, table = scan.part, scan.part.table
        own = wanted & {*part.columns, *part.join_key}
        # The schema file has no type for columns that were all NULL when it was written, but files may have one.
        untyped = [c for c in table.schema.names if c in own and pa.types.is_null(table.types[c])]
        types = self.types_in_files(table, scan.files, untyped) if untyped else {}
        typed |= {(part.name, c): type_ for c, type_ in types.items()}
        names = {c: shown[c] for c in table.schema.names if c in own and (c not in untyped or c in types)}
        return RowRequest(names, types)

    def _undeleted(self, scan: PartScan, deletes: Deletes, wanted: RowRequest) -> Iterator[str]:
        """Yield the queries for the rows of one dataset that are not deleted."""
        table, quoted = scan.part.table, self.quoted
        touched = deletes.touched(scan.files)
        untouched = sorted(set(scan.files).difference(touched))
        if untouched:
            yield from self.rows(table, untouched, wanted)
        if not touched:
            return
        keys = [(k, files) for k in deletes.keys if (files := deletes.reaching(k, touched))]
        names = dict(wanted.names)
        for column in dict.fromkeys(c for k, _ in keys for c in _checked_key(table, k)):
            names.setdefault(column, f"{_KEY}{len(names)}")
        given = {FILE: range(len(table.files)), _SEQUENCE: deletes.sequence, _SCOPE: deletes.scope}
        codes = {**wanted.codes, **{name: numbers for name, numbers in given.items() if numbers}}
        placed = RowRequest(names, wanted.types, codes, numbered=True)
        query = f"({' UNION ALL '.join(self.rows(table, touched, placed))}) r"
        positions = _positions(table, deletes, [f for f in touched if f in deletes.positions], self.row_counts)
        if positions.num_rows:
            query += f" ANTI JOIN {self.arrow_relation(positions)} d ON d.{FILE} = r.{FILE} AND d.{ROW} = r.{ROW}"
        for number, (key, files) in enumerate(keys):
            own = {_SEQUENCE: key.sequence, **({_SCOPE: key.scope} if key.scope else {})}
            gone = self.rows(key.table, files, RowRequest({c: names[c] for c in key.key}, codes=own))
            sides = [[f"{side}.{quoted(names[c])}" for c in key.key] for side in ("r", f"k{number}")]
            types = [table.types[c] for c in key.key]
            mine, theirs = ([self.as_group(n, t) for n, t in zip(side, types, strict=True)] for side in sides)
            on = [f"{a} IS NOT DISTINCT FROM {b}" for a, b in zip(mine, theirs, strict=True)]
            on += [f"r.{_SCOPE} = k{number}.{_SCOPE}"] if key.scope else []
            on.append(f"r.{_SEQUENCE} < k{number}.{_SEQUENCE}")
            query += f" ANTI JOIN ({' UNION ALL '.join(gone)}) k{number} ON {' AND '.join(on)}"
        shown = ", ".join(map(quoted, [*wanted.names.values(), *wanted.codes])) or "NULL AS nothing"
        yield f"SELECT {shown} FROM {query}"

    def _last(self, query: str, shown: Iterable[str], key: Sequence[str], order: str, condition: str = "true") -> str:
        """Return the query for the first row, by an order, of those of another one that share a key."""
        outer = ", ".join(map(self.quoted, shown)) or "NULL AS nothing"
        return (
            f"SELECT {outer} FROM (SELECT *, row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {order}) "
            f"AS {_RANK} FROM ({query})) WHERE {_RANK} = 1 AND {condition}"
        )

    def _changes(
        self, scan: PartScan, rule: Changes, shown: Mapping[str, str], typed: dict[tuple[str, str], _Type]
    ) -> str:
        """Return the query over the rows that came and went."""
        table, quoted = scan.part.table, self.quoted
        request = self._request(scan, {*rule.compared}, shown, typed)
        names, codes = {c: quoted(n) for c, n in request.names.items()}, {STEP: rule.steps, OP: rule.signs}
        request = replace(request, codes=codes, ordered=bool(rule.key))
        sides = set(zip(rule.steps, rule.signs, strict=True))
        # What has one side only has nothing to be compared with.
        alone = [f for f in scan.files if not rule.key and (rule.steps[f], -rule.signs[f]) not in sides]
        compared = [f for f in scan.files if rule.key or (rule.steps[f], -rule.signs[f]) in sides]
        own, queries = [*names.values(), STEP], [*self.rows(table, alone, request)] if alone else []
        cell = [STEP, *(self.as_key(names[c], table.types[c]) for c in rule.key)]
        if compared:
            records = " UNION ALL ".join(self.rows(table, compared, request))
            if rule.key:
                told = [*request.names.values(), *codes]
                records = self._last(records, told, [*cell, OP], f"{FILE} DESC, {ROW} DESC")
            groups = [self.as_group(name, table.types[c]) for c, name in names.items()]
            given = [n if n in groups else f"any_value({n}) AS {n}" for n in names.values()]
            sums = f"SELECT {', '.join([*given, STEP])}, sum({OP}) AS {OP} FROM ({records})"
            queries.append(f"{sums} GROUP BY {', '.join([*groups, STEP])} HAVING sum({OP}) <> 0")
        pair = f"count(*) OVER (PARTITION BY {', '.join(cell)}) > 1" if rule.key else "false"
        kind = (
            f"CASE WHEN {pair} THEN CASE WHEN {OP} < 0 THEN 'update_before' ELSE 'update_after' END "
            f"WHEN {OP} < 0 THEN 'delete' ELSE 'insert' END AS {quoted(CHANGE)}"
        )
        counted = f"SELECT {', '.join([*own, kind])}, abs({OP}) AS {OP} FROM ({' UNION ALL '.join(queries)})"
        rows = self.repeated(counted, [*own, quoted(CHANGE)])
        facts = self.arrow_relation(rule.facts)
        return f"SELECT c.*, _version, _time FROM ({rows}) c JOIN {facts} v ON c.{STEP} = v.{STEP}"

    def _state(self, scan: PartScan, log: Changelog, wanted: Sequence[str], shown: Mapping[str, str]) -> str:
        """Return the query over the rows that hold after all records of some files."""
        table, quoted = scan.part.table, self.quoted
        columns = [c for c in table.schema.names if c in set(log.compared) & set(wanted)]
        needed = {*columns, *(log.key or log.compared)}
        names = {c: shown.get(c, c) for c in table.schema.names if c in needed} | {log.offset: OFFSET, log.op: OP}
        records = " UNION ALL ".join(self.rows(table, scan.files, RowRequest(names)))
        # What a record adds to the number of rows like it; without a value, as in files that are older than the
        # column, one.
        count = (
            f"CASE WHEN coalesce({OP}, 0) IN (0, 3) THEN 1 WHEN {OP} IN (1, 2) THEN -1 "
            f"ELSE {self.raise_error('A record has the operation ', OP)} END"
        )
        if log.key:
            key = [self.as_key(quoted(names[c]), table.types[c]) for c in log.key]
            return self._last(records, [names[c] for c in columns], key, f"{OFFSET} DESC", f"{count} > 0")
        groups = [self.as_group(quoted(names[c]), table.types[c]) for c in log.compared]
        own = {c: quoted(names[c]) for c in columns}
        given = [name if name in groups else f"any_value({name}) AS {name}" for name in own.values()]
        listed = ", ".join([*given, f"sum({count}) AS {OP}"])
        sums = f"SELECT {listed} FROM ({records}) GROUP BY {', '.join(groups)}"
        return self.repeated(sums, list(own.values()))


def _checked_key(table: FileTable, keys: KeyDeletes) -> tuple[str, ...]:
    """Return the columns of a key by which rows are deleted; raises ``schema-mismatch``."""
    for column in keys.key:
        mine, theirs = (t.types.get(column, pa.null()) for t in (table, keys.table))
        if pa.types.is_null(mine) or not mine.equals(theirs):
            found = " and ".join("missing" if pa.types.is_null(t) else type_name(t) for t in (mine, theirs))
            raise schema_mismatch(f"{keys.table.display_name(0)}: rows are deleted by {column!r}, which is {found}")
    if not keys.key:
        raise schema_mismatch(f"{keys.table.display_name(0)}: rows are deleted by no column")
    return keys.key


def _positions(
    table: FileTable, deletes: Deletes, files: Sequence[int], row_counts: Callable[..., Sequence[int]]
) -> pa.Table:
    """Return the deleted rows of files as columns FILE and ROW; raises ``invalid-metadata`` for damaged ones."""
    import pyarrow.compute as pc

    numbers, found = [], []
    for file, count in zip(files, row_counts(table, files) if files else (), strict=True):
        rows = deletes.positions[file]
        if not pa.types.is_integer(rows.type) or rows.null_count:
            raise _odd_positions(table, file, f"are {type_name(rows.type)}, with {rows.null_count} of them NULL")
        for odd in (pc.min(rows).as_py(), pc.max(rows).as_py()) if len(rows) else ():
            if not 0 <= odd < count:
                raise _odd_positions(table, file, f"have the number {odd}, of {counted(count, 'row')}")
        if len(rows) > 1 and not pc.all(pc.less(rows.slice(0, len(rows) - 1), rows.slice(1))).as_py():
            raise _odd_positions(table, file, "do not ascend")
        found.append(rows.cast(pa.int64()))
        numbers.append(pa.repeat(constant(file, pa.int64()), len(rows)))
    arrays = [pa.chunked_array(a, pa.int64()) for a in (numbers, found)]
    return pa.table(arrays, names=[FILE, ROW])


def _odd_positions(table: FileTable, file: int, problem: str) -> FormatError:
    return FormatError(
        f"{table.display_name(file)}: the rows deleted of it {problem}.",
        code="invalid-metadata",
        hint="The list of deleted rows is damaged, or that of another file.",
    )


@dataclass(frozen=True)
class _Join:
    """How the rows of a dataset come to those of the seed: ``columns`` are equal, and those that ``codes`` become."""

    scan: PartScan
    alias: str
    columns: tuple[str, ...]
    codes: Codes


def _joins_of(scan: OccurrenceScan) -> tuple[Codes, list[_Join]]:
    """Return the codes of the seed's files and the joins of the other datasets; those without files have none."""
    of_seed: dict[str, Sequence[int]] = {}
    found = []
    for number, other in enumerate(scan.parts[1:], 1):
        if not other.files:
            continue
        name = f"__kartosql_{other.part.name}"
        coded, mine, theirs = _shared_partitions(scan.parts[0].part, other.part)
        if coded:
            of_seed[name] = mine
        columns = tuple(c for c in other.part.join_key if c not in coded)
        found.append(_Join(other, f"p{number}", columns, {name: theirs} if coded else {}))
    return of_seed, found


def _shared_partitions(seed: Part, part: Part) -> tuple[frozenset[str], Sequence[int], Sequence[int]]:
    """Return partition columns that two datasets join on, and numbers for files of both: equal where the values are."""
    # No columns where that saves nothing.
    keys, mine = shared_keys(seed, part, {*part.join_key}), seed.table.partitions
    types = [mine.types[mine.keys.index(key)] for key in keys]
    if not keys or any(pa.types.is_floating(t) for t in types) or (len(keys) == 1 and pa.types.is_integer(types[0])):
        return frozenset(), (), ()
    _, of_seed, of_part = numbered_files(seed, part, keys)
    return frozenset(keys), of_seed, of_part


def shared_keys(seed: Part, part: Part, among: Set[str]) -> list[str]:
    """Return those of some columns that are partition keys of two datasets, and of one type."""
    mine, theirs = (dict(zip(p.table.partitions.keys, p.table.partitions.types, strict=True)) for p in (seed, part))
    return [key for key, type_ in mine.items() if key in among and key in theirs and type_.equals(theirs[key])]


def numbered_files(seed: Part, part: Part, keys: Sequence[str]) -> tuple[dict[Any, int], list[int], list[int]]:
    """Return numbers for the values of partition keys of two datasets, and those of the files of both."""
    numbers: dict[Any, int] = {}
    found = []
    for table in (seed.table.partitions, part.table.partitions):
        values = table.comparables([table.keys.index(key) for key in keys])
        folders = [numbers.setdefault(value, len(numbers)) for value in values]
        found.append([folders[folder] for folder in table.part_of_file])
    return numbers, found[0], found[1]
