"""Statement to bound query: every name resolved against the snapshot, all errors at once, once for repeated ones."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp

from kartosql.errors import KartosqlError, Span, SqlError, UnknownNameError
from kartosql.plan.names import NameBinder
from kartosql.plan.scan import Scan
from kartosql.plan.scopes import Occurrence, Unknown, Walked
from kartosql.sql.statements import Select
from kartosql.sql.tree import Edit, Past, edited, name_parts, past_of, placeholders, span_of, tokens_of, with_masks
from kartosql.tables.names import Name, Tables, quote_if_needed, similar
from kartosql.tables.table import Table, arrow_table
from kartosql.text.constants import literal, quote

SCHEMA = "__kartosql_"

# Parts of the text that is run that are not the user's: views' schemas and names of parameters.
_INTERNAL = re.compile(r'"?__kartosql_\d+"?\.|\$kartosql_(?:p_(\w+)|(\d+))')

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.ILike, exp.In, exp.Between)

Parameters = Sequence[Any] | Mapping[str, Any] | None


class PivotValues(NamedTuple):
    """How a PIVOT that finds its values itself is asked in two steps: edits to the query for them, and their place."""

    query: tuple[Edit, ...]
    place: int

    def listed(self, values: Sequence[str | None]) -> Edit:
        """Return the edit that lists the values."""
        shown = ("NULL" if v is None else literal(v) for v in values)
        return (self.place, self.place), f" IN ({', '.join(shown)})"


@dataclass(frozen=True)
class BoundQuery:
    """A query whose names are resolved.

    ``text`` is the user's text in which each table occurrence has the name of its own view
    (``occurrence.view``) and each parameter the form ``$name``; ``shape`` is the same for
    statements that differ in constants only. ``suspects`` are
    references nothing explains; the engine has the last word on them.
    """

    select: Select
    text: str
    occurrences: tuple[Occurrence, ...]
    walked: Walked
    parameters: Any  # values by name; a list for queries that only the engine can parse
    parameter_places: Mapping[Span, str]
    suspects: tuple[Unknown, ...]
    edits: tuple[Edit, ...] = ()
    shape: str = ""

    def edited(self, edits: Sequence[Edit]) -> BoundQuery:
        """Return the query with more edits of the user's text."""
        return self._of(self.select, [*self.edits, *edits])

    def alike(self, select: Select) -> BoundQuery:
        """Return the query of a statement with the same tree."""
        return self._of(select, self.edits)

    def with_all_columns(self) -> BoundQuery:
        """Return the query with every column of its tables, as a reference to one may have been overlooked."""
        return replace(self, occurrences=tuple(replace(o, all_used=True, needed=None) for o in self.occurrences))

    def _of(self, select: Select, edits: Sequence[Edit]) -> BoundQuery:
        text = edited(select.text, edits)
        masked = [*edits, *with_masks(select.text, select.constants)]
        return replace(self, select=select, text=text, shape=edited(select.text, masked) if select.constants else text)

    @property
    def sources(self) -> tuple[Table, ...]:
        """The tables of the query, one per occurrence."""
        return tuple(o.source for o in self.occurrences)

    @property
    def has_dynamic_columns(self) -> bool:
        """Whether the output columns depend on the data."""
        return self.select.tree is None or self.select.tree.find(exp.Pivot) is not None

    @property
    def is_pivot(self) -> bool:
        """Whether it is a PIVOT that finds its values itself, which the engine carries out in several steps."""
        tree = self.select.tree
        known = isinstance(tree, exp.Pivot) and (
            tree.args.get("unpivot") or all(isinstance(e, exp.In) for e in tree.expressions)
        )
        return isinstance(tree, exp.Pivot) and not known

    def pivot_values(self) -> PivotValues | None:
        """Return how the values of such a PIVOT are asked for; None unless they are those of one column."""
        text, tree, depth, places = self.select.text, self.select.tree, 0, {}
        columns = [] if tree is None else [e for e in tree.expressions if isinstance(e, exp.Column)]
        on = span_of(columns[0]) if tree is not None and len(columns) == len(tree.expressions) == 1 else None
        if on is None:
            return None
        for token in tokens_of(text):
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if token.start >= on[0]:
                break
            if not depth:
                span = (token.start, token.end + 1)  # of a name with its quotes
                places[text[slice(*span)].upper().removesuffix("_WIDER")] = span
        region = (places.get("ON", (0, 0))[0], len(text))
        if "PIVOT" not in places or any(region[0] <= span[0] for span, _ in self.edits):
            return None
        column = text[slice(*on)]
        head = f"SELECT DISTINCT CAST({column} AS VARCHAR) AS pivot_value FROM"
        tail = f"WHERE {column} IS NOT NULL ORDER BY pivot_value"
        return PivotValues(((places["PIVOT"], head), (region, tail)), on[1])

    def restore(self, name: str) -> str:
        """Return an output column's name as the user knows it."""
        for source in self.sources:
            for column, exposed in source.exposed.items():
                name = name.replace(exposed, column)
        return _INTERNAL.sub(lambda m: f"${m[1] or m[2]}" if m[1] or m[2] else "", name)

    def unknown_names(self) -> UnknownNameError:
        """Return the error about the references that nothing explains."""
        return UnknownNameError([_unknown_column(u, self.select.text) for u in self.suspects], self.select.text)


def _rebound(bound: BoundQuery, parameters: Parameters) -> BoundQuery:
    if not parameters and not bound.parameter_places:
        return bound
    assert bound.select.tree is not None
    return replace(bound, parameters=_parameters(bound.select, bound.select.tree, parameters)[0])


def bind(select: Select, tables: Tables, parameters: Parameters = None) -> BoundQuery:
    """Resolve the names of a query.

    Raises ``unknown-table``, ``ambiguous-name`` (all of a statement at once),
    ``invalid-parameters``, and what is wrong with a table that is named.
    """
    tree = select.tree
    if tree is None:
        raise SqlError("The statement cannot be planned.", code="syntax-error", sql=select.text)
    clauses: list[Edit] = []
    occurrences, errors = _occurrences(select, tree, tables, clauses)
    walker = NameBinder({id(o.node): o for o in occurrences}, select.text)
    if errors:
        raise _unknown_names(errors, walker, tree, select.text)
    try:
        walker.statement(tree)
    except SqlError as e:
        e.sql = select.text
        raise
    except RecursionError:
        for occurrence in occurrences:
            occurrence.understood = False
        walker = NameBinder({}, select.text)
    values, places = _parameters(select, tree, parameters)
    edits = [(span, f"${key}") for span, key in places.items()]
    edits += [(o.span, ".".join(map(quote, o.view))) for o in occurrences if o.span is not None]
    renamed = {span_of(identifier): quote(name) for identifier, name in walker.found.renamed}
    edits += [*clauses, *((span, name) for span, name in renamed.items() if span is not None)]
    found = walker.found
    bound = BoundQuery(select, "", tuple(occurrences), found, values, places, tuple(found.unknown), tuple(edits))
    return bound.alike(select)


def bind_unplanned(select: Select, names: Sequence[Name], tables: Tables, parameters: Parameters = None) -> BoundQuery:
    """Resolve the tables of a query that only the engine can parse.

    ``names`` are the tables that the engine found in it. Such a query reads all files.
    """
    occurrences = []
    for at, name in enumerate(names):
        view = ("main", name[0]) if len(name) == 1 else (name[0], name[1])
        occurrences.append(Occurrence(at, tables.find(name, None, select.text), name, view))
    values: Any = dict(parameters) if isinstance(parameters, Mapping) else parameters
    return BoundQuery(select, select.text, tuple(occurrences), Walked(), values, {}, ())


def _occurrences(
    select: Select, tree: exp.Expression, tables: Tables, edits: list[Edit]
) -> tuple[list[Occurrence], list[SqlError]]:
    """Return the occurrences, and what is wrong with other names; ``edits`` blank clauses of ours."""
    found: list[Occurrence] = []
    errors: list[SqlError] = []
    for node in sorted(tree.find_all(exp.Table), key=lambda n: span_of(n) or (0, 0)):
        parts = name_parts(node)
        if not isinstance(node.this, exp.Identifier | exp.Dot) or (len(parts) == 1 and is_cte(node)):
            continue
        span = span_of(node)
        name = tuple(p.name for p in parts)
        if span is None:
            raise SqlError(f"The place of {'.'.join(name)!r} in the text is not known.", code="not-supported")
        try:
            past = past_of(node, select.text)
            as_of = past[0] if past is not None else None
            source = tables.find(name, span, select.text, as_of=as_of)
        except SqlError as e:
            errors.append(e)
            continue
        view = (f"{SCHEMA}{len(found)}", name[-1])
        found.append(Occurrence(len(found), source, name, view, node, span, as_of))
        if past is not None:
            edits.append((past[1], " " * (past[1][1] - past[1][0])))
    return found, errors


def _unknown_names(errors: list[SqlError], walker: NameBinder, tree: exp.Expression, sql: str) -> SqlError:
    """Return the error about tables, together with the columns that the other tables do not have."""
    with contextlib.suppress(SqlError, RecursionError):
        walker.statement(tree)
    found = [*errors, *(_unknown_column(u, sql) for u in (*walker.found.unknown, *walker.found.missing))]
    found.sort(key=lambda e: e.span or (0, 0))
    return found[0] if len(found) == 1 else UnknownNameError(found, sql)


def is_cte(table: exp.Table) -> bool:
    """Return whether a one-part table name is that of a common table expression in scope."""
    name = table.name.lower()
    child: Any = table
    parent: Any = table.parent
    while parent is not None:
        if isinstance(parent, exp.With):
            # Inside of one of the expressions: it sees those before it, and itself if recursive.
            for cte in parent.expressions:
                if cte.alias.lower() == name and (cte is not child or parent.args.get("recursive")):
                    return True
                if cte is child:
                    break
            child, parent = parent.parent or parent, parent.parent and parent.parent.parent
            continue
        with_ = parent.args.get("with_")
        if with_ is not None and any(cte.alias.lower() == name for cte in with_.expressions):
            return True
        child, parent = parent, parent.parent
    return False


def _parameters(select: Select, tree: exp.Expression, given: Parameters) -> tuple[dict[str, Any], dict[Span, str]]:
    if given is not None and (isinstance(given, (str, bytes)) or not isinstance(given, (Mapping, Sequence))):
        raise SqlError(f"Parameters are a list or a dictionary, not {type(given).__name__}.", code="invalid-parameters")
    known = given if isinstance(given, Mapping) else {str(at): value for at, value in enumerate(given or (), 1)}
    values: dict[str, Any] = {}
    places: dict[Span, str] = {}
    missing: dict[str, Span] = {}
    count = 0
    for span, name in sorted(((span, name) for name, span in placeholders(tree) if span), key=lambda f: f[0]):
        if name is None or (name.isdecimal() and len(name) < 10):
            count += name is None
            name = str(count if name is None else int(name))
            shown, key = f"number {name}", f"kartosql_{name}"
        else:
            shown, key = repr(name), f"kartosql_p_{name}"
        if name in known:
            values[key] = known[name]
        else:
            missing.setdefault(shown, span)
        places[span] = key
    if missing:
        raise SqlError(
            f"No value for the parameter {', '.join(missing)}.",
            code="invalid-parameters",
            hint="Hand over a list for ? and $1, a dictionary for $name and :name.",
            span=next(iter(missing.values())),
            sql=select.text,
        )
    used = {key.removeprefix("kartosql_p_").removeprefix("kartosql_") for key in places.values()}
    extra = next((name for name in known if name not in used), None)
    if extra is not None:
        hint = f"It has {len(set(places.values()))}, and {len(known)} values were given."
        raise SqlError(f"The statement has no parameter {extra!r}.", code="invalid-parameters", hint=hint)
    return values, places


def _unknown_column(unknown: Unknown, sql: str) -> SqlError:
    shown = f"{unknown.qualifier}.{unknown.name}" if unknown.qualifier else unknown.name
    message, hint = f"There is no column {shown!r}.", _suggestion(unknown)
    aliases = {a.lower(): a for a in unknown.aliases}
    if unknown.qualifier and aliases and unknown.qualifier.lower() not in aliases:
        message += f" {unknown.qualifier!r} is no table of this query."
        listed = list(aliases.values())
        alias = similar(unknown.qualifier, listed) or (quote_if_needed(listed[0]) if len(listed) == 1 else None)
        known = f"Its tables are {', '.join(listed)}."
        hint = f"Did you mean {alias}.{quote_if_needed(unknown.name)}?" if alias else known
    return SqlError(message, code="unknown-column", hint=hint, span=span_of(unknown.node), sql=sql)


def compared_with(unknown: Unknown) -> exp.Expression | None:
    """Return what a name that nothing explains is compared with, None if it is not, or has a qualifier."""
    parent = unknown.node.parent
    if unknown.qualifier is not None or not isinstance(parent, _COMPARISONS):
        return None
    first = parent.this
    return parent.args.get("expression") if first is unknown.node else first


def _suggestion(unknown: Unknown) -> str | None:
    if unknown.hint is not None:
        return unknown.hint
    hints, known = [], [name for name in unknown.candidates if not name.startswith("kartosql_")]  # ours
    if close := similar(unknown.name, known):
        hints.append(f"Did you mean {close}?")
    elif known:
        hints.append(f"Columns: {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}.")
    if compared_with(unknown) is not None:
        hints.append(f"A text stands in single quotes: {literal(unknown.name)}.")
    return " ".join(hints) or None


class OnlyTable(Tables):
    """Knows one table, whatever the name."""

    def __init__(self, table: pa.Table) -> None:
        self._source = arrow_table("partitions", table)

    def find(self, name: Name, span: Span | None = None, sql: str | None = None, *, as_of: Past | None = None) -> Table:
        """Return the one table."""
        return self._source


def condition_columns(
    query: Select, partition_columns: pa.Schema, others: Collection[str], parameters: Parameters
) -> frozenset[str] | None:
    """Return the partition columns that the WHERE of a DELETE names, None where it is about single rows.

    ``others`` are the columns of the table that are not in paths of partitions. Raises ``unknown-column``,
    ``invalid-parameters`` and ``not-supported`` for what only the engine can read.
    """
    if query.tree is None:
        raise SqlError("This form of condition is not supported in DELETE.", code="not-supported", sql=query.text)
    bound = bind(query, OnlyTable(partition_columns.empty_table()), parameters)
    known = {name.lower() for name in others}
    # A field of a struct has the column as its qualifier.
    if any(not known.isdisjoint([s.name.lower(), *(s.qualifier or "").lower().split(".")]) for s in bound.suspects):
        return None
    if bound.suspects:
        raise bound.unknown_names()
    where = query.tree.args["where"]
    names = set()
    for node in where.find_all(exp.Column, exp.Star, exp.Columns):
        found = bound.walked.bound.get(id(node))
        if found is None or found.source is None:  # COLUMNS(...), or the row as a whole
            return None
        names.add(found.source.real(found.column))
    return frozenset(names)


MAX_STATEMENTS = 64
MAX_SCANS = 8  # of one statement, for different parameters and settings
MAX_FILES = 20_000  # of all scans of one statement
MAX_ANSWERS = 16_000_000  # bytes of all answers that are kept with scans
# Times that a statement is planned before its scan is kept: what is asked for repeatedly is
# remembered of footers and indices, and later plans are better for it.
LEARNED = 4

Planner = Callable[..., Scan]
_SIMPLE = (bool, int, float, str, bytes, type(None))


@dataclass
class _Entry:
    select: Select  # kept, as it is known by its identity
    bound: BoundQuery
    scans: OrderedDict[Hashable, Scan] = field(default_factory=OrderedDict)
    planned: int = 0


class PlanCache:
    """Remembers bound queries and scans of one connection.

    They are used again for the same statement over the same metadata: tables are the same
    objects then. Files never change once they belong to a dataset.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def bind(self, select: Select, tables: Tables, parameters: Parameters) -> BoundQuery:
        """Return a bound query; raises what ``plan.bind`` raises."""
        with self._lock:
            entry = self._entries.get(id(select))
            like = self._entries.get(id(select.like)) if entry is None and select.like is not None else None
        if entry is not None and _has_same_tables(entry, tables):
            return _rebound(entry.bound, parameters)
        if like is not None and _has_same_tables(like, tables):
            bound = _rebound(like.bound.alike(select), parameters)
        else:
            bound, like = bind(select, tables, parameters), None
        if select.like is not None and like is None:
            like = _Entry(select.like, bound.alike(select.like))
        with self._lock:
            for new in filter(None, (like, _Entry(select, bound))):
                self._entries[id(new.select)] = new
                self._entries.move_to_end(id(new.select))
            while len(self._entries) > MAX_STATEMENTS:
                self._entries.popitem(last=False)
        return bound

    def correct(self, bound: BoundQuery) -> None:
        """Replace what a statement, and the one that it is like, were bound to, and forget the scans made of that."""
        with self._lock:
            for select in (bound.select, bound.select.like):
                entry = self._entries.get(id(select))
                if entry is not None and entry.bound.walked is bound.walked:
                    self._entries[id(select)] = _Entry(entry.select, bound.alike(entry.select))

    def scan(self, bound: BoundQuery, planner: Planner, settings: Mapping[str, Any]) -> Scan | None:
        """Return the scan that ``planner`` made of a bound query and that was kept."""
        entry, key = self._entries.get(id(bound.select)), _key(bound, planner, settings)
        if entry is None or key is None or entry.bound.occurrences is not bound.occurrences:
            return None
        return entry.scans.get(key)

    def is_kept(self, scan: Scan) -> bool:
        """Return whether a scan is kept, so that it may be asked for again."""
        with self._lock:
            return any(k.occurrences is scan.occurrences for e in self._entries.values() for k in e.scans.values())

    def keep(self, bound: BoundQuery, planner: Planner, settings: Mapping[str, Any], scan: Scan) -> None:
        """Keep the scan of a bound query."""
        entry, key = self._entries.get(id(bound.select)), _key(bound, planner, settings)
        if entry is None or key is None or entry.bound.occurrences is not bound.occurrences or _size(scan) > MAX_FILES:
            return
        with self._lock:
            entry.planned += 1
            if entry.planned < LEARNED:
                return
            entry.scans[key] = scan
            while len(entry.scans) > MAX_SCANS or sum(map(_size, entry.scans.values())) > MAX_FILES:
                entry.scans.popitem(last=False)
            held = [
                (e.scans, k, s.answer.batches) for e in self._entries.values() for k, s in e.scans.items() if s.answer
            ]
            sizes = [sum(batch.get_total_buffer_size() for batch in batches) for _, _, batches in held]
            for at, (scans, k, _) in enumerate(held):  # the oldest come first
                if sum(sizes[at:]) > MAX_ANSWERS:
                    scans[k] = replace(scans[k], answer=None)


def _has_same_tables(entry: _Entry, tables: Tables) -> bool:
    """Return whether all names of a statement still mean the same tables."""
    try:
        return all(
            tables.find(o.name, o.span, entry.select.text, as_of=o.as_of) is o.source for o in entry.bound.occurrences
        )
    except KartosqlError:
        return False  # binding will tell


def _key(bound: BoundQuery, planner: Planner, settings: Mapping[str, Any]) -> Hashable | None:
    """Return what a scan depends on besides statement and tables, or None if unknown."""
    given = bound.parameters if isinstance(bound.parameters, dict) else {}
    if not all(isinstance(v, _SIMPLE) for v in given.values()):
        return None
    # 1, 1.0 and True are equal in Python, and so are the two zeros.
    values = tuple((n, type(v), repr(v)) for n, v in sorted(given.items()))
    return planner, values, tuple(sorted(settings.items()))


def _size(scan: Scan) -> int:
    return sum(len(p.files) for o in scan.occurrences for p in o.parts)
