"""DuckDB's plan of a statement as one statement of Spark SQL.

DuckDB resolves all that SQL leaves open: names, types, implicit casts, overloads, correlated
subqueries. Its bound plan, not yet optimized, is written out operator by operator, so that Spark
has nothing left to decide. What has no rule here is refused with ``not-portable``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kartosql.engines.duckdb.logical import MAX_PIVOTED
from kartosql.engines.spark.portable.aggregates import Aggregates
from kartosql.engines.spark.portable.expressions import Expressions, Fold, Node, constant, constants_of
from kartosql.engines.spark.types import (
    BIGINT,
    BOOLEAN,
    COMPARABLE,
    SparkExpression,
    Type,
    cast,
    identifier,
    literal,
    raises,
    read_type,
    refuses,
)
from kartosql.errors import NotPortable, Span
from kartosql.sql.statement_policy import UNKNOWN_FORM

View = tuple[str, str]  # schema and name of a table in DuckDB
_GROUPABLE = COMPARABLE + "lS"
_MAX_LIMIT = 2**31 - 1
_MAX_SETS = 64


_WORDS = {
    "INNER": "JOIN",
    "LEFT": "LEFT JOIN",
    "RIGHT": "RIGHT JOIN",
    "FULL": "FULL JOIN",
    "OUTER": "FULL JOIN",
    "SEMI": "LEFT SEMI JOIN",
    "ANTI": "LEFT ANTI JOIN",
}
SAME, OTHER, EQUAL = "COMPARE_NOT_DISTINCT_FROM", "COMPARE_DISTINCT_FROM", "COMPARE_EQUAL"
# How the rows of the right side of an ASOF join follow one another, and what the next one has to be to the left side.
_NEXT = {
    "COMPARE_GREATERTHANOREQUALTO": ("ASC", "<"),
    "COMPARE_GREATERTHAN": ("ASC", "<="),
    "COMPARE_LESSTHANOREQUALTO": ("DESC", ">"),
    "COMPARE_LESSTHAN": ("DESC", ">="),
}
# Operators that Spark lets stand between a recursive query and its own rows.
_RECURRING = {f"LOGICAL_{n}" for n in ("PROJECTION", "FILTER", "CROSS_PRODUCT", "COMPARISON_JOIN", "ANY_JOIN")}
_SEVERAL = "More than one row returned by a subquery used as an expression"


@dataclass(frozen=True)
class SparkRelation:
    """A FROM clause, and what else a SELECT over it has to have; ``columns`` are in scope there.

    Names of columns are unique in the whole statement, so that none needs a qualifier.
    """

    source: str | None  # None for one row without columns
    columns: tuple[SparkExpression, ...]
    where: tuple[str, ...] = ()
    order: str = ""
    limit: str = ""
    simple: bool = True  # whether the source is a single item

    def select(self, items: Sequence[str], *, distinct: bool = False) -> str:
        """Return the SELECT of some expressions."""
        text = f"SELECT {'DISTINCT ' if distinct else ''}{', '.join(items) or 'true'}"
        if self.source is not None:
            text += f" FROM {self.source}"
        elif self.where:
            text += " FROM (SELECT true)"
        if self.where:
            text += f" WHERE {' AND '.join(self.where)}"
        if self.order:
            text += f" ORDER BY {self.order}"
        return text + self.limit

    def filtered(self, conditions: Sequence[str]) -> SparkRelation:
        """Return the rows that satisfy conditions; not for relations with a limit."""
        return replace(self, where=(*self.where, *conditions))

    def of(self, positions: Sequence[int]) -> SparkRelation:
        """Return some of the columns, in a given order."""
        return replace(self, columns=tuple(self.columns[i] for i in positions))


class JoinBuilder:
    """Makes relations out of others, with names that are used nowhere else."""

    def __init__(self) -> None:
        self._count = 0
        self.recursive = False
        self.expressions: list[tuple[str, str]] = []  # common table expressions: name and query, in order

    def fresh(self, letter: str = "k") -> str:
        """Return a name that is used nowhere else."""
        self._count += 1
        return f"{letter}{self._count}"

    def project(
        self,
        relation: SparkRelation,
        items: Sequence[SparkExpression],
        *,
        distinct: bool = False,
        group: Sequence[SparkExpression] = (),
    ) -> SparkRelation:
        """Return the relation of some expressions over another one, ``group`` by those that begin them."""
        columns = [SparkExpression(self.fresh(), i.type) for i in items]
        query = relation.select([f"{i.sql} AS {c.sql}" for i, c in zip(items, columns, strict=True)], distinct=distinct)
        return self.query(query + (f" GROUP BY {', '.join(g.sql for g in group)}" if group else ""), columns)

    def query(self, query: str, columns: Sequence[SparkExpression]) -> SparkRelation:
        """Return the relation that a query is."""
        return SparkRelation(f"({query}) AS {self.fresh('t')}", tuple(columns))

    def settled(self, relation: SparkRelation) -> SparkRelation:
        """Return the relation as a source with nothing around it; an order without limit is dropped."""
        if not relation.limit:
            relation = replace(relation, order="")
        is_source = not relation.where and not relation.limit and relation.source is not None
        return relation if is_source else self.project(relation, relation.columns)

    def item(self, relation: SparkRelation) -> SparkRelation:
        """Return the relation as a single item of FROM."""
        settled = self.settled(relation)
        return settled if settled.simple else self.project(settled, settled.columns)

    def unlimited(self, relation: SparkRelation) -> SparkRelation:
        """Return the relation as one that may be filtered and ordered."""
        return self.settled(relation) if relation.limit else relation

    def shared(self, relation: SparkRelation) -> str:
        """Make a relation a common table expression and return its name; its columns are c0, c1, ..."""
        name = self.fresh("w")
        items = [f"{c.sql} AS c{i}" for i, c in enumerate(relation.columns)]
        self.expressions.append((name, relation.select(items)))
        return name

    def reference(self, name: str, columns: Sequence[SparkExpression]) -> SparkRelation:
        """Return one reference to a common table expression."""
        items = [SparkExpression(f"c{i}", c.type) for i, c in enumerate(columns)]
        return self.project(SparkRelation(name, tuple(items)), items)


@dataclass(frozen=True)
class JoinCondition:
    """A condition of a join: a comparison of a value of either side, or an expression over both."""

    sql: str
    comparison: str
    left: SparkExpression | None = None
    right: SparkExpression | None = None

    def __post_init__(self) -> None:
        if "rand()" in self.sql:
            raise NotPortable("Spark does not answer random() in the condition of a join as DuckDB does.")


@dataclass(frozen=True)
class Marked:
    """Rows with a mark that says whether a subquery holds something like them; not yet written out.

    The mark is the last column. Where it only filters, a semi join takes its place.
    """

    left: SparkRelation
    right: SparkRelation
    conditions: tuple[JoinCondition, ...]
    columns: tuple[SparkExpression, ...]  # of the left side that are kept


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
    try:
        translator = Translator(views, Expressions(constants_of(plan, fold, is_volatile), zone, span_of, fold))
        relation = translator.relation(plan)
    except RecursionError:
        raise NotPortable("The statement is nested too deeply for Spark.") from None
    except UNKNOWN_FORM as e:
        raise NotPortable(f"DuckDB's plan has a form that Spark cannot follow: {e!r}") from None
    text = relation.select([f"CAST({c.sql} AS {c.type.spark()}) AS c{i}" for i, c in enumerate(relation.columns)])
    if translator.builder.expressions:
        text = (
            f"WITH {'RECURSIVE ' if translator.builder.recursive else ''}"
            + ", ".join(f"{n} AS ({q})" for n, q in translator.builder.expressions)
            + " "
            + text
        )
    return Translation(text, tuple(c.type for c in relation.columns))


class Translator:
    """Writes one plan, operator by operator."""

    def __init__(self, views: Mapping[View, str], expressions: Expressions) -> None:
        self._views = views
        self._expressions = expressions
        self.builder = JoinBuilder()
        self._aggregates = Aggregates(expressions)
        self._shared: dict[int, tuple[str, tuple[SparkExpression, ...]]] = {}
        self._identities: set[int] = set()  # windows that number rows so that they can be told apart, in any order

    def relation(self, node: Node) -> SparkRelation:
        """Return the relation of an operator by the method with the name of its type; raises ``not-portable``."""
        found = self._operator(node)
        return self._written(found) if isinstance(found, Marked) else found

    def _operator(self, node: Node) -> SparkRelation | Marked:
        make = getattr(self, f"_{node['type'].lower()}", None)
        if make is None:
            shown = str(node["type"]).removeprefix("LOGICAL_").replace("_", " ")
            raise NotPortable(f"Spark has nothing like {shown} as DuckDB has it.")
        found: SparkRelation | Marked = make(node)
        return found

    def _child(self, node: Node, at: int = 0) -> SparkRelation:
        return self.relation(node["children"][at])

    # -- sources -----------------------------------------------------------------------------------

    def _logical_get(self, node: Node) -> SparkRelation:
        name = node["qname"]["path"][-1]
        if name in ("range", "generate_series", "unnest") and not node.get("children"):
            return self._range(node, name)
        if name == "unnest":
            return self._lateral_unnest(node)
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
                # The row's number, which count(*) asks for.
                columns.append(SparkExpression("CAST(NULL AS BIGINT)", BIGINT))
                continue
            alias = self.builder.fresh()
            items.append(f"{identifier(node['names'][at])} AS {alias}")
            columns.append(SparkExpression(alias, read_type(node["returned_types"][at])))
        return self.builder.query(f"SELECT {', '.join(items) or 'true'} FROM {identifier(view)}", columns)

    def _range(self, node: Node, name: str) -> SparkRelation:
        given = node.get("parameters", ())
        known = (
            name != "unnest"
            and 1 <= len(given) <= 3
            and all(p["type"]["id"] == "BIGINT" and not p.get("is_null") for p in given)
        )
        numbers = [int(p.get("value") or 0) for p in given] if known else [0, 0, 0]
        first, last, step = {1: [0, *numbers, 1], 2: [*numbers, 1]}.get(len(numbers), numbers)
        alias = self.builder.fresh()
        if step == 0 or max(map(abs, (first, last, step))) > 2**60:
            shown = ", ".join(map(constant, given))
            (values,) = self._expressions.fold([shown if name == "unnest" else f"{name}({shown})"])
            if not isinstance(values, list):
                raise NotPortable(f"Spark has no {name} over such values as DuckDB has it.")
            type_ = read_type(node["returned_types"][0])
            list_ = literal(values, Type("LIST", parts=(("", type_),)))
            return self.builder.query(f"SELECT explode({list_}) AS {alias}", [SparkExpression(alias, type_)])
        if name == "generate_series":
            last += 1 if step > 0 else -1
        query = f"SELECT id AS {alias} FROM range({first}, {last}, {step}, 1)"
        return self.builder.query(query, [SparkExpression(alias, BIGINT)])

    def _logical_dummy_scan(self, node: Node) -> SparkRelation:
        return SparkRelation(None, (SparkExpression("CAST(NULL AS INT)", Type("INTEGER")),))

    def _logical_empty_result(self, node: Node) -> SparkRelation:
        columns = [SparkExpression(f"CAST(NULL AS {t.spark()})", t) for t in map(read_type, node["return_types"])]
        return self.builder.project(SparkRelation(None, (), where=("false",)), columns)

    def _logical_expression_get(self, node: Node) -> SparkRelation:
        types = [read_type(t) for t in node["expr_types"]]
        rows = []
        for row in node["expressions"]:
            values = [self._expressions.render(e, ()) for e in row]
            shown = (cast(v.sql, v.type, t) for v, t in zip(values, types, strict=True))
            rows.append("(" + ", ".join(f"CAST({s} AS {t.spark()})" for s, t in zip(shown, types, strict=True)) + ")")
        names = [self.builder.fresh() for _ in types]
        query = f"SELECT * FROM VALUES {', '.join(rows)} AS {self.builder.fresh('t')}({', '.join(names)})"
        return self.builder.query(query, [SparkExpression(n, t) for n, t in zip(names, types, strict=True)])

    def _logical_unnest(self, node: Node) -> SparkRelation:
        below = node["children"][0]
        child = None if below["type"] == "LOGICAL_DUMMY_SCAN" else self.builder.item(self.relation(below))
        columns = child.columns if child is not None else self._logical_dummy_scan(below).columns
        return self._exploded(
            child, columns, [self._expressions.render(e["child"], columns) for e in node["expressions"]]
        )

    def _lateral_unnest(self, node: Node) -> SparkRelation:
        """Return the elements of a list of each row that a correlated query is asked for."""
        below = (node.get("children") or [{}])[0]
        source = (below.get("children") or [{}])[0].get("type")
        if source not in ("LOGICAL_CTE_REF", "LOGICAL_DUMMY_SCAN") or len(node["names"]) != 1:
            raise NotPortable("Spark does not unnest such values as DuckDB does.")
        child = self.builder.item(self.relation(below))
        rows = self._exploded(child, child.columns, list(child.columns[:1]))
        return rows.of([len(child.columns), *node.get("projected_input", ())])

    def _exploded(
        self, child: SparkRelation | None, columns: Sequence[SparkExpression], lists: Sequence[SparkExpression]
    ) -> SparkRelation:
        """Return rows with the elements of lists, side by side, which end with NULL if one list is shorter."""
        for list_ in lists:
            if list_.type.kind != "l":
                raise NotPortable(f"Spark does not unnest {list_.type.sql()} as DuckDB does.")
        elements = [SparkExpression(self.builder.fresh(), v.type.element) for v in lists]
        names = ", ".join(e.sql for e in elements)
        call = f"explode({lists[0].sql})"
        if len(lists) > 1:
            call = f"inline(arrays_zip({', '.join(f'coalesce({v.sql}, array())' for v in lists)}))"
        if child is None:
            shown = names if len(lists) == 1 else f"({names})"
            return self.builder.query(f"SELECT {call} AS {shown}", [*columns, *elements])
        view = f"LATERAL VIEW {call} {self.builder.fresh('t')} AS {names}"
        return SparkRelation(f"{child.source} {view}", (*columns, *elements), simple=False)

    # -- rows and columns ----------------------------------------------------------------------------

    def _logical_projection(self, node: Node) -> SparkRelation | Marked:
        expressions = node["expressions"]
        below = node["children"][0]
        if below["type"] == "LOGICAL_AGGREGATE_AND_GROUP_BY" and any(map(_allows_one_row, expressions)):
            child: SparkRelation | Marked = self._logical_aggregate_and_group_by(below, one_row=True)
        else:
            child = self._operator(below)
        if all(e["expression_class"] == "BOUND_REF" for e in expressions):
            positions = [e.get("index", 0) for e in expressions]
            if isinstance(child, SparkRelation):
                return child.of(positions)
            if positions[-1] == len(child.columns) and max(positions[:-1], default=0) < len(child.columns):
                return replace(child, columns=tuple(child.columns[p] for p in positions[:-1]))
        if isinstance(child, Marked):
            child = self._written(child)
        return self.builder.project(child, [self._expressions.render(e, child.columns) for e in expressions])

    def _logical_filter(self, node: Node) -> SparkRelation:
        below, conditions = self._operator(node["children"][0]), list(node["expressions"])
        found = self._by_mark(below, conditions) if isinstance(below, Marked) else self.builder.unlimited(below)
        found = found.filtered([self._expressions.sql(c, found.columns) for c in conditions])
        return found.of(node["projection_map"]) if node.get("projection_map") else found

    def _by_mark(self, marked: Marked, conditions: list[Node]) -> SparkRelation:
        """Return marked rows as the semi join that a condition makes of them, and take that condition out."""
        at = len(marked.columns)
        for condition in conditions:
            negated = condition.get("type") == "OPERATOR_NOT"
            inner = condition["children"][0] if negated else condition
            if inner["expression_class"] == "BOUND_REF" and inner.get("index", 0) == at:
                found = self._only(marked, found=not negated)
                if found is not None:
                    conditions.remove(condition)
                    return found
        return self._written(marked)

    def _logical_pivot(self, node: Node) -> SparkRelation:
        raise NotPortable(f"Spark does not answer PIVOT with more than {MAX_PIVOTED:,} values as DuckDB does.")

    def _logical_order_by(self, node: Node) -> SparkRelation:
        child = self.builder.unlimited(self._child(node))
        child = replace(child, order=self._aggregates.order_of(node["orders"], child.columns))
        return child.of(node["projection_map"]) if node.get("projection_map") else child

    def _logical_limit(self, node: Node) -> SparkRelation:
        child = self.builder.unlimited(self._child(node))
        if child.source is None:
            child = self.builder.project(child, child.columns)
        text = ""
        for key, word in (("limit_val", "LIMIT"), ("offset_val", "OFFSET")):
            value = node.get(key) or {}
            kind = value.get("type", "UNSET")
            if kind == "CONSTANT_VALUE" and 0 <= value.get("constant_integer", 0) <= _MAX_LIMIT:
                text += f" {word} {value.get('constant_integer', 0)}"
            elif kind != "UNSET":
                raise NotPortable(f"Spark has no {word} as DuckDB has it unless it is a constant number.")
        return replace(child, limit=text)

    def _logical_distinct(self, node: Node) -> SparkRelation:
        child = self.builder.settled(self._child(node))
        if any(c.type.kind not in _GROUPABLE for c in child.columns):
            raise NotPortable("Spark does not compare such values as DuckDB does.")
        if node.get("distinct_type") != "DISTINCT_ON":
            targets = [t.get("index", 0) for t in node["distinct_targets"] if t["expression_class"] == "BOUND_REF"]
            if sorted(set(targets)) != list(range(len(child.columns))):
                raise NotPortable("Spark has no such DISTINCT as DuckDB has it.")
            return self._once(child)
        order = self._aggregates.order_of((node.get("order_by") or {}).get("orders") or (), child.columns)
        if not order:
            raise NotPortable("Spark does not answer DISTINCT ON without ORDER BY as DuckDB does.")
        keys = ", ".join(self._expressions.sql(t, child.columns) for t in node["distinct_targets"])
        number = SparkExpression(f"row_number() OVER (PARTITION BY {keys} ORDER BY {order})", BIGINT)
        found = self.builder.project(child, [*child.columns, number])
        last = found.columns[-1].sql
        return replace(found.filtered([f"{last} = 1"]), columns=found.columns[:-1])

    def _once(self, child: SparkRelation) -> SparkRelation:
        if all(c.type.kind not in "fd" for c in child.columns):
            return self.builder.project(child, child.columns, distinct=True)
        below = self.builder.project(child, child.columns)
        return self._grouped(below, list(below.columns), [], [list(range(len(below.columns)))], [])

    def _logical_sample(self, node: Node) -> SparkRelation:
        options, child = node["sample_options"], self.builder.settled(self._child(node))
        size = options["sample_size"].get("value") or 0
        if options.get("seed", -1) != -1 or options.get("repeatable"):
            raise NotPortable("Spark has other random numbers than DuckDB for the same seed.")
        if options.get("is_percentage"):
            return child.filtered([f"rand() < {float(size) / 100!r}D"])
        return replace(child, order="rand()", limit=f" LIMIT {min(int(size), _MAX_LIMIT)}")

    def _logical_window(self, node: Node) -> SparkRelation:
        child = self.builder.settled(self._child(node))
        if id(node) in self._identities:
            number = SparkExpression("monotonically_increasing_id()", BIGINT)
            return self.builder.project(child, [*child.columns, number])
        items = [self._aggregates.window(e, child.columns) for e in node["expressions"]]
        return self.builder.project(child, [*child.columns, *items])

    # -- groups ----------------------------------------------------------------------------------------

    def _logical_aggregate_and_group_by(self, node: Node, *, one_row: bool = False) -> SparkRelation:
        child = self.builder.settled(self._child(node))
        groups = [self._expressions.render(g, child.columns) for g in node.get("groups", ())]
        if any(g.type.kind not in _GROUPABLE for g in groups):
            raise NotPortable("Spark does not group by such values as DuckDB does.")
        sets = [list(s) for s in node.get("grouping_sets") or ()] or [list(range(len(groups)))]
        # Keys are columns of their own: constants among them would be places, and Spark clears those of grouping sets.
        below = self.builder.project(child, [*child.columns, *groups]) if groups else child
        inputs, keys = below.columns[: len(child.columns)], list(below.columns[len(child.columns) :])
        items = [self._aggregates.render(e, inputs, one_row=one_row) for e in node.get("expressions", ())]
        return self._grouped(below, keys, items, sets, [list(f) for f in node.get("grouping_functions") or ()])

    def _grouped(
        self,
        below: SparkRelation,
        keys: list[SparkExpression],
        items: list[SparkExpression],
        sets: list[list[int]],
        masks: list[list[int]],
    ) -> SparkRelation:
        """Return the groups of some sets of keys; ``masks`` are the keys of each GROUPING(...)."""
        types = [*(k.type for k in keys), *(i.type for i in items), *(BIGINT for _ in masks)]
        names = [self.builder.fresh() for _ in types]

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
        columns = [SparkExpression(n, t) for n, t in zip(names, types, strict=True)]
        union = parts[0] if len(parts) == 1 else " UNION ALL ".join(f"({p})" for p in parts)
        return self.builder.query(union, columns)

    # -- several relations -------------------------------------------------------------------------------

    def _logical_comparison_join(self, node: Node) -> SparkRelation | Marked:
        kind = node.get("join_type", "INNER")
        left, right = self.builder.settled(self._child(node, 0)), self.builder.item(self._child(node, 1))
        if kind == "MARK":
            return Marked(left, right, tuple(self._conditions(node, left, right)), _picked(node, "left", left))
        if kind == "SINGLE":
            return self._single(node, left, right)
        word = _WORDS.get(kind)
        if word is None:
            raise NotPortable(f"Spark has no {kind} JOIN as DuckDB has it.")
        on = " AND ".join(c.sql for c in self._conditions(node, left, right))
        if not on and kind == "INNER":
            word = "CROSS JOIN"
        source = f"{left.source} {word} {right.source}" + (f" ON {on or 'true'}" if word != "CROSS JOIN" else "")
        columns = _picked(node, "left", left)
        if kind not in ("SEMI", "ANTI"):
            columns += _picked(node, "right", right)
        return SparkRelation(source, columns, simple=False)

    _logical_any_join = _logical_cross_product = _logical_comparison_join

    def _logical_union(self, node: Node) -> SparkRelation:
        word = node["type"].removeprefix("LOGICAL_")
        word += " ALL" if node.get("setop_all", True) else ""
        sides = [self.builder.settled(self._child(node, i)) for i in range(len(node["children"]))]
        types = [c.type for c in sides[0].columns]
        if any([c.type for c in s.columns] != types for s in sides):
            raise NotPortable(f"Spark does not find one type for the sides of {word} as DuckDB does.")
        if word != "UNION ALL" and any(t.kind not in _GROUPABLE for t in types):
            raise NotPortable("Spark does not compare such values as DuckDB does.")
        names = [self.builder.fresh() for _ in types]
        queries = [s.select([f"{c.sql} AS {n}" for c, n in zip(s.columns, names, strict=True)]) for s in sides]
        columns = [SparkExpression(n, t) for n, t in zip(names, types, strict=True)]
        if word == "UNION" and any(t.kind in "fd" for t in types):
            return self._once(self.builder.query(" UNION ALL ".join(f"({q})" for q in queries), columns))
        return self.builder.query(f" {word} ".join(f"({q})" for q in queries), columns)

    _logical_except = _logical_intersect = _logical_union

    def _logical_materialized_cte(self, node: Node) -> SparkRelation | Marked:
        numbered = (node["children"][0].get("children") or [{}])[0]
        windows = list(numbered.get("expressions", ())) if numbered.get("type") == "LOGICAL_WINDOW" else []
        if str(node.get("ctename")).startswith("__duckdb_delim") and len(windows) == 1:
            # One that the user wrote has a place in the text, and another frame.
            known = (windows[0].get("type"), windows[0].get("end")) == ("WINDOW_ROW_NUMBER", "CURRENT_ROW_ROWS")
            if known and "query_location" not in windows[0]:
                self._identities.add(id(numbered))
        if node["children"][0]["type"] == "LOGICAL_RECURSIVE_CTE":
            self._shared[node.get("table_index", 0)] = self._recursive(node["children"][0])
            return self._operator(node["children"][1])
        definition = self.relation(node["children"][0])
        if definition.limit == "":
            definition = replace(definition, order="")
        name = self.builder.shared(definition)
        self._shared[node.get("table_index", 0)] = (name, definition.columns)
        return self._operator(node["children"][1])

    def _recursive(self, node: Node) -> tuple[str, tuple[SparkExpression, ...]]:
        """Make a recursive query a common table expression, and return its name and columns."""
        index, (first, step) = node.get("table_index", 0), node["children"]
        if not node.get("union_all") or not _reaches_once(step, index):
            raise NotPortable("Spark has no recursive query such as this one as DuckDB has it.")
        anchor, name = self.relation(first), self.builder.fresh("w")
        self._shared[index] = (name, anchor.columns)
        parts = [
            side.select([f"CAST({c.sql} AS {c.type.spark()}) AS c{i}" for i, c in enumerate(side.columns)])
            for side in (anchor, self.relation(step))
        ]
        self.builder.expressions.append((name, " UNION ALL ".join(f"({p})" for p in parts)))
        self.builder.recursive = True
        return name, anchor.columns

    def _logical_cte_ref(self, node: Node) -> SparkRelation:
        found = self._shared.get(node.get("cte_index", 0))
        if found is None:
            raise NotPortable("Spark has no recursive queries as DuckDB has them.")
        return self.builder.reference(*found)

    # -- joins -------------------------------------------------------------------------------------------

    def _conditions(self, node: Node, left: SparkRelation, right: SparkRelation) -> list[JoinCondition]:
        both = (*left.columns, *right.columns)
        if "condition" in node:
            return [JoinCondition(self._expressions.sql(node["condition"], both), "INVALID")]
        found = []
        for condition in node.get("conditions", ()):
            comparison = condition.get("comparison", "INVALID")
            if comparison == "INVALID":
                found.append(JoinCondition(self._expressions.sql(condition["left"], both), comparison))
                continue
            a = self._expressions.render(condition["left"], left.columns)
            b = self._expressions.render(condition["right"], right.columns)
            found.append(JoinCondition(self._expressions.compare(comparison, a, b), comparison, a, b))
        return found

    def _logical_asof_join(self, node: Node) -> SparkRelation:
        """Return rows with the nearest one of the other side, which holds until the next one."""
        kind, left, right = node.get("join_type", "INNER"), self._child(node, 0), self._child(node, 1)
        left, right = self.builder.settled(left), self.builder.settled(right)
        conditions = self._conditions(node, left, right)
        near = [c for c in conditions if c.comparison in _NEXT]
        same = [c for c in conditions if c.comparison in (EQUAL, SAME)]
        if kind not in ("INNER", "LEFT") or len(near) != 1 or len(same) < len(conditions) - 1:
            raise NotPortable(f"Spark has no such ASOF {kind} JOIN as DuckDB has it.")
        keys = [c.right for c in (*same, *near) if c.right is not None]
        held = self.builder.project(right, [*right.columns, *keys])
        groups, at = [k.sql for k in held.columns[len(right.columns) : -1]], held.columns[-1]
        order, beyond = _NEXT[near[0].comparison]
        over = f"PARTITION BY {', '.join(groups)}" if groups else ""
        following = f"lead({at.sql}) OVER ({over} ORDER BY {at.sql} {order})"
        twins = f"count(*) OVER (PARTITION BY {', '.join([*groups, at.sql])})"
        held = held.filtered([f"{at.sql} IS NOT NULL"])
        held = self.builder.project(
            held, [*held.columns, SparkExpression(following, at.type), SparkExpression(twins, BIGINT)]
        )
        *values, at, until, count = held.columns
        on = []
        for condition, key in zip((*same, *near), [*values[len(right.columns) :], at], strict=True):
            assert condition.left is not None
            on.append(self._expressions.compare(condition.comparison, condition.left, key))
        assert near[0].left is not None
        on.append(f"({until.sql} IS NULL OR {near[0].left.sql} {beyond} {until.sql})")
        several = refuses("several rows that are as near as each other")
        once = [SparkExpression(f"CASE WHEN {count.sql} > 1 THEN {several} ELSE {v.sql} END", v.type) for v in values]
        source = f"{left.source} {_WORDS[kind]} {held.source} ON {' AND '.join(on)}"
        found = replace(right, columns=tuple(once[: len(right.columns)]))
        columns = (*_picked(node, "left", left), *_picked(node, "right", found))
        return SparkRelation(source, columns, simple=False)

    # -- marks -----------------------------------------------------------------------------------

    def _only(self, marked: Marked, *, found: bool) -> SparkRelation | None:
        """Return the rows whose mark is true, or false with ``found=False``; None if that is no plain join."""
        if not found and any(c.comparison not in (SAME, OTHER) for c in marked.conditions):
            return None  # the mark may be NULL
        word = "LEFT SEMI JOIN" if found else "LEFT ANTI JOIN"
        on = " AND ".join(c.sql for c in marked.conditions) or "true"
        mark = SparkExpression("true" if found else "false", BOOLEAN)
        source = f"{marked.left.source} {word} {marked.right.source} ON {on}"
        return SparkRelation(source, (*marked.columns, mark), simple=False)

    def _written(self, marked: Marked) -> SparkRelation:
        """Return the rows with their mark, which is NULL where SQL's IN is."""
        same = [c for c in marked.conditions if c.comparison == SAME]
        others = [c for c in marked.conditions if c.comparison != SAME]
        if len(others) > 1 or any(c.comparison != EQUAL for c in others):
            raise NotPortable("Spark does not answer such a comparison with a subquery as DuckDB does.")
        right = [c.right for c in (*same, *others) if c.right is not None]
        shared = self.builder.shared(self.builder.project(marked.right, right))
        held = self.builder.reference(shared, right)
        if others:
            held = held.filtered([f"{held.columns[-1].sql} IS NOT NULL"])
        held = self.builder.project(held, [*held.columns, SparkExpression("true", BOOLEAN)], distinct=True)
        on = [f"{c.left.sql} <=> {k.sql}" for c, k in zip(same, held.columns, strict=False) if c.left is not None]
        if not others:
            source = f"{marked.left.source} LEFT JOIN {held.source} ON {' AND '.join(on) or 'true'}"
            mark = f"({held.columns[-1].sql} IS NOT NULL)"
            return SparkRelation(source, (*marked.columns, SparkExpression(mark, BOOLEAN)), simple=False)
        value = others[0].left
        assert value is not None
        on.append(f"{value.sql} = {held.columns[len(same)].sql}")
        # Per key how many values the subquery holds, and how many of them are not NULL.
        all_held = self.builder.reference(shared, right)
        *groups, counted = all_held.columns
        numbers = [SparkExpression(sql, BIGINT) for sql in ("count(*)", f"count({counted.sql})")]
        counts = self.builder.project(all_held, [*groups, *numbers], group=groups)
        keys = [f"{c.left.sql} <=> {k.sql}" for c, k in zip(same, counts.columns, strict=False) if c.left is not None]
        rows, known = (c.sql for c in counts.columns[-2:])
        source = (
            f"{marked.left.source} LEFT JOIN {held.source} ON {' AND '.join(on)} "
            f"LEFT JOIN {counts.source} ON {' AND '.join(keys) or 'true'}"
        )
        mark = (
            f"CASE WHEN {held.columns[-1].sql} THEN true WHEN coalesce({rows}, 0) = 0 THEN false "
            f"WHEN {value.sql} IS NULL OR {known} < {rows} THEN NULL ELSE false END"
        )
        return SparkRelation(source, (*marked.columns, SparkExpression(f"({mark})", BOOLEAN)), simple=False)

    # -- scalar subqueries -------------------------------------------------------------------------

    def _single(self, node: Node, left: SparkRelation, right: SparkRelation) -> SparkRelation:
        """Return rows with the one row of a subquery that belongs to them; several are an error."""
        conditions = self._conditions(node, left, right)
        keys = [c.right for c in conditions if c.right is not None and c.comparison in (SAME, EQUAL)]
        if len(keys) < len(conditions):
            raise NotPortable("Spark does not answer such a subquery as DuckDB does.")
        wanted = _picked(node, "right", right)
        firsts = [SparkExpression(f"first({w.sql})", w.type) for w in wanted]
        items = [*keys, *firsts, SparkExpression("count(*)", BIGINT)]
        found = self.builder.project(right, items, group=keys)
        on = []
        for condition, key in zip(conditions, found.columns, strict=False):
            assert condition.left is not None
            on.append(self._expressions.compare(condition.comparison, condition.left, key))
        several = f"{found.columns[-1].sql} > 1"
        values = [
            SparkExpression(f"(CASE WHEN {several} THEN {raises(_SEVERAL)} ELSE {value.sql} END)", value.type)
            for value in found.columns[len(keys) : -1]
        ]
        source = f"{left.source} LEFT JOIN {found.source} ON {' AND '.join(on) or 'true'}"
        return SparkRelation(source, (*_picked(node, "left", left), *values), simple=False)


def _picked(node: Node, side: str, relation: SparkRelation) -> tuple[SparkExpression, ...]:
    positions = node.get(f"{side}_projection_map")
    return relation.columns if not positions else tuple(relation.columns[p] for p in positions)


def _of_group(key: SparkExpression) -> str:
    """Return the key of a group; that of floats is one that the group holds, as Spark's own has no negative zero."""
    return f"min({key.sql})" if key.type.kind in "fd" else key.sql


def _reaches_once(node: Node, index: int) -> bool:
    """Return whether a recursive query uses its own rows once, and where Spark lets it: in inner joins and filters."""
    found = [n for n in _operators(node) if n["type"] == "LOGICAL_CTE_REF" and n.get("cte_index", 0) == index]
    while node.get("type") in _RECURRING:
        if node.get("join_type", "INNER") != "INNER":
            return False
        node = next((c for c in node["children"] if any(n is found[0] for n in _operators(c))), node) if found else {}
    return len(found) == 1 and node is found[0]


def _operators(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("children", ()):
        yield from _operators(child)


def _allows_one_row(expression: Node) -> bool:
    """Return whether an expression is what DuckDB makes of a scalar subquery: it fails if that has several rows."""
    checks = list(expression.get("case_checks") or [])
    then = checks[0]["then_expr"] if len(checks) == 1 else {}
    return then.get("expression_class") == "BOUND_FUNCTION" and then["qname"]["path"][-1] == "error"
