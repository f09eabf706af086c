"""Upkeep that executors do gives what one process gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sameness import described, leftovers

import kartosql
from kartosql.store import Store

CUBE = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])


def rows(xs: range, value: float) -> pa.Table:
    return pa.table(
        {
            "x": list(xs),
            "p": [["a ü=%", "b/c"][x % 2] for x in xs],
            "i": [f"i{x % 5}" for x in xs],
            "v": [value if x % 3 else None for x in xs],
            "f": [x / 8 for x in xs],
        }
    )


def fill(folder: Path) -> kartosql.Connection:
    folder.mkdir(exist_ok=True)
    con = kartosql.connect(str(folder))
    con.build_cube(CUBE, rows(range(40), 1.5), rows_per_file=7)
    con.append_to_cube("c", rows(range(20, 60), 2.5))
    con.extend_cube("c", {"e": pa.table({"x": [1, 2], "p": ["b/c", "a ü=%"], "w": [1, 2]})})
    con.create_dataset("d", rows(range(9), 1.0), partition_on=["p"])
    con.append_to_dataset("d", rows(range(9, 20), 1.0))
    return con


@pytest.fixture
def stores(tmp_path, spark) -> list[tuple[kartosql.Connection, Any]]:
    """Two stores of the same content, and the session that the calls on each get."""
    return [(fill(tmp_path / "local"), None), (fill(tmp_path / "spark"), spark)]


def same(stores: list[tuple[kartosql.Connection, Any]]) -> None:
    one, other = (described(Path(con.store.address[0])) for con, _ in stores)
    assert one == other


@pytest.mark.filterwarnings("ignore:.*holds NULL, which its index leaves out")
def test_indices(stores):
    answers = []
    for con, spark in stores:
        answers.append(con.create_index("c.seed", ["v", "f"], spark=spark)["values"])
        answers.append(con.create_index("d", ["x", "i"], spark=spark)["values"])
    assert answers[:2] == answers[2:]
    same(stores)
    assert not leftovers(stores[1][0].store)


def test_merged_files(stores):
    reports = []
    for con, spark in stores:
        con.create_index("d", ["x", "f"])
        found = {**con.compact("c", spark=spark), "d": con.compact("d", spark=spark)}
        reports.append({k: (v["files"], v["rows"], v["removed"], v["skipped"]) for k, v in found.items()})
    assert reports[0] == reports[1]
    assert reports[0]["seed"] == (2, 60, 8, 0)
    same(stores)
    for con, _ in stores:
        assert con.sql("SELECT count(*), sum(v) FROM c").rows() == [(60, 87.0)]
        assert not con.check("c", full=True) or all(f.severity == "info" for f in con.check("c", full=True))


def test_rows_that_break_the_rules_are_left_alone_by_both(stores):
    twice = rows(range(3), 9.0)
    flags = {
        "ktk_cube_dimension_columns": ["x"],
        "ktk_cube_is_seed": True,
        "ktk_cube_partition_columns": ["p"],
        "ktk_cube_suppress_index_on": [],
    }
    for con, spark in stores:
        # Written as a plain dataset would be, without the checks of a cube.
        both = pa.concat_tables([twice, twice.slice(1, 1)])
        con.create_dataset("k++seed", both, partition_on=["p"], index_columns=["x"], metadata=flags)
        con.append_to_dataset("k.seed", twice)
        found = con.compact("k", spark=spark)["seed"]
        assert (found["skipped"], found["files"], found["rows"]) == (2, 1, 2)
    same(stores)


def test_runs_of_files_are_as_long_as_the_target_says(stores):
    for con, spark in stores:
        found = con.compact("c", "seed", target_bytes=1, spark=spark)["seed"]
        assert (found["files"], found["removed"]) == (0, 0)
    same(stores)


def test_nothing_to_do(stores, spark):
    con, _ = stores[1]
    con.delete_from_dataset("d", [])
    assert con.compact("d", spark=spark)["files"] == 0
    assert con.create_index("d", "x", spark=spark)["values"] == {"x": 0}


def test_a_copy(stores, tmp_path):
    copies = []
    for number, (con, spark) in enumerate(stores):
        con.append_to_cube("c", rows(range(5), 3.5))
        folder = tmp_path / f"copy{number}"
        report = con.copy_cube("c", str(folder), name="other", spark=spark)
        copies.append((kartosql.connect(str(folder)), None))
        counts = {name: (one["files"], one["rows"]) for name, one in report.items()}
        assert counts == {"seed": (10, 85), "e": (2, 2)}
        assert not leftovers(Store(str(folder)))
    same(copies)
    answers = [con.sql("SELECT * FROM other ORDER BY x").rows() for con, _ in copies]
    assert answers[0] == answers[1] == stores[0][0].sql("SELECT * FROM c ORDER BY x").rows()


@pytest.mark.parametrize("call", ["create_index", "compact", "copy_cube"])
def test_a_file_that_is_missing(stores, spark, tmp_path, call):
    con, _ = stores[1]
    folder = Path(con.store.address[0])
    victim = next((folder / "c++seed" / "table").rglob("*.parquet"))
    copy = (tmp_path / "copy").as_posix()
    arguments = {"create_index": ["c.seed", ["v"]], "compact": ["c"], "copy_cube": ["c", copy]}[call]
    victim.unlink()
    before = described_or_not(con)
    with pytest.raises(kartosql.KartosqlError, match="missing") as e:
        getattr(con, call)(*arguments, spark=spark)
    assert e.value.code == "missing-file"
    assert described_or_not(con) == before
    assert not leftovers(con.store)
    if (tmp_path / "copy").exists():
        assert not list((tmp_path / "copy").rglob("*.parquet"))


def described_or_not(con: kartosql.Connection) -> list[bytes]:
    """Return the documents, which name all that is visible."""
    return [path.read_bytes() for path in sorted(Path(con.store.address[0]).glob("*.json"))]


def test_what_is_no_session(stores):
    con, _ = stores[0]
    with pytest.raises(kartosql.KartosqlError, match="str is no SparkSession") as e:
        con.compact("c", spark="local[2]")
    assert e.value.code == "invalid-argument"


def test_true_is_the_session_that_is_active(stores, spark):
    con, _ = stores[1]
    assert con.create_index("d", "x", spark=True)["values"] == {"x": 20}
