"""SELECTs that need less than the rows of all files: row counts and extremes, and the first rows."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
import kartosql
import kartosql.query
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan.prune import prune
from kartosql.store import Store
from written import build_cube, write_dataset

FILES = 40
CUBE = Cube("c", ["x"], ["p"], index_columns=[])


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    """``t`` has 40 files by ``p`` and ``q`` with 1 to 5 rows each; the cube ``c`` has an overlay."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    rows = [(p, n) for p in range(FILES) for n in range(1 + p % 5)]
    table = pa.table(
        {
            "p": [p for p, _ in rows],
            "q": ["a/b" if p % 2 else "" for p, _ in rows],
            "v": pa.array([None if p == 7 else 100 * p + n for p, n in rows], pa.int64()),
            "d": [dt.date(2020, 1, 1) + dt.timedelta(p) for p, _ in rows],
            "f": [float("nan") if p == 3 else p / 2 for p, _ in rows],
            "s": [f"s{n}" for _, n in rows],
            "l": [[1] * (n % 2) for _, n in rows],
            "m": [{"a": p} for p, _ in rows],
        }
    )
    write_dataset(store, "t", table, partition_on=["p", "q"])
    seed = pa.table({"x": [1, 2, 3], "p": [0, 0, 1], "v": [1, 2, 3]})
    build_cube(store, CUBE, {"seed": seed, "e": pa.table({"x": [1], "p": [0], "w": [5]})})
    builders.append(store, CUBE.uuid("seed"), pa.table({"x": [1], "p": [0], "v": [9]}))
    with kartosql.connect(store.url) as made:
        made.sql("CREATE VIEW all_of_t AS SELECT * FROM t")
        made.sql("CREATE VIEW some_of_t AS SELECT p, v, q AS r, v + 1 AS w FROM all_of_t WHERE p >= 4")
        for _ in range(3):  # statistics are remembered when they are asked for repeatedly
            made.sql("SELECT min(v), max(d), max(f), max(s) FROM t WHERE v > 0 OR d IS NULL").rows()
            made.sql("SELECT min(v), max(v), min(d), max(d) FROM t").rows()
        yield made


def check(connection: Any, monkeypatch: pytest.MonkeyPatch, sql: str, parameters: Any = None) -> int:
    """Compare result and column names with those over all files, and return how many files are read."""
    query = connection.sql(sql, parameters)
    got = (query.columns, query.arrow().schema.types, repr(query.rows()))
    with monkeypatch.context() as patch:
        patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
        plain = connection.sql(sql, parameters)
        assert got == (plain.columns, plain.arrow().schema.types, repr(plain.rows()))
    assert connection.sql(sql, parameters).schema == query.arrow().schema
    parts = [scan["datasets"][0] for scan in connection.explain(sql, parameters).to_dict()["scans"]]
    read = sum(part["files_selected"] for part in parts if part["answered_from"] == "files")
    assert query.stats["files_read"] == read
    return read


@pytest.mark.parametrize(
    ("sql", "files"),
    [
        ("SELECT count(*) FROM t", 0),
        ("SELECT count(*) AS n, COUNT ( * ) FROM t", 0),
        ("SELECT count(*) FROM t WHERE p > 10", 0),
        ("SELECT count(*) FROM t WHERE p > 1000", 0),
        ("SELECT p, count(*) FROM t WHERE q = 'a/b' GROUP BY p ORDER BY p", 0),
        ("SELECT q, count(*) AS n FROM t GROUP BY q HAVING count(*) > 3 ORDER BY n DESC, q", 0),
        ("SELECT q, count(*) AS n FROM t GROUP BY ALL ORDER BY n, q", 0),
        ("SELECT count(*) FROM t GROUP BY ROLLUP (q) ORDER BY 1", FILES),
        ("SELECT min(p), max(p), min(q) FROM t", 0),
        ("SELECT DISTINCT q, p % 3 AS r FROM t ORDER BY r, q", 0),
        ("SELECT DISTINCT p FROM t ORDER BY p DESC LIMIT 3 OFFSET 1", 0),
        ("SELECT q FROM t GROUP BY q ORDER BY q", 0),
        ("SELECT length(q) AS n, count(*) AS c FROM t GROUP BY length(q) ORDER BY 1", 0),
        ("SELECT min(v), max(v), count(*) FROM t", 0),
        ("SELECT q, min(d), max(d), min(v) FROM t WHERE p < 20 GROUP BY q ORDER BY q", 0),
        ("SELECT max(v) - min(v) AS spread FROM t", 0),
        ("SELECT p, max(v) FROM t WHERE p IN (6, 7, 8) GROUP BY p ORDER BY p", 0),
        ("SELECT n + 1 AS m FROM (SELECT count(*) AS n FROM t)", 0),
        ('SELECT "count_star()" FROM (SELECT count(*) FROM t)', 0),
        ("WITH r AS (SELECT count(*) AS n FROM t WHERE p = 3) SELECT r.n, count(*) FROM t, r GROUP BY r.n", None),
        ("SELECT (SELECT count(*) FROM t) AS a, (SELECT max(p) FROM t) AS b", 0),
        ("SELECT count(*) FROM t UNION ALL SELECT count(*) FROM t WHERE p = 1 ORDER BY 1", 0),
        # What row counts and extremes do not tell.
        ("SELECT count(v) FROM t", FILES),
        ("SELECT count(*) FROM t WHERE v > 5", None),
        ("SELECT max(f) FROM t", FILES),
        ("SELECT max(s) FROM t", 0),
        ("SELECT sum(p) FROM t", FILES),
        ("SELECT count(DISTINCT p) FROM t", FILES),
        ("SELECT count(*) + 1 FROM t", FILES),
        ("SELECT p FROM t ORDER BY p", FILES),
        ("SELECT max(v + 1) FROM t", FILES),
        ("SELECT count(*) FILTER (WHERE p = 1) FROM t", FILES),
        ("SELECT count(*) OVER () FROM t WHERE p = 1", 1),
        ("SELECT max(v), min(v) FROM t WHERE d > '2020-01-10'", None),
        ("SELECT min(p, 2) FROM t", FILES),
        ("SELECT DISTINCT ON (q) q, p FROM t ORDER BY q, p", FILES),
        ("SELECT count(*) FROM t, t u WHERE t.p = 1 AND u.p = 1", 2),
        ("SELECT count(*) FROM t TABLESAMPLE 100%", FILES),
        ("SELECT count(*) FROM c", None),
        ("SELECT max(v) FROM c", None),
        ("SELECT p, count(*) FROM c.e GROUP BY p", 0),
        # The first rows.
        ("SELECT * FROM t LIMIT 3", 2),
        ("SELECT v FROM t LIMIT 3 OFFSET 4", 4),
        ("SELECT v + 1 AS w, s FROM t LIMIT 1", 1),
        ("SELECT * FROM t LIMIT 0", 1),
        ("FROM t LIMIT 1000", FILES),
        ("SELECT v FROM t WHERE p >= 4 LIMIT 6", 2),
        ("SELECT v FROM t WHERE p >= 4 AND q = 'a/b' LIMIT 5", None),
        ("SELECT * FROM (SELECT v FROM t LIMIT 2) WHERE v > 0", 2),
        ("SELECT v FROM t WHERE v > 100 LIMIT 1", None),
        ("SELECT v FROM t WHERE v % 100 = 1 LIMIT 1", None),
        ("SELECT unnest(l) FROM t LIMIT 3", FILES),
        ("SELECT v FROM t ORDER BY v LIMIT 1", 1),
        ("SELECT DISTINCT s FROM t LIMIT 2", FILES),
        ("SELECT count(*) OVER () FROM t LIMIT 2", FILES),
        ("SELECT v FROM t LIMIT 10%", FILES),
        ("SELECT v, p FROM t WHERE CASE WHEN p = 3 THEN NULL ELSE p <> 2 END LIMIT 3 OFFSET 1", None),
        ("SELECT v, p, q FROM t WHERE q <> '' LIMIT 3 OFFSET 1", None),
        ("SELECT v, p FROM t WHERE p <> 2 AND v >= 0 ORDER BY s, v LIMIT 3 OFFSET 1", None),
        ("SELECT x, p, v FROM c WHERE p <> 5 AND v > 0 ORDER BY v LIMIT 2 OFFSET 1", None),
        ("SELECT v FROM c LIMIT 1", None),
    ],
)
def test_the_files_that_are_read(connection, monkeypatch, sql, files):
    read = check(connection, monkeypatch, sql)
    assert files is None or read == files


@pytest.mark.parametrize(
    ("sql", "files"),
    [
        ("SELECT count(*) FROM (SELECT * FROM t)", 0),
        ("SELECT count(*) FROM all_of_t", 0),
        ("SELECT count(*), min(v), max(d) FROM all_of_t WHERE p > 10", 0),
        ("SELECT r, count(*) AS n, max(v), min(p) FROM some_of_t GROUP BY r HAVING n > 3 ORDER BY r", 0),
        ("SELECT DISTINCT r, p % 3 AS n FROM some_of_t ORDER BY n, r", 0),
        ("WITH a AS (SELECT * FROM t), b AS (SELECT v, s FROM a WHERE p = 3 OR q = '') SELECT count(*) FROM b", 0),
        ("WITH a AS MATERIALIZED (SELECT s || 'x' AS s, v FROM t) SELECT count(*), count(*) AS n, min(v) FROM a", 0),
        ("WITH a AS (SELECT 1) SELECT count(*) FROM t", 0),
        ("SELECT count(*) FROM (FROM t)", 0),
        ("SELECT count(*) FROM (FROM t SELECT ALL v, s)", 0),
        ("SELECT count(*) FROM (SELECT ALL v, s FROM t)", 0),
        ("SELECT count(*) FROM (SELECT/**/v, s FROM t ORDER BY s DESC)", 0),
        ("SELECT count(*) FROM (SELECT 'SELECT' AS s, v FROM t) u WHERE u.s = u.s OR true", None),
        ("SELECT min(n) FROM (SELECT * RENAME (v AS n) FROM t)", 0),
        ("SELECT count(*), min(p) FROM (SELECT * EXCLUDE (v), 7 AS seven FROM t)", 0),
        ("SELECT count(*) FROM (SELECT * REPLACE (upper(s) AS s) FROM t)", 0),
        ("SELECT n FROM (SELECT n FROM (SELECT p, count(*) AS n FROM (SELECT * FROM t) GROUP BY p)) ORDER BY n", 0),
        ("SELECT count(*) FROM (SELECT p AS n FROM t WHERE n = 3)", 0),
        ("SELECT (SELECT count(*) FROM (SELECT * FROM t)) AS a, (SELECT max(v) FROM all_of_t) AS b", 0),
        # What depends on more, or is more or less than the rows of the table.
        ("SELECT count(*) FROM (SELECT v AS n FROM t WHERE n = 3)", None),
        ("SELECT min(w) FROM some_of_t", None),
        ("SELECT min(v) FROM (SELECT * REPLACE (v + 1 AS v) FROM t)", FILES),
        ("SELECT count(*) FROM all_of_t WHERE v > 100", None),
        ("SELECT count(*), min(p) FROM (SELECT v FROM t WHERE v > 200) a, (SELECT p FROM t WHERE p = 2) b", None),
        ("SELECT count(*) FROM (SELECT * FROM t WHERE random() < 2)", FILES),
        ("SELECT count(*) FROM (SELECT sum(v) FROM t)", FILES),
        ("SELECT count(*) FROM (SELECT unnest(l) FROM t)", FILES),
        ("SELECT count(*) FROM (SELECT * REPLACE (unnest(l) AS l) FROM t)", FILES),
        ("SELECT count(*) FROM (SELECT DISTINCT q FROM t)", 0),
        ("SELECT count(*) FROM (SELECT DISTINCT s FROM t)", FILES),
        ("SELECT count(*) FROM (SELECT * FROM t LIMIT 7)", None),
        ("SELECT count(*) FROM (SELECT * FROM t QUALIFY row_number() OVER (ORDER BY p) < 3)", FILES),
        ("SELECT count(*) FROM (SELECT * FROM t TABLESAMPLE 100%)", FILES),
        ("SELECT count(*) FROM (SELECT * FROM t) TABLESAMPLE 100%", FILES),
        ("SELECT count(*) FROM (SELECT * FROM t UNION ALL SELECT * FROM t)", 2 * FILES),
        ("WITH a AS (SELECT * FROM t) SELECT count(*), (SELECT min(v) FROM a) AS m FROM a", FILES),
        ("SELECT count(*), min(b) FROM (SELECT v, p FROM t) AS u(a, b)", FILES),
        ("SELECT min(a) FROM (SELECT * FROM t) AS u(a)", FILES),
        ("WITH u(a, b) AS (SELECT v, p FROM t) SELECT count(*), min(b) FROM u", FILES),
        ("WITH u AS (SELECT v, p FROM t) SELECT count(*), min(v) FROM u AS w(p, v)", FILES),
        ("WITH u AS MATERIALIZED (SELECT CASE WHEN v IS NULL THEN CAST('x' AS INT) END AS n FROM t WHERE p <> 7)"
         " SELECT count(*) FROM u", None),
        ("SELECT (SELECT count(*) FROM (SELECT * FROM t WHERE p = o.p)) AS n FROM t o ORDER BY n", None),
        ("SELECT count(*) FROM (SELECT *, (SELECT 1) FROM t)", FILES),
        ("SELECT count(*) FROM (SELECT * FROM c)", None),
        # The first rows.
        ("SELECT * FROM all_of_t LIMIT 3", 2),
        ("SELECT w, r FROM some_of_t LIMIT 3 OFFSET 4", 3),
        ("SELECT v FROM some_of_t WHERE r = 'a/b' LIMIT 3", 2),
        ("SELECT v AS n FROM (SELECT s, v FROM t WHERE p <> 3) ORDER BY n DESC LIMIT 2", 1),
        ("SELECT n FROM (SELECT s, v AS n FROM all_of_t) ORDER BY 1 LIMIT 2 OFFSET 1", 2),
        ("WITH a AS (FROM t) SELECT v + 1 AS m FROM a LIMIT 1", 1),
        ("SELECT w FROM some_of_t ORDER BY w LIMIT 1", None),
        ("SELECT v FROM (SELECT * FROM t ORDER BY v DESC) LIMIT 2", FILES),
        ("SELECT v FROM (SELECT * FROM t WHERE v % 100 = 1) LIMIT 1", None),
        ("SELECT n FROM (SELECT row_number() OVER (ORDER BY v) AS n FROM t) LIMIT 2", FILES),
        ("SELECT p FROM (SELECT DISTINCT p, s FROM t) ORDER BY p LIMIT 2", None),
        # Files that are sure satisfy all of a WHERE, not only what is known of it.
        ("SELECT p FROM (SELECT p, v + 1 AS w FROM t) WHERE w > 3000 AND p >= 0 LIMIT 2", FILES),
        ("SELECT v FROM some_of_t WHERE w = 905 AND p > 5 ORDER BY v LIMIT 1", None),
        ("SELECT v FROM (SELECT v, p, l || [p] AS m FROM t) WHERE p > 3 AND m = [1, 9] ORDER BY v LIMIT 1", None),
        ("SELECT p FROM t WHERE m.a = 38 AND p >= 0 LIMIT 1", FILES),
        ("SELECT sum(n) FROM (SELECT (SELECT p FROM t i WHERE i.p >= 0 AND i.p = o.p LIMIT 1) AS n FROM t o)", None),
        # Names that the SELECT list gives go before those of the table.
        ("SELECT -v AS V FROM t ORDER BY v LIMIT 1", FILES),
        ("SELECT -v AS v FROM all_of_t ORDER BY (v) LIMIT 1", FILES),
        ("SELECT v AS d, d AS v FROM t ORDER BY v DESC LIMIT 1", 1),
        ("SELECT *, -v AS v FROM t ORDER BY v LIMIT 1", FILES),
        ("SELECT * REPLACE (-v AS v) FROM all_of_t ORDER BY v LIMIT 1", FILES),
        ("SELECT * EXCLUDE (d) RENAME (v AS d) FROM t ORDER BY d DESC LIMIT 1", 1),
        ("SELECT -v AS v FROM t ORDER BY t.v LIMIT 1", 1),
        ("SELECT count(*), max(kartosql_rows) FROM (SELECT p AS kartosql_rows FROM t)", FILES),
        ("SELECT count(*), max(kartosql_rows) FROM (SELECT * RENAME (p AS Kartosql_Rows) FROM t)", FILES),
        ("SELECT * FROM (SELECT unnest(l) AS n, v FROM t) LIMIT 3", FILES),
    ],
)  # fmt: skip
def test_queries_inside_pass_rows_on(connection, monkeypatch, sql, files):
    read = check(connection, monkeypatch, sql)
    assert files is None or read == files


def test_parameters_may_stand_in_queries_inside(connection, monkeypatch):
    assert check(connection, monkeypatch, "SELECT count(*) FROM (SELECT v + ? AS w FROM t WHERE p > ?)", [1, 4]) == 0
    assert (
        check(connection, monkeypatch, "SELECT w FROM (SELECT v + ? AS w FROM t WHERE p > ?) LIMIT ?", [1, 4, 6]) == 3
    )


def _nested(rng: random.Random) -> str:
    """Return a statement whose rows go through several queries, as tables, expressions or views."""
    known = {c: c for c in ("p", "q", "v", "d", "s")}
    body, expressions, ordered = rng.choice(["t", "all_of_t"]), list[str](), False
    for level in range(rng.randint(1, 3)):
        kept = rng.sample([*known], rng.randint(2, len(known))) if len(known) > 2 else [*known]
        renamed = {c: rng.choice([c, f"{c}{level}"]) for c in kept}
        listed = [c if renamed[c] == c else f"{c} AS {renamed[c]}" for c in kept]
        listed += rng.sample(
            ["1 AS one", "'a' || 'b'", f"[{kept[0]}]", f"coalesce({kept[-1]}, NULL)"], rng.randint(0, 2)
        )
        where, own = "", {known[c]: c for c in known}
        if rng.random() < 0.6:
            tests = [f"{own['p']} > {rng.randint(0, 30)}"] if "p" in own else []
            tests += [f"{own['q']} <> 'a/b'"] if "q" in own else []
            tests += [f"{own['v']} > {rng.randint(0, 3000)}"] if "v" in own and rng.random() < 0.3 else []
            where = f" WHERE {rng.choice([' AND ', ' OR ']).join(tests)}" if tests else ""
        if rng.random() < 0.4:
            items, now = rng.choice(["*", "u.*", "* EXCLUDE (" + kept[0] + ")"]), dict(known)
            if "EXCLUDE" in items:
                now.pop(kept[0])
        else:
            items, now = ", ".join(listed), {renamed[c]: known[c] for c in kept}
        order = f" ORDER BY {rng.choice([*known])}" if rng.random() < 0.2 else ""
        query, known, ordered = f"SELECT {items} FROM {body} u{where}{order}", now, ordered or bool(order)
        if rng.random() < 0.3:
            expressions.append(f"e{level} AS ({query})")
            body = f"e{level}"
        else:
            body = f"({query})"
    column, other = rng.choice([*known]), rng.choice([*known])
    asked = rng.choice(
        [
            *("count(*)", f"count(*) AS n, min({column})", f"max({column}), min({other})", f"DISTINCT {column}"),
            *(f"{column}, count(*) AS n", f"{column}, {other}"),
        ]
    )
    end = f" GROUP BY {column}" if asked.startswith(f"{column}, count") else ""
    if rng.random() < 0.3:
        end = f" WHERE {column} IS NOT NULL{end}"
    if asked == f"{column}, {other}":
        end += f" ORDER BY {column}, {other} LIMIT 3" if ordered or rng.random() < 0.5 else " LIMIT 4"
    elif asked.startswith((column, "DISTINCT")):
        end += " ORDER BY ALL"
    with_ = f"WITH {', '.join(expressions)} " if expressions else ""
    return f"{with_}SELECT {asked} FROM {body} x{end}"


def test_random_statements_answer_as_over_all_files(connection, monkeypatch):
    read = [check(connection, monkeypatch, _nested(random.Random(seed))) for seed in range(90)]
    assert sum(not files for files in read) > 15
    assert sum(0 < files < FILES / 2 for files in read) > 8


def test_a_limit_may_be_a_parameter(connection, monkeypatch):
    assert check(connection, monkeypatch, "SELECT * FROM t LIMIT ? OFFSET ?", [2, 1]) == 2
    assert check(connection, monkeypatch, "SELECT * FROM t LIMIT $n", {"n": 1}) == 1


def test_the_report_says_what_stands_for_the_files(connection):
    counted = connection.explain("SELECT count(*) FROM t")
    part = counted.to_dict()["scans"][0]["datasets"][0]
    assert (part["files_total"], part["files_selected"], part["answered_from"]) == (FILES, FILES, "metadata")
    assert (counted.files_selected, counted.selected) == (0, [])
    assert "without opening" in str(counted)
    first = connection.explain("SELECT * FROM t LIMIT 2").to_dict()["scans"][0]["datasets"][0]
    assert first["steps"][-1] == {
        "condition": "the first 2 rows suffice",
        "by": "row counts",
        "files_before": FILES,
        "files_after": 2,
    }


def test_files_without_rows_make_no_groups(local, monkeypatch):
    write_dataset(local, "t", pa.table({"p": [0, 1, 2], "v": [1, 2, 3]}), partition_on="p")
    first = next(iter(builders.read_document(local, "t")["partitions"].values()))["files"]["table"]
    local.put(first, builders.parquet(builders.read_parquet(local, first).slice(0, 0)))
    with kartosql.connect(local.url) as made:
        for sql in ("SELECT DISTINCT p FROM t ORDER BY p", "SELECT p, count(*) FROM t GROUP BY p ORDER BY p"):
            assert check(made, monkeypatch, sql) == 0
            assert [row[0] for row in made.sql(sql).rows()] == [1, 2]
        assert check(made, monkeypatch, "SELECT count(*) FROM t WHERE p = 0") == 0
        assert made.sql("SELECT count(*), min(p) FROM t WHERE p = 0").rows() == [(0, None)]


def test_the_largest_float_may_be_no_number_of_the_statistics(local):
    rows = {"p": [*range(FILES)] * 2, "f": [float(n) for n in range(FILES)] + [float("nan")] * FILES}
    write_dataset(local, "t", pa.table(rows), partition_on="p")
    with kartosql.connect(local.url) as made:
        for _ in range(4):
            assert repr(made.sql("SELECT min(f), max(f) FROM t").rows()) == "[(0.0, nan)]"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM t, (SELECT min(b.w) AS low FROM c b) b",
        "SELECT count(*) FROM (SELECT max(w), min(s) FROM c)",
        "SELECT o FROM t WHERE EXISTS (SELECT min(w) FROM c) ORDER BY o",
        "WITH q AS (SELECT min(w) AS low FROM c) SELECT o FROM t ORDER BY o",
        "SELECT count(*) FROM t, (SELECT x FROM c ORDER BY w LIMIT 3) b",
    ],
)
def test_extremes_that_nobody_reads_are_asked_of_no_other_dataset(tmp_path, sql):
    keys = {"x": list(range(9)), "p": list(range(9))}
    with kartosql.connect(tmp_path) as con, duckdb.connect() as plain:
        con.build_cube(
            kartosql.Cube("c", "x", "p"),
            {"seed": pa.table({**keys, "s": ["a"] * 9}), "e": pa.table({**keys, "w": keys["x"]})},
        )
        con.create_dataset("t", {"o": [1, 2]})
        for name in ("c", "t"):
            plain.register(name, con.sql(f"FROM {name}").arrow())
        assert con.sql(sql).rows() == plain.sql(sql).fetchall()
