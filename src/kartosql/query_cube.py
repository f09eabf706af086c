"""The original's ``query_cube`` over the SQL planner.

Differences are documented in docs/python.md: conditions see only the rows that count
(overwritten ones stay overwritten), ``!=`` drops NULL, bool and bytes partition values
come back as what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from kartosql.conditions import Condition, Conjunction, check_types, is_null, parse_conditions, to_sql
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.errors import SqlError, UsageError
from kartosql.formats.kartothek.cube import Cube, CubeState
from kartosql.plan.bind import Parameters, bind
from kartosql.plan.reader import ConditionReader
from kartosql.predicate.tree import Comparison, Constant, Group, In, Opaque, Predicate, Value, as_type
from kartosql.predicate.tree import Condition as Planned
from kartosql.query import SelectQuery
from kartosql.result import Query
from kartosql.session import Session
from kartosql.sql import Select, parse, parse_select
from kartosql.tables.names import Tables, cube_table
from kartosql.tables.table import Table
from kartosql.text.constants import quote

_TABLE = "cube"
_Columns = tuple[str, ...]
_Names = str | Iterable[str] | None


def query_cube(
    session: Session,
    cube: Cube | str,
    dimension_columns: _Names,
    partition_by: _Names,
    payload_columns: _Names,
    *,
    conditions: Any,
    datasets: _Names,
) -> Query | list[Query]:
    """Return the rows of a cube, or of what is attached, as the original does; see Connection.query_cube."""
    tables, named = session.tables(), _names(dimension_columns, "dimension_columns")
    snapshot, chosen = tables.snapshot, _names(datasets, "datasets")
    source = None
    if named and chosen is None and isinstance(cube, str) and cube not in snapshot.members:
        try:
            found = tables.find((cube,))
            source = found if found.is_attached else None
        except SqlError as e:  # the cube that it is not is told instead
            if e.code != "unknown-table":
                raise
    source = source or cube_table(_restrict(snapshot.find_cube(cube), chosen))
    known = source.cube  # what is attached has the dimensions that are named
    whole, partitions = (known.dimension_columns, known.partition_columns) if known else (named or (), ())
    dimensions = whole if named is None else named
    groups = _names(partition_by, "partition_by") or ()
    payload = _names(payload_columns, "payload_columns")
    parsed = parse_conditions(conditions, source.columns)
    _check_names(source, whole, dimensions, groups, payload)
    parsed = check_types(parsed, source.columns)
    columns = sorted({*dimensions, *partitions, *groups, *(source.columns if payload is None else payload)})
    dropped = {*whole} - {*dimensions}
    _check_projection(source, dropped, {*columns, *(c.column for c in parsed)} - {*whole, *partitions})
    text, parameters = _sql(columns, dropped - {*groups}, groups, (*dimensions, *partitions), parsed)
    # The order of the rows is by code point, whatever collation the session has.
    own = session.settings.copy()
    own.set("default_collation", None)
    query = SelectQuery(parse_select(text), Tables(snapshot, {_TABLE: source}), session.runtime, own, parameters)
    split = _split(query.arrow(), groups) if groups else [query.arrow()]
    results = [Query(t, query.types, report=query.report, stats=query.stats) for t in split]
    return results if groups else results[0]


def _names(value: _Names | bytes, what: str) -> _Columns | None:
    if value is None:
        return None
    if not isinstance(value, Iterable):
        raise UsageError(f"{what}: {value!r} is no list of names.")
    names = (value,) if isinstance(value, (str, bytes)) else tuple(value)
    names = tuple(n.decode() if isinstance(n, bytes) else n for n in names)
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{what}: {name!r} is no name.")
    if len(set(names)) < len(names) and what in ("dimension_columns", "partition_by"):
        raise UsageError(f"{what}: a name occurs twice in {names!r}.")
    return tuple(dict.fromkeys(names))


def _restrict(state: CubeState, datasets: _Columns | None) -> CubeState:
    if datasets is None:
        return state
    missing = sorted(set(datasets) - set(state.members))
    if missing:
        raise UsageError(f"The cube has no dataset {', '.join(missing)}.", code="unknown-dataset")
    if state.cube.seed_dataset not in datasets:
        raise UsageError(f"The seed dataset {state.cube.seed_dataset!r} must be among the datasets.", code="no-seed")
    return CubeState(state.cube, {n: m for n, m in state.members.items() if n in datasets})


def _check_names(
    source: Table, whole: _Columns, dimensions: _Columns, groups: _Columns, payload: _Columns | None
) -> None:
    if not dimensions:
        raise UsageError("Dimension columns cannot be empty.")
    for what, names, known in (
        ("Dimension", dimensions, source.columns.keys() & whole),
        ("Partition-by", groups, source.columns),
        ("Payload", payload or (), source.columns),
    ):
        missing = [n for n in names if n not in known]
        if missing:
            raise UsageError(f"{what} columns that the cube does not have: {', '.join(missing)}", code="unknown-column")
    unindexed = []
    tables = [part.table for part in source.parts]
    for column in groups:
        # The original fails for dates that are no partition key; whoever relies on that gets an error here too.
        is_indexed = any(column in t.indices for t in tables) and not pa.types.is_date(source.columns[column])
        if not is_indexed and not any(column in t.partition_keys for t in tables):
            unindexed.append(column)
    if unindexed:
        raise UsageError(f"Partition-by columns without index: {', '.join(unindexed)}", code="not-indexed")


def _check_projection(source: Table, dropped: set[str], needed: Iterable[str]) -> None:
    """Refuse columns of datasets whose cells are not determined by the dimensions asked for."""
    keys = {part.name: part.join_key for part in source.parts}
    for column in sorted(needed):
        owner = source.owner[column]
        if lost := [c for c in keys[owner] if c in dropped]:
            raise UsageError(
                f"Column {column!r} of dataset {owner!r} depends on {', '.join(lost)}, which is not asked for.",
                code="cannot-project",
                hint="Add the dimension, or aggregate with SQL.",
            )


def _sql(
    columns: list[str], dropped: set[str], groups: _Columns, order: _Columns, conditions: list[Condition]
) -> tuple[str, Mapping[str, Any]]:
    where, parameters = to_sql(conditions, quote)
    parts = [where, *(f"{quote(g)} IS NOT NULL" for g in groups)]
    predicate = " AND ".join(p for p in parts if p)
    # Of a dimension that is projected away the original shows some value of the cells that become one.
    quoted = {c: quote(c) for c in columns}
    items = [f"max({q}) AS {q}" if c in dropped else q for c, q in quoted.items()]
    text = f"SELECT {', '.join(items)} FROM {_TABLE}" + (f" WHERE {predicate}" if predicate else "")
    if dropped:
        text += f" GROUP BY {', '.join(q for c, q in quoted.items() if c not in dropped)}"
    return f"{text} ORDER BY {', '.join(map(quote, dict.fromkeys([*groups, *order])))}", parameters


def _split(table: pa.Table, groups: _Columns) -> list[pa.Table]:
    """Cut a table that is sorted by ``groups`` where their values change."""
    import pyarrow.compute as pc  # not at the top: it takes longer to import than a small query to run

    starts = {0} if table.num_rows else set()
    for name in groups:
        column = table.column(name).combine_chunks()
        if len(column) > 1:
            changed = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
            starts.update(i + 1 for i, c in enumerate(changed.to_pylist()) if c)
    cuts = [*sorted(starts), table.num_rows]
    return [table.slice(a, b - a) for a, b in pairwise(cuts)]


# -- SQL as conditions ------------------------------------------------------------------------------

_OPS = {"=": "==", "<>": "!="}


def conditions_of(session: Session, sql: str, parameters: Parameters) -> Conjunction:
    """Return what the WHERE of a SELECT over one cube says as conditions; see Connection.conditions."""
    tables, runtime = session.tables(), session.runtime
    statement = parse(sql)
    if not isinstance(statement, Select):
        raise UsageError("Conditions are those of a SELECT over one cube.", code="invalid-condition")
    bound = bind(statement, tables, parameters)
    if bound.suspects:
        raise bound.unknown_names()
    found = statement.tree.args.get("where") if statement.tree is not None else None
    source = bound.occurrences[0].source if len(bound.occurrences) == 1 else None
    cube = source.cube if source is not None else None
    if source is None or cube is None or source.name != cube.uuid_prefix or len(bound.walked.scopes) != 1:
        hint = "Write SELECT * FROM cube WHERE ..., without joins, subqueries and set operations."
        raise UsageError("Conditions are those of a SELECT over one cube.", code="invalid-condition", hint=hint)
    if found is None:
        return Conjunction(())
    with runtime.planner(session.settings, FileAccess(runtime.store)) as planner, planner.errors(statement.text):
        reader = ConditionReader(bound, planner)
        if not reader.agrees(found.this):
            raise _no_condition("this WHERE, which the parsers read differently")
        read = reader.read(found.this)
        collated = planner.has_collation()
    whole = read.items if isinstance(read, Group) and read.op == "AND" else (read,)
    real = bound.walked.scopes[0].sources[0].real
    types = {name: type_ for name, type_ in source.columns.items() if not (collated and pa.types.is_string(type_))}
    conditions = [c for part in whole for c in _conditions(part.text, _exactly(part), types, real)]
    return Conjunction(tuple(check_types(conditions, source.columns)))


def _exactly(condition: Planned) -> Predicate | None:
    """Return a predicate that is TRUE for the very same rows, or None."""
    if isinstance(condition, Opaque):
        return condition.says()
    if not isinstance(condition, Group):
        return None
    # An OR of values that one column may have is a list of them.
    said = [_exactly(item) for item in condition.items]
    listed = [p for p in said if (isinstance(p, In) and not p.negated) or (isinstance(p, Comparison) and p.op == "=")]
    constants = [v for p in listed for v in _constants(p)]
    if condition.op == "AND" or len(listed) < len(said) or len({p.path for p in listed}) > 1 or None in constants:
        return None
    return In(listed[0].path, tuple(v for v in constants if v is not None))


def _constants(leaf: Comparison | In) -> tuple[Value | None, ...]:
    return (leaf.value,) if isinstance(leaf, Comparison) else leaf.values or (None,)


def _conditions(
    text: str, predicate: Predicate | None, types: Mapping[str, pa.DataType], real: Callable[[str], str]
) -> Iterator[Condition]:
    """Yield the conditions that a predicate is made of; raises ``invalid-condition`` for all others."""
    if isinstance(predicate, Group) and predicate.op == "AND":
        for item in predicate.items:
            yield from _conditions(text, item, types, real)
        return
    if predicate == Constant(True):
        return
    if not isinstance(predicate, Comparison | In) or len(predicate.path) > 1:
        raise _no_condition(text)
    column = real(predicate.path[0][1])
    constants = _constants(predicate)
    values = [as_type(v, types[column]) if v is not None and column in types else None for v in constants]
    if any(is_null(v) for v in values):
        raise _no_condition(text)
    if isinstance(predicate, Comparison):
        yield Condition(column, _OPS.get(predicate.op, predicate.op), values[0])
    elif predicate.negated:
        yield from (Condition(column, "!=", value) for value in values)
    else:
        yield Condition(column, "in", tuple(values))


def _no_condition(text: str) -> UsageError:
    hint = "They compare a column with constants of its type by = <> < <= > >= IN and BETWEEN, joined by AND."
    return UsageError(f"The conditions of query_cube cannot say {text}.", code="invalid-condition", hint=hint)
