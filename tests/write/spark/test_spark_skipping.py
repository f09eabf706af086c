"""Data-skipping metadata that executors collect are those that one process collects."""

from __future__ import annotations

import datetime as dt
import random
import shutil
import uuid
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sameness import leftovers, metadata

import kartosql
import kartosql.query
import kartosql.write.skipping
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.kartothek.naming import BASE
from kartosql.formats.xskipper.kinds import IndexSpec
from kartosql.formats.xskipper.layout import layout_for
from kartosql.formats.xskipper.scans import DataFile, collect, parquet_scan
from kartosql.plan.prune import prune
from kartosql.store import Store
from kartosql.write.spark import job, task
from kartosql.write.spark.task import Address
from kartosql.write.spark.upkeep import SparkSources

INDEXES: dict[str, Any] = {
    "minmax": ["i", "u", "f", "s", "t", "d", "k", "b", "x.m", "x.y.z"],
    "valuelist": ["i", "f", "s", "k", "b", "d", "x.y.z"],
    "bloomfilter": {"i": {"fpp": 0.05, "ndv": 100}, "s": {}, "x.y.z": {"ndv": 10}},
}
SCHEMA = pa.schema(
    [
        ("p", pa.string()),
        ("q", pa.date32()),
        ("i", pa.int64()),
        ("u", pa.uint64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("t", pa.timestamp("us")),
        ("d", pa.date32()),
        ("k", pa.decimal128(10, 2)),
        ("b", pa.bool_()),
        ("x", pa.struct([("m", pa.int64()), ("y", pa.struct([("z", pa.string())]))])),
    ]
)


def rows(numbers: range) -> pa.Table:
    """Both zeros, NaN, NULL in single rows and in whole files, text of many sizes, and structs within structs."""
    day = dt.date(2024, 2, 28)
    values = {
        "p": [["a ü=%", "b/c", "d"][n // 30 % 3] for n in numbers],
        "q": [day + dt.timedelta(days=n // 90) for n in numbers],
        "i": [None if n % 7 == 3 else n for n in numbers],
        "u": [2**64 - 1 - n for n in numbers],
        "f": [float("nan") if n % 37 == 5 else -0.0 if n % 41 == 0 else n / 4 for n in numbers],
        "s": [None if 60 <= n < 90 else "ä" * (n % 50) + f"s{n // 5}" for n in numbers],
        "t": [dt.datetime(1969, 12, 31, 23, 59, 59, n) for n in numbers],
        "d": [None if n % 3 else day + dt.timedelta(days=n) for n in numbers],
        "k": [Decimal(n) / 4 - 20 for n in numbers],
        "b": [None if n % 5 == 1 else n % 60 < 30 for n in numbers],
        "x": [None if n % 11 == 2 else {"m": n, "y": {"z": None if n % 2 else f"z{n}"}} for n in numbers],
    }
    return pa.table(values, schema=SCHEMA)


@pytest.fixture
def con(tmp_path) -> Any:
    (tmp_path / "one").mkdir()
    with kartosql.connect(str(tmp_path / "one")) as made:
        made.create_dataset("d", rows(range(600)), partition_on=["p", "q"])
        yield made


@pytest.fixture
def twin(con, tmp_path) -> Any:
    """A store with the same files of the same age."""
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with kartosql.connect(str(tmp_path / "two")) as made:
        yield made


@pytest.fixture
def only_executors_read(monkeypatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("the driver reads files for metadata")

    monkeypatch.setattr(kartosql.write.skipping, "parquet_scan", lambda store: refuse)


def steps(con: kartosql.Connection, sql: str) -> dict[str, int]:
    (scan,) = con.explain(sql).to_dict()["scans"]
    return {step["by"]: step["files_after"] for dataset in scan["datasets"] for step in dataset["steps"]}


def bytes_below(con: kartosql.Connection) -> dict[str, bytes]:
    """Return all that stands in a store."""
    root = Path(con.store.address[0])
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_values_are_those_of_one_process(con, twin, spark, monkeypatch):
    expected = con.create_skipping_index("d", **INDEXES)
    monkeypatch.setattr(kartosql.write.skipping, "parquet_scan", lambda store: None)  # no scan
    assert twin.create_skipping_index("d", **INDEXES, spark=spark) == expected
    assert expected["added"] == 20
    assert metadata(twin.store) == metadata(con.store)
    assert len(metadata(con.store)) == expected["added"]
    assert not leftovers(twin.store)


@pytest.mark.parametrize("kind", ["minmax", "valuelist", "bloomfilter"])
def test_each_kind_alone(con, twin, spark, kind):
    """Bounds alone come from footers, as far as these tell them."""
    for one, session in ((con, None), (twin, spark)):
        one.create_skipping_index("d", **{kind: INDEXES[kind]}, spark=session)
    assert metadata(twin.store) == metadata(con.store)


def test_indexes_that_are_added_keep_those_that_are_there(con, twin, spark):
    for one, session in ((con, None), (twin, spark)):
        one.create_skipping_index("d", minmax=["i", "s"], spark=session)
        made = one.create_skipping_index("d", valuelist="s", bloomfilter=["i"], spark=session)
        assert made["indexes"] == 4
        assert one.refresh_skipping_index("d", spark=session)["kept"] == made["added"]
    assert metadata(twin.store) == metadata(con.store)


def test_files_of_other_writers_wait_for_a_refresh(con, tmp_path, spark, monkeypatch):
    con.create_skipping_index("d", **INDEXES)
    with monkeypatch.context() as patch:
        patch.setattr("kartosql.write.operation.Operation._keep_up", lambda *_: None)
        con.append_to_dataset("d", rows(range(1000, 1100)))
        con.delete_from_dataset("d", [("p", "==", "d")])
    shutil.copytree(tmp_path / "one", tmp_path / "before")
    expected, found = con.refresh_skipping_index("d"), metadata(con.store)
    assert expected["added"] > 2
    assert expected["removed"] > 2
    shutil.rmtree(tmp_path / "one")
    shutil.copytree(tmp_path / "before", tmp_path / "one")
    with kartosql.connect(str(tmp_path / "one")) as again:
        assert again.refresh_skipping_index("d", spark=spark) == expected
        assert metadata(again.store) == found


@pytest.mark.usefixtures("only_executors_read")
def test_commits_of_dataframes_are_indexed_by_executors(tmp_path, spark):
    cube = kartosql.Cube("c", ["x"], ["p"], seed_dataset="seed")
    few = ("id AS x", "concat('p', id % 3) AS p", "id * 0.5D AS v", "concat('s', id % 40) AS s")
    with kartosql.connect(str(tmp_path)) as con:
        con.build_cube(cube, spark.range(60).selectExpr(*few))
        con.create_skipping_index("c.seed", minmax="v", bloomfilter={"s": {"ndv": 50}}, spark=spark)
        con.append_to_cube("c", spark.range(60, 120).selectExpr(*few))
        con.append_to_cube("c", spark.range(120, 180).selectExpr(*few))
        # One file of each write to the partition: files that may hold the same cells stay together.
        assert steps(con, "SELECT x FROM c WHERE v = 70") == {"minmax": 3}
        con.compact("c", spark=spark)
        con.extend_cube("c", {"e": spark.range(9).selectExpr("id AS x", "concat('p', id % 3) AS p", "1 AS w")})
        (kept,) = {row[-2:] for row in con.sql("SHOW SKIPPING INDEXES FROM c.seed").rows()}
        assert kept == (3, 3)
        assert con.refresh_skipping_index("c", spark=spark)["seed"]["kept"] == 3
        assert con.create_skipping_index("c", minmax="w", spark=spark)["e"]["added"] == 3
        assert con.sql("SELECT count(*), sum(x) FROM c.seed WHERE s = 's7'").rows() == [(5, 435)]
        assert not [key for key in leftovers(con.store) if "kartosql-spark" in key]


def test_true_is_the_session_that_is_active(con, spark):
    assert con.create_skipping_index("d", minmax="i", spark=True)["added"] == 20
    assert con.refresh_skipping_index("d", spark=True)["added"] == 0


def test_files_that_cannot_be_read_stay_unindexed(con, twin, spark):
    reports = []
    for one, session in ((con, None), (twin, spark)):
        files = sorted(Path(one.store.address[0]).glob("d/table/**/*.parquet"))
        files[0].write_bytes(b"PAR1 nothing PAR1")
        pq.write_table(pa.table({"i": ["text"], "s": ["text"]}), files[1])
        files[2].unlink()
        reports.append(one.create_skipping_index("d", minmax="i", valuelist="s", spark=session))
    assert reports[0] == reports[1]
    assert reports[0]["unindexed"] == 2


def test_pruned_answers_are_those_of_all_files(con, spark, monkeypatch):
    con.append_to_dataset("d", rows(range(13, 900, 7)))
    con.create_skipping_index("d", **INDEXES, spark=spark)
    chosen = random.Random(11)
    atoms = [
        lambda: f"i {chosen.choice(['=', '<>', '<', '>='])} {chosen.randrange(-5, 900)}",
        lambda: f"u {chosen.choice(['=', '>'])} {2**64 - 1 - chosen.randrange(900)}",
        lambda: f"f {chosen.choice(['=', '<>', '<', '>='])} {chosen.choice([0.0, -0.0, 3.25, 50, 1e9])}",
        lambda: f"s {chosen.choice(['=', '<>', 'LIKE'])} '{'ä' * chosen.randrange(3)}s{chosen.randrange(180)}'",
        lambda: f"x.y.z IN ('z1', 'z{chosen.randrange(900)}')",
        lambda: f"x.m > {chosen.randrange(900)}",
        lambda: f"t < TIMESTAMP '1969-12-31 23:59:59.000{chosen.randrange(900):03}'",
        lambda: f"k = {chosen.randrange(900) / 4 - 20}",
        lambda: f"d >= DATE '2024-{chosen.randrange(3, 13):02}-10'",
        lambda: chosen.choice(["b", "NOT b", "b IS NULL", "s IS NULL", "s IS NOT NULL", "f = 'NaN'::DOUBLE"]),
        lambda: chosen.choice(["p = 'b/c'", "q > DATE '2024-03-01'"]),
    ]
    skipped = 0
    for turn in range(60):
        where = chosen.choice(atoms)()
        for _ in range(chosen.randrange(3)):
            other = chosen.choice(atoms)()
            where = f"{chosen.choice(['', 'NOT '])}({where} {chosen.choice(['AND', 'OR'])} {other})"
        sql = f"SELECT p, i, u FROM d WHERE {where}"
        found = sorted(map(repr, con.sql(sql).rows()))
        skipped += bool({"minmax", "valuelist", "bloomfilter"} & steps(con, sql).keys())
        if turn % 20 == 0:
            assert found == sorted(map(repr, con.sql(sql, engine="spark").rows())), sql
        with monkeypatch.context() as patch:
            patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
            assert found == sorted(map(repr, con.sql(sql).rows())), sql
    assert skipped > 20


# -- much of it ----------------------------------------------------------------------------------------


def test_the_driver_holds_a_part_of_them_at_a_time(spark, tmp_path):
    """Filters of 120 KB for each of 150 files are 18 MB, of which the driver takes 4 MB at once and no more."""
    store = Store(tmp_path)
    for n in range(150):
        store.put(f"d/table/{n}.parquet", b"")
        pq.write_table(pa.table({"i": [n, None]}), tmp_path / "d" / "table" / f"{n}.parquet")
    files = [DataFile(f"/t/{n}", n, f"d/table/{n}.parquet", {"p": n % 3}) for n in range(150)]
    layout = layout_for("/t", [IndexSpec("bloomfilter", "i")], {"i": pa.int64()}, {"p": pa.int64()})
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        found = list(SparkSources(spark, store, "d").rows(files, layout))
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "4")
    assert len(found) >= 4
    assert max(t.nbytes for t in found) < 5 << 20
    expected = pa.Table.from_batches(list(collect(files, layout, parquet_scan(store))))
    assert pa.concat_tables(found).sort_by("obj_name").equals(expected.sort_by("obj_name"))
    assert leftovers(store) == [f.key for f in sorted(files, key=lambda f: f.key)]


# -- what fails ----------------------------------------------------------------------------------------


def test_a_store_in_memory_is_not_shared(spark):
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as con:
        con.create_dataset("d", rows(range(9)), partition_on=["p"])
        with pytest.raises(KartosqlError) as e:
            con.create_skipping_index("d", minmax="i", spark=spark)
        assert e.value.code == "store-unreachable"
        assert con.store.list_below(BASE) == {}


@pytest.fixture(params=["elsewhere", "gone", "died"])
def trouble(request, tmp_path, monkeypatch) -> str:
    """Executors that fail; returns the code that this has."""
    if request.param == "died":
        monkeypatch.setattr(job, "shipped", lambda _: _die)
        return "spark-job-failed"
    if request.param == "elsewhere":
        (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(job, "address_of", lambda _: Address(str(tmp_path / "elsewhere"), {}))
    return "store-unreachable"


def _die(batches: Any) -> Any:
    import os

    os._exit(3)
    yield from batches


def test_executors_that_fail_change_nothing(con, spark, trouble):
    before = bytes_below(con)
    with pytest.raises(KartosqlError) as e:
        con.create_skipping_index("d", minmax="i", spark=spark)
    assert e.value.code == trouble
    assert bytes_below(con) == before


def test_a_refresh_that_fails_leaves_the_metadata_that_are_there(con, spark, trouble, monkeypatch):
    con.create_skipping_index("d", minmax="i")
    with monkeypatch.context() as patch:
        patch.setattr("kartosql.write.operation.Operation._keep_up", lambda *_: None)
        con.append_to_dataset("d", rows(range(1000, 1100)))
        con.delete_from_dataset("d", [("p", "==", "d")])
    before = bytes_below(con)
    for call in (con.refresh_skipping_index, partial(con.create_skipping_index, valuelist="s")):
        with pytest.raises(KartosqlError) as e:
            call("d", spark=spark)
        assert e.value.code == trouble
    assert bytes_below(con) == before
    assert con.refresh_skipping_index("d")["added"] > 2


def test_a_commit_stands_whose_files_cannot_be_indexed(tmp_path, spark, monkeypatch):
    few = ("id AS x", "concat('p', id % 3) AS p")
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", spark.range(9).selectExpr(*few), partition_on=["p"])
        con.create_skipping_index("d", minmax="x")
        run = job.Job.run

        def fail(self: Any, frame: Any, work: Any) -> Any:
            if work.func is task.collect_metadata:
                raise KartosqlError("No executors.", code="spark-job-failed")
            return run(self, frame, work)

        monkeypatch.setattr(job.Job, "run", fail)
        with pytest.warns(KartosqlWarning, match=r"do not follow the commit: No executors\."):
            con.append_to_dataset("d", spark.range(100, 109).selectExpr(*few))
        assert con.sql("SELECT count(*) FROM d WHERE x > 50").rows() == [(9,)]
        assert steps(con, "SELECT x FROM d WHERE x > 500") == {"minmax": 3}
