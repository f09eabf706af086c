"""One random statement, answered three ways: pruned, unpruned, and over the reference tables."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
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
SHUFFLES = 4


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


def _is_undetermined(world: World, stmt: Statement, wanted: pa.Table) -> bool:
    """Return whether the reference itself answers otherwise, or fails, when its rows stand in another order."""
    for shuffle in range(SHUFFLES):
        other = duckdb.connect(":memory:", config={"threads": "2"})
        try:
            other.execute(f"SET TimeZone = '{world.zone}'; CREATE SCHEMA c")
            if shuffle % 2:
                other.execute("SET disabled_optimizers = 'filter_pushdown,join_order,reorder_filter'")
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
        self._connection = self.connect()

    def connect(self) -> Any:
        connection = kartosql.connect(self.world.store.url, TimeZone=self.world.zone)
        connection.register("reg", self.world.registered)
        return connection

    def end(self) -> None:
        self._connection.close()
        self.world.plain.close()

    def check(self, number: int, *, cold: bool = False, unpruned: bool = False) -> Outcome:
        """Compare the answers to a statement; raises Mismatch.

        With ``cold`` it is asked over a new connection. With ``unpruned`` it is asked a second
        time, without pruning.
        """
        stmt = statement(self.world, number)
        try:
            wanted = run_plain(self.world.plain, stmt.text, stmt.parameters)
        except duckdb.Error:
            return Outcome("invalid", stmt)
        if wanted.num_rows > MAX_ROWS:
            return Outcome("invalid", stmt)
        problem, lost = self._ask(stmt, wanted, cold=cold)
        name = "pruned"
        if problem is None and unpruned:
            with mock.patch.object(kartosql.query, "prune", partial(prune, enabled=False)):
                problem, _ = self._ask(stmt, wanted, cold=cold)
            name = "unpruned"
        if problem is None:
            return Outcome("checked", stmt, lost)
        # Which rows a cast meets depends on the plan; the generator writes few that can fail.
        latent = "latent error" in stmt.tags and problem.startswith("invalid-value")
        if latent or _is_undetermined(self.world, stmt, wanted):
            return Outcome("undetermined", stmt)
        raise Mismatch(self._describe(number, stmt, f"{name}{' (cold)' if cold else ''}: {problem}"))

    def _ask(self, stmt: Statement, wanted: pa.Table, *, cold: bool) -> tuple[str | None, tuple[bool, ...]]:
        try:
            if not cold:
                return self._answer(self._connection, stmt, wanted)
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
        return differ(given, wanted, stmt), lost

    def _describe(self, number: int, stmt: Statement, problem: str) -> str:
        again = f"PYTHONPATH=tests python -m differential {self.world.seed} {number}"
        return (
            f"store {self.world.seed}, statement {number}\n{stmt.text}{stmt.tail}\nparameters {stmt.parameters}, "
            f"TimeZone {self.world.zone}\n{problem}\nagain: {again}"
        )
