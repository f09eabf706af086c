"""Answers that follow from what is known of files are kept with their plan, as long as that is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql import query as module
from kartosql.engines.duckdb.statement import DuckStatement
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
    monkeypatch.setattr(module, "MAX_ANSWER_ROWS", 11)
    _thrice(connection, "SELECT p, count(*) FROM t GROUP BY p ORDER BY p")
    assert len(runs) == 3


def test_an_answer_that_was_not_read_to_its_end_is_not_kept(connection, runs):
    for _ in range(3):
        reader = connection.sql(SUMMARY).reader()
        reader.close()
        del reader
    assert len(runs) == 3
    assert _thrice(connection, SUMMARY) == [(48, 0, "k9")]
