"""Random statements of the shapes in which pruning is easily wrong."""

from __future__ import annotations

from differential.scope import Column, Query, Source
from differential.selects import Selects
from differential.values import FLOATS, SQL, related


class Traps(Selects):
    """Writes statements around one rule each; tables, columns and values are drawn."""

    def trap(self) -> Query:
        """Return a statement of one of the shapes."""
        shapes = [
            *[self._outer] * 6, self._nested_outer, self._merged, self._asof_filtered, self._windows_twice,
            self._grouping, self._mixed_union, self._used_twice, self._exists, self._literal, self._zeros,
        ]  # fmt: skip
        return self.rng.choice(shapes)()

    # -- parts -------------------------------------------------------------------------------

    def _occurrence(self, alias: str) -> tuple[str, Source]:
        weights = [3 if t.name in ("c", "t", "z") else 1 for t in self.world.tables if t.stored]
        table = self.rng.choices([t for t in self.world.tables if t.stored], weights)[0]
        text, source = self.base(table, alias=alias)
        return f"{text} {alias}", source

    def _key(self, source: Source) -> Column:
        return self.rng.choice([c for c in source.columns if c.lineage] or source.columns)

    def loose(self, alias: str, source: Source) -> str:
        """Return a condition on a column that may hold for NULL."""
        column = self._key(source)
        c, low = f"{alias}.{column.name}", self.constant(column.kind)
        self.constrain([column], "WHERE")
        return self.pick(
            f"{c} IS NULL", f"{c} IS NULL", f"coalesce({c}, {low}) = {low}", f"{c} IS DISTINCT FROM {low}",
            f"({c} = {low}) IS NOT TRUE", f"({c} = {low} OR {c} IS NULL)", f"{c} = {low}",
            f"CASE WHEN {c} = {low} THEN FALSE ELSE TRUE END", f"NOT coalesce({c} <> {low}, FALSE)",
        )  # fmt: skip

    def _tied(self, a: str, one: Source, b: str, other: Source) -> str:
        """Return an equality of two columns, rather of such that can prune."""
        pairs = [(c, d) for c in one.columns for d in other.columns if related(c.kind, d.kind)]
        useful = [p for p in pairs if p[0].lineage and p[1].lineage]
        if not pairs:
            return "TRUE"
        left, right = self.rng.choice(useful or pairs)
        return f"{a}.{left.name} = {b}.{right.name}"

    # -- shapes ------------------------------------------------------------------------------

    def _outer(self) -> Query:
        """Outer joins, with conditions that their NULLs meet."""
        text, first = self._occurrence("a")
        found = {"a": first}
        for alias in ("b", "d")[: self.pick(1, 2, 2)]:
            inner = ["JOIN"] * (3 if alias == "d" else 1)
            join = self.pick("LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "ANTI JOIN", "SEMI JOIN", *inner)
            self.tag(f"{join.lower()} with NULL")
            more, source = self._occurrence(alias)
            left = self.rng.choice(list(found))
            on = self._tied(left, found[left], alias, source)
            if self.chance(0.6):
                on += f" AND {self.loose(*self.rng.choice([*list(found.items())[-2:], (alias, source)]))}"
            text += f" {join} {more} ON {on}"
            if join not in ("ANTI JOIN", "SEMI JOIN"):
                found[alias] = source
        conditions = [self.loose(*self.rng.choice(list(found.items()))) for _ in range(self.pick(0, 1, 1, 2, 2))]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        columns = [f"{a}.{self._key(s).name} AS {a}{i}" for a, s in found.items() for i in range(2)]
        return Query(f"SELECT {', '.join(columns)} FROM {text}{where}", [])

    def _nested_outer(self) -> Query:
        """An outer join below a query around which its NULLs are asked for."""
        text, one = self._occurrence("a")
        more, other = self._occurrence("b")
        left, right = self._key(one), self._key(other)
        join = self.pick("LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
        tied = self._tied("a", one, "b", other)
        inner = f"SELECT a.{left.name} AS o0, b.{right.name} AS o1 FROM {text} {join} {more} ON {tied}"
        q = Source("q", [Column("o0", left.kind, left.lineage), Column("o1", right.kind, right.lineage)])
        where = f"{self.loose('q', q)}{self.pick('', ' AND ' + self.loose('q', q))}"
        return Query(f"SELECT * FROM ({inner}) q WHERE {where}", [])

    def _windows_twice(self) -> Query:
        self.tag("two windows")
        text, source = self._occurrence("a")
        one, two, by = self._key(source), self._key(source), self._key(source)
        second = self.pick("", f"PARTITION BY a.{two.name} ")
        windows = f"count(*) OVER (PARTITION BY a.{one.name}) AS w0, rank() OVER ({second}ORDER BY a.{by.name}) AS w1"
        inner = f"SELECT a.{one.name} AS o0, a.{two.name} AS o1, {windows} FROM {text}"
        q = Source("q", [Column("o0", one.kind), Column("o1", two.kind)])
        return Query(f"SELECT * FROM ({inner}) q WHERE {self.loose('q', q)}", [])

    def _grouping(self) -> Query:
        text, source = self._occurrence("a")
        one, two = self._key(source), self._key(source)
        keys = f"a.{one.name}, a.{two.name}"
        by = self.pick(
            f"ROLLUP ({keys})", f"CUBE ({keys})", f"GROUPING SETS ((a.{one.name}), (a.{two.name}), ())", keys
        )
        self.tag("grouping asked for NULL")
        inner = f"SELECT a.{one.name} AS o0, a.{two.name} AS o1, count(*) AS n FROM {text} GROUP BY {by}"
        q = Source("q", [Column("o0", one.kind), Column("o1", two.kind)])
        where = self.pick(self.loose("q", q), f"q.n {self.pick('=', '>', '<')} {self.pick(1, 2, 3)}")
        if self.chance(0.2):
            having = f"{self.loose('a', Source('a', [one]))} OR count(*) = 1"
            inner = f"SELECT a.{one.name} AS o0, count(*) AS o1, count(*) AS n FROM {text} GROUP BY ALL HAVING {having}"
            where = f"q.n < {self.pick(2, 3, 9)}"
        return Query(f"SELECT * FROM ({inner}) q WHERE {where}", [])

    def _mixed_union(self) -> Query:
        """A set operation whose columns take on another type than they have in its branches."""
        self.tag("union asked for its type")
        text, one = self._occurrence("a")
        more, other = self._occurrence("b")
        left, right = self._key(one), self._key(other)
        second = self.pick(f"b.{right.name}", f"CAST(b.{right.name} AS VARCHAR)", "'x'", "1.5", "NULL")
        op = self.pick("UNION", "UNION ALL", "EXCEPT", "INTERSECT")
        inner = f"SELECT a.{left.name} AS o0 FROM {text} {op} SELECT {second} FROM {more}"
        where = self.pick(
            "CAST(q.o0 AS VARCHAR) = '1.0'", "CAST(q.o0 AS VARCHAR) = '1'", "CAST(q.o0 AS VARCHAR) > '10'",
            "q.o0 IS NULL",
            "typeof(q.o0) = 'VARCHAR'", "length(CAST(q.o0 AS VARCHAR)) > 2", f"q.o0 = {self.constant(left.kind)}",
        )  # fmt: skip
        return Query(f"SELECT * FROM ({inner}) q WHERE {where}", [])

    def _merged(self) -> Query:
        """Columns of USING beside those that are joined by it."""
        text, one = self._occurrence("a")
        more, other = self._occurrence("b")
        kinds = {c.name: c for c in other.columns}
        common = [c for c in one.columns if c.name in kinds and related(c.kind, kinds[c.name].kind)]
        if not common:
            return self._outer()
        key = self.rng.choice([c for c in common if c.lineage] or common)
        self.tag("merged beside others")
        join = self.pick("JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "FULL JOIN")
        both = Column(key.name, key.kind, key.lineage + kinds[key.name].lineage)
        merged = Source("", [both.through(f"merged by using {join.lower()}")])
        first = self.loose("", merged).replace(f".{key.name}", key.name)
        word = self.pick("AND", "OR")
        where = first if self.chance(0.5) else f"({first} {word} {self.loose(*self.pick(('a', one), ('b', other)))})"
        return Query(
            f"SELECT {key.name} AS o0, a.{key.name} AS o1, b.{key.name} AS o2 "
            f"FROM {text} {join} {more} USING ({key.name}) WHERE {where}",
            [],
        )

    def _used_twice(self) -> Query:
        text, source = self._occurrence("a")
        one, two = self._key(source), self._key(source)
        columns = [Column("o0", one.kind), Column("o1", two.kind)]
        uses = [(alias, Source(alias, columns)) for alias in ("q", "q2")]
        first, second = (self.loose(*use) for use in uses)
        self.tag("cte with two conditions")
        join = self.pick("LEFT JOIN", "JOIN", "FULL JOIN")
        body = self.pick(
            f"SELECT * FROM r q WHERE {first} UNION ALL SELECT * FROM r q2 WHERE {second}",
            f"SELECT q.o0, q2.o1 FROM r q {join} r q2 ON q.o0 = q2.o0 WHERE {first} AND {second}",
            f"SELECT * FROM r q WHERE {first} AND EXISTS (SELECT 1 FROM r q2 WHERE q2.o0 = q.o0 AND {second})",
            f"SELECT * FROM r q WHERE {first} AND q.o1 NOT IN (SELECT q2.o1 FROM r q2 WHERE {second})",
        )
        return Query(f"WITH r AS (SELECT a.{one.name} AS o0, a.{two.name} AS o1 FROM {text}) {body}", [], simple=False)

    def _asof_filtered(self) -> Query:
        text, one = self._occurrence("a")
        more, other = self._occurrence("b")
        pairs = [
            (c, d)
            for c in one.columns
            for d in other.columns
            if c.kind == d.kind and c.kind in ("int", "small", "date", "time")
        ]
        if not pairs:
            return self._outer()
        left, right = self.rng.choice([p for p in pairs if p[1].lineage] or pairs)
        self.tag("asof join filtered")
        value = self.constant(right.kind)
        where = self.pick(
            f"b.{right.name} < {value}", f"b.{right.name} <> {value}", f"b.{right.name} = {value}", self.loose("a", one)
        )
        on = f"a.{left.name} {self.pick('>=', '>', '<=', '<')} b.{right.name}"
        if self.chance(0.5):
            on += f" AND {self.loose(*self.pick(('a', one), ('b', other)))}"
        return Query(
            f"SELECT a.{left.name} AS o0, b.{right.name} AS o1 "
            f"FROM {text} ASOF {self.pick('', 'LEFT ')}JOIN {more} ON {on} WHERE {where}",
            [],
        )

    def _exists(self) -> Query:
        """A correlated subquery that may have a row where nothing is equal."""
        text, one = self._occurrence("a")
        more, other = self._occurrence("b")
        tied = self._tied("a", one, "b", other)
        self.tag("correlated subquery")
        key = self._key(other)
        tail = self.pick(
            "",
            f" GROUP BY b.{key.name}",
            f" GROUP BY b.{key.name} HAVING count(*) > 1",
            " HAVING count(*) = 0",
            " LIMIT 1",
            f" QUALIFY row_number() OVER (PARTITION BY b.{key.name}) = 1",
        )
        shown = "1" if tail and "HAVING count(*) = 0" not in tail else self.pick("1", "count(*)", f"max(b.{key.name})")
        extra = self.pick("", f" AND {self.loose('b', other)}", f" OR {self.loose('b', other)}")
        inner = f"SELECT {shown} FROM {more} WHERE {tied}{extra}{tail}"
        where = self.pick(
            f"EXISTS ({inner})",
            f"EXISTS ({inner})",
            f"NOT EXISTS ({inner})",
            f"(EXISTS ({inner}) OR {self.loose('a', one)})",
        )
        return Query(
            f"SELECT a.{self._key(one).name} AS o0, a.{self._key(one).name} AS o1 FROM {text} WHERE {where}", []
        )

    def _literal(self) -> Query:
        """Literals and expressions that take on a type only seen from outside."""
        text, source = self._occurrence("a")
        key = self._key(source)
        self.tag("literal from outside")
        literal = self.pick("2.5", "'1'", "1", "NULL", "'2020-02-29'", "TRUE", f"CAST(NULL AS {SQL[key.kind]})")
        inner = f"SELECT a.{key.name} AS o0, {literal} AS o1 FROM {text}"
        where = self.pick("q.o1 IS NULL", "typeof(q.o1) = 'VARCHAR'", "CAST(q.o1 AS VARCHAR) = '1'", "q.o1 IS NOT NULL",
                          "CAST(q.o1 AS VARCHAR) <> '2.5'", "q.o0::VARCHAR = q.o1::VARCHAR", "q.o0 = q.o1",
                          "q.o0 < q.o1", "q.o1 = q.o0")  # fmt: skip
        return Query(f"SELECT * FROM ({inner}) q WHERE {where}", [])

    def _zeros(self) -> Query:
        """Joins of floats, which tell their zeros apart around it but not in it."""
        floats = [t for t in self.world.tables if any(t.columns[c] in FLOATS for c in t.pruning)]
        if not floats:
            return self._outer()
        sides = []
        for alias in "ab":
            table = self.rng.choice(floats)
            text, source = self.base(table, alias=alias)
            column = self.rng.choice([c for c in source.columns if c.kind in FLOATS and c.lineage])
            sides.append((f"{text} {alias}", f"{alias}.{column.name}"))
        (one, left), (other, right) = sides
        self.tag("zeros")
        told = self.pick(f"{left}::VARCHAR = '-0.0'", f"{left}::VARCHAR = '0.0'", f"1 / {left} < 0", f"1 / {left} > 0")
        tail = self.pick(
            f"{one} {self.pick('JOIN', 'LEFT JOIN', 'RIGHT JOIN')} {other} ON {left} = {right} WHERE {told}",
            f"{one} JOIN {other} ON {left} = {right} AND {told}",
            f"{one} WHERE {told} AND {left} IN (SELECT {right} FROM {other})",
            f"{one} WHERE {told} AND EXISTS (SELECT 1 FROM {other} WHERE {left} = {right})",
        )
        return Query(f"SELECT {left} AS o0, count(*) AS n FROM {tail} GROUP BY ALL", [])
