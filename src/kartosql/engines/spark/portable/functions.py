"""The scalar functions that Spark answers as DuckDB does, by the rules of their kinds."""

from __future__ import annotations

from collections.abc import Sequence

from kartosql.engines.spark.portable import numeric, temporal, textual
from kartosql.engines.spark.portable.duckdb_types import Type
from kartosql.engines.spark.portable.rules import RULES, Arg, Call

DECLARED = (numeric, temporal, textual)  # importing them declares their rules


def render(name: str, args: Sequence[Arg], type_: Type, zone: str) -> str:
    """Return the Spark expression of a call; raises ``not-portable``."""
    call = Call(name, tuple(args), type_, zone)
    kinds = "".join(a.type.kind for a in args)
    for pattern, make, exact in RULES.get(name, ()):
        if pattern.fullmatch(kinds):
            found = make(call)
            return found if exact else f"CAST({found} AS {type_.spark()})"
    raise call.refused()


def names() -> frozenset[str]:
    """Return the names of the functions that have a rule."""
    return frozenset(RULES)
