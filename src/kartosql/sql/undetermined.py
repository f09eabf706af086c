"""Queries that do not determine their answer: rows may come out otherwise, and no run of them is wrong."""

from __future__ import annotations

from sqlglot import exp

_CUTS: dict[type, str] = {
    exp.Limit: "LIMIT keeps rows by an order that may not be total",
    exp.Fetch: "FETCH keeps rows by an order that may not be total",
    exp.Offset: "OFFSET skips rows by an order that may not be total",
    exp.TableSample: "a sample is drawn",
    exp.Rand: "random() is drawn",
    exp.Uuid: "uuid() is drawn",
    exp.AnyValue: "any_value takes any value",
    exp.First: "first depends on the order of rows",
    exp.Last: "last depends on the order of rows",
    exp.ArgMax: "arg_max takes any row of several with the same maximum",
    exp.ArgMin: "arg_min takes any row of several with the same minimum",
    exp.ArrayAgg: "the order of a list depends on that of rows",
    exp.GroupConcat: "the order of a text depends on that of rows",
    exp.RowNumber: "row_number depends on the order of rows that are equal",
    exp.Window: "a window may depend on the order of rows that are equal",
}
_NAMES = ("random", "uuid", "gen_random_uuid", "setseed", "mode", "reservoir_quantile", "approx_quantile", "histogram")


def undetermined(tree: exp.Expression | None) -> str | None:
    """Return why a query may have several answers, None if nothing is known that lets it."""
    if tree is None:
        return "only the engine understands its text"
    for node in tree.walk():
        reason = _CUTS.get(type(node))
        if reason:
            return reason
        if isinstance(node, exp.Distinct) and node.args.get("on") is not None:
            return "DISTINCT ON keeps any row of several"
        if isinstance(node, exp.Anonymous) and node.name.lower() in _NAMES:
            return f"{node.name.lower()} is drawn or depends on the order of rows"
        if isinstance(node, exp.Anonymous) and node.name.lower() == "age" and len(node.expressions) == 1:
            return "age asks the clock"
    return None
