"""Predicates as the trees that the planner makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from kartosql.errors import SqlError
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scopes import Bound, Source, Walked
from kartosql.predicate.tree import UNKNOWN, Predicate, said
from kartosql.sql import Select, parse
from kartosql.sql.tree import placeholders


def tree_of(evaluator: Evaluator, predicate: str, parameters: Mapping[str, Any] | None = None) -> Predicate:
    """Return what a predicate over columns of one table says, if its parts are agreed upon."""
    try:
        statement = parse(f"SELECT * FROM t WHERE {predicate}")
    except SqlError:
        return UNKNOWN
    if not isinstance(statement, Select) or statement.tree is None:
        return UNKNOWN
    tree = statement.tree
    where, source = tree.args["where"].this, Source("t", {}, id=0)
    bound = {id(node): Bound(source, node.name) for node in where.find_all(exp.Column)}
    places = {span: name for name, span in placeholders(tree) if name is not None and span is not None}
    query = BoundQuery(statement, statement.text, (), Walked(bound=bound), parameters or {}, places, ())
    reader = ConditionReader(query, evaluator, lambda _: None)
    return said(reader.read(where)) if reader.agrees(where) else UNKNOWN
