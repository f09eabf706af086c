"""Random predicates over the columns in scope."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from differential.scope import Base, Column, Env, Query, Scope
from differential.values import FAMILY, FLOATS, literal, related

Shape = Callable[[], str]
PARAMETERS = ("int", "text", "date", "digits", "float")


class Predicates(Base):
    """Writes predicates; every one runs without error on the plain tables, nearly always."""

    def query(self, depth: int, env: Env, outer: Scope | None, kinds: list[str] | None = None) -> Query:
        raise NotImplementedError

    def predicate(self, scope: Scope, depth: int, env: Env, place: str, levels: int = 2) -> str:
        """Return a predicate that stands at ``place``, and note what it is about."""
        used: list[Column] = []
        text = self._tree(scope, depth, env, used, levels)
        self.constrain(used, place, scope)
        return text

    def _tree(self, scope: Scope, depth: int, env: Env, used: list[Column], levels: int) -> str:
        if levels and self.chance(0.55):
            word = self.pick("AND", "AND", "AND", "OR")
            left, right = (self._tree(scope, depth, env, used, levels - 1) for _ in range(2))
            return self.pick(f"({left} {word} {right})", f"({left} {word} {right})", f"NOT ({left} {word} {right})")
        if levels and self.chance(0.05):
            (a, b), (c, d) = ([self._tree(scope, 0, env, used, 0) for _ in range(2)] for _ in range(2))
            self.tag("or of ands")
            return f"(({a} AND {b}) OR ({c} AND {d}))"
        return self._atom(scope, depth, env, used)

    def narrow(self, scope: Scope, place: str) -> str:
        """Return one or two conditions that few rows meet."""
        texts = []
        for _ in range(self.pick(1, 1, 2)):
            found = self.ref(scope)
            for _ in range(6):
                if found is not None and not found[1].lineage:
                    found = self.ref(scope)
            if found is None:
                return "TRUE"
            text, column = found
            values = [self.constant(column.kind) for _ in range(2)]
            shapes = [f"{text} = {values[0]}", f"{text} = {values[1]}", f"{text} IN ({', '.join(values)})",
                      f"{text} BETWEEN {' AND '.join(values)}", self._plain(text, column.kind)]  # fmt: skip
            texts.append(self.rng.choice(shapes))
            self.constrain([column], place, scope)
        return " AND ".join(texts)

    # -- atoms -------------------------------------------------------------------------------

    def constant(self, kind: str) -> str:
        if kind == "huge":
            kind = "int"
        if self.chance(0.03):
            return "NULL"
        if kind in FLOATS and self.chance(0.08):
            return "'nan'::DOUBLE"
        value = self.rng.choice(self.world.pools[kind])
        if kind in PARAMETERS and self.chance(0.12):
            self.tag("parameter")
            self.values.append(value)
            return f"<<{len(self.values) - 1}>>"
        return literal(value)

    def odd_constant(self, kind: str) -> str:
        """Return a constant of another type than the column it is compared with."""
        value = self.rng.choice(self.world.pools["int" if kind == "huge" else kind])
        if kind in ("int", "small", "big", "dec", "huge"):
            return self.pick(f"'{value}'", f"{value}.0", "1.5", f"{int(value)}::DOUBLE", "0.999")
        if kind in FLOATS:
            return self.pick("1", "'2.5'", "0.1", "0.1::FLOAT", "2.5::DECIMAL(4,2)")
        if kind == "digits":
            return self.pick("1", "10", "'1'")
        if kind in ("date", "time"):
            day = value.date() if isinstance(value, dt.datetime) else value
            return self.pick(f"'{value}'", f"TIMESTAMP '{day} 00:00:00'", f"TIMESTAMP '{day} 12:30:00'", "now()",
                             f"DATE '{day}'", "current_date", f"'{day} 23:59:59'::TIMESTAMP")  # fmt: skip
        if kind == "zone":
            naive = value.replace(tzinfo=None)
            return self.pick(f"TIMESTAMP '{naive}'", f"DATE '{naive.date()}'", "now()", f"TIMESTAMPTZ '{naive}+05:30'",
                             f"'{value}'")  # fmt: skip
        return self.constant(kind)

    def _atom(self, scope: Scope, depth: int, env: Env, used: list[Column]) -> str:
        found = self.ref(scope)
        if found is None:
            return self.pick("TRUE", "1 = 1", "NULL IS NULL")
        if scope.aliases and self.chance(0.15):
            column = self.rng.choice(scope.aliases)
            found = column.name, column
            self.tag("alias in where")
        text, column = found
        used.append(column)
        way = self.weighted(plain=10, special=3, pair=1.2, subquery=1.6 if depth > 0 else 0, row=0.3, odd=0.15)
        if way == "special":
            return self._special(text, column)
        if way == "pair":
            return self._pair(text, column, scope, used)
        if way == "subquery":
            return self._subquery(text, column, scope, depth, env)
        if way == "row":
            other = self.ref(scope) or found
            used.append(other[1])
            kinds = column.kind, other[1].kind
            rows = [f"({self.constant(kinds[0])}, {self.constant(kinds[1])})" for _ in range(3)]
            self.tag("row comparison")
            return self.pick(f"({text}, {other[0]}) = {rows[0]}", f"({text}, {other[0]}) IN ({', '.join(rows)})")
        if way == "odd":
            self.tag("volatile" if column.kind != "text" else "latent error")
            return f"CAST({text} AS INTEGER) = 1" if column.kind == "text" else f"({text} IS NULL OR random() < 2)"
        return self._plain(text, column.kind)

    def _plain(self, c: str, kind: str) -> str:
        def value() -> str:
            return self.odd_constant(kind) if self.chance(0.15) else self.constant(kind)

        low, high = value(), value()
        listed = ", ".join([value() for _ in range(self.pick(1, 2, 3, 4))] + self.pick([], [], ["NULL"]))
        shapes: list[Shape] = [
            lambda: f"{c} {self.pick('=', '<>', '<', '<=', '>', '>=', '!=')} {low}",
            lambda: f"{c} = {low}",
            lambda: f"{c} = {low}",
            lambda: f"{low} {self.pick('=', '<', '>=')} {c}",
            lambda: f"{c} {self.pick('IN', 'IN', 'NOT IN')} ({listed})",
            lambda: f"{c} {self.pick('BETWEEN', 'NOT BETWEEN')} {low} AND {high}",
            lambda: f"{c} IS {self.pick('', 'NOT ')}NULL",
            lambda: f"coalesce({c}, {self.constant(kind)}) = {self.constant(kind)}",
            lambda: f"{c} IS {self.pick('', 'NOT ')}DISTINCT FROM {low}",
            lambda: f"CAST({c} AS VARCHAR) {self.pick('LIKE', 'NOT LIKE')} '{self.pick('%a%', '1%', '_', '2020%')}'",
            lambda: f"TRY_CAST({c} AS {self.pick('VARCHAR', 'DOUBLE')}) = {self.pick(repr('1'), repr('0.0'))}",
            lambda: (
                f"CASE WHEN {c} = {low} THEN {self.pick('TRUE', 'NULL')} "
                f"WHEN {c} = {high} THEN FALSE ELSE {self.pick('FALSE', 'TRUE')} END"
            ),
            lambda: f"({c} = {low}) IS {self.pick('', 'NOT ')}{self.pick('TRUE', 'NULL', 'FALSE')}",
            lambda: f"CASE {c} WHEN {low} THEN 1 ELSE 2 END = {self.pick('1', '2')}",
            lambda: f"({c} = {low} OR {c} = {high})",
            lambda: f"nullif({c}, {low}) IS NULL",
        ]
        return self.rng.choice(shapes)()

    def _special(self, c: str, column: Column) -> str:
        kind = column.kind
        shapes: dict[str, list[str]] = {
            "text": [f"{c} ILIKE 'A%'", f"upper({c}) = 'A'", f"length({c}) > 1", f"{c} LIKE 'a%'", f"{c} || 'x' = 'ax'",
                     f"starts_with({c}, 'a')", f"{c} COLLATE NOCASE = 'A'", f"{c} SIMILAR TO '[ab].*'", f"{c} < 'b'",
                     f"contains({c}, '/')", f"{c} = ''", f"{c} BETWEEN 'a' AND 'b'"],
            "digits": [f"{c}::INTEGER = 1", f"{c} = 1", f"{c}::DOUBLE < 5", f"length({c}) = 2", f"{c} LIKE '1%'",
                       f"{c} < '2'", f"CAST({c} AS BIGINT) IN (1, 2)"],
            "int": [f"{c} % 3 = 1", f"{c} = 1.5", f"{c} BETWEEN 1.5 AND 4.5", f"{c} + 1 > 3", f"abs({c}) = 1",
                    f"{c}::VARCHAR = '1'", f"{c} / 2 = 0.5", f"-{c} = -2", f"{c} IN ('1', '2')", f"{c}::DOUBLE = 1e0",
                    f"{c} IN ({', '.join(map(str, range(0, 60, 2)))})", f"{c} = 9007199254740993::DOUBLE"],
            "big": [f"{c} > 9223372036854775807", f"{c}::HUGEINT + 1 > 2", f"{c} = 1.0", f"{c}::VARCHAR LIKE '1%'"],
            "dec": [f"{c} = 1.5", f"{c} + 1 = 2", f"{c}::VARCHAR = '2.50'", f"{c}::INTEGER = 2"],
            "date": [f"{c} = '2020-02-29'", f"year({c}) = 2020", f"date_trunc('year', {c}) = DATE '2020-01-01'",
                     f"{c} < now()", f"{c} <= current_date", f"{c} + INTERVAL 1 DAY > DATE '2020-02-29'",
                     f"{c} = TIMESTAMP '2020-02-29 00:00:01'", f"{c} >= TIMESTAMPTZ '2020-02-28 23:30:00+00'",
                     f"{c}::VARCHAR > '2'"],
            "zone": [f"{c}::DATE = DATE '2020-02-29'", f"{c}::VARCHAR LIKE '2020-02-29%'",
                     f"{c} >= TIMESTAMP '2020-02-29 00:00:00'", f"date_trunc('day', {c}) = TIMESTAMPTZ '2020-02-29'",
                     f"{c} >= DATE '2020-02-29'", f"{c} < now()", f"{c}::TIMESTAMP < TIMESTAMP '2020-02-29 00:30:00'"],
            "bytes": [f"{c} >= 'a'::BLOB", f"octet_length({c}) = 1", f"{c} BETWEEN 'a'::BLOB AND 'b'::BLOB",
                      f"to_base64({c}) = 'YQ=='"],
            "bool": [c, f"NOT {c}", f"{c} IS TRUE", f"{c} IS NOT TRUE", f"{c}::INTEGER = 1", f"({c}) = ({c})"],
            "float": [f"isnan({c})", f"{c} > 5", f"{c} <> 1", f"isfinite({c})", f"{c} NOT BETWEEN -10 AND 10",
                      f"TRY_CAST({c} AS FLOAT) = 0.1", f"{c} = 0", f"{c} >= 0.0"],
        }  # fmt: skip
        shapes["small"] = shapes["huge"] = shapes["int"]
        shapes["time"], shapes["single"] = shapes["date"], shapes["float"]
        found = shapes[kind]
        if kind in FLOATS and not column.shaky:
            found = [*found, f"1 / {c} < 0", f"{c}::VARCHAR = '-0.0'", f"CAST({c} AS VARCHAR) = '0.0'", f"signbit({c})"]
        return self.rng.choice(found)

    def _pair(self, text: str, column: Column, scope: Scope, used: list[Column]) -> str:
        other = self.ref(scope, column.kind, exact=False)
        if other is None:
            return f"{text} IS NOT NULL"
        used.append(other[1])
        self.tag("columns compared")
        op = self.pick("=", "=", "<", ">=", "<>", "IS NOT DISTINCT FROM")
        if FAMILY[column.kind] == 0 and FAMILY[other[1].kind] == 0 and "big" not in (column.kind, other[1].kind):
            text = self.pick(text, text, f"{text} + 1", f"-{text}")
        return f"{text} {op} {other[0]}"

    # -- subqueries --------------------------------------------------------------------------

    def _subquery(self, text: str, column: Column, scope: Scope, depth: int, env: Env) -> str:
        kind = column.kind
        wanted = kind if self.chance(0.7) else self.rng.choice([k for k in FAMILY if k != "huge" and related(k, kind)])
        inner = self.query(depth - 1, env, scope, [wanted])
        result = inner.columns[0]
        way = self.weighted(within=3, absent=1.5, exists=2.5, missing=1.5, some=1, every=1, scalar=1.5)
        if way in ("within", "absent"):
            word = "IN" if way == "within" else "NOT IN"
            self.tag(f"{word} subquery")
            self.constrain([column], f"{word} subquery")
            return self.pick(
                f"{text} {word} ({inner.text})", f"{text} {word} ({inner.text})", f"NOT {text} {word} ({inner.text})"
            )
        if way in ("some", "every"):
            word = "ANY" if way == "some" else "ALL"
            self.tag(f"{word} subquery")
            return f"{text} {self.pick('=', '<', '>=', '<>')} {word} ({inner.text})"
        if way == "scalar":
            self.tag("scalar subquery")
            agg = self.pick("max", "min")
            return f"{text} {self.pick('=', '<', '>=')} (SELECT {agg}(n.{result.name}) FROM ({inner.text}) n)"
        alias = self.pick("n", "a", "m")
        word = "EXISTS" if way == "exists" else "NOT EXISTS"
        self.tag(word)
        if alias in text.split(".")[0]:
            alias = "sub"
        shown = self.pick("1", "*", f"{alias}.{result.name}")
        return f"{word} (SELECT {shown} FROM ({inner.text}) {alias} WHERE {alias}.{result.name} = {text})"
