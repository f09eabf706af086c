"""Rules of scalar functions that Spark answers as DuckDB does, each proved by the conformance tests.

A rule is a name, a pattern over the kinds of its arguments (``Type.kind``), and a template or a
function that makes the Spark expression. What has no rule is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kartosql.engines.spark.portable.duckdb_types import Type
from kartosql.errors import NotPortable

MISSING: Any = object()
LONG = 2_000  # characters of an argument that is not written twice


@dataclass(frozen=True)
class Arg:
    """An argument: its Spark expression, its type, and its value if it is a constant."""

    sql: str
    type: Type
    value: Any = MISSING

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return self.value is not MISSING


@dataclass(frozen=True)
class Call:
    """A call of a function as DuckDB bound it."""

    name: str
    args: tuple[Arg, ...]
    type: Type
    zone: str

    def refused(self, reason: str = "") -> NotPortable:
        """Return the error that refuses the call."""
        types = ", ".join(a.type.sql() for a in self.args)
        return NotPortable(f"Spark does not answer {self.name}({types}) as DuckDB does{reason}.")

    def constant(self, at: int) -> Any:
        """Return the value of an argument that has to be a constant."""
        if not self.args[at].is_constant:
            raise self.refused(f" unless argument {at + 1} is a constant")
        return self.args[at].value


Make = Callable[[Call], str]
RULES: dict[str, list[tuple[re.Pattern[str], Make, bool]]] = {}


def rule(names: str, kinds: str, make: str | Make, *, exact: bool = False) -> None:
    """Declare functions as portable for arguments whose kinds match a pattern.

    ``exact`` says that the expression already has the Spark type of the result.
    """
    made = _template(make) if isinstance(make, str) else make
    for name in names.split(" "):
        RULES.setdefault(name, []).append((re.compile(kinds), made, exact))


def _template(text: str) -> Make:
    twice = len(re.findall(r"\{0\}", text)) > 1 or len(re.findall(r"\{1\}", text)) > 1

    def make(call: Call) -> str:
        if twice and sum(len(a.sql) for a in call.args) > LONG:
            raise call.refused(" on so long an expression")
        return text.format(*(a.sql for a in call.args), type=call.type.spark())

    return make
