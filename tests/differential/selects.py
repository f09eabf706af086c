"""Random SELECTs in all their forms."""

from __future__ import annotations

from differential.scope import Column, Env, Query, Scope
from differential.sources import Sources
from differential.values import FAMILY, FLOATS, SQL

OUTPUT_KINDS = ["int", "int", "text", "date", "digits", "float", "time", "small", "bool"]


class Selects(Sources):
    """Writes single SELECTs."""

    def ordered(self, depth: int, env: Env, outer: Scope | None, count: int) -> Query:
        kinds = [self.pick(*OUTPUT_KINDS) for _ in range(count)]
        inner = self.select(depth, env, outer, kinds, form="plain")
        return Query(f"{inner.text} ORDER BY ALL", inner.columns, simple=False)

    def select(
        self, depth: int, env: Env, outer: Scope | None, kinds: list[str] | None,
        names: list[str] | None = None, form: str | None = None,
    ) -> Query:  # fmt: skip
        from_, scope, conjuncts = self.from_clause(depth, env, outer)
        form = form or self.weighted(
            plain=8, counted=0.5 if kinds is None else 0, distinct=1.4, distinct_on=0.8, group=3, window=1.4,
            qualify=0.9, limit=1.2, total=1.0,
            star=(4 if self.quiet else 2.5) if kinds is None and scope.star else 0,
        )  # fmt: skip
        if form == "group":
            return self._grouped(depth, env, scope, from_, conjuncts, kinds, names)
        if form == "star":
            text, columns = self._star(scope)
            return Query(f"{text} FROM {from_}{self.where(scope, depth, env, conjuncts)}", columns)
        if form == "counted":
            self.tag("limit counted")
            where = self.where(scope, depth, env, conjuncts)
            offset = f" OFFSET {self.pick(1, 2)}" if self.chance(0.4) else ""
            inner = f"SELECT 1 FROM {from_}{where} LIMIT {self.pick(1, 3, 5, 10)}{offset}"
            return Query(f"SELECT count(*) AS o0 FROM ({inner}) l", [Column("o0", "int")])
        if form == "total":
            shown = self._totals(scope, kinds, names)
        else:
            shown = self._outputs(scope, kinds, names)
            scope.aliases = [c for t, c in shown if c.name not in scope.names() and t.upper() != c.name.upper()]
        where = self.where(scope, depth, env, conjuncts)
        scope.aliases = []
        if form == "window" and kinds is None:
            shown = self._windows(scope, shown)
        listed = ", ".join(t if t.split(".")[-1] == c.name else f"{t} AS {c.name}" for t, c in shown)
        columns = [c for _, c in shown]
        if form == "distinct":
            self.tag("distinct")
            return Query(f"SELECT DISTINCT {listed} FROM {from_}{where}", [self._loose(c, "distinct") for c in columns])
        if form == "distinct_on":
            self.tag("distinct on")
            ways = ["distinct on key"] + ["distinct on other"] * (len(columns) - 1)
            columns = [self._loose(c, w) for c, w in zip(columns, ways, strict=True)]
            return Query(
                f"SELECT DISTINCT ON ({shown[0][0]}) {listed} FROM {from_}{where} ORDER BY ALL", columns, simple=False
            )
        if form == "limit":
            self.tag("limit in a query")
            offset = f" OFFSET {self.pick(1, 2)}" if self.chance(0.3) else ""
            text = f"SELECT {listed} FROM {from_}{where} ORDER BY ALL LIMIT {self.pick(0, 1, 3, 5, 1000)}{offset}"
            return Query(text, [self._loose(c, "limit") for c in columns], simple=False)
        if form == "qualify":
            return self._qualified(f"SELECT {listed} FROM {from_}{where}", scope, env, shown)
        select = f"FROM {from_} SELECT {listed}" if self.chance(0.03) else f"SELECT {listed} FROM {from_}"
        return Query(f"{select}{where}", columns)

    def _loose(self, column: Column, construct: str) -> Column:
        return column.through(construct, shaky=column.kind in FLOATS)

    def where(self, scope: Scope, depth: int, env: Env, conjuncts: list[str]) -> str:
        if self.chance(0.1 if self.quiet else 0.75):
            conjuncts = [*conjuncts, self.predicate(scope, depth, env, "WHERE")]
        self.rng.shuffle(conjuncts)
        return f" WHERE {' AND '.join(conjuncts)}" if conjuncts else ""

    def _name(self, column: str | None, number: int, used: set[str]) -> str:
        """Return a name for an output: its column's, that of another column, or a new one."""
        name = column if column and self.chance(0.5) else f"o{number}"
        if self.chance(0.06):
            name = self.pick("x", "p", "i", "q", "i1")
            self.tag("alias like a column")
        while name in used:
            name = f"o{number}" if f"o{number}" not in used else f"{name}0"
        used.add(name)
        return name

    def _outputs(self, scope: Scope, kinds: list[str] | None, names: list[str] | None) -> list[tuple[str, Column]]:
        """Return the expressions of SELECT with the columns that they make."""
        shown: list[tuple[str, Column]] = []
        used: set[str] = set(names or ())
        for number in range(len(kinds) if kinds is not None else self.rng.randint(1, 4)):
            wanted = kinds[number] if kinds is not None else None
            found = self.ref(scope, wanted) if wanted else self.ref(scope)
            if found is None:
                text, column = f"CAST(NULL AS {SQL[wanted or 'int']})", Column("", wanted or "int")
            else:
                text, column = self._expression(*found, scope) if self.chance(0.15) else found
            bare = text.split(".")[-1] if found is not None and text == found[0] else None
            name = names[number] if names else self._name(bare, number, used)
            shown.append((text, Column(name, column.kind, column.lineage, column.shaky)))
        return shown

    def _expression(self, text: str, column: Column, scope: Scope) -> tuple[str, Column]:
        kind = column.kind
        ways = [f"coalesce({text}, {text})", f"CASE WHEN {text} IS NOT NULL THEN {text} END", f"({text})"]
        if FAMILY[kind] == 0 and kind not in ("big", "huge", "dec", "single"):
            ways += [f"{text} + 1", f"-{text}", f"abs({text})"]
        if kind == "text":
            ways += [f"upper({text})", f"{text} || 'x'", f"coalesce({text}, 'a')"]
        if kind in ("int", "text", "date"):
            ways += [f"coalesce({text}, {self.constant(kind)})", f"CAST({text} AS {SQL[kind]})"]
        other = self.ref(scope, kind)
        if other is not None:
            ways.append(f"coalesce({text}, {other[0]})")
            column = Column(column.name, kind, column.lineage + other[1].lineage, column.shaky or other[1].shaky)
        self.tag("expression")
        return self.rng.choice(ways), column.through("expression", shaky=kind in FLOATS)

    def _totals(self, scope: Scope, kinds: list[str] | None, names: list[str] | None) -> list[tuple[str, Column]]:
        """Return aggregates over all rows."""
        self.tag("aggregate")
        shown = []
        for number, kind in enumerate(kinds or ["int"] * self.pick(1, 2, 3)):
            found = self.ref(scope, kind, outer=False) if kinds else self.ref(scope, outer=False)
            name = names[number] if names else f"o{number}"
            if found is None:
                shown.append((f"CAST(NULL AS {SQL[kind]})", Column(name, kind)))
                continue
            text, column = found
            if kinds is None and self.chance(0.5):
                count = self.pick("count(*)", f"count({text})", f"count(DISTINCT {text})", "count()")
                shown.append((count, Column(name, "int")))
            else:
                self.tag("min and max")
                shown.append((f"{self.pick('min', 'max')}({text})", Column(name, column.kind, shaky=True)))
        return shown

    def _partitioned(self, scope: Scope, shown: list[tuple[str, Column]]) -> tuple[str, str, int] | None:
        """Return what a window is partitioned and ordered by, and which output the first is, or -1."""
        by = self.ref(scope, outer=False)
        at = self.rng.randrange(len(shown)) if shown and self.chance(0.75) else -1
        key = shown[at] if at >= 0 else self.ref(scope, outer=False)
        return (key[0], by[0], at) if key is not None and by is not None else None

    def _windows(self, scope: Scope, shown: list[tuple[str, Column]]) -> list[tuple[str, Column]]:
        """Add a window function to the outputs."""
        found = self._partitioned(scope, shown)
        if found is None:
            return shown
        key, by, place = found
        self.tag("window")
        over = f"OVER (PARTITION BY {key} ORDER BY {by})"
        text = self.pick(
            f"rank() {over}", f"dense_rank() {over}", f"count(*) {over}", f"count(*) OVER (PARTITION BY {key})"
        )
        through = [c.through("window key" if i == place else "window other") for i, (_, c) in enumerate(shown)]
        return [*zip((t for t, _ in shown), through, strict=True), (text, Column("w0", "int"))]

    def _qualified(self, text: str, scope: Scope, env: Env, shown: list[tuple[str, Column]]) -> Query:
        found = self._partitioned(scope, shown)
        if found is None:
            return Query(text, [c for _, c in shown])
        key, by, place = found
        self.tag("qualify")
        condition = f"rank() OVER (PARTITION BY {key} ORDER BY {by}) {self.pick('= 1', '> 1', '<= 2')}"
        if self.chance(0.1 if self.quiet else 0.5):
            condition += f" AND {self.predicate(scope, 0, env, 'QUALIFY', 0)}"
        through = [c.through("qualify key" if i == place else "qualify other") for i, (_, c) in enumerate(shown)]
        return Query(f"{text} QUALIFY {condition}", through)

    def _grouped(
        self, depth: int, env: Env, scope: Scope, from_: str, conjuncts: list[str], kinds: list[str] | None,
        names: list[str] | None,
    ) -> Query:  # fmt: skip
        shape = self.weighted(keys=4, positions=1, all=1.2, rollup=0.7, cube=0.4, sets=0.5)
        construct = {"rollup": "rollup", "cube": "group by cube", "sets": "grouping sets", "all": "group by all"}.get(
            shape, "group by"
        )
        self.tag(construct)
        keys = self._outputs(scope, kinds or [self.pick(*OUTPUT_KINDS) for _ in range(self.pick(1, 2))], names)
        keys = [(t, self._loose(c, construct)) for t, c in keys]
        where = self.where(scope, depth, env, conjuncts)
        listed = [t if t.split(".")[-1] == c.name else f"{t} AS {c.name}" for t, c in keys]
        columns = [c for _, c in keys]
        if kinds is None:
            for number in range(self.pick(0, 1, 2)):
                aggregate, kind = self._aggregate(scope, env)
                listed.append(f"{aggregate} AS g{number}")
                columns.append(Column(f"g{number}", kind, shaky=True))
        texts = [t for t, _ in keys]
        by = {
            "keys": ", ".join(texts),
            "positions": ", ".join(str(i + 1) for i in range(len(texts))),
            "all": "ALL",
            "rollup": f"ROLLUP ({', '.join(texts)})",
            "cube": f"CUBE ({', '.join(texts)})",
            "sets": f"GROUPING SETS (({', '.join(texts)}), ({texts[0]}), ())",
        }[shape]
        having = ""
        if self.chance(0.1 if self.quiet else 0.4):
            inner = Scope(None, aliases=[])
            condition = "count(*) >= 1"
            if self.chance(0.75) and shape != "all":
                having_text, column = self.rng.choice(keys)
                self.constrain([column], "HAVING", inner)
                condition = self._plain(having_text, column.kind)
                self.tag("having on keys")
            having = f" HAVING {condition}{self.pick('', '', ' AND count(*) > 1')}"
        return Query(f"SELECT {', '.join(listed)} FROM {from_}{where} GROUP BY {by}{having}", columns)

    def _aggregate(self, scope: Scope, env: Env) -> tuple[str, str]:
        """Return an aggregate function and the kind of its result."""
        found = self.ref(scope, outer=False)
        text, column = found or ("1", Column("", "int"))
        aggregate = self.pick("count(*)", f"count({text})", f"count(DISTINCT {text})")
        kind = "int"
        if self.chance(0.4) and column.kind != "bool":
            aggregate, kind = f"{self.pick('min', 'max')}({text})", column.kind
        elif column.kind in ("int", "small") and self.chance(0.5):
            aggregate, kind = f"sum({text})", "huge"
        if self.chance(0.15):
            self.tag("filter")
            aggregate += f" FILTER (WHERE {self.predicate(scope, 0, env, 'FILTER', 0)})"
        return aggregate, kind

    def _star(self, scope: Scope) -> tuple[str, list[Column]]:
        """Return SELECT with a star."""
        source = self.rng.choice(scope.sources)
        columns = [c.through("star") for c in source.columns]
        self.tag("star")
        alone = len(scope.sources) == 1 and not scope.merged
        if not alone:
            if any(c in scope.merged for c in scope.names()):
                text, column = self.rng.choice(self.refs(scope, outer=False))
                return f"SELECT {text} AS o0", [Column("o0", column.kind, column.lineage, column.shaky).through("star")]
            return f"SELECT {source.alias}.*", columns
        at = self.rng.randrange(len(columns))
        one = columns[at]
        way = self.weighted(whole=4, exclude=1.5, replace=3, rename=2, qualified=1, columns_=0.5)
        if len(columns) == 1 and way == "exclude":
            way = "whole"
        if way == "exclude":
            self.tag("exclude")
            return f"SELECT * EXCLUDE ({one.name})", [c for c in columns if c is not one]
        if way == "rename":
            self.tag("rename")
            columns[at] = Column("renamed", one.kind, one.lineage, one.shaky).through("rename")
            return f"SELECT * RENAME ({one.name} AS renamed)", columns
        if way == "replace":
            self.tag("replace")
            other = self.ref(scope, one.kind, outer=False) or (one.name, one)
            columns[at] = Column(one.name, one.kind, other[1].lineage, one.kind in FLOATS).through("replace")
            text = self.pick(other[0], f"coalesce({other[0]}, {one.name})", "NULL")
            if text == "NULL":
                text = f"CAST(NULL AS {SQL[one.kind]})"
            return f"SELECT * REPLACE ({text} AS {one.name})", columns
        if way == "qualified":
            return f"SELECT {source.alias}.*", columns
        if way == "columns_":
            self.tag("columns()")
            return "SELECT COLUMNS(*)", columns
        return "SELECT *", columns
