"""Which optimizers of DuckDB do not run for a statement, as its answer would be wrong, late, or an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kartosql.engines.base import JoinOrder
from kartosql.engines.duckdb.relations import Relations

if TYPE_CHECKING:
    from kartosql.engines.duckdb.statement import FileAccess
    from kartosql.plan.scan import OccurrenceScan

# DuckDB 2.0 reads the position of a file from rows that have none when it materialises late, so that
# looking partition values up by it fails ("Attempted to access index ... within vector of size").
LATE = "late_materialization"
FOLDING = "expression_rewriter"  # computes constants
# Takes projections out of joins, so that all these are ordered at once: those inside the view of a cube, too.
PULLUP = "projection_pullup"
# Where DuckDB orders many joins, or pulls projections out of them, or does not, it may lose a column that one of them
# needs. It says so with one of these words.
LOST = (
    "Failed to bind column reference",
    "Projection map references a missing child column",
    "Vector::Reference used on vector of different type",
)
# Optimizers that make answers of DuckDB 2.0 wrong, by what is in the text then.
_WRONG = (
    # Of a comparison with all values of a subquery that has a single row, it takes that for the number of rows of the
    # result, and leaves a LIMIT of more out: SELECT i FROM z WHERE i < ANY (SELECT max(q) FROM c) LIMIT 5
    (re.compile(r"\b(?:any|some)\b|[<>=~]\s*all\b", re.IGNORECASE), "statistics_propagation"),
    # What a join needs goes below the DISTINCT ON of its other side, which then picks from fewer rows.
    (re.compile(r"\bdistinct\b.*\bon\b", re.IGNORECASE | re.DOTALL), "join_filter_pushdown"),
)
# It also takes extremes of a whole file from the bounds in its footer. Those of floating-point columns are no values:
# NaN is in no footer, so the reader is told to take it for the upper one, and writers widen zeros to -0.0 and 0.0.
_EXTREMES = re.compile(r"\b(?:min|max|summarize)\b", re.IGNORECASE)
_PIVOT = re.compile(r"\bpivot", re.IGNORECASE)
# From so many tables on, and so many bytes, a better order of joins may pay for comparing two plans.
_MANY_TABLES = 6
_MANY_BYTES = 1 << 18


def unwanted(text: str, relations: Relations, joins: JoinOrder) -> set[str]:
    """Return the optimizers that would make the answer to a statement wrong, or may lose a column."""
    names = {name for pattern, name in _WRONG if pattern.search(text)}
    if relations.by_position:
        names.add(LATE)
    if relations.has_floats and _EXTREMES.search(text):
        names.add("statistics_propagation")
    if joins is JoinOrder.OF_TEXT:
        names.update(("join_order", PULLUP))
    return names


def may_cross(text: str, scans: Sequence[OccurrenceScan], files: FileAccess) -> bool:
    """Return whether a statement joins so much to cubes of several datasets that DuckDB may do it by cross products.

    Pulling projections out of the joins of the datasets, it took minutes for two queries of TPC-DS that take a second
    otherwise. It makes most joins faster, though, so that its plans have to be compared.
    """
    if len(scans) < _MANY_TABLES or all(len(scan.parts) == 1 for scan in scans):
        return False
    keys = {key for scan in scans for part in scan.parts for key in part.opened}
    # To explain a PIVOT would run what it asks for its columns.
    return sum(files.sizes.get(key) or _MANY_BYTES for key in keys) >= _MANY_BYTES and not _PIVOT.search(text)


def cross_products(plan: str) -> int:
    """Return how many cross products are in a plan as EXPLAIN (FORMAT json) prints it."""
    return plan.count('"CROSS_PRODUCT"')
