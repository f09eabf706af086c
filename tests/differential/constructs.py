"""What random statements must exercise, and through which constructs conditions must prune."""

from __future__ import annotations

USED = [
    "ALL subquery", "ANY subquery", "EXISTS", "IN subquery", "NOT EXISTS", "NOT IN subquery", "aggregate",
    "alias in where", "alias like a column", "anti join", "asof join", "column list", "columns compared", "columns()",
    "cross join", "cte", "cte column list", "cte named like a table", "cte used twice", "derived table", "distinct",
    "distinct on", "except", "except all", "exclude", "expression", "filter", "full join", "group by", "group by all",
    "group by cube", "grouping sets", "having on keys", "intersect", "intersect all", "join", "join of mixed types",
    "lateral", "latent error", "left join", "limit counted", "limit in a query", "limit without order", "min and max",
    "natural full join", "natural join", "natural left join", "natural right join", "or of ands", "parameter",
    "parenthesised join", "pivot", "positional join", "qualify", "recursive cte", "rename", "replace", "right join",
    "rollup", "row comparison", "sample", "scalar subquery", "semi join", "set operation of mixed types", "star",
    "table function", "union", "union all", "union all by name", "union by name", "unpivot", "using anti join",
    "using full join", "using join", "using left join", "using right join", "using semi join", "values", "volatile",
    "window", "left join with NULL", "right join with NULL", "full join with NULL", "anti join with NULL",
    "semi join with NULL", "two windows", "grouping asked for NULL", "union asked for its type", "merged beside others",
    "cte with two conditions", "asof join filtered", "correlated subquery", "literal from outside", "zeros",
]  # fmt: skip

# Constructs through which, or places at which, some condition has to make an occurrence lose files.
PRUNES = [
    "WHERE", "ON of join", "ON of left join", "ON of right join", "ON of semi join", "ON of anti join", "HAVING",
    "derived table", "cte", "cte used twice", "cte column list", "column list", "star", "replace", "rename",
    "expression", "union", "union all", "intersect", "except", "coerced",
    "distinct", "distinct on key", "group by", "group by all", "window key", "qualify key", "lateral",
    "merged by using join", "merged by using left join", "merged by using full join",
    "over join", "over left join",
    "over semi join", "over WHERE",
]  # fmt: skip

# What the planner does not do yet; each is to be taken off the list when it does.
NOT_YET: frozenset[str] = frozenset()
