"""DELETE, UPDATE and MERGE by row: files with a row to change are rewritten, all other files are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.engines.duckdb.types import sql_type
from kartosql.errors import ConcurrentCommit, KartosqlError, Span, SqlError
from kartosql.formats.kartothek import versions
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.partition_table import PartitionTable
from kartosql.plan.reader import may_tell_time
from kartosql.query import SelectQuery
from kartosql.session import Request
from kartosql.sql import Select, parse
from kartosql.sql import write_statements as ws
from kartosql.sql.statements import VerifyData
from kartosql.sql.tree import edited, names_whole_rows, placeholders, tokens_of
from kartosql.sql.undetermined import undetermined
from kartosql.statements import targets
from kartosql.statements.query_rows import QueryRows
from kartosql.statements.targets import CHANGE, COUNT, TEXT, by_dataset, refused, table_of
from kartosql.tables.names import Tables
from kartosql.tables.names import quote_identifier as quote
from kartosql.tables.table import Overlay, Part, Plain, Table, arrow_table, exposed
from kartosql.write.compact import TARGET_BYTES
from kartosql.write.datasets import append_to_dataset
from kartosql.write.files import footer
from kartosql.write.operation import report

ATTEMPTS = 5
FILE, _ROW, ROWS, _SOURCE = "kartosql_file", "kartosql_row", "kartosql_rows", "kartosql_source"


def change_rows(request: Request, statement: ws.ChangeRows) -> pa.Table:
    """Run DELETE, UPDATE or MERGE by row; repeat it if another commit changed the files that it had read."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return _RowChange(request, statement).run()
        except ConcurrentCommit:
            if not left:
                raise
        except SqlError as e:
            if e.sql is not None and e.sql != statement.text:  # that of a query of ours
                e.sql = e.span = None
            raise
    raise AssertionError


def numbered(part: Part, files: Sequence[int]) -> Table:
    """Return the table of some files with all of their columns, and FILE, the number of the file of a row."""
    table: Any = part.table
    known = table.partitions
    parts = [known.part_of_file[f] for f in files]
    schema, keys = table.schema.append(pa.field(FILE, pa.int64())), (*table.partition_keys, FILE)
    labels, paths = (tuple([names[f] for f in files]) for names in (table.labels, table.files))
    found = replace(table, schema=schema, partition_keys=keys, labels=labels, files=paths, indices={}, metadata={})
    values = (*([column[p] for p in parts] for column in known.columns), list(files))
    vars(found)["partitions"] = places = PartitionTable(
        keys, (*known.types, pa.int64()), values, len(files), range(len(files))
    )
    columns = {**found.types, **dict(zip(keys, places.types, strict=True))}
    own = Part(part.name, found, tuple(columns), part.rows)
    return Table(table.uuid, columns, (own,), dict.fromkeys(columns, part.name), exposed=exposed(columns))


def erased(request: Request, statement: VerifyData) -> pa.Table:
    """Return the files that hold rows for which a condition holds, also files that do not count, with versions."""
    session = request.session
    named = ws.Named(statement.target, statement.span)
    target = targets.dataset_target(session.tables(), named, statement.text)
    table, store = target.table, session.store
    kept = {key for entry in versions.read_entries(store, table.uuid) for key in entry.named_keys()}
    below = store.list_below(f"{table.uuid}/{table.table}/")
    others = [key for key in below if key.endswith(".parquet") and key not in set(table.files)]
    whole = replace(table, labels=(*table.labels, *others), files=(*table.files, *others), indices={})
    part = replace(target.source.parts[0], table=whole, rows=Plain())
    select: Any = parse(f"SELECT {FILE}, count(*) FROM {ROWS} AS {quote(named.last)} {statement.where} GROUP BY ALL")
    snapshot = session.snapshot()
    names = Tables(snapshot, {**session.registered, ROWS: numbered(part, range(len(whole.files)))})
    settings = replace(request, engine="duckdb").settings
    found = SelectQuery(select, names, session.runtime, settings, request.parameters).rows()
    states = [*["live"] * len(table.files), *("kept version" if key in kept else "unreferenced" for key in others)]
    known = versions.read(snapshot, table.uuid).naming(whole.files[at] for at, _ in found) if found else {}
    holding = [(whole.files[at], states[at], count) for at, count in sorted(found)]
    rows = [{"file": file, "state": state, "rows": n, "versions": known[file]} for file, state, n in holding]
    return table_of(rows, {"file": TEXT, "state": TEXT, "rows": COUNT, "versions": pa.list_(COUNT)})


class _RowChange:
    """One attempt: everything is read from one snapshot, and committed if that is still the present state."""

    def __init__(self, request: Request, statement: ws.ChangeRows) -> None:
        self._session, self._statement, self._text = request.session, statement, statement.text
        self._deletes = [n for n, a in enumerate(statement.actions, 1) if a.values is None]
        name = "merge_rows" if statement.source else "delete_rows" if self._deletes else "update_rows"
        self._operation = self._session.operation(name)
        uuid = targets.dataset_target(self._session.tables(), statement.target, self._text).table.uuid
        self._operation.begin_at([uuid])
        self._target = targets.dataset_target(self._tables({}), statement.target, self._text)
        self._table, self._part = self._target.table, self._target.source.parts[0]
        if len(self._operation.snapshot.dataset(uuid).tables) > 1:
            raise self._refused("not-supported", f"{uuid!r} has several tables: its rows do not change one by one.")
        self._settings = replace(request, engine="duckdb").settings
        self._marks = [(t.start, t.end + 1) for t in tokens_of(self._text) if self._text[t.start] == "?"]
        given = request.parameters or ()
        self._given = given if isinstance(given, Mapping) else {str(n): v for n, v in enumerate(given, 1)}
        self._rows, self._source = quote(statement.target.last), quote(statement.source_name)
        self._given_rows = pa.table({})  # of the source, with their numbers
        self._keys: list[tuple[str, str]] = []  # columns of the target and of the source
        self._reads_all = statement.source is not None  # whether it matters which other files there are

    def run(self) -> pa.Table:
        """Change the rows, and return the table of what was done."""
        statement = self._statement
        self._check()
        if statement.source is not None:
            rows = self._query(f"SELECT * FROM {self._sql(statement.source, '')}").arrow()
            columns = self._target.source.columns
            mine = targets.resolved(statement.keys, columns, self._target.source.name, self._text)
            theirs = targets.resolved(statement.keys, rows.column_names, "The source", self._text)
            self._keys = list(zip(mine, theirs, strict=True))
            self._given_rows = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
        updates, inserts = self._values(statement.actions), self._values(statement.inserts)
        self._check_cells(updates)
        hits = self._hits()
        changed = hits.filter(pc.greater(hits["action"], 0))
        files = self._rewritten(set(changed["file"].to_pylist()))
        written = self._made(updates, files)  # which finds what is wrong with names, too
        matched = pc.is_in(self._given_rows[_ROW], value_set=hits["row"].combine_chunks()) if statement.source else None
        new = self._new(inserts, self._given_rows.filter(pc.invert(matched))) if statement.inserts else pa.table({})
        data = [*([written] if files else []), *([new] if new.num_rows else [])]
        done = self._commit(data, files) if data else report((), None)
        counts = {"changed": pc.sum(changed["count"]).as_py() or 0, "inserted": new.num_rows}
        return by_dataset({self._target.dataset: {**done, **counts}}, {**CHANGE, "changed": COUNT, "inserted": COUNT})

    # -- queries -----------------------------------------------------------------------------

    def _refused(self, code: str, message: str, hint: str | None = None) -> KartosqlError:
        return refused(self._statement.target, self._text, code, message, hint)

    def _tables(self, own: Mapping[str, Table]) -> Tables:
        attached = self._session.attached
        known = {**self._session.registered, **own}
        return Tables(self._operation.snapshot, known, None if attached is None else attached.now())

    def _parsed(self, text: str) -> Any:
        select = parse(text)
        if not isinstance(select, Select) or select.tree is None:
            raise self._refused("not-supported", "Only the engine can read this statement, so its rows are not known.")
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
        return edited(self._text[start:end], edits).join(brackets or ("", ""))

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
        names = {self._statement.target.last, self._statement.source_name}.difference(self._table.schema.names)
        if names_whole_rows(self._parsed(f"SELECT {', '.join([text, *values])}").tree, names):
            raise self._refused("not-supported", "Conditions and values name their columns one by one here.")
        reason = undetermined(self._parsed(f"SELECT {text}").tree)
        if reason or may_tell_time(text):
            message = f"The condition does not determine which rows it is about: {reason or 'it asks the clock'}."
            raise self._refused("invalid-condition", message, "Ask for the values first, hand them over as parameters.")
        self._reads_all |= "SELECT" in text.upper() or "FROM" in text.upper()

    def _values(self, actions: Sequence[ws.Action]) -> list[dict[str, str]]:
        """Return the new values of columns for each action, in the types of the columns."""
        columns, types = self._table.schema.names, self._table.types
        found = []
        for action in actions:
            named = action.values or ()
            names = targets.resolved(tuple(n for n, _ in named), columns, self._target.source.name, self._text)
            values = {c: self._sql(place) for c, (_, place) in zip(names, named, strict=True)}
            typed = {c: sql_type(types[c]) for c in values if not pa.types.is_null(types[c])}
            found.append({c: f"CAST({v} AS {typed[c]})" if c in typed else v for c, v in values.items()})
        return found

    def _check_cells(self, updates: Sequence[Mapping[str, str]]) -> None:
        """Raise ``not-supported`` for changes of a cube after which a row is in another cell, or hides one."""
        rule, keys = self._part.rows, {mine for mine, _ in self._keys}
        if not isinstance(rule, Overlay):
            return
        for values in updates:
            if given := {*rule.key, *self._table.partition_keys}.intersection(values):
                message = (
                    f"{min(given)!r} tells which cell of the cube a row is, or where it is stored: it cannot change."
                )
                raise self._refused("not-supported", message, "DELETE the row, and INSERT it.")
        if self._statement.inserts and not keys.issuperset(rule.key):
            message = f"A row of a cube is new if none is equal in {', '.join(rule.key)}: the key needs all of these."
            raise self._refused("not-supported", message)

    def _hits(self) -> pa.Table:
        """Return the number of rows of each action by file and, in a MERGE, by the row of the source."""
        statement = self._statement
        where = "" if self._keys else f"WHERE {self._sql(statement.actions[0].condition or (0, 0))}"
        parts = self._query(f"SELECT 1 AS one{self._from()}{where}", self._target.source).scan.occurrences[0].parts
        table = numbered(self._part, parts[0].files if parts else ())
        row, action = (f"{self._source}.{_ROW}", self._action(statement.actions)) if self._keys else ("0", "1")
        items = f"SELECT {self._rows}.{FILE} AS file, {row} AS row, {action} AS action, count(*) AS count"
        hits = self._query(f"{items}{self._from()}{where} GROUP BY ALL", table).arrow()
        if self._keys and hits.num_rows:
            keys = ", ".join(f"{self._rows}.{quote(mine)} AS k{n}" for n, (mine, _) in enumerate(self._keys))
            pairs = f"SELECT DISTINCT {keys}, {row} AS row{self._from()}"
            names = ", ".join(f"k{n}" for n, _ in enumerate(self._keys))
            twice = f"SELECT {names} FROM ({pairs}) AS pairs GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
            for found in self._query(twice, table).rows():
                message = f"Several rows of the source are for one row, with the key {str(found)[:200]}."
                raise self._refused(code="merge-conflict", message=message)
        return hits

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

    def _made(self, values: Sequence[Mapping[str, str]], files: Sequence[int]) -> QueryRows:
        action = self._action(self._statement.actions, f"{self._source}.{_ROW} IS NOT NULL" if self._keys else "true")
        kept = f"WHERE {action} NOT IN ({', '.join(map(str, self._deletes))})" if self._deletes else ""
        others = {c: f"{self._rows}.{quote(c)}" for c in self._table.schema.names}
        return self._as_rows(values, action, others, self._from("LEFT JOIN") + kept, numbered(self._part, files))

    def _new(self, values: Sequence[Mapping[str, str]], source: pa.Table) -> pa.Table:
        action, others = self._action(self._statement.inserts), dict.fromkeys(self._table.schema.names, "NULL")
        tail = f" FROM {_SOURCE} AS {self._source} WHERE {action} > 0"
        return self._as_rows(values, action, others, tail, None, source).arrow()

    def _as_rows(self, values: Any, action: str, others: Mapping[str, str], tail: str, *tables: Any) -> QueryRows:
        items = []
        for column, other in others.items():
            cases = [f"WHEN {n} THEN {new[column]}" for n, new in enumerate(values, 1) if column in new]
            items.append(f"CASE {action} {' '.join(cases)} ELSE {other} END AS c" if cases else f"{other} AS c")
        text = f"SELECT {', '.join(f'{item}{at}' for at, item in enumerate(items))}{tail}"
        rows = QueryRows(lambda: self._query(text, *tables), self._target.source.name)
        rows.become(self._table.schema, self._table.schema.names, {})
        return rows

    def _commit(self, data: list[Any], files: Sequence[int]) -> dict[str, Any]:
        table, operation = self._table, self._operation
        labels, keys = [table.labels[f] for f in files], [table.files[f] for f in files]
        size = sum(s or 0 for s in operation.store.sizes(keys).values())
        if size > TARGET_BYTES:
            rows = sum(footer(operation.store, key)[0] for key in keys)
            operation.options = replace(operation.options, rows_per_file=max(1, rows * TARGET_BYTES // size))

        def select(now: DatasetTable) -> Sequence[str]:
            if not set(labels) <= set(now.labels) or (self._reads_all and set(now.labels) != set(table.labels)):
                raise ConcurrentCommit(
                    f"Dataset {table.uuid!r}: {operation.name} cannot be committed, as others changed what it had read",
                    hint="Nothing was changed. Look at the dataset as it stands now and try again.",
                )
            return labels

        given = data if table.table == "table" else {table.table: data}
        # What others write meanwhile comes behind the last of the files.
        place = labels[-1] if labels else None
        return append_to_dataset(operation, table.uuid, given, removed=select, place=place)
