"""Batches of a result as the engine gives them, of which small ones are passed on together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql.engines.duckdb import statement
from kartosql.engines.duckdb.statement import DuckStatement
from kartosql.errors import KartosqlError
from kartosql.store import Store
from written import write_dataset

FILES = 12
SQL = "SELECT p, x, s, f, e, l FROM t JOIN kinds USING (k)"
# NaN and zeros with signs, NULLs, texts with strange characters, an enum and a list in each of many small batches.
ROWS = [
    {"p": p, "x": None if p % 5 == 0 else 2**63 - 1 - p, "s": ["", "\x00", "\U0001f600", None][p % 4]}
    | {"f": [float("nan"), -0.0, 0.0, None, 1e308][p % 5], "k": p % 3, "l": [None, [], [p, None]][p % 3]}
    for p in range(FILES)
]
KINDS = pa.table({"k": [0, 1, 2], "e": pa.array(["a", "b", None]).dictionary_encode()})


@pytest.fixture
def connection(tmp_path, monkeypatch) -> Iterator[Any]:
    """A dataset of files with a row each; time does not pass."""
    monkeypatch.setattr(statement, "SOON", 1e9)
    rows = pa.Table.from_pylist(ROWS)
    write_dataset(Store(str(tmp_path / "store"), create=True), "t", rows, partition_on="p")
    with kartosql.connect(tmp_path / "store") as made:
        made.register("kinds", KINDS)
        yield made


def _streamed(connection: Any, monkeypatch: Any, batches: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the stream of a statement of which the engine gives these batches."""
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    monkeypatch.setattr(DuckStatement, "_submitted", lambda made, query: (reader, ["BIGINT"]))
    return connection.sql("SELECT 1 AS x").reader()


def _numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


@pytest.mark.parametrize("soon", [1e9, 0.02, 0.0, -1.0])
@pytest.mark.parametrize("few", [0, 1, 5, FILES, 8_192])
def test_rows_are_the_same_however_they_are_put_together(connection, monkeypatch, soon, few):
    monkeypatch.setattr(statement, "SOON", soon)
    monkeypatch.setattr(statement, "FEW_ROWS", few)
    batches = list(connection.sql(SQL).reader())
    found = pa.Table.from_batches(batches)
    expected = sorted(({**row, "e": ["a", "b", None][row["k"]]} for row in ROWS), key=lambda row: row["p"])
    shown = [repr({c: row[c] for c in found.column_names}) for row in expected]
    assert [repr(row) for row in sorted(found.to_pylist(), key=lambda row: row["p"])] == shown
    assert {str(batch.schema) for batch in batches} == {str(found.schema)}


def test_few_rows_of_many_files_are_one_batch(connection):
    assert [b.num_rows for b in connection.sql("SELECT p, x FROM t").reader()] == [FILES]
    assert connection.sql("SELECT x FROM t WHERE p < 0").arrow().num_rows == 0


def test_large_batches_are_passed_on_as_they_are(connection, monkeypatch):
    monkeypatch.setattr(statement, "FEW_ROWS", 4)
    given = [_numbers(1), _numbers(2, 3), _numbers(*range(9)), _numbers(4), _numbers(5)]
    found = [b.num_rows for b in _streamed(connection, monkeypatch, given, given[0].schema)]
    assert found == [1, 2, 9, 2]


def test_rows_before_an_error_come_before_it(connection, monkeypatch):
    def given() -> Iterator[pa.RecordBatch]:
        yield _numbers(1)
        yield _numbers(2, 3)
        raise OSError("Conversion Error: nothing fits")

    stream = _streamed(connection, monkeypatch, given(), _numbers().schema)
    assert stream.read_next_batch().to_pydict() == {"x": [1, 2, 3]}
    with pytest.raises(KartosqlError, match="nothing fits"):
        stream.read_next_batch()


def test_what_arrow_cannot_put_together_is_passed_on_in_pieces(connection, monkeypatch):
    def refuse(batches: Any) -> Any:
        raise pa.ArrowNotImplementedError("concatenation")

    monkeypatch.setattr(pa, "concat_batches", refuse)
    given = [_numbers(1), _numbers(2), _numbers(3)]
    found = [b.to_pydict() for b in _streamed(connection, monkeypatch, given, given[0].schema)]
    assert found == [{"x": [1]}, {"x": [2]}, {"x": [3]}]
