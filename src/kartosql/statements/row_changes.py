"""DELETE, UPDATE and MERGE by row: files with a row to change are rewritten, all other files are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.engines.duckdb.types import sql_type
from kartosql.errors import ConcurrentCommit, KartosqlError, Span
from kartosql.formats.kartothek.cube import CubeMember
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.partition_table import PartitionTable
from kartosql.indexes.index import PARTITION_KEY
from kartosql.memo import memoized
from kartosql.plan.reader import CLOCK, clock_calls, may_tell_time
from kartosql.query import SelectQuery
from kartosql.result import Query
from kartosql.session import Request
from kartosql.sql import Select, parse
from kartosql.sql import write_statements as ws
from kartosql.sql.tree import aggregates, edited, names_whole_rows, placeholders, tokens_of
from kartosql.sql.undetermined import undetermined
from kartosql.statements import targets
from kartosql.statements.query_rows import QueryRows
from kartosql.statements.targets import CHANGE, COUNT, by_dataset, refused
from kartosql.tables.names import Tables
from kartosql.tables.table import Overlay, Part, Table, arrow_table, exposed
from kartosql.text.constants import quote
from kartosql.write.compact import TARGET_BYTES
from kartosql.write.cubes import change_members, opened_cube
from kartosql.write.datasets import append_to_dataset
from kartosql.write.files import footer
from kartosql.write.operation import Operation, repeated, report

FILES_AT_ONCE, ROWS_AT_ONCE, BYTES_AT_ONCE = 16, 100_000, 4 << 20  # that are read with one query
FILE, _ROW, ROWS, _SOURCE = "kartosql_file", "kartosql_row", "kartosql_rows", "kartosql_source"
_ACTION, _GOES, _OLD = "kartosql_action", "kartosql_goes", "kartosql_old"


def change_rows(request: Request, statement: ws.ChangeRows, datasets: ws.Columns | None = None) -> pa.Table:
    """Run DELETE, UPDATE or MERGE by row; repeat it if another commit changed the files that it had read.

    Of a cube a DELETE may be for some of the ``datasets`` alone.
    """
    deletes = any(a.values is None for a in statement.actions)
    name = "merge_rows" if statement.source else "delete_rows" if deletes else "update_rows"
    session, target, text = request.session, statement.target, statement.text

    def is_cube() -> bool:
        found = session.tables().find(target.parts, target.span, text)
        return len(found.parts) > 1 and not found.is_attached

    def attempt() -> pa.Table:
        operation = session.operation(name)
        if is_cube():
            return _CubeChange(request, statement, operation).run(datasets)
        return _RowChange(request, statement, operation).run()

    def turn() -> AbstractContextManager[object]:
        if is_cube():
            return nullcontext()
        return session.store.turn(targets.dataset_target(session.tables(), target, text).table.uuid)

    try:
        return repeated(attempt, turn)
    except KartosqlError as e:
        point_into(text, e)
        raise


def point_into(text: str, error: KartosqlError) -> None:
    """Let an error about a query of ours be about the place in a user's ``text`` that it quotes, or about none."""
    sql = error.sql
    if sql is None or sql == text:
        return
    error.sql = None
    for one in (error, *getattr(error, "errors", ())):
        (start, end), one.span = one.span or (0, 0), None
        if end > start and text.count(sql[start:end]) == 1:
            at, error.sql = text.find(sql[start:end]), text
            one.span = at, at + end - start


def numbered(part: Part, files: Sequence[int]) -> Table:
    """Return the table of some files with all of their columns, and FILE, the number of the file of a row."""
    table: Any = part.table
    labels, paths = (tuple([names[f] for f in files]) for names in (table.labels, table.files))
    few = replace(table, labels=labels, files=paths, indices={}, metadata={})
    known = few.partitions  # not those of all files, of which nobody may have asked for any
    schema, keys = table.schema.append(pa.field(FILE, pa.int64())), (*table.partition_keys, FILE)
    found = replace(few, schema=schema, partition_keys=keys)
    values = (*([column[p] for p in known.part_of_file] for column in known.columns), list(files))
    vars(found)["partitions"] = places = PartitionTable(
        keys, (*known.types, pa.int64()), values, len(files), range(len(files))
    )
    columns = {**found.types, **dict(zip(keys, places.types, strict=True))}
    own = Part(part.name, found, tuple(columns), part.rows)
    return Table(table.uuid, columns, (own,), dict.fromkeys(columns, part.name), exposed=exposed(columns))


class _RowChange:
    """One attempt: everything is read from one snapshot, and committed if that is still the present state.

    ``rows`` are those of the source, if they are known.
    """

    def __init__(
        self, request: Request, statement: ws.ChangeRows, operation: Operation, rows: pa.Table | None = None
    ) -> None:
        self._session, self._statement, self._text = request.session, statement, statement.text
        self._request, self._operation = request, operation
        self._deletes = [n for n, a in enumerate(statement.actions, 1) if a.values is None]
        self._shown = self._begin()
        self._settings = replace(request, engine="duckdb").settings
        self._marks = [(t.start, t.end + 1) for t in tokens_of(self._text) if self._text[t.start] == "?"]
        given = request.parameters or ()
        self._given = given if isinstance(given, Mapping) else {str(n): v for n, v in enumerate(given, 1)}
        self._rows = quote(statement.target_name or statement.target.last)
        self._source = quote(statement.source_name)
        self._keys: list[tuple[str, str]] = []  # columns of the target and of the source
        self._reads_all = statement.source is not None  # whether it matters which other files there are
        self._given_rows = pa.table({})  # of the source, with their numbers
        if statement.source is not None:
            found = (
                rows if rows is not None else self._query(f"SELECT * FROM {self._sql(statement.source, '')}").arrow()
            )
            own, others = zip(*statement.keys, strict=True)
            mine = targets.resolved(own, self._shown.columns, self._shown.name, self._text)
            theirs = targets.resolved(others, found.column_names, "The source", self._text)
            self._keys = list(zip(mine, theirs, strict=True))
            self._given_rows = found.append_column(_ROW, pa.array(range(found.num_rows), pa.int64()))
        self._check()
        self._updates, self._inserts = self._values(statement.actions, self._keys), self._values(statement.inserts)
        self._check_cells()

    def _begin(self) -> Table:
        """Begin at the target, and return it."""
        statement, text = self._statement, self._statement.text
        uuid = targets.dataset_target(self._session.tables(), statement.target, text).table.uuid
        self._operation.begin_at([uuid])
        target = targets.dataset_target(self._tables({}), statement.target, text)
        self._dataset, self._table, self._part = target.dataset, target.table, target.source.parts[0]
        self._types: Mapping[str, pa.DataType] = {c: target.table.types[c] for c in target.table.schema.names}
        self._cell = self._part.rows.key if isinstance(self._part.rows, Overlay) else None
        self._fixed = {*(self._cell or ()), *self._table.partition_keys}
        if len(self._operation.snapshot.dataset(uuid).tables) > 1:
            raise self._refused("not-supported", f"{uuid!r} has several tables: its rows do not change one by one.")
        return target.source

    def prepare(self) -> dict[str, int]:
        """Find out what is to be written, in place of which files, and return how many rows that changes."""
        candidates = self._candidates()
        if self._are_few(candidates):
            return self._read_once(candidates)
        hits = self._hits(candidates)
        changed = hits.filter(pc.greater(hits["action"], 0))
        self.files = self._rewritten(set(changed["file"].to_pylist()))
        written = self._rewritten_rows(self._updates, self.files)  # which finds what is wrong with names, too
        new = self._new(self._inserts, self._unmatched(hits["row"])) if self._inserts else pa.table({})
        self.data = [*([written] if self.files else []), *([new] if new.num_rows else [])]
        return {"changed": pc.sum(changed["count"]).as_py() or 0, "inserted": new.num_rows}

    def run(self) -> pa.Table:
        """Change the rows, and return the table of what was done."""
        counts, done = self.prepare(), report((), None)
        if self.data:
            given = self.data if self._table.table == "table" else {self._table.table: self.data}
            self.limit_files()
            done = append_to_dataset(self._operation, self._table.uuid, given, removed=self.select, place=self.place)
        return _report_table({self._dataset: {**done, **counts}})

    # -- the commit --------------------------------------------------------------------------

    @property
    def place(self) -> str | None:
        """The last of the files that are replaced: what others write meanwhile comes behind it."""
        return self._table.labels[self.files[-1]] if self.files else None

    def select(self, now: DatasetTable) -> Sequence[str]:
        """Return the labels of replaced files; raises ``concurrent-commit`` if others changed what was read."""
        seen, labels = self._table.labels, [self._table.labels[f] for f in self.files]
        read, known = (*self.files, *self._read), None if now.labels == seen else set(now.labels)
        if known is not None and (
            not known.issuperset(seen[f] for f in read) or (self._reads_all and known != set(seen))
        ):
            raise ConcurrentCommit(
                f"Dataset {self._table.uuid!r}: {self._operation.name} cannot be committed, as others changed "
                "what it had read",
                hint="Nothing was changed. Look at the dataset as it stands now and try again.",
            )
        return labels

    def limit_files(self) -> None:
        """Let files that are written be no larger than those of COMPACT."""
        operation, keys = self._operation, [self._table.files[f] for f in self.files]
        size = sum(s or 0 for s in operation.store.sizes(keys).values())
        if size > TARGET_BYTES:
            rows = max(1, sum(footer(operation.store, key)[0] for key in keys) * TARGET_BYTES // size)
            operation.options = replace(
                operation.options, rows_per_file=min(rows, operation.options.rows_per_file or rows)
            )

    # -- queries -----------------------------------------------------------------------------

    def _refused(self, code: str, message: str, hint: str | None = None) -> KartosqlError:
        return refused(self._statement.target, self._text, code, message, hint)

    def _tables(self, own: Mapping[str, Table]) -> Tables:
        attached = self._session.attached
        known = {**self._session.registered, **own}
        return Tables(self._operation.snapshot, known, None if attached is None else attached.now())

    def _parsed(self, text: str) -> Any:
        select = self._session.parse(text)
        if not isinstance(select, Select) or select.tree is None:
            message = "Only the engine can read this statement, so its rows are not known."
            hint = "Other tables stand in queries, or in MERGE INTO t USING s ON (key) WHEN MATCHED THEN UPDATE SET ..."
            raise self._refused("not-supported", message, hint)
        return select

    def _query(self, text: str, table: Table | None = None, source: pa.Table | None = None) -> SelectQuery:
        select = self._parsed(text)
        names = {name for name, _ in placeholders(select.tree)}
        own = {_SOURCE: arrow_table(_SOURCE, self._given_rows if source is None else source)}
        own |= {} if table is None else {ROWS: table}
        given = {name: value for name, value in self._given.items() if name in names}
        session, tables = self._session, self._tables(own)

        def query(select: Select, given: Any) -> SelectQuery:
            return SelectQuery(select, tables, session.runtime, self._settings, given)

        return session.with_views(select, tables, query, given)

    def _sql(self, span: Span, brackets: str = "()") -> str:
        """Return a piece of the statement, with numbers for parameters without a name."""
        start, end = span
        edits = [((s - start, e - start), f"${n}") for n, (s, e) in enumerate(self._marks, 1) if start <= s < end]
        text = edited(self._text[start:end], edits)
        return (self._at_one_time(text) if may_tell_time(text) else text).join(brackets or ("", ""))

    def _at_one_time(self, text: str) -> str:
        """Return conditions or values with constants in place of calls of the clock: each query has another time."""
        columns = {name.lower() for name in (*self._types, *self._given_rows.column_names)}
        return edited(text, [(span, self._time[call]) for span, call in clock_calls(text, columns)])

    @memoized
    def _time(self) -> dict[str, str]:
        """What each call of the clock is in this attempt."""
        items = [item for call in CLOCK for item in (f"typeof({call})", f"CAST({call} AS VARCHAR)")]
        ((*told,),) = self._query(f"SELECT {', '.join(items)}").rows()
        return {call: f"CAST('{told[2 * n + 1]}' AS {told[2 * n]})" for n, call in enumerate(CLOCK)}

    def _from(self, join: str = "JOIN") -> str:
        if not self._keys:
            return f" FROM {ROWS} AS {self._rows} "
        on = " AND ".join(f"{self._rows}.{quote(m)} = {self._source}.{quote(t)}" for m, t in self._keys)
        return f" FROM {ROWS} AS {self._rows} {join} {_SOURCE} AS {self._source} ON {on} "

    def _action(self, actions: Sequence[ws.Action], matched: str = "true") -> str:
        found = [f"{matched} AND {self._sql(a.condition)}" if a.condition else matched for a in actions]
        return f"CASE {' '.join(f'WHEN {c} THEN {n}' for n, c in enumerate(found, 1))} ELSE 0 END" if found else "0"

    def _check(self) -> None:
        """Raise ``not-supported``, and ``invalid-condition`` for conditions that change between evaluations."""
        actions = (*self._statement.actions, *self._statement.inserts)
        text = ", ".join(self._sql(a.condition) for a in actions if a.condition) or "1"
        values = [self._sql(place) for a in actions for _, place in a.values or ()]
        named = {c.lower() for c in (*self._types, *self._given_rows.column_names[:-1])}
        if taken := named.intersection((FILE, _ROW)):
            raise self._refused("not-supported", f"The column {min(taken)!r} has the name of one that rows get here.")
        own = self._statement.target_name or self._statement.target.last
        names = {own, self._statement.source_name}.difference(self._types)
        tree = self._parsed(f"SELECT {', '.join([text, *values])}").tree
        if names_whole_rows(tree, names):
            raise self._refused("not-supported", "Conditions and values name their columns one by one here.")
        if aggregates(tree):
            message = "Conditions and values are of one row each, so they hold no aggregates."
            raise self._refused("invalid-query", message, "Use a query of its own, such as (SELECT max(a) FROM t).")
        reason = undetermined(self._parsed(f"SELECT {text}").tree)
        if reason:
            message = f"The condition does not determine which rows it is about: {reason}."
            raise self._refused("invalid-condition", message, "Ask for the values first, hand them over as parameters.")
        self._reads_all |= "SELECT" in text.upper() or "FROM" in text.upper()

    def _values(self, actions: Sequence[ws.Action], keys: Sequence[tuple[str, str]] = ()) -> list[dict[str, str]]:
        """Return the new values of columns for each action, in the types of the columns; ``keys`` have their values."""
        types, found = self._types, []
        for action in actions:
            named = action.values or ()
            names = targets.resolved(tuple(n for n, _ in named), types, self._shown.name, self._text)
            values = {c: self._sql(place) for c, (_, place) in zip(names, named, strict=True)}
            if action.every:
                values = self._by_name([c for c in types if c not in dict(keys)])
            typed = {c: sql_type(types[c]) for c in values if not pa.types.is_null(types[c])}
            found.append({c: f"CAST({v} AS {typed[c]})" if c in typed else v for c, v in values.items()})
        return found

    def _by_name(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the columns of the source that have the names of some, or are keys with them."""
        known = {c.lower(): c for c in self._given_rows.column_names if c != _ROW}
        theirs = {mine: their for mine, their in self._keys if mine.lower() not in known}
        if lacking := [c for c in columns if c not in theirs and c.lower() not in known]:
            message = f"The source has no column {lacking[0]!r}, and * is for all columns of {self._shown.name!r}."
            hint = "Name the columns: UPDATE SET a = s.a, INSERT (a) VALUES (s.a)."
            raise self._refused("unknown-column", message, hint)
        return {c: f"{self._source}.{quote(theirs.get(c) or known[c.lower()])}" for c in columns}

    def _check_cells(self) -> None:
        """Raise ``not-supported`` for changes of a cube after which a row is in another cell, or hides one."""
        if self._cell is None:
            return
        for values in self._updates:
            if given := self._fixed.intersection(values):
                message = (
                    f"{min(given)!r} tells which cell of the cube a row is, or where it is stored: it cannot change."
                )
                raise self._refused("not-supported", message, "DELETE the row, and INSERT it.")
        if self._inserts and not {mine for mine, _ in self._keys}.issuperset(self._cell):
            message = f"A row of a cube is new if none is equal in {', '.join(self._cell)}: the key needs all of these."
            raise self._refused("not-supported", message)

    def _candidates(self) -> Sequence[int]:
        """Return the files that may have rows to change."""
        where, _, _ = self._matches()
        parts = self._query(f"SELECT 1 AS one{self._from()}{where}", self._shown).scan.occurrences[0].parts
        left = [
            s.left for p in parts for s in takewhile(lambda s: s.by == PARTITION_KEY, p.steps) if s.left is not None
        ]
        # An index that leaves out a file says nothing of what others put in its place.
        self._read = left[-1] if left else range(len(self._table.labels))
        return parts[0].files if parts else ()

    def _are_few(self, files: Sequence[int]) -> bool:
        """Return whether all rows of some files are few, and each is changed for itself."""
        if self._keys or isinstance(self._part.rows, Overlay) or not 0 < len(files) <= FILES_AT_ONCE:
            return False
        with suppress(KartosqlError):  # which the query tells
            sizes = [footer(self._operation.store, self._table.files[f]) for f in files]
            return sum(rows for rows, _ in sizes) <= ROWS_AT_ONCE and sum(size for _, size in sizes) <= BYTES_AT_ONCE
        return False

    def _read_once(self, files: Sequence[int]) -> dict[str, int]:
        """Prepare what is to be written with one query for all rows of some files."""
        action, count = self._action(self._statement.actions), len(self._types)
        items = [*self._items(self._updates, action), f"{self._rows}.{FILE}", action]
        query = self._query(_selected(items, self._from()), numbered(self._part, files))
        rows = query.arrow()
        file, action = rows.columns[count:]
        hit = pc.greater(action, 0)
        self.files = sorted(pc.unique(file.filter(hit)).to_pylist())
        stays = pc.invert(pc.is_in(action, pa.array(self._deletes, action.type)))
        kept = rows.filter(pc.and_(stays, pc.is_in(file, pa.array(self.files, file.type)))).select(range(count))
        written = Query(kept, (query.types or [])[:count])
        self.data = [self._as_rows(lambda: written)] if self.files else []
        return {"changed": pc.sum(hit).as_py() or 0, "inserted": 0}

    def _hits(self, files: Sequence[int]) -> pa.Table:
        """Return the number of rows of each action by file and, in a MERGE, by the row of the source."""
        where, row, action = self._matches()
        table = numbered(self._part, files)
        items = f"SELECT {self._rows}.{FILE} AS file, {row} AS row, {action} AS action, count(*) AS count"
        hits = self._query(f"{items}{self._from()}{where} GROUP BY ALL", table).arrow()
        if self._keys and hits.num_rows:
            keys = ", ".join(f"{self._rows}.{quote(mine)} AS k{n}" for n, (mine, _) in enumerate(self._keys))
            pairs = f"SELECT DISTINCT {keys}, {row} AS row{self._from()}"
            names = ", ".join(f"k{n}" for n, _ in enumerate(self._keys))
            twice = f"SELECT {names} FROM ({pairs}) AS pairs GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
            for found in self._query(twice, table).rows():
                raise self._several(found)
        return hits

    def _matches(self) -> tuple[str, str, str]:
        """Return the condition of rows to change, and for each the row of the source and the number of the action."""
        if self._keys:
            return "", f"{self._source}.{_ROW}", self._action(self._statement.actions)
        return f"WHERE {self._sql(self._statement.actions[0].condition or (0, 0))}", "0", "1"

    def _several(self, key: object) -> KartosqlError:
        message = f"Several rows of the source are for one row, with the key {key}."
        return self._refused(code="merge-conflict", message=message[:300])

    def _unmatched(self, rows: pa.ChunkedArray) -> pa.Table:
        matched = pc.is_in(self._given_rows[_ROW], value_set=rows.combine_chunks())
        return self._given_rows.filter(pc.invert(matched))

    def _rewritten(self, files: set[int]) -> list[int]:
        """Return files of a cube with all files that may share cells with them, which are written together."""
        rule, table = self._part.rows, self._table
        if not isinstance(rule, Overlay):
            return sorted(files)
        places = [at for at, key in enumerate(table.partition_keys) if key in rule.key]
        values = table.partitions.comparables(places)
        groups: dict[Any, list[int]] = {}
        for file, part in enumerate(table.partitions.part_of_file):
            groups.setdefault(values[part], []).append(file)
        hit = [group for group in groups.values() if not files.isdisjoint(group)]
        several = [group for group in hit if len({table.writes[f] for f in group}) > 1]
        return sorted(files.union(*several))

    def _rewritten_rows(self, values: Sequence[Mapping[str, str]], files: Sequence[int]) -> QueryRows:
        action = self._action(self._statement.actions, f"{self._source}.{_ROW} IS NOT NULL" if self._keys else "true")
        kept = f"WHERE {action} NOT IN ({', '.join(map(str, self._deletes))})" if self._deletes else ""
        tail, table = self._from("LEFT JOIN") + kept, numbered(self._part, files)
        return self._as_rows(lambda: self._query(_selected(self._items(values, action), tail), table))

    def _new(self, values: Sequence[Mapping[str, str]], source: pa.Table) -> pa.Table:
        action = self._action(self._statement.inserts)
        items = [_chosen(c, values, action, "NULL") for c in self._types]
        text = _selected(items, f" FROM {_SOURCE} AS {self._source} WHERE {action} > 0")
        return self._as_rows(lambda: self._query(text, None, source)).arrow()

    def _items(self, values: Sequence[Mapping[str, str]], action: str) -> list[str]:
        """Return what the columns of rows become."""
        return [_chosen(c, values, action, f"{self._rows}.{quote(c)}") for c in self._types]

    def _as_rows(self, make: Callable[[], Query]) -> QueryRows:
        rows = QueryRows(make, self._shown.name)
        rows.become(self._table.schema, list(self._types), {})
        return rows


class _CubeChange(_RowChange):
    """One attempt for a whole cube: its cells are found once, then each dataset changes its rows of them."""

    def _begin(self) -> Table:
        statement = self._statement
        name = targets.need_cube(self._session.snapshot(), statement.target, self._text)
        self._state = opened_cube(self._operation, name)
        shown = self._tables({}).find(statement.target.parts, statement.target.span, self._text)
        self._types, seed = shown.columns, self._state.seed
        self._cell, self._fixed = seed.join_key, set(seed.join_key)
        return shown

    def run(self, datasets: ws.Columns | None = None) -> pa.Table:
        """Change the rows of all datasets, or delete those of some ``datasets``, in one commit."""
        cells, owner, seed = self._cells(), self._shown.owner, self._state.seed.name
        known = self._state.members
        named = datasets and targets.resolved(datasets, known, f"The cube {self._shown.name!r}", self._text, "dataset")
        sets = [*self._updates, *self._inserts]
        reports: dict[str, dict[str, Any]] = {}
        parts: dict[str, _RowChange] = {}
        for name, member in known.items():
            news = range(len(self._updates) + 1, len(sets) + 1) if name == seed else ()
            mine = [{c for c in values if owner[c] == name and c not in self._fixed} for values in sets]
            acts = [n for n, columns in enumerate(mine, 1) if columns or n in news]
            if (named is None or name in named) and (acts or self._deletes):
                columns = [c for c in self._columns if any(c in some for some in mine)]
                change = self._of(member, cells, acts, columns)
                reports[name] = {**report((), None), **change.prepare()}
                if change.data:
                    parts[name] = change
        if parts:
            for change in parts.values():
                change.limit_files()
            data = {name: change.data for name, change in parts.items()}
            removed = {name: change.select for name, change in parts.items()}
            places = {name: change.place for name, change in parts.items() if change.place is not None}
            done = change_members(self._operation, self._state, data, removed, parts, None, convert=True, places=places)
            for name, one in done.items():
                reports[name].update(one)
        return _report_table(reports)

    def _cells(self) -> pa.Table:
        """Return the cells to change and those that are new, with the number of their action and values of columns."""
        sets, keys = [*self._updates, *self._inserts], self._cell or ()
        self._columns = [c for c in dict.fromkeys(c for values in sets for c in values) if c not in keys]
        names = [*keys, _ACTION, *self._columns]
        where, row, action = self._matches()

        def items(values: Sequence[Mapping[str, str]], action: str, others: Callable[[str], str]) -> str:
            cases = [f"({action})", *(_chosen(c, values, action, others(c)) for c in self._columns)]
            first = [_chosen(c, values, action, others(c)) for c in keys]
            return ", ".join(f"{item} AS c{n}" for n, item in enumerate([*first, *cases]))

        old = items(self._updates, action, lambda c: f"{self._rows}.{quote(c)}")
        found = self._query(f"SELECT {old}, {row} AS row{self._from()}{where}", self._shown).arrow()
        if self._keys:
            counted = found.group_by(found.column_names[: len(keys)]).aggregate([([], "count_all")])
            for several in counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).to_pylist():
                raise self._several(tuple(several.values())[: len(keys)])
        cells = found.filter(pc.greater(found[f"c{len(keys)}"], 0)).drop_columns(["row"]).rename_columns(names)
        if not self._inserts:
            return cells
        action = self._action(self._statement.inserts)
        new = items(self._inserts, action, lambda c: f"CAST(NULL AS {sql_type(self._types[c])})")
        text = f"SELECT {new} FROM {_SOURCE} AS {self._source} WHERE {action} > 0"
        added = self._query(text, None, self._unmatched(found["row"])).arrow().rename_columns(names)
        numbers = pc.add(added[_ACTION], len(self._updates)).cast(cells.schema.field(_ACTION).type)
        added = added.set_column(len(keys), _ACTION, numbers)
        return pa.concat_tables([cells, added.cast(cells.schema)])

    def _of(self, member: CubeMember, cells: pa.Table, acts: Sequence[int], columns: Sequence[str]) -> _RowChange:
        """Return the change of a dataset: what ``acts`` set in ``columns``, and the rows of cells that go."""
        action, keys = cells[_ACTION], list(map(quote, member.join_key))
        goes, old = (pc.is_in(action, pa.array(a, action.type)) for a in (self._deletes, range(len(self._updates) + 1)))
        cells = cells.append_column(_GOES, goes).append_column(_OLD, old)
        cells = cells.filter(pc.is_in(action, pa.array([*acts, *self._deletes], action.type)))
        cells = cells.select([*member.join_key, *columns, _GOES, _OLD])
        if set(member.join_key) != self._fixed:
            cells = self._shared(member, cells)
        text = f"MERGE INTO {quote(self._shown.name)}.{quote(member.name)} USING {_SOURCE} ON ({', '.join(keys)})"
        text += f" WHEN MATCHED AND {_SOURCE}.{_GOES} THEN DELETE"
        if columns:
            text += f" WHEN MATCHED THEN UPDATE SET {', '.join(f'{quote(c)} = {_SOURCE}.{quote(c)}' for c in columns)}"
        listed = [*keys, *map(quote, columns)]
        values = ", ".join(f"{_SOURCE}.{c}" for c in listed)
        has_value = " OR ".join(f"{_SOURCE}.{quote(c)} IS NOT NULL" for c in columns)
        is_new = "true" if member is self._state.seed else has_value or "false"
        text += f" WHEN NOT MATCHED AND NOT {_SOURCE}.{_GOES} AND ({is_new})"
        text += f" THEN INSERT ({', '.join(listed)}) VALUES ({values})"
        statement = parse(text)
        assert isinstance(statement, ws.ChangeRows)
        return _RowChange(self._request, statement, self._operation, cells)

    def _shared(self, member: CubeMember, cells: pa.Table) -> pa.Table:
        """Return the rows of a dataset of which each may belong to several cells.

        One that belongs to other cells as well stays; raises ``not-supported`` where it would change for these.
        """
        keys = list(map(quote, member.join_key))
        on = " AND ".join(f"r.{c} = s.{c}" for c in keys)
        own = ", ".join(f"s.{c}" for c in keys)
        mine = f"SELECT {', '.join(keys)}, count(*) FILTER ({_OLD}) AS n FROM {_SOURCE} GROUP BY ALL"
        more = f"SELECT {own} FROM {ROWS} AS r JOIN ({mine}) AS s ON {on} GROUP BY {own} HAVING count(*) > any_value(n)"
        listed = ", ".join(f"s.{quote(c)}" for c in cells.column_names if c != _OLD)
        text = (
            f"SELECT DISTINCT {listed}, r.{keys[0]} IS NOT NULL AS {_OLD} FROM {_SOURCE} AS s LEFT JOIN ({more}) AS r"
        )
        found = self._query(f"{text} ON {on}", self._shown, cells).arrow()
        found = found.filter(pc.invert(pc.and_(found[_OLD], found[_GOES])))
        alike = found.group_by(list(member.join_key)).aggregate([]).num_rows
        if pc.any(found[_OLD]).as_py() or alike < found.num_rows:
            shared = f"{member.name!r} has one row for all cells that are equal in {', '.join(member.join_key)}"
            hint = f"The condition has to hold for all of them, or change {self._shown.name}.{member.name} itself."
            raise self._refused("not-supported", f"{shared}, and they would not all change alike.", hint)
        return found


def _chosen(column: str, values: Sequence[Mapping[str, str]], action: str, other: str) -> str:
    """Return the value of a column after an action, ``other`` where that does not set it."""
    cases = [f"WHEN {n} THEN {new[column]}" for n, new in enumerate(values, 1) if column in new]
    return f"CASE {action} {' '.join(cases)} ELSE {other} END" if cases else other


def _selected(items: Sequence[str], tail: str) -> str:
    return f"SELECT {', '.join(f'{item} AS c{at}' for at, item in enumerate(items))}{tail}"


def _report_table(found: Mapping[str, dict[str, Any]]) -> pa.Table:
    return by_dataset(found, {**CHANGE, "changed": COUNT, "inserted": COUNT})
