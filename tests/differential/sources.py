"""Random FROM clauses: tables, derived tables, common table expressions, and every way to join them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from differential.predicates import Predicates
from differential.scope import Column, Env, Query, Scope, Source
from differential.stores import Table
from differential.values import FAMILIES, FAMILY, FLOATS, literal, related

ALIASES = ["a", "b", "c", "d", "t", "x", "p", "r", "i", "z"]  # some are names of tables or columns


@dataclass
class Item:
    """The text of one FROM item and what it brings into scope."""

    text: str
    source: Source


class Sources(Predicates):
    """Writes FROM clauses."""

    def ordered(self, depth: int, env: Env, outer: Scope | None, count: int) -> Query:
        raise NotImplementedError

    def from_clause(self, depth: int, env: Env, outer: Scope | None) -> tuple[str, Scope, list[str]]:
        """Return the text, the scope and further conjuncts that WHERE must get."""
        scope = Scope(outer)
        if depth > 0 and self.chance(0.02):
            return self._positional(depth, env, scope)
        first = self._item(depth, env, scope)
        text, where = first.text, []
        scope.sources.append(first.source)
        more = self.rng.choices([0, 1, 2], [0.75, 0.2, 0.05] if self.quiet else [0.5, 0.37, 0.13])[0]
        for number in range(more):
            text, conjunct = self._join(text, depth, env, scope)
            where += conjunct
            if number == 0 and more == 1 and self.chance(0.06) and scope.star and " JOIN " in text and not scope.merged:
                self.tag("parenthesised join")
                text = f"({text})"
        return text, scope, where

    # -- items -------------------------------------------------------------------------------

    def _alias(self, scope: Scope, preferred: str | None = None) -> str:
        used = {s.alias for s in scope.sources}
        free = [a for a in ALIASES if a not in used]
        return preferred if preferred and preferred not in used and self.chance(0.5) else self.rng.choice(free)

    def _item(self, depth: int, env: Env, scope: Scope, *, plain: bool = False) -> Item:
        derived = 2.5 if depth > 0 else 0
        way = self.weighted(
            table=7, derived=derived, cte=5 if env else 0, values=0.2, unnest=0.1, sample=0 if plain else 0.15,
            pivot=0.3 if depth > 0 else 0,
        )  # fmt: skip
        if way == "table":
            return self._table(env, scope)
        if way == "sample":
            self.tag("sample")
            item = self._table(env, scope)
            how = self.pick("100 PERCENT", "reservoir(1000 ROWS)", "system(100%)")
            return Item(f"{item.text} TABLESAMPLE {how}", self._through(item.source, "sample"))
        if way == "cte":
            return self._cte(env, scope)
        if way == "pivot":
            return self._pivot(env, scope) or self._table(env, scope)
        if way == "values":
            kind = self.pick("int", "text", "date")
            self.tag("values")
            alias = self._alias(scope)
            rows = ", ".join(f"({self.constant(kind)}, {i})" for i in range(3))
            return Item(f"(VALUES {rows}) {alias}(o0, n)", Source(alias, [Column("o0", kind), Column("n", "int")]))
        if way == "unnest":
            alias = self._alias(scope)
            self.tag("table function")
            text = self.pick(f"unnest([1, 2, NULL, 3]) {alias}(n)", f"range(4) {alias}(n)")
            return Item(text, Source(alias, [Column("n", "int")]))
        inner = self.query(depth - 1, env, None)
        self.tag("derived table")
        return self._named(f"({inner.text})", [c.through("derived table") for c in inner.columns], scope)

    def _through(self, source: Source, *constructs: str) -> Source:
        return Source(source.alias, [c.through(*constructs) for c in source.columns])

    def _named(self, text: str, columns: list[Column], scope: Scope, preferred: str | None = None) -> Item:
        """Give an item an alias, and perhaps its columns other names."""
        alias = self._alias(scope, preferred)
        if self.chance(0.08):
            self.tag("column list")
            names = [f"n{i}" if self.chance(0.5) else c.name for i, c in enumerate(columns)]
            if self.chance(0.3):
                names.reverse()
            if len(set(names)) == len(names):
                renamed = [replace(c, name=n).through("column list") for c, n in zip(columns, names, strict=True)]
                return Item(f"{text} {self.pick('', 'AS ')}{alias}({', '.join(names)})", Source(alias, renamed))
        return Item(f"{text} {self.pick('', 'AS ')}{alias}", Source(alias, columns))

    def visible(self, env: Env) -> list[Table]:
        """Return the tables that no common table expression hides."""
        return [t for t in self.world.tables if t.name not in env]

    def _table(self, env: Env, scope: Scope) -> Item:
        tables = self.visible(env)
        weights = [3 if t.name == "c" else 2 if t.name in ("t", "z") else 1 for t in tables]
        table = self.rng.choices(tables, weights)[0]
        last = table.name.split(".")[-1]
        if '"' not in last and last not in {s.alias for s in scope.sources} and self.chance(0.25):
            text, source = self.base(table, alias=last)
            return Item(text, source)
        text, source = self.base(table, alias="")
        return self._named(text, source.columns, scope)

    def _cte(self, env: Env, scope: Scope) -> Item:
        name = self.rng.choice(list(env))
        cte = env[name]
        cte.uses += 1
        self.tag("cte" if cte.uses == 1 else "cte used twice")
        columns = [c.through("cte") for c in cte.columns]
        if name not in {s.alias for s in scope.sources} and self.chance(0.5):
            return Item(name, Source(name, columns))
        return self._named(name, columns, scope)

    def _pivot(self, env: Env, scope: Scope) -> Item | None:
        """Return a table whose columns became rows, or whose rows became columns."""
        table = self.rng.choice([t for t in self.visible(env) if t.stored])
        text, source = self.base(table, alias="")
        alias = self._alias(scope)
        if self.chance(0.6):
            kind = self.rng.choice([c.kind for c in source.columns])
            chosen = [c for c in source.columns if c.kind == kind][:3]
            if len(chosen) < 2 or any(c.name in ("o0", "o1") for c in source.columns):
                return None
            self.tag("unpivot")
            rest = [c.through("unpivot") for c in source.columns if c not in chosen]
            columns = [*rest, Column("o0", "text"), Column("o1", kind)]
            listed = ", ".join(c.name for c in chosen)
            return Item(f"(SELECT * FROM {text} UNPIVOT (o1 FOR o0 IN ({listed}))) {alias}", Source(alias, columns))
        key, on = self.rng.choice(source.columns), self.rng.choice(source.columns)
        if key is on or on.kind in ("bytes", "zone", "time", "single", "float"):
            return None
        self.tag("pivot")
        values = ", ".join(self._pool_texts(on.kind))
        inner = f"(SELECT {key.name}, {on.name} FROM {text})"
        pivoted = f"(SELECT {key.name} FROM {inner} PIVOT (count(*) FOR {on.name} IN ({values}) GROUP BY {key.name}))"
        return Item(f"{pivoted} {alias}", Source(alias, [key.through("pivot", shaky=True)]))

    def _pool_texts(self, kind: str) -> list[str]:
        return [literal(v) for v in self.world.pools[kind][:2]]

    # -- joins -------------------------------------------------------------------------------

    def _join(self, text: str, depth: int, env: Env, scope: Scope) -> tuple[str, list[str]]:
        way = self.weighted(
            on=9, using=2, natural=0.7, comma=1.2, cross=0.4, asof=0.4, lateral=0.6 if depth > 0 else 0
        )  # fmt: skip
        if way == "lateral":
            return self._lateral(text, depth, env, scope), []
        item = self._item(depth, env, scope)
        if way in ("using", "natural"):
            joined = self._using(text, item, scope, natural=way == "natural")
            if joined is not None:
                return joined, []
        if way == "asof":
            joined = self._asof(text, item, scope)
            if joined is not None:
                return joined, []
        if way in ("comma", "cross"):
            self.tag("cross join")
            link = self._link(scope, item.source, "WHERE") if self.chance(0.85) else None
            scope.sources.append(item.source)
            return f"{text}{', ' if way == 'comma' else ' CROSS JOIN '}{item.text}", [link] if link else []
        return self._on(text, item, scope, depth, env), []

    def _on(self, text: str, item: Item, scope: Scope, depth: int, env: Env) -> str:
        join = self.pick("JOIN", "INNER JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN",
                         "ANTI JOIN")  # fmt: skip
        name = join.replace("INNER ", "").lower()
        on = self._link(scope, item.source, name) or "TRUE"
        self.tag(name)
        both = Scope(scope.outer, [*scope.sources, item.source])
        if self.chance(0.1 if self.quiet else 0.5):
            word = self.pick("AND", "AND", "AND", "AND", "OR")
            more = self.predicate(
                both, depth if self.chance(0.3) else 0, env, f"ON of {name}" if word == "AND" else "OR in ON", 1
            )
            on = f"{on} {word} {more}" if word == "AND" else f"({on} OR {more})"
        if join not in ("SEMI JOIN", "ANTI JOIN"):
            scope.sources.append(item.source)
        return f"{text} {join} {item.text} ON {on}"

    def _link(self, scope: Scope, source: Source, join: str) -> str | None:
        """Return a predicate that ties ``source`` to those before it."""
        mine = [(s.alias, c) for s in scope.sources for c in s.columns]
        pairs = [(a, c, d) for a, c in mine for d in source.columns if related(c.kind, d.kind)]
        if not pairs:
            return None
        same = [p for p in pairs if p[1].name == p[2].name]
        useful = [p for p in pairs if p[1].lineage and p[2].lineage]
        alias, one, other = self.rng.choice(self.pick(same, useful, useful, pairs) or pairs)
        op = self.pick(*["="] * 9, "<=", "IS NOT DISTINCT FROM")
        if one.kind != other.kind:
            self.tag("join of mixed types")
        left, right = f"{alias}.{one.name}", f"{source.alias}.{other.name}"
        if FAMILY[one.kind] == 0 and one.kind not in ("big", "huge") and self.chance(0.05):
            left, op = f"{left} + 1", "="
        elif op == "=":
            scope.links.append((one, other, join))
        return f"{left} = {right}" if op == "=" and self.chance(0.5) else f"{right} {'>=' if op == '<=' else op} {left}"

    def _using(self, text: str, item: Item, scope: Scope, *, natural: bool) -> str | None:
        left = {n: c for s in scope.sources for c in s.columns for n in [c.name]}
        names = scope.names()
        common = [c for c in item.source.columns if c.name in left]
        single = [c for c in common if names.count(c.name) == 1 or c.name in scope.merged]
        if not single or any(not related(left[c.name].kind, c.kind) for c in (common if natural else single)):
            return None
        if natural and (len(common) != len(single) or not scope.star):
            return None
        chosen = common if natural else self.rng.sample(single, min(len(single), self.pick(1, 1, 2)))
        join = self.pick(
            "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", *([] if natural else ["SEMI JOIN", "ANTI JOIN"])
        )
        name = f"{'natural' if natural else 'using'} {join.lower()}"
        self.tag(name)
        for column in chosen:
            mine = left[column.name]
            scope.links.append((mine, column, name))
            if join not in ("SEMI JOIN", "ANTI JOIN"):
                kind = mine.kind if mine.kind == column.kind else None
                lineage = mine.lineage + column.lineage
                if kind is not None:
                    merged = Column(column.name, kind, lineage, shaky=kind in FLOATS)
                    scope.merged[column.name] = merged.through(f"merged by {name}")
        if join not in ("SEMI JOIN", "ANTI JOIN"):
            scope.sources.append(item.source)
        if natural:
            return f"{text} NATURAL {join} {item.text}"
        return f"{text} {join} {item.text} USING ({', '.join(c.name for c in chosen)})"

    def _asof(self, text: str, item: Item, scope: Scope) -> str | None:
        """Join the nearest row; of the right side only what the condition names is determined."""
        families = [[k for k in FAMILIES[0] if k not in FLOATS], FAMILIES[2]]
        mine = [(s.alias, c) for s in scope.sources for c in s.columns]
        pairs = [
            (a, c, d) for a, c in mine for d in item.source.columns for f in families if c.kind in f and d.kind in f
        ]
        if not pairs:
            return None
        self.tag("asof join")
        alias, one, other = self.rng.choice(pairs)
        on = f"{alias}.{one.name} {self.pick('>=', '>', '<=')} {item.source.alias}.{other.name}"
        visible = [other]
        equal = [(a, c, d) for a, c in mine for d in item.source.columns if c.kind == d.kind and d is not other]
        if equal and self.chance(0.5):
            a, c, d = self.rng.choice(equal)
            on = f"{a}.{c.name} = {item.source.alias}.{d.name} AND {on}"
            visible.append(d)
        scope.star = False
        scope.sources.append(self._through(Source(item.source.alias, visible), "asof right"))
        return f"{text} ASOF {self.pick('', 'LEFT ')}JOIN {item.text} ON {on}"

    def _lateral(self, text: str, depth: int, env: Env, scope: Scope) -> str:
        self.tag("lateral")
        around = Scope(None, list(scope.sources))
        inner = self.query(depth - 1, env, around)
        alias = self._alias(scope)
        scope.sources.append(Source(alias, [c.through("lateral") for c in inner.columns]))
        return self.pick(
            f"{text}, LATERAL ({inner.text}) {alias}",
            f"{text} JOIN LATERAL ({inner.text}) {alias} ON TRUE",
            f"{text} LEFT JOIN LATERAL ({inner.text}) {alias} ON TRUE",
            f"{text}, ({inner.text}) {alias}",
        )

    def _positional(self, depth: int, env: Env, scope: Scope) -> tuple[str, Scope, list[str]]:
        self.tag("positional join")
        texts = []
        for _ in range(2):
            inner = self.ordered(depth - 1, env, None, self.pick(1, 2))
            alias = self._alias(scope)
            scope.sources.append(Source(alias, [c.through("positional") for c in inner.columns]))
            texts.append(f"({inner.text}) {alias}")
        scope.star = False
        return " POSITIONAL JOIN ".join(texts), scope, []
