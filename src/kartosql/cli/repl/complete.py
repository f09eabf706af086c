"""Completions at the cursor: names, values, words, arguments of commands."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, islice, repeat, takewhile
from typing import TYPE_CHECKING, Any

from kartosql.cli.config import profile_names
from kartosql.cli.repl import registry
from kartosql.cli.repl.commands import examples, saved
from kartosql.cli.repl.forms import following
from kartosql.cli.repl.known import EMPTY, NOTHING, Known, KnownColumn, KnownTable, Subquery
from kartosql.cli.repl.options import OPTIONS
from kartosql.errors import UsageError
from kartosql.settings import ENGINES, SETTINGS
from kartosql.sql.attach_parse import TYPES
from kartosql.sql.cursor import SHOW_WORDS, WRITE_WORDS
from kartosql.sql.incremental_lexer import Lexeme, lexemes, statement_end
from kartosql.sql.statement_policy import words
from kartosql.tables.names import quote_if_needed
from kartosql.text.report import counted
from kartosql.text.types import SIGNED

if TYPE_CHECKING:
    from kartosql.cli.repl.shell import Shell

TYPE_NAMES = (*SIGNED, "DOUBLE", "DECIMAL(", "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP", "TIME", "INTERVAL", "BLOB")
STATEMENTS = (
    *("SELECT", "WITH", "FROM", "SHOW", "DESCRIBE", "EXPLAIN", "ADVISE", "VERIFY", "SET", "RESET", "SUMMARIZE"),
    *("ATTACH", "DETACH", *WRITE_WORDS, "VALUES"),
)
# What may follow a word; a word that is not here is followed by what its clause allows.
AFTER: dict[str, tuple[str, ...]] = {
    "SHOW": SHOW_WORDS,
    "EXPLAIN": ("SELECT", "ANALYZE", "COST", "WHY", "WITH", "FROM"),
    "COVERAGE": ("OF",),
    **dict.fromkeys(("ADVISE", "VERIFY", "ANALYZE"), ("SELECT", "WITH", "FROM")),
    "AT": ("(VERSION => ", "(TIMESTAMP => '", "TIME ZONE"),
    "::": TYPE_NAMES,
    "CREATE": ("CUBE", "DATASET", "VIEW", "INDEX ON", "SKIPPING INDEX ON", "OR REPLACE"),
    "DROP": ("CUBE", "DATASET", "VIEW", "INDEX ON", "SKIPPING INDEX ON"),
    "REFRESH": ("SKIPPING INDEX ON",),
    **dict.fromkeys(("ALTER", "COPY"), ("CUBE", "DATASET")),
    "RECORD": ("SCHEMA FOR",),
    "EXPORT": ("SCHEMA HISTORY OF",),
    "HISTORY": ("FROM", "OF"),
    **dict.fromkeys(("METADATA", "DELETE"), ("FROM",)),
    "INSERT": ("INTO", "OVERWRITE"),
    **dict.fromkeys(("GROUP", "ORDER", "PARTITION"), ("BY",)),
    **dict.fromkeys(("LEFT", "RIGHT", "FULL"), ("JOIN", "OUTER JOIN")),
    **dict.fromkeys(("INNER", "CROSS", "OUTER"), ("JOIN",)),
    "IS": ("NULL", "NOT NULL", "DISTINCT FROM", "NOT DISTINCT FROM", "TRUE", "FALSE"),
    "NOT": ("IN", "LIKE", "BETWEEN", "EXISTS", "NULL"),
    "UNION": ("ALL", "SELECT"),
    "NULLS": ("FIRST", "LAST"),
}
KEYWORDS = (
    *("FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "OFFSET", "QUALIFY", "JOIN", "LEFT JOIN", "ON"),
    *("INNER JOIN", "CROSS JOIN", "USING", "UNION", "UNION ALL", "INTERSECT", "EXCEPT", "WINDOW", "NULLS", "ALL"),
    *("AND", "OR", "NOT", "IN", "IS", "BETWEEN", "LIKE", "ILIKE", "CASE", "WHEN", "THEN", "ELSE", "END", "CAST"),
    *("NULL", "TRUE", "FALSE", "EXISTS", "DISTINCT", "AS", "OVER", "INTERVAL", "DATE", "TIMESTAMP", "ASC", "DESC"),
    *("EXCLUDE", "AT"),
)
TABLES_AFTER = words("FROM JOIN INTO OVERWRITE DESCRIBE DESC COMPACT CHECK CLEANUP RESTORE PUBLISH SUMMARIZE TABLE OF")

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
_WITH_PATHS = ("ATTACH", "COPY", "EXPORT", "PUBLISH")
_LISTED = re.compile(r"(SKIPPING )?(?:INDEX ON|COVERAGE (?:\(.*\) )?OF) (\S+(?: \. \S+)?) (?:\(|BY) ?(.*)")
_WINDOW: dict[str, tuple[str, ...]] = {
    "(": ("PARTITION BY", "ORDER BY", "ROWS BETWEEN", "RANGE BETWEEN"),
    **dict.fromkeys(("ROWS", "RANGE", "GROUPS"), ("BETWEEN", "UNBOUNDED PRECEDING", "CURRENT ROW")),
    "BETWEEN": ("UNBOUNDED PRECEDING", "CURRENT ROW"),
    "AND": ("CURRENT ROW", "UNBOUNDED FOLLOWING"),
    "UNBOUNDED": ("PRECEDING", "FOLLOWING"),
    "CURRENT": ("ROW",),
}
_SORTING = ("ORDER", "GROUP", "HAVING", "QUALIFY")  # clauses that see the outputs of their SELECT
_CLAUSES = words("SELECT FROM WHERE GROUP HAVING ORDER QUALIFY LIMIT ON USING JOIN SET VALUES")
_ENDS = words("UNION INTERSECT EXCEPT", " ".join(_CLAUSES))  # of the outputs of a SELECT
_NO_ALIAS = words(
    "ON USING WHERE GROUP ORDER JOIN LEFT RIGHT FULL INNER CROSS HAVING LIMIT SET VALUES DATASETS PARTITION"
)
_TARGETS = (("UPDATE", "UPDATE"), ("MERGE", "USING"))  # first words of statements, and theirs in front of a table


def _first(piece: Lexeme) -> str:
    """Return the first of the words of a piece such as ``ORDER BY``."""
    return piece.word.partition(" ")[0]


@dataclass(frozen=True)
class _Ref:
    """A table in FROM or JOIN: its name as it is written, its alias, the parentheses around it, or those it is."""

    name: str
    alias: str
    group: int
    at: int
    inner: int | None = None
    names: tuple[str, ...] = ()  # of the columns, where they stand behind the alias


@dataclass(frozen=True)
class _Context:
    """The statement around the cursor. ``start`` is where what is being typed begins, ``typed`` is that."""

    first: str
    before: Sequence[Lexeme]
    after: Sequence[Lexeme]
    start: int
    typed: str
    inside: str  # "string" or "comment" if the cursor is in one
    closed: bool  # whether the string that the cursor is in ends behind it
    refs: Sequence[_Ref]
    scope: Sequence[_Ref]  # those that the cursor sees, the nearest first
    ctes: Mapping[str, tuple[int, tuple[str, ...]]]  # where the parentheses of each begin, and names of its columns
    pieces: Sequence[tuple[Lexeme, int]]  # with the parentheses around each
    group: int  # the parentheses around the cursor

    def back(self, count: int = 1) -> Lexeme | None:
        return self.before[-count] if len(self.before) >= count else None

    def word(self, count: int = 1) -> str:
        return self.before[-count].word if len(self.before) >= count else ""

    def is_before_table(self, count: int = 1) -> bool:
        """Return whether a table stands behind the piece that is so many back."""
        word = self.word(count)
        is_in_list = word == "," and self.clause == "FROM"
        return word in TABLES_AFTER or is_in_list or (self.first, word) in _TARGETS

    @property
    def around(self) -> list[str]:
        """The last three words in front of the parentheses that the cursor is in."""
        at = next((at for at, piece in enumerate(self.before) if piece.start == self.group), 0)
        return [piece.word for piece in self.before[max(0, at - 3) : at]]

    @property
    def clause(self) -> str:
        """The clause that the cursor is in, as its first word; empty outside of them."""
        depth = 0
        for lexeme in reversed(self.before):
            depth += (lexeme.text == ")") - (lexeme.text == "(")
            if depth < 0:
                depth = 0  # the parentheses around the cursor belong to their clause
            elif depth == 0 and lexeme.kind in ("keyword", "name") and _first(lexeme) in _CLAUSES:
                return _first(lexeme)
        return ""


def _context(text: str, cursor: int) -> _Context:
    begin = 0
    while (end := statement_end(text[:cursor], begin)) is not None:
        begin = end
    statement = text[begin : statement_end(text, begin)]
    at = cursor - begin
    pieces = lexemes(statement)
    start, inside = _typed(statement, at, pieces)
    code = [p for p in pieces if p.kind != "comment"]
    before = [p for p in code if p.end <= start]
    groups, chain = _groups(code, start)
    refs = list(_refs(code, groups))
    return _Context(
        code[0].word if before else "",
        before,
        [p for p in code if p.start >= at],
        begin + start,
        statement[start:at],
        inside,
        inside == "string" and any(p.start == start and p.end > at and p.closed for p in pieces),
        refs,
        [ref for group in reversed(chain) for ref in refs if ref.group == group],
        dict(_ctes(code)) if any(p.word == "WITH" for p in code) else {},
        [(piece, around[-1]) for piece, around in zip(code, groups, strict=True)],
        chain[-1],
    )


def _typed(statement: str, at: int, pieces: Sequence[Lexeme]) -> tuple[int, str]:
    """Return where what is typed begins, and whether it is a string or a comment."""
    for piece in pieces:
        inside = piece.start < at < piece.end or (at == piece.end and at > piece.start and not piece.closed)
        if inside and piece.kind in ("string", "comment", "quoted"):
            return piece.start, "" if piece.kind == "quoted" else piece.kind
        if at == piece.end and piece.kind == "comment" and piece.text.startswith("--"):
            return piece.start, "comment"
    match = _WORD.search(statement, 0, at) or _OPEN_NAME.search(statement, 0, at)
    return match.start() if match else at, ""


def _groups(pieces: Sequence[Lexeme], at: int) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Return for each piece, and for a place, the parentheses around it, by the positions of their beginnings."""
    found: list[tuple[int, ...]] = []
    here: tuple[int, ...] = (-1,)
    chain = here
    for piece in pieces:
        if piece.text == ")" and len(chain) > 1:
            chain = chain[:-1]
        found.append(chain)
        if piece.text == "(":
            chain = (*chain, piece.start)
        if piece.end <= at:
            here = chain
    return found, here


def _ctes(pieces: Sequence[Lexeme]) -> Iterator[tuple[str, tuple[int, tuple[str, ...]]]]:
    """Yield the names of WITH: where the parentheses of each begin, and the names of columns that it has itself."""
    for i in range(1, len(pieces) - 1):
        if (pieces[i].word, pieces[i + 1].text) == ("AS", "("):
            begin = (
                next((j for j in range(i - 1, 0, -1) if pieces[j].text == "("), i) if pieces[i - 1].text == ")" else i
            )
            yield pieces[begin - 1].text, (pieces[i + 1].start, _names_in(pieces, begin))


def _names_in(pieces: Sequence[Lexeme], i: int) -> tuple[str, ...]:
    """Return the names in the parentheses that begin at a piece, none if there are none."""
    is_list = i < len(pieces) and pieces[i].text == "("
    return (
        tuple(p.text for p in takewhile(lambda p: p.text != ")", pieces[i + 1 :]) if p.text != ",") if is_list else ()
    )


def _refs(pieces: Sequence[Lexeme], groups: Sequence[tuple[int, ...]]) -> Iterator[_Ref]:
    """Yield the tables behind FROM, JOIN and the commas between them, and those that a statement changes."""
    lists: set[int] = set()  # groups that are in a FROM
    for i, piece in enumerate(pieces):
        word, group = _first(piece), groups[i][-1]
        if word in ("FROM", "JOIN", "INTO", "OVERWRITE") or (pieces[0].word, word) in _TARGETS:
            lists.add(group)
        elif word in _CLAUSES and word not in ("ON", "USING"):
            lists.discard(group)
            continue
        elif piece.text != "," or group not in lists:
            continue
        ref = _derived(pieces, groups, i + 1) or _ref(pieces, i + 1, group)
        if ref is not None:
            yield ref


def _derived(pieces: Sequence[Lexeme], groups: Sequence[tuple[int, ...]], i: int) -> _Ref | None:
    """Return the subquery that begins at a piece."""
    if i >= len(pieces) or pieces[i].text != "(":
        return None
    ends = (j for j in range(i + 1, len(pieces)) if pieces[j].text == ")" and groups[j] == groups[i])
    end = next(ends, len(pieces))
    alias, behind = _alias(pieces, end + 1), end + 2 + (end + 1 < len(pieces) and pieces[end + 1].word == "AS")
    return _Ref("", alias, groups[i][-1], pieces[i].start, pieces[i].start, _names_in(pieces, behind) if alias else ())


def _ref(pieces: Sequence[Lexeme], i: int, group: int) -> _Ref | None:
    name, at = "", pieces[i].start if i < len(pieces) else 0
    while i < len(pieces) and pieces[i].kind in ("name", "quoted", "keyword"):
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
    return _Ref(name, _alias(pieces, i) or name, group, at)


def _alias(pieces: Sequence[Lexeme], i: int) -> str:
    if i < len(pieces) and pieces[i].word == "AS":
        i += 1
    is_one = i < len(pieces) and pieces[i].kind in ("name", "quoted", "function") and pieces[i].word not in _NO_ALIAS
    return pieces[i].text if is_one else ""


MOST = 100
OUTPUT = "output"
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
    if text[:cursor].lstrip().startswith((".", "\\")):
        return list(islice(_of_command(text[:cursor], shell, known or NOTHING), MOST))
    found = _Completion(_context(text, cursor), shell, known or NOTHING).all()
    seen: dict[tuple[str, str], Candidate] = {}
    for candidate in found:
        seen.setdefault((candidate.text, candidate.suffix), candidate)
        if len(seen) == MOST:
            break
    return list(seen.values())


class _Completion:
    """The completions at one place of one statement."""

    def __init__(self, where: _Context, shell: Shell, known: Known) -> None:
        self._where = where
        self._shell = shell
        self._known = known
        self._written = where.typed.lstrip('"')
        self._name = self._written.lower()  # the beginning of the name that is typed
        self._is_typed = bool(where.typed)
        self._subqueries: dict[int, Subquery | None] = {}

    def all(self) -> Iterator[Candidate]:
        where = self._where
        if where.inside:
            if where.inside == "string" and where.first in _WITH_PATHS and where.word() in ("ATTACH", "TO"):
                yield from _files(where.typed[1:], where.start, folders_only=False, quoted=_in_string)
            elif where.inside == "string":
                yield from self._values()
        elif not where.first and not where.before:
            yield from self._words(STATEMENTS, "statement")
        elif where.word() == ".":
            yield from self._behind_dot()
        elif special := list(self._special()):
            yield from special
        else:
            yield from self._values()
            yield from self._columns()
            if self._is_typed and not where.typed.startswith('"'):
                yield from self._beginning((f"{name}(" for name in FUNCTIONS), "function")
            yield from self._words((word for word in KEYWORDS if word.lower() != self._name), "keyword")

    def _candidate(self, text: str, about: str, **more: Any) -> Candidate:
        return Candidate(text, self._where.start, about, **more)

    def _column(self, column: KnownColumn) -> Candidate:
        return self._candidate(quote_if_needed(column.name), column.about)

    def _beginning(self, names: Iterable[str], about: str) -> Iterator[Candidate]:
        return (self._candidate(name, about) for name in names if name.lower().startswith(self._name))

    def _words(self, found: Iterable[str], about: str) -> Iterator[Candidate]:
        is_lower = self._is_typed and self._where.typed == self._where.typed.lower()
        for word in found:
            if word.lower().startswith(self._name):
                yield self._candidate(word.lower() if is_lower else word, about, unasked=self._is_typed)

    # -- statements other than queries ---------------------------------------------------------------

    def _special(self) -> Iterator[Candidate]:
        where, last, around = self._where, self._where.word(), self._where.around
        is_window = around[-1:] == ["OVER"] or (around[:1] == ["WINDOW"] and around[2:] == ["AS"])
        if where.first in ("SET", "RESET"):
            yield from self._settings()
        elif where.is_before_table():
            yield from self._tables()
            if where.first == "DESCRIBE":
                yield from self._words(("SELECT",), "keyword")
        elif (where.first in ("CREATE", "DROP") and last == "ON" and where.word(2) == "INDEX") or (
            (where.first in ("DROP", "ALTER", "COPY") and last in ("CUBE", "DATASET", "VIEW"))
            or (where.first == "RECORD" and last == "FOR")
        ):
            yield from self._tables()
        elif where.first == "ATTACH" and last == "TYPE":
            yield from self._beginning(TYPES, "type")
        elif is_window and last in _WINDOW:
            yield from self._words(_WINDOW[last], "keyword")
        elif found := list(following(where.before)):
            if "" in found and where.refs:
                yield from map(self._column, self._matching(self._table(where.refs[0])))
            yield from self._words(filter(None, found), "keyword")
        elif last == "AS" and around[-1:] in (["CAST"], ["TRY_CAST"]):
            yield from self._words(TYPE_NAMES, "type")
        elif last == "AS" and where.first == "CREATE" and where.group == -1:
            yield from self._words(AFTER["ADVISE"], "keyword")
        elif match := _LISTED.search(" ".join(p.text for p in where.before).upper()):
            if match[3].count("(") - match[3].count(")") == (match[1] is not None):
                yield from map(self._column, self._matching(self._known.table(match[2].replace(" ", ""))))
        elif last in AFTER:
            yield from self._words(AFTER[last], "keyword")
        elif last == "ON" and where.clause == "ON" and len(where.scope) > 1:
            yield from self._joins()
            yield from self._columns()
        elif last == "(" and where.word(2) == ("ON" if where.first == "MERGE" else "USING") and len(where.scope) > 1:
            yield from self._shared()

    def _settings(self) -> Iterator[Candidate]:
        where = self._where
        if len(where.before) == 1:
            for name, setting in SETTINGS.items():
                if setting.in_sql and name.lower().startswith(self._name):
                    yield self._candidate(f"{name} = " if where.first == "SET" else name, setting.about, shown=name)
        elif where.first == "SET" and where.word() in ("=", "TO") and where.word(2) == "ENGINE":
            for name in ENGINES:
                if name.startswith(self._name):
                    yield self._candidate(f"'{name}'", "engine")
        elif where.first == "SET" and len(where.before) == 2 and not self._is_typed:
            yield self._candidate("= ", "")

    # -- tables --------------------------------------------------------------------------------------

    def _tables(self) -> Iterator[Candidate]:
        yield from self._beginning(self._where.ctes, "WITH")
        for names in (self._known.table_names.beginning, self._known.table_names.holding):
            for name in names(self._written, MOST):
                yield self._candidate(name, self._known.by_name[name.lower()].about)
            if not self._is_typed:
                return

    def _behind_dot(self) -> Iterator[Candidate]:
        """Yield columns behind the alias of a table, and datasets behind the name of a cube."""
        where = self._where
        piece = where.back(2)
        if piece is None or piece.kind not in ("name", "quoted", "keyword"):
            return
        name = piece.text.strip('"').lower()
        if where.is_before_table(3):
            for table in self._known.tables:
                first, dot, rest = table.name.rpartition(".")
                if dot and first.lower().strip('"') == name and rest.lower().lstrip('"').startswith(self._name):
                    yield self._candidate(rest, table.about)
            return
        ref = next(self._called(name), None)
        yield from map(self._column, self._matching(None if ref is None else self._table(ref)))

    def _called(self, name: str) -> Iterator[_Ref]:
        """Yield the tables that a name before a dot may mean, the nearest first; all without one."""
        for ref in self._where.scope or self._where.refs:
            if not name or name in (ref.alias.lower().strip('"'), ref.name.lower()):
                yield ref

    # -- columns -------------------------------------------------------------------------------------

    def _columns(self) -> Iterator[Candidate]:
        where = self._where
        refs = [(ref, self._table(ref)) for ref in where.scope]
        known = [(ref, table) for ref, table in refs if table is not None]
        if where.clause in _SORTING:
            for column in self._matching(self._subquery(where.group)):
                if column.role == OUTPUT:
                    yield self._candidate(quote_if_needed(column.name), OUTPUT, unasked=self._is_typed)
        if not refs and not where.refs and where.clause == "SELECT" and self._is_typed:
            yield from self._columns_before_from()
        for ref, table in known:
            for column in self._matching(table):
                owners = sum(column.name.lower() in t.by_name for _, t in known) if len(known) > 1 else 1
                name = quote_if_needed(column.name)
                text = f"{ref.alias}.{name}" if owners > 1 and ref.alias else name
                yield self._candidate(text, column.about, unasked=self._is_typed)
        for ref, _ in known if len(known) > 1 and self._is_typed else ():
            if ref.alias and ref.alias.lower().startswith(self._name):
                yield self._candidate(f"{ref.alias}.", "table")

    def _table(self, ref: _Ref) -> KnownTable | None:
        """Return the table that is meant: one of the store, of WITH, or a subquery."""
        inner, names = self._where.ctes.get(ref.name, (None, ())) if ref.inner is None else (ref.inner, ref.names)
        return self._known.table(ref.name) if inner is None else self._subquery(inner, names)

    def _subquery(self, group: int, names: Iterable[str] = ()) -> Subquery | None:
        """Return the outputs of the SELECT in parentheses, by ``names`` if there are some; None inside of itself."""
        if group not in self._subqueries:
            self._subqueries[group] = None
            named = tuple(KnownColumn(_plain(name), "", OUTPUT, EMPTY) for name in names)
            self._subqueries[group] = Subquery("", "subquery", EMPTY, named or tuple(self._outputs(group)))
        return self._subqueries[group]

    def _outputs(self, group: int) -> Iterator[KnownColumn]:
        pieces = iter([piece for piece, around in self._where.pieces if around == group])
        tables = [(ref.alias, table) for ref in self._where.refs if ref.group == group and (table := self._table(ref))]
        item: list[Lexeme] = []
        for piece in [*dropwhile(lambda piece: piece.word != "SELECT", pieces), None][1:]:
            if piece is not None and piece.text != "," and _first(piece) not in _ENDS:
                item.append(piece)
                continue
            last, before = (item[-1] if item else None), (item[-2] if len(item) > 1 else None)
            if last is not None and last.text == "*":
                owner = item[-3].text if before is not None and before.text == "." and len(item) > 2 else ""
                for alias, table in tables:
                    yield from table.columns if owner in ("", alias) else ()
            elif last is not None and last.kind in ("name", "quoted"):
                name, is_column = _plain(last.text), before is None or before.text == "."
                known = (t.by_name[name.lower()] for _, t in tables if is_column and name.lower() in t.by_name)
                if is_column or (before is not None and (before.text == ")" or before.kind != "symbol")):
                    yield next(known, KnownColumn(name, "", OUTPUT, EMPTY))
            if piece is not None and piece.text != ",":
                return
            item = []

    def _matching(self, table: KnownTable | None) -> Iterator[KnownColumn]:
        """Yield the columns of a table that begin with what is typed, then those that have it inside."""
        columns = table.by_name if table is not None else {}
        inside = []
        for lower, column in columns.items():
            if lower.startswith(self._name):
                yield column
            elif self._name in lower:
                inside.append(column)
        yield from inside

    def _columns_before_from(self) -> Iterator[Candidate]:
        """Yield columns of all tables; to choose one adds its FROM."""
        # What follows may be the rest of the list.
        has_from = any(p.word == "FROM" for p in self._where.after)
        for name in self._known.column_names.beginning(self._written, MOST):
            tables = self._known.column_tables[name]
            # Datasets of cubes are offered only where no cube has it.
            for table in [t for t in tables if t.kind != "dataset of a cube"] or tables:
                about = f"{table.name}: {table.by_name[name.lower()].about}"
                suffix = "" if has_from else f" FROM {table.name}"
                yield self._candidate(quote_if_needed(name), about, suffix=suffix)

    # -- joins ---------------------------------------------------------------------------------------

    def _pairs(self) -> Iterator[tuple[_Ref, _Ref, list[str]]]:
        """Yield the tables before the one that is joined, and the dimensions that both have, as they are written."""
        refs = [r for r in self._where.scope if r.at < self._where.start]
        new = max(refs, key=lambda ref: ref.at, default=None)
        table = self._table(new) if new is not None else None
        for ref in refs:
            other = self._table(ref)
            if new is not None and ref is not new and table is not None and other is not None:
                shared = [c.name for c in other.columns if c.name.lower() in table.by_name]
                keys = table.keys | other.keys
                chosen = [c for c in shared if c in keys] or shared[:MAX_JOINS]
                yield ref, new, [quote_if_needed(c) for c in chosen]

    def _joins(self) -> Iterator[Candidate]:
        for ref, new, shared in self._pairs() if not self._is_typed else ():
            conditions = [f"{ref.alias}.{c} = {new.alias}.{c}" for c in shared]
            if len(conditions) > 1:
                yield self._candidate(" AND ".join(conditions), "shared dimensions")
            for condition in conditions[: 2 * MAX_JOINS]:
                yield self._candidate(condition, "shared dimension")

    def _shared(self) -> Iterator[Candidate]:
        for _, _, shared in self._pairs():
            if len(shared) > 1 and not self._is_typed:
                yield self._candidate(", ".join(shared) + ")", "shared dimensions")
            yield from self._beginning(shared, "shared dimension")

    # -- values --------------------------------------------------------------------------------------

    def _values(self) -> Iterator[Candidate]:
        """Yield values of the column that is compared, with the number of files that hold them."""
        where, shell, column = self._where, self._shell, self._compared()
        found = shell.values.of(shell.connection.store, column) if column is not None and column.has_values else None
        if found is None:
            return
        typed = where.typed.strip("'").replace("''", "'") if where.inside else where.typed
        for value, files in found.beginning(typed, MOST):
            literal = found.literal(value)
            if where.inside and not literal.startswith("'"):
                literal = f"'{value}'"
            if where.closed:
                literal = literal.removesuffix("'")
            yield self._candidate(literal, f"{files:,} of {counted(found.total, 'file')}", shown=value)

    def _compared(self) -> KnownColumn | None:
        """Return the column on the other side of the comparison that the cursor is in."""
        where, at = self._where, 2
        if where.word(1) in ("(", ","):
            # x IN ('a', 'b', |
            at = 1
            while where.back(at) is not None and where.word(at) != "(":
                if where.word(at) in (")", "SELECT", "WHERE"):
                    return None
                at += 1
            if where.word(at + 1) != "IN":
                return None
            at += 2
            at += where.word(at) == "NOT"
        elif where.word(1) not in (*_COMPARISONS, "BETWEEN"):
            return None
        piece, before = where.back(at), where.back(at + 2)
        if piece is None or piece.kind not in ("name", "quoted", "keyword", "function"):
            return None
        owner = _plain(before.text).lower() if before is not None and where.word(at + 1) == "." else ""
        for ref in self._called(owner):
            table = self._table(ref)
            if table is not None and (column := table.by_name.get(_plain(piece.text).lower())):
                return column
        return None


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _of_command(text: str, shell: Shell, known: Known) -> Iterator[Candidate]:
    """Yield the completions at the end of the line of a command."""
    start = len(text) - len(text.lstrip())
    word, space, rest = text[start:].partition(" ")
    if not space:
        for name in registry.words():
            if name.startswith(word.lower() if word.startswith(".") else word):
                found = registry.find(name)
                about = f"{found.usage}  {found.about}".strip()
                yield Candidate(f"{name} " if found.usage else name, start, about, shown=name)
        return
    try:
        takes = registry.find(word).takes
    except UsageError:
        return
    *done, typed = rest.split(" ")
    number = sum(map(bool, done))
    if "sql" in takes and number >= takes.index("sql"):
        at = start + len(word) + 1
        for _ in range(takes.index("sql")):
            at = text.find(" ", at) + 1
        for candidate in candidates(text[at:], len(text) - at, shell, known):
            yield replace(candidate, start=candidate.start + at)
    elif number < len(takes) or takes[-1:] in (("column",), ("table",)):
        kind, start = takes[min(number, len(takes) - 1)], len(text) - len(typed)
        if kind in ("file", "store"):
            yield from _files(typed, start, folders_only=kind != "file")
        for name, about in _names(kind, done, shell, known):
            if name.lower().startswith(typed.lower()):
                is_sql = kind in ("table", "cube", "column")
                yield Candidate(name if is_sql else _as_word(name), start, about, shown=name)


def _names(kind: str, done: list[str], shell: Shell, known: Known) -> Iterable[tuple[str, str]]:
    """Return what an argument of a kind may be, and what each of it is."""
    if kind in ("table", "cube"):
        return [(table.name, table.kind) for table in known.tables if kind == "table" or table.kind == "cube"]
    if kind == "column":
        found = known.table(next(filter(None, done), ""))
        return [(column.name, column.about) for column in found.columns] if found is not None else ()
    if kind == "option":
        return [*zip(OPTIONS, repeat("option")), *zip(SETTINGS, repeat("setting")), ("save", "write the config file")]
    if kind == "value" and done[:1] == ["engine"]:
        return zip(ENGINES, repeat("engine"))
    option = OPTIONS.get(done[0] if kind == "value" and done else kind)
    words = option.choices if option is not None else _WORDS[kind](shell) if kind in _WORDS else ()
    return zip(words, repeat("profile" if kind == "store" else ""))


def _data_files(shell: Shell) -> Iterator[str]:
    report = shell.last.report if shell.last is not None else None
    scans = report.scan.occurrences if report is not None else ()
    return (key for scan in scans for part in scan.parts for key in part.part.table.files)


_WORDS: dict[str, Callable[[Shell], Iterable[str]]] = {
    "engine": lambda shell: ENGINES,
    "store": lambda shell: profile_names(),
    "attach type": lambda shell: TYPES,
    "command": lambda shell: registry.words(),
    "saved": lambda shell: saved(),
    "tour": lambda shell: ["list", *(str(n) for n in range(1, len(examples()) + 1))],
    "data file": _data_files,
    "result column": lambda shell: shell.last.schema.names if shell.last and shell.last.schema is not None else (),
}


def _as_word(name: str) -> str:
    return name if name.isprintable() and " " not in name else shlex.quote(name)


def _in_string(path: str) -> str:
    return "'" + path.replace("'", "''")


def _files(
    typed: str, start: int, *, folders_only: bool, quoted: Callable[[str], str] = _as_word
) -> Iterator[Candidate]:
    """Yield the local files that begin with what is typed; hidden ones only if that begins with a dot."""
    if "://" in typed:
        return
    folder, slash, beginning = typed.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(folder + slash) or ".") as entries:
            found = sorted((e.name, e.is_dir()) for e in islice(entries, 10 * MOST))
    except (OSError, ValueError):
        return
    for name, is_folder in found:
        hidden = name.startswith(".") and not beginning
        if name.startswith(beginning) and not hidden and (is_folder or not folders_only):
            text = quoted(folder + slash + name)
            yield Candidate(text + ("/" if is_folder else ""), start, "folder" if is_folder else "file", shown=name)
