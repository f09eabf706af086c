"""Functions of lists on Spark as DuckDB has them, and those that take a lambda."""

from __future__ import annotations

from collections.abc import Callable

from kartosql.engines.spark.portable.functions import Call, rule
from kartosql.engines.spark.types import BIGINT, COMPARABLE, SparkExpression, Type, raises, refuses, text_literal
from kartosql.errors import NotPortable

_EQUAL = "iuhmsbDTZx"  # kinds of elements that are one and the same if they are equal
_SUM = (
    "aggregate({n}, CAST(NULL AS {type}), (a, e) -> CAST(coalesce(a, CAST(0 AS {type})) + CAST(e AS {type}) AS {type}))"
)
# Aggregates of a list: kinds of elements, and the expression over the list {l}, and it without NULL, {n}.
_AGGREGATES = {
    "sum": ("iuhmfd", _SUM),
    "avg": ("iuhmfd", f"(CAST({_SUM} AS DOUBLE) / size({{n}}))"),
    "min": (COMPARABLE, "array_min({l})"),
    "max": (COMPARABLE, "array_max({l})"),
    "count": ("", "size({n})"),
    "first": ("", "get({l}, 0)"),
    "last": ("", "get({l}, size({l}) - 1)"),
    "any_value": ("", "get({n}, 0)"),
    "bool_and": ("b", "CASE WHEN size({n}) > 0 THEN forall({n}, e -> e) END"),
    "bool_or": ("b", "CASE WHEN size({n}) > 0 THEN exists({n}, e -> e) END"),
    "string_agg": ("s", "CASE WHEN size({n}) > 0 THEN array_join({n}, {separator}) END"),
}
_NAMES = {"mean": "avg", "group_concat": "string_agg", "listagg": "string_agg", "arbitrary": "first"}
_ORDERS = {
    ("ASC", "LAST"): "array_sort({})",
    ("ASC", "FIRST"): "sort_array({}, true)",
    ("DESC", "LAST"): "sort_array({}, false)",
    ("DESC", "FIRST"): "reverse(array_sort({}))",
}


def _of(kinds: str, text: str) -> Callable[[Call], str]:
    """Return what writes a template over lists of one type, whose elements are of some kinds, or of any."""

    def make(call: Call) -> str:
        for list_ in (a.type for a in call.args if a.type.kind == "l"):
            if (kinds and list_.element.kind not in kinds) or list_ != call.args[0].type:
                raise call.refused()
        shown = [a.sql for a in call.args]
        return text.format(*shown, all=", ".join(shown), type=call.type.spark())

    return make


def _aggregate(call: Call) -> str:
    name = str(call.constant(1)).lower()
    kinds, text = _AGGREGATES.get(_NAMES.get(name, name), ("?", ""))
    element = call.args[0].type.element
    separator = "," if len(call.args) < 3 else call.constant(2)
    if (kinds and element.kind not in kinds) or (len(call.args) > 2 and "{separator}" not in text):
        raise call.refused(f" for {name}")
    wide = "DOUBLE" if element.kind in "fd" else f"DECIMAL(38,{element.scale})"
    without = f"array_compact({call.args[0].sql})"
    type_ = call.type.spark() if name == "sum" else wide
    return text.format(l=call.args[0].sql, n=without, type=type_, separator=text_literal(separator))


def _sort(call: Call) -> str:
    element = call.args[0].type.element
    words = [str(call.data.get(k, "")) for k in ("order_type", "null_order")]
    form = _ORDERS.get((words[0].removesuffix("ENDING"), words[1].removeprefix("NULLS ")))
    if form is None or element.kind not in COMPARABLE:
        raise call.refused()
    return form.format(call.args[0].sql)


def _element(call: Call) -> str:
    list_, at = call.args
    if at.is_constant and at.value and 0 < at.value < 2**31:
        return f"get({list_.sql}, {at.value - 1})"
    place = f"CAST({at.sql} AS BIGINT)"
    behind = f"WHEN {place} < 0 THEN greatest(size({list_.sql}) + {place}, -1) ELSE -1"
    return f"get({list_.sql}, CAST(CASE WHEN {place} > 0 THEN least({place}, 2147483647) - 1 {behind} END AS INT))"


def _slice(call: Call) -> str:
    list_, first, last = (a.sql for a in call.args[:3])
    is_open = [a.type.kind == "l" for a in call.args[1:3]]
    step = call.constant(3) if len(call.args) == 4 else 1
    if step == -1 and all(is_open):
        return f"reverse({list_})"
    if step != 1:
        raise call.refused(" with such a step")
    n = f"size({list_})"
    begin = "1" if is_open[0] else f"least(greatest(IF({first} < 0, {n} + {first} + 1, {first}), 1), {n} + 1)"
    end = n if is_open[1] else f"IF({last} < 0, {n} + {last} + 1, least({last}, {n}))"
    given = [f"{sql} IS NULL" for sql, known in zip((first, last), is_open, strict=True) if not known]
    found = f"slice({list_}, CAST({begin} AS INT), CAST(greatest({end} - {begin} + 1, 0) AS INT))"
    return f"CASE WHEN {' OR '.join(given)} THEN NULL ELSE {found} END" if given else found


def _series(call: Call) -> str:
    numbers = [a.sql for a in call.args]
    first, last = ("CAST(0 AS BIGINT)", numbers[0]) if len(numbers) == 1 else numbers[:2]
    step = call.constant(2) if len(numbers) == 3 else 1
    if step == 0:
        return f"CASE WHEN {first} IS NOT NULL AND {last} IS NOT NULL THEN CAST(array() AS {call.type.spark()}) END"
    if call.name == "range":
        last = f"({last} {'-' if step > 0 else '+'} 1)"
    nothing = f"{last} {'<' if step > 0 else '>'} {first}"
    none = f"CAST(array() AS {call.type.spark()})"
    return f"CASE WHEN {nothing} THEN {none} ELSE sequence({first}, {last}, CAST({step} AS BIGINT)) END"


def _concat(call: Call) -> str:
    if any(a.type not in (call.type, Type("NULL")) for a in call.args):
        raise call.refused()
    parts = [a.sql if call.name == "||" else f"coalesce({a.sql}, array())" for a in call.args]
    return f"concat({', '.join(parts)})"


_DISTINCT = "array_distinct(array_compact({0}))"
rule("list_aggr list_aggregate array_aggr array_aggregate", "ls|lss", _aggregate)
rule("list_sort array_sort list_reverse_sort array_reverse_sort", "ls*", _sort)
rule("list_unique array_unique", "l", _of(_EQUAL, f"size({_DISTINCT})"))
rule(
    "list_distinct array_distinct",
    "l",
    _of(_EQUAL, f"CASE WHEN size({_DISTINCT}) > 1 THEN {refuses('the order of distinct values')} ELSE {_DISTINCT} END"),
)
rule("in_any_order", "l", _of(_EQUAL, _DISTINCT))
rule(
    "list_position list_indexof array_position array_indexof",
    "l[iuhmsbDTZfd]",
    "nullif(CASE WHEN {1} IS NULL THEN array_position(transform({0}, e -> e IS NULL), true) "
    "ELSE array_position({0}, {1}) END, 0)",
)
rule("list_concat list_cat array_concat array_cat", "[l0]+", _concat)
rule("||", "ll", _concat)
rule("array_extract list_extract list_element", "li", _element)
rule("array_slice list_slice", "l[li][li]i?", _slice)
rule("range generate_series", "i|ii|iii", _series)
rule("flatten", "l", "flatten(array_compact({0}))")
_COMPACT = "array_compact({0}), array_compact({1})"
rule("list_has_any array_has_any &&", "ll", _of(_EQUAL, f"arrays_overlap({_COMPACT})"))
rule(
    "list_has_all array_has_all @>",
    "ll",
    _of(_EQUAL, "(size(array_except(array_compact({1}), array_compact({0}))) = 0)"),
)


# -- lambdas -------------------------------------------------------------------------------------

FILTERS = frozenset({"list_filter", "array_filter", "filter"})
REDUCES = frozenset({"list_reduce", "array_reduce", "reduce"})
LAMBDAS = frozenset({"list_transform", "array_transform", "list_apply", "array_apply", "apply"}) | FILTERS | REDUCES


def parameters(name: str, list_: Type, count: int, number: int) -> list[SparkExpression]:
    """Return the parameters of a lambda, the last one first, as its body refers to them; raises ``not-portable``."""
    if list_.kind != "l" or count > 2 or (name in REDUCES and count != 2):
        raise NotPortable(f"Spark has no {name} with such a lambda as DuckDB has it.")
    found = [SparkExpression(f"y{number}", list_.element)]
    if count == 2 and name in REDUCES:
        found.insert(0, SparkExpression(f"z{number}", list_.element))
    elif count == 2:
        found.insert(0, SparkExpression(f"CAST(z{number} + 1 AS BIGINT)", BIGINT))
    return found


def lambda_call(name: str, list_: str, function: str, type_: Type, initial: str | None) -> str:
    """Return a call of a list and a lambda as Spark writes it; what reduces has the type that it results in."""
    if name not in REDUCES:
        return f"{'filter' if name in FILTERS else 'transform'}({list_}, {function})"
    if initial is not None:
        return f"aggregate({list_}, {initial}, {function})"
    empty = raises("Cannot perform list_reduce on an empty input list")
    folded = f"aggregate(slice({list_}, 2, size({list_})), CAST({list_}[0] AS {type_.spark()}), {function})"
    return f"CASE WHEN size({list_}) = 0 THEN {empty} ELSE {folded} END"
