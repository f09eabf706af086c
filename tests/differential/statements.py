"""Random statements: SELECT, set operations and WITH, nested up to three levels."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from differential.scope import MARK, PLACE, Column, Cte, Env, Query, Scope, Source
from differential.selects import OUTPUT_KINDS
from differential.stores import World
from differential.traps import Traps
from differential.values import FLOATS, related, united

CTE_NAMES = ["r", "s1", "t", "c", "k", "x"]
SET_OPERATIONS = ["UNION", "UNION", "UNION ALL", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL",
                  "UNION BY NAME", "UNION ALL BY NAME"]  # fmt: skip


@dataclass(frozen=True)
class Statement:
    """A random statement and what is known of it.

    ``limit`` rows after ``offset`` are to be any of those of ``text`` without the LIMIT that
    ``tail`` is. ``traces`` tell, by the position of a stored table in the text, through which
    constructs its conditions reach it.
    """

    text: str
    tail: str
    limit: int | None
    offset: int
    parameters: Any
    tags: frozenset[str]
    traces: dict[int, list[frozenset[str]]]
    occurrences: int


class Writer(Traps):
    """Writes random queries; see ``statement``."""

    # -- queries -----------------------------------------------------------------------------

    def query(self, depth: int, env: Env, outer: Scope | None, kinds: list[str] | None = None) -> Query:
        way = self.weighted(select=10, setop=0 if depth <= 0 else 4 if self.quiet else 2, with_=1.5 if depth > 0 else 0)
        if way == "setop":
            return self._set_operation(depth, env, outer, kinds)
        if way == "with_":
            return self._with(depth, env, outer, kinds)
        return self.select(depth, env, outer, kinds)

    def _with(self, depth: int, env: Env, outer: Scope | None, kinds: list[str] | None) -> Query:
        env, texts = dict(env), []
        looped = self.chance(0.08)
        # Below RECURSIVE every expression may mean itself.
        names = ["r", "s1", "s2", "s3"] if looped else [*CTE_NAMES, "s2"]
        for number in range(self.pick(1, 1, 2)):
            name = self.rng.choice([n for n in names if n not in env] or ["s4"])
            inner = self._recursive(env) if looped and number == 0 else self.query(depth - 1, env, None)
            columns = inner.columns
            shown = name
            if self.chance(0.3):
                self.tag("cte column list")
                columns = [
                    Column(f"m{i}", c.kind, c.lineage, c.shaky).through("cte column list")
                    for i, c in enumerate(columns)
                ]
                shown = f"{name}({', '.join(c.name for c in columns)})"
            hint = self.pick("", "", "", "", "MATERIALIZED ", "NOT MATERIALIZED ")
            texts.append(f"{shown} AS {hint}({inner.text.replace('<name>', name)})")
            env[name] = Cte(columns)
            if name in {t.name for t in self.world.tables}:
                self.tag("cte named like a table")
        recursive = "RECURSIVE " if any("<recursive>" in t for t in texts) else ""
        body = self.query(depth, env, outer, kinds) if depth > 1 else self.select(depth, env, outer, kinds)
        # Where a WITH follows another one in parentheses DuckDB forgets it.
        inner = f"SELECT * FROM ({body.text}) w" if body.text.lstrip("(").startswith("WITH") else body.text
        text = f"WITH {recursive}{', '.join(texts)} {inner}".replace("<recursive>", "")
        return Query(text, body.columns, simple=False)

    def _recursive(self, env: Env) -> Query:
        self.tag("recursive cte")
        table = self.rng.choice([t for t in self.visible(env) if {"int", "small"} & {*t.columns.values()}])
        text, source = self.base(table, alias="a")
        number = self.rng.choice([c for c in source.columns if c.kind in ("int", "small")]).name
        scope = Scope(None, [source])
        where = self.predicate(scope, 0, env, "recursive cte", 1)
        first = f"SELECT a.{number}::BIGINT AS o0 FROM {text} a WHERE a.{number} BETWEEN 0 AND 3 AND {where}"
        step = self.pick("SELECT n.o0 + 1 FROM <name> n WHERE n.o0 < 4", "SELECT 2 - n.o0 FROM <name> n")
        return Query(f"<recursive>{first} UNION {step}", [Column("o0", "int")])

    def _set_operation(self, depth: int, env: Env, outer: Scope | None, kinds: list[str] | None) -> Query:
        op = self.rng.choice(SET_OPERATIONS)
        exact = kinds is not None
        kinds = kinds or [self.rng.choice(OUTPUT_KINDS) for _ in range(self.pick(1, 2, 2))]
        others = list(kinds)
        if not exact:
            some = [*dict.fromkeys(OUTPUT_KINDS), "big"]
            others = [self.rng.choice([o for o in some if related(k, o)]) if self.chance(0.3) else k for k in kinds]
        left = self.query(depth - 1, env, outer, kinds)
        self.tag(op.lower())
        if op.endswith("BY NAME"):
            order = self.rng.sample(range(len(kinds)), len(kinds))
            right = self.select(
                depth - 1, env, outer, [others[i] for i in order], [left.columns[i].name for i in order]
            )
            matched = [right.columns[order.index(i)] for i in range(len(kinds))]
        else:
            right = self.query(depth - 1, env, outer, others)
            matched = right.columns
        if others != kinds:
            self.tag("set operation of mixed types")
        columns = []
        for one, other in zip(left.columns, matched, strict=True):
            kind = united(one.kind, other.kind)
            merged = Column(one.name, kind, one.lineage + other.lineage, shaky=kind in FLOATS)
            columns.append(merged.through(op.lower(), *(["coerced"] if one.kind != other.kind else [])))
        texts = [q.text if q.simple and self.chance(0.6) else f"({q.text})" for q in (left, right)]
        return Query(f" {op} ".join(texts), columns, simple=False)

    def _focused(self, depth: int) -> Query:
        """Return a query with few conditions but those that stand around it."""
        self.quiet = True
        inner = self.query(depth, {}, None)
        scope, env = Scope(None), {"q": Cte(inner.columns)}
        shape = self.weighted(derived=4, cte=3, twice=1.5, count=1)
        through = "derived table" if shape in ("derived", "count") else "cte"
        self.tag(through)
        scope.sources.append(Source("q", [c.through(through) for c in inner.columns]))
        text = f"({inner.text}) q" if through == "derived table" else "q"
        conjuncts: list[str] = []
        if shape == "twice":
            self.tag("cte used twice")
            again = [c.through("cte", "cte used twice") for c in inner.columns]
            link = self._link(scope, Source("q2", again), "join")
            scope.sources.append(Source("q2", again))
            text += f" JOIN q q2 ON {link or 'TRUE'}"
        elif self.chance(0.35):
            text, conjuncts = self._join(text, 0, {} if through == "derived table" else env, scope)
        where = " AND ".join([*conjuncts, self.narrow(scope, "WHERE")])
        self.quiet = False
        if shape == "count":
            shown = ["count(*)"]
        else:
            found = self.refs(scope, outer=False)
            shown = [f"{t} AS o{i}" for i, (t, _) in enumerate(self.rng.sample(found, min(3, len(found))))]
        with_ = f"WITH q AS ({inner.text}) " if through == "cte" else ""
        return Query(f"{with_}SELECT {', '.join(shown)} FROM {text} WHERE {where}", [], simple=not with_)

    # -- statements --------------------------------------------------------------------------

    def statement(self) -> Statement:
        """Return a statement with its parameters."""
        way = self.weighted(trap=4, focused=3.5, any=4)
        if way == "trap":
            query = self.trap()
        elif way == "focused":
            query = self._focused(self.pick(0, 1, 1, 2))
        else:
            query = self.query(self.rng.choices([0, 1, 2, 3], [0.25, 0.35, 0.28, 0.12])[0], {}, None)
        text, limit, offset, tail = query.text, None, 0, ""
        if query.simple and self.chance(0.06):
            self.tag("limit without order")
            limit, offset = self.pick(0, 1, 3, 10), self.pick(0, 0, 1)
            tail = f" LIMIT {limit}" + (f" OFFSET {offset}" if offset else "")
        places = [int(n) for n in PLACE.findall(text)]
        style = self.pick("?", "$1", "$name")
        values = [self.values[n] for n in places]
        parameters: Any = values
        if style == "?":
            text = PLACE.sub("?", text)
        else:
            known = list(dict.fromkeys(places))
            parameters = [self.values[n] for n in known]
            text = PLACE.sub(lambda m: f"${'v' if style == '$name' else ''}{known.index(int(m[1])) + 1}", text)
            if style == "$name":
                parameters = {f"v{i + 1}": v for i, v in enumerate(parameters)}
        marks = [int(n) for n in MARK.findall(text)]
        traces = {at: self.traces[mark] for at, mark in enumerate(marks) if mark in self.traces}
        return Statement(
            MARK.sub("", text), tail, limit, offset, parameters or None, frozenset(self.tags), traces, len(marks)
        )


def statement(world: World, number: int) -> Statement:
    """Return statement ``number`` for a store; the same one every time."""
    return Writer(world, random.Random(f"{world.seed}/{number}")).statement()
