"""What may stand at the cursor: names, values, words, arguments of commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from kartosql.cli.repl import words
from kartosql.cli.repl.context import Context, Ref, context
from kartosql.cli.repl.known import NOTHING, Known, KnownColumn, KnownTable
from kartosql.settings import SETTINGS
from kartosql.tables.names import quote_if_needed

if TYPE_CHECKING:
    from kartosql.cli.repl.shell import Shell

MOST = 100
MAX_JOINS = 5
_COMPARISONS = ("=", "<>", "!=", "<", ">", "<=", ">=", "==")


@dataclass(frozen=True)
class Candidate:
    """A completion: ``text`` takes the place of what stands from ``start`` to the cursor.

    ``suffix`` comes behind the cursor, ``about`` is shown beside it, and ``unasked`` says
    whether it is offered while somebody types.
    """

    text: str
    start: int
    about: str = ""
    suffix: str = ""
    shown: str = ""
    unasked: bool = True


def candidates(text: str, cursor: int, shell: Shell, known: Known | None) -> list[Candidate]:
    """Return the completions at the cursor, the best first, at most ``MOST``."""
    line = text[:cursor].rpartition("\n")[2] if not text[:cursor].strip().startswith((".", "\\")) else text[:cursor]
    if text.lstrip()[:1] in (".", "\\") and line.lstrip()[:1] in (".", "\\"):
        from kartosql.cli.repl.complete_commands import of_command

        return list(islice(of_command(text[:cursor], shell, known or NOTHING), MOST))
    return list(islice(_once(Completion(context(text, cursor), shell, known or NOTHING).all()), MOST))


def _once(found: Iterable[Candidate]) -> Iterator[Candidate]:
    seen: set[tuple[str, str]] = set()
    for candidate in found:
        if (candidate.text, candidate.suffix) not in seen:
            seen.add((candidate.text, candidate.suffix))
            yield candidate


class Completion:
    """The completions at one place of one statement."""

    def __init__(self, where: Context, shell: Shell, known: Known) -> None:
        self._where = where
        self._shell = shell
        self._known = known
        self._name = where.typed.lstrip('"').lower()  # the beginning of the name that is typed

    def all(self) -> Iterator[Candidate]:
        """Yield them, the best first."""
        where = self._where
        if where.in_comment:
            return
        if where.in_string:
            yield from self._values()
            return
        if not where.first and not where.before:
            yield from self._words(words.STATEMENTS, "statement")
            return
        if where.word() == ".":
            yield from self._behind_dot()
            return
        special = list(self._special())
        if special:
            yield from special
            return
        yield from self._values()
        yield from self._expression()

    # -- statements other than queries ---------------------------------------------------------------

    def _special(self) -> Iterator[Candidate]:
        where, last = self._where, self._where.word()
        if where.first in ("SET", "RESET"):
            yield from self._settings()
        elif last in words.TABLES_AFTER or (last == "," and where.clause == "FROM"):
            yield from self._tables()
            if where.first == "DESCRIBE":
                yield from self._words(("SELECT",), "keyword")
        elif self._names_table():
            yield from self._tables()
        elif last in words.AFTER:
            yield from self._words(words.AFTER[last], "keyword")
        elif last == "ON" and where.clause == "ON" and len(where.scope) > 1:
            yield from self._joins()
            yield from self._columns()
        elif last == "(" and where.word(2) == "USING" and len(where.scope) > 1:
            yield from self._shared()

    def _names_table(self) -> bool:
        """Return whether a table follows in CREATE INDEX ON, DROP CUBE and the like."""
        where, last = self._where, self._where.word()
        if where.first in ("CREATE", "DROP") and last == "ON":
            return where.word(2) == "INDEX"
        return where.first in ("DROP", "ALTER", "COPY") and last in ("CUBE", "DATASET")

    def _settings(self) -> Iterator[Candidate]:
        where = self._where
        if len(where.before) == 1:
            for name, setting in SETTINGS.items():
                if setting.in_sql and name.lower().startswith(self._name):
                    text = f"{name} = " if where.first == "SET" else name
                    yield Candidate(text, where.start, setting.about, shown=name)
        elif where.first == "SET" and where.word() in ("=", "TO") and where.word(2) == "ENGINE":
            for name in engines():
                if name.startswith(self._name):
                    yield Candidate(f"'{name}'", where.start, "engine")
        elif where.first == "SET" and len(where.before) == 2 and not where.typed:
            yield Candidate("= ", where.start)

    # -- tables --------------------------------------------------------------------------------------

    def _tables(self) -> Iterator[Candidate]:
        where = self._where
        for name in where.ctes:
            if name.lower().startswith(self._name):
                yield Candidate(name, where.start, "WITH")
        for names in (self._known.table_names.beginning, self._known.table_names.holding):
            for name in names(where.typed.lstrip('"'), MOST):
                table = self._known.by_name[name.lower()]
                yield Candidate(name, where.start, _about_table(table))
            if not where.typed:
                return

    def _behind_dot(self) -> Iterator[Candidate]:
        """Yield columns behind the alias of a table, and datasets behind the name of a cube."""
        where = self._where
        piece = where.back(2)
        if piece is None or piece.kind not in ("name", "quoted", "keyword"):
            return
        name = piece.text.strip('"').lower()
        if where.word(3) in words.TABLES_AFTER or (where.word(3) == "," and where.clause == "FROM"):
            for table in self._known.tables:
                first, dot, rest = table.name.rpartition(".")
                if dot and first.lower().strip('"') == name and rest.lower().lstrip('"').startswith(self._name):
                    yield Candidate(rest, where.start, _about_table(table))
            return
        for ref in where.scope or where.refs:
            if name in (ref.alias.lower().strip('"'), ref.name.lower()):
                for column in self._matching(self._known.table(ref.name)):
                    yield Candidate(quote_if_needed(column.name), where.start, _about_column(column))
                return

    # -- columns -------------------------------------------------------------------------------------

    def _expression(self) -> Iterator[Candidate]:
        where = self._where
        yield from self._columns()
        if where.typed and not where.typed.startswith('"'):
            for name in words.FUNCTIONS:
                if name.startswith(self._name):
                    yield Candidate(f"{name}(", where.start, "function")
        asked = bool(where.typed)
        for word in (*words.CLAUSES, *words.EXPRESSION):
            if word.lower().startswith(self._name) and word.lower() != self._name:
                yield Candidate(_cased(word, where.typed), where.start, "keyword", unasked=asked)

    def _columns(self) -> Iterator[Candidate]:
        where = self._where
        refs = [(ref, self._known.table(ref.name)) for ref in where.scope]
        known = [(ref, table) for ref, table in refs if table is not None]
        asked = bool(where.typed)
        if not refs:
            if where.clause == "SELECT" and not where.refs:
                yield from self._columns_before_from()
            return
        several = len(known) > 1
        for ref, table in known:
            for column in self._matching(table):
                others = sum(column.name.lower() in other.by_name for _, other in known) if several else 1
                name = quote_if_needed(column.name)
                text = f"{ref.alias}.{name}" if others > 1 else name
                yield Candidate(text, where.start, _about_column(column), unasked=asked)
        for ref, _ in known if several and where.typed else ():
            if ref.alias.lower().startswith(self._name):
                yield Candidate(f"{ref.alias}.", where.start, "table")

    def _matching(self, table: KnownTable | None) -> Iterator[KnownColumn]:
        """Yield the columns of a table that begin with what is typed, then those that have it inside."""
        if table is None:
            return
        inside = []
        for lower, column in table.by_name.items():
            if lower.startswith(self._name):
                yield column
            elif self._name and self._name in lower:
                inside.append(column)
        yield from inside

    def _columns_before_from(self) -> Iterator[Candidate]:
        """Yield columns of all tables; to choose one adds its FROM."""
        where = self._where
        if not where.typed:
            return
        # What follows may be the rest of the list.
        has_from = any(p.word == "FROM" for p in where.after)
        for name in self._known.column_names.beginning(where.typed.lstrip('"'), MOST):
            for table in _owners(self._known.column_tables[name]):
                column = table.by_name.get(name.lower())
                about = f"{table.name}: {_about_column(column)}" if column is not None else table.name
                suffix = "" if has_from else f" FROM {table.name}"
                yield Candidate(quote_if_needed(name), where.start, about, suffix)

    # -- joins ---------------------------------------------------------------------------------------

    def _pairs(self) -> Iterator[tuple[Ref, Ref, list[str]]]:
        """Yield the tables before the one that is joined, and the dimensions that both have."""
        refs = [r for r in self._where.scope if r.at < self._where.start]
        if len(refs) < 2:
            return
        new = max(refs, key=lambda ref: ref.at)
        table = self._known.table(new.name)
        for ref in refs:
            other = self._known.table(ref.name)
            if ref is not new and table is not None and other is not None:
                shared = [c.name for c in other.columns if c.name in table.source.columns]
                keys = {*table.dimensions, *other.dimensions, *_partition_keys(table), *_partition_keys(other)}
                yield ref, new, [c for c in shared if c in keys] or shared[:MAX_JOINS]

    def _joins(self) -> Iterator[Candidate]:
        if self._where.typed:
            return
        for ref, new, shared in self._pairs():
            conditions = [f"{ref.alias}.{quote_if_needed(c)} = {new.alias}.{quote_if_needed(c)}" for c in shared]
            if len(conditions) > 1:
                yield Candidate(" AND ".join(conditions), self._where.start, "shared dimensions")
            for condition in conditions[: 2 * MAX_JOINS]:
                yield Candidate(condition, self._where.start, "shared dimension")

    def _shared(self) -> Iterator[Candidate]:
        for _, _, shared in self._pairs():
            written = [quote_if_needed(c) for c in shared]
            if len(written) > 1 and not self._where.typed:
                yield Candidate(", ".join(written) + ")", self._where.start, "shared dimensions")
            for name in written:
                if name.lower().startswith(self._name):
                    yield Candidate(name, self._where.start, "shared dimension")

    # -- values --------------------------------------------------------------------------------------

    def _values(self) -> Iterator[Candidate]:
        """Yield values of the column that is compared, with the number of files that hold them."""
        where = self._where
        column = self._compared()
        if column is None or not column.has_values:
            return
        shell = self._shell
        found = shell.values.of(shell.connection.store, column)
        if found is None:
            return
        typed = where.typed.strip("'").replace("''", "'") if where.in_string else where.typed
        closes = where.in_string and where.closed
        for value, files in found.beginning(typed, MOST):
            literal = found.literal(value)
            if where.in_string and not literal.startswith("'"):
                literal = f"'{value}'"
            total = f"{files:,} of {found.total:,} {'file' if found.total == 1 else 'files'}"
            yield Candidate(
                literal[:-1] if closes and literal.endswith("'") else literal, where.start, total, shown=value
            )

    def _compared(self) -> KnownColumn | None:
        """Return the column on the other side of the comparison that the cursor is in."""
        where, at = self._where, 1
        if where.word(1) in _COMPARISONS:
            at = 2
        elif where.word(1) in ("(", ","):
            # x IN ('a', 'b', |
            while where.back(at) is not None and where.word(at) != "(":
                if where.back(at) is not None and where.word(at) in (")", "SELECT", "WHERE"):
                    return None
                at += 1
            if where.word(at + 1) != "IN":
                return None
            at += 2
            at += where.word(at) == "NOT"
        elif where.word(1) == "BETWEEN":
            at = 2
        else:
            return None
        piece = where.back(at)
        if piece is None or piece.kind not in ("name", "quoted", "keyword", "function"):
            return None
        name, owner = _plain(piece.text), ""
        if where.word(at + 1) == ".":
            before = where.back(at + 2)
            owner = _plain(before.text) if before is not None else ""
        return self._column(name, owner)

    def _column(self, name: str, owner: str) -> KnownColumn | None:
        where = self._where
        refs = where.scope or where.refs
        for ref in refs:
            if owner and owner.lower() not in (ref.alias.lower().strip('"'), ref.name.lower()):
                continue
            table = self._known.table(ref.name)
            column = table.by_name.get(name.lower()) if table is not None else None
            if column is not None:
                return column
        return None

    def _words(self, found: Iterable[str], about: str) -> Iterator[Candidate]:
        where = self._where
        for word in found:
            if word.lower().startswith(self._name):
                yield Candidate(_cased(word, where.typed), where.start, about, unasked=bool(where.typed))


def engines() -> tuple[str, ...]:
    """Return the names of the engines."""
    return ("auto", "duckdb", "spark")


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _cased(word: str, typed: str) -> str:
    return word.lower() if typed and typed == typed.lower() else word


def _owners(tables: tuple[KnownTable, ...]) -> list[KnownTable]:
    """Return the tables that are offered for a column: datasets of cubes only where no cube has it."""
    whole = [t for t in tables if t.kind != "dataset of a cube"]
    return whole or list(tables)


def _partition_keys(table: KnownTable) -> set[str]:
    return {key for part in table.source.parts for key in part.table.partition_keys}


def _about_table(table: KnownTable) -> str:
    return f"{table.kind}, {len(table.source.columns):,} columns"


def _about_column(column: KnownColumn) -> str:
    return f"{column.type}, {column.role}"
