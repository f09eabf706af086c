"""Answers that have to agree with one another: ternary logic partitioning, NoREC, and pivoted queries of SQLancer.

Tables and predicates are those of the differential tests, whose other oracle is plain DuckDB over the same rows.

- TLP: the rows where a predicate holds, where it does not, and where it is NULL are all rows, each once.
- NoREC: as many rows are kept by a WHERE as have the value true where nothing can be pruned.
- Pivoted: a row is in the answer to a conjunction of conditions that are true for it.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import duckdb

from differential.answers import rows_of
from differential.scope import MARK, PLACE, Scope
from differential.statements import Writer
from differential.stores import Table, World
from differential.values import FLOATS, literal
from kartosql.errors import KartosqlError


class Disagreement(AssertionError):
    """Two answers that cannot both be right."""


class Partitions:
    """Asks one store."""

    def __init__(self, world: World, con: Any) -> None:
        self.world, self.con = world, con
        self.counts: Counter[str] = Counter()

    def check(self, number: int) -> None:
        """Ask about predicate ``number``; raises Disagreement."""
        random = Random(f"partitions {self.world.seed}/{number}")
        writer = Writer(self.world, random)
        table = random.choice([t for t in self.world.tables if t.stored])
        text, source = writer.base(table, alias="a")
        condition = writer.predicate(Scope(None, [source]), 0, {}, "WHERE", random.choice([0, 1, 2]))
        condition = PLACE.sub(lambda m: literal(writer.values[int(m[1])]), condition)
        if "volatile" in writer.tags or "now()" in condition or "current_date" in condition:
            return
        ask = f"{MARK.sub('', text)} AS a"
        try:
            self._tlp(table, ask, condition)
            self._norec(ask, condition)
            self._pivoted(table, ask, random)
        except KartosqlError:
            # A cast may meet a value that it fails for, in one of the statements alone.
            if "latent error" not in writer.tags and not self._is_refused(ask, condition):
                raise
            self.counts["refused"] += 1
        except Disagreement:
            if not self._is_of_duckdb(ask, condition):
                raise
            self.counts["of DuckDB itself"] += 1

    def _is_of_duckdb(self, ask: str, condition: str) -> bool:
        """Return whether plain DuckDB answers a condition alike, and so that its three parts are not all rows.

        Of ``NOT (i <> g OR ...)`` it takes i for g in the rest, where 0 and -0.0 are equal and not the same.
        """
        texts = ["true", f"({condition})", f"NOT ({condition})", f"({condition}) IS NULL"]
        asked = [f"SELECT count(*) FROM {ask} WHERE {text}" for text in texts]
        plain = [self.world.plain.sql(sql).fetchall()[0][0] for sql in asked]
        return plain == [self.con.sql(sql).rows()[0][0] for sql in asked] and plain[0] != sum(plain[1:])

    def _is_refused(self, ask: str, condition: str) -> bool:
        """Return whether plain DuckDB refuses a condition as well."""
        try:
            self.world.plain.sql(f"SELECT ({condition}) IS TRUE FROM {ask}").fetchall()
        except duckdb.Error:
            return True
        return False

    def _tlp(self, table: Table, ask: str, condition: str) -> None:
        whole = rows_of(self.con.sql(f"SELECT * FROM {ask}").arrow())
        texts = [f"({condition})", f"NOT ({condition})", f"({condition}) IS NULL"]
        parts: Counter[str] = Counter()
        counted = 0
        for text in texts:
            parts += rows_of(self.con.sql(f"SELECT * FROM {ask} WHERE {text}").arrow())
            counted += self.con.sql(f"SELECT count(*) FROM {ask} WHERE {text}").rows()[0][0]
        self.counts["TLP"] += 1
        if parts != whole or counted != whole.total():
            lost, more = whole - parts, parts - whole
            raise Disagreement(
                f"TLP of {ask} by {condition}\nlost {list(lost)[:3]}\ntwice {list(more)[:3]}\ncounted {counted} of "
                f"{whole.total()}"
            )

    def _norec(self, ask: str, condition: str) -> None:
        kept = self.con.sql(f"SELECT count(*) FROM {ask} WHERE {condition}").rows()[0][0]
        values = self.con.sql(f"SELECT ({condition}) IS TRUE AS yes FROM {ask}").rows()
        self.counts["NoREC"] += 1
        if kept != sum(yes for (yes,) in values):
            raise Disagreement(f"NoREC of {ask} by {condition}: {kept} rows, {sum(y for (y,) in values)} are true")

    def _pivoted(self, table: Table, ask: str, random: Random) -> None:
        """Choose a row, and ask for it by values of some of its columns."""
        rows = self.con.sql(f"SELECT * FROM {ask}").arrow().to_pylist()
        if not rows:
            return
        row = random.choice(rows)
        names = [c for c, kind in table.columns.items() if kind not in FLOATS and kind not in ("bytes", "zone", "dec")]
        conditions = []
        for name in random.sample(names, min(len(names), random.randint(1, 3))):
            value, column = row[name], f'a."{name}"'
            other = random.choice(rows)[name]
            if value is None:
                conditions.append(f"{column} IS NULL")
            else:
                shapes = [f"{column} = {literal(value)}", f"{column} >= {literal(value)}"]
                shapes += [f"{column} IN ({literal(value)}, {literal(other)})"] if other is not None else []
                shapes += [f"{column} <= {literal(value)} AND {column} IS NOT NULL"]
                conditions.append(random.choice(shapes))
        condition = " AND ".join(conditions) or "true"
        found = self.con.sql(f"SELECT * FROM {ask} WHERE {condition}").arrow()
        self.counts["pivoted"] += 1
        if found.num_rows and repr([row[c] for c in found.column_names]) in {
            repr(list(r.values())) for r in found.to_pylist()
        }:
            return
        raise Disagreement(f"pivoted {ask} by {condition}: the row {row} is not found")
