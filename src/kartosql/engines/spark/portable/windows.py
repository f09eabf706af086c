"""Window functions on Spark as DuckDB has them."""

from __future__ import annotations

from collections.abc import Sequence

from kartosql.engines.spark.portable.aggregates import Aggregates
from kartosql.engines.spark.portable.constants import Node
from kartosql.engines.spark.portable.expressions import COMPARABLE, Column, Expressions
from kartosql.engines.spark.portable.functions import Arg
from kartosql.engines.spark.portable.types import read_type
from kartosql.errors import NotPortable

_RANKS = {
    "WINDOW_ROW_NUMBER": "row_number()",
    "WINDOW_RANK": "rank()",
    "WINDOW_RANK_DENSE": "dense_rank()",
    "WINDOW_DENSE_RANK": "dense_rank()",
    "WINDOW_PERCENT_RANK": "percent_rank()",
    "WINDOW_CUME_DIST": "cume_dist()",
}
_VALUES = {
    "WINDOW_FIRST_VALUE": "first_value",
    "WINDOW_LAST_VALUE": "last_value",
    "WINDOW_NTH_VALUE": "nth_value",
    "WINDOW_LEAD": "lead",
    "WINDOW_LAG": "lag",
}
_BOUNDS = {
    "UNBOUNDED_PRECEDING": "UNBOUNDED PRECEDING",
    "UNBOUNDED_FOLLOWING": "UNBOUNDED FOLLOWING",
    "CURRENT_ROW_ROWS": "CURRENT ROW",
    "CURRENT_ROW_RANGE": "CURRENT ROW",
    "EXPR_PRECEDING_ROWS": "PRECEDING",
    "EXPR_FOLLOWING_ROWS": "FOLLOWING",
}
_DEFAULT = ("UNBOUNDED_PRECEDING", "CURRENT_ROW_RANGE")


class Windows:
    """Writes the window functions of one plan."""

    def __init__(self, expressions: Expressions, aggregates: Aggregates) -> None:
        self._expressions = expressions
        self._aggregates = aggregates

    def render(self, node: Node, columns: Sequence[Column]) -> Column:
        """Return a window function over the columns of its input; raises ``not-portable``."""
        kind = node["type"]
        name = node["qname"]["path"][-1] if kind == "WINDOW_AGGREGATE" else kind.removeprefix("WINDOW_").lower()
        if node.get("exclude_clause", "NO_OTHER") != "NO_OTHER" or node.get("distinct") or node.get("arg_orders"):
            raise NotPortable(f"Spark has no EXCLUDE, DISTINCT or ORDER BY inside of the window function {name}.")
        order = self._aggregates.order_of(node.get("orders", ()), columns)
        if not order and node.get("orders"):
            raise NotPortable(f"Spark does not answer {name} over rows that are ordered by a constant as DuckDB does.")
        type_ = read_type(node.get("return_type"))
        over = self._over(node, name, order, columns)
        if kind == "WINDOW_AGGREGATE":
            found = self._aggregate(node, name, columns, over)
        elif kind in _RANKS or kind == "WINDOW_NTILE":
            found = self._rank(node, name, columns, over, ordered=bool(order))
        elif kind in _VALUES:
            found = self._value(node, name, columns, over, ordered=bool(order))
        else:
            raise NotPortable(f"Spark has no window function {name} as DuckDB has it.")
        return Column(f"CAST({found} AS {type_.spark()})", type_)

    def _aggregate(self, node: Node, name: str, columns: Sequence[Column], over: str) -> str:
        """Return an aggregate over a window; a FILTER becomes a CASE, which Spark has none for there."""
        if node.get("filters"):
            raise NotPortable(f"Spark has no FILTER of the window function {name}.")
        plain = {k: v for k, v in node.items() if k in ("qname", "children", "return_type", "function_data")}
        found = self._aggregates.over_window(plain, columns)
        if found is None:
            raise NotPortable(f"Spark does not answer {name} over a window as DuckDB does.")
        return found.replace("\0", f" {over}")

    def _rank(self, node: Node, name: str, columns: Sequence[Column], over: str, *, ordered: bool) -> str:
        if node["type"] == "WINDOW_NTILE":
            count = self._expressions.render(node["children"][0], columns)
            if not count.is_constant or not isinstance(count.value, int) or not 0 < count.value < 2**31 or not ordered:
                raise NotPortable("Spark does not answer ntile as DuckDB does unless its argument is a constant.")
            return f"ntile({count.value}) {over}"
        if node.get("children"):
            raise NotPortable(f"Spark has no {name} with arguments.")
        if not ordered:
            # DuckDB numbers rows as they come, which is no order that Spark could know.
            if node["type"] != "WINDOW_ROW_NUMBER" or node.get("alias") != "limit_rownum":
                raise NotPortable(f"Spark does not answer {name} without ORDER BY as DuckDB does.")
            over = over.removesuffix(")") + " ORDER BY 0)"
        return f"{_RANKS[node['type']]} {over}"

    def _value(self, node: Node, name: str, columns: Sequence[Column], over: str, *, ordered: bool) -> str:
        if not ordered:
            raise NotPortable(f"Spark does not answer {name} without ORDER BY as DuckDB does.")
        args = [self._expressions.render(c, columns) for c in node["children"]]
        shown = [args[0].sql]
        for arg in args[1:2]:
            shown.append(_number(arg, name, least=1 if name == "nth_value" else -(2**31)))
        if len(args) == 3 and not (args[2].is_constant and args[2].value is None):
            shown.append(args[2].sql)
        nulls = " IGNORE NULLS" if node.get("ignore_nulls") else ""
        return f"{_VALUES[node['type']]}({', '.join(shown)}){nulls} {over}"

    def _over(self, node: Node, name: str, order: str, columns: Sequence[Column]) -> str:
        """Return the OVER clause."""
        parts = []
        keys = [self._expressions.render(p, columns) for p in node.get("partitions", ())]
        if any(k.type.kind not in COMPARABLE for k in keys):
            raise NotPortable(f"Spark does not partition the rows of {name} as DuckDB does.")
        if keys:
            parts.append("PARTITION BY " + ", ".join(k.sql for k in keys))
        if order:
            parts.append(f"ORDER BY {order}")
        start, end = node.get("start", _DEFAULT[0]), node.get("end", _DEFAULT[1])
        framed = node["type"] == "WINDOW_AGGREGATE" or node["type"] in _VALUES
        offset = node["type"] in ("WINDOW_LEAD", "WINDOW_LAG")
        if framed and not offset and ((start, end) != _DEFAULT or order):
            if start not in _BOUNDS or end not in _BOUNDS:
                raise NotPortable(f"Spark has no frame such as that of {name} as DuckDB has it.")
            rows = "_ROWS" in start + end
            if rows and "CURRENT_ROW_RANGE" in (start, end):
                raise NotPortable(f"Spark has no frame such as that of {name} as DuckDB has it.")
            if not order and rows:
                raise NotPortable(f"Spark does not answer {name} over rows in no order as DuckDB does.")
            low, high = (self._bound(node, end_, columns, name) for end_ in ("start", "end"))
            parts.append(f"{'ROWS' if rows or not order else 'RANGE'} BETWEEN {low} AND {high}")
        return f"OVER ({' '.join(parts)})"

    def _bound(self, node: Node, end: str, columns: Sequence[Column], name: str) -> str:
        kind = node[end]
        if not kind.startswith("EXPR_"):
            return _BOUNDS[kind]
        expression = self._expressions.render(node[f"{end}_expr"], columns)
        return f"{_number(expression, name, least=0)} {_BOUNDS[kind]}"


def _number(arg: Arg, name: str, *, least: int) -> str:
    """Return a constant integer; raises ``not-portable``."""
    if not arg.is_constant or not isinstance(arg.value, int) or not least <= arg.value < 2**31:
        raise NotPortable(f"Spark does not answer {name} with such an offset as DuckDB does.")
    return str(arg.value)
