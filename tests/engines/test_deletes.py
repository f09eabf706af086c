"""Deleted rows of files: by position and by key, before the WHERE, and nothing is told of files instead of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from deleting import Keys, Lake, check, expected, lake, rows
from kartosql.errors import FormatError

NAN = float("nan")


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as made:
        yield made


def asked(con: kartosql.Connection, sql: str) -> tuple[list[tuple[Any, ...]], list[str]]:
    query = con.sql(sql)
    (part,) = query.report.scan.occurrences[0].parts
    return sorted(query.rows(), key=repr), [part.part.table.labels[f] for f in part.files]


def numbers(*values: Any) -> pa.Table:
    return pa.table({"x": pa.array(values, pa.int64())})


def test_rows_at_deleted_positions_are_gone(con, tmp_path):
    made = Lake({"a": numbers(*range(10)), "b": numbers(*range(10, 14)), "c": numbers(20)}, {0: [0, 4, 9], 2: [0]})
    lake(con, tmp_path, "t", made)
    left = [(x,) for x in (1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13)]
    assert rows(con, "SELECT x FROM t") == sorted(left, key=repr)
    assert rows(con, "SELECT count(*), min(x), max(x) FROM t") == [(11, 1, 13)]
    assert rows(con, "SELECT count(*) FROM t WHERE x IN (0, 4, 9, 20)") == [(0,)]
    # Two occurrences of one table, and one without any column.
    assert rows(con, "SELECT count(*) FROM t a JOIN t b USING (x)") == [(11,)]
    assert rows(con, "SELECT 1 FROM t WHERE x > 12") == [(1,)]


def test_a_key_deletes_rows_of_older_files_in_its_scope(con, tmp_path):
    values = pa.table({"x": [1, 2, None, 3], "s": ["a", "b", None, "ä"], "d": [0.0, NAN, None, 1.5]})
    files = {f"p={p}/f": values for p in (1, 2, 3)}
    made = Lake(
        files,
        positions={2: [0]},
        keys=(
            Keys(["x"], [numbers(1), numbers(None, 3)], sequence=[2, 3]),
            Keys(["s", "d"], [pa.table({"s": ["b", None], "d": [NAN, None]})], sequence=[9], scope=[7]),
        ),
        sequence=[1, 2, 3],
        scope=[7, 7, 8],
    )
    lake(con, tmp_path, "t", made)
    told = sorted(((r["x"], r["s"], repr(r["d"]), int(r["p"])) for r in expected(made)), key=repr)
    found = [(x, s, repr(d), p) for x, s, d, p in con.sql("SELECT x, s, d, p FROM t").rows()]
    assert sorted(found, key=repr) == told
    # Columns that decide need not be asked for.
    assert rows(con, "SELECT p, count(*) FROM t GROUP BY p") == [(2, 1), (3, 3)]


def test_the_key_may_be_a_partition_column_or_one_that_is_not_seen(con, tmp_path):
    values = pa.table({"X": [1, 2], "x_": [5, 6]})
    made = Lake(
        {"p=1/f": values, "p=2/f": values},
        keys=(Keys(["p", "x_"], [pa.table({"p": [2], "x_": [5]})], [2]),),
        sequence=[1, 1],
        hidden=["x_"],
    )
    lake(con, tmp_path, "t", made)
    assert rows(con, "SELECT * FROM t") == [(1, 1), (2, 1), (2, 2)]


@pytest.mark.parametrize(
    ("positions", "problem"),
    [
        ([0, 3], "have the number 3, of 3 rows"),
        ([-1], "have the number -1, of 3 rows"),
        ([2, 1], "do not ascend"),
        ([1, 1], "do not ascend"),
        (pa.array([1, None]), "with 1 of them NULL"),
        (pa.array(["1"]), "are VARCHAR"),
        (pa.array([2**64 - 1], pa.uint64()), "have the number 18446744073709551615"),
    ],
)
def test_positions_that_cannot_be_are_an_error(con, tmp_path, positions, problem):
    lake(con, tmp_path, "t", Lake({"a": numbers(1, 2, 3)}, {0: positions}))
    with pytest.raises(FormatError) as caught:
        con.sql("SELECT x FROM t").rows()
    assert caught.value.code == "invalid-metadata"
    assert problem in caught.value.message
    assert "a-000.parquet" in caught.value.message


@pytest.mark.parametrize(
    ("key", "deletes", "problem"),
    [
        (["x"], pa.table({"x": ["1"]}), "'x', which is BIGINT and VARCHAR"),
        (["y"], pa.table({"y": [1]}), "'y', which is missing and BIGINT"),
        (["x"], pa.table({"y": [1]}), "'x', which is BIGINT and missing"),
        ([], pa.table({"y": [1]}), "by no column"),
    ],
)
def test_keys_that_do_not_fit_are_an_error(con, tmp_path, key, deletes, problem):
    lake(con, tmp_path, "t", Lake({"a": numbers(1)}, keys=(Keys(key, [deletes], [2]),), sequence=[1]))
    with pytest.raises(FormatError) as caught:
        con.sql("SELECT x FROM t").rows()
    assert caught.value.code == "schema-mismatch"
    assert problem in caught.value.message


def test_a_damaged_file_of_deletes_is_named(con, tmp_path):
    lake(con, tmp_path, "t", Lake({"a": numbers(1)}, keys=(Keys(["x"], [numbers(1)], [2]),), sequence=[1]))
    con.sql("SELECT x FROM t").rows()
    (tmp_path / "t_deletes_0" / "000.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(kartosql.KartosqlError) as caught:
        con.sql("SELECT x FROM t").rows()
    assert caught.value.code in ("corrupt-file", "changed-file", "missing-file"), caught.value


def test_counts_and_extremes_are_told_of_whole_files_only(con, tmp_path):
    made = Lake({f"p={p}/f": numbers(10 * p, 10 * p + 1) for p in range(4)}, {1: [1]})
    lake(con, tmp_path, "t", made)
    for where, total in (("", 7), ("WHERE p <> 1", 6), ("WHERE p = 1", 1), ("WHERE p >= 1", 5)):
        text = f"SELECT count(*) FROM t {where}"
        query = con.sql(text)
        (part,) = query.report.scan.occurrences[0].parts
        assert query.rows()[0][0] == total, where
        assert (part.summary is not None) == (where == "WHERE p <> 1"), where
        assert part.rows_are_files_rows == (where == "WHERE p <> 1"), where
        assert part.whole_files == frozenset(part.files) - {1}, where
    assert rows(con, "SELECT DISTINCT p FROM t") == [(0,), (1,), (2,), (3,)]
    lake(con, tmp_path, "gone", Lake({f"p={p}/f": numbers(p) for p in range(3)}, {1: [0]}))
    assert rows(con, "SELECT DISTINCT p FROM gone") == [(0,), (2,)]
    assert rows(con, "SELECT p, count(*) FROM gone GROUP BY p") == [(0, 1), (2, 1)]


def test_a_limit_counts_rows_of_whole_files_only(con, tmp_path):
    made = Lake({f"p={p}/f": numbers(*range(3)) for p in range(10, 30)}, {f: [0, 1, 2] for f in range(0, 20, 2)})
    lake(con, tmp_path, "t", made)
    found, files = asked(con, "SELECT x, p FROM t LIMIT 6")
    assert len(found) == 6
    assert len(files) == 4  # two of them are empty
    assert len(asked(con, "SELECT x FROM t LIMIT 30")[0]) == len(asked(con, "SELECT x FROM t LIMIT 100")[0]) == 30
    assert len(asked(con, "SELECT x FROM t WHERE p >= 20 LIMIT 4")[0]) == 4


def test_pruned_files_take_their_deletes_along(con, tmp_path):
    keys = (Keys(["x"], [numbers(1), numbers(2), numbers(3)], [2, 3, 4], scope=[0, 1, 2]),)
    files = {f"p={p}/f": numbers(1, 2, 3) for p in range(3)}
    # The positions of a file that is left out are not even looked at.
    lake(con, tmp_path, "t", Lake(files, {2: [99]}, keys, sequence=[1, 1, 1], scope=[0, 1, 2]))
    query = con.sql("SELECT x FROM t WHERE p = 0")
    assert sorted(query.rows()) == [(2,), (3,)]
    assert [key.rpartition("/")[2] for key in query.report.selected] == ["f-000.parquet", "000.parquet"]
    assert query.report.files_selected == 1
    with pytest.raises(FormatError):
        con.sql("SELECT x FROM t").rows()


def test_what_deletes_is_part_of_the_budget(con, tmp_path):
    big = numbers(*range(100_000))
    lake(con, tmp_path, "t", Lake({"a": numbers(1)}, keys=(Keys(["x"], [big], [2]),), sequence=[1]))
    size = (tmp_path / "t_deletes_0" / "000.parquet").stat().st_size
    con.sql(f"SET max_bytes = {size}")
    with pytest.raises(kartosql.KartosqlError) as caught:
        con.sql("SELECT x FROM t").rows()
    assert caught.value.code == "byte-budget"


@pytest.mark.parametrize("seed", range(30))
def test_random_deletes_leave_the_rows_that_are_computed_one_by_one(con, tmp_path, seed):
    check(con, tmp_path, seed, "duckdb")
