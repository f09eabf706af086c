"""Aggregate functions on Spark as DuckDB has them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kartosql.engines.spark.portable.expressions import Expressions, Node
from kartosql.engines.spark.portable.ordered import Order, ordered
from kartosql.engines.spark.types import COMPARABLE, SparkExpression, read_type, refuses, text_literal
from kartosql.errors import NotPortable

_SMALL = ("TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER")


def _widened(arg: SparkExpression) -> str:
    """Return an integer as a type in which its sums do not overflow."""
    if arg.type.name in _SMALL:
        return f"CAST({arg.sql} AS BIGINT)"
    return f"CAST({arg.sql} AS DECIMAL(19,0))" if arg.type.name == "BIGINT" else arg.sql


def _statistic(name: str) -> str:
    """Return a statistic; refused where it grows beyond all bounds, as what comes of that hangs on how it is made."""
    found = f"{name}(CAST({{0}} AS DOUBLE)){{f}}"
    beyond = f"isnan({found}) OR abs({found}) = CAST('Infinity' AS DOUBLE)"
    return f"CASE WHEN {beyond} THEN {refuses('a statistic of numbers that are so large, or none')} ELSE {found} END"


def _of_pairs(otherwise: str) -> str:
    """Return a statistic of pairs of floats, with what DuckDB gives where it divides by nothing; refused as others."""
    numbers = ["covar_pop({0}, {1}){f}", "var_pop({0}){f}", "var_pop({1}){f}"]
    beyond = " OR ".join(f"isnan({n}) OR abs({n}) > 1e150D" for n in numbers)
    refused = refuses("a statistic of numbers that are so large, or none")
    found = f"coalesce({{name}}({{0}}, {{1}}){{f}}, {otherwise})"
    return f"CASE WHEN regr_count({{0}}, {{1}}){{f}} = 0 THEN NULL WHEN {beyond} THEN {refused} ELSE {found} END"


def _by_powers(least: int, formula: str) -> str:
    """Return a statistic of sums of powers; refused where these cancel out, as what is left hangs on their order."""
    powers = [f"sum({' * '.join(['{0}'] * k)}){{f}} AS s{k}" for k in (1, 2, 3, 4)]
    sums = ", ".join(["CAST(count({0}){f} AS DOUBLE) AS n", *powers])
    spread = "(r.s2 - r.s1 * r.s1 / r.n)"
    refused = refuses("a statistic of numbers that are so large, or so close to each other")
    return (
        f"transform(array(struct({sums})), r -> CASE WHEN r.n < {least} OR r.s2 = 0 THEN NULL "
        f"WHEN NOT r.s4 < 1e150D OR NOT r.s1 * r.s1 / r.n < 100 * {spread} THEN {refused} ELSE {formula} END)[0]"
    ).replace("SPREAD", spread)


_THIRD = "(r.s3 - 3 * r.s2 * r.s1 / r.n + 2 * r.s1 * r.s1 * r.s1 / r.n / r.n)"
_FOURTH = "(r.s4 - 4 * r.s3 * r.s1 / r.n + 6 * r.s2 * r.s1 * r.s1 / r.n / r.n - 3 * power(r.s1, 4) / r.n / r.n / r.n)"
_KURTOSIS = f"((r.n + 1) * r.n * {_FOURTH} / (SPREAD * SPREAD) - 3 * (r.n - 1)) * (r.n - 1) / ((r.n - 2) * (r.n - 3))"
# Per name and kinds: the template over {0}; {w} is it widened, {f} stands for FILTER or OVER, {d} for DISTINCT.
_TEMPLATES: tuple[tuple[str, str, str], ...] = (
    ("count_star count", "", "count(*){f}"),
    ("count", ".", "count({d}{0}){f}"),
    ("sum sum_no_overflow", "[iuhmd]", "sum({d}{w}){f}"),
    ("sum", "f", "sum({d}CAST({0} AS DOUBLE)){f}"),
    ("sum count_if countif", "b", "sum({d}CAST({0} AS BIGINT)){f}"),
    ("avg mean", "[iuhm]", "(CAST(sum({d}{w}){f} AS DOUBLE) / nullif(CAST(count({d}{0}){f} AS DOUBLE), 0))"),
    ("avg mean", "[fd]", "avg({d}CAST({0} AS DOUBLE)){f}"),
    ("min max", f"[{COMPARABLE}]", "{name}({0}){f}"),
    ("bool_and bool_or", "b", "{name}({0}){f}"),
    ("bit_and bit_or", "i", "{name}({0}){f}"),
    ("bit_xor", "i", "bit_xor({d}{0}){f}"),
    ("stddev_samp stddev", "[dihumf]", _statistic("stddev_samp")),
    ("stddev_pop", "[dihumf]", _statistic("stddev_pop")),
    ("var_samp variance", "[dihumf]", _statistic("var_samp")),
    ("var_pop", "[dihumf]", _statistic("var_pop")),
    ("skewness", "d", _by_powers(3, f"sqrt(r.n * (r.n - 1)) / (r.n - 2) / r.n * {_THIRD} / power(SPREAD / r.n, 1.5)")),
    ("kurtosis", "d", _by_powers(4, _KURTOSIS)),
    ("covar_pop covar_samp regr_intercept regr_r2", "dd", _of_pairs("NULL")),
    ("corr regr_slope", "dd", _of_pairs("CAST('NaN' AS DOUBLE)")),
    ("regr_count", "..", "{name}({0}, {1}){f}"),
)
_RULES = [(name, re.compile(kinds), text) for names, kinds, text in _TEMPLATES for name in names.split(" ")]
_ANY_ROW = frozenset({"first", "last", "any_value", "arbitrary", "list", "array_agg", "string_agg", "group_concat"})
_JOINED = ("string_agg", "group_concat", "listagg")


_RANKS = {f"WINDOW_{n.upper()}": f"{n}()" for n in ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist")}
_RANKS["WINDOW_RANK_DENSE"] = "dense_rank()"
_VALUES = {f"WINDOW_{name.upper()}": name for name in ("first_value", "last_value", "nth_value", "lead", "lag")}
_BOUNDS = {
    **{f"UNBOUNDED_{word}": f"UNBOUNDED {word}" for word in ("PRECEDING", "FOLLOWING")},
    **{f"EXPR_{word}_{unit}": word for word in ("PRECEDING", "FOLLOWING") for unit in ("ROWS", "RANGE")},
    **dict.fromkeys(("CURRENT_ROW_ROWS", "CURRENT_ROW_RANGE"), "CURRENT ROW"),
}
_DEFAULT = ("UNBOUNDED_PRECEDING", "CURRENT_ROW_RANGE")


class Aggregates:
    """Writes the aggregates and window functions of one plan."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions

    def render(self, node: Node, columns: Sequence[SparkExpression], *, one_row: bool = False) -> SparkExpression:
        """Return an aggregate over the columns of its input; raises ``not-portable``.

        With ``one_row`` the statement fails anyway if a group has several rows, so that any row will do.
        """
        name = node["qname"]["path"][-1]
        args = [self._expressions.render(c, columns) for c in node.get("children", ())]
        filter_ = node.get("filter")
        condition = self._expressions.sql(filter_, columns) if filter_ else None
        where = f" FILTER (WHERE {condition})" if condition else ""
        distinct = "DISTINCT " if node.get("aggregate_type") == "DISTINCT" else ""
        if name == "first" and one_row and not where:
            return SparkExpression(f"first({args[0].sql})", args[0].type)
        orders = (node.get("order_bys") or {}).get("orders") or ()
        found = _by_rule(name, args, where, distinct)
        if name in _JOINED and orders and args[0].type.kind == "s" and not (distinct and len(orders) != 1):
            separator = text_literal((node.get("function_data") or {}).get("separator", ","))
            order = self.order_of(orders, columns)
            found = f"listagg({distinct}{args[0].sql}, {separator}) WITHIN GROUP (ORDER BY {order}){where}"
        if found is None:
            keys = self._keys(orders, columns)
            found = ordered(name, args, keys, [condition] if condition else [], distinct=bool(distinct))
        if found is None or "rand()" in found:
            reason = " without an order of its rows" if name in _ANY_ROW and not orders else ""
            reason = " of random numbers" if found else reason
            types = ", ".join(a.type.sql() for a in args)
            raise NotPortable(f"Spark does not answer {name}({types}){reason} as DuckDB does.")
        type_ = read_type(node.get("return_type"))
        return SparkExpression(f"CAST({found} AS {type_.spark()})", type_)

    def order_of(self, orders: Sequence[Node], columns: Sequence[SparkExpression]) -> str:
        """Return the items of an ORDER BY; empty if they are all constants."""
        keys = self._keys(orders, columns)
        return ", ".join(f"{k.sql} {'DESC' if down else 'ASC'} NULLS {'FIRST' if n else 'LAST'}" for k, down, n in keys)

    def _keys(self, orders: Sequence[Node], columns: Sequence[SparkExpression]) -> list[Order]:
        found = []
        for order in orders:
            key = self._expressions.render(order["expression"], columns)
            if key.type.kind not in COMPARABLE:
                raise NotPortable(f"Spark does not order values of the type {key.type.sql()} as DuckDB does.")
            if not key.is_constant:
                found.append((key, order["type"] == "DESCENDING", "FIRST" in order["null_order"]))
        return found

    # -- windows ---------------------------------------------------------------------------------

    def window(self, node: Node, columns: Sequence[SparkExpression]) -> SparkExpression:
        """Return a window function over the columns of its input; raises ``not-portable``."""
        kind = node["type"]
        name = node["qname"]["path"][-1] if kind == "WINDOW_AGGREGATE" else kind.removeprefix("WINDOW_").lower()
        if node.get("exclude_clause", "NO_OTHER") != "NO_OTHER" or node.get("distinct") or node.get("arg_orders"):
            raise NotPortable(f"Spark has no EXCLUDE, DISTINCT or ORDER BY inside of the window function {name}.")
        order = self.order_of(node.get("orders", ()), columns)
        if not order and node.get("orders"):
            raise NotPortable(f"Spark does not answer {name} over rows that are ordered by a constant as DuckDB does.")
        type_, over = read_type(node.get("return_type")), self._over(node, name, order, columns)
        args = [self._expressions.render(c, columns) for c in node.get("children", ())]
        if kind == "WINDOW_AGGREGATE":
            if node.get("filters"):
                raise NotPortable(f"Spark has no FILTER of the window function {name}.")
            found = _by_rule(name, args, f" {over}", "")
            if found is None:
                raise NotPortable(f"Spark does not answer {name} over a window as DuckDB does.")
        else:
            found = f"{_window_call(node, name, args, ordered=bool(order))} {over}"
        return SparkExpression(f"CAST({found} AS {type_.spark()})", type_)

    def _over(self, node: Node, name: str, order: str, columns: Sequence[SparkExpression]) -> str:
        parts = []
        keys = [self._expressions.render(p, columns) for p in node.get("partitions", ())]
        if any(k.type.kind not in COMPARABLE for k in keys):
            raise NotPortable(f"Spark does not partition the rows of {name} as DuckDB does.")
        if keys:
            parts.append("PARTITION BY " + ", ".join(k.sql for k in keys))
        if order or node["type"] == "WINDOW_ROW_NUMBER":
            parts.append(f"ORDER BY {order or 0}")
        start, end = node.get("start", _DEFAULT[0]), node.get("end", _DEFAULT[1])
        framed = node["type"] == "WINDOW_AGGREGATE" or node["type"] in _VALUES
        if framed and node["type"] not in ("WINDOW_LEAD", "WINDOW_LAG") and ((start, end) != _DEFAULT or order):
            rows = "_ROWS" in start + end
            if {start, end} - {*_BOUNDS} or (rows and "CURRENT_ROW_RANGE" in (start, end)):
                raise NotPortable(f"Spark has no frame such as that of {name} as DuckDB has it.")
            if not order and rows:
                raise NotPortable(f"Spark does not answer {name} over rows in no order as DuckDB does.")
            bounds = []
            for bound, expression in ((start, "start_expr"), (end, "end_expr")):
                offset = ""
                if bound.endswith("_RANGE") and bound.startswith("EXPR_"):
                    offset = self._distance(node, node[expression], columns) + " "
                elif bound.startswith("EXPR_"):
                    offset = _number(self._expressions.render(node[expression], columns), name, least=0) + " "
                bounds.append(offset + _BOUNDS[bound])
            if " MONTH " in bounds[0] + bounds[1] and " SECOND " in bounds[0] + bounds[1]:
                raise NotPortable("Spark has no RANGE frame between months and other units as DuckDB has it.")
            parts.append(f"{'ROWS' if rows or not order else 'RANGE'} BETWEEN {' AND '.join(bounds)}")
        return f"OVER ({' '.join(parts)})"

    def _distance(self, node: Node, bound: Node, columns: Sequence[SparkExpression]) -> str:
        """Return how far a bound of a RANGE frame is from the key of the row, which has to be a constant."""
        key = self._expressions.render(node["orders"][0]["expression"], columns)
        given = bound.get("children") or [None]
        offset = self._expressions.render(given[-1], columns) if len(given) == 2 else None
        if offset is None or not offset.value or len(node["orders"]) > 1:
            raise NotPortable("Spark has no RANGE frame but with constants and one key as DuckDB has it.")
        if offset.type == key.type and key.type.kind in "im" and offset.value >= 0:
            return f"{offset.sql}"
        days, nanoseconds = getattr(offset.value, "days", 0), getattr(offset.value, "nanoseconds", 0)
        months = getattr(offset.value, "months", 0)
        if key.type.kind != "T" or min(days, nanoseconds, months) < 0 or (months and (days or nanoseconds)):
            raise NotPortable(f"Spark has no RANGE frame such as this one over {key.type.sql()} as DuckDB has it.")
        if months:
            return f"INTERVAL '{months}' MONTH"
        seconds, rest = divmod(nanoseconds // 1000, 1_000_000)
        return f"INTERVAL '{days * 86_400 + seconds}.{rest:06d}' SECOND"


def _window_call(node: Node, name: str, args: Sequence[SparkExpression], *, ordered: bool) -> str:
    kind = node["type"]
    if kind == "WINDOW_NTILE":
        count = args[0].value
        if not ordered or not isinstance(count, int) or not 0 < count < 2**31:
            raise NotPortable("Spark does not answer ntile as DuckDB does unless its argument is a constant.")
        return f"ntile({count})"
    if kind not in _RANKS and kind not in _VALUES:
        raise NotPortable(f"Spark has no window function {name} as DuckDB has it.")
    # DuckDB numbers rows as they come, which is no order that Spark could know.
    if not ordered and (kind != "WINDOW_ROW_NUMBER" or node.get("alias") != "limit_rownum"):
        raise NotPortable(f"Spark does not answer {name} without ORDER BY as DuckDB does.")
    if kind in _RANKS:
        if args:
            raise NotPortable(f"Spark has no {name} with arguments.")
        return _RANKS[kind]
    shown = [args[0].sql] + [_number(a, name, least=1 if name == "nth_value" else -(2**31)) for a in args[1:2]]
    if len(args) == 3 and not (args[2].is_constant and args[2].value is None):
        shown.append(args[2].sql)
    return f"{_VALUES[kind]}({', '.join(shown)})" + (" IGNORE NULLS" if node.get("ignore_nulls") else "")


def _by_rule(name: str, args: Sequence[SparkExpression], where: str, distinct: str) -> str | None:
    kinds = "".join(a.type.kind for a in args)
    for known, pattern, text in _RULES:
        if known == name and pattern.fullmatch(kinds):
            of_floats = ("stddev", "var", "covar", "corr", "regr", "skew", "kurt")
            if distinct and (kinds in ("y", "j") or name.startswith(of_floats)):
                return None
            widened = _widened(args[0]) if args else ""
            return text.format(*(a.sql for a in args), f=where, d=distinct, w=widened, name=name)
    return None


def _number(arg: SparkExpression, name: str, *, least: int) -> str:
    """Return a constant integer; raises ``not-portable``."""
    if not isinstance(arg.value, int) or not least <= arg.value < 2**31:
        raise NotPortable(f"Spark does not answer {name} with such an offset as DuckDB does.")
    return str(arg.value)
