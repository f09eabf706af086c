"""DuckDB's errors as ours."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import ExecutionError, KartosqlError, LimitError, SqlError
from kartosql.store import Store
from written import write_dataset


@pytest.fixture(scope="module")
def connection() -> Any:
    store = Store(f"memory://{uuid.uuid4().hex}")
    write_dataset(store, "d", pa.table({"x": [1, 2, 3], "s": ["a", "b", "7"], "p": [0, 0, 1]}), partition_on="p")
    return kartosql.connect(store.url)


def _failure(connection: Any, sql: str, parameters: Any = None) -> KartosqlError:
    with pytest.raises(KartosqlError) as e:
        connection.sql(sql, parameters).rows()
    assert "kartosql_" not in str(e.value)
    assert "Error:" not in e.value.message
    return e.value


@pytest.mark.parametrize(
    ("sql", "kind", "code"),
    [
        ("SELECT * FROM d WHERE", SqlError, "syntax-error"),
        ("SELECT x FROM d WHERE (x = 1", SqlError, "syntax-error"),
        ("SELECT x frm d", SqlError, "syntax-error"),
        ("SELECT x, count(*) FROM d", SqlError, "not-grouped"),
        ("SELECT x FROM d WHERE count(*) > 1", SqlError, "invalid-query"),
        ("SELECT nothing(x) FROM d", SqlError, "invalid-query"),
        ("SELECT x + s FROM d", (SqlError, ExecutionError), None),
        ("SELECT x FROM d UNION SELECT x, s FROM d", SqlError, "invalid-query"),
        ("SELECT s::INT FROM d", ExecutionError, "invalid-value"),
        ("SELECT x + 9223372036854775807 FROM d", ExecutionError, "invalid-value"),
        ("SELECT 'x'::DATE FROM d", ExecutionError, "invalid-value"),
        ("SELECT error('my own') FROM d", ExecutionError, None),
        ("SELECT (SELECT x FROM d)", ExecutionError, "invalid-value"),
        ("SELECT regexp_matches(s, '(') FROM d", ExecutionError, "invalid-value"),
        ("SELECT date_trunc('nothing', DATE '2020-01-01') FROM d", (SqlError, ExecutionError), None),
        ("SELECT list_transform([1], lambda) FROM d", SqlError, None),
        ("SELECT x FROM d ORDER BY 5", SqlError, "invalid-query"),
        ("SELECT x FROM d LIMIT -1", KartosqlError, None),
        ("SELECT * FROM range(1, 2, 0)", KartosqlError, None),
        ("SELECT unnest(x) FROM d", SqlError, None),
        ("SELECT x FROM d, d", SqlError, "invalid-query"),
    ],
)
def test_errors_of_the_engine_are_ours(connection, sql, kind, code):
    error = _failure(connection, sql)
    assert isinstance(error, kind)
    assert error.code == (code or error.code)
    assert error.message


@pytest.mark.parametrize("sql", ["SELECT x, count(*) FROM d", "SELECT * FROM d WHERE", "SELECT nothing(x) FROM d"])
def test_the_schema_gives_the_same_error_as_the_run(connection, sql):
    with pytest.raises(KartosqlError) as e:
        _ = connection.sql(sql).schema
    assert e.value.code == _failure(connection, sql).code


@pytest.mark.parametrize("sql", ["SELECT x FROM d WHERE\n  (x = 1", "SELECT x FROM\nd frm e"])
def test_a_syntax_error_of_the_engine_has_a_place(connection, sql):
    assert _failure(connection, sql).span is not None


def test_a_failure_in_the_middle_of_a_stream_is_ours(connection):
    reader = connection.sql("SELECT CASE WHEN i = 900000 THEN 'x' ELSE '1' END::INT FROM range(1000000) t(i)").reader()
    with pytest.raises(ExecutionError) as e:
        for _ in reader:
            pass
    assert e.value.code == "invalid-value"


def test_a_timeout_stops_the_statement():
    connection = kartosql.connect(f"memory://{uuid.uuid4().hex}", timeout=0.2)
    started = time.perf_counter()
    with pytest.raises(LimitError) as e:
        connection.sql("SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range * b.range = 7").rows()
    assert e.value.code == "timeout"
    assert time.perf_counter() - started < 120  # it would take years


def test_too_little_memory_is_an_error_with_advice(tmp_path):
    connection = kartosql.connect(str(tmp_path), memory_limit="20MB", temp_directory=str(tmp_path / "spill"), threads=1)
    connection.sql("SET threads = 1")
    with pytest.raises(KartosqlError) as e:
        connection.sql("SELECT list(range) FROM range(20000000)").rows()
    assert e.value.code == "out-of-memory"
    assert "memory_limit" in e.value.hint
