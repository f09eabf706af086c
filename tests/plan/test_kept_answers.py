"""Answers are kept with their plan, as long as that is right and the files that they were read from are the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql import query as module
from kartosql.engines.duckdb.statement import DuckStatement
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan import bind
from kartosql.plan.bind import LEARNED
from kartosql.store import Store
from written import write_dataset


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """The texts that the engine ran."""
    found: list[str] = []
    stream = DuckStatement.stream

    def noted(self: DuckStatement, query: Any, **options: Any) -> Any:
        found.append(query.select.text)
        return stream(self, query, **options)

    monkeypatch.setattr(DuckStatement, "stream", noted)
    return found


@pytest.fixture
def connection(tmp_path) -> Iterator[kartosql.Connection]:
    rows = {"p": [n % 12 for n in range(48)], "v": [*range(48)], "s": [f"k{n}" for n in range(48)]}
    write_dataset(Store(str(tmp_path)), "t", pa.table(rows), partition_on="p")
    with kartosql.connect(str(tmp_path)) as made:
        yield made


SUMMARY = "SELECT count(*) AS n, min(v), max(s) FROM t"


def _thrice(connection: kartosql.Connection, text: str, parameters: Any = None) -> list[Any]:
    answers = [connection.sql(text, parameters) for _ in range(3)]
    shown = [(q.arrow().to_pylist(), str(q.arrow().schema), q.types, q.columns) for q in answers]
    assert shown[0] == shown[1] == shown[2]
    return answers[0].rows()


@pytest.mark.parametrize(
    "text",
    [
        SUMMARY,
        "SELECT count(*) FROM t WHERE p < 5",
        "SELECT p, count(*), max(v) FROM t GROUP BY p HAVING p > 2 ORDER BY p DESC LIMIT 4",
        "SELECT DISTINCT p FROM t ORDER BY p",
    ],
)
def test_the_engine_runs_such_a_statement_twice(connection, runs, text):
    expected = _thrice(connection, text)
    assert runs == [text, text]
    with kartosql.connect(connection.store.url) as other:
        assert other.sql(f"SELECT * FROM ({text.replace('FROM t', 'FROM (SELECT * FROM t LIMIT 99) t')})").rows() == (
            expected
        )


def test_a_known_answer_tells_what_was_read(connection):
    _thrice(connection, SUMMARY)
    query = connection.sql(SUMMARY)
    assert query.rows() == [(48, 0, "k9")]
    assert query.stats is not None
    assert (query.stats["rows"], query.stats["bytes_read"], query.stats["files_opened"]) == (1, 0, 0)
    assert query.report is not None
    assert query.report.engine == "duckdb"
    assert next(iter(query.reader())).num_rows == 1


def test_a_commit_makes_a_new_answer(connection):
    _thrice(connection, SUMMARY)
    connection.append_to_dataset("t", pa.table({"p": [1], "v": [-5], "s": ["z"]}))
    assert _thrice(connection, SUMMARY) == [(49, -5, "z")]


def test_other_constants_and_parameters_have_answers_of_their_own(connection):
    assert [_thrice(connection, f"SELECT count(*), max(v) FROM t WHERE p = {n}") for n in (1, 2)] == [
        [(4, 37)],
        [(4, 38)],
    ]
    sql = "SELECT count(*), max(v) FROM t WHERE p = ?"
    assert [_thrice(connection, sql, [n]) for n in (1, 2, 1)] == [[(4, 37)], [(4, 38)], [(4, 37)]]


@pytest.mark.parametrize(
    "item", ["random()", "uuid()", "p + random()", "(SELECT random() FROM t LIMIT 1)", "(SELECT uuid())"]
)
def test_what_changes_from_run_to_run_is_not_kept(connection, item):
    text = f"SELECT p, {item} AS x, count(*) FROM t WHERE p = 1 GROUP BY ALL"
    answers = {repr(connection.sql(text).rows()) for _ in range(4)}
    assert len(answers) == 4


def test_a_function_without_arguments_is_none_of_a_partition(connection):
    for text in ("SELECT p + random() AS x, count(*) FROM t GROUP BY 1", "SELECT max(v) FROM t WHERE p + random() > 9"):
        query = connection.sql(text)
        query.rows()
        assert query.report is not None
        assert all(part.summary is None for o in query.report.scan.occurrences for part in o.parts)


def test_the_time_of_the_session_counts(connection):
    text = "SELECT count(*), now()::VARCHAR FROM t"
    assert len({repr(connection.sql(text).rows()) for _ in range(3)}) == 3


def test_settings_of_the_engine_count(connection):
    text = "SELECT count(*), max(v), CAST(TIMESTAMPTZ '2020-01-01 00:00:00+00' AS VARCHAR) FROM t"
    first = _thrice(connection, text)
    connection.sql("SET TimeZone = 'Asia/Tokyo'")
    assert _thrice(connection, text) != first


def test_large_answers_are_made_again(connection, runs, monkeypatch):
    monkeypatch.setattr(module, "MAX_ANSWER", 11)
    _thrice(connection, "SELECT p, count(*) FROM t GROUP BY p ORDER BY p")
    assert len(runs) == 3


def test_an_answer_that_was_not_read_to_its_end_is_not_kept(connection, runs):
    for _ in range(3):
        reader = connection.sql(SUMMARY).reader()
        reader.close()
        del reader
    assert len(runs) == 3
    assert _thrice(connection, SUMMARY) == [(48, 0, "k9")]


# -- answers that were read from files ------------------------------------------------------------------

READ = "SELECT v, s || '!' AS t FROM t WHERE p < 3 AND v > 1 ORDER BY v"
OFTEN = LEARNED + 4  # of which the first plan, the next one is kept, and the others need not be run


@pytest.fixture
def settled(monkeypatch) -> None:
    """Files that were written just now count as if they were old."""
    monkeypatch.setattr(module, "SETTLED_NS", -(10**12))


def _often(connection: kartosql.Connection, text: str, parameters: Any = None) -> list[Any]:
    answers = [connection.sql(text, parameters) for _ in range(OFTEN)]
    shown = [(q.arrow().to_pylist(), str(q.arrow().schema), q.types, q.columns) for q in answers]
    assert all(one == shown[0] for one in shown)
    return answers[0].rows()


@pytest.mark.parametrize(
    "text",
    [
        READ,
        "SELECT v FROM t WHERE v < -1",
        "SELECT p, sum(v) FILTER (WHERE v > 4), list(s ORDER BY s) FROM t GROUP BY p ORDER BY p",
        "SELECT a.v, row_number() OVER (ORDER BY a.v) FROM t a JOIN t b ON a.v = b.v + 1 WHERE b.p = 3 ORDER BY 1",
        "WITH x AS (SELECT v FROM t WHERE p IN (1, 2)) SELECT (SELECT max(v) FROM x), v::HUGEINT FROM x ORDER BY v",
    ],
)
def test_an_answer_is_read_until_its_plan_is_kept_and_once_more(connection, runs, settled, text):
    expected = _often(connection, text)
    assert len(runs) == LEARNED + 1
    with kartosql.connect(connection.store.url, keep_answers=False) as other:
        assert _often(other, text) == expected
    assert len(runs) == LEARNED + 1 + OFTEN


def test_the_report_says_that_nothing_was_read(connection, settled):
    _often(connection, READ)
    query = connection.sql(READ)
    rows = query.rows()
    assert query.stats is not None
    assert (query.stats["rows"], query.stats["bytes_read"], query.stats["files_opened"]) == (len(rows), 0, 0)
    assert query.report is not None
    (part,) = query.report.to_dict()["scans"][0]["datasets"]
    assert (part["answered_from"], part["files_selected"]) == ("memory", 3)
    assert "answered from memory" in str(query.report)
    connection.sql("SET keep_answers = false")
    query = connection.sql(READ)
    assert query.rows() == rows
    assert query.report.to_dict()["scans"][0]["datasets"][0]["answered_from"] == "files"


def test_an_answer_of_files_written_just_now_is_not_kept(connection, runs, monkeypatch):
    monkeypatch.setattr(module, "SETTLED_NS", 10**12)
    _often(connection, READ)
    assert len(runs) == OFTEN


@pytest.mark.parametrize(
    "item", ["random()", "uuid()", "uuidv7()", "v + random()", "(SELECT random())", "(SELECT max(random()) FROM t)"]
)
def test_what_is_drawn_is_drawn_each_time(connection, settled, item):
    text = f"SELECT v, {item} AS x FROM t WHERE p = 1 ORDER BY v"
    assert len({repr(connection.sql(text).rows()) for _ in range(OFTEN)}) == OFTEN


@pytest.mark.parametrize(
    "text",
    [
        "SELECT v FROM t TABLESAMPLE 50%",
        "SELECT v FROM t USING SAMPLE 3 ROWS",
        "SELECT v, age(TIMESTAMP '2020-01-01') FROM t WHERE p = 1",
        "SELECT v, now() FROM t WHERE p = 1",
        "SELECT v, current_localtimestamp() FROM t WHERE p = 1",
        "SELECT v, current_date FROM t WHERE p = 1",
        "PIVOT (SELECT p, v FROM t) ON p USING sum(v)",
    ],
)
def test_what_may_be_another_answer_is_read_again(connection, runs, settled, text):
    for _ in range(OFTEN):
        connection.sql(text).rows()
    assert len(runs) == OFTEN


def test_answers_over_data_in_memory_are_not_kept(connection, runs, settled):
    connection.register("r", pa.table({"v": [1, 2]}))
    text = "SELECT t.v FROM t JOIN r ON t.v = r.v ORDER BY 1"
    assert _often(connection, text) == [(1,), (2,)]
    assert len(runs) == OFTEN


def test_a_file_that_was_written_anew_is_read_again(connection, settled):
    text = "SELECT s FROM t WHERE p = 1 ORDER BY v"
    before = _often(connection, text)
    (key,) = connection.explain(text).selected
    path = Path(connection.store.local_path(key))
    rows = pq.read_table(path, partitioning=None)
    other = rows.set_column(rows.column_names.index("s"), "s", pa.array([f"K{n}" for n in range(rows.num_rows)]))
    pq.write_table(other, path)
    with kartosql.connect(connection.store.url) as fresh:
        after = fresh.sql(text).rows()
    assert _often(connection, text) == after != before


def test_a_file_that_is_gone_is_missed(connection, settled):
    _often(connection, READ)
    Path(connection.store.local_path(connection.explain(READ).selected[0])).unlink()
    with pytest.raises(KartosqlError) as e:
        connection.sql(READ).rows()
    assert e.value.code == "missing-file"


def test_the_budget_holds_for_kept_answers(connection, settled):
    _often(connection, READ)
    connection.sql("SET max_bytes = 10")
    with pytest.raises(KartosqlError) as e:
        connection.sql(READ).rows()
    assert e.value.code == "byte-budget"


def test_all_answers_together_are_bounded(connection, runs, settled, monkeypatch):
    monkeypatch.setattr(bind, "MAX_ANSWERS", 100)
    texts = [f"SELECT s FROM t WHERE p = {n} AND v > 1 ORDER BY v" for n in range(6)]
    for text in texts:
        _often(connection, text)
    held = [
        sum(b.get_total_buffer_size() for b in s.answer.batches)
        for e in connection._session.plans._entries.values()
        for s in e.scans.values()
        if s.answer
    ]
    assert 0 < sum(held) <= 100
    runs.clear()
    for text in texts:
        connection.sql(text).rows()
    assert 0 < len(runs) < len(texts)


def test_an_answer_outlives_neither_a_commit_nor_the_way_back(connection, settled):
    before = _often(connection, READ)
    connection.append_to_dataset("t", pa.table({"p": [-1], "v": [1000], "s": ["z"]}))
    after = _often(connection, READ)
    assert after == [*before, (1000, "z!")]
    connection.sql("DELETE FROM t WHERE p = -1")
    assert _often(connection, READ) == before


CUBE = Cube(uuid_prefix="c", dimension_columns=["x"], partition_columns=["p"], index_columns=["i"])
ASKED = [
    "SELECT x, i, w FROM c WHERE i = {n} ORDER BY x, i, w",
    "SELECT p, sum(i), max(w) FROM c WHERE x < {m} GROUP BY p ORDER BY p",
    "SELECT count(*), min(x) FROM c WHERE p = '{k}'",
    "SELECT DISTINCT w FROM c WHERE p = '{k}' AND w IS NOT NULL ORDER BY w",
    "SELECT a.x, b.w FROM c a JOIN c b ON a.x = b.x AND a.p = b.p WHERE b.i = {n} ORDER BY ALL",
    "SELECT s, v FROM t WHERE p = {n} ORDER BY v, s",
    "SELECT t.v, c.w FROM t JOIN c ON t.v = c.x WHERE t.p < {n} ORDER BY ALL",
    "SELECT x FROM c WHERE i = {n} AND x NOT IN (SELECT v FROM t WHERE p = {n}) ORDER BY x",
]


@pytest.mark.parametrize("seed", range(3))
def test_repeated_answers_between_commits_are_those_of_a_fresh_connection(connection, runs, settled, seed):
    rng = random.Random(seed)

    def rows(count: int, part: str) -> dict[str, pa.Table]:
        x = [rng.randrange(40) for _ in range(count)]
        x = sorted({*x})
        first = {"x": x, "p": [part] * len(x), "i": [rng.randrange(6) for _ in x]}
        return {
            "seed": pa.table(first),
            "extra": pa.table({"x": x[::2], "p": [part] * len(x[::2]), "w": [rng.random() for _ in x[::2]]}),
        }

    connection.build_cube(CUBE, rows(20, "a"))
    connection.append_to_cube(CUBE, rows(20, "b"))
    numbers = {"n": rng.randrange(6), "m": rng.randrange(40), "k": rng.choice("ab")}
    texts = [text.format(**numbers) for text in ASKED]
    asked = 0
    for _ in range(8):
        for text in rng.sample(texts, 4):
            with kartosql.connect(connection.store.url, keep_answers=False) as fresh:
                expected = fresh.sql(text).arrow()
            for _ in range(rng.choice((1, OFTEN, OFTEN))):
                assert connection.sql(text).arrow().equals(expected), text
                asked += 1
            asked += 1
        way = rng.randrange(4)
        if way == 0:
            connection.append_to_cube(CUBE, rows(5, rng.choice("abc")))
        elif way == 1:
            connection.update_cube(CUBE, rows(5, "a"), remove_conditions=None)
        elif way == 2:
            v = rng.randrange(48)
            connection.append_to_dataset("t", pa.table({"p": [v % 12], "v": [v], "s": ["again"]}))
        else:
            connection.sql(f"DELETE FROM t WHERE p = {rng.randrange(12)}")
    assert len(runs) < asked
