"""DuckDB's plan of a statement as one statement of Spark SQL.

DuckDB resolves all that SQL leaves open: names, types, implicit casts, overloads, correlated
subqueries. Its bound plan, not yet optimized, is written out operator by operator, so that Spark
has nothing left to decide. What has no rule here is refused with ``not-portable``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kartosql.engines.spark.portable.aggregates import Aggregates, Windows
from kartosql.engines.spark.portable.casts import cast
from kartosql.engines.spark.portable.constants import Constants, Fold, Node
from kartosql.engines.spark.portable.duckdb_types import BIGINT, Type, identifier, read_type
from kartosql.engines.spark.portable.expressions import COMPARABLE, Expressions, SparkColumn
from kartosql.engines.spark.portable.joins import JoinBuilder, JoinWriter, Marked, SparkRelation
from kartosql.errors import NotPortable, Span

View = tuple[str, str]  # schema and name of a table in DuckDB
_GROUPABLE = COMPARABLE + "lS"
_MAX_LIMIT = 2**31 - 1
_MAX_SETS = 64


@dataclass(frozen=True)
class Translation:
    """A statement of Spark SQL; its columns are c0, c1, ... and have the Spark types of ``types``."""

    sql: str
    types: tuple[Type, ...]


def translate(
    plan: Node,
    views: Mapping[View, str],
    fold: Fold,
    *,
    is_volatile: Callable[[str], bool],
    zone: str = "UTC",
    span_of: Callable[[Node], Span | None] = lambda node: None,
) -> Translation:
    """Return the statement of Spark SQL for a bound, unoptimized plan of DuckDB.

    ``views`` gives the Spark view for each table of the plan, whose columns have the same names.
    ``fold`` evaluates constant expressions in DuckDB, with the clock of the statement. Raises
    ``not-portable`` for all that Spark would answer differently.
    """
    constants = Constants(fold, is_volatile)
    constants.find(plan)
    translator = Translator(views, Expressions(constants, zone, span_of))
    try:
        return translator.statement(plan)
    except RecursionError:
        raise NotPortable("The statement is nested too deeply for Spark.") from None


class Translator:
    """Writes one plan, operator by operator."""

    def __init__(self, views: Mapping[View, str], expressions: Expressions) -> None:
        self._views = views
        self._expressions = expressions
        self._builder = JoinBuilder()
        self._joins = JoinWriter(expressions, self._builder)
        self._aggregates = Aggregates(expressions)
        self._windows = Windows(expressions, self._aggregates)
        self._shared: dict[int, tuple[str, tuple[SparkColumn, ...]]] = {}

    def statement(self, plan: Node) -> Translation:
        """Return the whole statement."""
        relation = self.relation(plan)
        items = [f"CAST({c.sql} AS {c.type.spark()}) AS c{i}" for i, c in enumerate(relation.columns)]
        text = relation.select(items)
        if self._builder.expressions:
            text = "WITH " + ", ".join(f"{n} AS ({q})" for n, q in self._builder.expressions) + " " + text
        return Translation(text, tuple(c.type for c in relation.columns))

    def relation(self, node: Node) -> SparkRelation:
        """Return the relation of an operator; raises ``not-portable``."""
        found = self._operator(node)
        return self._joins.written(found) if isinstance(found, Marked) else found

    def _operator(self, node: Node) -> SparkRelation | Marked:
        make = _OPERATORS.get(node["type"])
        if make is None:
            shown = str(node["type"]).removeprefix("LOGICAL_").replace("_", " ")
            raise NotPortable(f"Spark has nothing like {shown} as DuckDB has it.")
        found: SparkRelation | Marked = make(self, node)
        return found

    def _child(self, node: Node, at: int = 0) -> SparkRelation:
        return self.relation(node["children"][at])

    # -- sources -----------------------------------------------------------------------------------

    def _get(self, node: Node) -> SparkRelation:
        name = node["qname"]["path"][-1]
        if name in ("range", "generate_series") and not node.get("children"):
            return self._range(node, name)
        if name != "seq_scan" or (node.get("table_filters") or {}).get("filters") or node.get("projection_ids"):
            raise NotPortable(f"Spark has no table function {name} as DuckDB has it.")
        data = node["function_data"]
        view = self._views[data["schema"], data["table"]]
        columns, items = [], []
        for index in node.get("column_indexes", ()):
            at = index.get("index", 0)
            if set(index) - {"index"}:
                raise NotPortable("Spark cannot read such a part of a column.")
            if at >= len(node["names"]):
                columns.append(SparkColumn("CAST(NULL AS BIGINT)", BIGINT))  # the row's number, which count(*) asks for
                continue
            alias = self._builder.fresh()
            items.append(f"{identifier(node['names'][at])} AS {alias}")
            columns.append(SparkColumn(alias, read_type(node["returned_types"][at])))
        return self._builder.query(f"SELECT {', '.join(items) or 'true'} FROM {identifier(view)}", columns)

    def _range(self, node: Node, name: str) -> SparkRelation:
        values = [p.get("value") for p in node.get("parameters", ())]
        if not 1 <= len(values) <= 3 or any(
            p["type"]["id"] != "BIGINT" or p.get("is_null") for p in node["parameters"]
        ):
            raise NotPortable(f"Spark has no {name} over such values as DuckDB has it.")
        numbers = [int(v or 0) for v in values]
        if len(numbers) == 1:
            numbers = [0, *numbers]
        first, last, step = [*numbers, 1][:3]
        if step == 0 or max(map(abs, (first, last, step))) > 2**60:
            raise NotPortable(f"Spark has no {name} over such values as DuckDB has it.")
        if name == "generate_series":
            last += 1 if step > 0 else -1
        alias = self._builder.fresh()
        query = f"SELECT id AS {alias} FROM range({first}, {last}, {step}, 1)"
        return self._builder.query(query, [SparkColumn(alias, BIGINT)])

    def _dummy(self, node: Node) -> SparkRelation:
        return SparkRelation(None, (SparkColumn("CAST(NULL AS INT)", Type("INTEGER")),))

    def _empty(self, node: Node) -> SparkRelation:
        columns = [SparkColumn(f"CAST(NULL AS {t.spark()})", t) for t in map(read_type, node["return_types"])]
        return self._builder.project(SparkRelation(None, (), where=("false",)), columns)

    def _values(self, node: Node) -> SparkRelation:
        types = [read_type(t) for t in node["expr_types"]]
        rows = []
        for row in node["expressions"]:
            values = [self._expressions.render(e, ()) for e in row]
            shown = (cast(v.sql, v.type, t) for v, t in zip(values, types, strict=True))
            rows.append("(" + ", ".join(f"CAST({s} AS {t.spark()})" for s, t in zip(shown, types, strict=True)) + ")")
        names = [self._builder.fresh() for _ in types]
        query = f"SELECT * FROM VALUES {', '.join(rows)} AS {self._builder.fresh('t')}({', '.join(names)})"
        return self._builder.query(query, [SparkColumn(n, t) for n, t in zip(names, types, strict=True)])

    def _unnest(self, node: Node) -> SparkRelation:
        below = node["children"][0]
        child = None if below["type"] == "LOGICAL_DUMMY_SCAN" else self._builder.item(self.relation(below))
        if len(node["expressions"]) != 1:
            raise NotPortable("Spark does not unnest several lists at once as DuckDB does.")
        columns = child.columns if child is not None else self._dummy(below).columns
        values = self._expressions.render(node["expressions"][0]["child"], columns)
        if values.type.kind != "l":
            raise NotPortable(f"Spark does not unnest {values.type.sql()} as DuckDB does.")
        alias = self._builder.fresh()
        element = SparkColumn(alias, values.type.element)
        if child is None:
            return self._builder.query(f"SELECT explode({values.sql}) AS {alias}", [*columns, element])
        view = f"LATERAL VIEW explode({values.sql}) {self._builder.fresh('t')} AS {alias}"
        return SparkRelation(f"{child.source} {view}", (*columns, element), simple=False)

    # -- rows and columns ----------------------------------------------------------------------------

    def _projection(self, node: Node) -> SparkRelation | Marked:
        expressions = node["expressions"]
        below = node["children"][0]
        if below["type"] == "LOGICAL_AGGREGATE_AND_GROUP_BY" and any(map(_allows_one_row, expressions)):
            child: SparkRelation | Marked = self._aggregate(below, one_row=True)
        else:
            child = self._operator(below)
        if all(e["expression_class"] == "BOUND_REF" for e in expressions):
            positions = [e.get("index", 0) for e in expressions]
            if isinstance(child, SparkRelation):
                return child.of(positions)
            if positions[-1] == len(child.columns) and max(positions[:-1], default=0) < len(child.columns):
                return replace(child, columns=tuple(child.columns[p] for p in positions[:-1]))
        if isinstance(child, Marked):
            child = self._joins.written(child)
        items = []
        for expression in expressions:
            found = self._expressions.render(expression, child.columns)
            items.append(SparkColumn(found.sql, found.type))
        return self._builder.project(child, items)

    def _filter(self, node: Node) -> SparkRelation:
        below, conditions = self._operator(node["children"][0]), list(node["expressions"])
        found = self._by_mark(below, conditions) if isinstance(below, Marked) else self._builder.unlimited(below)
        shown = [self._expressions.sql(c, found.columns) for c in conditions]
        found = found.filtered(shown)
        return found.of(node["projection_map"]) if node.get("projection_map") else found

    def _by_mark(self, marked: Marked, conditions: list[Node]) -> SparkRelation:
        """Return marked rows as the semi join that a condition makes of them, and take that condition out."""
        at = len(marked.columns)
        for condition in conditions:
            negated = condition.get("type") == "OPERATOR_NOT"
            inner = condition["children"][0] if negated else condition
            if inner["expression_class"] == "BOUND_REF" and inner.get("index", 0) == at:
                found = self._joins.only(marked, found=not negated)
                if found is not None:
                    conditions.remove(condition)
                    return found
        return self._joins.written(marked)

    def _order(self, node: Node) -> SparkRelation:
        child = self._builder.unlimited(self._child(node))
        child = replace(child, order=self._aggregates.order_of(node["orders"], child.columns))
        return child.of(node["projection_map"]) if node.get("projection_map") else child

    def _limit(self, node: Node) -> SparkRelation:
        child = self._child(node)
        if child.limit:
            child = self._builder.settled(child)
        if child.source is None:
            child = self._builder.project(child, child.columns)
        text = ""
        for key, word in (("limit_val", "LIMIT"), ("offset_val", "OFFSET")):
            value = node.get(key) or {}
            kind = value.get("type", "UNSET")
            if kind == "CONSTANT_VALUE" and 0 <= value.get("constant_integer", 0) <= _MAX_LIMIT:
                text += f" {word} {value.get('constant_integer', 0)}"
            elif kind != "UNSET":
                raise NotPortable(f"Spark has no {word} as DuckDB has it unless it is a constant number.")
        return replace(child, limit=text)

    def _distinct(self, node: Node) -> SparkRelation:
        child = self._child(node)
        if any(c.type.kind not in _GROUPABLE for c in child.columns):
            raise NotPortable("Spark does not compare such values as DuckDB does.")
        if node.get("distinct_type") != "DISTINCT_ON":
            targets = [t.get("index", 0) for t in node["distinct_targets"] if t["expression_class"] == "BOUND_REF"]
            if sorted(set(targets)) != list(range(len(child.columns))):
                raise NotPortable("Spark has no such DISTINCT as DuckDB has it.")
            return self._once(self._builder.settled(child))
        orders = (node.get("order_by") or {}).get("orders") or ()
        child = self._builder.settled(child)
        order = self._aggregates.order_of(orders, child.columns)
        if not order:
            raise NotPortable("Spark does not answer DISTINCT ON without ORDER BY as DuckDB does.")
        keys = ", ".join(self._expressions.sql(t, child.columns) for t in node["distinct_targets"])
        number = SparkColumn(f"row_number() OVER (PARTITION BY {keys} ORDER BY {order})", BIGINT)
        found = self._builder.project(child, [*child.columns, number])
        last = found.columns[-1].sql
        return replace(found.filtered([f"{last} = 1"]), columns=found.columns[:-1])

    def _once(self, child: SparkRelation) -> SparkRelation:
        """Return each row once."""
        if all(c.type.kind not in "fd" for c in child.columns):
            return self._builder.project(child, child.columns, distinct=True)
        below = self._builder.project(child, child.columns)
        return self._grouped(below, list(below.columns), [], [list(range(len(below.columns)))], [])

    def _window(self, node: Node) -> SparkRelation:
        child = self._builder.settled(self._child(node))
        items = [self._windows.render(e, child.columns) for e in node["expressions"]]
        return self._builder.project(child, [*child.columns, *items])

    # -- groups ----------------------------------------------------------------------------------------

    def _aggregate(self, node: Node, *, one_row: bool = False) -> SparkRelation:
        child = self._builder.settled(self._child(node))
        groups = [self._expressions.render(g, child.columns) for g in node.get("groups", ())]
        if any(g.type.kind not in _GROUPABLE for g in groups):
            raise NotPortable("Spark does not group by such values as DuckDB does.")
        sets = [list(s) for s in node.get("grouping_sets") or ()]
        if not sets:
            sets = [list(range(len(groups)))]
        # Keys are columns of their own: constants among them would be places, and Spark clears those of grouping sets.
        keys = [SparkColumn(g.sql, g.type) for g in groups]
        below = self._builder.project(child, [*child.columns, *keys]) if keys else child
        keys = list(below.columns[len(child.columns) :])
        inputs = below.columns[: len(child.columns)]
        items = [self._aggregates.render(e, inputs, one_row=one_row) for e in node.get("expressions", ())]
        return self._grouped(below, keys, items, sets, [list(f) for f in node.get("grouping_functions") or ()])

    def _grouped(
        self,
        below: SparkRelation,
        keys: list[SparkColumn],
        items: list[SparkColumn],
        sets: list[list[int]],
        masks: list[list[int]],
    ) -> SparkRelation:
        """Return the groups of some sets of keys; ``masks`` are the keys that each GROUPING(...) tells of."""
        types = [*(k.type for k in keys), *(i.type for i in items), *(BIGINT for _ in masks)]
        names = [self._builder.fresh() for _ in types]

        def query(found: list[str], bits: Callable[[int], str], group: str) -> str:
            told = [" + ".join(f"{bits(k)} * {1 << at}L" for at, k in enumerate(reversed(m))) for m in masks]
            shown = [f"{sql} AS {n}" for sql, n in zip([*found, *(i.sql for i in items), *told], names, strict=True)]
            return below.select(shown or ["count(*)"]) + group

        every = ", ".join(k.sql for k in keys)
        parts = []
        if sets == [list(range(len(keys)))]:
            parts = [query([_of_group(k) for k in keys], lambda k: "0", f" GROUP BY {every}" if keys else "")]
        elif len(sets) > _MAX_SETS:
            raise NotPortable("Spark cannot be given so many grouping sets.")
        else:
            plain = [s for s in sets if s]
            if plain:
                shown = ", ".join("(" + ", ".join(keys[i].sql for i in s) + ")" for s in plain)
                values = [f"CASE WHEN grouping({k.sql}) = 0 THEN {_of_group(k)} END" for k in keys]
                parts.append(query(values, lambda k: f"grouping({keys[k].sql})", f" GROUP BY GROUPING SETS ({shown})"))
            # Over no rows Spark leaves out the set without keys, which has one row; so it is one aggregate of all rows.
            nothing = [f"first(CAST(NULL AS {k.type.spark()}))" for k in keys]
            parts += [query(nothing, lambda k: "1", "")] * (len(sets) - len(plain))
        columns = [SparkColumn(n, t) for n, t in zip(names, types, strict=True)]
        return self._builder.query(
            parts[0] if len(parts) == 1 else " UNION ALL ".join(f"({p})" for p in parts), columns
        )

    # -- several relations -------------------------------------------------------------------------------

    def _join(self, node: Node) -> SparkRelation | Marked:
        left, right = self._child(node, 0), self._child(node, 1)
        if node.get("join_type") == "MARK":
            return self._joins.mark(node, left, right)
        return self._joins.join(node, left, right)

    def _cross(self, node: Node) -> SparkRelation:
        return self._joins.cross(self._child(node, 0), self._child(node, 1))

    def _set(self, node: Node) -> SparkRelation:
        word = node["type"].removeprefix("LOGICAL_")
        word += " ALL" if node.get("setop_all", True) else ""
        sides = [self._builder.settled(self._child(node, i)) for i in range(len(node["children"]))]
        types = [c.type for c in sides[0].columns]
        if any([c.type for c in s.columns] != types for s in sides):
            raise NotPortable(f"Spark does not find one type for the sides of {word} as DuckDB does.")
        if word != "UNION ALL" and any(t.kind not in _GROUPABLE for t in types):
            raise NotPortable("Spark does not compare such values as DuckDB does.")
        names = [self._builder.fresh() for _ in types]
        queries = [s.select([f"{c.sql} AS {n}" for c, n in zip(s.columns, names, strict=True)]) for s in sides]
        columns = [SparkColumn(n, t) for n, t in zip(names, types, strict=True)]
        if word == "UNION" and any(t.kind in "fd" for t in types):
            return self._once(self._builder.query(" UNION ALL ".join(f"({q})" for q in queries), columns))
        return self._builder.query(f" {word} ".join(f"({q})" for q in queries), columns)

    def _shared_query(self, node: Node) -> SparkRelation | Marked:
        definition = self.relation(node["children"][0])
        if definition.limit == "":
            definition = replace(definition, order="")
        name = self._builder.shared(definition)
        self._shared[node.get("table_index", 0)] = (name, definition.columns)
        return self._operator(node["children"][1])

    def _reference(self, node: Node) -> SparkRelation:
        found = self._shared.get(node.get("cte_index", 0))
        if found is None:
            raise NotPortable("Spark has no recursive queries as DuckDB has them.")
        name, columns = found
        return self._builder.reference(name, columns)


def _of_group(key: SparkColumn) -> str:
    """Return the key of a group; that of floats is one that the group holds, as Spark's own has no negative zero."""
    return f"min({key.sql})" if key.type.kind in "fd" else key.sql


def _allows_one_row(expression: Node) -> bool:
    """Return whether an expression is what DuckDB makes of a scalar subquery: it fails if that has several rows."""
    checks = list(expression.get("case_checks") or [])
    then = checks[0]["then_expr"] if len(checks) == 1 else {}
    return then.get("expression_class") == "BOUND_FUNCTION" and then["qname"]["path"][-1] == "error"


Make = Callable[[Translator, Node], Any]
_OPERATORS: Mapping[str, Make] = {
    "LOGICAL_GET": Translator._get,
    "LOGICAL_DUMMY_SCAN": Translator._dummy,
    "LOGICAL_EMPTY_RESULT": Translator._empty,
    "LOGICAL_EXPRESSION_GET": Translator._values,
    "LOGICAL_UNNEST": Translator._unnest,
    "LOGICAL_PROJECTION": Translator._projection,
    "LOGICAL_FILTER": Translator._filter,
    "LOGICAL_ORDER_BY": Translator._order,
    "LOGICAL_LIMIT": Translator._limit,
    "LOGICAL_DISTINCT": Translator._distinct,
    "LOGICAL_WINDOW": Translator._window,
    "LOGICAL_AGGREGATE_AND_GROUP_BY": Translator._aggregate,
    "LOGICAL_COMPARISON_JOIN": Translator._join,
    "LOGICAL_ANY_JOIN": Translator._join,
    "LOGICAL_CROSS_PRODUCT": Translator._cross,
    "LOGICAL_UNION": Translator._set,
    "LOGICAL_EXCEPT": Translator._set,
    "LOGICAL_INTERSECT": Translator._set,
    "LOGICAL_MATERIALIZED_CTE": Translator._shared_query,
    "LOGICAL_CTE_REF": Translator._reference,
}
