"""The statements that write, and their syntax: what each of them says, before any name is looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError, closest
from kartosql.sql.cursor import QUERY_WORDS, TokenCursor
from kartosql.sql.statement_policy import CLOSE, OPEN
from kartosql.sql.statements import Name, Select, Write
from kartosql.sql.tree import span_of, tokens_of

Literal = str | int | float | bool


class Named(NamedTuple):
    """A dotted name and its place in the statement."""

    parts: Name
    span: Span

    @property
    def last(self) -> str:
        """The part behind the last dot."""
        return self.parts[-1]

    def is_of(self, table: str) -> bool:
        """Return whether this is a name with that of a table before it."""
        return len(self.parts) > 1 and self.parts[-2].lower() == table.lower()


Columns = tuple[Named, ...]


@dataclass(frozen=True)
class CreateCube(Write):
    """CREATE [OR REPLACE] CUBE c DIMENSIONS (...) PARTITION BY (...) AS query.

    Before AS may stand SEED s, INDEX (...), SUPPRESS INDEX ON (...) and METADATA (key = 'value', ...).
    """

    cube: Named
    dimensions: Columns
    partition_by: Columns
    seed: Named | None
    index: Columns
    suppress: Columns
    metadata: tuple[tuple[str, Literal | None], ...]
    replace: bool
    query: Select


@dataclass(frozen=True)
class AddDataset(Write):
    """ALTER CUBE c ADD DATASET d [PARTITION BY (...)] [INDEX (...)] AS query.

    ``partition_by`` None leaves the choice to the cube, ``()`` is no partitioning.
    """

    cube: Named
    dataset: Named
    partition_by: Columns | None
    index: Columns
    query: Select


@dataclass(frozen=True)
class CreateDataset(Write):
    """CREATE [OR REPLACE] DATASET d [PARTITION BY (...)] [INDEX (...)] AS query."""

    dataset: Named
    partition_by: Columns
    index: Columns
    replace: bool
    query: Select


@dataclass(frozen=True)
class CreateView(Write):
    """CREATE [OR REPLACE] VIEW v [(a, b)] AS query."""

    view: Named
    columns: Columns
    replace: bool
    query: Select


@dataclass(frozen=True)
class WriteTo(Write):
    """A statement about one table or cube."""

    target: Named


@dataclass(frozen=True)
class Insert(WriteTo):
    """INSERT INTO t, or INSERT OVERWRITE t [PARTITION (...)], with a query behind it.

    ``columns`` is None where the columns of the query are found by their names, ``()`` where
    they are in the order of those of the table. With ``evolve`` they may be others than those of the table.
    ``partition`` holds the columns of PARTITION with the constants given to them; None is a column without one.
    """

    overwrite: bool
    partition: tuple[tuple[Named, Literal | None], ...] | None
    columns: Columns | None
    evolve: bool
    query: Select


class Action(NamedTuple):
    """What is done with the rows for which a condition holds, or all: columns and places of values, None deletes.

    With ``every`` they are all columns that are no keys, and the values are those of the source by their names.
    """

    condition: Span | None
    values: tuple[tuple[Named, Span], ...] | None
    every: bool = False


@dataclass(frozen=True)
class ChangeRows(WriteTo):
    """UPDATE t [[AS] a] SET b = value, ... WHERE condition, and what DELETE and MERGE have in common with it.

    MERGE INTO t USING s ON (keys) has a ``source``, names of its rows and of the target's, ``keys`` of both, and
    ``inserts`` for rows of the source that match none of the target.
    """

    actions: tuple[Action, ...]
    source: Span | None = None
    source_name: str = ""
    target_name: str = ""
    keys: tuple[tuple[Named, Named], ...] = ()
    inserts: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Delete(WriteTo):
    """DELETE FROM t [[AS] a] [DATASETS (...)] WHERE condition.

    ``query`` is ``FROM t WHERE condition``, with every character in its place; ``has_query``
    tells of a query in the condition. Rows are deleted ``by_row`` where it does not hold for whole partitions.
    """

    datasets: Columns | None
    query: Select
    has_query: bool
    by_row: ChangeRows


@dataclass(frozen=True)
class Drop(WriteTo):
    """DROP CUBE [IF EXISTS] c, or DATASET, or VIEW, which ``kind`` says in lower case."""

    kind: str
    if_exists: bool


@dataclass(frozen=True)
class ChangeIndex(WriteTo):
    """CREATE INDEX ON t (column, ...), or DROP INDEX ON t (column, ...)."""

    columns: Columns
    drop: bool


class Skip(NamedTuple):
    """One skipping index: its kind, the column with members of structs, its parameters, and the place of the kind."""

    kind: str
    column: tuple[str, ...]
    parameters: tuple[tuple[str, int | float | str], ...]
    span: Span


@dataclass(frozen=True)
class CreateSkipping(WriteTo):
    """CREATE SKIPPING INDEX ON t (MINMAX(a), VALUELIST(b), BLOOMFILTER(c) WITH (fpp = 0.01, ndv = 100000))."""

    indexes: tuple[Skip, ...]


class RefreshSkipping(WriteTo):
    """REFRESH SKIPPING INDEX ON t."""


class DropSkipping(WriteTo):
    """DROP SKIPPING INDEX ON t."""


@dataclass(frozen=True)
class SetMetadata(WriteTo):
    """ALTER DATASET d SET METADATA (key = value, ...); None removes a key."""

    metadata: tuple[tuple[str, Literal | None], ...]


@dataclass(frozen=True)
class AddColumn(WriteTo):
    """ALTER DATASET d ADD COLUMN c TYPE; ``query`` has one column of that name and type, and no row."""

    column: Named
    query: Select


@dataclass(frozen=True)
class Copy(WriteTo):
    """COPY CUBE c [DATASETS (...)] TO 'url' [AS name], or COPY DATASET d TO 'url' [AS name]."""

    is_cube: bool
    datasets: Columns | None
    url: str
    new_name: Named | None


@dataclass(frozen=True)
class Restore(WriteTo):
    """RESTORE d TO VERSION 7, or TO TIMESTAMP '...'."""

    as_of: int | str


@dataclass(frozen=True)
class Publish(WriteTo):
    """PUBLISH t TO 'url' (TYPE delta | iceberg [, FOLLOW true | false])."""

    url: str
    type: str
    follow: bool | None


class Compact(WriteTo):
    """COMPACT t."""


@dataclass(frozen=True)
class Cleanup(WriteTo):
    """CLEANUP t [DRY RUN]."""

    dry_run: bool


@dataclass(frozen=True)
class Check(WriteTo):
    """CHECK t [FULL] [REPAIR]."""

    full: bool
    repair: bool


class RecordSchema(WriteTo):
    """RECORD SCHEMA FOR t."""


@dataclass(frozen=True)
class ExportHistory(WriteTo):
    """EXPORT SCHEMA HISTORY OF t TO 'url'."""

    url: str


@dataclass(frozen=True)
class ExportOdf(Write):
    """EXPORT (query) TO 'url' (TYPE odf, PRIMARY_KEY (...), EVENT_TIME column)."""

    url: str
    primary_key: Columns
    event_time: Named | None
    query: Select


# What each first word can begin, as it is shown in hints.
FORMS = {
    "CREATE CUBE": "CREATE CUBE c DIMENSIONS (a, b) PARTITION BY (p) [SEED s] [INDEX (i)] [SUPPRESS INDEX ON (a)] "
    "[METADATA (key = 'value')] AS SELECT ...",
    "CREATE DATASET": "CREATE DATASET d [PARTITION BY (p)] [INDEX (i)] AS SELECT ...",
    "CREATE VIEW": "CREATE [OR REPLACE] VIEW v [(a, b)] AS SELECT ...",
    "CREATE INDEX": "CREATE INDEX ON c.d (column)",
    "CREATE SKIPPING INDEX": "CREATE SKIPPING INDEX ON c.d (MINMAX(a), VALUELIST(b), BLOOMFILTER(c) WITH (fpp = 0.01))",
    "REFRESH SKIPPING INDEX": "REFRESH SKIPPING INDEX ON c.d",
    "ALTER CUBE": "ALTER CUBE c ADD DATASET d [PARTITION BY (p)] [INDEX (i)] AS SELECT ...",
    "ALTER DATASET": "ALTER DATASET c.d ADD COLUMN a type, or ALTER DATASET c.d SET METADATA (key = 'value')",
    "INSERT INTO": "INSERT INTO c.d [(EVOLVE)] [(a, b)] SELECT ...",
    "INSERT OVERWRITE": "INSERT OVERWRITE c.d [(EVOLVE)] [PARTITION (p)] [(a, b)] SELECT ...",
    "DELETE FROM": "DELETE FROM c [DATASETS (d)] WHERE p = 1",
    "UPDATE": "UPDATE c.d SET a = 1, b = a + 1 WHERE i = 2",
    "MERGE INTO": "MERGE INTO c.d USING s ON (key) WHEN MATCHED [AND a > 1] THEN UPDATE SET a = s.a | DELETE "
    "WHEN NOT MATCHED THEN INSERT (a, b) VALUES (s.a, 1), or UPDATE SET * and INSERT *",
    "DROP CUBE": "DROP CUBE [IF EXISTS] c",
    "DROP DATASET": "DROP DATASET [IF EXISTS] c.d",
    "DROP VIEW": "DROP VIEW [IF EXISTS] v",
    "DROP INDEX": "DROP INDEX ON c.d (column)",
    "DROP SKIPPING INDEX": "DROP SKIPPING INDEX ON c.d",
    "COPY CUBE": "COPY CUBE c [DATASETS (d)] TO 'url' [AS name]",
    "COPY DATASET": "COPY DATASET c.d TO 'url' [AS name]",
    "RESTORE": "RESTORE c.d TO VERSION 7, or TO TIMESTAMP '2026-01-31 12:00:00'",
    "PUBLISH": "PUBLISH c.d TO 'folder or URL' (TYPE delta | iceberg [, FOLLOW true])",
    "COMPACT": "COMPACT c",
    "CLEANUP": "CLEANUP c [DRY RUN]",
    "CHECK": "CHECK c [FULL] [REPAIR]",
    "RECORD": "RECORD SCHEMA FOR t",
    "EXPORT": "EXPORT (SELECT ...) TO 'folder or URL' (TYPE odf [, PRIMARY_KEY (a, b)] [, EVENT_TIME column])",
    "EXPORT SCHEMA": "EXPORT SCHEMA HISTORY OF t TO 'folder or URL'",
}
_FOLDER = "Expected a folder or URL in single quotes."
_TYPED = ("DATE", "TIMESTAMP")
_CONDITION = {"expressions", "from_", "where"}
_BEHIND_TARGET = ("DATASETS", "USING", "WHERE")  # of a DELETE, so no other name for it
_REWRITES = {"RENAME": "RENAME (a AS b)", "DROP": "EXCLUDE (a)", "ALTER": "REPLACE (CAST(a AS type) AS a)"}
_BRACKETS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}


def parse_write(text: str, tokens: list[Token]) -> Write:
    """Return the statement that writes; raises ``syntax-error``, ``not-supported`` and what a query must not do."""
    return _WriteCursor(text, tokens).write()


class _WriteCursor(TokenCursor):
    form = ""

    def write(self) -> Write:
        first = self.keyword()
        self.at += 1
        replace = first == "CREATE" and self.phrase("OR", "REPLACE")
        if first not in FORMS:
            self.form = f"{first} {self.keyword()}"
            if self.form.endswith(" SKIPPING"):
                self.at += 1
                self.form += f" {self.keyword()}"
            if self.form not in FORMS or (replace and self.form.endswith("INDEX")):
                raise self.foreign(first)
            self.at += 1
        else:
            self.form = first
        parse: dict[str, Callable[[], Write]] = {
            "CREATE CUBE": lambda: self.create_cube(replace),
            "CREATE DATASET": lambda: self.create_dataset(replace),
            "CREATE VIEW": lambda: self.create_view(replace),
            "CREATE INDEX": lambda: self.change_index(drop=False),
            "CREATE SKIPPING INDEX": lambda: CreateSkipping(self.text, self.on(), self.skips()),
            "REFRESH SKIPPING INDEX": lambda: RefreshSkipping(self.text, self.on()),
            "DROP SKIPPING INDEX": lambda: DropSkipping(self.text, self.on()),
            "ALTER CUBE": self.add_dataset,
            "ALTER DATASET": self.alter_dataset,
            "INSERT INTO": lambda: self.insert(overwrite=False),
            "INSERT OVERWRITE": lambda: self.insert(overwrite=True),
            "DELETE FROM": self.delete,
            "UPDATE": self.update,
            "MERGE INTO": self.merge,
            **{f"DROP {kind.upper()}": partial(self.drop, kind) for kind in ("cube", "dataset", "view")},
            "DROP INDEX": lambda: self.change_index(drop=True),
            "COPY CUBE": lambda: self.copy(is_cube=True),
            "COPY DATASET": lambda: self.copy(is_cube=False),
            "RESTORE": self.restore,
            "PUBLISH": self.publish,
            "COMPACT": lambda: Compact(self.text, self.named()),
            "CLEANUP": lambda: Cleanup(self.text, self.named(), self.phrase("DRY", "RUN")),
            "CHECK": self.check,
            "RECORD": self.record,
            "EXPORT": self.export,
        }
        statement = parse[self.form]()
        if not hasattr(statement, "query"):
            self.end()
        return statement

    def usage(self) -> str | None:
        return FORMS.get(self.form)

    def foreign(self, first: str) -> SqlError:
        word = self.keyword()
        known = [form for form in FORMS if form.startswith(f"{first} ")]
        seconds = [form.rpartition(" ")[2] for form in known]
        close = closest(word, seconds, 0.7)
        if close and word not in seconds:
            return self.fail(f"There is no {first} {word}.", f"Did you mean {first} {close}?")
        self.at = 0
        meant = f"Did you mean {first} DATASET? " if word == "TABLE" and "DATASET" in seconds else ""
        if first == "COPY" and not meant:
            meant = "Rows go to a file with kartosql -o FILE, .once FILE in the shell, or con.sql(...).write(FILE). "
        return self.fail(
            f"This form of {first} is not supported.",
            f"{meant}Supported are SELECT, SHOW, DESCRIBE, EXPLAIN, SET and RESET, and of {first}: {', '.join(known)}.",
            "not-supported",
        )

    def named(self) -> Named:
        if self.token is not None and self.token.token_type == TokenType.STRING:
            raise self.fail("Expected a name, not a text.", "Names are quoted with double quotes.")
        return Named(*self.name())

    def single(self) -> Named:
        """Read a name without dots."""
        named = self.named()
        if len(named.parts) > 1:
            raise self.fail(f"Expected a name without dots, not {'.'.join(named.parts)!r}.", span=named.span)
        return named

    def columns(self) -> Columns:
        return tuple(name for name, _ in self.listed(lambda: None))

    def listed(self, value: Callable[[], Literal | None]) -> tuple[tuple[Named, Literal | None], ...]:
        """Read names in parentheses, with ``value`` behind each."""
        known: set[Name] = set()

        def item() -> tuple[Named, Literal | None]:
            name = self.single()
            if name.parts in known:
                raise self.fail(f"{name.last!r} occurs twice.", span=name.span)
            known.add(name.parts)
            return name, value()

        return () if self.phrase("(", ")") else tuple(self.in_brackets(item))

    def some_columns(self, what: str = "column") -> Columns:
        start = self.at
        found = self.columns()
        if not found:
            self.at = start
            raise self.fail(f"At least one {what} is needed.")
        return found

    def constant(self) -> Literal | None:
        """Read ``= constant``, if it comes next."""
        if not self.take("="):
            return None
        if not self.take(*_TYPED) and self.at_number():
            return self.number()
        if self.token is not None and self.token.token_type == TokenType.STRING:
            return self.string("")
        if (word := self.keyword()) in ("TRUE", "FALSE"):
            self.at += 1
            return word == "TRUE"
        hint = "NULL is no partition value." if word == "NULL" else None
        raise self.fail("Expected a number, a text, a date, TRUE or FALSE.", hint)

    def query(self) -> Select:
        if self.keyword() not in QUERY_WORDS:
            raise self.fail("Expected a query.")
        start = self.tokens[self.at].start
        return self.aligned((0, start))

    # -- statements --------------------------------------------------------------------------

    def clauses(self, known: dict[str, Callable[[], Any]], end: str = "AS") -> dict[str, Any]:
        """Read clauses up to AS, or options up to a bracket, in any order, by the words that each begins with."""
        found: dict[str, Any] = {}
        while not self.take(end):
            if found and end == ")" and not self.take(","):
                raise self.fail("Expected , or ).")
            name = next((name for name in known if name not in found and self.phrase(*name.split())), None)
            if name is None:
                raise self.fail(f"Expected {', '.join(known)} or {end}, each of them once.")
            found[name] = known[name]()
        return found

    def options(self, known: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        """Read options in brackets, of which the TYPE has to be one."""
        start = self.at
        self.expect("(")
        found = self.clauses(known, ")")
        if "TYPE" not in found:
            self.at = start
            raise self.fail("Expected TYPE among the options.")
        return found

    def create_cube(self, replace: bool) -> CreateCube:
        cube = self.single()
        columns: Callable[[], Any] = self.some_columns
        known = {"DIMENSIONS": columns, "PARTITION BY": columns, "SEED": self.single, "INDEX": columns}
        found = self.clauses({**known, "SUPPRESS INDEX ON": columns, "METADATA": self.metadata})
        for needed in ("DIMENSIONS", "PARTITION BY"):
            if needed not in found:
                raise self.fail(f"The cube {cube.last!r} has no {needed}.", span=cube.span)
        dimensions, partition_by, seed = found["DIMENSIONS"], found["PARTITION BY"], found.get("SEED")
        index, suppress, metadata = (found.get(name, ()) for name in ("INDEX", "SUPPRESS INDEX ON", "METADATA"))
        query = self.query()
        return CreateCube(self.text, cube, dimensions, partition_by, seed, index, suppress, metadata, replace, query)

    def create_view(self, replace: bool) -> CreateView:
        view = self.single()
        columns = self.some_columns() if self.word() == "(" else ()
        self.expect("AS")
        return CreateView(self.text, view, columns, replace, self.query())

    def dataset_clauses(self) -> tuple[Columns | None, Columns]:
        found = self.clauses({"PARTITION BY": self.columns, "INDEX": self.some_columns})
        return found.get("PARTITION BY"), found.get("INDEX", ())

    def create_dataset(self, replace: bool) -> CreateDataset:
        dataset = self.single()
        partition_by, index = self.dataset_clauses()
        return CreateDataset(self.text, dataset, partition_by or (), index, replace, self.query())

    def add_dataset(self) -> AddDataset:
        cube = self.single()
        self.expect("ADD", "DATASET")
        dataset = self.single()
        partition_by, index = self.dataset_clauses()
        return AddDataset(self.text, cube, dataset, partition_by, index, self.query())

    def alter_dataset(self) -> AddColumn | SetMetadata:
        target = self.named()
        if self.phrase("RENAME", "TO"):
            hint = "COPY DATASET d TO 'url' AS name makes a copy with another name, also in the same store."
            raise self.fail("The files of a dataset lie below its name, and keep it.", hint, "not-supported")
        if (change := _REWRITES.get(self.keyword())) is not None:
            hint = f"CREATE DATASET ... AS SELECT * {change} FROM d writes the files anew."
            raise self.fail("Columns have their names and types in each file, and keep them.", hint, "not-supported")
        if not self.phrase("ADD", "COLUMN"):
            self.expect("SET", "METADATA")
            return SetMetadata(self.text, target, self.metadata())
        column = self.single()
        start, depth = self.at, 0
        while self.token is not None and depth >= 0:
            depth += _BRACKETS.get(self.token.token_type, 0)
            self.at += 1
        if depth or start == self.at:
            self.at = start
            raise self.fail(f"Expected the type of {column.last!r}.")
        place, name = self.tokens[start].start, column.last.replace('"', '""')
        # The type stands where it stood, so places agree.
        cast = f"{'SELECT CAST(NULL AS ':>{place}}{self.text[place : self.tokens[-1].end + 1]})"
        text = f'{cast} AS "{name}" WHERE false'
        return AddColumn(self.text, target, column, TokenCursor(text, tokens_of(text)).select())

    def metadata(self) -> tuple[tuple[str, Literal | None], ...]:
        found = self.listed(self.metadata_value)
        if not found:
            raise self.fail("At least one key is needed.")
        return tuple((key.last, value) for key, value in found)

    def restore(self) -> Restore:
        target = self.named()
        self.expect("TO")
        is_time = self.take("TIMESTAMP")
        as_of = self.value() if is_time or self.take("VERSION") else None
        if type(as_of) is not (str if is_time else int):
            raise self.fail("Expected VERSION and a number, or TIMESTAMP and a time in single quotes.")
        return Restore(self.text, target, as_of)

    def publish(self) -> Publish:
        target = self.named()
        self.expect("TO")
        url = self.string(_FOLDER)
        found = self.options({"TYPE": self.single, "FOLLOW": self.flag})
        return Publish(self.text, target, url, found["TYPE"].last.lower(), found.get("FOLLOW"))

    def flag(self) -> bool:
        if is_true := not self.take("FALSE"):
            self.expect("TRUE")
        return is_true

    def metadata_value(self) -> Literal | None:
        if self.phrase("=", "NULL"):
            return None
        found = self.constant()
        if found is None:
            raise self.fail("Expected = and a value.")
        return found

    def insert(self, *, overwrite: bool) -> Insert:
        if overwrite:
            self.take("INTO", "TABLE")
        target = self.named()
        evolve = self.phrase("(", "EVOLVE", ")")
        partition = None
        if overwrite and self.take("PARTITION"):
            partition = self.listed(self.constant)
        columns: Columns | None = None
        if self.phrase("BY", "POSITION"):
            columns = ()
        elif not self.phrase("BY", "NAME") and self.word() == "(" and not self._query_in_brackets():
            columns = self.some_columns()
        if columns is None and self.keyword() == "VALUES":
            columns = ()
        return Insert(self.text, target, overwrite, partition, columns, evolve, self.query())

    def _query_in_brackets(self) -> bool:
        self.at += 1
        inside = self.keyword()
        self.at -= 1
        return inside in QUERY_WORDS

    def delete(self) -> Delete:
        start = self.tokens[self.at - 1].start
        target = self.named()
        shown = self.alias() if self.token is not None and self.keyword() not in _BEHIND_TARGET else ""
        end = self.tokens[self.at - 1].end + 1
        datasets = self.some_columns("dataset") if self.take("DATASETS") else None
        if self.keyword() != "WHERE":
            hint = "WHERE true deletes all rows."
            if self.word() == "USING":
                hint = "Other tables stand in queries, or in MERGE INTO t USING s ON (key) WHEN MATCHED THEN DELETE."
            raise self.fail("Expected WHERE and a condition.", hint)
        query = self.aligned((0, start), (end, self.tokens[self.at].start))
        tree = query.tree
        has_query = False
        if tree is not None:  # what could not be read is left to the engine to explain
            if not isinstance(tree, exp.Select) or {k for k, v in tree.args.items() if v} - _CONDITION:
                raise self.fail("DELETE ends with the condition of its WHERE.", span=span_of(tree))
            has_query = tree.args["where"].find(exp.Query) is not None
        self.at += 1
        by_row = ChangeRows(self.text, target, (Action(self.expression(), None),), target_name=shown)
        return Delete(self.text, target, datasets, query, has_query, by_row)

    # -- single rows -------------------------------------------------------------------------

    def expression(self, *ends: str) -> Span:
        """Take an expression, up to one of some words that is not inside of it."""
        first, depth = self.at, 0
        while (token := self.token) is not None and (depth or self.keyword() not in ends):
            depth += (token.token_type in OPEN) - (token.token_type in CLOSE)
            self.at += 1
        if self.at == first:
            raise self.fail("Expected an expression.")
        return self.tokens[first].start, self.tokens[self.at - 1].end + 1

    def assignments(self, end: str) -> tuple[tuple[Named, Span], ...]:
        def assignment() -> tuple[Named, Span]:
            name = self.single()
            self.expect("=")
            return name, self.expression(",", end)

        return tuple(self.separated(assignment))

    def update(self) -> ChangeRows:
        target = self.named()
        shown = "" if self.token is None or self.keyword() == "SET" else self.alias()
        self.expect("SET")
        values = self.assignments("WHERE")
        if not self.take("WHERE"):
            raise self.fail("Expected WHERE and a condition.", "WHERE true changes all rows.")
        return ChangeRows(self.text, target, (Action(self.expression(), values),), target_name=shown)

    def merge(self) -> ChangeRows:
        target = self.named()
        shown = target.last if self.keyword() == "USING" else self.alias()
        self.expect("USING")
        start = self.expression("ON", "AS")[0]
        name = self.tokens[self.at - 1].text  # of a table; a query has an alias
        if self.keyword() == "AS":
            name = self.alias()
        source = (start, self.tokens[self.at - 1].end + 1)
        self.expect("ON")
        keys = self.keys(shown, name)
        clauses: tuple[list[Action], list[Action]] = ([], [])
        while self.take("WHEN"):
            is_new = self.take("NOT")
            self.expect("MATCHED")
            condition = self.expression("THEN") if self.take("AND") else None
            self.expect("THEN")
            clauses[is_new].append(self.action(condition, is_new))
        actions, inserts = map(tuple, clauses)
        if not actions and not inserts:
            raise self.fail("Expected WHEN MATCHED or WHEN NOT MATCHED.")
        return ChangeRows(self.text, target, actions, source, name, shown, keys, inserts)

    def alias(self) -> str:
        self.take("AS")
        return self.single().last

    def keys(self, target: str, source: str) -> tuple[tuple[Named, Named], ...]:
        """Read ``(key, ...)``, or ``t.key = s.key AND ...``, with or without parentheses, as pairs in this order."""
        found: list[tuple[Named, Named]] = []
        closed = self.take("(")
        while not found or self.take(",", "AND"):
            one = other = self.named()
            if not closed or self.word() == "=":
                self.expect("=")
                other = self.named()
                span = (one.span[0], other.span[1])
                if one.is_of(source):
                    one, other = other, one
                if not (one.is_of(target) and other.is_of(source)):
                    message = f"Each key compares a column of {target!r} with one of {source!r}."
                    raise self.fail(message, "Other conditions stand behind WHEN MATCHED AND.", span=span)
            found.append((one, other))
        if closed:
            self.expect(")")
        return tuple(found)

    def action(self, condition: Span | None, is_new: bool) -> Action:
        if not is_new and self.take("DELETE"):
            return Action(condition, None)
        self.expect("INSERT" if is_new else "UPDATE")
        if self.phrase("BY", "NAME") or self.phrase(*(("*",) if is_new else ("SET", "*"))):
            return Action(condition, (), every=True)
        if not is_new:
            self.expect("SET")
            return Action(condition, self.assignments("WHEN"))
        columns = self.some_columns()
        self.expect("VALUES")
        values = self.in_brackets(lambda: self.expression(",", ")"))
        if len(values) != len(columns):
            raise self.fail(f"{len(columns)} columns are named, but {len(values)} values given.")
        return Action(condition, tuple(zip(columns, values, strict=True)))

    def on(self) -> Named:
        self.expect("ON")
        return self.named()

    def change_index(self, *, drop: bool) -> ChangeIndex:
        return ChangeIndex(self.text, self.on(), self.some_columns(), drop)

    def drop(self, kind: str) -> Drop:
        if_exists = self.phrase("IF", "EXISTS")
        return Drop(self.text, self.named() if kind == "dataset" else self.single(), kind, if_exists)

    def copy(self, *, is_cube: bool) -> Copy:
        target = self.single() if is_cube else self.named()
        datasets = self.some_columns("dataset") if is_cube and self.take("DATASETS") else None
        self.expect("TO")
        url = self.string("Expected the URL of a store, as a text.")
        return Copy(self.text, target, is_cube, datasets, url, self.single() if self.take("AS") else None)

    def check(self) -> Check:
        target = self.named()
        found: set[str] = set()
        while (word := self.keyword()) in ("FULL", "REPAIR") and word not in found:
            found.add(word)
            self.at += 1
        return Check(self.text, target, "FULL" in found, "REPAIR" in found)

    def skips(self) -> tuple[Skip, ...]:
        """Read ``(MINMAX(a), VALUELIST(b.c), BLOOMFILTER(d) WITH (fpp = 0.01))``."""
        return tuple(chain.from_iterable(self.in_brackets(self.skip)))

    def skip(self) -> list[Skip]:
        kind, names = self.single(), self.in_brackets(self.named)
        parameters = tuple(self.in_brackets(self.parameter)) if self.phrase("WITH") else ()
        return [Skip(kind.last.lower(), name.parts, parameters, kind.span) for name in names]

    def parameter(self) -> tuple[str, int | float | str]:
        name = self.single().last.lower()
        self.expect("=")
        return name, self.number() if self.at_number() else self.string(
            "Expected a number, or a text in single quotes."
        )

    def record(self) -> RecordSchema:
        self.expect("SCHEMA", "FOR")
        return RecordSchema(self.text, self.named())

    def export(self) -> Write:
        if self.take("SCHEMA"):
            self.form = "EXPORT SCHEMA"
            self.expect("HISTORY", "OF")
            target = self.named()
            self.expect("TO")
            return ExportHistory(self.text, target, self.string(_FOLDER))
        query = self.bracketed()
        self.expect("TO")
        url = self.string(_FOLDER)
        found = self.options({"TYPE": partial(self.expect, "ODF"), "PRIMARY_KEY": self.key, "EVENT_TIME": self.named})
        self.end()
        return ExportOdf(self.text, url, found.get("PRIMARY_KEY", ()), found.get("EVENT_TIME"), query)

    def bracketed(self) -> Select:
        """Parse the query in brackets; every character keeps its place in the statement."""
        if self.word() != "(":
            code = "not-supported" if self.word() == "DATABASE" else "syntax-error"  # DuckDB has this form
            raise self.fail("Expected a query in brackets.", code=code)
        first, depth = self.at, 0
        while self.at < len(self.tokens):
            depth += _BRACKETS.get(self.tokens[self.at].token_type, 0)
            self.at += 1
            if depth == 0:
                break
        if depth or self.at == first + 2:
            raise self.fail("Expected a query, and the bracket that ends it.")
        start, end = self.tokens[first].end + 1, self.tokens[self.at - 1].start
        return self.aligned((0, start), end=end)

    def key(self) -> Columns:
        return tuple(self.in_brackets(self.named)) if self.word() == "(" else (self.named(),)
