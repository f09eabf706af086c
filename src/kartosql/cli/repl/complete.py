"""What may stand at the cursor: names, values, words, arguments of commands."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from kartosql.cli.config import profile_names
from kartosql.cli.options import ENGINES
from kartosql.cli.repl import registry
from kartosql.cli.repl.known import NOTHING, Known, KnownColumn, KnownTable
from kartosql.cli.repl.options import OPTIONS
from kartosql.settings import SETTINGS
from kartosql.sql.incremental_lexer import Lexeme, lexemes, statement_end
from kartosql.sql.parse import EXPORT_WORDS, SHOW_WORDS, WRITE_WORDS
from kartosql.sql.statement_policy import words
from kartosql.tables.names import quote_if_needed
from kartosql.text.sizes import counted

if TYPE_CHECKING:
    from kartosql.cli.repl.shell import Shell

STATEMENTS = (
    *("SELECT", "WITH", "FROM", "SHOW", "DESCRIBE", "EXPLAIN", "ADVISE", "VERIFY", "SET", "RESET", "SUMMARIZE"),
    *("ATTACH", "DETACH"),
    *WRITE_WORDS,
    *EXPORT_WORDS,
    "VALUES",
)
# What may follow a word; a word that is not here is followed by what its clause allows.
AFTER: dict[str, tuple[str, ...]] = {
    "SHOW": SHOW_WORDS,
    "EXPLAIN": ("SELECT", "ANALYZE", "COST", "WHY", "WITH", "FROM"),
    "COVERAGE": ("OF",),
    "ADVISE": ("SELECT", "WITH", "FROM"),
    "VERIFY": ("SELECT", "WITH", "FROM"),
    "CREATE": ("CUBE", "DATASET", "INDEX ON", "OR REPLACE"),
    "DROP": ("CUBE", "DATASET", "INDEX ON"),
    "ALTER": ("CUBE", "DATASET"),
    "COPY": ("CUBE", "DATASET"),
    "RECORD": ("SCHEMA FOR",),
    "EXPORT": ("SCHEMA HISTORY OF",),
    "HISTORY": ("FROM", "OF"),
    "METADATA": ("FROM",),
    "INSERT": ("INTO", "OVERWRITE"),
    "DELETE": ("FROM",),
    "GROUP": ("BY",),
    "ORDER": ("BY",),
    "PARTITION": ("BY",),
    "LEFT": ("JOIN", "OUTER JOIN"),
    "RIGHT": ("JOIN", "OUTER JOIN"),
    "FULL": ("JOIN", "OUTER JOIN"),
    "INNER": ("JOIN",),
    "CROSS": ("JOIN",),
    "OUTER": ("JOIN",),
    "IS": ("NULL", "NOT NULL", "DISTINCT FROM", "NOT DISTINCT FROM", "TRUE", "FALSE"),
    "NOT": ("IN", "LIKE", "BETWEEN", "EXISTS", "NULL"),
    "UNION": ("ALL", "SELECT"),
    "NULLS": ("FIRST", "LAST"),
}
EXPRESSION = (
    *("AND", "OR", "NOT", "IN", "IS", "BETWEEN", "LIKE", "ILIKE", "CASE", "WHEN", "THEN", "ELSE", "END", "CAST"),
    *("NULL", "TRUE", "FALSE", "EXISTS", "DISTINCT", "AS", "OVER", "INTERVAL", "DATE", "TIMESTAMP", "ASC", "DESC"),
)
CLAUSES = (
    *("FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "OFFSET", "QUALIFY", "JOIN", "LEFT JOIN", "ON"),
    *("INNER JOIN", "CROSS JOIN", "USING", "UNION", "UNION ALL", "INTERSECT", "EXCEPT", "WINDOW", "NULLS", "ALL"),
)
TABLES_AFTER = (
    *("FROM", "JOIN", "INTO", "OVERWRITE", "DESCRIBE", "DESC", "COMPACT", "CHECK", "CLEANUP", "SUMMARIZE", "TABLE"),
    *("OF",),
)

FUNCTIONS = sorted(
    words(
        """
    abs acos any_value arg_max arg_min array_agg array_length array_slice asin atan atan2 avg bit_and bit_count
    bit_or bool_and bool_or cardinality ceil century chr coalesce concat concat_ws contains corr cos count covar_pop
    covar_samp cume_dist current_date date_diff date_part date_trunc day dayname dayofmonth dayofweek dayofyear decade
    degrees dense_rank element_at ends_with entropy epoch epoch_ms even exp extract first first_value flatten floor
    format generate_series greatest group_concat hash histogram hour if ifnull instr isfinite isinf isnan isodow
    isoyear json_extract json_extract_string json_keys json_type kurtosis lag last last_day last_value lcase
    lead least left length levenshtein like_escape list list_aggregate list_concat list_contains list_distinct
    list_filter list_sort list_sum list_transform ln log log10 log2 lower lpad ltrim mad make_date make_timestamp
    map_keys map_values max md5 median microsecond min minute mode month monthname nth_value now ntile nullif parse_path
    percent_rank pi position pow power prefix printf product quantile_cont quantile_disc quarter radians random range
    rank regexp_extract regexp_full_match regexp_matches regexp_replace regexp_split_to_array repeat replace reverse
    right round row_number rpad rtrim second sha256 sign sin skewness split_part sqrt starts_with stddev stddev_pop
    stddev_samp strftime string_agg string_split strlen strptime struct_extract struct_pack substr substring suffix sum
    tan time_bucket timezone to_days to_hours to_json to_minutes to_months to_seconds to_timestamp to_years today
    translate trim trunc try_strptime typeof ucase unicode unnest upper uuid var_pop var_samp variance week weekday
    weekofyear year yearweek
    """
    )
)


_WORD = re.compile(r"\w+\Z")
_OPEN_NAME = re.compile(r'"[^"]*\Z')
_CLAUSES = words("SELECT FROM WHERE GROUP HAVING ORDER QUALIFY LIMIT ON USING JOIN SET VALUES")
_NO_ALIAS = words("ON USING WHERE GROUP ORDER JOIN LEFT RIGHT FULL INNER CROSS HAVING LIMIT")


@dataclass(frozen=True)
class Ref:
    """A table in FROM or JOIN: its name as it is written, its alias, and the parentheses it stands in."""

    name: str
    alias: str
    group: int
    at: int


@dataclass(frozen=True)
class Context:
    """The statement around the cursor. ``start`` is where what is being typed begins, ``typed`` is that."""

    statement: str
    first: str
    before: tuple[Lexeme, ...]
    after: tuple[Lexeme, ...]
    start: int
    typed: str
    in_string: bool
    in_comment: bool
    closed: bool  # whether the string that the cursor is in ends behind it
    refs: tuple[Ref, ...]
    scope: tuple[Ref, ...]  # those that the cursor sees, the nearest first
    ctes: tuple[str, ...] = field(default=())

    def back(self, count: int = 1) -> Lexeme | None:
        """Return the piece so many before the cursor."""
        return self.before[-count] if len(self.before) >= count else None

    def word(self, count: int = 1) -> str:
        """Return its text in upper case, empty for strings and where there is none."""
        found = self.back(count)
        return found.word if found is not None else ""

    @property
    def clause(self) -> str:
        """The clause that the cursor is in, as its first word; empty outside of them."""
        depth = 0
        for lexeme in reversed(self.before):
            depth += (lexeme.text == ")") - (lexeme.text == "(")
            if depth < 0:
                depth = 0  # the parentheses around the cursor belong to their clause
            elif depth == 0 and lexeme.kind in ("keyword", "name") and lexeme.word in _CLAUSES:
                return lexeme.word
        return ""


def context(text: str, cursor: int) -> Context:
    """Return the context of the cursor in a text of one statement or several."""
    begin = 0
    while (end := statement_end(text[:cursor], begin)) is not None:
        begin = end
    end = statement_end(text, begin)
    statement = text[begin : len(text) if end is None else end]
    at = cursor - begin
    pieces = lexemes(statement)
    start, in_string, in_comment = _typed(statement, at, pieces)
    before = tuple(p for p in pieces if p.end <= start and p.kind != "comment")
    after = tuple(p for p in pieces if p.start >= at and p.kind != "comment")
    groups = _groups(pieces)
    refs = tuple(_refs([p for p in pieces if p.kind != "comment"], groups))
    first = next((p.word for p in pieces if p.kind != "comment"), "")
    return Context(
        statement,
        first if before else "",
        before,
        after,
        begin + start,
        statement[start:at],
        in_string,
        in_comment,
        in_string and any(p.start == start and p.end > at and not _is_open(p) for p in pieces),
        refs,
        tuple(_scope(refs, _group_at(pieces, groups, start))),
        tuple(_ctes(pieces)),
    )


def _typed(statement: str, at: int, pieces: Sequence[Lexeme]) -> tuple[int, bool, bool]:
    """Return where what is typed begins, and whether it is a string or a comment."""
    for piece in pieces:
        inside = piece.start < at < piece.end or (at == piece.end and at > piece.start and _is_open(piece))
        if inside and piece.kind in ("string", "comment", "quoted"):
            return piece.start, piece.kind == "string", piece.kind == "comment"
        if at == piece.end and piece.kind == "comment" and piece.text.startswith("--"):
            return piece.start, False, True
    for pattern in (_WORD, _OPEN_NAME):
        match = pattern.search(statement, 0, at)
        if match:
            return match.start(), False, False
    return at, False, False


def _is_open(piece: Lexeme) -> bool:
    mark = piece.text[:1]
    if piece.kind == "comment":
        return piece.text.startswith("/*") and not piece.text.endswith("*/")
    return piece.kind in ("string", "quoted") and (len(piece.text) < 2 or not piece.text.endswith(mark))


def _groups(pieces: Sequence[Lexeme]) -> list[tuple[int, ...]]:
    """Return for each piece the parentheses around it, by the positions of their beginnings."""
    found: list[tuple[int, ...]] = []
    chain: tuple[int, ...] = (-1,)
    for piece in pieces:
        if piece.text == ")" and len(chain) > 1:
            chain = chain[:-1]
        found.append(chain)
        if piece.text == "(":
            chain = (*chain, piece.start)
    return found


def _group_at(pieces: Sequence[Lexeme], groups: Sequence[tuple[int, ...]], at: int) -> tuple[int, ...]:
    chain: tuple[int, ...] = (-1,)
    for piece, group in zip(pieces, groups, strict=True):
        if piece.end > at:
            break
        chain = (*group, piece.start) if piece.text == "(" else group
    return chain


def _scope(refs: Sequence[Ref], chain: tuple[int, ...]) -> list[Ref]:
    return [ref for group in reversed(chain) for ref in refs if ref.group == group]


def _refs(pieces: Sequence[Lexeme], groups: Sequence[tuple[int, ...]]) -> list[Ref]:
    """Return the tables behind FROM, JOIN and the commas between them."""
    place = {p.start: group[-1] for p, group in zip(pieces, _groups(pieces), strict=True)}
    found: list[Ref] = []
    lists: set[int] = set()  # groups that are in a FROM
    for i, piece in enumerate(pieces):
        group = place[piece.start]
        word = piece.word
        if word in ("FROM", "JOIN", "INTO"):
            lists.add(group)
        elif word in _CLAUSES and word not in ("ON", "USING"):
            lists.discard(group)
        elif piece.text != "," or group not in lists:
            continue
        if word in ("FROM", "JOIN", "INTO") or piece.text == ",":
            ref = _ref(pieces, i + 1, group)
            if ref is not None:
                found.append(ref)
    return found


def _ref(pieces: Sequence[Lexeme], i: int, group: int) -> Ref | None:
    name, at = "", pieces[i].start if i < len(pieces) else 0
    while i < len(pieces) and (pieces[i].kind in ("name", "quoted") or (not name and pieces[i].kind == "keyword")):
        if not name and pieces[i].word in (*_CLAUSES, *_NO_ALIAS, "LATERAL"):
            return None
        name += pieces[i].text
        i += 1
        if i >= len(pieces) or pieces[i].text != ".":
            break
        name += "."
        i += 1
    if not name:
        return None
    if i < len(pieces) and pieces[i].word == "AS":
        i += 1
    alias = ""
    if i < len(pieces) and pieces[i].kind in ("name", "quoted") and pieces[i].word not in _NO_ALIAS:
        alias = pieces[i].text
    return Ref(name, alias or name, group, at)


def _ctes(pieces: Sequence[Lexeme]) -> list[str]:
    """Return the names of WITH."""
    if not any(p.word == "WITH" for p in pieces):
        return []
    triples = zip(pieces, pieces[1:], pieces[2:], strict=False)
    return [a.text for a, b, c in triples if a.kind in ("name", "quoted") and b.word == "AS" and c.text == "("]


MOST = 100
MAX_JOINS = 5
_COMPARISONS = ("=", "<>", "!=", "<", ">", "<=", ">=", "==")


@dataclass(frozen=True)
class Candidate:
    """A completion: ``text`` replaces the characters from ``start`` to the cursor.

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
            yield from self._words(STATEMENTS, "statement")
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
        elif last in TABLES_AFTER or (last == "," and where.clause == "FROM"):
            yield from self._tables()
            if where.first == "DESCRIBE":
                yield from self._words(("SELECT",), "keyword")
        elif self._names_table():
            yield from self._tables()
        elif last in AFTER:
            yield from self._words(AFTER[last], "keyword")
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
            for name in ENGINES:
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
        if where.word(3) in TABLES_AFTER or (where.word(3) == "," and where.clause == "FROM"):
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
            for name in FUNCTIONS:
                if name.startswith(self._name):
                    yield Candidate(f"{name}(", where.start, "function")
        asked = bool(where.typed)
        for word in (*CLAUSES, *EXPRESSION):
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
            total = f"{files:,} of {counted(found.total, 'file')}"
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


def of_command(text: str, shell: Shell, known: Known) -> Iterator[Candidate]:
    """Yield the completions at the end of the line of a command."""
    start = len(text) - len(text.lstrip())
    word, space, rest = text[start:].partition(" ")
    if not space:
        for name in registry.words():
            if name.startswith(word.lower() if word.startswith(".") else word):
                found = registry.find(name)
                yield Candidate(
                    f"{name} " if found.usage else name, start, f"{found.usage}  {found.about}".strip(), shown=name
                )
        return
    try:
        takes = registry.find(word).takes
    except Exception:  # noqa: BLE001
        return
    done = rest.split(" ")[:-1]
    number = len([w for w in done if w])
    kind = takes[min(number, len(takes) - 1)] if takes else ""
    if "sql" in takes and number >= takes.index("sql"):
        yield from _of_sql(text, start, takes, word, rest, shell, known)
        return
    if not takes or (number >= len(takes) and takes[-1] not in ("column", "table")):
        return
    typed = rest.rpartition(" ")[2]
    yield from _argument(kind, typed, len(text) - len(typed), done, shell, known)


def _of_sql(
    text: str, start: int, takes: tuple[str, ...], word: str, rest: str, shell: Shell, known: Known
) -> Iterator[Candidate]:

    at = start + len(word) + 1
    for _ in range(takes.index("sql")):
        at = text.find(" ", at) + 1
    for found in candidates(text[at:], len(text) - at, shell, known):
        yield Candidate(found.text, found.start + at, found.about, found.suffix, found.shown, found.unasked)


def _argument(kind: str, typed: str, start: int, done: list[str], shell: Shell, known: Known) -> Iterator[Candidate]:
    if kind in ("table", "cube"):
        for table in known.tables:
            if (kind == "table" or table.kind == "cube") and table.name.lower().startswith(typed.lower()):
                yield Candidate(table.name, start, table.kind)
    elif kind == "column":
        found = known.table(next((w for w in done if w), ""))
        for column in found.columns if found is not None else ():
            if column.name.lower().startswith(typed.lower()):
                yield Candidate(column.name, start, f"{column.type}, {column.role}")
    elif kind in ("file", "folder", "store"):
        yield from _files(typed, start, folders_only=kind != "file")
        if kind == "store":
            yield from _named(profile_names(), typed, start, "profile")
    elif kind == "option":
        yield from _named(OPTIONS, typed, start, "option")
        yield from _named(SETTINGS, typed, start, "setting")
        yield from _named(["save"], typed, start, "write the config file")
    elif kind == "value":
        option = OPTIONS.get(done[0] if done else "")
        yield from _named(option.choices if option is not None else (), typed, start, "")
        if done[:1] == ["engine"]:
            yield from _named(ENGINES, typed, start, "engine")
    else:
        yield from _named(_words(kind, shell), typed, start, "")


def _words(kind: str, shell: Shell) -> Iterable[str]:
    """Return the words of an argument that has only some."""
    if kind == "format":
        return OPTIONS["mode"].choices
    if kind in ("theme", "keys"):
        return OPTIONS[kind].choices
    if kind == "engine":
        return ENGINES
    if kind == "attach type":
        from kartosql.sql.attach_parse import TYPES

        return TYPES
    if kind == "onoff":
        return ("on", "off")
    if kind == "command":
        return registry.words()
    if kind == "saved":
        from kartosql.cli.repl.commands.statements import saved

        return saved()
    if kind == "tour":
        from kartosql.cli.repl.commands.tour import examples

        return ["list", *(str(n) for n in range(1, len(examples()) + 1))]
    if kind == "data file":
        report = shell.last.report if shell.last is not None else None
        scans = report.scan.occurrences if report is not None else ()
        return (key for scan in scans for part in scan.parts for key in part.part.table.files)
    if kind == "result column":
        return list(shell.last.schema.names) if shell.last is not None and shell.last.schema is not None else ()
    return ()


def _named(names: Iterable[str], typed: str, start: int, about: str) -> Iterator[Candidate]:
    for name in names:
        if name.lower().startswith(typed.lower()):
            text = name if name.isprintable() and " " not in name else shlex.quote(name)
            yield Candidate(text, start, about, shown=name)


def _files(typed: str, start: int, *, folders_only: bool) -> Iterator[Candidate]:
    """Yield the local files that begin with what is typed; hidden ones only if that begins with a dot."""
    if "://" in typed:
        return
    folder, _, beginning = typed.rpartition("/")
    place = os.path.expanduser(folder + "/") if "/" in typed else "."
    try:
        with os.scandir(place) as entries:
            found = sorted((e.name, e.is_dir()) for e, _ in zip(entries, range(10 * MOST), strict=False))
    except (OSError, ValueError):
        return
    for name, is_folder in found:
        if (
            not name.startswith(beginning)
            or (name.startswith(".") and not beginning)
            or (folders_only and not is_folder)
        ):
            continue
        path = f"{folder}/{name}" if "/" in typed else name
        text = path if path.isprintable() and " " not in path else shlex.quote(path)
        yield Candidate(text + ("/" if is_folder else ""), start, "folder" if is_folder else "file", shown=name)
