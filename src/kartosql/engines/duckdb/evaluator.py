"""The planner's instance: predicates over partition values, index values and statistics, and values of small tables."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from kartosql.engines.duckdb.lookups import HELD, IndexTables, Lookup, PlannerTables
from kartosql.engines.duckdb.optimizers import LATE
from kartosql.engines.duckdb.relations import Relations
from kartosql.engines.duckdb.shared_cells import DuckCells
from kartosql.engines.duckdb.statement import EngineSession, FileAccess
from kartosql.engines.duckdb.types import TIMESTAMPS, sql_of, sql_type
from kartosql.errors import FormatError, Span, StoreError
from kartosql.indexes.index import Candidates, Files, ValueCondition
from kartosql.plan.evaluate import Held, Outline, ParsedAtom
from kartosql.plan.scan import OccurrenceScan
from kartosql.plan.scopes import Occurrence
from kartosql.predicate.tree import (
    Comparison,
    Condition,
    Contains,
    Group,
    In,
    IsNull,
    LongList,
    Predicate,
    may_hold_for_null,
    parameters_for,
)
from kartosql.sql.statement_policy import UNKNOWN_FORM
from kartosql.sql.tree import CONSTANT, CONSTANTS, Edit, edited, parts_of
from kartosql.tables.statistics import ColumnBounds, TableStatistics, has_ordered_bounds, statistics_of
from kartosql.tables.table import FileTable, display_rows
from kartosql.text.constants import literal, quote
from kartosql.text.types import SIGNED, UNSIGNED

if TYPE_CHECKING:
    from kartosql.engines.duckdb.runtime import Instance

_OPERATORS = frozenset("+ - * / // % || ~~ !~~ ~~* !~~* << >> & | ^ ** @ ~".split())  # noqa: SIM905
_COMPARING = frozenset(
    {"BETWEEN", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "OPERATOR", "PARAMETER", "TYPE"}
)
_COMPARING_OPERATORS = frozenset(
    {"OPERATOR_NOT", "COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}
)
_PARTS = ("modifiers", "cte_map", "where_clause", "group_expressions", "group_sets", "having", "sample", "qualify")
_STAR_PARTS = (
    *("relation_name", "exclude_list", "replace_list", "columns", "expr", "qualified_exclude_list", "rename_list"),
)
_CLASSES = _COMPARING | {"CASE", "COLLATE", "FUNCTION"}


# Where one of these stands, no list is looked for.
_OTHER_QUOTES = re.compile(r"--|/\*|\\|\$\w*\$")
_LONG = 2_000
_HELD = re.compile("kartosql_values_[0-9a-f]{32}")


def _long_lists(predicate: str) -> list[Span]:
    """Return the places of the long lists of constants after IN in a long text."""
    if len(predicate) < _LONG or _OTHER_QUOTES.search(predicate):
        return []
    return [(start, end) for start, (end, kind, _) in parts_of(predicate).items() if kind == CONSTANTS]


def shortened(predicate: str) -> tuple[str, tuple[str, ...]]:
    """Return a predicate with but the first literal of each long list after IN, and the lists.

    Parsing a list takes much longer than comparing its text.
    """
    spans = _long_lists(predicate)
    lists = tuple(predicate[start:end] for start, end in spans)
    firsts = (text[: found.end()] for text in lists if (found := CONSTANT.match(text)))
    return edited(predicate, zip(spans, firsts, strict=True)), lists


def with_lists(predicate: str, operand: str, replace: Callable[[list[str]], str | None]) -> str:
    """Return a predicate with its long lists of literals after ``(operand IN`` replaced.

    ``operand`` is a pattern. ``replace`` gets the literals and returns what to put in their
    place, None to leave them.
    """
    tested = re.compile(rf"\(\s*(?:{operand})\s+(?:NOT\s+)?IN\s*\(\s*$", re.IGNORECASE)
    edits: list[Edit] = []
    for start, end in _long_lists(predicate):
        if tested.search(predicate[max(0, start - 100) : start]):
            found = replace(CONSTANT.findall(predicate[start:end]))
            edits += [] if found is None else [((start, end), found)]
    return edited(predicate, edits)


# Literals that are one token each, by whatever precedes them; what may hide one is passed over, or odd.
_LITERALS = re.compile(
    r"""\"(?:[^\"]++|\"\")*+\"|(?<![\w.#$'])(?P<text>'[^'\\]*+'(?!'))|"""
    r"""(?<![\w.#$])(?P<number>[0-9]++(?:\.[0-9]++)?)(?![\w.])|(?P<odd>'|\"|--|/\*|\\|\$\w*\$)"""
)


def masked(predicate: str) -> tuple[str, tuple[str, ...]] | None:
    """Return a predicate with other literals in place of its texts and numbers, and those; None where they may hide.

    The literals are distinct and of the same kinds, so that two predicates with the same own
    literals are parsed to the same tree if their masked forms are.
    """
    found: list[str] = []

    def mask(match: re.Match[str]) -> str:
        if match["odd"]:
            raise ValueError
        literal = match["text"] or match["number"]
        if literal is None:
            return match[0]
        found.append(literal)
        if match["text"]:
            return f"'{len(found)}'"
        return f"{len(found)}.5" if "." in literal else str(len(found))

    try:
        return _LITERALS.sub(mask, predicate), tuple(found)
    except ValueError:
        return None


def atoms_of(node: Any, outline: Outline) -> list[Any] | None:
    """Return the atoms of a predicate in their order, None unless they are joined as an outline says."""
    if outline is None:
        return [node]
    word, parts = outline
    kind, name = ("OPERATOR", "OPERATOR_NOT") if word == "NOT" else ("CONJUNCTION", f"CONJUNCTION_{word}")
    if node["class"] != kind or node["type"] != name or len(node["children"]) != len(parts):
        return None
    found: list[Any] = []
    for child, part in zip(node["children"], parts, strict=True):
        below = atoms_of(child, part)
        if below is None:
            return None
        found += below
    return found


def operator_of(node: Any) -> str:
    """Return the name of the outermost operator or function of an expression."""
    if node["type"] == "OPERATOR_NOT":
        return f"NOT {operator_of(node['children'][0])}"
    return str(node["function_name"].lower() if node["class"] == "FUNCTION" else node["type"])


def literals(items: list[str], *, texts: bool, integers: bool) -> list[str] | list[int] | None:
    """Return the values of literals if all are texts or all are integers, and these are asked for."""
    if texts and all(i.startswith("'") for i in items):
        return [i[1:-1].replace("''", "'") for i in items]
    if integers and all(len(i) < 19 and i[0] != "'" and "." not in i for i in items):
        return list(map(int, items))
    return None


def without_places(node: Any) -> Any:
    """Return a parse tree without the places in the text."""
    if isinstance(node, dict):
        return {k: without_places(v) for k, v in node.items() if k not in ("query_location", "query_location_length")}
    if isinstance(node, list):
        return [without_places(v) for v in node]
    return node


def _is_comparison(node: Any, below_cast: bool = False) -> bool:
    if isinstance(node, list):
        return all(_is_comparison(v, below_cast) for v in node)
    if not isinstance(node, dict):
        return not (isinstance(node, str) and ("\\x00" in node or "\0" in node))
    kind = node.get("class")
    if kind is not None and kind not in _COMPARING:
        return False
    if kind == "OPERATOR" and node.get("type") not in _COMPARING_OPERATORS:
        return False
    if kind == "COLUMN_REF" and below_cast:
        return False
    return all(_is_comparison(v, below_cast or kind == "CAST") for v in node.values())


def is_pure(node: Any, functions: Callable[[], frozenset[str]]) -> bool:
    """Return whether a predicate depends on nothing but its columns and parameters.

    ``functions`` gives the names of the functions whose result follows from their arguments. A
    subquery may list values, as ``SELECT unnest($1)`` and ``VALUES`` do, but read no table except those in which
    the planner holds values.
    """
    if isinstance(node, list):
        return all(is_pure(v, functions) for v in node)
    if not isinstance(node, dict):
        return True
    if node.get("class") == "SUBQUERY":
        return is_pure(node["child"], functions) and _lists_values(node["subquery"]["node"], functions)
    if "class" in node:
        if node["class"] not in _CLASSES:
            return False
        if node["class"] == "FUNCTION":
            name = node["function_name"].lower()
            if node.get("schema") or node.get("catalog"):
                return False
            if name not in _OPERATORS and name not in functions():
                return False
    return all(is_pure(v, functions) for v in node.values())


def _lists_values(node: Any, functions: Callable[[], frozenset[str]]) -> bool:
    """Return whether a query without tables does no more than list pure values."""
    if node["type"] != "SELECT_NODE" or any(_is_present(node.get(part)) for part in _PARTS):
        return False
    source, items = node["from_table"], node["select_list"]
    if source["type"] == "EMPTY":
        return len(items) == 1 and (_is_unnest(items[0], functions) or is_pure(items[0], functions))
    if len(items) != 1 or items[0]["class"] != "STAR" or any(_is_present(items[0].get(part)) for part in _STAR_PARTS):
        return False
    if source["type"] == "BASE_TABLE":
        return bool(_HELD.fullmatch(source["table_name"]) and not source["schema_name"])
    if source["type"] == "EXPRESSION_LIST":
        return is_pure(source["values"], functions)
    return bool(source["type"] == "TABLE_FUNCTION" and _is_unnest(source["function"], functions))


def _is_unnest(node: Any, functions: Callable[[], frozenset[str]]) -> bool:
    if node["class"] != "FUNCTION" or node["function_name"].lower() != "unnest" or node.get("schema"):
        return False
    return len(node["arguments"]) == 1 and is_pure(node["arguments"], functions)


def _is_present(part: Any) -> bool:
    return bool(part["map"] if isinstance(part, dict) and "map" in part else part)


MAX_LISTED = 32  # longer lists are compared as a whole
_MAX_LIST = 1_000
_MAX_TEXT = 5_000  # of a list

_INTEGERS = {*SIGNED, *UNSIGNED}
_NUMBERS = _INTEGERS | {"HUGEINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL"}
_MOMENTS = {"DATE", *TIMESTAMPS}


@dataclass(frozen=True)
class Bounded:
    """A predicate as a condition over what is known of a file: ``low``, ``high``, ``has_values`` and ``nulls``.

    ``condition`` returns it for a column of some type. ``typed`` are constants whose types decide
    whether it holds good; string literals are none of them, as they take the column's type.
    """

    condition: Callable[[str], str]
    typed: tuple[str, ...] = ()

    def over(self, type_: str, types: Sequence[str]) -> str | None:
        """Return the condition for a column of ``type_``, ``typed`` being of ``types``; None if it proves nothing."""
        if not all(_keeps_order(type_, t) for t in types):
            return None
        # DuckDB compares with several constants in one type that they have in common.
        if len(set(types)) > 1 and not _INTEGERS.issuperset([type_, *types]):
            return None
        return self.condition(type_)


def _keeps_order(type_: str, other: str) -> bool:
    """Return whether comparing values of ``type_`` with one of ``other`` goes by the order of ``type_``."""
    # Casting TIMESTAMP to TIMESTAMP WITH TIME ZONE does not keep the order where clocks change.
    type_, other = type_.split("(")[0], other.split("(")[0]
    if other == type_:
        return True
    return {type_, other} <= _NUMBERS or {type_, other} <= _MOMENTS


def bounded(predicate: Predicate) -> Bounded | None:
    """Return what a predicate over one column says about what is known of files, None if it says nothing.

    A file with values from ``low`` to ``high`` may hold a row for which ``x < e`` is TRUE if ``low < e`` is, and so on.
    The comparison stays DuckDB's: the bounds take the column's place, under the column's type. That is sound where
    DuckDB compares values of that type, or casts them in a way that keeps their order; all else is not answered.
    """
    if isinstance(predicate, Group):
        parts = [bounded(item) for item in predicate.items]
        known = [p for p in parts if p is not None]
        if not known or (predicate.op == "OR" and len(known) < len(parts)):
            return None
        word = f" {predicate.op} "
        return Bounded(
            lambda t: f"({word.join(p.condition(t) for p in known)})", tuple(c for p in known for c in p.typed)
        )
    if not isinstance(predicate, Comparison | In | IsNull | Contains) or len(predicate.path) > 1:
        return None
    if isinstance(predicate, IsNull):
        found = "has_values" if predicate.negated else "nulls <> 0"
        return Bounded(lambda _: found)
    if isinstance(predicate, Contains):
        if not predicate.begins:
            return None
        text, size = literal(predicate.text), len(predicate.text)
        return _of_values(f"left(low, {size}) <= {text} AND left(high, {size}) >= {text}", f"CAST({text} AS VARCHAR)")
    return _compared(predicate) if isinstance(predicate, Comparison) else _listed(predicate)


def _of_values(condition: str, *typed: str) -> Bounded:
    found = f"(has_values AND coalesce({condition}, true))"
    return Bounded(lambda _: found, typed)


def _compared(comparison: Comparison) -> Bounded:
    constant, op = sql_of(comparison.value), comparison.op
    typed = [] if comparison.value.kind == "string" else [constant]
    if op == "=":
        return _of_values(f"low <= {constant} AND {constant} <= high", *typed)
    if op == "<>":
        return _of_values(f"low <> {constant} OR high <> {constant}", *typed)
    return _of_values(f"{'low' if op.startswith('<') else 'high'} {op} {constant}", *typed)


def _listed(listed: In) -> Bounded | None:
    is_long = isinstance(listed.listed, LongList) and len(listed.listed.text) > _MAX_TEXT
    values = None if is_long or listed.negated else listed.values
    if values is None or len(values) > _MAX_LIST or len({v.kind for v in values}) > 1:
        return None
    constants, is_text = f"list_value({', '.join(map(sql_of, values))})", values[0].kind == "string"

    def condition(type_: str) -> str:
        items = f"CAST({constants} AS {type_}[])" if is_text else constants
        if len(values) <= MAX_LISTED:
            found = f"len(list_filter({items}, lambda e: low <= e AND e <= high)) > 0"
        else:
            found = f"low <= list_max({items}) AND high >= list_min({items})"
        return f"(has_values AND coalesce({found}, true))"

    return Bounded(condition, () if is_text else (f"{constants}[1]",))


MAX_FETCHED = 256  # more values than these are faster where they are than as a parameter
# Footers that are read to see whether it pays to read all, which it does if at least that share of the files may be
# left out: to read a footer takes a third of the time that it takes to scan a small file, or a request. Of fewer remote
# files the requests for the sample cost more than there is to save.
SAMPLED_FOOTERS, PAYING_SHARE, PAYING_REMOTE_SHARE, MIN_REMOTE_FILES = 64, 0.25, 0.5, 256
MAX_TEXTS = 512  # predicates of which the parse is kept
MAX_LENGTH = 5_000  # of their texts
_NULL = r"CAST\(NULL AS [^()']+(?:\([\d, ]+\))?\)"
SCHEMA = "kartosql_planner"


class Planner(EngineSession):
    """A session that is never locked: only our own statements and pure predicates run in it.

    It is the Evaluator of many statements, one per settings of a session, so that answers can be kept. A predicate that
    fails for some value keeps the files with that value: the statement itself will show whether the failure matters.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.run(f"CREATE SCHEMA {SCHEMA}")
        self.run(f"USE {SCHEMA}")
        self.run(f"ATTACH ':memory:' AS {HELD} (COMPRESS)")
        self.instance.change("disabled_optimizers", f"'{LATE}'")
        self._held: list[str] = []
        self.structures = PlannerTables(self)
        self.cells = DuckCells(self)
        self._short_parse = lru_cache(MAX_TEXTS)(self._parsed)
        self._short_constant = lru_cache(MAX_TEXTS)(lambda text: bool(self.select("SELECT 1 WHERE ", text, {})))

    def begin(self, files: FileAccess, timeout: int) -> None:
        """Start on the files of another statement, whose conditions may take ``timeout`` ms (0 is no limit)."""
        self.files = files
        if self.instance.filesystem is not None:
            self.instance.filesystem.forget()
        self.instance.change("max_execution_time", timeout)

    def hold(self, query: str, parameters: Mapping[str, Any]) -> str:
        """Keep the rows of a query until the end of the statement; returns the name of their table."""
        # No text can guess it: predicates may read these tables, and no other.
        name = f"kartosql_values_{uuid.uuid4().hex}"
        self.rows(f"CREATE TABLE {name} AS {query}", parameters)
        self._held.append(name)
        return name

    def end(self) -> None:
        """Forget what was made for one statement."""
        for name in self._held:
            self.run(f"DROP TABLE {name}")
        self._held.clear()
        self.relations.drop()
        self.relations = Relations(self)
        self.data_keys.clear()

    def end_for_good(self) -> Instance:
        """Free the planner and return its instance, in which nothing of it is left."""
        self.run("USE main")
        self.run(f"DROP SCHEMA {SCHEMA} CASCADE")
        self.run(f"DETACH {HELD}")
        super().close()
        return self.instance

    def close(self) -> None:
        """Free the planner with its instance."""
        super().close()
        self.instance.close()

    # -- the text of predicates --------------------------------------------------------------

    def is_pure(self, predicate: str) -> bool:
        """Return whether a predicate depends on nothing but its columns and parameters, False for other texts."""
        with contextlib.suppress(*UNKNOWN_FORM):
            tree, _ = self._shape(predicate)
            return tree is not None and is_pure(tree, self._pure_functions)
        return False

    def atoms(self, predicate: str, composed: str, outline: Outline) -> list[ParsedAtom] | None:
        """Return what DuckDB's parser makes of each atom of a predicate, None where it joins them otherwise."""
        parsed = self._shape(composed)
        if parsed[0] is None or (outline is not None and parsed != self._shape(predicate)):
            return None
        with contextlib.suppress(*UNKNOWN_FORM):
            found = atoms_of(parsed[0], outline) or []
            return [ParsedAtom(operator_of(atom), is_pure(atom, self._pure_functions)) for atom in found]
        return None

    def is_same(self, predicate: str, other: str) -> bool:
        """Return whether DuckDB's parser makes the same tree of two predicates."""
        parsed = self._shape(predicate)
        return parsed[0] is not None and parsed == self._shape(other)

    def _shape(self, predicate: str) -> tuple[Any, tuple[str, ...]]:
        """Return the tree of a predicate with other literals, which is found again for other values, and its own."""
        shape = masked(predicate) if len(predicate) <= MAX_LENGTH else None
        tree = self._short_parse(shape[0]) if shape is not None else None
        return self.parse(predicate) if tree is None or shape is None else (tree, shape[1])

    def parse(self, predicate: str) -> tuple[Any, tuple[str, ...]]:
        """Return the tree of a predicate without its long lists, and these; the tree is None for other texts."""
        short, lists = shortened(predicate)
        return (self._short_parse if len(short) <= MAX_LENGTH else self._parsed)(short), lists

    def compares(self, predicate: str) -> bool:
        """Return whether a predicate only compares its columns with constants that hold no NUL byte."""
        tree, lists = self.parse(predicate)
        return not lists and _is_comparison(tree)

    def _parsed(self, predicate: str) -> Any:
        try:
            ((document,),) = self.rows("SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE ({predicate}\n)"])
            (statement,) = json.loads(document)["statements"]  # there are none of what is no SQL
            return without_places(statement["node"]["where_clause"])
        except (duckdb.Error, RecursionError, *UNKNOWN_FORM):
            return None

    def _pure_functions(self) -> frozenset[str]:
        return self.determined("function_type = 'scalar'")

    # -- evaluation ----------------------------------------------------------------------------

    def null(self, type_: pa.DataType) -> str:
        """Return the SQL text of a NULL of an Arrow type."""
        return "NULL" if pa.types.is_null(type_) else f"CAST(NULL AS {sql_type(type_)})"

    def constant(self, predicate: str, parameters: Mapping[str, Any]) -> bool:
        """Return whether a predicate without columns may be TRUE; short ones are evaluated once."""
        if len(predicate) > MAX_LENGTH:
            # NULL is in one list as in the other.
            predicate = with_lists(predicate, _NULL, lambda items: items[0])
        if parameters or len(predicate) > MAX_LENGTH:
            return bool(self.select("SELECT 1 WHERE ", predicate, parameters))
        return self._short_constant(predicate)

    def select(
        self,
        before: str,
        predicate: str,
        parameters: Mapping[str, Any],
        after: str = "",
        reading: IndexTables | None = None,
    ) -> list[Any] | bool:
        """Run the query in which a predicate stands between two texts; True stands for everything."""
        for condition in (predicate, f"coalesce(TRY({predicate}), true)"):
            try:
                return self.rows(before + condition + after, parameters)
            except duckdb.Error:
                continue
        if reading is not None:
            # Either the predicate fails for some value, or the index cannot be read.
            self.structures.check(reading)
        return True

    def partitions(self, table: FileTable, predicate: str, parameters: Mapping[str, Any]) -> Files:
        """Return the files in partitions for which a predicate over ``k<i>`` may be TRUE."""
        name = self.structures.partitions(table)
        types = {f"k{i}": type_ for i, type_ in enumerate(table.partitions.types)}
        predicate, parameters = self._without_lists(predicate, parameters, types)
        found = self.select(f"SELECT part FROM {name} WHERE ", predicate, parameters)
        if isinstance(found, bool):
            return table.all_files
        return table.partitions.files_of([part for (part,) in found])

    def index(self, asked: ValueCondition) -> Candidates:
        """Return the files with a value in the index of a column for which a condition may be TRUE."""
        table, type_ = asked.table, asked.table.indices[asked.column].type
        predicate, parameters = self._without_lists(asked.predicate, asked.parameters, {"v": type_})
        asked = replace(asked, predicate=predicate, parameters=parameters)
        skips_null = asked.never_null or (not asked.with_keys and not may_hold_for_null(asked.says))
        absent = [] if skips_null else [self.null(type_)]
        if pa.types.is_floating(type_) and not asked.never_nan:
            absent.append("'nan'::DOUBLE")
        if not asked.with_keys:
            if any(self.select(f"SELECT 1 FROM (SELECT {v} AS v) WHERE ", predicate, parameters) for v in absent):
                return Candidates(table.all_files)
            return Lookup(self, asked).files()
        parts = self.structures.partitions(table)
        files: Files = frozenset()
        for value in absent:
            extra = self.select(f"SELECT part FROM (SELECT *, {value} AS v FROM {parts}) WHERE ", predicate, parameters)
            if isinstance(extra, bool):
                return Candidates(table.all_files)
            files |= table.partitions.files_of([part for (part,) in extra])
        found = Lookup(self, asked, parts).files()
        return Candidates(found.files | files, found.note)

    def _without_lists(
        self, predicate: str, parameters: Mapping[str, Any], types: Mapping[str, pa.DataType]
    ) -> tuple[str, Mapping[str, Any]]:
        """Hand long lists of literals over as parameters, as DuckDB takes long to read their text."""
        if len(predicate) <= MAX_LENGTH:
            return predicate, parameters
        added = dict(parameters)

        def replace(items: list[str]) -> str | None:
            found = literals(items, texts=texts, integers=integers)
            if found is None:
                return None
            # DuckDB does not take names and numbers together.
            number = 1 + max([int(n) for n in added if n.isdigit()], default=0)
            name = str(number) if any(n.isdigit() for n in added) else f"kartosql_list_{len(added)}"
            added[name] = found
            return f"SELECT unnest(${name})"

        for column, type_ in types.items():
            # Of one type with the column, so that the comparison stays the same.
            texts = pa.types.is_string(type_) and not self.has_collation()
            integers = pa.types.is_integer(type_)
            predicate = with_lists(predicate, column, replace)
        return predicate, added

    # -- statistics ------------------------------------------------------------------------------

    def statistics(
        self, table: FileTable, column: str, predicate: Predicate, parameters: Mapping[str, Any], among: Files
    ) -> Files | None:
        """Return the files in which a predicate may be TRUE by their footers, None if these cannot tell."""
        asked = bounded(predicate)
        condition = self._over_bounds(table, column, asked, parameters) if asked is not None else None
        if condition is None:
            return None
        unread = sorted(statistics_of(table).unread(among, [column]))
        if unread and len(among) - len(unread) < SAMPLED_FOOTERS and self._samples(len(among)):
            self._statistics_of(table, unread[:: max(1, len(unread) // SAMPLED_FOOTERS)], [column])
        told = statistics_of(table).column(column)
        found = self._candidates(table, column, condition, parameters, told)
        if found is not None and told is not None and unread:
            looked = among & told.complete
            share = PAYING_SHARE if self.store.is_local else PAYING_REMOTE_SHARE
            if len(looked - found) >= share * max(1, len(looked)) and self._statistics_of(table, unread, [column]):
                found = self._candidates(table, column, condition, parameters, statistics_of(table).column(column))
        return found

    def files_by_bounds(
        self, table: FileTable, column: str, predicate: Predicate, parameters: Mapping[str, Any], known: ColumnBounds
    ) -> Files | None:
        """Return the files in which a predicate may be TRUE by bounds that are known, None if these cannot tell."""
        asked = bounded(predicate)
        condition = self._over_bounds(table, column, asked, parameters) if asked is not None else None
        return None if condition is None else self._candidates(table, column, condition, parameters, known, "told")

    def has_bounds(self, table: FileTable, column: str, predicate: Predicate) -> bool:
        """Return whether footers may rule out files for a predicate; of remote files only many are worth it."""
        if not table.has_footers or not has_ordered_bounds(table.types[column]) or bounded(predicate) is None:
            return False
        known = statistics_of(table).column(column)
        return self._samples(len(table.files)) or (known is not None and bool(known.complete))

    def _samples(self, files: int) -> bool:
        return self.store.is_local or files >= MIN_REMOTE_FILES

    def _over_bounds(self, table: FileTable, column: str, asked: Bounded, parameters: Mapping[str, Any]) -> str | None:
        """Return a predicate as a condition over bounds, None if these do not decide whether it is TRUE."""
        type_ = table.types[column]
        if not table.has_footers or not has_ordered_bounds(type_):
            return None
        try:
            declared = sql_type(type_)
            typed = ", ".join(f"typeof({t})" for t in asked.typed)
            types = self.rows(f"SELECT {typed}", _used(parameters, typed))[0] if typed else ()
            condition = asked.over(declared, types)
            if condition is None or (declared == "VARCHAR" and self.has_collation()):
                return None
            nan = f"CAST('nan' AS {declared})"
            number = f"SELECT 1 FROM (SELECT {nan} AS low, {nan} AS high, true AS has_values, 0 AS nulls) WHERE "
            if pa.types.is_floating(type_) and self.rows(number + condition, _used(parameters, condition)):
                return None
        except (duckdb.Error, FormatError):
            return None
        return condition

    def _candidates(
        self,
        table: FileTable,
        column: str,
        condition: str,
        parameters: Mapping[str, Any],
        known: ColumnBounds | None,
        by: str = "",
    ) -> Files | None:
        """Return the files of which a row group may satisfy a condition over bounds, or has none."""
        if known is None or not known.complete:
            return None
        try:
            name = self.structures.statistics(table, column, known, by)
            rows = self.rows(f"SELECT DISTINCT file FROM {name} WHERE {condition}", _used(parameters, condition))
        except duckdb.Error:
            return None
        left = frozenset(row[0] for row in rows)
        return left if len(known.complete) == len(table.files) else left | (table.all_files - known.complete)

    def _statistics_of(
        self, table: FileTable, files: Sequence[int], columns: Sequence[str] = ()
    ) -> TableStatistics | None:
        """Return what is known of a table, once footers were read; None where the statement will show the error."""
        try:
            return self.footers.statistics(self, table, files, columns)
        except (FormatError, StoreError):
            return None

    # -- types, as the session has them -----------------------------------------

    def type_name(self, type_: pa.DataType) -> str | None:
        """Return DuckDB's name of an Arrow type, None for columns that are all NULL."""
        return None if pa.types.is_null(type_) else sql_type(type_)

    def type_of(self, expression: str) -> str | None:
        """Return the type that DuckDB gives an expression without columns, None if it has none."""
        try:
            rows = self.rows(f"SELECT typeof({expression}\n)")
        except duckdb.Error:
            return None
        type_ = str(rows[0][0])
        return None if type_ == '"NULL"' else type_

    def has_collation(self) -> bool:
        """Return whether the session compares texts by a collation."""
        return bool(self.instance.settings.get("default_collation"))

    def time_zone(self) -> str:
        """Return the time zone of the session."""
        return str(self.instance.settings.get("TimeZone", "UTC"))

    # -- files that are not opened -------------------------------------------------------------

    def row_counts(self, table: FileTable, files: Sequence[int]) -> list[int] | None:
        """Return how many rows files have; footers are read if neither metadata nor earlier statements tell that."""
        if table.stored_bounds is not None and -1 not in (found := [table.stored_bounds.rows[f] for f in files]):
            return found
        known = self._statistics_of(table, files) if table.has_footers else None
        return None if known is None else known.rows(files)

    def bounds(self, table: FileTable, columns: Sequence[str], files: Sequence[int]) -> list[ColumnBounds] | None:
        """Return the bounds of columns in the footers of files, None for types without and columns of others."""
        types = [table.types[column] for column in columns if column in table.types]
        if not table.has_footers or len(types) < len(columns) or not all(map(has_ordered_bounds, types)):
            return None
        if self.has_collation() and any(t in (pa.string(), pa.large_string()) for t in types):
            return None
        told = [None if table.stored_bounds is None else table.stored_bounds.column(column) for column in columns]
        if all(c is not None and c.are_exact and c.complete.issuperset(files) for c in told):
            return told  # type: ignore[return-value]
        known = self._statistics_of(table, files, columns)
        found = [known.column(column) for column in columns] if known is not None else [None]
        return None if None in found else found  # type: ignore[return-value]

    # -- small sources -------------------------------------------------------------------------

    def values(
        self,
        source: Occurrence,
        scan: OccurrenceScan | None,
        column: str,
        condition: Condition | None,
        parameters: Mapping[str, Any],
        limit: int,
    ) -> list[Any] | Held | None:
        """Return the distinct values of a column but NULL, as a table of the engine where they are many."""
        shown = source.source.exposed
        name = quote(shown.get(column, column))
        where = condition.render(lambda ref: quote(shown.get(ref[1], ref[1]))) if condition is not None else "true"
        used = parameters_for(condition, parameters) if condition is not None else {}
        try:
            if scan is None:
                self.register("kartosql_given", display_rows(source.source))
            body = "FROM kartosql_given" if scan is None else self.relations.body(scan)
            held = self.hold(
                f"SELECT DISTINCT {name} AS v FROM ({body}) WHERE {name} IS NOT NULL AND {where} LIMIT {limit + 1}",
                used,
            )
            ((count,),) = self.rows(f"SELECT count(*) FROM {held}")
            if count > limit:
                return None
            if count <= MAX_FETCHED:
                with contextlib.suppress(duckdb.Error):  # Python may lack a module for their type
                    fetched = [v for (v,) in self.rows(f"FROM {held}")]
                    # DuckDB gives the first and the last date of Python for infinite ones, too.
                    if not any(str(v)[:10] in ("0001-01-01", "9999-12-31") for v in fetched):
                        return fetched
            return Held(f"FROM {held}", count, partial(self._fetched, held, count))
        except (duckdb.Error, FormatError):
            return None  # the statement itself will tell whether that matters

    def _fetched(self, held: str, count: int) -> list[Any] | None:
        if count > MAX_FETCHED:
            return None
        try:
            found: list[Any] = self.table(f"FROM {held}")["v"].to_pylist()
        except (duckdb.Error, ValueError, OverflowError):
            return None
        return found


def _used(parameters: Mapping[str, Any], sql: str) -> dict[str, Any]:
    """Return the parameters that may occur in a query, as DuckDB refuses others."""
    return {name: value for name, value in parameters.items() if re.search(rf"\${re.escape(name)}(?!\w)", sql)}
