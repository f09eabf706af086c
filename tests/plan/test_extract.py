"""Which conditions may leave out files of which table, by the files that stay."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import kartosql
import kartosql.query
from kartosql.plan.prune import prune
from kartosql.store import Store
from written import write_dataset


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    """Two tables of four files each: ``t`` and ``d``, by ``p``; ``i`` is 10 p, 10 p + 1, or NULL."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    rows = [(p, i) for p in range(4) for i in (10 * p, 10 * p + 1, None)]
    for name in ("t", "d"):
        table = pa.table(
            {
                "p": [p for p, _ in rows],
                "i": pa.array([i for _, i in rows], pa.int64()),
                "s": [f"s{p}" for p, _ in rows],
                "v": [float(p) for p, _ in rows],
            }
        )
        write_dataset(store, name, table, partition_on="p", index_columns=["i", "s"])
    with kartosql.connect(store.url) as made:
        yield made


def check(connection: Any, monkeypatch: pytest.MonkeyPatch, sql: str, files: list[int], parameters: Any = None) -> None:
    """Compare the files each table keeps, and the rows with those of all files."""
    query = connection.sql(sql, parameters)
    report = query.explain()
    rows = sorted(map(repr, query.rows()))
    with monkeypatch.context() as patch:
        patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
        assert rows == sorted(map(repr, connection.sql(sql, parameters).rows()))
    kept = [len(part["files"]) for scan in report.to_dict()["scans"] for part in scan["datasets"]]
    assert kept == files, str(report)


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("p = 1", 1),
        ("p IN (1, 3, 99)", 2),
        ("p > 1", 2),
        ("p BETWEEN 1 AND 2", 2),
        ("p <> 1", 3),
        ("p NOT IN (1, 2)", 2),
        ("p NOT IN (1, NULL)", 0),
        ("p = 1 OR p = 2", 2),
        ("NOT (p = 1 OR p = 2)", 2),
        ("NOT (p = 1 AND s = 's1')", 3),
        ("NOT p = 1", 3),
        ("p IS NULL", 0),
        ("p IS NOT NULL", 4),
        ("p % 2 = 1", 2),
        ("p + 1 = 2", 1),
        ("p = 1.0", 1),
        ("p = 1.5", 0),
        ("p BETWEEN 1.5 AND 2.5", 1),
        ("p = '01'", 1),
        ("p::VARCHAR LIKE '%2'", 1),
        ("(p = 1) = TRUE", 1),
        ("(p = 1) IS TRUE", 1),
        ("(p = 1) IS NOT TRUE", 3),
        ("CASE WHEN p = 1 THEN i ELSE p END = 3", 1),
        ("CASE p WHEN 1 THEN TRUE ELSE FALSE END", 1),
        ("p IS DISTINCT FROM 1", 3),
        ("coalesce(p, 1) = 1", 1),
        ("i = 10", 1),
        ("i IN (10, 31)", 2),
        ("i > 11", 2),
        ("i > 9 AND i < 12", 1),
        ("i > 3 AND i < 5", 0),
        ("i >= 10 AND i <= 11 AND p = 1", 1),
        ("i = 10 AND p = 2", 0),
        ("i + p = 11", 1),
        ("i = 10 OR p = 2", 2),
        ("i = 10 OR s = 's3'", 2),
        ("i = 10 AND s = 's3'", 0),
        ("i = 10 OR v = 2", 4),
        ("i = 10 AND v = 2", 1),
        ("i = 10 AND (v = 2 OR p > 0)", 1),
        ("(i = 10 AND v = 1) OR (i = 20 AND v = 7)", 2),
        ("i IS NULL", 4),
        ("i IS NOT NULL", 4),
        ("i IS NULL AND p = 1", 1),
        ("coalesce(i, 10) = 10", 4),
        ("coalesce(i, 10) = 11", 1),
        ("i IS DISTINCT FROM 10", 4),
        ("i IS NOT DISTINCT FROM 10", 1),
        ("(i = 10) IS NOT TRUE", 4),
        ("NOT i = 10", 4),
        ("i NOT IN (10, 11) AND p = 1", 0),
        ("i <> 10 AND i <> 11 AND p = 1", 0),
        ("CASE WHEN i = 10 THEN TRUE END", 1),
        ("CASE WHEN i = 10 THEN FALSE ELSE TRUE END", 4),
        ("s = 's1'", 1),
        ("s LIKE 's1%'", 1),
        ("upper(s) = 'S2'", 1),
        ("s > 's1' AND length(s) = 2", 2),
        ("v = 1", 4),
        ("p = v", 4),
        ("random() < 2 AND p = 1", 1),
        ("p = 1 AND i = (SELECT max(i) FROM d WHERE d.p = 1)", None),
        ("p < ALL (SELECT 2)", 2),
        ("TRUE", 4),
        ("FALSE", 0),
        ("NULL", 0),
        ("1 = 2 OR p = 1", 1),
        ("t.p = 1 AND \"t\".\"P\" < 5", 1),
        ("p = 1 /* AND p = 2 */ -- AND p = 3", 1),
        ("TRY_CAST(s[2] AS INTEGER) = 1", 1),
        ("now() > TIMESTAMPTZ '2000-01-01' AND p = 1", 1),
        ("p = $$1$$::INT", 1),
        ("p IN [1, 2]", None),
        ("list_contains([1, 2], p)", None),
        ("p = ANY ([1, 2])", None),
        ("(p, s) = (1, 's1')", None),
        ("p BETWEEN 1 AND 2 AND NOT p BETWEEN 2 AND 3", 1),
    ],
)  # fmt: skip
def test_where(connection, monkeypatch, where, files):
    sql = f"SELECT p, i FROM t WHERE {where}"
    if files is None:
        files = sum(len(s["datasets"][0]["files"]) for s in connection.explain(sql).to_dict()["scans"][:1])
        check_rows(connection, monkeypatch, sql)
    else:
        check(connection, monkeypatch, sql, [files])


def check_rows(connection: Any, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    kept = [len(p["files"]) for s in connection.explain(sql).to_dict()["scans"] for p in s["datasets"]]
    check(connection, monkeypatch, sql, kept)


@pytest.mark.parametrize(
    ("where", "parameters", "files"),
    [
        ("p = ?", [1], 1),
        ("p = $1 OR p = $1 + 1", [1], 2),
        ("p = $a AND i > $b", {"a": 1, "b": 5}, 1),
        ("p = :a", {"a": 3}, 1),
        ("i IN (?, ?)", [10, None], 1),
        ("i = ?", [None], 0),
        ("p BETWEEN ? AND ?", [1, 2], 2),
        ("s = ?", ["s'2"], 0),
    ],
)
def test_parameters_prune_like_their_values(connection, monkeypatch, where, parameters, files):
    check(connection, monkeypatch, f"SELECT p, i FROM t WHERE {where}", [files], parameters)


@pytest.mark.parametrize(
    ("sql", "files"),
    [
        # inner: WHERE and ON, both sides
        ("SELECT 1 FROM t JOIN d ON t.i = d.i WHERE t.p = 1", [1, 4]),
        ("SELECT 1 FROM t JOIN d ON t.i = d.i AND t.p = 1 AND d.p = 2", [1, 1]),
        ("SELECT 1 FROM t, d WHERE t.p = 1 AND d.p = 2", [1, 1]),
        ("SELECT 1 FROM t CROSS JOIN d WHERE t.p = 1 OR d.p = 2", [4, 4]),
        ("SELECT 1 FROM t, d WHERE (t.p = 1 AND d.p = 2) OR (t.p = 2 AND d.p = 0)", [2, 2]),
        ("SELECT 1 FROM t, d WHERE NOT (t.p = 1 OR d.p = 2)", [3, 3]),
        # left: WHERE on the preserved side, ON on the other
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i WHERE t.p = 1", [1, 4]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i AND t.p = 1", [4, 4]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i AND d.p = 1", [4, 1]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i WHERE d.p = 1", [4, 1]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i WHERE d.p IS NULL", [4, 4]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i WHERE coalesce(d.p, 1) = 1", [4, 4]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i WHERE d.p = 1 OR d.p IS NULL", [4, 4]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i WHERE d.p IN (1, 2) AND coalesce(d.i, 10) = 10", [4, 2]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i WHERE t.p = 1 OR d.p = 1", [4, 4]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i WHERE d.p <> 1", [4, 3]),
        # right
        ("SELECT 1 FROM t RIGHT JOIN d ON t.i = d.i WHERE d.p = 1", [4, 1]),
        ("SELECT 1 FROM t RIGHT JOIN d ON t.i = d.i AND t.p = 1", [1, 4]),
        ("SELECT 1 FROM t RIGHT JOIN d ON t.i = d.i AND d.p = 1", [4, 4]),
        ("SELECT 1 FROM t RIGHT JOIN d ON t.i = d.i WHERE t.p = 1", [1, 4]),
        ("SELECT 1 FROM t RIGHT JOIN d ON t.i = d.i WHERE t.p IS NULL", [4, 4]),
        # full
        ("SELECT 1 FROM t FULL JOIN d ON t.i = d.i AND t.p = 1 AND d.p = 1", [4, 4]),
        ("SELECT 1 FROM t FULL JOIN d ON t.i = d.i WHERE t.p = 1", [1, 4]),
        ("SELECT 1 FROM t FULL JOIN d ON t.i = d.i WHERE t.p = 1 AND d.p = 2", [1, 1]),
        ("SELECT 1 FROM t FULL JOIN d ON t.i = d.i WHERE t.p = 1 OR t.p IS NULL", [4, 4]),
        # semi and anti
        ("SELECT t.p FROM t SEMI JOIN d ON t.i = d.i AND d.p = 1 WHERE t.p < 3", [3, 1]),
        ("SELECT t.p FROM t SEMI JOIN d ON t.i = d.i AND t.p = 1", [1, 4]),
        ("SELECT t.p FROM t ANTI JOIN d ON t.i = d.i AND d.p = 1", [4, 1]),
        ("SELECT t.p FROM t ANTI JOIN d ON t.i = d.i AND t.p = 1", [4, 4]),
        # merged columns mean different things by join; they are left alone
        ("SELECT 1 FROM t FULL JOIN d USING (p) WHERE d.v = 1 OR p = 1", [4, 4]),
        ("SELECT 1 FROM t LEFT JOIN d USING (p) WHERE (p = 1 AND d.v = 1) OR (p = 2 AND d.p IS NULL)", [2, 2]),
        ("SELECT 1 FROM t JOIN d USING (p) WHERE t.i = 10 AND d.i = 10", [1, 1]),
        # nothing prunes here
        ("SELECT 1 FROM t ASOF LEFT JOIN d ON t.v >= d.v WHERE d.p = 1", [4, 4]),
        ("SELECT 1 FROM t ASOF JOIN d ON t.p = d.p AND t.v >= d.v AND d.p = 1", [4, 4]),
        ("SELECT 1 FROM t POSITIONAL JOIN d WHERE t.p = 1 AND d.p = 1", [4, 4]),
        ("SELECT count(*) FROM t TABLESAMPLE 100% WHERE p = 1", [4]),
        ("SELECT count(*) FROM t WHERE p = 1 USING SAMPLE 100%", [4]),
        ("SELECT DISTINCT ON (s) s, p FROM t WHERE p = 1 ORDER BY s, p", [1]),
        ("SELECT * FROM (SELECT DISTINCT ON (s) s, p FROM t ORDER BY s, p DESC) WHERE p = 1", [4]),
        ("SELECT * FROM (SELECT p FROM t ORDER BY p LIMIT 5) WHERE p = 1", [4]),
        ("SELECT p, row_number() OVER (ORDER BY p, i) AS n FROM t QUALIFY p = 1", [4]),
        ("SELECT count(*) FILTER (WHERE p = 1) FROM t", [4]),
        ("SELECT p FROM t GROUP BY ROLLUP (p) HAVING p = 1", [4]),
        ("SELECT max(p) FROM t HAVING max(p) = 1", [4]),
        ("FROM t AS u(i, s) SELECT 1 WHERE i = 10", [4]),
        # each block has conditions of its own
        ("SELECT (SELECT count(*) FROM d WHERE d.p = 1 AND d.i = t.i) FROM t WHERE p = 2", [1, 1]),
        ("SELECT p FROM t WHERE EXISTS (SELECT 1 FROM d WHERE d.p = t.p AND d.p = 1)", [1, 1]),
        ("SELECT p FROM t WHERE p = 1 UNION ALL SELECT p FROM t WHERE p IN (2, 3)", [1, 2]),
        ("WITH r AS (SELECT * FROM t WHERE p = 1) SELECT * FROM r JOIN d ON r.i = d.i WHERE d.p = 2", [1, 1]),
        ("SELECT 1 FROM t a JOIN t b ON a.i = b.i WHERE a.p = 1 AND b.p IN (1, 2)", [1, 2]),
        ("SELECT 1 FROM t LEFT JOIN t b ON t.i = b.i LEFT JOIN d ON b.i = d.i WHERE d.p = 1", [4, 4, 1]),
        ("SELECT 1 FROM t LEFT JOIN t b ON t.i = b.i JOIN d ON b.i = d.i AND b.p = 1 AND d.p = 2", [4, 1, 1]),
        ("SELECT 1 FROM t JOIN d ON t.i = d.i RIGHT JOIN t c ON c.i = d.i AND d.p = 1 AND c.p = 2", [4, 1, 4]),
        ("SELECT p AS i FROM t WHERE i = 10", [1]),
        ("SELECT p + 1 AS q FROM t WHERE q = 2", None),
        ("SELECT count(*) FROM t WHERE p = 99", [0]),
        ("SELECT p, count(*) FROM t WHERE p = 99 GROUP BY ROLLUP (p)", [0]),
    ],
)  # fmt: skip
def test_statements(connection, monkeypatch, sql, files):
    if files is None:
        check_rows(connection, monkeypatch, sql)
    else:
        check(connection, monkeypatch, sql, files)


@pytest.mark.parametrize(
    ("sql", "files"),
    [
        ("SELECT * FROM (SELECT * FROM t) WHERE p = 1", [1]),
        ("WITH r AS (SELECT * FROM t) SELECT * FROM r WHERE p = 1", [1]),
        ("WITH r AS (SELECT * FROM t) SELECT 1 FROM r a, r b WHERE a.p = 1 AND b.p = 2", [2]),
        ("SELECT * FROM (SELECT p FROM t UNION ALL SELECT p FROM d) WHERE p = 1", [1, 1]),
        ("SELECT p, count(*) FROM t GROUP BY p HAVING p = 1", [1]),
        ("SELECT * FROM (SELECT p, count(*) AS n FROM t GROUP BY p) WHERE p = 1", [1]),
        ("SELECT * FROM (SELECT p, rank() OVER (PARTITION BY p ORDER BY i) AS r FROM t) WHERE p = 1", [1]),
        ("SELECT 1 FROM t JOIN d ON t.p = d.p WHERE t.p = 1", [1, 1]),
        ("SELECT 1 FROM t LEFT JOIN d ON t.p = d.p WHERE t.p = 1", [1, 1]),
        ("SELECT 1 FROM t JOIN d USING (p) WHERE p = 1", [1, 1]),
        ("SELECT 1 FROM t NATURAL JOIN d WHERE p = 1", [1, 1]),
        ("SELECT p + 1 AS q FROM t WHERE q = 2", [1]),
        ("SELECT 1 FROM t WHERE p = 1 AND p IN (SELECT p FROM d)", [1, 1]),
        ("SELECT 1 FROM t WHERE p = 1 AND i IN (SELECT i FROM d WHERE p = 2)", [1, 1]),
        ("SELECT 1 FROM t WHERE p IN (SELECT p FROM d WHERE p = 1 UNION ALL SELECT p FROM d WHERE p = 2)", [4, 1, 1]),
        ("SELECT 1 FROM t WHERE p < 2 AND p IN (SELECT p FROM d UNION ALL SELECT p FROM d)", [2, 2, 2]),
        ("SELECT 1 FROM t WHERE p = 1 AND p NOT IN (SELECT p FROM d)", [1, 4]),
        ("SELECT 1 FROM t WHERE p = 1 OR p IN (SELECT p FROM d)", [4, 4]),
    ],
)
def test_conditions_are_carried_to_where_they_save_files(connection, monkeypatch, sql, files):
    check(connection, monkeypatch, sql, files)


@pytest.mark.parametrize(
    ("sql", "at", "reason"),
    [
        ("SELECT v FROM t QUALIFY p = 1 AND row_number() OVER () > 0", 0, "QUALIFY"),
        ("SELECT * FROM (SELECT p FROM t UNION ALL BY NAME SELECT p FROM t) WHERE p = 1", 0, "BY NAME"),
        ("SELECT 1 FROM t a LEFT JOIN t b ON a.i = b.i AND a.p = 1", 0, "ON of an outer join"),
        ("SELECT 1 FROM t ASOF JOIN d ON t.v >= d.v WHERE d.p = 1", 1, "ASOF"),
        ("SELECT * FROM (SELECT * FROM t LIMIT 100) WHERE p = 1", 0, "LIMIT"),
        ("SELECT * FROM (SELECT DISTINCT ON (i) * FROM t ORDER BY i, v) WHERE p = 1", 0, "DISTINCT ON"),
        ("SELECT * FROM (SELECT p, sum(v) AS s FROM t GROUP BY p) WHERE s = 1", 0, "aggregation"),
        ("SELECT * FROM (PIVOT (SELECT p, i, v FROM t) ON p IN (0, 1) USING sum(v)) WHERE i = 10", 0, "construct"),
        ("SELECT * FROM t TABLESAMPLE 50% WHERE p = 1", 0, "sampled"),
        (
            "WITH RECURSIVE r AS (SELECT p FROM t UNION SELECT p + 1 FROM r WHERE p < 3) FROM r WHERE p = 1",
            0,
            "recursive",
        ),
    ],
)
def test_the_report_gives_the_reason_where_all_files_are_kept(connection, sql, at, reason):
    scan = connection.explain(sql).to_dict()["scans"][at]
    assert len(scan["datasets"][0]["files"]) == 4
    assert reason in scan["kept_because"]


def test_expressions_that_multiply_are_given_up_in_time(connection):
    nested = "SELECT p AS x FROM t"
    for _ in range(30):
        nested = f"SELECT x + x AS x FROM ({nested})"
    listed = ", ".join(f"{' + '.join([f'x{i}'] * 6)} AS x{i + 1}" for i in range(8))
    for sql in (f"SELECT count(*) FROM ({nested}) WHERE x = 0", f"SELECT p AS x0, {listed} FROM t WHERE x8 = 0"):
        started = time.process_time()
        connection.explain(sql)
        assert time.process_time() - started < 20  # all of them would take days


def test_the_report_says_why_all_files_are_kept(connection):
    report = connection.explain("SELECT 1 FROM t LEFT JOIN d ON t.i = d.i WHERE d.p IS NULL").to_dict()
    assert "outer join" in report["scans"][1]["kept_because"]
    report = connection.explain("SELECT 1 FROM t POSITIONAL JOIN d WHERE t.p = 1").to_dict()
    assert "positional" in report["scans"][0]["kept_because"]


def test_the_report_has_a_line_for_each_step(connection):
    report = connection.explain("SELECT 1 FROM t WHERE i >= 10 AND p IN (0, 1, 2) AND v = 7").to_dict()
    (scan,) = report["scans"]
    (part,) = scan["datasets"]
    assert part["steps"] == [
        {"condition": "p IN (0, 1, 2)", "by": "partition key", "files_before": 4, "files_after": 3},
        {"condition": "i >= 10", "by": "inverted index", "files_before": 3, "files_after": 2},
    ]
    assert scan["conditions"] == ["i >= 10", "p IN (0, 1, 2)", "v = 7"]
    assert "v = 7" in scan["residual"]
    assert part["files_selected"] == 2 < part["files_total"] == 4
