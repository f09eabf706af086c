"""Columns that nobody outside of a query asks for: their datasets stay closed, and the rows are the same."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan.scopes import Dependencies
from sparks import rows_of
from written import build_cube

CUBE = Cube("c", ["x", "y"], ["p"], index_columns=["i1"])
OWNER = {"i1": "seed", "s1": "seed", "w": "e", "w2": "e", "k": "g", "s2": "g", "m": "h"}
KEY = ["p", "x", "y"]
COLUMNS = sorted([*KEY, *OWNER])
NUMBERS = ["i1", "w", "w2", "k", "m"]
DATASETS = ["seed", "e", "g", "h"]


def _data(rng: random.Random, cells: list[tuple[int, int, int]]) -> dict[str, pa.Table]:
    def table(chosen: list[tuple[int, ...]], key: list[str], numbers: list[str], texts: list[str]) -> pa.Table:
        found = {name: pa.array([cell[at] for cell in chosen], pa.int64()) for at, name in enumerate(key)}
        for name in numbers:
            found[name] = pa.array(
                [rng.choice([*([] if name == "i1" else [None]), *range(6)]) for _ in chosen], pa.int64()
            )
        for name in texts:
            found[name] = pa.array([rng.choice([None, "a", "b", "ä"]) for _ in chosen], pa.string())
        return pa.table(found)

    some = [cell for cell in cells if rng.random() < 0.6]
    return {
        "seed": table([*cells], KEY, ["i1"], ["s1"]),
        "e": table([*some, (3, 99, 0)], KEY, ["w", "w2"], []),
        "g": table([(p, x) for p, x in {(p, x) for p, x, _ in some}], KEY[:2], ["k"], ["s2"]),
        "h": table([cell for cell in cells if rng.random() < 0.3], KEY, ["m"], []),
    }


@pytest.fixture(scope="module")
def cube(tmp_path_factory: Any) -> Iterator[tuple[Any, duckdb.DuckDBPyConnection]]:
    """A cube of four datasets in which files overlay each other, and the same as a table."""
    rng, folder = random.Random(1), str(tmp_path_factory.mktemp("columns"))
    with kartosql.connect(folder) as connection:
        store = connection.store
        cells = [(n % 3, n // 3, m) for n in range(24) for m in range(2)]
        build_cube(store, CUBE, _data(rng, cells))
        connection.append_to_cube("c", _data(rng, cells[:20]))
        for number in range(4):
            connection.sql(f"CREATE VIEW v{number} AS SELECT * FROM {'c' if number == 0 else f'v{number - 1}'}")
        plain = duckdb.connect(":memory:")
        plain.register("given", builders.cube_table(store, CUBE, DATASETS))
        plain.execute("CREATE TABLE c AS SELECT * FROM given")
        plain.execute("".join(f"CREATE VIEW v{n} AS SELECT * FROM c;" for n in range(4)))
        yield connection, plain


def opened(connection: Any, sql: str) -> list[list[str]]:
    """Return the datasets that a statement opens, of each occurrence of the cube."""
    found = connection.sql(sql).explain().to_dict()["scans"]
    return [[d["dataset"] for d in scan["datasets"]] for scan in found]


@pytest.mark.parametrize(
    ("sql", "datasets"),
    [
        ("SELECT x FROM (SELECT * FROM c) WHERE p = 1", "-"),
        ("SELECT count(*) FROM v3", "-"),
        ("SELECT w FROM v3", "e"),
        ("WITH v AS (SELECT * FROM c) SELECT v.w, u.x FROM v JOIN v u USING (x)", "e"),
        ("WITH v AS (SELECT * FROM c), u AS (SELECT * FROM v WHERE w > 3) SELECT count(k) FROM u", "eg"),
        ("WITH RECURSIVE r AS (SELECT x, w, 0 AS n FROM c UNION ALL SELECT x, w, 1 FROM r WHERE n = 0) SELECT x FROM r",
         "e"),
        ("SELECT x FROM (SELECT *, w AS n FROM c WHERE k > 1)", "g"),
        ("SELECT * EXCLUDE (m) FROM (SELECT * EXCLUDE (w, w2) FROM c)", "g"),
        ("SELECT x FROM (SELECT * REPLACE (k + 1 AS k) FROM c)", "-"),
        ("SELECT k FROM (SELECT * REPLACE (w + 1 AS k) FROM c)", "e"),
        ("SELECT x FROM (SELECT * REPLACE (-w AS k) FROM c ORDER BY k LIMIT 1)", "egh"),
        ("SELECT x FROM (SELECT * EXCLUDE (k) RENAME (w AS k) FROM c ORDER BY k DESC LIMIT 1)", "egh"),
        ("SELECT n FROM (SELECT * RENAME (w AS n) FROM c)", "e"),
        ("SELECT x FROM (SELECT * FROM c UNION ALL SELECT * FROM c)", "-/-"),
        ("SELECT i1 FROM (SELECT i1, w FROM c UNION ALL SELECT k, m FROM c)", "-/g"),
        ("SELECT x FROM (SELECT x, w FROM c UNION ALL BY NAME SELECT w, x FROM c)", "e/e"),
        ("SELECT x FROM (SELECT * FROM c UNION SELECT * FROM c)", "egh/egh"),
        ("SELECT x FROM (SELECT x, w FROM c EXCEPT SELECT x, w FROM c)", "e/e"),
        ("SELECT x FROM (SELECT x, w, k FROM c UNION ALL SELECT x, w, k FROM c ORDER BY w)", "eg/eg"),
        ("SELECT x FROM (SELECT x, w, k FROM c ORDER BY w)", "e"),
        ("SELECT x FROM (SELECT x, w AS n, k FROM c ORDER BY n LIMIT 2)", "e"),
        ("SELECT x FROM (SELECT x, w, k FROM c ORDER BY 2 LIMIT 2)", "eg"),
        ("SELECT x FROM (SELECT x, w, k FROM c ORDER BY ALL LIMIT 2)", "eg"),
        ("SELECT x FROM (SELECT x, sum(k) AS s, max(w) FROM c GROUP BY ALL)", "-"),
        ("SELECT x FROM (SELECT x, m, sum(k) AS s FROM c GROUP BY ALL)", "h"),
        ("SELECT x FROM (SELECT x, m, sum(k) AS s, max(w) FROM c GROUP BY 1, 2)", "h"),
        ("SELECT x FROM (SELECT x, sum(k) AS s, max(w) AS n FROM c GROUP BY x HAVING s > 1)", "g"),
        ("SELECT x FROM (SELECT DISTINCT x, w FROM c)", "e"),
        ("SELECT x FROM (SELECT DISTINCT ON (x) x, w, k FROM c ORDER BY x, w)", "eg"),
        ("SELECT x FROM (SELECT x, w AS n, k FROM c) WHERE n IS NULL", "e"),
        ("SELECT x FROM (SELECT x, w AS n, n + 1 AS o, k FROM c) WHERE o IS NULL", "e"),
        ("SELECT x FROM (SELECT x, w AS n, k FROM c WHERE n > 1)", "e"),
        ("SELECT x FROM (SELECT x, k, rank() OVER (ORDER BY w) AS r FROM c)", "-"),
        ("SELECT x FROM (SELECT x, k, rank() OVER (ORDER BY w) AS r FROM c QUALIFY r < 3)", "e"),
        ("SELECT x FROM (SELECT x, k, w FROM c QUALIFY rank() OVER (ORDER BY w) < 3)", "e"),
        ("SELECT x FROM (SELECT x, unnest([k, k]) FROM c)", "g"),
        ("SELECT x FROM (SELECT x, generate_subscripts([k, k], 1) FROM c)", "g"),
        ("SELECT x FROM (SELECT x, COLUMNS('k|w') FROM c)", "egh"),
        ("SELECT x FROM (SELECT x, (SELECT max(w) FROM c d WHERE d.x = c.k) FROM c)", "e/g"),
        ("SELECT x FROM (SELECT x, CASE WHEN w IS NULL THEN CAST('x' AS INT) END AS n FROM c)", "e"),
        ("SELECT x FROM (SELECT x, coalesce(w, 0) AS n FROM c)", "-"),
        ("SELECT x FROM c WHERE EXISTS (SELECT * FROM c d WHERE d.x = c.x AND d.w > 1)", "-/e"),
        ("SELECT x FROM c WHERE (x, 1) IN (SELECT x, w FROM c)", "-/e"),
        ("SELECT a.x FROM (SELECT * FROM c) a NATURAL JOIN (SELECT x, k AS n FROM c) b", "-/-"),
        ("SELECT a.x FROM (SELECT * FROM c) a NATURAL JOIN (SELECT x, k, m AS n FROM c) b", "g/g"),
        ("SELECT a.x FROM c a NATURAL JOIN (SELECT p, x, y, w FROM c) b", "e/e"),
        ("SELECT count(*) FROM (SELECT * FROM c a JOIN c b ON a.x = b.x)", "-/-"),
        ("SELECT w FROM (SELECT a.*, b.k AS n FROM c a JOIN c b ON a.x = b.x)", "e/-"),
        ("SELECT z FROM (SELECT * FROM c) AS t(z)", "-"),
        ("SELECT z FROM c AS t(a, z)", "g"),
        ("SELECT t FROM (SELECT x, w FROM c) t", "e"),
        ("SELECT x FROM c, LATERAL (SELECT c.w AS a, c.k AS b)", "-"),
        ("SELECT x, b FROM c, LATERAL (SELECT c.w AS a, c.k AS b)", "g"),
        ("SELECT q.b FROM (SELECT {'a': w, 'b': k} AS q, m FROM c)", "eg"),
        ("SELECT x FROM (FROM c)", "-"),
        # the parser loses the column
        ("SELECT date_trunc(s2, DATE '2020-02-02') FROM (SELECT * REPLACE ('year' || s2[:0] AS s2) FROM c)", "egh"),
        ("SELECT x FROM (SELECT * FROM c) WHERE date_part(s2[:0] || 'year', DATE '2020-02-02') > 1", "g"),
        ("PIVOT (SELECT x, p, w FROM c) ON p USING count(w)", "e"),
        ("SELECT * FROM (SELECT x, w FROM c) PIVOT (count(*) FOR x IN (1, 2))", "e"),
    ],
)  # fmt: skip
def test_datasets_whose_columns_nobody_asks_for_stay_closed(cube, sql, datasets):
    connection, plain = cube
    if "PIVOT" not in sql:
        found = [sorted(set(occurrence) - {"seed"}) for occurrence in opened(connection, sql)]
        assert found == [sorted(set(part) - {"-"}) for part in datasets.split("/")]
    ours, theirs = connection.sql(sql).arrow(), plain.sql(sql).arrow().read_all()
    if "LIMIT" not in sql and "rank" not in sql and "DISTINCT ON" not in sql:
        assert sorted(map(repr, ours.to_pylist())) == sorted(map(repr, theirs.to_pylist()))
    assert (ours.num_rows, ours.column_names) == (theirs.num_rows, theirs.column_names)


class Nesting:
    """A random query that has some columns; ``{...}`` in its text stands for more of them, which are not asked for."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def condition(self, columns: list[str]) -> str:
        column = self._rng.choice(columns)
        if column in ("s1", "s2"):
            return self._rng.choice([f"{column} IS NULL", f"{column} = 'a'", f"coalesce({column}, 'b') <> 'ä'"])
        return self._rng.choice([f"{column} > 1", f"{column} IS NULL", f"{column} <> 2", f"coalesce({column}, 2) < 4"])

    def listed(self, wanted: list[str], inner: list[str]) -> str:
        """Return a SELECT list with some of the columns of a query; braces stand around what by hand is not written."""
        rng, others = self._rng, [c for c in inner if c not in wanted]
        plain = ", ".join(wanted)
        made = [f"{rng.choice(NUMBERS)} + 1 AS {self.name()}"] if set(inner) == set(COLUMNS) else []
        more = [*rng.sample(others, rng.randint(0, len(others))), *made]
        forms = [f"{plain}{{, {', '.join(more)}}}" if more else plain, f"{{*|{plain}}}"]
        if others:
            forms.append(f"{{* EXCLUDE ({', '.join(rng.sample(others, 1))})|{plain}}}")
            changed = rng.choice(others)
            forms.append(f"{{* REPLACE (coalesce({changed}, NULL) AS {changed})|{plain}}}")
        return rng.choice(forms)

    def query(self, wanted: list[str], depth: int) -> str:
        """Return a query that has some columns, and maybe others behind or between them."""
        rng = self._rng
        used = rng.sample(COLUMNS, 1)
        where = f" WHERE {self.condition(used)}" if rng.random() < 0.5 else ""
        needed = [*dict.fromkeys([*wanted, *(used if where else [])])]
        if depth == 0:
            return f"SELECT {self.listed(wanted, COLUMNS)} FROM {rng.choice(['c', 'c', 'v0', 'v3'])}{where}"
        kind = rng.choice(["derived", "with", "join", "union", "window", "group", "exists", "lateral", "distinct"])
        name = self.name()
        if kind == "derived":
            return f"SELECT {self.listed(wanted, needed)} FROM ({self.query(needed, depth - 1)}) {name}{where}"
        if kind == "with":
            how = rng.choice(["", "MATERIALIZED ", "NOT MATERIALIZED "])
            body = f"WITH {name} AS {how}({self.query(needed, depth - 1)}) SELECT {self.listed(wanted, needed)}"
            return f"SELECT {', '.join(wanted)} FROM ({body} FROM {name}{where})"
        if kind == "join":
            how, other = rng.choice(["JOIN", "LEFT JOIN"]), self.name()
            left = [*dict.fromkeys([*KEY, *needed])]
            right = self.query(KEY, depth - 1)
            if rng.random() < 0.5:
                on = f"USING ({', '.join(KEY)})"
            else:
                on = "ON " + " AND ".join(f"{name}.{c} = {other}.{c}" for c in KEY)
            items = ", ".join(f"{name}.{c}" for c in wanted)
            held = f" WHERE {name}.{where.removeprefix(' WHERE ')}" if where and "coalesce" not in where else ""
            return f"SELECT {items} FROM ({self.query(left, depth - 1)}) {name} {how} ({right}) {other} {on}{held}"
        if kind == "union":
            shown = ", ".join(wanted)
            sides = [f"SELECT {shown}{{, {more}}} FROM ({self.query(wanted, 0)})" for more in ("1", "x")]
            sides[1] = sides[1].replace("{, x}", "{, 2}")
            return f"SELECT {shown} FROM ({' UNION ALL '.join(sides)})"
        if kind == "window":
            by, order = rng.sample(COLUMNS, 2)
            inner = [*dict.fromkeys([*wanted, by, order])]
            item = f"rank() OVER (PARTITION BY {by} ORDER BY {order})"
            body = f"FROM ({self.query(inner, depth - 1)})"
            if rng.random() < 0.5:
                return f"SELECT {', '.join(wanted)} {body} QUALIFY {item} < 3"
            return f"SELECT {', '.join(wanted)}{{, {item} AS {name}}} {body}"
        if kind == "group":
            keys, others = rng.choice([", ".join(wanted), "ALL"]), rng.choice(NUMBERS)
            return (
                f"SELECT {', '.join(wanted)}{{, count({others}) AS {name}, max({others})}} FROM (SELECT * FROM c)"
                f"{where} GROUP BY {keys}"
            )
        if kind == "exists":
            inner = [*dict.fromkeys([*needed, "x"])]
            exists = f"EXISTS (SELECT {{*|1}} FROM ({self.query(['x', *used], 0)}) {name} WHERE {name}.x = o.x)"
            return f"SELECT {', '.join(wanted)} FROM ({self.query(inner, depth - 1)}) o WHERE {exists}"
        if kind == "lateral":
            items = ", ".join(f"o.{c} AS {name}_{c}" for c in wanted)
            unused = rng.choice(NUMBERS)
            back = ", ".join(f"{name}_{c} AS {c}" for c in wanted)
            return (
                f"SELECT {back} FROM (SELECT * FROM c) o, LATERAL (SELECT {items}{{, o.{unused} AS {name}_o}}) {name}"
            )
        return f"SELECT DISTINCT {', '.join(wanted)} FROM ({self.query(wanted, depth - 1)})"

    def statement(self) -> tuple[str, str]:
        """Return a statement, and the same with nothing but what is asked for."""
        rng = self._rng
        wanted = rng.sample(COLUMNS, rng.randint(1, 3))
        inner = self.query(wanted, rng.randint(0, 3))
        shown = rng.choice([", ".join(wanted), f"count(*), count({wanted[0]})", f"min({wanted[-1]})"])
        text = f"SELECT {shown} FROM ({inner}) t"
        by_hand = re.sub(r"\{([^{}|]*)(?:\|([^{}]*))?\}", lambda m: m[2] or "", text)
        return re.sub(r"\{([^{}|]*)(?:\|[^{}]*)?\}", r"\1", text), by_hand


def _sorted(rows: list[tuple[Any, ...]]) -> list[str]:
    return sorted(map(repr, rows))


def test_random_nestings_answer_as_written_out_by_hand_and_as_with_all_columns(cube, monkeypatch):
    connection, plain = cube
    less = exact = 0
    for number in range(120):
        text, by_hand = Nesting(random.Random(number)).statement()
        wanted = _sorted(plain.sql(by_hand).fetchall())
        assert _sorted(plain.sql(text).fetchall()) == wanted, (number, text, by_hand)
        assert _sorted(connection.sql(text).rows()) == wanted, (number, text)
        assert _sorted(connection.sql(by_hand).rows()) == wanted, (number, by_hand)
        reads, reads_by_hand = opened(connection, text), opened(connection, by_hand)
        exact += reads == reads_by_hand
        with monkeypatch.context() as patch:
            patch.setattr(Dependencies, "settle", lambda *_: None)
            spaced = f"{text} "  # bound anew
            assert _sorted(connection.sql(spaced.replace("SELECT", "SELECT ", 1)).rows()) == wanted, (number, text)
            all_read = opened(connection, text.replace("SELECT", "SELECT  ", 1))
        assert all(map(set.issubset, map(set, reads_by_hand), map(set, reads))), (number, text, by_hand)
        assert all(map(set.issubset, map(set, reads), map(set, all_read)))
        less += reads != all_read
    assert less > 30
    assert exact > 0.6 * 120  # columns are kept where it is not known which there are


def test_spark_gives_the_same_rows(cube, spark):
    connection, plain = cube
    answered = 0
    for number in range(1000, 1025):
        text, _ = Nesting(random.Random(number)).statement()
        try:
            found = rows_of(connection.sql(text, engine="spark").arrow())
        except KartosqlError as e:
            if e.code != "not-portable":
                raise
            continue
        answered += 1
        assert _sorted(found) == _sorted(plain.sql(text).fetchall()), (number, text)
    assert answered > 12
