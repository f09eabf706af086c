"""One random statement, answered three ways: pruned, unpruned, and over the reference tables."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa

import kartosql
import kartosql.query
from differential.statements import Statement, statement
from differential.stores import World
from kartosql.errors import KartosqlError
from kartosql.plan.prune import prune

MAX_ROWS = 5_000
# What is switched off in the reference, one after the other, to see whether an answer depends on the plan.
OPTIMIZERS = ("", "filter_pushdown,join_order,reorder_filter", "statistics_propagation", "join_order,reorder_filter")


class Mismatch(AssertionError):
    """An answer that is not the reference's."""


@dataclass(frozen=True)
class Outcome:
    """What came of a statement: checked, invalid (the reference refuses it) or undetermined.

    ``lost`` tells for each occurrence of a stored table whether it lost files.
    """

    status: str
    statement: Statement
    lost: tuple[bool, ...] = ()


def run_plain(plain: Any, text: str, parameters: Any) -> pa.Table:
    return (plain.sql(text, params=parameters) if parameters else plain.sql(text)).to_arrow_table()


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return 0.0 if value == 0 else value  # which of two equal zeros comes out of a join or DISTINCT is chance
    if isinstance(value, dict):
        return {k: _value(v) for k, v in value.items()}
    return [_value(v) for v in value] if isinstance(value, list) else value


def rows_of(table: pa.Table) -> Counter[str]:
    """Return the rows as a multiset."""
    columns = [column.to_pylist() for column in table.columns]
    return Counter(repr([_value(v) for v in row]) for row in zip(*columns, strict=True))


def differ(given: pa.Table, wanted: pa.Table, stmt: Statement) -> str | None:
    """Return how an answer differs from that of the reference, which knows no LIMIT."""
    if given.schema.types != wanted.schema.types or given.column_names != wanted.column_names:
        return f"columns {given.schema!s} instead of {wanted.schema!s}".replace("\n", ", ")
    mine, theirs = rows_of(given), rows_of(wanted)
    if stmt.limit is None:
        missing, extra = theirs - mine, mine - theirs
    else:
        extra, missing = mine - theirs, Counter()
        count = max(0, min(stmt.limit, wanted.num_rows - stmt.offset))
        if given.num_rows != count:
            return f"{given.num_rows} rows instead of {count}"
    if not missing and not extra:
        return None
    lines = [f"missing {n} x {row}" for row, n in list(missing.items())[:5]]
    return "\n".join(lines + [f"extra {n} x {row}" for row, n in list(extra.items())[:5]])


def is_undetermined(world: World, stmt: Statement, wanted: pa.Table) -> bool:
    """Return whether the reference itself answers otherwise, or fails, when its rows stand in another order."""
    for shuffle, optimizers in enumerate(OPTIMIZERS):
        other = duckdb.connect(":memory:", config={"threads": "2"})
        try:
            world.prepare(other)
            other.execute(f"SET disabled_optimizers = '{optimizers}'")
            for table in world.tables:
                made = world.plain.sql(f"SELECT * FROM {table.name}").to_arrow_table()
                order = random.Random(shuffle).sample(range(made.num_rows), made.num_rows)
                other.register("given", made.take(pa.array(order, pa.int64())))
                other.execute(f"CREATE TABLE {table.name} AS SELECT * FROM given")
            if differ(run_plain(other, stmt.text, stmt.parameters), wanted, stmt) and stmt.limit is None:
                return True
        except duckdb.Error:
            return True
        finally:
            other.close()
    return False


class Checker:
    """Checks the statements of one store."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connection = self.connect()

    def connect(self) -> Any:
        connection = kartosql.connect(self.world.store.url, **self.world.settings)
        connection.register("reg", self.world.registered)
        return connection

    def end(self) -> None:
        self.connection.close()
        self.world.plain.close()

    def check(self, number: int, *, cold: bool = False, unpruned: bool = False, again: bool = False) -> Outcome:
        """Compare the answers to a statement; raises Mismatch.

        With ``cold`` it is asked over a new connection. With ``unpruned`` it is asked a second
        time without pruning, and with ``again`` repeatedly, other parameters in between.
        """
        stmt = statement(self.world, number)
        wanted = self._wanted(stmt)
        if wanted is None:
            return Outcome("invalid", stmt)
        problem, lost = self._ask(stmt, wanted, cold=cold)
        if problem is not None:
            return self._failed(number, stmt, wanted, f"pruned{' (cold)' if cold else ''}: {problem}")
        if unpruned:
            with mock.patch.object(kartosql.query, "prune", partial(prune, enabled=False)):
                problem, _ = self._ask(stmt, wanted, cold=cold)
            if problem is not None:
                return self._failed(number, stmt, wanted, f"unpruned: {problem}")
        for repeated in (stmt, self._varied(number, stmt), stmt) if again else ():
            answer = self._wanted(repeated)
            problem, _ = self._ask(repeated, answer, cold=False) if answer is not None else (None, ())
            if repeated is not stmt and problem is not None and problem.startswith("invalid-value"):
                continue  # a value that a cast may meet or not
            if answer is not None and problem is not None:
                return self._failed(number, repeated, answer, f"asked again: {problem}")
        return Outcome("checked", stmt, lost)

    def _wanted(self, stmt: Statement) -> pa.Table | None:
        """Return the answer of the reference, None if it refuses the statement or there are too many rows."""
        try:
            wanted = run_plain(self.world.plain, stmt.text, stmt.parameters)
        except duckdb.Error:
            return None
        return wanted if wanted.num_rows <= MAX_ROWS else None

    def _varied(self, number: int, stmt: Statement) -> Statement:
        """Return the statement with other values of the same types for its parameters."""
        rng = random.Random(number)

        def other(value: Any) -> Any:
            same = [v for pool in self.world.pools.values() for v in pool if type(v) is type(value)]
            return rng.choice(same)

        given = stmt.parameters
        if isinstance(given, dict):
            return replace(stmt, parameters={name: other(v) for name, v in given.items()})
        return replace(stmt, parameters=[other(v) for v in given] if given else given)

    def _failed(self, number: int, stmt: Statement, wanted: pa.Table, problem: str) -> Outcome:
        # Which rows a cast meets depends on the plan; the generator writes few that can fail.
        latent = "latent error" in stmt.tags and ": invalid-value" in problem
        if latent or is_undetermined(self.world, stmt, wanted):
            return Outcome("undetermined", stmt)
        raise Mismatch(self._describe(number, stmt, problem))

    def _ask(self, stmt: Statement, wanted: pa.Table, *, cold: bool) -> tuple[str | None, tuple[bool, ...]]:
        try:
            if not cold:
                return self._answer(self.connection, stmt, wanted)
            with self.connect() as connection:
                return self._answer(connection, stmt, wanted)
        except KartosqlError as e:
            return f"{e.code}: {e}", ()

    def _answer(self, connection: Any, stmt: Statement, wanted: pa.Table) -> tuple[str | None, tuple[bool, ...]]:
        query = connection.sql(stmt.text + stmt.tail, stmt.parameters)
        given = query.arrow()
        lost = tuple(
            any(len(p.files) < len(p.part.table.files) for p in o.parts) for o in query.report.scan.occurrences
        )
        problem = differ(given, wanted, stmt)
        if problem is not None and stmt.limit is not None:
            # DuckDB forgets the LIMIT of some windows over scalar subqueries.
            whole = run_plain(self.world.plain, stmt.text + stmt.tail, stmt.parameters)
            if given.num_rows == whole.num_rows == wanted.num_rows:
                problem = differ(given, wanted, replace(stmt, limit=None))
        return problem, lost

    def again(self, number: int) -> str:
        """Return how to check a statement once more."""
        return f"again: PYTHONPATH=tests python -m differential {self.world.seed} {number}"

    def _describe(self, number: int, stmt: Statement, problem: str) -> str:
        return (
            f"store {self.world.seed}, statement {number}\n{stmt.text}{stmt.tail}\nparameters {stmt.parameters}, "
            f"settings {self.world.settings}\n{problem}\n{self.again(number)}"
        )
